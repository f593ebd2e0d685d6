"""Decides by a trial whether threads pay, and then uses the faster way.

Cheap chains stay inline and pay nothing. If elements cost enough, the trial computes some inline, some in threads, and,
if those were faster, some inline again, since the first elements often cost more. The first results of threads do not
count: they were computed while nobody waited for them. The choice changes only how long things take.

Elements that wait, such as for storage, take long, so nothing is computed for the trial alone: all threads read from
then on, unless they turn out to be no faster. Such threads cost little if they do not help.

Speed alone does not tell whether threads scale: on a busy machine, several of them get more of the cores. So the trial
also measures how many cores they keep busy, which is not more than one if functions hold the GIL. Such threads pay only
while the consumer does something else. Where elements are costly and threads do not scale, `on_stuck` gets a text that
says so, unless many of them wait for a core: then nobody knows. On a free-threaded Python, without a GIL, speed alone
counts. Threads that did not pay are tried again later: perhaps others had the cores.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, ClassVar

from headrace._executors.inline import InlineExecutor
from headrace._executors.threads import ThreadExecutor, Threads
from headrace._executors.tuning import Tuner
from headrace._utils.threads import has_gil, num_cores, on_cores_s, thread_wanted_s
from headrace.protocols import Executor

TRIED_S = 50e-6  # an element that costs less is not worth handing over between threads
ELEMENT_S = 200e-6  # one that costs more is costly
TRIAL_S = 0.03  # how long to try each side
LOOK_S = 0.004  # how often to ask the system what a thread did, which takes some 40 µs
LONG_S, LATER_S = 1e-3, 0.3  # elements that compute for less are tried later: starting threads costs some 40 ms
FEWEST_THREADS, MOST_THREADS = 4, 16  # on trial; as many as there are cores, if that is in between
MOST_WAITING_THREADS = 128  # of those that wait for data
GAIN = 1.2  # threads must be this much faster
WAITS = 0.5  # a consumer that wants a core for less of the time waits for something else
SCALES = 1.15  # threads that keep fewer cores busy do not scale
CROWDED = 0.55  # the share of threads that run or wait for a core: if it is more, it is not known whether they scale
AGAIN_S = 20.0  # how long to do without threads that did not pay; each time twice as long
ELSEWHERE = 0.2  # a consumer that spends more of its time on something else gains by threads that do not scale


class _Phase:
    """What one part of a trial has measured: how long results took, and what threads did in the meantime."""

    def __init__(self, threads: Sequence[Thread] = ()):
        self.elements = 0
        self.waited_s = 0.0
        self._wanted_s = 0.0  # how long the consumer's own thread ran or waited for a core,
        self._measured_s = 0.0  # of this time
        self.ran = self.queued = 0.0  # how many of the threads ran and waited for a core, on average
        self.took_s = 0.0
        self._threads, self._begin = threads, on_cores_s(threads)
        self._begin_s: float | None = None
        self._look_s = 0.0  # when to ask the system again

    @property
    def waits(self) -> bool:
        """Whether the consumer's own thread waited for something else than a core."""
        return self._wanted_s < WAITS * self._measured_s

    def timed(self, result: Callable[[], Any], elements: int) -> Any:
        """A result, with the time that it took."""
        begin_s = time.perf_counter()
        if self.waited_s >= TRIAL_S or begin_s < self._look_s:  # enough is known of the rest
            block = result()
            self.waited_s += time.perf_counter() - begin_s
        else:
            wanted_s, begin_s = thread_wanted_s(), time.perf_counter()
            if self._begin_s is None:
                self._begin_s = begin_s
            block = result()
            end_s = time.perf_counter()
            self.waited_s += end_s - begin_s
            self._measured_s += end_s - begin_s
            self._wanted_s += thread_wanted_s() - wanted_s
            self._look_s = end_s + LOOK_S
        self.elements += elements
        return block

    def end(self) -> None:
        """Notes what threads and consumer did."""
        self.took_s = max(time.perf_counter() - (self._begin_s or 0.0), 1e-9)
        did_s = zip(self._begin, on_cores_s(self._threads), strict=True)
        self.ran, self.queued = ((end - begin) / self.took_s for begin, end in did_s)


class ThreadsAsWorkers:
    """Threads, as a `Tuner` sees workers."""

    pids: ClassVar[list[int]] = []  # their time on cores is that of this process

    def __init__(self, executor: ThreadExecutor):
        self._executor = executor

    @property
    def num_workers(self) -> int:
        return self._executor.num_threads

    @property
    def worked_s(self) -> float:
        return self._executor.worked_s

    def all_ready(self) -> bool:
        return True

    def resize(self, num_workers: int) -> None:
        self._executor.resize(num_workers)


class AutotunedExecutor:
    """Inline at first; then whichever way a trial found faster.

    Results come back in order of submission: after a change, those of the last executor come first.

    Args:
        threads: The threads of the iterator.
        make_threads: Makes the executor to use if threads pay, given their number; `None` for the default.
        on_stuck: Called with what was measured, if elements are costly and threads do not scale.
    """

    def __init__(
        self,
        threads: Threads,
        make_threads: Callable[[int | None], ThreadExecutor],
        on_stuck: Callable[[str], None] = lambda text: None,
    ):
        self._threads, self._make_threads, self.on_stuck = threads, make_threads, on_stuck
        self._num_threads = min(MOST_THREADS, max(FEWEST_THREADS, num_cores()))
        self._inline = InlineExecutor()
        self._current: Executor = self._inline
        self._tasks: deque[tuple[Executor, int]] = deque()
        self._left: list[Executor] = []
        self._unmeasured = 0  # results to come that do not count
        self._waits = False  # whether elements wait for something else than a core
        self._tuner: Tuner | None = None  # of threads that wait for data
        self._pays: bool | None = None
        self._pause_s = AGAIN_S
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._on_trial, self._is_inline, self._again_s = True, False, math.inf
        self._phases = [_Phase()]  # inline, in threads, inline again

    def _end_trial(self, *, pays: bool, costly: bool = True) -> None:
        self._on_trial, self._pays = False, pays
        if costly and not pays:
            self._again_s = time.perf_counter() + self._pause_s
            self._pause_s *= 2

    @property
    def inline(self) -> bool:
        return self._is_inline and (self._again_s == math.inf or time.perf_counter() < self._again_s)

    @property
    def threads_pay(self) -> bool | None:
        """What the last trial found; `None` until the first has ended."""
        return self._pays

    @property
    def waits_for_data(self) -> bool:
        """Whether threads are tried, or pay, because they wait for something else than cores."""
        return self._waits and self._current is not self._inline

    @property
    def num_threads(self) -> int:
        return self._current.num_threads

    def filled(self) -> float:
        return self._current.filled()

    def wants(self, n: int) -> int:
        if self._is_inline and not self.inline:
            self._begin_trial()
        if len(self._phases) > 1 and self._current is self._inline:  # second inline trial: no longer than the first
            n = min(n, max(1, self._phases[0].elements))
        return self._current.wants(n)

    def submit(self, task: Callable[[], Any], size: int) -> None:
        self._tasks.append((self._current, size))
        self._current.submit(task, size)

    def ready(self) -> bool:
        return self._tasks[0][0].ready() if self._tasks else self._current.ready()

    def next(self) -> Any:
        executor, size = self._tasks.popleft()
        if not self._on_trial or executor is not self._current:
            block = executor.next() if self._tuner is None else self._tuned(executor, size)
        elif self._unmeasured > 0:
            block = executor.next()
            self._unmeasured -= size
            if self._unmeasured <= 0:
                self._phases[-1] = _Phase(self._threads.pool(self._num_threads).threads)
        else:
            block = self._phases[-1].timed(executor.next, size)
            self._decide()
        self._close_idle()
        self._is_inline = not self._on_trial and self._current is self._inline and not self._tasks
        return block

    def _decide(self) -> None:
        """Goes on to the next part of the trial, or ends it."""
        first, phase = self._phases[0], self._phases[-1]
        if phase.waited_s < TRIAL_S and (phase is first or phase.elements < 8 * first.elements):
            return
        if len(self._phases) == 2 and phase.elements < 2 * self._current.num_threads:
            return  # results of threads that wait for data come in bursts
        phase.end()
        if phase is first:
            is_short = first.waited_s < LATER_S and first.waited_s < LONG_S * first.elements
            if first.waited_s < TRIED_S * first.elements:
                self._end_trial(pays=False, costly=False)
            elif first.waits:
                self._waits = True
                self._go_on_with(self._make_threads(None))
            elif not is_short:
                self._waits, self._unmeasured = False, 2 * self._num_threads
                self._go_on_with(self._trial_threads())
            return
        waits, elsewhere = self._waits, first.waited_s < (1 - ELSEWHERE) * first.took_s
        # A consumer that does nothing else may be kept from asking for the next result, so all of its time counts.
        inline, threads, *again = (
            each.elements / (each.waited_s if elsewhere else each.took_s) for each in self._phases
        )
        inline = max([inline, *again])
        gain = threads / inline
        pays = gain >= GAIN and (waits or self._phases[1].ran >= SCALES or elsewhere or not has_gil())
        if pays and not waits and len(self._phases) == 2:
            self._go_on_with(self._inline)
            return
        self._end_trial(pays=pays)
        if pays and waits:
            self._tuner = Tuner(ThreadsAsWorkers(self._current), most=MOST_WAITING_THREADS)  # type: ignore[arg-type]
        else:
            self._change(self._make_threads(self._num_threads) if pays else self._inline)
        if not waits:
            self._judge(inline, gain)

    def _tuned(self, executor: Executor, size: int) -> Any:
        """A result of threads that wait for data: more of them start while the consumer waits."""
        begin_s = time.perf_counter()
        block = executor.next()
        assert self._tuner is not None
        if executor is self._current:
            self._tuner.saw(size, time.perf_counter() - begin_s)
        return block

    def _judge(self, inline: float, gain: float) -> None:
        """Tells if threads wait for each other, unless the consumer hardly waited for them."""
        cores, threads = num_cores(), self._phases[1]
        enough = max(SCALES, min(self._num_threads, cores) / 2)
        is_known = threads.ran + threads.queued < CROWDED * self._num_threads
        is_costly = inline <= 1 / ELEMENT_S
        if cores > 1 and is_costly and threads.ran < enough and gain < enough and is_known:
            self.on_stuck(
                f"an element takes {1e3 / inline:.2g} ms to compute, and {self._num_threads} threads computed "
                f"{gain:.1f} times as many as one, on {cores} cores: {_why()}"
            )

    def _trial_threads(self) -> ThreadExecutor:
        return ThreadExecutor(self._threads, self._num_threads, 2 * self._num_threads, buffer_bytes=64 << 20)

    def _go_on_with(self, executor: Executor) -> None:
        """Begins the next part of the trial."""
        self._phases.append(_Phase())
        self._change(executor)

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


def _why() -> str:
    """Why threads do not scale."""
    if not has_gil():
        return "their functions wait for each other, such as for a lock"
    import sysconfig  # slow to import, and hardly ever needed

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "their functions hold the GIL, which a module that you import has turned on; PYTHON_GIL=0 keeps it off"
    return "their functions hold the GIL"
