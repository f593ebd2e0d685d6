"""Iterators over datasets, with states to save and restore.

Elements come in runs. `itertools.chain` steps in C through a list iterator over each run, so handing over an
element costs some 20 ns; only `get_state()` asks how far the iterator has come.
"""

import abc
import contextlib
import itertools
import json
import sys
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from headrace.engine.iteration import Iteration
from headrace.errors import ClosedError, HeadraceError, StateError, hide_internal_frames
from headrace.exporters import DEBUG_EVERY_S, Export, Exporter, debug_report, export_of
from headrace.ops.global_batch import has_global_state
from headrace.ops.next_index import index_at, position_at
from headrace.ops.op import Op
from headrace.options import config
from headrace.state import merging, positions
from headrace.state import positions as arrays
from headrace.stats import Stats

T = TypeVar("T")


class NoStats:
    """Where users' datasets and iterators may report, as they do in Grain: nothing is recorded."""

    output_spec = None

    def record_self_time(self, *, num_elements: int = 1, offset_ns: int = 0) -> contextlib.AbstractContextManager[None]:
        """A context for the work of one step."""
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        """Returns the element."""
        return element

    record_output_spec_for_batch = record_bytes_consumed = record_bytes_produced = record_output_spec

    def report(self) -> None:
        """Reports nothing."""


class _Checkpointable(Generic[T]):
    """What the iterators of datasets and of loaders share; their states have different types."""

    def __iter__(self) -> Self:
        return self

    def get_state(self) -> Any:
        raise NotImplementedError

    def start_prefetch(self) -> None:
        """Starts computing ahead, before the first element is requested.

        >>> iterator = iter(MapDataset.range(4).to_iter_dataset().prefetch(2))
        >>> iterator.start_prefetch()
        >>> next(iterator)
        0
        """

    def close(self) -> None:
        """Releases threads, processes and memory; the iterator cannot be used afterwards.

        >>> iterator = iter(MapDataset.range(4))
        >>> iterator.close()
        >>> next(iterator)
        Traceback (most recent call last):
            ...
        headrace.errors.ClosedError: This iterator is closed; make a new one.

        Differs from Grain: after it, `next` is always an error; Grain may still return elements that were ready.
        """

    async def save(self, directory: Any) -> Awaitable[None]:
        """Writes the current state to a folder once that exists, as Orbax requires of a checkpointable object.

        >>> from orbax.checkpoint import v1 as orbax
        >>> iterator = iter(MapDataset.range(4))
        >>> orbax.save_checkpointables(folder / "step_0", {"data": iterator})
        """
        text = merging.dump(self.get_state())

        async def write() -> None:
            merging.write(await directory.await_creation(), text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Restores the state that `save` wrote to a folder.

        >>> from orbax.checkpoint import v1 as orbax
        >>> iterator = iter(MapDataset.range(4))
        >>> _ = next(iterator)
        >>> orbax.save_checkpointables(folder / "step_1", {"data": iterator})
        >>> again = iter(MapDataset.range(4))
        >>> _ = orbax.load_checkpointables(folder / "step_1", {"data": again})
        >>> next(again)
        1
        """

        async def read() -> None:
            merging.restore(self, directory)

        return read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DatasetIterator(_Checkpointable[T], abc.ABC):
    """An iterator over a dataset; subclass it to write your own.

    A subclass defines `__next__`, `get_state` and `set_state`. `self._parents` holds its parents' iterators;
    if there is one parent, `self._parent` is its iterator.

    >>> class Twice(DatasetIterator):
    ...     def __next__(self):
    ...         return 2 * next(self._parent)
    ...     def get_state(self):
    ...         return self._parent.get_state()
    ...     def set_state(self, state):
    ...         self._parent.set_state(state)
    >>> class Doubled(IterDataset):
    ...     def __iter__(self):
    ...         return Twice(iter(self._parent))
    >>> list(Doubled(MapDataset.range(3).to_iter_dataset()))
    [0, 2, 4]
    """

    _parents: "tuple[DatasetIterator, ...]" = ()
    _state_is_global: Any = False  # whether any number of processes can resume from the states of all
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
        """The next element.

        >>> iterator = iter(MapDataset.range(2))
        >>> next(iterator), next(iterator), next(iterator, "end")
        (0, 1, 'end')

        Differs from Grain: after an error, the next call raises the same error again.
        """

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """The iterator's position, as small JSON.

        >>> iterator = iter(MapDataset.range(6).shuffle(seed=1))
        >>> _ = next(iterator), next(iterator)
        >>> iterator.get_state()["next_index"]
        2
        """

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Returns to the position at which `get_state` was called.

        >>> iterator = iter(MapDataset.range(6).shuffle(seed=1))
        >>> state = iterator.get_state()
        >>> first = next(iterator)
        >>> iterator.set_state(state)
        >>> next(iterator) == first
        True
        """

    def get_next_index(self) -> int:
        """How many outputs have come, where that number alone determines the position.

        >>> iterator = iter(MapDataset.range(6).batch(2))
        >>> _ = next(iterator)
        >>> iterator.get_next_index()
        1

        Differs from Grain: there it is `experimental.get_next_index(iterator)`.
        """
        raise StateError(f"{type(self).__name__} has no next index. Use `get_state()`.")

    def set_next_index(self, index: int) -> None:
        """Goes to an output by its number, where that number alone determines the position.

        >>> iterator = iter(MapDataset.range(6).batch(2))
        >>> iterator.set_next_index(2)
        >>> next(iterator)
        array([4, 5])

        Differs from Grain: there it is `experimental.set_next_index(iterator, index)`.
        """
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
    _closed = False

    def __init__(self, op: Op):
        self._iteration = Iteration(op)
        self._identity = positions.PipelineIdentity(op)
        self._chains: deque[Any] = deque(maxlen=256)
        self.__next__ = _connect(self._iteration, _Reconnect(self._iteration, self))
        if config.py_debug_mode:
            self._export(debug_report(), DEBUG_EVERY_S)

    def log_to(self, target: Any, *, every_s: float = 10.0) -> Self:
        """Sends its statistics to a target every few seconds, and when it is closed; returns the iterator.

        An error of the target is logged and ends the export; the stream continues.

        >>> seen = []
        >>> with iter(MapDataset.range(4)).log_to(seen.append) as iterator:
        ...     _ = list(iterator)
        >>> seen[-1]["headrace/elements"]
        4.0

        Differs from Grain: only Headrace has it.

        Args:
            target: A TensorBoard `SummaryWriter`, a Weights & Biases run, `exporters.Prometheus`, or a function that
                receives a dict of numbers.
            every_s: The seconds between two exports.
        """
        self._export(export_of(target), every_s)
        return self

    def _export(self, export: Export, every_s: float) -> None:
        self._iteration.recorder.on_snapshot.append(Exporter(self._iteration, export, every_s))

    def get_state(self) -> dict[str, Any]:
        """The iterator's position, as small JSON, with a fingerprint of the pipeline that it belongs to.

        >>> iterator = iter(MapDataset.range(6).shuffle(seed=1))
        >>> _ = next(iterator), next(iterator)
        >>> state = iterator.get_state()
        >>> state["next_index"], state["pipeline"]["1 shuffle"]
        (2, {'seed': 1})

        Differs from Grain: it has the fields `pipeline`, `functions` and `checksum`, and does not depend on workers.
        """
        return self._identity.add_to(self._position_state())

    def state_as_array(self, size: int = 1 << 14) -> np.ndarray:
        """The state as `size` bytes, for hosts that gather their states; `set_state` takes it too.

        The leaves of `get_state()` are ints, but hosts may have different numbers of them, for instance when an
        interleave has fewer datasets open on one host. These arrays all have the same size.

        >>> iterator = iter(MapDataset.range(6).shuffle(seed=1))
        >>> array = iterator.state_as_array(size=1024)
        >>> array.shape, str(array.dtype)
        ((1024,), 'uint8')

        Differs from Grain: only Headrace has it.
        """
        state = self.get_state()
        return arrays.pack(state if isinstance(state, bytes) else json.dumps(state).encode(), size)

    def set_state(self, state: dict[str, Any] | np.ndarray, *, strict: bool = True) -> None:
        """Returns to the position at which `get_state` or `state_as_array` was called.

        A state from a pipeline with another order is an error that says what differs; with `strict=False`, a warning.

        >>> iterator = iter(MapDataset.range(6).shuffle(seed=1))
        >>> state = iterator.get_state()
        >>> first = next(iterator)
        >>> iterator.set_state(state)
        >>> next(iterator) == first
        True

        Differs from Grain: a state of another seed, batch size, shard or source is an error; Grain continues with other
        data.
        """
        try:
            position = positions.restore(self._iteration.op, state, strict=strict)
        except HeadraceError as e:
            hide_internal_frames(e)
            raise
        self._iteration.go_to(position)

    def _position_state(self) -> dict[str, Any]:
        return positions.encode(self._iteration.op, self._iteration.position())

    def get_next_index(self) -> int:
        """How many outputs have come, where that number alone determines the position.

        >>> iterator = iter(MapDataset.range(6).batch(2))
        >>> _ = next(iterator)
        >>> iterator.get_next_index()
        1

        Differs from Grain: for batches of what a filter left, it is an error; Grain counts wrongly.
        """
        return index_at(self._iteration.op, self._iteration.position())

    def set_next_index(self, index: int) -> None:
        """Goes to an output by its number, where that number alone determines the position.

        >>> iterator = iter(MapDataset.range(6).batch(2))
        >>> iterator.set_next_index(2)
        >>> next(iterator)
        array([4, 5])

        Differs from Grain: for batches of what a filter left, it is an error; Grain goes to other elements.
        """
        self._iteration.go_to(position_at(self._iteration.op, index))

    def stats(self) -> Stats:
        """What it has done so far and where the time went; `print` it, or log `stats().as_dict()`.

        >>> iterator = iter(MapDataset.range(100).map(str))
        >>> _ = list(iterator)
        >>> iterator.stats().elements
        100

        Differs from Grain: only Headrace has it.
        """
        return Stats.of(self._iteration, time.perf_counter())

    def start_prefetch(self) -> None:
        self._iteration.start()

    def close(self) -> None:
        if not self._closed and self._iteration.recorder.outputs.elements:
            for export in self._iteration.recorder.on_snapshot:
                export(at_once=True)
        self._closed = True
        self._iteration.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "An iterator cannot be copied or pickled: save its `get_state()`, and call `set_state()` on a new iterator."
        )

    def __repr__(self) -> str:
        return f"<iterator of {self._iteration.op.label()} at {self._position_state()}>"


class StreamIterator(PipelineIterator[T], DatasetIterator[T]):
    """An iterator over a dataset of this package: what `iter(ds)` returns.

    >>> iterator = iter(MapDataset.range(4).shuffle(seed=1).batch(2))
    >>> next(iterator)
    array([1, 2])
    >>> state = iterator.get_state()
    >>> second = next(iterator)
    >>> iterator.set_state(state)
    >>> np.array_equal(next(iterator), second)
    True
    """

    @property
    def _state_is_global(self) -> bool:
        return has_global_state(self._iteration.op)


def _connect(iteration: Iteration, reconnect: "_Reconnect") -> Callable[[], Any]:
    """The function that hands over the elements of all runs.

    A chain whose source raises is exhausted from then on, so `reconnect` makes another one.
    """
    runs = itertools.chain.from_iterable(iteration)
    later = map(next, reconnect)
    reconnect.keep(runs, later)
    return itertools.chain(runs, later).__next__


class _Reconnect(Iterator):
    """Gives an iterator a new chain after an error has ended the last one; closes the iteration when it is dropped."""

    def __init__(self, iteration: Iteration, owner: PipelineIterator):
        self._iteration = iteration
        self._owner = weakref.ref(owner)

    def keep(self, *chains: Iterator[Any]) -> None:
        """Keeps parts of a chain for a while: a chain drops one that ends, even if another thread is still in it."""
        owner = self._owner()
        if owner is not None:
            owner._chains.append(chains)

    def __next__(self) -> Iterator[Any]:
        owner = self._owner()
        if owner is not None:
            owner.__next__ = _connect(self._iteration, self)
        return itertools.chain.from_iterable(self._iteration)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        if not is_finalizing():  # else everything is closed already, and modules may be gone
            self._iteration.drop()
