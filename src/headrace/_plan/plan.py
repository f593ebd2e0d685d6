"""The plan of a pipeline: how each operation is computed, and where.

Workers and `explain()` both read it, so users see what really happens.
"""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace._ops.base import Op, Unary
from headrace._ops.buffer import MpPrefetch, ToStream
from headrace._ops.combine import Interleave, Nary
from headrace._ops.order import gather_options
from headrace._plan.show import Line, lines
from headrace._plan.stages import Stages, StreamStage, all_operations, is_one_worker_stream, ready_for_workers
from headrace.options import DatasetOptions, num_threads

CONSUMER, WORKER = "consumer", "worker"


@dataclass(frozen=True, eq=False)
class Step:
    """One operation of a plan.

    Attributes:
        op: The operation.
        label: The operation with its arguments, indented for display.
        where: "worker" or "consumer" before an `mp_prefetch`; otherwise `None`, which means the consumer.
        how: How it is computed, in a few words.
        stage: The number of its stage.
        reason: Why a stage begins with it, if one does.
    """

    op: Op
    label: str
    where: str | None
    how: str
    stage: int
    reason: str


@dataclass(frozen=True)
class PlannedStage:
    """Steps computed together: by any one worker for each chunk of elements, or by the consumer."""

    number: int
    where: str
    steps: tuple[Step, ...]

    @property
    def reason(self) -> str:
        """Why it begins where it does."""
        return self.steps[0].reason


class Plan:
    """How a pipeline is computed; it prints as a table of operations."""

    def __init__(self, op: Op):
        self.op = op

    @cached_property
    def options(self) -> DatasetOptions:
        """The options of the whole pipeline."""
        return gather_options(self.op)

    @property
    def maps_may_move(self) -> bool:
        """Whether maps may run before what only reorders: not if they leave elements out."""
        return self.options.on_error.raises

    # ---- for workers

    @cached_property
    def prefetches(self) -> list[MpPrefetch]:
        """The `mp_prefetch` operations with no other one after them, each once."""
        found: dict[MpPrefetch, None] = {}
        ahead, seen = [self.op], {self.op}
        while ahead:
            op = ahead.pop()
            if isinstance(op, MpPrefetch):
                found[op] = None
            else:
                ahead += [parent for parent in reversed(op.parents) if parent not in seen]
                seen.update(op.parents)
        return list(found)

    def sharing_workers(self, op: MpPrefetch) -> list[MpPrefetch]:
        """The `mp_prefetch` operations that share workers with this one, itself included."""
        if op not in self.prefetches:  # it is in a dataset that an interleave has made
            return [op]
        first = op.options.kind, op.worker_init_fn
        return [
            each for each in self.prefetches if (each.options.kind, each.worker_init_fn) == first and has_workers(each)
        ]

    # ---- for display

    @cached_property
    def steps(self) -> list[Step]:
        """All operations in display order; those before an `mp_prefetch` as its workers compute them."""
        placed: dict[Op, _Placed] = {}
        root = _as_computed(self.op, placed, as_written=not self.maps_may_move)
        return _numbered(root, placed)

    @cached_property
    def stages(self) -> list[PlannedStage]:
        """The steps by stage."""
        by_number: dict[int, list[Step]] = {}
        for step in self.steps:
            by_number.setdefault(step.stage, []).append(step)
        return [PlannedStage(i, steps[0].where or CONSUMER, tuple(steps)) for i, steps in sorted(by_number.items())]

    def __str__(self) -> str:
        width = min(120, max(len(step.label) for step in self.steps))
        return "\n".join(f"{step.label:<{width}}  | {_shown(step)}".rstrip() for step in self.steps)

    __repr__ = __str__


def _shown(step: Step) -> str:
    return f"{step.where}: {step.how}" if step.where else step.how


def has_workers(op: MpPrefetch) -> bool:
    """Whether an `mp_prefetch` does anything."""
    return op.options.has_workers


# ------------------------------------------------------------------------------------------------ for display


@dataclass(frozen=True)
class _Placed:
    """Who computes an operation before an `mp_prefetch`; `base`, which its stage reads, identifies the stage."""

    where: str
    base: Op | None
    reason: str


def _as_computed(op: Op, placed: dict[Op, _Placed], *, as_written: bool) -> Op:
    """The pipeline, rewritten before each `mp_prefetch` as its workers get it; notes who computes each operation."""
    chain: list[Any] = []
    while isinstance(op, Unary) and not (isinstance(op, MpPrefetch) and has_workers(op)):
        chain.append(op)
        op = op.parent
    if isinstance(op, MpPrefetch):
        op = dataclasses.replace(op, parent=ready_for_workers(op.parent, as_written=as_written))
        _place(op.parent, placed)
    elif isinstance(op, Nary):
        op = dataclasses.replace(
            op, parts=tuple(_as_computed(part, placed, as_written=as_written) for part in op.parts)
        )
    for each in reversed(chain):
        op = dataclasses.replace(each, parent=op)
    return op


def _place(root: Op, placed: dict[Op, _Placed]) -> None:
    """Notes who computes the operations before an `mp_prefetch`."""
    stages, inner = Stages(root, (0,)), all_operations(root)
    for op in inner:
        if not op.is_stream:
            placed.setdefault(op, _Placed(WORKER, None, ""))  # it belongs to the stage that reads it
        elif (stage := stages.of(op)) is not None:
            placed[op] = _Placed(WORKER, stage.base, stage.why)
        else:
            placed[op] = _Placed(CONSUMER, None, stages.why_here(op))
    for several in inner:
        if isinstance(several, Nary | Interleave):
            for part in filter(is_one_worker_stream, several.parents):
                placed.update(dict.fromkeys(all_operations(part), _Placed(WORKER, part, StreamStage.why)))


NOBODY_ELSE = _Placed(CONSUMER, None, "no worker computes what is not before an `mp_prefetch`")


def _numbered(root: Op, placed: dict[Op, _Placed]) -> list[Step]:
    """The steps of a pipeline, each with the number of its stage."""
    steps: list[Step] = []
    last: dict[Line, Line] = {}  # by line, the last line of its stage
    numbers: dict[Line, int] = {}
    for line in lines(root):
        end, mine = _last_of_stage(line, placed, last), placed.get(line.op, NOBODY_ELSE)
        why = placed[end.op] if mine.where == WORKER else mine
        reason = "" if end in numbers else why.reason
        number = numbers.setdefault(end, len(numbers))
        where = mine.where if line.op in placed else None
        steps.append(Step(line.op, line.label, where, _how(line.op, where), number, reason))
    return steps


def _last_of_stage(line: Line, placed: dict[Op, _Placed], known: dict[Line, Line]) -> Line:
    passed = [line]
    while line not in known and line.reader is not None and _together(line.op, line.reader.op, placed):
        line = line.reader
        passed.append(line)
    known.update(dict.fromkeys(passed, known.get(line, line)))
    return known[line]


def _together(op: Op, reader: Op, placed: dict[Op, _Placed]) -> bool:
    """Whether an operation and the one that reads it are in one stage."""
    mine, theirs = placed.get(op, NOBODY_ELSE), placed.get(reader, NOBODY_ELSE)
    return mine.where == theirs.where and (mine.base is theirs.base or not op.is_stream)


def _how(op: Op, where: str | None) -> str:
    if isinstance(op, ToStream) and where and num_threads(op.read_options, in_worker=True) == 0:
        return "in index order, no threads"
    return op.how()
