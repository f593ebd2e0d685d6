"""Sources that are streams: they return their next element, whatever the index.

Some programs put an iterator behind `__getitem__` to use it in a loader. The loader reads such a source once, in order
and in its own process, and keeps the last elements, to return them again after an error.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from headrace.dataset import MapDataset
from headrace.errors import PipelineError, StateError
from headrace.ops.origins import index_in
from headrace.ops.source import Source
from headrace.options import ReadOptions

KEPT = 1 << 13  # elements; no more than these are read ahead of the consumer
FORGET_EVERY = 16  # elements


Reader = Callable[[Any, int, int], Any]
recognizers: dict[Callable[[Any], bool], Reader] = {}
"""Functions that recognize sources which do not say so, and how to read one: by its number, and that of all threads."""


def reads_in_order(source: Any) -> bool:
    """Whether a source says so: `reads_in_order = True`."""
    said = getattr(source, "reads_in_order", None)
    return any(recognize(source) for recognize in recognizers) if said is None else bool(said)


def _read_item(source: Any, nth: int, num_threads: int) -> Any:
    return source[nth]


class InOrder:
    """The elements of such a source by number; callers ask for them in order, or nearly so."""

    reads_in_order = True

    def __init__(self, source: Any, length: int, read_options: ReadOptions | None):
        self._source = source
        self._said_length = length
        self._length = length
        num_threads = getattr(read_options, "num_threads", 1)
        self._num_threads = num_threads if isinstance(num_threads, int) and num_threads > 0 else 1
        found = (read for recognize, read in recognizers.items() if recognize(source))
        self._read_from: Reader = next(found, _read_item)
        self._kept: dict[int, Any] = {}
        self._count = 0  # elements read since the iteration began
        self._is_new = True  # no element was ever read
        self._error: Exception | None = None  # of the source, which then has lost its place
        self._lock = threading.Lock()
        self._reader: Any = None  # a weak reference to the iterator that reads

    @property
    def records(self) -> MapDataset:
        """The elements as a dataset."""
        return MapDataset._of(_InOrderSource(self))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, nth: int) -> Any:
        with self._lock:
            while self._count <= nth:
                self._kept[self._count] = self._read(self._count)
                self._count += 1
                if self._count % FORGET_EVERY == 0:
                    self._forget(self._handed_over())
            if nth not in self._kept:
                raise PipelineError(
                    f"{type(self._source).__name__} can only be read in order: it has returned {self._count} elements "
                    f"and cannot go back to number {nth}. Create a new source and loader."
                )
            return self._kept[nth]

    def _read(self, nth: int) -> Any:
        """The next element."""
        if self._error is not None:
            raise self._error
        if nth >= self._length:
            raise IndexError(
                f"{type(self._source).__name__} ended after {nth} elements. Create a new source to read it again."
            )
        self._is_new = False
        try:
            return self._read_from(self._source, nth, self._num_threads)
        except StopIteration:
            self._length = nth
        except Exception as e:
            self._error = e
            raise
        return self._read(nth)

    def begin(self, iterator: Any) -> None:
        """Starts to count for a new iterator, which continues where the last one stopped."""
        last = None if self._reader is None else self._reader()
        first = self._handed_over()
        if last is not None:
            last.close()
        self._reader = weakref.ref(iterator)
        with self._lock:
            ahead = [self._kept[i] for i in range(first, self._count) if i in self._kept] if last is not None else []
            self._kept = dict(enumerate(ahead))
            self._count = len(ahead)
            self._length = self._said_length
            self._error = None

    def _handed_over(self) -> int:
        """How many elements the iterator has handed over."""
        reader = None if self._reader is None else self._reader()
        found = None if reader is None else index_in(reader._iteration.op, reader._iteration.position())
        return 0 if found is None else found[1]

    def _forget(self, first: int) -> None:
        for nth in [nth for nth in self._kept if nth < first or nth < self._count - KEPT]:
            del self._kept[nth]

    def check_is_new(self) -> None:
        """Raises if elements were read: the source cannot go to the place in a state any more."""
        if not self._is_new:
            raise StateError(
                f"{type(self._source).__name__} can only be read in order and was read already, so it cannot jump to "
                "the position in a state. Set states before anything is read, with a new source and loader."
            )


class _InOrderSource(Source):
    """A source that may be shorter than it said."""

    def length(self) -> int:
        return len(self.source)
