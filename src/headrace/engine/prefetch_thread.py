"""Streams that a thread computes ahead of the consumer: always, or only at the start.

The thread holds no reference to the stream that the consumer has, so dropping that stream ends the thread.
"""

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.engine.sizing import BufferLimit, Growth
from headrace.errors import ClosedError
from headrace.ops.buffer import MpPrefetch, Prefetch, ToStream
from headrace.ops.op import Op, parents_first
from headrace.ops.profile import here, waited
from headrace.ops.recorder import Recorder, StageRecord
from headrace.ops.source import UserDataset
from headrace.ops.streams import Run, Stream, UnaryStream
from headrace.options import AUTOTUNE
from headrace.threads import join_threads, start_thread

BUFFER_BYTES = 256 << 20
AUTOTUNED_SIZE = 512


class _Buffer:
    """Runs that are ready, with limits on elements and bytes; one run is always allowed."""

    def __init__(self, max_elements: int):
        self.max_elements = max_elements
        # Acquire the lock itself: a signal handler that raises in `Condition.__enter__`, which is Python code, would
        # leave it held.
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.ready: deque[tuple[Run, int]] = deque()
        self.elements = 0
        self.num_bytes = 0
        self.end: BaseException | str | None = None  # "end", or the error that ended it
        self.closed = False

    def room(self) -> int:
        """Waits until there is room; returns for how many elements, or 0 when closed."""
        with self._lock:
            self.changed.wait_for(lambda: self.closed or self._has_room())
            return 0 if self.closed else max(1, self.max_elements - self.elements)

    def _has_room(self) -> bool:
        return not self.ready or (self.elements < self.max_elements and self.num_bytes < BUFFER_BYTES)

    def put(self, run: Run) -> None:
        size = run.block.num_bytes()
        with self._lock:
            self.ready.append((run, size))
            self.elements += len(run.block)
            self.num_bytes += size
            self.changed.notify_all()

    def finish(self, end: Any) -> None:
        with self._lock:
            self.end = end
            self.changed.notify_all()

    def get(self) -> Run | None:
        with self._lock:
            self.changed.wait_for(lambda: self.ready or self.end is not None or self.closed)
            if not self.ready:
                if isinstance(self.end, BaseException):
                    raise self.end
                if self.closed:
                    raise ClosedError("This iterator was closed while a thread waited for it.")
                return None
            run, size = self.ready.popleft()
            self.elements -= len(run.block)
            self.num_bytes -= size
            self.changed.notify_all()
            return run

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self.ready.clear()
            self.changed.notify_all()


class _TunedBuffer(_Buffer):
    """A buffer that may hold as many elements as help."""

    def __init__(self, limit: BufferLimit):
        super().__init__(limit.number)
        self._limit = limit

    def room(self) -> int:
        with self._lock:
            self._limit.update()
            self.max_elements = self._limit.number
            if not self._has_room():
                self._limit.full()
        return super().room()

    def get(self) -> Run | None:
        with self._lock:
            if not self.ready and self.end is None:
                self._limit.empty()
        return super().get()


class _FilledOnce(_Buffer):
    """A buffer that accepts `max_elements` elements in all, however many are taken out."""

    def __init__(self, max_elements: int):
        super().__init__(max_elements)
        self._room = max_elements
        self._bytes_left = BUFFER_BYTES

    def room(self) -> int:
        return 0 if self.closed or self._bytes_left <= 0 else max(0, self._room)

    def put(self, run: Run) -> None:
        self._room -= len(run.block)
        self._bytes_left -= run.block.num_bytes()
        super().put(run)


def _work(stream: Stream, buffer: _Buffer, record: StageRecord) -> None:
    """Pulls until the end, or until there is no room; runs grow as they do for a consumer."""
    n = 1
    growth = Growth()
    try:
        while room := buffer.room():
            begin = time.perf_counter()
            waited_s = here.waited_s
            profile = record.profile()
            size = min(n, room)
            run = stream.pull(size) if profile is None else profile.run(stream.pull, size)
            took_s = time.perf_counter() - begin
            waited_s = here.waited_s - waited_s
            record.add_busy(took_s)
            record.add_starved(waited_s)
            record.add_profile(profile, took_s - waited_s, 0 if run is None else len(run.block))
            if run is None:
                break
            if len(run.block):
                buffer.put(run)
            if growth.may_double():
                n = min(2 * n, max(1, buffer.max_elements // 2))
        buffer.finish("end")
    except BaseException as e:
        buffer.finish(e)


class PrefetchThreads:
    """The streams of one pipeline that threads compute ahead."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._streams: weakref.WeakSet[ThreadedStream] = weakref.WeakSet()

    def open(self, parent: Stream, op: Prefetch) -> Stream:
        """A stream that a thread computes ahead."""
        record = self._recorder.of(op, "thread")
        if op.buffer_size == 0:
            return parent
        if op.buffer_size is AUTOTUNE:
            return self._add(ThreadedStream(parent, _TunedBuffer(BufferLimit(AUTOTUNED_SIZE)), record))
        return self._add(ThreadedStream(parent, _Buffer(op.buffer_size), record))

    def warm_start(self, stream: Stream, op: Op) -> Stream:
        """The same stream, with a thread that computes its first elements from now on, if the pipeline allows it."""
        size = _warm_start_size(op)
        if isinstance(stream, WarmStart):
            if not stream.is_used_up:
                return stream
            stream = stream.parent
        if not size:
            return stream
        ahead = self._add(WarmStart(stream, _FilledOnce(size), StageRecord()))
        ahead.start()
        return ahead

    def _add(self, stream: "ThreadedStream") -> "ThreadedStream":
        self._streams.add(stream)
        return stream

    def interrupt(self) -> list[threading.Thread]:
        """Before closing the streams: makes threads that wait for each other's buffers stop, and returns them."""
        streams = [stream for stream in list(self._streams) if stream.is_here]
        for stream in streams:
            stream.buffer.close()
        return [stream.thread for stream in streams if stream.thread is not None]


class ThreadedStream(UnaryStream):
    """The parent's runs, made in a thread."""

    _pid = -1

    def __init__(self, parent: Stream, buffer: _Buffer, record: StageRecord):
        self._pid = os.getpid()
        self.buffer = buffer
        self._record = record
        self.thread: threading.Thread | None = None
        super().__init__(parent.position, parent)

    @property
    def is_here(self) -> bool:
        """Whether this process has the thread: a fork does not, and its locks stay as they were."""
        return os.getpid() == self._pid

    def pull(self, n: int) -> Run | None:
        if not self.is_here:
            raise ClosedError(
                "This iterator was started before a fork, and its thread runs only in the parent process. "
                "Create a new iterator in this process."
            )
        self.start()
        begin = time.perf_counter()
        self._record.fill(self.buffer.elements / self.buffer.max_elements)
        run = self.buffer.get()
        waited_s = time.perf_counter() - begin
        waited(waited_s)
        if run is None:
            return None
        self._record.add(run.block, waited_s=waited_s)
        return self._run(*run)

    def ready(self) -> bool:
        return bool(self.buffer.ready)

    def start(self) -> None:
        if self.thread is None:
            self.thread = start_thread(
                _work, self.parent, self.buffer, self._record, name="headrace-prefetch", stop=self.buffer.close
            )

    def close(self, *, wait: bool = True) -> None:
        if self.is_here:
            self.buffer.close()
            if self.thread is not None and wait:
                join_threads([self.thread])
            if self.thread is not None and self.thread.is_alive():
                return  # it still uses the parent, so leave that open
        self.parent.close(wait=wait)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        if is_finalizing() or os.getpid() != self._pid:  # it is closed, and modules may be gone
            return
        if hasattr(self, "buffer"):  # else an interrupt came in `__init__`
            self.buffer.close()


class WarmStart(ThreadedStream):
    """A stream whose first elements a thread makes, and the consumer the rest."""

    is_used_up = False

    def pull(self, n: int) -> Run | None:
        run = None if self.is_used_up else super().pull(n)
        if run is not None:
            return run
        self.is_used_up = True
        run = self.parent.pull(n)
        return None if run is None else self._run(*run)

    def ready(self) -> bool:
        return self.parent.ready() if self.is_used_up else super().ready()


def _warm_start_size(op: Op) -> int:
    """How many outputs `start_prefetch` computes ahead; 0 if something computes ahead anyway, or no thread may."""
    size = AUTOTUNED_SIZE
    batched = 1
    for each in parents_first(op, lambda _: True):
        if (isinstance(each, UserDataset) and each.is_stream) or each.runs_in_consumer or _works_ahead(each):
            return 0
        if each.draws_from_globals:  # the consumer may draw from the same generators
            return 0
        if isinstance(each, ToStream) and each.read_options is not None:
            options: Any = each.read_options
            if 0 in (options.num_threads, options.prefetch_buffer_size):
                return 0
            size = AUTOTUNED_SIZE if options.prefetch_buffer_size is AUTOTUNE else options.prefetch_buffer_size
        if each.is_stream:
            batched *= each.group_size or 1
    return max(2, size // 4 // batched)  # few, since the threads below fill a buffer of their own


def _works_ahead(op: Op) -> bool:
    if isinstance(op, MpPrefetch):
        return op.options.has_workers
    return isinstance(op, Prefetch) and op.buffer_size != 0
