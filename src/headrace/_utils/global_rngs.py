"""The random number generators that all code of a process shares: of `random`, of NumPy, and of torch on the CPU.

Of torch it seeds the generator of the CPU only: `torch.manual_seed` would also seed those of GPUs, which training uses.
"""

import contextlib
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_lock = threading.RLock()


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


@contextlib.contextmanager
def seeded_globals() -> "Iterator[SeededGlobals]":
    """Lets calls find the generators seeded; at the end, these are as they were. Other threads wait meanwhile.

    >>> with seeded_globals() as seeded:
    ...     first = seeded.call(np.random.default_rng(1), random.random)
    ...     again = seeded.call(np.random.default_rng(1), random.random)
    >>> first == again != random.random()
    True
    """
    with _lock:
        seeded = SeededGlobals()
        try:
            yield seeded
        finally:
            seeded.put_back()


class SeededGlobals:
    """The states of the generators, as they were at first."""

    def __init__(self):
        self._random, self._numpy = random.getstate(), np.random.get_state(legacy=False)
        generator = _torch_generator()
        self._torch = None if generator is None else generator.get_state()

    def call(self, rng: np.random.Generator, function: Callable[..., T], *args: Any) -> T:
        """The result of a call that finds generators seeded from `rng`."""
        words: list[int] = rng.bit_generator.random_raw(3).tolist()
        _seed(words)
        result = function(*args)
        generator = _torch_generator()
        if self._torch is not None or generator is None:
            return result
        # The call has imported torch, and found its generator as it is after an import: call again, now seeded.
        self._torch = generator.manual_seed(generator.initial_seed()).get_state()
        _seed(words)
        return function(*args)

    def put_back(self) -> None:
        """Sets the generators to these states."""
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        if self._torch is not None:
            _torch_generator().set_state(self._torch)


def _seed(words: list[int]) -> None:
    random.seed(words[0])
    np.random.seed(words[1] >> 32)
    generator = _torch_generator()
    if generator is not None:
        generator.manual_seed(words[2] >> 1)


def _torch_generator() -> Any:
    """The generator of torch on the CPU; `None` unless somebody has imported torch."""
    return getattr(sys.modules.get("torch"), "default_generator", None)
