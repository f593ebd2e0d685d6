"""Decides by a trial whether threads pay, and then uses the faster way.

Cheap chains stay inline and pay nothing. If elements cost enough, the trial computes some inline, some in a few
threads, and, if those were faster, some inline again, since the first elements often cost more. It
recognises both reads that wait and functions that release the GIL. The choice changes only how long things take.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace._executors.inline import InlineExecutor
from headrace._executors.threads import ThreadExecutor, Threads
from headrace.protocols import Executor

ELEMENT_S = 200e-6  # an element that costs less is not worth handing over between threads
TRIAL_S = 0.03  # how long to try each side
TRIAL_THREADS = 4
TRIAL_BUFFER = 8
GAIN = 1.25  # threads must be this much faster


class AutotunedExecutor:
    """Inline at first; then whichever way a trial found faster.

    Results come back in order of submission: after a change, those of the last executor come first.
    """

    def __init__(self, threads: Threads, make_threads: Callable[[], ThreadExecutor]):
        self._threads, self._make_threads = threads, make_threads
        self._inline = InlineExecutor()
        self._current: Executor = self._inline
        self._tasks: deque[tuple[Executor, int]] = deque()
        self._left: list[Executor] = []
        self._on_trial = True
        self.inline = False
        self._elements = 0
        self._spent_s = 0.0
        self._rates: list[float] = []  # inline, in threads, inline again

    def wants(self, n: int) -> int:
        if self._rates and self._current is self._inline:  # second inline trial: no longer than the first
            n = min(n, max(1, int(self._rates[0] * TRIAL_S)))
        return self._current.wants(n)

    def submit(self, task: Callable[[], Any], size: int) -> None:
        self._tasks.append((self._current, size))
        self._current.submit(task, size)

    def ready(self) -> bool:
        return self._tasks[0][0].ready() if self._tasks else self._current.ready()

    def next(self) -> Any:
        executor, size = self._tasks.popleft()
        begin = time.perf_counter()
        block = executor.next()
        if self._on_trial and executor is self._current:
            self._measure(size, time.perf_counter() - begin)
        self._close_idle()
        self.inline = not self._on_trial and self._current is self._inline and not self._tasks
        return block

    def _measure(self, size: int, took_s: float) -> None:
        self._elements += size
        self._spent_s += took_s
        if self._spent_s < TRIAL_S:
            return
        self._rates.append(self._elements / self._spent_s)
        self._elements, self._spent_s = 0, 0.0
        inline, *threads = self._rates
        if not threads:
            self._on_trial = 1 / inline >= ELEMENT_S
            if self._on_trial:
                self._change(ThreadExecutor(self._threads, TRIAL_THREADS, TRIAL_BUFFER, buffer_bytes=64 << 20))
            return
        threads_pay = threads[0] >= GAIN * max([inline, *threads[1:]])
        self._on_trial = threads_pay and len(threads) == 1
        self._change(self._make_threads() if threads_pay and not self._on_trial else self._inline)

    def _change(self, executor: Executor) -> None:
        self._left.append(self._current)
        self._current = executor

    def _close_idle(self) -> None:
        """Closes former executors that have no results left."""
        if self._left:
            busy = {id(executor) for executor, _ in self._tasks} | {id(self._current)}
            for executor in self._left:
                if id(executor) not in busy:
                    executor.close(wait=False)
            self._left = [executor for executor in self._left if id(executor) in busy]

    def close(self, *, wait: bool = True) -> None:
        for executor in (*self._left, self._current):
            executor.close(wait=wait)
