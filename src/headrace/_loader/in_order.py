"""Sources that are streams: they return their next element, whatever the index.

Some programs put an iterator behind `__getitem__` to use it in a loader. The loader reads such a source once, in order
and in its own process, and keeps the last elements, to give them again after an error.
"""

import dis
import threading
import weakref
from typing import Any

from headrace._ops.source import Source
from headrace._plan.origins import index_in
from headrace.dataset import MapDataset
from headrace.errors import PipelineError, StateError
from headrace.options import ReadOptions

KEPT = 1 << 13  # elements; no more than these are read ahead of the consumer
FORGET_EVERY = 16  # elements


def reads_in_order(source: Any) -> bool:
    """Whether a source says so (`reads_in_order = True`), or calls `next` and ignores its index."""
    said = getattr(source, "reads_in_order", None)
    if said is not None:
        return bool(said)
    code = getattr(getattr(type(source), "__getitem__", None), "__code__", None)
    if code is None or code.co_argcount != 2 or "next" not in code.co_names:
        return False
    index = code.co_varnames[1]
    loaded = (step.argval for step in dis.get_instructions(code) if "LOAD" in step.opname)
    return not any(index == name or (isinstance(name, tuple) and index in name) for name in loaded)


class InOrder:
    """The elements of such a source by number; callers ask for them in order, or nearly so."""

    reads_in_order = True

    def __init__(self, source: Any, length: int, read_options: ReadOptions | None):
        self._source, self._said_length, self._length = source, length, length
        num_threads = getattr(read_options, "num_threads", 1)
        self._num_threads = num_threads if isinstance(num_threads, int) and num_threads > 0 else 1
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
                    f"{type(self._source).__name__} gives its elements one after the other: it has given {self._count} "
                    f"and cannot go back to number {nth}. Make a new source and loader."
                )
            return self._kept[nth]

    def _read(self, nth: int) -> Any:
        """The next element; a source may have a stream for each thread, which it finds by the thread's name."""
        if self._error is not None:
            raise self._error
        if nth >= self._length:
            raise IndexError(f"{type(self._source).__name__} has ended after {nth} elements.")
        thread, self._is_new = threading.current_thread(), False
        name, thread.name = thread.name, f"headrace-read-ahead_{nth % self._num_threads}"
        try:
            return self._source[nth]
        except StopIteration:
            self._length = nth
        except Exception as e:
            self._error = e
            raise
        finally:
            thread.name = name
        return self._read(nth)

    def begin(self, iterator: Any) -> None:
        """Starts to count for a new iterator, which goes on where the last one stopped."""
        last, first = None if self._reader is None else self._reader(), self._handed_over()
        if last is not None:
            last.close()
        self._reader = weakref.ref(iterator)
        with self._lock:
            ahead = [self._kept[i] for i in range(first, self._count) if i in self._kept] if last is not None else []
            self._kept = dict(enumerate(ahead))
            self._count, self._length, self._error = len(ahead), self._said_length, None

    def _handed_over(self) -> int:
        """How many elements the iterator has handed over."""
        reader = None if self._reader is None else self._reader()
        found = None if reader is None else index_in(reader._walk.op, reader._walk.position())
        return 0 if found is None else found[1]

    def _forget(self, first: int) -> None:
        for nth in [nth for nth in self._kept if nth < first or nth < self._count - KEPT]:
            del self._kept[nth]

    def check_is_new(self) -> None:
        """Raises if elements were read: the source cannot go to the place in a state any more."""
        if not self._is_new:
            raise StateError(
                f"{type(self._source).__name__} gives its elements one after the other and was read already, so it "
                "cannot go to the place in a state. Set states before anything is read, with a new source and loader."
            )


class _InOrderSource(Source):
    """A source that may be shorter than it said."""

    def length(self) -> int:
        return len(self.source)
