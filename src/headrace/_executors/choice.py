"""Decides by trial whether threads pay, and computes by what was chosen.

Cheap chains stay inline and pay nothing. Where an element costs enough to be worth it, some work is done
inline and some in threads, and the faster goes on: this sees reads that wait and functions that release the
GIL alike. The choice changes only the time things take.
"""

import time
from collections.abc import Callable
from typing import Any

from headrace._executors.inline import InlineExecutor
from headrace._executors.threads import ThreadExecutor
from headrace.options import ReadOptions
from headrace.protocols import Executor

ELEMENT_S = 100e-6  # an element that costs less is not worth a hand-over between threads
TRIAL_S = 0.03  # how long each side is tried
GAIN = 1.25  # threads must be this much faster


class ChoosingExecutor:
    """Inline at first; then whatever a trial found faster."""

    def __init__(self, options: ReadOptions):
        self._options = options
        self._inline = InlineExecutor()
        self._threads: ThreadExecutor | None = None
        self._current: Executor = self._inline
        self._leaving = 0  # tasks still to come from `_threads` after it was given up
        self._elements = 0
        self._spent_s = 0.0
        self._inline_rate: float | None = None
        self._decided = False
        self._sizes: list[int] = []

    def wants(self, n: int) -> int:
        return 0 if self._leaving else self._current.wants(n)

    def submit(self, task: Callable[[], Any], size: int) -> None:
        self._sizes.append(size)
        self._current.submit(task, size)

    def next(self) -> Any:
        begin = time.perf_counter()
        size = self._sizes.pop(0)
        if self._leaving:
            assert self._threads is not None
            self._leaving -= 1
            block = self._threads.next()
            if not self._leaving:
                self._drop_threads()
            return block
        block = self._current.next()
        if not self._decided:
            self._measure(size, time.perf_counter() - begin)
        return block

    def _measure(self, size: int, took_s: float) -> None:
        self._elements += size
        self._spent_s += took_s
        if self._spent_s < TRIAL_S:
            return
        rate = self._elements / self._spent_s
        self._elements, self._spent_s = 0, 0.0
        if self._inline_rate is None:
            self._inline_rate = rate
            if 1 / rate < ELEMENT_S:
                self._decided = True
                return
            options = self._options
            self._threads = ThreadExecutor(
                options.num_threads,  # type: ignore[arg-type]
                options.prefetch_buffer_size,  # type: ignore[arg-type]
                options.prefetch_buffer_bytes,
            )
            self._current = self._threads
            return
        self._decided = True
        if rate < GAIN * self._inline_rate:
            self._current = self._inline
            self._leaving = len(self._sizes)
            if not self._leaving:
                self._drop_threads()

    def _drop_threads(self) -> None:
        assert self._threads is not None
        self._threads.close(wait=False)
        self._threads = None

    def close(self, *, wait: bool = True) -> None:
        self._inline.close()
        if self._threads is not None:
            self._threads.close(wait=wait)
