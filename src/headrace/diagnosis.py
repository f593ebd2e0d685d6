"""What a pipeline costs and how fast it could be, found by running it alone: `headrace.diagnose(ds)`."""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.dataset.base import Dataset
from headrace.engine.iteration import Iteration
from headrace.errors import PipelineError
from headrace.errors.suggestions import explains_keywords
from headrace.loader import DataLoader
from headrace.ops.buffer import MpPrefetch, Prefetch, ToStream
from headrace.ops.op import Op, ProcessLocal
from headrace.ops.recorder import Totals
from headrace.options import MultiprocessingOptions, ReadOptions
from headrace.stats import OperationStats, Stats, as_table
from headrace.stats.bounds import Bounds, Scaling
from headrace.stats.verdicts import culprit, significant, with_threads
from headrace.threads import num_cores

WORTH = 1.1  # a smaller gain is not worth worker processes
SHARES = 0.3, 0.3, 0.4  # the shares of time without workers, with one, and with the best number
AGAIN = 0.2  # the share of time for each further trial
MOST_TRIALS = 5
AS_PREDICTED = 0.8  # a trial with less than this share of the predicted rate, or as far above it, leads to others
WARM_UP = 4  # outputs per worker that come before measuring


@dataclass(frozen=True)
class Diagnosis:
    """What a pipeline costs and how fast it could be.

    >>> found = Diagnosis((), {0: 900.0, 1: 1700.0}, best=1, measured=1650.0, verdict="One worker is best.")
    >>> found.best, found.rates[found.best]
    (1, 1700.0)

    Attributes:
        operations: What each operation costs, the longest first, measured without workers.
        rates: Predicted elements per second, by number of workers; those of 0 and 1 are measured. Trials of other
            numbers have corrected them.
        best: The number of workers to use.
        measured: Elements per second with that number of workers, as measured.
        verdict: What takes longest, and what to do.
        tried: Elements per second in the trials, by number of workers.
        threads: Elements per second with threads, by their number; tried only if reading waits.
    """

    operations: tuple[OperationStats, ...]
    rates: dict[int, float]
    best: int
    measured: float
    verdict: str
    tried: dict[int, float] = dataclasses.field(default_factory=dict)
    threads: dict[int, float] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text."""
        made = dataclasses.asdict(self)
        made["operations"] = list(made["operations"])
        for name in ("rates", "tried", "threads"):
            made[name] = {str(number): rate for number, rate in made[name].items()}
        return made

    def __str__(self) -> str:
        operations = as_table.in_columns(as_table.OPERATION_HEAD, as_table.operations(self.operations))
        return f"{operations}\n\n{as_table.in_columns(_HEAD, self._rows())}\n\n{self.verdict}"

    def _repr_html_(self) -> str:
        operations = as_table.html_table(as_table.OPERATION_HEAD, as_table.operations(self.operations))
        return f"{as_table.html_paragraph(self.verdict)}{operations}{as_table.html_table(_HEAD, self._rows())}"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [
            (str(workers), f"{rate:,.1f}", f"{self.tried[workers]:,.1f}" if workers in self.tried else "")
            for workers, rate in self.rates.items()
        ]


_HEAD = "workers", "elements/s", "measured"


@explains_keywords
def diagnose(ds: Any, *, seconds: float = 5.0) -> Diagnosis:
    """Runs a pipeline alone, and reports what each operation costs and how fast it would be with more workers.

    It runs without workers, with one, and with as many as should be best, for about `seconds` in all. If the rate is
    far from the prediction, it tries other numbers and takes up to twice as long. An `mp_prefetch` or `prefetch` at the
    end of the pipeline is removed first.

    >>> from headrace import MapDataset
    >>> found = diagnose(MapDataset.range(10_000).map(str).batch(10), seconds=0.3)
    >>> sorted(found.rates)[:2]
    [0, 1]

    Differs from Grain: only Headrace has it.

    Args:
        ds: A `MapDataset`, `IterDataset` or `DataLoader`.
        seconds: How long to run it, besides the time that workers take to start.
    """
    op = _alone(_stream_op(ds))
    alone = _run(op, SHARES[0] * seconds)
    if alone.elements == 0:
        raise PipelineError("`diagnose` needs a pipeline with elements; this one has none.")
    one = _run(_with_workers(op, 1), SHARES[1] * seconds, WARM_UP)
    trials = _Trials(op, alone, one, seconds)
    best = trials.best()
    measured = trials.tried[best]
    threads = _try_threads(op, alone, AGAIN * seconds)
    verdict = _verdict_on_threads(alone, threads, measured) or _verdict(alone, trials, best)
    return Diagnosis(_by_operation(alone), trials.predictions(best), best, measured, verdict, trials.tried, threads)


def _try_threads(op: Op, alone: Stats, seconds: float) -> dict[int, float]:
    """What threads give where reading waits, by their number."""
    number = Bounds.of(alone).best_threads()
    threaded = _with_threads(op, number) if Bounds.of(alone).reading_waits else None
    return {} if threaded is None else {number: _run(threaded, seconds, WARM_UP).rate}


def _with_threads(op: Op, number: int) -> Op | None:
    """A pipeline that reads in threads; `None` if it is not one chain."""
    after: list[Op] = []
    while not isinstance(op, ToStream):
        if len(op.parents) != 1:
            return None
        after.append(op)
        op = op.parents[0]
    made: Op = dataclasses.replace(op, read_options=ReadOptions(num_threads=number))
    for each in reversed(after):
        own: dict[str, Any] = {"kept": ProcessLocal()} if hasattr(each, "kept") else {}
        made = dataclasses.replace(each, parent=made, **own)  # type: ignore[call-arg]
    return made


def _verdict_on_threads(alone: Stats, threads: dict[int, float], others: float) -> str:
    """Advice to read in threads; empty if workers give more, or nothing gains."""
    for number, rate in threads.items():
        if rate > WORTH * alone.rate and rate >= others:
            where = next((each.where for each in alone.operations), "consumer")
            return (
                f"{culprit(alone, where)} It mostly waits: `to_iter_dataset({with_threads(number)})` gives "
                f"{significant(rate)} elements/s, {significant(rate / alone.rate)} × as many as now."
            )
    return ""


class _Trials:
    """Runs with several numbers of workers, until one gives what was predicted and none should give more."""

    def __init__(self, op: Op, alone: Stats, one: Stats, seconds: float):
        self._op = op
        self._alone = alone
        self._one = one
        self._seconds = seconds
        self._scaling = Scaling(Bounds.of(one))
        self._predicted: dict[int, float] = {}  # before the last trial
        self.tried = {0: alone.rate}

    def best(self) -> int:
        """The number of workers to use."""
        if not self._one.elements:
            return 0
        number = self._scaling.best()
        shares = [SHARES[2], *[AGAIN] * (MOST_TRIALS - 1)]
        for share in shares:
            if self._scaling.rate(number) <= WORTH * self._alone.rate:
                break
            is_as_predicted = self._try(number, share * self._seconds)
            expected = self._scaling.best()
            if is_as_predicted and expected == number:
                return number if self.tried[number] > WORTH * self._alone.rate else 0
            number = (self._scaling.unknown() if share == shares[0] else None) or expected
        most = max(self.tried, key=lambda number: self.tried[number])
        return most if self.tried[most] > WORTH * self._alone.rate else 0

    def _try(self, number: int, seconds: float) -> bool:
        predicted = self._predicted[number] = self._scaling.rate(number)
        trial = _run(_with_workers(self._op, number), seconds, WARM_UP * number)
        self.tried[number] = trial.rate
        self._scaling.learn(number, trial.rate)
        return AS_PREDICTED <= trial.rate / predicted <= 1 / AS_PREDICTED

    def from_one(self, number: int) -> float:
        """What that many workers would give if each did as much as one alone."""
        return self._scaling.without_trials(number)

    def predictions(self, best: int) -> dict[int, float]:
        """Elements per second, by number of workers; for the best one, as predicted before its last trial."""
        rates = {0: self._alone.rate}
        if self._one.elements:
            rates |= {number: self._scaling.rate(number) for number in _numbers(max(self._predicted, default=1))}
            rates |= {number: self._scaling.rate(number) for number in self._predicted} | {1: self._one.rate}
        if best > 1:
            rates[best] = self._predicted[best]
        return dict(sorted(rates.items()))


def _by_operation(stats: Stats) -> tuple[OperationStats, ...]:
    """What operations cost, whoever computed them."""
    found: dict[str, OperationStats] = {}
    for each in stats.operations:  # the longest first
        other = found.get(each.operation, dataclasses.replace(each, elements=0, seconds=0.0))
        elements = other.elements + each.elements
        seconds = other.seconds + each.seconds
        found[each.operation] = dataclasses.replace(other, elements=elements, seconds=seconds)
    return tuple(sorted(found.values(), key=lambda each: -each.seconds))


def _stream_op(ds: Any) -> Op:
    if isinstance(ds, DataLoader):
        ds = ds._dataset
    if not isinstance(ds, Dataset):
        raise PipelineError(f"`diagnose` takes a MapDataset, an IterDataset or a DataLoader; got {type(ds).__name__}.")
    return ds._stream_op


def _alone(op: Op) -> Op:
    """A pipeline without what computes it ahead."""
    while isinstance(op, MpPrefetch | Prefetch):
        op = op.parent
    return op


def _with_workers(op: Op, number: int) -> Op:
    return MpPrefetch(op, MultiprocessingOptions(number), site=op.site)


def _numbers(best: int) -> list[int]:
    """1, 2, 4, … up to twice the number of cores, and the best."""
    doubled = [1 << i for i in range(10) if 1 << i <= max(2 * num_cores(), best)]
    return sorted({*doubled, best})


def _run(op: Op, seconds: float, warm_up: int = 0) -> Stats:
    """What a pipeline does in some seconds, after its first outputs; a short one is run again and again."""
    iteration = Iteration(op)
    try:
        before = _read(iteration, lambda outputs: outputs >= warm_up) if warm_up else None
        end_s = time.perf_counter() + seconds
        return Stats.between(iteration, before, _read(iteration, lambda _: time.perf_counter() > end_s).at_s)
    finally:
        iteration.close()


def _read(iteration: Iteration, is_enough: Callable[[int], bool]) -> Totals:
    """Reads outputs until there are enough, from the start again after the end; what has been counted then."""
    outputs = outputs_before = 0
    while True:
        for run in iteration:
            outputs += sum(1 for _ in run)
            if is_enough(outputs):
                return iteration.recorder.totals(time.perf_counter())
        if outputs == outputs_before or is_enough(outputs):
            return iteration.recorder.totals(time.perf_counter())
        outputs_before = outputs
        iteration.go_to(None)


def _verdict(alone: Stats, trials: _Trials, best: int) -> str:
    where = next((each.where for each in alone.operations), "consumer")
    found = culprit(alone, where)
    number = max(trials.tried)  # of workers
    rate = trials.tried[number]
    too_high = ""
    if number and rate < AS_PREDICTED * trials.from_one(number):
        too_high = (
            f" At the rate of one worker, {number} workers would give "
            f"{significant(trials.from_one(number))} elements/s, but they give {significant(rate)}: they "
            "compete for something, such as memory, or other programs use the cores."
        )
    if not best:
        gives = f"{significant(rate)} elements/s with {number}, " if number else ""
        return f"{found} Workers do not help: {gives}{significant(alone.rate)} elements/s without them.{too_high}"
    measured = trials.tried[best]
    gain = significant(measured / alone.rate)
    return (
        f"{found} `.mp_prefetch({best})` gives {significant(measured)} elements/s, {gain} × as many as without "
        f"workers.{too_high}"
    )
