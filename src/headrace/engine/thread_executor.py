"""Computes tasks ahead in threads, and returns results in the order of submission.

Two limits bound what is ready or under way: `buffer_size` in elements, and `buffer_bytes` in bytes, estimated from
the results so far (before the first, one task per thread). One task is always allowed. The parts of a pipeline share
threads and the limit on bytes. The lanes of a stream share `buffer_size` too, and what is known of chunks.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.engine.sizing import BufferLimit, Growth
from headrace.threads import ThreadPool, join_threads

if TYPE_CHECKING:
    from concurrent.futures import Future
    from threading import Thread

CHUNK_S = 0.002  # the work in a chunk: with less, handing over costs too much; with more, results come late


@dataclass(slots=True)
class _Done:
    block: Any
    num_bytes: int
    took_s: float


class Shared:
    """What the executors of one stream's lanes share: its buffer, and how long chunks are by now.

    There may be very many lanes, and each computes only a few elements: too few to find a good length by itself.
    """

    def __init__(self):
        self.num_users = 0
        self.chunk = 1
        self.growth = Growth()


class Threads:
    """The thread pools of one iterator, by number of threads; started when first needed."""

    def __init__(self):
        self._pools: dict[Any, ThreadPool] = {}
        self._shared: dict[object, Shared] = {}
        self.num_users = 0

    def shared(self, stream: object) -> Shared:
        """What the executors of a stream's lanes share; `None` is a stream without lanes."""
        return Shared() if stream is None else self._shared.setdefault(stream, Shared())

    def pool(self, num_threads: int, owner: object = None) -> ThreadPool:
        """The pool with `num_threads` threads; that of an owner, who may resize it, is not shared."""
        key = num_threads if owner is None else owner
        if key not in self._pools:
            self._pools[key] = ThreadPool(num_threads, "headrace-read-ahead")
        return self._pools[key]

    def interrupt(self) -> "list[Thread]":
        """Asks the threads to end, and returns them."""
        pools = list(self._pools.values())
        for pool in pools:
            pool.close(wait=False)
        return [thread for pool in pools for thread in pool.threads]

    def close(self, *, wait: bool = True) -> None:
        """Ends the threads."""
        threads = self.interrupt()
        if wait:
            join_threads(threads)
        self._pools.clear()


class ThreadExecutor:
    """Computes tasks in order, on threads that it shares with other executors."""

    inline = False

    def __init__(
        self,
        threads: Threads,
        num_threads: int,
        buffer_size: int,
        buffer_bytes: int,
        limit: BufferLimit | None = None,
        shared: Shared | None = None,
    ):
        self._threads = threads
        self._num_threads = num_threads
        self._buffer_size = max(buffer_size, 1)
        self._buffer_bytes = buffer_bytes
        self._limit = limit  # what changes the buffer's size
        self._pending: deque[tuple[Future[_Done], int]] = deque()
        self._elements = 0
        self._shared = shared or Shared()
        self._element_bytes: float | None = None  # known once a result has been seen
        self._closed = False
        self._owner: object = None  # of threads that only this executor uses
        self.worked_s = 0.0
        threads.num_users += 1
        self._shared.num_users += 1

    def wants(self, n: int) -> int:
        chunk = self._shared.chunk
        if not self._pending:
            return max(1, min(chunk, self._buffer_size))
        if self._limit is not None and self._are_done():
            self._limit.full()
        size = min(chunk, self._room() - self._elements)
        # A full chunk or nothing: small chunks that fill up the buffer would cost more than they gain.
        if size < min(chunk, max(1, self._buffer_size // self._num_threads)):
            return 0
        if self._element_bytes is None:
            return size if len(self._pending) < self._num_threads else 0
        share = self._buffer_bytes / self._threads.num_users
        return size if (self._elements + size) * self._element_bytes <= share else 0

    def _room(self) -> int:
        """This executor's share of the buffer, which has at least two chunks: one to use, and one under way."""
        share = max(self._buffer_size // self._shared.num_users, 2 * self._longest_chunk())
        return min(share, self._buffer_size)

    def _longest_chunk(self) -> int:
        return max(1, self._buffer_size // (2 * self._num_threads))

    def submit(self, task: Callable[[], Any], size: int) -> None:
        self._pending.append((self._threads.pool(self._num_threads, self._owner).submit(_run_timed, task), size))
        self._elements += size

    def ready(self) -> bool:
        return bool(self._pending) and self._pending[0][0].done()

    @property
    def num_threads(self) -> int:
        return self._num_threads

    def resize(self, num_threads: int) -> None:
        """Changes the number of threads."""
        self._owner = self._owner or object()
        self._num_threads = num_threads
        self._threads.pool(num_threads, self._owner).resize(num_threads)

    def filled(self) -> float:
        """How full the buffer is, from 0 to 1."""
        return sum(size for future, size in list(self._pending) if future.done()) / self._buffer_size

    def next(self) -> Any:
        future, size = self._pending[0]
        if self._limit is not None:
            self._tune(self._limit, waits=not future.done())
        done = future.result()
        self._pending.popleft()
        self._elements -= size
        self.worked_s += done.took_s
        self._element_bytes = max((self._element_bytes or 0.0) * 0.9, done.num_bytes / max(size, 1))
        self._adapt(done.took_s, size)
        return done.block

    def _are_done(self) -> bool:
        """Whether threads have nothing to do, since no more was allowed."""
        return all(future.done() for future, _ in self._pending)

    def _tune(self, limit: BufferLimit, *, waits: bool) -> None:
        if waits:
            limit.empty()
        limit.update()
        self._buffer_size = limit.number

    def _adapt(self, took_s: float, size: int) -> None:
        """Chunks grow while they are cheap, up to each thread's share of the buffer."""
        shared = self._shared
        if took_s < CHUNK_S and size >= shared.chunk:
            if shared.growth.may_double():
                shared.chunk = min(shared.chunk * 2, self._longest_chunk())
        elif took_s > 4 * CHUNK_S:
            shared.chunk = max(1, shared.chunk // 2)
            shared.growth.restart()

    def close(self, *, wait: bool = True) -> None:
        """Cancels tasks that have not begun; the threads belong to the iterator and end with it."""
        for future, _ in list(self._pending):  # a copy: a thread that computes ahead may still submit
            future.cancel()
        self._pending.clear()
        if not self._closed:
            self._closed = True
            self._threads.num_users -= 1
            self._shared.num_users -= 1


def _run_timed(task: Callable[[], Any]) -> _Done:
    begin = time.perf_counter()
    block = task()
    return _Done(block, block.num_bytes(), time.perf_counter() - begin)
