"""What `as_grain()` changes in Headrace, for programs that look for Grain in ways that names alone do not serve.

Keras takes a dataset for Grain's if it has a base class of such a name in a module with `grain` in its name. Its layers
stay on the CPU in a pipeline, which they recognize by the file names of their callers. MaxText and others put an
iterator behind the `__getitem__` of a source. None of this is in force without `as_grain()`.
"""

import dis
import os
import threading
from collections.abc import Callable
from typing import Any

from headrace.dataset import IterDataset, MapDataset
from headrace.engine.workers import imports
from headrace.errors.signals import in_pipeline
from headrace.loader import DataLoader, in_order
from headrace.state import positions

_MARKED: tuple[tuple[type, type], ...] = tuple(
    (kind, type(kind.__name__, (), {"__slots__": (), "__module__": __name__}))
    for kind in (MapDataset, IterDataset, DataLoader)
)
"""With the base classes that Keras looks for."""
_FILE = in_pipeline.__code__.co_filename
_FILE_OF_GRAIN = os.path.join(os.path.dirname(__file__), "grain", "_src", "python", "dataset")  # there is no such file
_times_installed = 0


def install(set_up_worker: Callable[[], Callable[[], object] | None]) -> None:
    """Puts the hooks in force; each call needs a `remove()`."""
    global _times_installed
    _times_installed += 1
    if set_up_worker not in imports.set_ups:  # stays: modules that were imported as Grain's remain so
        imports.set_ups.append(set_up_worker)
    if _times_installed > 1:
        return
    for kind, mark in _MARKED:
        kind.__bases__ = (*kind.__bases__, mark)
    in_pipeline.__code__ = in_pipeline.__code__.replace(co_filename=_FILE_OF_GRAIN)
    in_order.recognizers[ignores_its_index] = read_as_thread


def remove() -> None:
    """Ends the hooks, with the last call of as many as there were of `install`."""
    global _times_installed
    _times_installed -= 1
    if _times_installed:
        return
    for kind, mark in _MARKED:
        kind.__bases__ = tuple(base for base in kind.__bases__ if base is not mark)
    in_pipeline.__code__ = in_pipeline.__code__.replace(co_filename=_FILE)
    del in_order.recognizers[ignores_its_index]


def ignores_its_index(source: Any) -> bool:
    """Whether the `__getitem__` of a source calls `next` and never reads its index."""
    code = getattr(getattr(type(source), "__getitem__", None), "__code__", None)
    if code is None or code.co_argcount != 2 or "next" not in code.co_names:
        return False
    index = code.co_varnames[1]
    loaded = (step.argval for step in dis.get_instructions(code) if "LOAD" in step.opname)
    return not any(index == name or (isinstance(name, tuple) and index in name) for name in loaded)


def read_as_thread(source: Any, nth: int, num_threads: int) -> Any:
    """The next element of a source that may have a stream for each of Grain's threads, found by their names."""
    thread = threading.current_thread()
    name = thread.name
    thread.name = f"headrace-read-ahead_{nth % num_threads}"
    try:
        return source[nth]
    finally:
        thread.name = name


def _translate(op: Any, state: dict[str, Any], replay: positions.Replay) -> dict[str, Any]:
    from headrace.compat.grain.states import translated  # imported here, since few programs need it

    return translated(op, state, replay)


positions.translators.append(_translate)  # also without `as_grain()`: Grain's states are restored by `set_state`
