"""A mix whose weights change by the step.

Steps are assigned to parts by Tijdeman's rule, so that after every element each part has had its share, the sum of
its normalised weights so far, to within one element. With `k` parts and `e = 1 / (2k - 2)`, a part's element number
`j` may come once its share is `j + e`, and has to come when it is `j + 1 - e`; of those that may, the one that has
to come soonest does.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headrace._ops.combine import Mixing
from headrace.errors import PipelineError
from headrace.options import check_counts

BLOCK = 1024
"""How many elements are assigned at a time, looking as far ahead again. Positions depend on it."""

Weights = Sequence[float] | Mapping[str, float]


@dataclass(frozen=True)
class WeightSchedule:
    """Weights of an `IterDataset.mix` that change by the step.

    >>> from headrace import IterDataset, MapDataset
    >>> easy, hard = MapDataset.range(100).to_iter_dataset(), MapDataset.range(100, 200).to_iter_dataset()
    >>> schedule = WeightSchedule({0: [1, 0], 4: [1, 1], 8: [1, 3]})
    >>> list(IterDataset.mix([easy, hard], schedule).take(12))
    [0, 1, 2, 3, 4, 100, 5, 101, 102, 6, 103, 104]

    Args:
        weights: The weights of all parts (a sequence, or a mapping from their names) as a function of the step, or
            as a table from the steps at which they change. A weight may be 0.
        elements_per_step: How many elements of the mix make a step, such as the size of a batch.
    """

    weights: Callable[[int], Weights] | Mapping[int, Weights]
    elements_per_step: int = field(default=1, kw_only=True)

    def __post_init__(self):
        check_counts(self, "elements_per_step", least=1)
        if callable(self.weights):
            return
        if not isinstance(self.weights, Mapping) or not all(isinstance(step, int) for step in self.weights):
            raise PipelineError(
                "A WeightSchedule needs a function of the step, or a dict from steps to weights such as "
                f"{{0: [1, 0], 1000: [1, 1]}}; got {self.weights!r}."
            )
        if min(self.weights, default=-1) != 0:
            raise PipelineError(f"The table of a WeightSchedule must begin at step 0; got {sorted(self.weights)}.")

    def shares(self, first: int, stop: int, names: Sequence[str] | int) -> np.ndarray:
        """For elements from `first` to `stop`, the weights of all parts (of these names, or so many), with sum 1."""
        steps = np.arange(first, stop) // self.elements_per_step
        rows, row_of = np.unique(steps if callable(self.weights) else self._changes(steps), return_inverse=True)
        table = np.array([self._row(step, names) for step in rows.tolist()])
        return table[row_of]

    def _changes(self, steps: np.ndarray) -> np.ndarray:
        """The step since which the weights of each step hold."""
        assert isinstance(self.weights, Mapping)
        changes = np.array(sorted(self.weights))
        return changes[np.searchsorted(changes, steps, side="right") - 1]

    def _row(self, step: int, names: Sequence[str] | int) -> np.ndarray:
        weights = self.weights(step) if callable(self.weights) else self.weights[step]
        try:
            if isinstance(weights, Mapping) and not isinstance(names, int) and set(weights) == set(names):
                weights = [weights[name] for name in names]
            row = np.array(weights, np.float64)
        except (TypeError, ValueError):
            row = np.array([np.nan])
        parts = f"{names} parts" if isinstance(names, int) else f"the parts {list(names)}"
        if row.shape != (names if isinstance(names, int) else len(names),):
            raise PipelineError(f"The schedule gives the weights {weights!r} at step {step}, and there are {parts}.")
        if not (row >= 0).all() or not 0 < row.sum() < np.inf:
            raise PipelineError(
                f"Weights must be 0 or more, and one of them positive; at step {step} the schedule gives {weights!r}."
            )
        return row / row.sum()


class Assigned(NamedTuple):
    """A block of elements: the part of each, and the counts and shares of parts before and after."""

    which: np.ndarray
    counts: tuple[int, ...]
    shares: tuple[float, ...]
    next_counts: tuple[int, ...]
    next_shares: tuple[float, ...]


def assign(weights: np.ndarray, counts: tuple[int, ...], shares: tuple[float, ...]) -> Assigned:
    """The parts of `BLOCK` elements, from the weights of these and of those after them."""
    num_parts = len(counts)
    e = 1 / (2 * num_parts - 2) - 1e-9 if num_parts > 1 else 0.0  # or a rounded sum might let no part come
    share = np.cumsum(weights, axis=0) + shares
    may, must, part = [], [], []
    for i, count in enumerate(counts):
        numbers = np.arange(count, int(share[BLOCK - 1, i] - e) + 1)
        may.append(np.searchsorted(share[:, i], numbers + e))
        must.append(_when(share[:, i], numbers + (1 - e), weights[-1, i]))
        part.append(np.full(len(numbers), i))
    which = _soonest_first(np.concatenate(may), np.concatenate(must), np.concatenate(part))
    came = np.bincount(which, minlength=num_parts).tolist()
    following = tuple(map(sum, zip(counts, came, strict=True)))
    return Assigned(which, counts, shares, following, tuple(share[BLOCK - 1].tolist()))


def _when(share: np.ndarray, goals: np.ndarray, last: float) -> np.ndarray:
    """When a share reaches each goal; beyond what is known of it, the last weight stays."""
    steps = np.searchsorted(share, goals).astype(np.float64)
    beyond = steps == len(share)
    if beyond.any():
        steps[beyond] += (goals[beyond] - share[-1]) / last if last else np.inf
    return steps


def _soonest_first(may: np.ndarray, must: np.ndarray, part: np.ndarray) -> np.ndarray:
    order = np.argsort(may, kind="stable")
    jobs = list(zip(must[order].tolist(), part[order].tolist(), strict=True))
    until = np.searchsorted(may[order], np.arange(BLOCK), side="right").tolist()
    which, waiting, seen = np.empty(BLOCK, np.intp), [], 0
    for step in range(BLOCK):
        for job in jobs[seen : until[step]]:
            heapq.heappush(waiting, job)
        seen = until[step]
        which[step] = heapq.heappop(waiting)[1]
    return which


@dataclass(frozen=True, eq=False, repr=False)
class ScheduledMix(Mixing):
    """Elements of several parts in proportions that change by the step."""

    name = "mix"
    state_fields = ("count", "counts", "shares")
    schedule: WeightSchedule
    names: tuple[str, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        self.weights_at(0)
        if not callable(self.schedule.weights):
            for step in self.schedule.weights:
                self.schedule._row(step, self._parts)

    @property
    def _parts(self) -> Sequence[str] | int:
        return self.names or len(self.parts)

    @property
    def start(self) -> tuple[Any, ...]:
        return 0, (0,) * len(self.parts), (0.0,) * len(self.parts)

    def weights_at(self, count: int) -> tuple[float, ...]:
        return tuple(self.schedule.shares(count, count + 1, self._parts)[0].tolist())

    def assigned(self, block: int, counts: tuple[int, ...], shares: tuple[float, ...]) -> Assigned:
        """A block of elements."""
        weights = self.schedule.shares(block * BLOCK, (block + 2) * BLOCK, self._parts)
        return assign(weights, counts, shares)
