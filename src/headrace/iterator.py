"""Iterators over datasets: they hand over elements, and can say where they are and go back there.

Elements come in runs. A run is walked by a list iterator that `itertools.chain` steps through in C, so that
handing over an element costs about 10 ns; only `get_state()` asks how far the walk has come.
"""

import abc
import collections
import itertools
import operator
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from headrace import _files, _state
from headrace._executors import context
from headrace._executors.workers import Workers
from headrace._ops.base import Op
from headrace._plan.streams import At, Context, Stream, open_stream
from headrace.errors import ClosedError, FilterError, StateError, users_frames

T = TypeVar("T")

LONGEST_RUN = 1 << 13
CAREFUL_OUTPUTS = 64  # made one at a time after an error, at least
RUN_S = 0.006  # runs double while they take less than this
RUN_BYTES = 4 << 20  # and up to this size


class DatasetIterator(abc.ABC, Generic[T]):
    """What iterating a dataset gives; subclass it for an iterator of your own.

    A subclass defines `__next__`, `get_state` and `set_state`. Its parents' iterators are in `self._parents`,
    and the only one in `self._parent`.
    """

    _parents: "tuple[DatasetIterator, ...]" = ()
    _state_is_global: ClassVar[bool] = False  # whether all processes of a program have the same state

    def __init__(self, parents: Any = ()):
        self._parents = tuple(parents) if isinstance(parents, list | tuple) else (parents,)

    @property
    def _parent(self) -> "DatasetIterator":
        (parent,) = self._parents
        return parent

    def __iter__(self) -> "DatasetIterator[T]":
        return self

    @abc.abstractmethod
    def __next__(self) -> T:
        """The next element."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Where the iterator is, as small JSON."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where `get_state` was called."""

    async def save(self, directory: Any) -> Awaitable[None]:
        """Writes the state of now to a folder, once it is there: what Orbax asks of a checkpointable object."""
        text = _files.dump(self.get_state())

        async def write() -> None:
            _files.write(await directory.await_creation(), text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Goes to the state that `save` wrote to a folder."""

        async def read() -> None:
            _files.restore(self, directory)

        return read()

    def start_prefetch(self) -> None:
        """Begins to compute ahead, before the first element is asked for."""
        for parent in self._parents:
            parent.start_prefetch()

    def close(self) -> None:
        """Gives back threads, processes and memory; the iterator cannot be used any more."""
        for parent in self._parents:
            parent.close()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StreamIterator(itertools.chain, DatasetIterator[T]):  # type: ignore[misc]
    """An iterator over a pipeline."""

    _walk: "_Walk"
    _restarted: "ClassVar[type[StreamIterator]]"  # what it becomes when it is moved back after its end

    @classmethod
    def of(cls, op: Op) -> "StreamIterator[T]":
        walk = _Walk(op)
        self = cls.from_iterable(walk)
        self._walk = walk  # type: ignore[attr-defined]
        return self  # type: ignore[return-value]

    def get_state(self) -> dict[str, Any]:
        return _state.encode(self._walk.op, self._walk.position())

    def set_state(self, state: dict[str, Any]) -> None:
        self._walk.go_to(_state.decode(self._walk.op, state))
        if self._walk.chain_ended:
            self.__class__ = self._restarted  # type: ignore[assignment]  # a chain that has ended stays ended

    def get_next_index(self) -> int:
        """The index of the next element, where the pipeline is a random-access chain."""
        position = self._walk.position()
        if not isinstance(position, int):
            raise StateError(
                f"{self._walk.op.label()} has no next index: it is not a function of indices. Use `get_state()`."
            )
        return position

    def start_prefetch(self) -> None:
        self._walk.start()

    def close(self) -> None:
        self._walk.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("An iterator cannot be copied or pickled: keep its `get_state()`, and make a new one there.")

    def __repr__(self) -> str:
        return f"<iterator of {self._walk.op.label()} at {self.get_state()}>"


class RestartedIterator(StreamIterator[T]):
    """An iterator that was moved back after its end."""

    def __next__(self) -> T:
        walk = self._walk
        while True:
            for element in walk.current:
                return element  # type: ignore[return-value]
            next(walk)


StreamIterator._restarted = RestartedIterator


class _Raise(Iterator):
    """Raises an error, once or for as long as it is asked."""

    def __init__(self, error: BaseException, *, once: bool):
        self.error: BaseException | None = error
        self._traceback = users_frames(error)
        self._once = once

    def __next__(self) -> Any:
        error = self.error
        if error is None:
            raise StopIteration
        if self._once:
            self.error = None
        raise error.with_traceback(self._traceback)


def _no_stop(error: Exception) -> Exception:
    """An error that does not look like the end of an iterator."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError("A function of the pipeline raised StopIteration.")
    wrapped.__cause__ = error
    return wrapped.with_traceback(error.__traceback__)


class _Walk:
    """Makes runs, one after the other: what a `StreamIterator` chains.

    It never raises but at the end, since a chain whose source raises cannot go on: errors are handed over as
    iterators that raise. After an error the stream is opened again at the last position and walked one input
    at a time, so that what came before the failing element still comes, and then the error, again and again.
    """

    def __init__(self, op: Op):
        self.op = op
        self.current: Iterator[Any] = iter(())
        self.chain_ended = False
        self._stream: Stream | None = None
        self._context: Context | None = None
        self._workers = Workers(op)
        self._length = 0
        self._at: At | None = None
        self._start: Any = None  # the position that the stream is opened at
        self._n, self._longest = 1, LONGEST_RUN
        self._careful_outputs = 0  # outputs still to be made one at a time
        self._caution = 0  # how many there were after the last error
        self._stream_is_careful = False
        self._closed = False

    def __iter__(self) -> "_Walk":
        return self

    # ---- where it is

    def position(self) -> Any:
        """The position after the last element handed over."""
        if self._at is not None:
            return self._at(self._length - operator.length_hint(self.current))
        if self._start is None:
            self._start = self._open().position
        return self._start

    def go_to(self, position: Any) -> None:
        """Goes on from a position."""
        self._drop_run()
        self._discard_stream()
        self._start, self._at = position, None
        self._n, self._careful_outputs, self._caution = 1, 0, 0

    def _drop_run(self) -> None:
        if isinstance(self.current, _Raise):
            self.current.error = None
        else:
            collections.deque(self.current, maxlen=0)
        self.current, self._length = iter(()), 0

    # ---- how it goes on

    def __next__(self) -> Iterator[Any]:
        while True:
            if self._closed:
                return self._hand_over(_Raise(ClosedError("This iterator is closed; make a new one."), once=False))
            try:
                rows = self._next_rows()
            except FilterError as e:  # of the pipeline and not of an element: nothing to be careful about
                self._stay_here()
                self._workers.close(wait=False)
                return self._hand_over(_Raise(e, once=False))
            except Exception as e:
                self._stay_here()
                if self._closed:  # by another thread
                    continue
                if not self._careful_outputs:
                    # The next time longer: what fails may be far on in a window that is read again each time.
                    self._caution = max(self._n, 4 * self._caution, CAREFUL_OUTPUTS)
                    self._careful_outputs = self._caution
                    continue
                self._workers.close(wait=False)  # whoever keeps the error keeps this iterator, by its traceback
                return self._hand_over(_Raise(_no_stop(e), once=False))
            except BaseException as e:  # Ctrl-C: nothing is lost, the next call goes on
                self._stay_here()
                self._workers.close(wait=False)
                return self._hand_over(_Raise(e, once=True))
            if rows is None:
                self.chain_ended = True
                self._stay_here()
                self._workers.rest()
                raise StopIteration
            if rows:
                return self._hand_over(iter(rows))

    def _next_rows(self) -> list[Any] | None:
        if self._stream is not None and self._stream_is_careful and not self._careful_outputs:
            self._stay_here()  # the error did not come again: go on as usual
            self._n = 1
        stream = self._open()
        if self._careful_outputs:
            run = stream.pull(0)
        else:
            begin = time.perf_counter()
            run = stream.pull(self._n)
            if run is not None:
                self._adapt(run.block.num_bytes, time.perf_counter() - begin)
        if run is None:
            return None
        rows = run.block.own_rows()
        if rows:
            self._length, self._at = len(rows), run.at
            self._careful_outputs = max(0, self._careful_outputs - len(rows))
        return rows

    def _adapt(self, num_bytes: Callable[[], int], took_s: float) -> None:
        if took_s > 4 * RUN_S:
            self._n = max(1, self._n // 2)
        elif took_s < RUN_S and self._n < self._longest:
            if 2 * num_bytes() <= RUN_BYTES:
                self._n *= 2
            else:
                self._longest = self._n

    def _hand_over(self, run: Iterator[Any]) -> Iterator[Any]:
        self.current = run
        return run

    def _stay_here(self) -> None:
        """Drops the stream after a failure; it is opened again at the last position."""
        if self._at is not None:
            self._start = self.position()
        self._at, self._length = None, 0
        self._discard_stream()

    def _open(self) -> Stream:
        if self._stream is None:
            self._stream_is_careful = self._careful_outputs > 0
            self._workers.go_on()
            self._context = context(self.op, self._workers, careful=self._stream_is_careful)
            self._stream = open_stream(self.op, self._start, self._context)
        return self._stream

    def start(self) -> None:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        self._open().start()

    def _discard_stream(self, *, wait: bool = True) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self._context is not None:
            self._workers.interrupt()
            self._context.interrupt()
            stream.close(wait=wait)
            self._context.close(wait=wait)

    def close(self) -> None:
        self._closed = True
        if self._at is not None:
            self._start, self._at = self.position(), None
        self._drop_run()
        self._discard_stream()
        self._workers.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        if is_finalizing():  # all is closed already, and modules may be gone
            return
        try:
            self._discard_stream(wait=False)
        finally:
            if not self.chain_ended:
                self._workers.close(wait=False)
