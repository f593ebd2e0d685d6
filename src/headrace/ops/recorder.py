"""Statistics of an iterator, updated once per run of outputs and never once per element."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace.ops.blocks import Block
from headrace.ops.op import Op
from headrace.ops.profile import Profile

MEASURED_RUN_S = 50e-6  # what measuring costs: for a run, and for each call of an operation in it
CALL_S = 2e-6
MOST_COST = 0.005  # the largest share of all time to spend on measuring
FIRST_PHASE_S = 1e-3  # how long measuring may take at first, and before it pauses
MOST_DEBT_S = 5e-3  # how much longer measuring may take for runs unlike all that were measured
SNAPSHOT_S = 1.0
MOST_SNAPSHOTS = 6

Times = Iterable[tuple[str, float, float]]
"""For each operation its name, seconds, and the number of its outputs."""


class StageNumbers(NamedTuple):
    """The numbers of a stage that only grow."""

    elements: int = 0
    num_bytes: int = 0
    left_out: int = 0
    busy_s: float = 0.0
    waited_s: float = 0.0
    starved_s: float = 0.0
    cpu_s: float = 0.0


class StageRecord:
    """How many outputs a stage has made, and how long that took.

    Parts of a mix that are built on one line share a record, and threads may compute them, so it has a lock. Bytes are
    estimated from runs 1, 4, 16, …, since measuring a run can cost more than computing it.

    Attributes:
        where: Who computes it: "consumer", "threads", "thread" or "workers".
        computed_by: How many threads or workers compute it.
        buffered: How full its buffer was lately, from 0 to 1; `None` if it has none.
        elements: The number of outputs.
        left_out: The number of inputs that it dropped itself, such as empty sequences or oversized elements.
        busy_s: How long they took to make, in all threads and processes together.
        waited_s: How long the reader waited for them.
        starved_s: How much of `busy_s` was spent waiting for earlier stages.
        cpu_s: How much of it was spent on a core.
    """

    __slots__ = (
        "_lock",
        "_measure_at",
        "_measured",
        "_measured_bytes",
        "_measures_all",
        "_runs",
        "_sampling",
        "buffered",
        "busy_s",
        "computed_by",
        "cpu_s",
        "elements",
        "left_out",
        "op",
        "operations",
        "starved_s",
        "waited_s",
        "where",
    )

    def __init__(
        self,
        where: str = "consumer",
        op: Op | None = None,
        operations: "Operations | None" = None,
        *,
        measures_all: bool = False,
    ):
        self.where = where
        self.op = None if op is None else weakref.ref(op)
        self.computed_by = 1
        self.buffered = None
        self.operations = operations or Operations()
        self._lock = threading.RLock()  # a signal handler may come back here
        self.elements = self.left_out = self._runs = self._measured = self._measured_bytes = 0
        self.busy_s = self.waited_s = self.starved_s = self.cpu_s = 0.0
        self._measure_at = 1
        self._sampling = _Sampling()
        self._measures_all = measures_all

    def add(self, block: Block, busy_s: float = 0.0, waited_s: float = 0.0, starved_s: float = 0.0) -> None:
        """Counts a run."""
        with self._lock:
            self._runs += 1
            self.elements += len(block)
            self.busy_s += busy_s
            self.waited_s += waited_s
            self.starved_s += starved_s
            if self._runs == self._measure_at:
                self._measure_at *= 4
                self._measured += len(block)
                self._measured_bytes += block.num_bytes()

    def add_busy(self, seconds: float) -> None:
        """Counts time at work whose run somebody else counts."""
        with self._lock:
            self.busy_s += seconds

    def profile(self) -> Profile | None:
        """What measures the next run by operation; `None` if it is not measured."""
        return Profile() if self._measures_all or self._sampling.is_due else None

    def add_profile(self, profile: Profile | None, work_s: float, elements: int) -> None:
        """Counts the work of a run, and its operations; runs alike that were not measured count like it."""
        with self._lock:
            run = None
            if profile is not None:
                label = self.operations.label
                times = [(label(op), each.seconds, each.elements) for op, each in profile.times.items()]
                run = _Measured(times, profile.cpu_s, work_s, elements)
            kind = self._sampling.count(work_s, elements, run, 0 if profile is None else profile.calls)
            if run is not None:
                self._add_like(run, *kind.take())

    def settle(self) -> None:
        """Counts the runs that were not measured like those that were."""
        with self._lock:
            for run, kind in self._sampling.known():
                self._add_like(run, *kind.take())

    def _add_like(self, run: "_Measured", work_s: float, elements: int) -> None:
        of_time = work_s / run.work_s if run.work_s > 0 else 1.0
        of_elements = elements / run.elements if run.elements else 1.0
        self.cpu_s += of_time * run.cpu_s
        self.operations.add(self.where, [(label, of_time * s, of_elements * n) for label, s, n in run.times])

    def add_starved(self, seconds: float) -> None:
        """Counts time in which it waited for earlier stages."""
        with self._lock:
            self.starved_s += seconds

    def add_times(self, times: Times, cpu_s: float) -> None:
        """Counts the operations of a task that a worker has computed."""
        with self._lock:
            self.cpu_s += cpu_s
        self.operations.add(self.where, times)

    def fill(self, share: float) -> None:
        """Notes how full the buffer is."""
        self.buffered = share if self.buffered is None else 0.9 * self.buffered + 0.1 * share

    def leave_out(self, count: int, warning: Callable[[], str]) -> None:
        """Counts inputs that are dropped; the first time, logs a warning."""
        if not self.left_out:
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning("%s", warning())
        with self._lock:
            self.left_out += count

    @property
    def num_bytes(self) -> int:
        """Roughly how many bytes the outputs had."""
        return self._measured_bytes * self.elements // max(1, self._measured)

    def numbers(self) -> StageNumbers:
        """What it has counted so far."""
        return StageNumbers(*(getattr(self, name) for name in StageNumbers._fields))


class _Measured(NamedTuple):
    """A run that was measured by operation."""

    times: list[tuple[str, float, int]]
    cpu_s: float
    work_s: float
    elements: int


class _Kind:
    """Runs whose outputs took about as long: the last that was measured, and the work and outputs of those since."""

    __slots__ = ("elements", "like", "phase", "work_s")

    def __init__(self) -> None:
        self.like: _Measured | None = None
        self.phase = 0  # in which the last was measured
        self.work_s = 0.0
        self.elements = 0

    def take(self) -> tuple[float, int]:
        """The work and the outputs since the last call."""
        taken = self.work_s, self.elements
        self.work_s = 0.0
        self.elements = 0
        return taken


class _Sampling:
    """Which runs are measured by operation, and which others count like them.

    Runs differ: one fills a window, and the next ones only hand over what is in it. So a run counts like a measured one
    whose outputs took about as long each. Which kind comes next is not known, so many runs in a row are measured until
    the time for that is spent. If that was too short to meet the kind that takes most of the time, the next phase is
    twice as long.
    """

    __slots__ = ("_credit_s", "_kinds", "_needed_s", "_phase", "is_due")

    def __init__(self) -> None:
        self.is_due = True
        self._credit_s = self._needed_s = FIRST_PHASE_S
        self._phase = 1
        self._kinds: dict[int, _Kind] = {}

    def count(self, work_s: float, elements: int, run: _Measured | None, calls: int) -> _Kind:
        """Counts a run; `run` is what was measured of it, with so many calls of operations."""
        number = math.frexp(max(work_s / max(elements, 1), 1e-9))[1] // 2
        kind = self._kinds.get(number) or self._kinds.setdefault(number, _Kind())
        kind.work_s += work_s
        kind.elements += elements
        self._credit_s += MOST_COST * work_s
        if run is not None:
            kind.phase = self._phase
            kind.like = run if kind.like is None or (elements and work_s > 0) else kind.like
            self._credit_s -= MEASURED_RUN_S + calls * CALL_S
        if self.is_due and self._credit_s <= 0:
            longest = max(self._kinds.values(), key=lambda kind: kind.work_s)
            self._needed_s *= 1 if longest.phase == self._phase else 2
            self.is_due = False
        elif not self.is_due and (self._credit_s >= self._needed_s or self._is_strange(kind)):
            self.is_due = True
            self._phase = self._phase + 1
        return kind

    def _is_strange(self, kind: _Kind) -> bool:
        """Whether runs of a kind take most of the time, and none was measured: after a long first run, most are so."""
        is_cheap = self._credit_s > -MOST_DEBT_S and kind.work_s > MOST_DEBT_S
        return kind.like is None and is_cheap and kind.work_s >= max(each.work_s for each in self._kinds.values())

    def known(self) -> list[tuple[_Measured, _Kind]]:
        """The kinds with work that was not measured, each with a run that is like it."""
        found: list[tuple[_Measured, _Kind]] = []
        for number, kind in self._kinds.items():
            near = (self._kinds.get(each) for each in (number, number + 1, number - 1))
            like = next((each.like for each in near if each is not None and each.like is not None), None)
            if like is not None and (kind.work_s or kind.elements):
                found.append((like, kind))
        return found


class Operations:
    """The seconds and outputs of operations, by who computes them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._times: dict[tuple[str, str], tuple[float, float]] = {}
        self._labels: dict[Any, str] = {}

    def label(self, op: Op) -> str:
        """The operation with its arguments; operations that a function makes on one line have the same."""
        key = key_of(op)
        found = self._labels.get(key)
        return found or self._labels.setdefault(key, op.label())

    def add(self, where: str, times: Times) -> None:
        """Adds to the times of operations."""
        with self._lock:
            for label, seconds, elements in times:
                before = self._times.get((where, label), (0.0, 0.0))
                self._times[where, label] = before[0] + seconds, before[1] + elements

    def take(self) -> list[tuple[str, float, float]]:
        """The times since the last call."""
        with self._lock:
            taken = self._times
            self._times = {}
        return [(label, *numbers) for (_, label), numbers in taken.items()]

    def numbers(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Seconds and outputs so far, by who computes an operation and its name."""
        with self._lock:
            return dict(self._times)


def key_of(op: Op) -> Any:
    """What operations have in common that the same line makes: an interleave may make any number of them."""
    function = getattr(op, "transform", None)
    return type(op), op.site, getattr(function, "__code__", None) or type(function)


class Totals(NamedTuple):
    """All numbers of an iterator at one moment.

    Attributes:
        at_s: The time of the moment.
        outputs: What was handed to the consumer: `busy_s` is the time in `next()`, and `starved_s` how much of it was
            spent waiting for threads and workers.
        consumer_s: The time that the consumer spent outside `next()`.
        stages: The numbers of each stage.
        operations: Seconds and outputs of each operation.
    """

    at_s: float
    outputs: StageNumbers
    consumer_s: float
    stages: dict[Any, StageNumbers]
    operations: dict[tuple[str, str], tuple[float, float]]


class Recorder:
    """The records of the stages of one iterator, and what they were in the last seconds.

    With `measures_all`, all runs are measured by operation, and not only some of them.
    """

    def __init__(self, *, measures_all: bool = False) -> None:
        self.records: dict[Any, StageRecord] = {}
        self.operations = Operations()
        self._measures_all = measures_all
        self.outputs = StageRecord(operations=self.operations, measures_all=measures_all)
        self.consumer_s = 0.0
        self._last_end_s: float | None = None
        self.snapshots: deque[Totals] = deque(maxlen=MOST_SNAPSHOTS)
        self.on_snapshot: list[Callable[..., None]] = []

    def of(self, op: Op, where: str = "consumer") -> StageRecord:
        """The record of the stage that ends with an operation."""
        key = key_of(op)
        record = self.records.get(key)
        if record is None:
            made = StageRecord(where, op, self.operations, measures_all=self._measures_all)
            record = self.records.setdefault(key, made)
        record.where = where
        return record

    def most_elements(self) -> int:
        """The number of outputs of the stage that has made most."""
        return max((record.elements for record in list(self.records.values())), default=0)

    def handed_over(self, block: Block, profile: Profile | None, begin_s: float, end_s: float, waited_s: float) -> None:
        """Counts a run that the consumer receives."""
        if self._last_end_s is not None:
            self.consumer_s += begin_s - self._last_end_s
        self._last_end_s = end_s
        took_s = end_s - begin_s
        self.outputs.add(block, took_s, starved_s=waited_s)
        self.outputs.add_profile(profile, took_s - waited_s, len(block))
        if not self.snapshots or end_s - self.snapshots[-1].at_s > SNAPSHOT_S:
            self.snapshots.append(self.totals(end_s))
            for call in self.on_snapshot:
                call()

    def pause(self) -> None:
        """The time until the next run is not the consumer's: the stream has ended, or continues in another place."""
        self._last_end_s = None

    def totals(self, at_s: float) -> Totals:
        """All numbers so far."""
        for record in (self.outputs, *list(self.records.values())):
            record.settle()
        stages = {key: record.numbers() for key, record in list(self.records.items())}
        return Totals(at_s, self.outputs.numbers(), self.consumer_s, stages, self.operations.numbers())
