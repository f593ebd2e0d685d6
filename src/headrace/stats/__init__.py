"""What an iterator has done and where its time went: `iterator.stats()`."""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.engine.plan import Plan
from headrace.ops.op import Op
from headrace.ops.origins import last_visible_op
from headrace.ops.recorder import StageNumbers, StageRecord, Totals
from headrace.stats import as_table, verdicts

if TYPE_CHECKING:
    from headrace.engine.iteration import Iteration

RECENT_S = 5.0
SHORTEST_S = 0.3  # the verdict on less would be chance


@dataclass(frozen=True)
class StageStats:
    """What one stage has done.

    >>> iterator = iter(MapDataset.range(100).map(str))
    >>> _ = list(iterator)
    >>> [(stage.stage, stage.elements) for stage in iterator.stats().stages]
    [('map(str)', 100)]

    Attributes:
        stage: The stage's last operation.
        where: Who computes it: "consumer", "threads", "thread" (of a `prefetch`) or "workers".
        computed_by: How many threads or workers compute it.
        elements: The number of outputs.
        bytes: About how many bytes they have.
        left_out: The number of inputs that it dropped itself, such as empty sequences.
        busy_s: How long it took to make them, in all threads and processes together.
        cpu_s: How much of that was spent on a core.
        starved_s: How much of that was spent waiting for earlier stages.
        waited_s: How long its reader waited for it.
        buffered: How full its buffer was lately, from 0 to 1; `None` if it has none.
    """

    stage: str
    where: str
    computed_by: int
    elements: int
    bytes: int
    left_out: int
    busy_s: float
    cpu_s: float
    starved_s: float
    waited_s: float
    buffered: float | None


@dataclass(frozen=True)
class OperationStats:
    """What one operation has done, without the operations before it.

    >>> iterator = iter(MapDataset.range(100).map(str))
    >>> _ = list(iterator)
    >>> "map(str)" in [each.operation for each in iterator.stats().operations]
    True

    Attributes:
        operation: The operation, with its arguments and the place of its function.
        where: Who computes it, as for stages.
        elements: About how many outputs it has made.
        seconds: How long it took, in all threads and processes together.
    """

    operation: str
    where: str
    elements: int
    seconds: float


@dataclass(frozen=True)
class Stats:
    """What an iterator has done so far, or in its last seconds.

    `print(stats)` prints tables. All numbers are measured; those of operations on a sample of the runs.

    >>> from headrace import MapDataset
    >>> iterator = iter(MapDataset.range(100).map(str).to_iter_dataset())
    >>> _ = list(iterator)
    >>> stats = iterator.stats()
    >>> stats.elements, sorted(each.operation for each in stats.operations)[0]
    (100, 'map(str)')

    Differs from Grain: only Headrace has it.

    Attributes:
        elements: The number of outputs that the consumer received.
        bytes: About how many bytes they have.
        next_s: How long the consumer was in `next()`.
        waited_s: How much of that it waited for threads and workers; the rest it computed itself.
        consumer_s: How long it did something else between calls of `next()`.
        cpu_s: How long all threads and workers were on a core.
        stages: What each stage has done.
        operations: What each operation has done, the longest first.
        bad_records: How many records were skipped or replaced, and the last of them.
        recent: The same over the last few seconds; its own `recent` is `None`.
    """

    insight: ClassVar[Any]
    """`headrace.insight`, which sets itself here."""

    elements: int
    bytes: int
    next_s: float
    waited_s: float
    consumer_s: float
    cpu_s: float
    stages: tuple[StageStats, ...]
    operations: tuple[OperationStats, ...]
    bad_records: dict[str, Any] = field(default_factory=dict)
    recent: "Stats | None" = None
    _pipeline: Op | None = field(default=None, repr=False, compare=False)
    _position: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, iteration: "Iteration", now_s: float) -> "Stats":
        """The statistics of an iterator."""
        recorder = iteration.recorder
        totals = recorder.totals(now_s)
        before = next((each for each in recorder.snapshots if now_s - each.at_s <= RECENT_S), None)
        recent = _stats_between(recorder.records, before, totals) if before is not None else None
        whole = _stats_between(recorder.records, None, totals)
        return dataclasses.replace(
            whole,
            elements=whole.elements - iteration.num_ahead(),
            bad_records=iteration.bad_records.stats(),
            recent=recent,
            _pipeline=iteration.op,
            _position=iteration.position(),
        )

    @classmethod
    def between(cls, iteration: "Iteration", before: Totals | None, now_s: float) -> "Stats":
        """The statistics of an iterator since a moment; `None` is the beginning."""
        return _stats_between(iteration.recorder.records, before, iteration.recorder.totals(now_s))

    @property
    def wall_s(self) -> float:
        """How long the consumer has been reading, with what it did in between.

        >>> stats = iter(MapDataset.range(4)).stats()
        >>> stats.wall_s == stats.next_s + stats.consumer_s
        True
        """
        return self.next_s + self.consumer_s

    @property
    def rate(self) -> float:
        """How many outputs the consumer received per second.

        >>> iter(MapDataset.range(4)).stats().rate
        0.0
        """
        return self.elements / self.wall_s if self.wall_s else 0.0

    @property
    def verdict(self) -> str:
        """What limits the run, in two sentences, as measured in the last seconds.

        >>> print(iter(MapDataset.range(4)).stats().verdict)
        No verdict yet: 0 elements are too few.
        """
        recent = self.recent
        is_long = recent is not None and recent.elements >= verdicts.FEWEST and recent.wall_s >= SHORTEST_S
        return verdicts.verdict(recent if recent is not None and is_long else self)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and text.

        >>> sorted(iter(MapDataset.range(4)).stats().as_dict())[:4]
        ['bad_records', 'bytes', 'consumer_s', 'cpu_s']
        """
        made = dataclasses.asdict(dataclasses.replace(self, recent=None, _pipeline=None, _position=None))
        del made["_pipeline"], made["_position"]
        made["stages"], made["operations"] = list(made["stages"]), list(made["operations"])
        made |= {"wall_s": self.wall_s, "rate": self.rate}
        if self.recent is not None:
            made |= {"recent": self.recent.as_dict(), "verdict": self.verdict}
        else:
            del made["recent"]
        return made

    def save(self, path: str | os.PathLike[str], *, title: str = "Pipeline") -> None:
        """Writes a report with the pipeline as a graph: one self-contained HTML file.

        It needs Jinja: `pip install 'headrace[view]'`.

        >>> iterator = iter(MapDataset.range(100).map(str))
        >>> _ = list(iterator)
        >>> iterator.stats().save(folder / "report.html")
        """
        plan = None if self._pipeline is None else Plan(self._pipeline)
        page = self.insight.report_html(self, plan, self._position, title=title)
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)

    def __str__(self) -> str:
        return as_table.as_text(self)

    def _repr_html_(self) -> str:
        return as_table.as_html(self)


def _stats_between(records: dict[Any, StageRecord], before: Totals | None, after: Totals) -> Stats:
    """What was done between two moments; `None` is the beginning."""
    nothing = StageNumbers()
    none = (0.0, 0.0)
    outputs = _difference(after.outputs, nothing if before is None else before.outputs)
    stages = []
    for key, numbers in after.stages.items():
        done = _difference(numbers, nothing if before is None else before.stages.get(key, nothing))
        stages.append(_stage(records[key], key, done))
    operations = []
    for (where, label), (seconds, elements) in after.operations.items():
        earlier = none if before is None else before.operations.get((where, label), none)
        operations.append(OperationStats(label, where, round(elements - earlier[1]), seconds - earlier[0]))
    remote_cpu_s = sum(stage.cpu_s for stage in stages if stage.where != "consumer")
    return Stats(
        elements=outputs.elements,
        bytes=outputs.num_bytes,
        next_s=outputs.busy_s,
        waited_s=min(outputs.starved_s, outputs.busy_s),
        consumer_s=after.consumer_s - (0.0 if before is None else before.consumer_s),
        cpu_s=outputs.cpu_s + remote_cpu_s,
        stages=tuple(stages),
        operations=tuple(sorted(operations, key=lambda each: -each.seconds)),
    )


def _difference(after: StageNumbers, before: StageNumbers) -> StageNumbers:
    differences: list[Any] = [a - b for a, b in zip(after, before, strict=True)]
    return StageNumbers(*differences)


def _stage(record: StageRecord, key: Any, done: StageNumbers) -> StageStats:
    op = None if record.op is None else record.op()
    return StageStats(
        stage=key[0].name if op is None else last_visible_op(op).label(),
        where=record.where,
        computed_by=record.computed_by,
        elements=done.elements,
        bytes=done.num_bytes,
        left_out=done.left_out,
        busy_s=done.busy_s,
        cpu_s=done.cpu_s,
        starved_s=done.starved_s,
        waited_s=done.waited_s,
        buffered=record.buffered,
    )
