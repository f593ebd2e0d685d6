"""Decides by trials whether threads or worker processes help, and how many of them to run.

A trial of threads ends with the faster way. Cheap chains stay inline and cost nothing extra. If elements cost enough,
the trial computes some inline, some in threads, and, if those were faster, some inline again, since the first elements
often cost more. The first results of threads do not count: they were computed while nobody waited for them. The choice
changes only how long things take.

Elements that wait, such as for storage, take long, so nothing is computed for the trial alone: all threads read from
then on, unless they turn out to be no faster. Such threads cost little if they do not help.

Speed alone does not show whether threads scale: on a busy machine, several of them get more of the cores. So the trial
also measures how many cores they keep busy, which is not more than one if functions hold the GIL. Such threads help
only while the consumer does something else. Where elements are costly and threads do not scale, `on_stuck` receives a
text that says so, unless many of them wait for a core: then nobody knows. On a free-threaded Python, without a GIL,
speed alone counts. Threads that did not help are tried again later: perhaps others had the cores.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from threading import Thread
from typing import Any, ClassVar, Protocol

from headrace.engine.free_memory import LITTLE_BYTES, available_bytes
from headrace.engine.thread_executor import ThreadExecutor, Threads
from headrace.errors.signals import let_through
from headrace.ops.buffer import MpPrefetch, ToStream
from headrace.ops.ending import num_outputs
from headrace.ops.inline import InlineExecutor
from headrace.ops.profile import here
from headrace.ops.streams import Context, Position, Run, Stream, UnaryStream, open_stream
from headrace.protocols import Executor
from headrace.threads import has_gil, num_cores, on_cores_s, thread_wanted_s

# ---------------------------------------------------------------------------------------------------------- tuning
# Changes the number of workers while they run, for `num_workers=AUTOTUNE`, and of threads that wait for data.
#
# While the consumer waits, and there are cores and memory for more, workers are added; those that bring no more outputs
# leave again. So do workers that have nothing to do, and some of them if memory runs short. Tasks give the same results
# wherever they are computed, so nothing but speed depends on the number.


MOST_WORKERS = 64
MOST_PER_CORE = 4  # workers may be more than cores: some of them wait for data
FEW_CORES = 4
WINDOW_S = 0.4  # what one look covers; longer if there are few outputs
LONG_WINDOW_S = 4.0
ENOUGH_WAIT_SHARE = 0.1  # a consumer that waits for less of the time has enough
WORTH = 0.3  # more workers stay if they bring this share of what they would with a core for each
BUSY = 0.9  # with this share of all cores busy, more workers would only take cores from each other
PAUSE = 4  # windows until the next try, after one that did not help
LONGEST_PAUSE = 128
IDLE_WINDOWS = 8  # a worker leaves if so many windows in a row had no work for it
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Resizable(Protocol):
    """A pool whose number of workers can be changed."""

    @property
    def num_workers(self) -> int: ...

    @property
    def pids(self) -> list[int]: ...

    @property
    def worked_s(self) -> float: ...

    def all_ready(self) -> bool: ...

    def resize(self, num_workers: int) -> None: ...


@dataclass(frozen=True)
class TuningWindow:
    """What happened in a short time.

    Attributes:
        seconds: How long it was.
        outputs: How many came.
        waited_s: How long the consumer waited for them.
        worked_s: How long workers computed, in all.
        cores: How many cores this process and its workers kept busy.
        all_ready: Whether all workers have started.
        free_bytes: The free memory; `None` if it is not known.
        worker_bytes: How much of it a worker needs.
    """

    seconds: float
    outputs: int
    waited_s: float
    worked_s: float
    cores: float
    all_ready: bool = True
    free_bytes: int | None = None
    worker_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.outputs / self.seconds

    @property
    def waits(self) -> bool:
        return self.waited_s > ENOUGH_WAIT_SHARE * self.seconds

    def has_memory_for(self, workers: int) -> bool:
        return self.free_bytes is None or self.free_bytes > LITTLE_BYTES + workers * self.worker_bytes


class WorkerCountController:
    """Decides how many workers there are, window by window.

    Args:
        number: How many there are at first.
        most: The most that there may be.
        cores: How many cores there are.
    """

    def __init__(self, number: int, most: int, cores: int):
        self.number = number
        self._most = most
        self._cores = cores
        self._before: tuple[int, float] | None = None  # the number and the rate before the one that is tried
        self._is_new = False
        self._pause = self._pause_left = 0
        self._idle_windows = 0

    def next(self, seen: TuningWindow) -> int:
        """The number of workers from now on."""
        if not seen.all_ready:
            return self.number
        if not seen.has_memory_for(0):
            self._before = None
            self._pause_left = PAUSE
            self.number = max(1, self.number - 1)
        elif self._is_new:  # the first outputs of new workers mean little
            self._is_new = False
        elif self._before is not None:
            self._compare(seen, *self._before)
        elif self._pause_left:
            self._pause_left -= 1
        elif seen.waits:
            self._try_more(seen)
        else:
            self._try_fewer(seen)
        return self.number

    def settle_for(self, number: int) -> None:
        """There are other workers than asked for: some could not leave, or no more could be started."""
        if number < self.number:
            self._before = None
            self._is_new = False
            self._pause_left = LONGEST_PAUSE
        self.number = number

    def _try_more(self, seen: TuningWindow) -> None:
        self._idle_windows = 0
        busy = max(seen.cores / self.number, 0.05)  # cores that one more keeps busy
        fitting = round((self._cores - seen.cores) / busy) if seen.cores < BUSY * self._cores else 0
        more = min(fitting, self.number, self._most - self.number)
        if more > 0 and seen.has_memory_for(more):
            self._before = (self.number, seen.rate)
            self._is_new = True
            self.number += more

    def _compare(self, seen: TuningWindow, number: int, rate: float) -> None:
        self._before = None
        wanted = rate * (1 + WORTH * (self.number - number) / number)
        if seen.waits and seen.rate < wanted:
            self.number = number
            self._pause = self._pause_left = min(2 * max(self._pause, PAUSE // 2), LONGEST_PAUSE)
        else:
            self._pause = 0

    def _try_fewer(self, seen: TuningWindow) -> None:
        needed = ceil(1.25 * seen.worked_s / seen.seconds)
        self._idle_windows = self._idle_windows + 1 if max(needed, 1) < self.number else 0
        if self._idle_windows >= IDLE_WINDOWS:
            self._idle_windows = 0
            self.number -= 1


class Tuner:
    """Looks at a pool now and then, and changes its number of workers."""

    def __init__(self, pool: Resizable, *, most: int | None = None, clock: Callable[[], float] = time.perf_counter):
        self._pool = pool
        self._clock = clock
        cores = num_cores()
        most = most or min(MOST_WORKERS, MOST_PER_CORE * max(cores, FEW_CORES))
        self._climber = WorkerCountController(pool.num_workers, max(most, pool.num_workers), cores)
        self._begin()

    def _begin(self) -> None:
        self._outputs = 0
        self._waited_s = 0.0
        self._begin_s = self._clock()
        self._worked_s = self._pool.worked_s
        self._pids = self._pool.pids
        self._cpu_s = self._on_cores_s()

    def add_outputs(self, outputs: int, waited_s: float) -> None:
        """Counts outputs, and how long the consumer waited for them."""
        self._outputs += outputs
        self._waited_s += waited_s
        seconds = self._clock() - self._begin_s
        if seconds < WINDOW_S or (self._outputs < 2 * self._pool.num_workers and seconds < LONG_WINDOW_S):
            return
        number = self._climber.next(self._window(seconds))
        if number != self._pool.num_workers:
            self._pool.resize(number)
            self._climber.settle_for(self._pool.num_workers)
        self._begin()

    def _window(self, seconds: float) -> TuningWindow:
        return TuningWindow(
            seconds,
            self._outputs,
            self._waited_s,
            self._pool.worked_s - self._worked_s,
            max(0.0, self._on_cores_s() - self._cpu_s) / seconds,
            self._pool.all_ready(),
            available_bytes(),
            max(map(_own_bytes, self._pids), default=0),
        )

    def _on_cores_s(self) -> float:
        """How long this process and its workers have been on a core."""
        return time.process_time() + sum(map(_cpu_s, self._pids))


def _cpu_s(pid: int) -> float:
    """How long a process has been on a core; 0 if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError as e:
        let_through(e)
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_bytes(pid: int) -> int:
    """The memory that only this process has; 0 if the system does not report it."""
    try:
        with open(f"/proc/{pid}/statm") as f:
            _, resident, shared, *_ = map(int, f.read().split())
    except OSError as e:
        let_through(e)
        return 0
    return PAGE_BYTES * (resident - shared)


class TunedStream(UnaryStream):
    """A stream that workers compute, as many of them as its tuner finds best."""

    def __init__(self, stream: Stream, tuner: Tuner):
        super().__init__(stream.position, stream)
        self._tuner = tuner

    def pull(self, n: int) -> Run | None:
        before_s = here.waited_s
        run = self.parent.pull(n)
        if run is None:
            return None
        self._tuner.add_outputs(len(run.block), here.waited_s - before_s)
        return self._run(*run)


TRIED_S = 50e-6  # an element that costs less is not worth handing over between threads
ELEMENT_S = 200e-6  # an element that takes longer is costly
TRIAL_S = 0.03  # how long to try each side
LOOK_S = 0.004  # how often to ask the system what a thread did, which takes some 40 µs
LONG_ELEMENT_S = 1e-3  # elements that compute for less are tried later: starting threads costs some 40 ms
LATER_S = 0.3
FEWEST_THREADS = 4  # a trial takes a thread for each core, but at least this many, and at most `MOST_THREADS`
MOST_THREADS = 16
MOST_WAITING_THREADS = 128  # the most threads that wait for data
THREADS_GAIN = 1.2  # threads must be this much faster
WAITING_SHARE = 0.5  # a consumer that wants a core for less than this share of its time waits for something else
SCALES = 1.15  # threads that keep fewer cores busy do not scale
CROWDED = 0.55  # if a larger share of the threads runs or waits for a core, nobody knows whether they scale
RETRY_THREADS_S = 20.0  # the first pause after threads did not help; each further pause is twice as long
BUSY_CONSUMER = 0.2  # with more of its time spent on something else, a consumer gains from threads that do not scale


class _Phase:
    """What one part of a trial has measured: how long results took, and what threads did in the meantime."""

    def __init__(self, threads: Sequence[Thread] = ()):
        self.elements = 0
        self.waited_s = 0.0
        self._wanted_s = 0.0  # how long the consumer's own thread ran or waited for a core,
        self._measured_s = 0.0  # of this time
        self.ran = self.queued = 0.0  # how many of the threads ran and waited for a core, on average
        self.took_s = 0.0
        self._threads = threads
        self._begin = on_cores_s(threads)
        self._begin_s: float | None = None
        self._look_s = 0.0  # when to ask the system again

    @property
    def waits(self) -> bool:
        """Whether the consumer's own thread waited for something other than a core."""
        return self._wanted_s < WAITING_SHARE * self._measured_s

    def timed(self, result: Callable[[], Any], elements: int) -> Any:
        """A result, with the time that it took."""
        begin_s = time.perf_counter()
        if self.waited_s >= TRIAL_S or begin_s < self._look_s:  # enough is known of the rest
            block = result()
            self.waited_s += time.perf_counter() - begin_s
        else:
            wanted_s = thread_wanted_s()
            begin_s = time.perf_counter()
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
        make_threads: Makes the executor to use if threads help, from their number; `None` for the default.
        on_stuck: Called with what was measured, if elements are costly and threads do not scale.
    """

    def __init__(
        self,
        threads: Threads,
        make_threads: Callable[[int | None], ThreadExecutor],
        on_stuck: Callable[[str], None] = lambda text: None,
    ):
        self._threads = threads
        self._make_threads = make_threads
        self.on_stuck = on_stuck
        self._num_threads = min(MOST_THREADS, max(FEWEST_THREADS, num_cores()))
        self._inline = InlineExecutor()
        self._current: Executor = self._inline
        self._tasks: deque[tuple[Executor, int]] = deque()
        self._left: list[Executor] = []
        self._unmeasured = 0  # results to come that do not count
        self._waits = False  # whether elements wait for something else than a core
        self._tuner: Tuner | None = None  # of threads that wait for data
        self._helps: bool | None = None
        self._pause_s = RETRY_THREADS_S
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._on_trial = True
        self._is_inline = False
        self._again_s = math.inf
        self._phases = [_Phase()]  # inline, in threads, inline again

    def _end_trial(self, *, helps: bool, costly: bool = True) -> None:
        self._on_trial = False
        self._helps = helps
        if costly and not helps:
            self._again_s = time.perf_counter() + self._pause_s
            self._pause_s *= 2

    @property
    def inline(self) -> bool:
        return self._is_inline and (self._again_s == math.inf or time.perf_counter() < self._again_s)

    @property
    def threads_help(self) -> bool | None:
        """What the last trial found; `None` until the first has ended."""
        return self._helps

    @property
    def waits_for_data(self) -> bool:
        """Whether threads are tried, or help, because they wait for something other than cores."""
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
        """Starts the next part of the trial, or ends it."""
        first = self._phases[0]
        phase = self._phases[-1]
        if phase.waited_s < TRIAL_S and (phase is first or phase.elements < 8 * first.elements):
            return
        if len(self._phases) == 2 and phase.elements < 2 * self._current.num_threads:
            return  # results of threads that wait for data come in bursts
        phase.end()
        if phase is first:
            is_short = first.waited_s < LATER_S and first.waited_s < LONG_ELEMENT_S * first.elements
            if first.waited_s < TRIED_S * first.elements:
                self._end_trial(helps=False, costly=False)
            elif first.waits:
                self._waits = True
                self._start_phase(self._make_threads(None))
            elif not is_short:
                self._waits = False
                self._unmeasured = 2 * self._num_threads
                self._start_phase(self._trial_threads())
            return
        waits = self._waits
        consumer_is_busy = first.waited_s < (1 - BUSY_CONSUMER) * first.took_s
        # A consumer that does nothing else may be kept from asking for the next result, so all of its time counts.
        inline, threads, *again = (
            each.elements / (each.waited_s if consumer_is_busy else each.took_s) for each in self._phases
        )
        inline = max([inline, *again])
        gain = threads / inline
        helps = gain >= THREADS_GAIN and (waits or self._phases[1].ran >= SCALES or consumer_is_busy or not has_gil())
        if helps and not waits and len(self._phases) == 2:
            self._start_phase(self._inline)
            return
        self._end_trial(helps=helps)
        if helps and waits:
            self._tuner = Tuner(ThreadsAsWorkers(self._current), most=MOST_WAITING_THREADS)  # type: ignore[arg-type]
        else:
            self._change(self._make_threads(self._num_threads) if helps else self._inline)
        if not waits:
            self._report_stuck(inline, gain)

    def _tuned(self, executor: Executor, size: int) -> Any:
        """A result of threads that wait for data: more of them start while the consumer waits."""
        begin_s = time.perf_counter()
        block = executor.next()
        assert self._tuner is not None
        if executor is self._current:
            self._tuner.add_outputs(size, time.perf_counter() - begin_s)
        return block

    def _report_stuck(self, inline: float, gain: float) -> None:
        """Reports threads that wait for each other, unless the consumer hardly waited for them."""
        cores = num_cores()
        threads = self._phases[1]
        enough = max(SCALES, min(self._num_threads, cores) / 2)
        is_known = threads.ran + threads.queued < CROWDED * self._num_threads
        is_costly = inline <= 1 / ELEMENT_S
        if cores > 1 and is_costly and threads.ran < enough and gain < enough and is_known:
            self.on_stuck(
                f"an element takes {1e3 / inline:.2g} ms to compute, and {self._num_threads} threads were only "
                f"{gain:.1f} times as fast as one, on {cores} cores: {_why()}"
            )

    def _trial_threads(self) -> ThreadExecutor:
        return ThreadExecutor(self._threads, self._num_threads, 2 * self._num_threads, buffer_bytes=64 << 20)

    def _start_phase(self, executor: Executor) -> None:
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
        return "their functions wait for each other, for example for a lock"
    import sysconfig  # slow to import, and hardly ever needed

    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "their functions hold the GIL, which an imported module has turned on; set PYTHON_GIL=0 to keep it off"
    return "their functions hold the GIL"


# --------------------------------------------------------------------------------------------------- process trial
# Decides by a trial whether worker processes help, for an `mp_prefetch` with `num_workers=AUTOTUNE`.
#
# Outputs are computed in this process first, in threads if those help. If the consumer waits for them, workers are
# started: soon if outputs are costly and threads do not help, otherwise only after a while. A short run is over before
# they are ready, so it starts none; one of unknown length counts as long once it has taken long. Then they continue
# from the position after the last output, and stay if they are faster. If not, they are tried again after a while,
# since other programs may have had the cores. Positions do not depend on who computes, so the choice affects only
# speed. The operation keeps it for the next iterator.


HERE_S = 0.25  # the wait for outputs computed here before workers are considered: longer than most trials of threads
THREADS_S = 1.0  # the same where threads are tried first: longer than all of their trials
WORKERS_S = 0.2  # the wait for outputs of workers before they are judged
RAMP_S = 0.3  # outputs of workers do not count before their chunks have grown for this long
LATE_SHARE = 0.1  # a consumer that waits for costly outputs for more of its time wants workers
MOSTLY_LATE_SHARE = 0.5  # the same for outputs that are not costly
LOOKS = 4  # outputs that are not costly must be late this many times in a row
WORTH_WORKERS_S = 3.0  # workers are worth their start only if the rest of the run takes at least this long here
RETRY_WORKERS_S = 20.0  # the first pause after workers were not faster; each further pause is twice as long
AT_ONCE_S = 0.1  # after workers were not faster, one pull computes outputs here for at most this long
STILL_FASTER = 1.05  # workers that speed up this much between two looks may still win: at first their memory is new
WORKERS_GAIN = 1.1  # workers must be this much faster, so that the choice has at least nine tenths of the best speed


class TrialResult:
    """What trials of one `mp_prefetch` have found; `workers` is `None` as long as that is nothing.

    Attributes:
        workers: Whether workers are faster.
        epochs_s: How long the epochs so far took, which may come again.
    """

    workers: bool | None = None
    epochs_s = 0.0


class TrialStream(UnaryStream):
    """Outputs computed here, then by workers, and from then on by whoever was faster.

    Args:
        op: The `mp_prefetch`.
        position: Where to begin.
        context: What streams run on.
        choice: Where the trial writes what it finds.
        start_workers: Starts workers; returns a function that says whether they are ready.
        open_workers: Opens the stream that workers compute, at a position.
        end_workers: Ends the workers.
    """

    def __init__(
        self,
        op: MpPrefetch,
        position: Position,
        context: Context,
        choice: TrialResult,
        start_workers: Callable[[], Callable[[], bool]],
        open_workers: Callable[[Position], Stream],
        end_workers: Callable[[], None],
    ):
        self._op = op
        self._choice = choice
        self._start_workers = start_workers
        self._open_workers = open_workers
        self._end_workers = end_workers
        self._are_ready: Callable[[], bool] | None = None
        self._context = context
        self._executors: list[AutotunedExecutor] = []
        self._is_stuck = False
        stream = self._open_here(position)
        super().__init__(stream.position, stream)
        self._with_workers = False
        self._rate_here = self._rate_before = 0.0
        self._outputs = 0
        self._waited_s = 0.0
        self._unmeasured = 0
        self._since_s = self._begin_s = time.perf_counter()
        self._made = 0
        self._is_whole = position is None
        self._late_looks = 0
        self._ramp_end_s = 0.0
        self._again_s = 0.0
        self._pause_s = RETRY_WORKERS_S
        self._most = sys.maxsize  # outputs at a time
        self._ends = num_cores() == 1

    def _open_here(self, position: Position) -> Stream:
        return open_stream(self._op.parent, position, replace(self._context, executor=self._executor))

    def _executor(self, op: ToStream) -> Executor:
        executor = self._context.executor(op)
        if isinstance(executor, AutotunedExecutor):
            executor.on_stuck = self._note_stuck  # instead of advice to do what this does
            self._executors.append(executor)
        return executor

    def _note_stuck(self, found: str) -> None:
        self._is_stuck = True

    def pull(self, n: int) -> Run | None:
        begin = time.perf_counter()
        if not self._outputs:
            self._since_s = begin
        run = self.parent.pull(n if self._with_workers else min(n, self._most))
        if run is None:
            self._choice.epochs_s += time.perf_counter() - self._begin_s
            return None
        run = self._run(*run)
        self._made += len(run.block)
        if not self._ends:
            self._count(len(run.block), time.perf_counter() - begin)
        return run

    def _count(self, outputs: int, waited_s: float) -> None:
        if self._are_ready is not None:
            self._try(self._continue_in_workers)
            return
        if self._unmeasured > 0:
            self._unmeasured -= outputs
            return
        if self._again_s > 0:
            if time.perf_counter() < self._again_s:
                return
            self._again_s, self._since_s = 0.0, time.perf_counter()
        self._outputs += outputs
        self._waited_s += waited_s
        if self._with_workers:
            self._decide_workers()
        elif self._outputs and (self._waited_s >= self._here_s or (self._is_stuck and self._waited_s > 0)):
            self._decide_here()

    def _decide_here(self) -> None:
        """Starts workers if the consumer waits too long for what is computed here."""
        elapsed_s = time.perf_counter() - self._since_s
        self._rate_here = self._outputs / self._waited_s
        if any(executor.waits_for_data and executor.threads_help is None for executor in self._executors):
            return  # threads are on trial
        threads_help = any(executor.threads_help for executor in self._executors) and not self._is_stuck
        waits_for_data = any(executor.waits_for_data for executor in self._executors)
        if threads_help and (waits_for_data or not has_gil()):  # workers would do no better
            self._ends = True
            self._choice.workers = False
            return
        is_costly = self._waited_s >= ELEMENT_S * self._outputs and not threads_help
        is_late = self._waited_s > (LATE_SHARE if is_costly else MOSTLY_LATE_SHARE) * elapsed_s
        self._late_looks = self._late_looks + 1 if is_late else 0
        if self._late_looks >= (1 if is_costly else LOOKS) and self._rest_s() >= WORTH_WORKERS_S:
            self._try(self._start)
        self._outputs = 0
        self._waited_s = 0.0

    def _rest_s(self) -> float:
        """How long the rest takes at this rate: as long again, if nobody knows, and all epochs so far."""
        took_s = time.perf_counter() - self._begin_s
        count = num_outputs(self._op.parent) if self._is_whole else None
        return self._choice.epochs_s + (took_s if count is None else took_s * (count / self._made - 1))

    def _decide_workers(self) -> None:
        """Keeps the workers if they are faster."""
        if time.perf_counter() < self._ramp_end_s:
            self._outputs = 0
            self._waited_s = 0.0
        elif self._waited_s >= WORKERS_S or self._outputs * WORKERS_S >= 8 * self._rate_here:
            rate = self._outputs / max(self._waited_s, 1e-9)
            if rate >= WORKERS_GAIN * self._rate_here:
                self._ends = True
            elif rate < STILL_FASTER * self._rate_before:
                self._continue_here()
            self._outputs = 0
            self._waited_s = 0.0
            self._rate_before = rate

    @property
    def _here_s(self) -> float:
        """How long to wait for outputs that are computed here: without a GIL, until threads have been tried."""
        tries_threads = any(executor.threads_help is None for executor in self._executors)
        return THREADS_S if tries_threads and not has_gil() else HERE_S

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as e:  # such as a function that cannot be pickled
            let_through(e)
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning(
                "%s (pipeline at %s) runs without worker processes, because they could not be started: %s",
                self._op.label(),
                self._op.site,
                e,
            )
            self._are_ready = None
            self._ends = True
            self._choice.workers = False

    def _start(self) -> None:
        self._are_ready = self._start_workers()

    def _continue_in_workers(self) -> None:
        assert self._are_ready is not None
        if not self._are_ready():
            return
        workers = self._open_workers(self.position)
        self._are_ready = None
        self._with_workers = True
        self._outputs, self._waited_s, self._unmeasured = 0, 0.0, 2 * num_cores()
        self._ramp_end_s = time.perf_counter() + RAMP_S
        self._rate_before = 0.0
        self.parent.close(wait=False)
        self.parent = workers
        self._choice.workers = True  # even after an error: a function that ends its process must not run here

    def _continue_here(self) -> None:
        self._with_workers = self._choice.workers = False
        self.parent.close()
        self._end_workers()
        self.parent = self._open_here(self.position)
        self._most = max(1, int(AT_ONCE_S * self._rate_here))  # the consumer asks for as many as workers would give
        self._outputs = 0
        self._waited_s = 0.0
        self._late_looks = 0
        self._again_s = time.perf_counter() + self._pause_s
        self._pause_s = 2 * self._pause_s


def resolve_num_workers(num_workers: Any) -> int:
    """How many processes `AUTOTUNE` means: one for each core."""
    return num_workers if isinstance(num_workers, int) else num_cores()
