"""Threads that are never waited for indefinitely: they are asked to stop, and abandoned if they do not.

A thread may be in a function that never returns, such as a read from a server that is gone. Closing waits `CLOSE_S` for
all threads together, and so does the end of a program; then a warning names the function. The program waits because
Python freezes threads that still run at exit, with the locks that they hold, and whoever needs such a lock would then
wait indefinitely.
"""

import _thread
import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import ClosedError
from headrace.errors.notebooks import code_location
from headrace.errors.signals import in_pipeline, let_through, suppress

if TYPE_CHECKING:
    from concurrent.futures import Future

CLOSE_S = 5.0
MANY_THREADS = 256  # more than a pool ever has, unless it was asked for more
_PACKAGE = os.path.dirname(os.path.abspath(__file__))

_running: dict[threading.Thread, Callable[[], None]] = {}  # with the function that stops each
_given_up: set[threading.Thread] = set()


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_gil() -> bool:
    """Whether only one thread at a time runs Python, which free-threaded builds do without."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def thread_wanted_s() -> float:
    """How long this thread has run or, where the system reports it, waited for a core."""
    queued_s = 0.0
    with suppress(OSError, ValueError):
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            queued_s = int(os.read(fd, 100).split()[1]) / 1e9
        finally:
            os.close(fd)
    return time.thread_time() + queued_s  # the other number there is as old as the last tick


def on_cores_s(threads: Iterable[threading.Thread]) -> tuple[float, float]:
    """How long threads have run, and how long they have waited for a core.

    If the system does not report it, these are how long this process has run, and 0.
    """
    ran_ns = waited_ns = 0
    try:
        for thread in threads:
            with open(f"/proc/self/task/{thread.native_id}/schedstat") as f:
                ran, waited, _ = map(int, f.read().split())
            ran_ns = ran_ns + ran
            waited_ns = waited_ns + waited
    except (OSError, ValueError) as e:
        let_through(e)
        return time.process_time(), 0.0
    return ran_ns / 1e9, waited_ns / 1e9


def start_thread(target: Callable[..., None], *args: Any, name: str, stop: Callable[[], None]) -> threading.Thread:
    """Starts a thread; `stop` asks it to return when the program ends."""

    def run() -> None:
        _running[thread] = stop
        try:
            in_pipeline(target, *args)
        finally:
            _running.pop(thread, None)
            _given_up.discard(thread)

    thread = threading.Thread(target=run, name=name, daemon=True)
    if threading.current_thread() is threading.main_thread():
        _start_from_another_thread(thread)
    else:
        thread.start()
    return thread


def _start_from_another_thread(thread: threading.Thread) -> None:
    """Starts a thread where no signal handler runs: one that raises in `Thread.start` leaves locks of Python held.

    What another thread sets for this one (`PyThreadState_SetAsyncExc`) may end the thread between before it does
    anything, since Python takes a new thread for the one that makes it: then there is another one.
    """
    errors: list[BaseException] = []

    def start(_: _Releases) -> None:
        try:
            thread.start()
        except BaseException as e:
            errors.append(e)

    while thread.ident is None and not errors:
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(start, (_Releases(done),))
        done.acquire()
    if errors:
        raise errors[0]


class _Releases:
    """Releases a lock when the thread ends that has it, however that is."""

    _lock: Any = None  # until it is known: an interrupt may come first

    def __init__(self, lock: Any):
        self._lock = lock

    def __del__(self) -> None:
        if self._lock is not None:
            self._lock.release()


def join_threads(threads: Sequence[threading.Thread], seconds: float = CLOSE_S) -> None:
    """Waits for threads that were asked to stop; warns if some do not."""
    deadline = time.monotonic() + seconds
    waited_for = [thread for thread in threads if thread not in _given_up and thread is not threading.current_thread()]
    for thread in waited_for:
        if thread.ident is not None:  # otherwise an interrupt came before it started
            thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread for thread in waited_for if thread.is_alive()]
    if stuck:
        _given_up.update(stuck)
        places = ", ".join(sorted({_place(thread) for thread in stuck}))
        warnings.warn(
            f"Gave up waiting for {len(stuck)} thread{'s' * (len(stuck) > 1)} after {seconds:.0f} s, in {places}. "
            "The code there keeps running until it returns or the program ends; add a timeout to reads that can "
            "hang.",
            RuntimeWarning,
            stacklevel=2,
        )


def _place(thread: threading.Thread) -> str:
    """The function that a thread is in and its line: the first outside this package."""
    frame: Any = sys._current_frames().get(thread.ident or 0)
    found = "a function that has just returned"
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_PACKAGE + os.sep, threading.__file__)):
            found = f"{code.co_qualname} ({code_location(code.co_filename, frame.f_lineno)})"
        frame = frame.f_back
    return found


@atexit.register
def _end_all() -> None:
    for stop in list(_running.values()):
        stop()
    join_threads(list(_running))


class ThreadPool:
    """Threads that compute tasks in order, started when they are needed."""

    def __init__(self, num_threads: int, name: str):
        self._num_threads = num_threads
        self._name = name
        self._leaving = 0  # of all threads that were started
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Calls a function in a thread."""
        from concurrent.futures import Future  # takes 5 ms, and most pipelines do not need it

        if self._closed:
            raise ClosedError("These threads were closed while work was being submitted.")
        future: Future[Any] = Future()
        self._tasks.put((future, function, args))
        if len(self.threads) - self._leaving < self._num_threads:
            # Threads refer only to the queue, so a pool that nobody uses is deleted, and ends them.
            stop = partial(_stop, self._tasks, max(self._num_threads, MANY_THREADS))
            name = f"{self._name}_{len(self.threads)}"  # as those of `concurrent.futures`
            self.threads.append(start_thread(_compute, self._tasks, name=name, stop=stop))
        return future

    def resize(self, num_threads: int) -> None:
        """Changes the number of threads: more start when they are needed, and some end after the tasks so far."""
        self._num_threads = num_threads
        for _ in range(len(self.threads) - self._leaving - num_threads):
            self._leaving += 1
            self._tasks.put(None)

    def close(self, *, wait: bool = True) -> None:
        """Cancels what has not begun and ends the threads."""
        self._closed = True
        _stop(self._tasks, max(len(self.threads), self._num_threads))
        if wait:
            join_threads(self.threads)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        if not is_finalizing() and hasattr(self, "_closed"):
            self.close(wait=False)


def _stop(tasks: "queue.SimpleQueue[Any]", num_threads: int) -> None:
    """Cancels the tasks of a queue and asks its threads to end."""
    with contextlib.suppress(queue.Empty):
        while True:
            task = tasks.get_nowait()
            if task is not None:
                task[0].cancel()
    for _ in range(num_threads):
        tasks.put(None)


def _compute(tasks: "queue.SimpleQueue[Any]") -> None:
    while (task := tasks.get()) is not None:
        future, function, args = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(function(*args))
        except BaseException as e:
            future.set_exception(e)
        del task, future, function, args  # or they would live until the next task


def map_in_threads(
    function: Callable[[Any], Any],
    items: Iterable[Any],
    num_threads: int,
    name: str,
    done: Callable[[], None] = lambda: None,
) -> list[Any]:
    """`function` of every item, in order, computed in up to `num_threads` threads; calls `done` after each."""
    items = list(items)
    num_threads = min(num_threads, len(items))
    pool = None if num_threads <= 1 else ThreadPool(num_threads, name)
    results = []
    try:
        waiting = [partial(function, item) if pool is None else pool.submit(function, item).result for item in items]
        for result in waiting:
            results.append(result())
            done()
        return results
    finally:
        if pool is not None:
            pool.close(wait=False)
