"""Changes the number of workers while they run, for `num_workers=AUTOTUNE`, and of threads that wait for data.

While the consumer waits, and there are cores and memory for more, workers are added; those that bring no more outputs
leave again. So do workers that have nothing to do, and some of them if memory gets short. Tasks give the same results
wherever they are computed, so nothing but speed depends on the number.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from headrace._executors.memory import LITTLE_BYTES, available_bytes
from headrace._plan.profile import here
from headrace._plan.streams import Run, Stream, UnaryStream
from headrace._utils.signals import let_through
from headrace._utils.threads import num_cores

MOST_WORKERS = 64
MOST_PER_CORE, FEW_CORES = 4, 4  # workers may be more than cores: some of them wait for data
WINDOW_S, LONG_WINDOW_S = 0.4, 4.0  # what one look covers; longer if there are few outputs
WAITS = 0.1  # a consumer that waits for less of the time has enough
WORTH = 0.3  # of what more workers would give if all of them had a core
BUSY = 0.9  # of all cores: if so many are busy, more workers would only take them from each other
PAUSE, LONGEST_PAUSE = 4, 128  # windows until the next try, after one that did not help
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
class Window:
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
        return self.waited_s > WAITS * self.seconds

    def has_memory_for(self, workers: int) -> bool:
        return self.free_bytes is None or self.free_bytes > LITTLE_BYTES + workers * self.worker_bytes


class Climber:
    """Decides how many workers there are, window by window.

    Args:
        number: How many there are at first.
        most: The most that there may be.
        cores: How many cores there are.
    """

    def __init__(self, number: int, most: int, cores: int):
        self.number, self._most, self._cores = number, most, cores
        self._before: tuple[int, float] | None = None  # the number and the rate before the one that is tried
        self._is_new = False
        self._pause = self._pause_left = 0
        self._idle_windows = 0

    def next(self, seen: Window) -> int:
        """The number of workers from now on."""
        if not seen.all_ready:
            return self.number
        if not seen.has_memory_for(0):
            self._before, self._pause_left = None, PAUSE
            self.number = max(1, self.number - 1)
        elif self._is_new:  # the first outputs of new workers tell little
            self._is_new = False
        elif self._before is not None:
            self._judge(seen, *self._before)
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
            self._before, self._is_new, self._pause_left = None, False, LONGEST_PAUSE
        self.number = number

    def _try_more(self, seen: Window) -> None:
        self._idle_windows = 0
        busy = max(seen.cores / self.number, 0.05)  # cores that one more keeps busy
        fitting = round((self._cores - seen.cores) / busy) if seen.cores < BUSY * self._cores else 0
        more = min(fitting, self.number, self._most - self.number)
        if more > 0 and seen.has_memory_for(more):
            self._before, self._is_new = (self.number, seen.rate), True
            self.number += more

    def _judge(self, seen: Window, number: int, rate: float) -> None:
        self._before = None
        wanted = rate * (1 + WORTH * (self.number - number) / number)
        if seen.waits and seen.rate < wanted:
            self.number = number
            self._pause = self._pause_left = min(2 * max(self._pause, PAUSE // 2), LONGEST_PAUSE)
        else:
            self._pause = 0

    def _try_fewer(self, seen: Window) -> None:
        needed = ceil(1.25 * seen.worked_s / seen.seconds)
        self._idle_windows = self._idle_windows + 1 if max(needed, 1) < self.number else 0
        if self._idle_windows >= IDLE_WINDOWS:
            self._idle_windows = 0
            self.number -= 1


class Tuner:
    """Looks at a pool now and then, and changes its number of workers."""

    def __init__(self, pool: Resizable, *, most: int | None = None, clock: Callable[[], float] = time.perf_counter):
        self._pool, self._clock = pool, clock
        cores = num_cores()
        most = most or min(MOST_WORKERS, MOST_PER_CORE * max(cores, FEW_CORES))
        self._climber = Climber(pool.num_workers, max(most, pool.num_workers), cores)
        self._begin()

    def _begin(self) -> None:
        self._outputs, self._waited_s = 0, 0.0
        self._begin_s, self._worked_s = self._clock(), self._pool.worked_s
        self._pids = self._pool.pids
        self._cpu_s = self._on_cores_s()

    def saw(self, outputs: int, waited_s: float) -> None:
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

    def _window(self, seconds: float) -> Window:
        return Window(
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
    """How long a process has been on a core; 0 if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError as e:
        let_through(e)
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _own_bytes(pid: int) -> int:
    """The memory that only this process has; 0 if the system does not tell."""
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
        self._tuner.saw(len(run.block), here.waited_s - before_s)
        return self._run(*run)
