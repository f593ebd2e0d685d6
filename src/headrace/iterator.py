"""Iterators over datasets, with states to save and restore.

Elements come in runs. `itertools.chain` steps in C through a list iterator over each run, so handing over an
element costs some 20 ns; only `get_state()` asks how far the iterator has come.
"""

import abc
import itertools
import json
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from headrace._executors.walk import Walk
from headrace._ops.base import Op
from headrace._ops.global_batch import has_global_state
from headrace._plan.next_index import index_at, position_at
from headrace._states import arrays, files, positions
from headrace.compat.grain.stats import NoStats
from headrace.errors import ClosedError, StateError
from headrace.stats import Stats

T = TypeVar("T")


class _Checkpointable(Generic[T]):
    """What the iterators of datasets and of loaders share; their states have different types."""

    def __iter__(self) -> Self:
        return self

    def get_state(self) -> Any:
        raise NotImplementedError

    def start_prefetch(self) -> None:
        """Starts computing ahead, before the first element is requested."""

    def close(self) -> None:
        """Releases threads, processes and memory; the iterator cannot be used afterwards."""

    async def save(self, directory: Any) -> Awaitable[None]:
        """Writes the current state to a folder once that exists, as Orbax requires of a checkpointable object."""
        text = files.dump(self.get_state())

        async def write() -> None:
            files.write(await directory.await_creation(), text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Restores the state that `save` wrote to a folder."""

        async def read() -> None:
            files.restore(self, directory)

        return read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DatasetIterator(_Checkpointable[T], abc.ABC):
    """An iterator over a dataset; subclass it to write your own.

    A subclass defines `__next__`, `get_state` and `set_state`. `self._parents` holds its parents' iterators;
    if there is one parent, `self._parent` is its iterator.
    """

    _parents: "tuple[DatasetIterator, ...]" = ()
    _state_is_global: Any = False  # whether any number of processes can go on from the states of all
    _stats: ClassVar[NoStats] = NoStats()
    _closed = False

    def __init__(self, parents: Any = ()):
        self._parents = tuple(parents) if isinstance(parents, list | tuple) else (parents,)

    @property
    def _parent(self) -> "DatasetIterator":
        assert len(self._parents) == 1  # programs that walk up a chain of iterators catch this
        return self._parents[0]

    @abc.abstractmethod
    def __next__(self) -> T:
        """The next element."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """The iterator's position, as small JSON."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Returns to the position at which `get_state` was called."""

    def get_next_index(self) -> int:
        """How many outputs have come, where that number alone determines the position."""
        raise StateError(f"{type(self).__name__} has no next index. Use `get_state()`.")

    def set_next_index(self, index: int) -> None:
        """Goes to an output by its number, where that number alone determines the position."""
        raise StateError(f"{type(self).__name__} has no next index. Use `set_state()`.")

    def start_prefetch(self) -> None:
        for parent in self._parents:
            parent.start_prefetch()

    def close(self) -> None:
        self._closed = True
        for parent in self._parents:
            parent.close()

    def _assert_not_closed(self) -> None:
        """Raises if the iterator is closed; for the `__next__` of subclasses."""
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")


class PipelineIterator(_Checkpointable[T]):
    """An iterator over a pipeline.

    `__next__` is that of an `itertools.chain`, so no line of Python runs between taking an element out of a run and
    handing it over: a signal handler that raises in such a line would lose the element.
    """

    __slots__ = ("__next__",)
    __next__: Callable[[], T]  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self, op: Op):
        self._walk = Walk(op)
        self._identity = positions.Identity(op)
        self.__next__ = _connect(self._walk, _Reconnect(self._walk, self))

    def get_state(self) -> dict[str, Any]:
        """The iterator's position, as small JSON, with a fingerprint of the pipeline that it belongs to."""
        return self._identity.added_to(self._position_state())

    def state_as_array(self, size: int = 1 << 14) -> np.ndarray:
        """The state as `size` bytes, for hosts that gather their states; `set_state` takes it too.

        The leaves of `get_state()` are ints, but hosts may have different numbers of them, for instance when an
        interleave has fewer datasets open on one host. These arrays all have the same size.
        """
        state = self.get_state()
        return arrays.packed(state if isinstance(state, bytes) else json.dumps(state).encode(), size)

    def set_state(self, state: dict[str, Any] | np.ndarray, *, strict: bool = True) -> None:
        """Returns to the position at which `get_state` or `state_as_array` was called.

        A state from a pipeline with another order is an error that says what differs; with `strict=False`, a warning.
        """
        self._walk.go_to(positions.restore(self._walk.op, state, strict=strict))

    def _position_state(self) -> dict[str, Any]:
        return positions.encode(self._walk.op, self._walk.position())

    def get_next_index(self) -> int:
        return index_at(self._walk.op, self._walk.position())

    def set_next_index(self, index: int) -> None:
        self._walk.go_to(position_at(self._walk.op, index))

    def stats(self) -> Stats:
        """What it has done so far and where the time went; `print` it, or log `stats().as_dict()`."""
        return Stats.of(self._walk, time.perf_counter())

    def start_prefetch(self) -> None:
        self._walk.start()

    def close(self) -> None:
        self._closed = True
        self._walk.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("An iterator cannot be copied or pickled: keep its `get_state()`, and make a new one there.")

    def __repr__(self) -> str:
        return f"<iterator of {self._walk.op.label()} at {self._position_state()}>"


class StreamIterator(PipelineIterator[T], DatasetIterator[T]):
    """An iterator over a dataset of this package."""

    @property
    def _state_is_global(self) -> bool:
        return has_global_state(self._walk.op)


def _connect(walk: Walk, reconnect: "_Reconnect") -> Callable[[], Any]:
    """The function that hands over the elements of all runs.

    A chain whose source raises is exhausted from then on, so `reconnect` makes another one.
    """
    runs = itertools.chain.from_iterable(walk)
    return itertools.chain(runs, map(next, reconnect)).__next__


class _Reconnect(Iterator):
    """Gives an iterator a new chain after an error has ended the last one; closes the walk when it is dropped."""

    def __init__(self, walk: Walk, owner: PipelineIterator):
        self._walk, self._owner = walk, weakref.ref(owner)

    def __next__(self) -> Iterator[Any]:
        owner = self._owner()
        if owner is not None:
            owner.__next__ = _connect(self._walk, self)
        return itertools.chain.from_iterable(self._walk)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        if not is_finalizing():  # else everything is closed already, and modules may be gone
            self._walk.drop()
