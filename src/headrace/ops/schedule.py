"""A mix whose weights change by the step.

Tijdeman's rule assigns elements to parts, so that after every element the number from each part is within one of its
share, the sum of its normalised weights so far. With `k` parts and `e = 1 / (2k - 2)`, element `j` of a part may come
once the part's share reaches `j + e`, and must come by the time it reaches `j + 1 - e`; of the elements that may come,
the one with the earliest deadline does.
"""

import hashlib
import heapq
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headrace.errors import PipelineError, StateError
from headrace.errors.signals import let_through
from headrace.ops.combine import Mixing
from headrace.ops.lanes import WHOLE, Lane
from headrace.ops.op import Op
from headrace.ops.state_fields import Fields, count
from headrace.options import check_counts

BLOCK = 1024
"""How many elements to assign at a time, looking at least as far ahead again. Positions depend on it."""

Weights = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class WeightSchedule:
    """Weights of an `IterDataset.mix` that change by the step.

    >>> from headrace import IterDataset, MapDataset
    >>> easy, hard = MapDataset.range(100).to_iter_dataset(), MapDataset.range(100, 200).to_iter_dataset()
    >>> schedule = WeightSchedule({0: [1, 0], 4: [1, 1], 8: [1, 3]})
    >>> list(IterDataset.mix([easy, hard], schedule).take(12))
    [0, 1, 2, 3, 4, 100, 5, 101, 102, 6, 103, 104]

    Differs from Grain: only Headrace has it.

    Args:
        weights: The weights of all parts (a sequence, or a mapping from their names) as a function of the step, or
            as a dict from the steps at which they change. A weight may be 0.
        elements_per_step: How many elements of the mix make a step, such as the size of a batch.
        size_per_step: What makes a step instead, in a mix by size: the tokens of a batch, such as 8 * 2048.
    """

    _most_shown: ClassVar[int] = 4000  # characters; weights that are cut off mean nothing

    weights: Callable[[int], Weights] | Mapping[int, Weights]
    elements_per_step: int = field(default=1, kw_only=True)
    size_per_step: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_counts(self, "elements_per_step", least=1)
        if self.size_per_step is not None:
            check_counts(self, "size_per_step", least=1)
            if self.elements_per_step != 1:
                raise PipelineError("A WeightSchedule takes either elements_per_step or size_per_step, not both.")
        if callable(self.weights):
            return
        if not isinstance(self.weights, Mapping) or not all(isinstance(n, int | np.integer) for n in self.weights):
            raise PipelineError(
                "A WeightSchedule needs a function of the step, or a dict from steps to weights such as "
                f"{{0: [1, 0], 1000: [1, 1]}}; got {self.weights!r}."
            )
        object.__setattr__(self, "weights", {int(step): self.weights[step] for step in sorted(self.weights)})
        if min(self.weights, default=-1) != 0:
            raise PipelineError(f"The table of a WeightSchedule must begin at step 0; got {list(self.weights)}.")

    def shares(
        self, first: int, stop: int, names: Sequence[str] | int, lane: Lane = WHOLE
    ) -> tuple[np.ndarray, PipelineError | None]:
        """For a lane's elements from `first` to `stop`, the weights of all parts (by names or number), with sum 1.

        Where the schedule fails before `stop`, the weights up to there, and the error.
        """
        steps = np.array(lane.numbers(first, stop)) // self.elements_per_step
        rows, row_of = np.unique(steps if callable(self.weights) else self._changes(steps), return_inverse=True)
        table: list[np.ndarray] = []
        for step in rows.tolist():
            try:
                table.append(self.row(step, names))
            except PipelineError as e:
                known = int(np.searchsorted(row_of, len(table)))
                return np.array(table).reshape(-1, self._count(names))[row_of[:known]], e
        return np.array(table)[row_of], None

    def _changes(self, steps: np.ndarray) -> np.ndarray:
        """For each step, the step at which its weights took effect."""
        changes = np.array(self._steps)
        return changes[np.searchsorted(changes, steps, side="right") - 1]

    def last_change(self, step: int) -> int:
        """The step at which the weights of a step took effect."""
        return step if callable(self.weights) else self._steps[bisect_right(self._steps, step) - 1]

    @cached_property
    def _steps(self) -> list[int]:
        assert isinstance(self.weights, Mapping)
        return list(self.weights)

    def row(self, step: int, names: Sequence[str] | int) -> np.ndarray:
        """The weights of all parts at a step, with sum 1."""
        weights = self.weights_at(step, names)
        return weights / weights.sum()

    def weights_at(self, step: int, names: Sequence[str] | int) -> np.ndarray:
        """The weights of all parts (by names or number) at a step."""
        weights = self._at(step)
        try:
            if isinstance(weights, Mapping) and not isinstance(names, int) and set(weights) == set(names):
                weights = [weights[name] for name in names]
            row = np.array(weights, np.float64)
        except (TypeError, ValueError) as e:
            let_through(e)
            row = np.array([np.nan])
        parts = f"{names} parts" if isinstance(names, int) else f"the parts {list(names)}"
        if row.shape != (self._count(names),):
            raise PipelineError(f"The schedule gives the weights {weights!r} at step {step}, but there are {parts}.")
        if not (row >= 0).all() or not 0 < row.sum() < np.inf:
            raise PipelineError(
                f"Weights must be 0 or more, and one of them positive; at step {step} the schedule gives {weights!r}."
            )
        return row

    def due_parts(self, names: Sequence[str] | int) -> tuple[int, ...]:
        """The parts (by names or number) whose weight is not 0 at all steps; what a function gives is not known."""
        if callable(self.weights):
            return tuple(range(self._count(names)))
        return tuple(np.flatnonzero(sum(self.row(step, names) for step in self._steps)).tolist())

    def _at(self, step: int) -> Weights:
        if not callable(self.weights):
            return self.weights[step]
        try:
            return self.weights(step)
        except Exception as e:
            what = f"{type(e).__name__}: {e}"
            raise PipelineError(f"The function of a WeightSchedule failed at step {step}: {what}") from e

    @staticmethod
    def _count(names: Sequence[str] | int) -> int:
        return names if isinstance(names, int) else len(names)


Lags = tuple[float, ...]
"""By how much each part's share is ahead of its count; they sum to 0 but for rounding."""

LAG_UNIT = 2.0**-30
"""Lags are multiples of this, so that states can hold them as ints."""


class Timetable(NamedTuple):
    """A block of elements: the part of each, and the lags before and after.

    Where the schedule fails within the block, the elements up to there, and the error.
    """

    which: np.ndarray
    lags: Lags
    next_lags: Lags
    digest: int  # of the weights that it was computed from; 0 for none
    error: PipelineError | None


def plan(weights: np.ndarray, lags: Lags, error: PipelineError | None = None) -> Timetable:
    """Assigns `BLOCK` elements to parts, given their weights and those of later elements."""
    known = min(len(weights), BLOCK)
    digest = weights_number(weights)
    if len(weights) <= BLOCK:  # the schedule fails after these: plan as if the last weights stayed
        weights = np.concatenate([weights, np.repeat(weights[-1:], BLOCK + 1 - len(weights), axis=0)])
    num_parts = len(lags)
    e = 1 / (2 * num_parts - 2) if num_parts > 1 else 0.0
    ahead = np.cumsum(weights, axis=0) + lags
    may = []
    must = []
    part = []
    for i in range(num_parts):
        numbers = np.arange(int(ahead[BLOCK - 1, i] - e) + 2)  # the elements that may come, and one more
        may.append(np.searchsorted(ahead[:, i], numbers + e))
        must.append(_when(ahead[:, i], numbers + (1 - e), weights[-1, i]))
        part.append(np.full(len(numbers), i))
    which = _soonest_first(np.concatenate(may), np.concatenate(must), np.concatenate(part))
    after = ahead[BLOCK - 1] - np.bincount(which, minlength=num_parts)
    after -= after.sum() / num_parts  # or rounding errors would add up
    next_lags = tuple((np.round(after / LAG_UNIT) * LAG_UNIT).tolist())
    return Timetable(which[:known], lags, next_lags, digest, error)


def weights_number(weights: np.ndarray) -> int:
    """A number for the weights that a block is planned from."""
    return plan_number(hashlib.sha1(weights.tobytes(), usedforsecurity=False).hexdigest())


def plan_number(digest: str) -> int:
    """A hexadecimal digest as an int that fits 32 bits; an empty digest is 0."""
    return int(digest[:8], 16) >> 1 or 1 if digest else 0


def _when(ahead: np.ndarray, goals: np.ndarray, last: float) -> np.ndarray:
    """When each goal is reached; beyond the known weights, the last one stays."""
    steps = np.searchsorted(ahead, goals).astype(np.float64)
    beyond = steps == len(ahead)
    if beyond.any():
        steps[beyond] += (goals[beyond] - ahead[-1]) / last if last else np.inf
    return steps


def _soonest_first(may: np.ndarray, must: np.ndarray, part: np.ndarray) -> np.ndarray:
    order = np.argsort(may, kind="stable")
    jobs = list(zip(must[order].tolist(), part[order].tolist(), strict=True))
    until = np.searchsorted(may[order], np.arange(BLOCK), side="right").tolist()
    which = np.empty(BLOCK, np.intp)
    waiting = []
    seen = 0
    for step in range(BLOCK):
        # In exact arithmetic some element may always come; with rounding, it may be the next one.
        stop = max(until[step], seen + (not waiting))
        for job in jobs[seen:stop]:
            heapq.heappush(waiting, job)
        seen = max(seen, stop)
        which[step] = heapq.heappop(waiting)[1]
    return which


@dataclass(frozen=True, eq=False, repr=False)
class ScheduledMix(Mixing):
    """Elements of several parts in proportions that change by the step.

    Its numbers are the count of elements, the lags before the current block, and the digest of that block's weights
    once it has begun.
    """

    name = "mix"
    state_fields = ("count", "lags", "plan")
    schedule: WeightSchedule
    names: tuple[str, ...] | None = None
    lane: Lane = field(default=WHOLE, repr=False, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.schedule.size_per_step is not None:
            raise PipelineError("`mix` with a WeightSchedule of size_per_step needs `weigh_by`, which gives sizes.")
        for step in [0] if callable(self.schedule.weights) else self.schedule.weights:
            self.schedule.row(step, self._parts)

    @property
    def _parts(self) -> Sequence[str] | int:
        return self.names or len(self.parts)

    @cached_property
    def due_parts(self) -> tuple[int, ...]:
        return self.schedule.due_parts(self._parts)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parts=parents, lane=lane)

    def first_numbers(self) -> tuple[Any, ...]:
        return 0, (0.0,) * len(self.parts), 0

    def write_numbers(self, position: tuple[Any, ...]) -> Fields:
        elements, lags, digest, _ = position
        return {"count": elements, "lags": [round(lag / LAG_UNIT) for lag in lags], "plan": digest}

    def read_numbers(self, fields: Fields) -> tuple[Any, ...]:
        lags = tuple(lag if isinstance(lag, float) else operator.index(lag) * LAG_UNIT for lag in fields["lags"])
        digest = plan_number(fields["plan"]) if isinstance(fields["plan"], str) else fields["plan"]
        return count(self, "count", fields["count"]), lags, count(self, "plan", digest)

    def _check_mix(self, fields: Fields, known: Any, *, same_parts: bool, reread: bool) -> None:
        if not same_parts:
            raise StateError(
                f"The state is from a mix of the parts {known}, but {self.label()} has {self._parts}. Restore "
                "the parts as they were."
            )
        elements, lags, digest = self.read_numbers(fields)
        first = elements // BLOCK * BLOCK
        if digest and self.plan_block(first // BLOCK, lags, digest).digest != digest:
            raise StateError(
                f"The state has already planned some elements from {first} on with another schedule than that "
                f"of {self.label()} (pipeline at {self.site}). Keep the saved weights up to element "
                f"{first + 2 * BLOCK}; you may change them after it."
            )

    def plan_block(self, block: int, lags: Lags, digest: int = 0) -> Timetable:
        """A block of elements, as if parts that never have a weight were not there; with many parts, it looks further
        ahead. The digest is that of a state within the block: older ones have planned with all parts.
        """
        first = block * BLOCK
        ahead = max(BLOCK, 4 * len(self.parts))
        weights, error = self.schedule.shares(first, first + BLOCK + ahead, self._parts, self.lane)
        if error is not None and not len(weights):
            raise error
        due = list(self.due_parts)
        if len(due) == len(self.parts):
            return plan(weights, tuple(lags), error)
        if digest and digest == weights_number(weights):
            return plan(weights, tuple(lags), error)
        among = plan(weights[:, due], tuple(lags[i] for i in due), error)
        after = list(lags)
        for i, lag in zip(due, among.next_lags, strict=True):
            after[i] = lag
        return among._replace(which=np.array(due, np.intp)[among.which], lags=tuple(lags), next_lags=tuple(after))
