"""Global batches: the rows of a batch that this process has, the same in total on any number of processes.

Global batch `t` of a random-access chain is its elements from `t * G` on. Global batch `t` of a stream is the next
`G / L` elements of each of its `L` lanes, in order. Processes do not occur in either definition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headrace.errors import MissingLanesError, PipelineError
from headrace.ops.buffer import MpPrefetch, Prefetch, ToStream
from headrace.ops.group import BatchOp, with_leading
from headrace.ops.lanes import Lane, in_lane
from headrace.ops.op import Op, ProcessLocal, Unary, cached_from_parents, parents_first
from headrace.ops.order import IndexOp, Repeat, epoch_length
from headrace.ops.state_fields import Fields, PartStates
from headrace.options import check_counts
from headrace.sharding import GlobalRows


@dataclass(frozen=True, eq=False, repr=False)
class OwnRows(IndexOp):
    """The elements of a random-access chain that are this process's rows of each global batch."""

    name = "rows"
    is_seed_step = False  # on one process there is none
    own: GlobalRows

    def identity(self) -> None:
        return None

    @cached_from_parents
    def length(self) -> int:
        return self.parent.length() // self.own.batch_size * len(self.own)

    def indices(self, idx: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(idx, self.length())
        batches, places = np.divmod(within, len(self.own))
        return batches * self.own.batch_size + self.own.numbers[places] + epochs * epoch_length(self.parent)


@dataclass(frozen=True, eq=False, repr=False)
class BatchOfRows(BatchOp):
    """This process's rows of each global batch of a random-access chain."""

    name = "global_batch"
    rows: GlobalRows = field(kw_only=True)

    def identity(self) -> dict[str, Any]:
        return {"batch_size": self.rows.batch_size}


def batch_of_rows(parent: Op, rows: GlobalRows, batch_fn: Callable[[Sequence[Any]], Any] | None = None) -> Op:
    """The global batches of a random-access chain."""
    own = parent if rows.is_all else OwnRows(parent, rows)
    return BatchOfRows(own, len(rows), drop_remainder=True, batch_fn=batch_fn, rows=rows)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalBatch(Unary):
    """This process's rows of each global batch of a stream; it joins the stream's lanes.

    It computes the lanes that have one of its rows, and of each of these all rows: what a lane gives next depends on
    all that it has given. It ends when one of its lanes has too few rows for another batch.
    """

    name = "global_batch"
    state_fields = ("step",)
    group_fields = ()
    state_params = ("num_lanes", "batch_size")
    order_functions = ("batch_fn",)
    parts_field = "lanes"
    batch_size: int
    rows: GlobalRows
    num_batches: int | None = field(default=None, kw_only=True)
    batch_fn: Callable[[Sequence[Any]], Any] | None = field(default=None, kw_only=True)
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    def __post_init__(self):
        if self.num_batches is not None:
            check_counts(self, "num_batches", least=0)
        if self.batch_size % self.num_lanes:
            raise PipelineError(
                f"A global batch of {self.batch_size} rows cannot have the same number of rows from each of the "
                f"{self.num_lanes} lanes of {self.parent.label()}. Choose a multiple of {self.num_lanes}."
            )

    @property
    def upstream(self) -> None:
        return None  # as with an interleave, a position begins here, with those of lanes in it

    @property
    def num_lanes(self) -> int:
        return self.parent.lanes

    @property
    def lanes(self) -> int:
        return 1

    @property
    def rows_per_lane(self) -> int:
        return self.batch_size // self.num_lanes

    @cached_property
    def own_rows(self) -> dict[int, np.ndarray]:
        """For each lane that has rows of this process, which of its next rows these are."""
        which, places = np.divmod(self.rows.numbers, self.rows_per_lane)
        return {lane: places[which == lane] for lane in np.unique(which).tolist()}

    def lane(self, index: int) -> Op:
        """The stream of one lane."""
        made = self.kept.of(_LanesMade)
        if index not in made:
            made[index] = self.parent if self.num_lanes == 1 else in_lane(self.parent, Lane(index, self.num_lanes))
        return made[index]

    @property
    def ends_with_others(self) -> bool:
        """Whether all processes are known to end at the same step."""
        if self.num_lanes == 1 or self.rows.is_all or self.num_batches is not None:
            return True
        return self.endless and not _may_end_in_a_lane(self.parent)

    @property
    @cached_from_parents
    def endless(self) -> bool:
        return self.parent.endless and self.num_batches is None

    @property
    def is_sparse(self) -> bool:
        return False

    def how(self) -> str:
        return "ordering point: the next rows of each lane"

    def label(self) -> str:
        return f"global_batch({self.batch_size}{'' if self.rows.is_all else f', {self.rows!r}'})"

    @cached_from_parents
    def spec(self) -> Any:
        return with_leading(self.parent.spec(), len(self.rows))

    # ---- positions and states

    def first_position(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return 0, (None,) * len(self.own_rows)

    def with_parts(self, parts: tuple[Op, ...]) -> Op:
        (parent,) = parts
        return replace(self, parent=parent, kept=ProcessLocal())

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        lanes = zip(self.own_rows, positions, strict=True)
        return {"lanes": {str(lane): states.encode(self.lane(lane), at) for lane, at in lanes}}

    def read_parts(self, fields: Fields, states: PartStates) -> tuple[Any, ...]:
        missing = [lane for lane in self.own_rows if str(lane) not in fields["lanes"]]
        if missing:
            raise MissingLanesError(
                f"The state has the lanes {', '.join(sorted(fields['lanes'], key=int))} of {self.num_lanes}, and this "
                f"process needs lane {missing[0]} too. Join the states of all processes: "
                "`headrace.checkpoint.merge(states)`."
            )
        return tuple(states.decode(self.lane(lane), fields["lanes"][str(lane)]) for lane in self.own_rows)


def _may_end_in_a_lane(op: Op) -> bool:
    """Whether an endless stream may end in a lane: one that repeats what a lane may have nothing of."""
    before = parents_first(op, lambda each: each.is_stream and each.lanes > 1)
    if not any(isinstance(each, Repeat) for each in before):
        return False
    counts = all(each.keeps_count or isinstance(each, ToStream) for each in before if each.is_elementwise)
    sources = [each for each in before if isinstance(each, ToStream)]
    full = all(not each.parent.is_sparse and each.parent.length() >= each.lanes for each in sources)
    return not (sources and full and counts and all(isinstance(each, Unary) for each in before))


class _LanesMade(dict[int, Op]):
    """The lanes that have been made, by number."""


def global_batch(parent: Op, rows: GlobalRows, **options: Any) -> Op:
    """The global batches of a stream; what works ahead in front of them works ahead of all lanes together."""
    op: Op = GlobalBatch(parent, rows.batch_size, rows, **options)
    if parent.lanes > 1:
        before = parents_first(parent, lambda each: each.is_stream)
        for kind in (MpPrefetch, Prefetch):
            last = next((each for each in reversed(before) if isinstance(each, kind)), None)
            op = op if last is None else replace(last, parent=op)
    return op


def check_lanes(op: Op) -> None:
    """Raises if a pipeline has lanes that are not joined, or may end at different steps in different processes."""
    if op.lanes > 1:
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) is a stream of {op.lanes} lanes. Join them with "
            "`global_batch(batch_size)`, and iterate over that."
        )
    ahead = [op]
    while ahead:
        op = ahead.pop()
        if isinstance(op, GlobalBatch) and not op.ends_with_others:
            raise PipelineError(
                f"{op.label()} (pipeline at {op.site}) reads lanes that end after different numbers of batches, so "
                "some processes would wait indefinitely for others that have ended. Choose how they end together: "
                "set num_batches=, or let them agree with `headrace.stop_together(batches)`. Or read indefinitely: "
                "call `repeat()` before `to_iter_dataset()`."
            )
        if not op.ends_together:
            ahead += op.parents


def has_global_state(op: Op) -> bool:
    """Whether any number of processes can resume states of a pipeline: all its elements are of global batches."""
    ahead = [op]
    while ahead:
        op = ahead.pop()
        if isinstance(op, GlobalBatch | BatchOfRows) or getattr(op, "state_is_global", False):
            continue
        if not op.parents:
            return False
        ahead += op.parents
    return True


def makes_rows(op: Op) -> bool:
    """Whether an operation makes rows of global batches."""
    return isinstance(getattr(op, "rows", None), GlobalRows)


def global_rows(op: Op) -> list[GlobalRows]:
    """The rows of global batches that the elements of a pipeline have; none if some elements are no such rows."""
    found: list[GlobalRows] = []
    ahead = [op]
    while ahead:
        op = ahead.pop()
        if makes_rows(op):
            found.append(op.rows)  # type: ignore[attr-defined]
        elif not op.parents:
            return []
        ahead += () if makes_rows(op) else op.parents
    return found


def has_rows(op: Op) -> bool:
    """Whether all elements of a pipeline are rows of global batches."""
    return bool(global_rows(op))
