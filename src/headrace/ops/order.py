"""Operations that only change the order of elements: they rewrite indices and never touch an element.

`indices(idx)` maps output indices to parent indices, both int64. Here as everywhere, an index past the length
belongs to a later epoch. With `e, i = divmod(idx, n)`, the result is at most `e * n + n - 1`, so int64
overflows only in the last, unfinished epoch before 2**63.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.lanes import Lane
from headrace.ops.op import ENDLESS, Op, Unary, cached_from_parents
from headrace.ops.seeds import check_seed, set_seed
from headrace.options import DatasetOptions, check_counts
from headrace.rng import permutation, shuffled_indices, shuffled_together


def epoch_length(op: Op) -> int:
    """The distance to a parent's next epoch; 0 for an endless one, which has only one epoch and repeats it."""
    n = op.length()
    return 0 if n >= ENDLESS else n


class IndexOp(Unary):
    """An operation that maps indices to parent indices."""

    def indices(self, idx: np.ndarray) -> np.ndarray:
        """The parent indices of output indices."""
        raise NotImplementedError

    @property
    @cached_from_parents
    def gathers_columns(self) -> bool:
        return self.parent.gathers_columns

    def how(self) -> str:
        if self.is_transparent:
            return "no work at run time"
        return "epoch after epoch" if self.is_stream else "indices only, computed in blocks ahead of time"


def by_epoch(idx: np.ndarray, n: int, rewrite: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    """Rewrites indices within their epochs: `rewrite` receives the indices of one epoch, counted from its start."""
    first = int(idx.min()) // n
    last = int(idx.max()) // n
    if first == last:
        return rewrite(idx - first * n, first) + first * n if first else rewrite(idx, 0)
    epochs = idx // n
    out = np.empty_like(idx)
    for epoch in sorted(set(epochs.tolist())):
        here = epochs == epoch
        out[here] = rewrite(idx[here] - epoch * n, epoch) + epoch * n
    return out


@dataclass(frozen=True, eq=False, repr=False)
class Shuffle(IndexOp):
    """All elements in an order that depends on the seed and the epoch."""

    name = "shuffle"
    order_params = ("seed",)
    seed: int | None = None

    def __post_init__(self):
        set_seed(self)

    def epoch_seed(self, epoch: int) -> int:
        """The seed of one epoch's order."""
        assert self.seed is not None
        return (self.seed + epoch) % 2**32

    def indices(self, idx: np.ndarray) -> np.ndarray:
        n = self.length()
        return by_epoch(idx, n, lambda within, epoch: shuffled_indices(within, n - 1, self.epoch_seed(epoch)))

    @staticmethod
    def indices_together(shuffles: "Sequence[Shuffle]", idx: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The parent indices of several shuffles: `counts[i]` indices of each, one's after the other's."""
        of = np.repeat(np.arange(len(counts)), counts)
        lengths, seeds = (np.array(each) for each in zip(*((s.length(), s.seed) for s in shuffles), strict=True))
        epochs, within = np.divmod(idx, lengths[of])
        begins = np.flatnonzero(np.diff(of, prepend=-1) | np.diff(epochs, prepend=0))  # of an epoch of one of them
        first = of[begins]
        sizes = np.diff(begins, append=len(idx))
        shuffled = shuffled_together(within, sizes, lengths[first] - 1, (seeds[first] + epochs[begins]) % 2**32)
        return shuffled + epochs * lengths[of]


@dataclass(frozen=True, eq=False, repr=False)
class WindowShuffle(IndexOp):
    """Elements shuffled within windows; the last window of an epoch may be shorter.

    A stream hands a window out from its end backwards, as Grain does.
    """

    name = "window_shuffle"
    state_fields = ("window", "taken_of_group")
    group_fields = ("taken_of_group",)
    state_limits: ClassVar = {"taken_of_group": "window_size"}
    state_params = ("window_size", "seed")
    only_reorders = True
    window_size: int
    seed: int | None = None

    def __post_init__(self):
        check_counts(self, "window_size", least=1)
        set_seed(self)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], seed=lane.seed(self.seed))

    def how(self) -> str:
        return "ordering point: one window at a time" if self.is_stream else super().how()

    def window_seed(self, window: int) -> int:
        """The seed of one window's order; window numbers continue from epoch to epoch."""
        assert self.seed is not None
        return (self.seed + window) % 2**32

    def window_order(self, window: int, size: int) -> np.ndarray:
        """The order in which the elements of a stream's window come out."""
        seed = self.window_seed(window)
        if size <= 1 << 16:
            return permutation(size, seed)[::-1]
        return shuffled_indices(np.arange(size), size - 1, seed)[::-1]

    def indices(self, idx: np.ndarray) -> np.ndarray:
        n = self.length()
        size = self.window_size
        per_epoch = -(-n // size)
        epochs, within = np.divmod(idx, n)
        windows, offsets = np.divmod(within, size)
        windows += epochs * per_epoch
        out = np.empty_like(idx)
        for window in sorted(set(windows.tolist())):
            here = windows == window
            epoch = window // per_epoch
            start = window % per_epoch * size
            last = min(size, n - start) - 1
            out[here] = shuffled_indices(offsets[here], last, self.window_seed(window)) + (start + epoch * n)
        return out


@dataclass(frozen=True, eq=False, repr=False)
class GroupShuffle(IndexOp):
    """Groups of elements in an order that depends on the seed and the epoch, then shuffled in windows of whole groups.

    A group longer than a window is cut into several windows.
    """

    name = "group_shuffle"
    order_params = ("ends", "window_size", "seed")
    ends: np.ndarray
    window_size: int
    seed: int | None = None

    def __post_init__(self):
        check_counts(self, "window_size", least=1)
        set_seed(self)
        object.__setattr__(self, "_planned", {})

    def indices(self, idx: np.ndarray) -> np.ndarray:
        return by_epoch(idx, self.length(), self._within_epoch)

    def _within_epoch(self, idx: np.ndarray, epoch: int) -> np.ndarray:
        ends, shift, cuts = self._plan(epoch)
        windows = np.searchsorted(cuts, idx, side="right") - 1
        first = windows.min()
        rows = np.empty_like(idx)
        for window in (first + np.flatnonzero(np.bincount(windows - first))).tolist():  # cheaper than `np.unique`
            here = windows == window
            start = cuts[window]
            stop = cuts[window + 1]
            seed = self._seed(epoch, window)
            rows[here] = shuffled_indices(idx[here] - start, int(stop - start) - 1, seed) + start
        return rows + shift[np.searchsorted(ends, rows, side="right")]

    def _seed(self, epoch: int, window: int) -> int:
        assert self.seed is not None
        return (self.seed + epoch * 0x9E3779B1 + window) % 2**32

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where groups end in an epoch's order, how far each one moved, and the windows' bounds."""
        planned: dict[int, Any] = self._planned  # type: ignore[attr-defined]
        found = planned.get(epoch)
        if found is None:
            lengths = np.diff(self.ends, prepend=0)
            order = shuffled_indices(np.arange(len(lengths)), len(lengths) - 1, self._seed(epoch, -1))
            ends = np.cumsum(lengths[order])
            found = ends, self.ends[order] - ends, self._cuts(ends)
            planned.clear()  # one epoch at a time is enough
            planned[epoch] = found
        return found

    def _cuts(self, ends: np.ndarray) -> np.ndarray:
        cuts = [0]
        group = 0
        while group < len(ends):
            begin = cuts[-1]
            start = int(ends[group - 1]) if group else 0
            full = int(np.searchsorted(ends, begin + self.window_size, side="right"))
            if full > group and begin == start:  # whole groups
                cuts.append(int(ends[full - 1]))
            else:  # part of a group, or the rest of it
                cuts.append(min(begin + self.window_size, int(ends[group])))
            group = int(np.searchsorted(ends, cuts[-1], side="right"))
        return np.array(cuts)


@dataclass(frozen=True, eq=False, repr=False)
class Slice(IndexOp):
    """Every `step`-th element from `start` on, `count` of them, from each epoch of the parent."""

    name = "slice"
    order_params = ("start", "step", "count")
    start: int
    step: int
    count: int

    def how(self) -> str:
        return "indices only, kept as a range"

    def length(self) -> int:
        return self.count

    @property
    @cached_from_parents
    def endless(self) -> bool:
        """An open-ended slice of an endless dataset is endless."""
        return self.parent.endless and self.count >= ENDLESS // (2 * abs(self.step))

    def indices(self, idx: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(idx, self.count)
        return within * self.step + self.start + epochs * epoch_length(self.parent)


@dataclass(frozen=True, eq=False, repr=False)
class Pick(IndexOp):
    """The elements at chosen indices."""

    name = "pick"
    order_params = ("chosen",)
    chosen: np.ndarray

    def length(self) -> int:
        return len(self.chosen)

    @property
    def endless(self) -> bool:
        return False

    def indices(self, idx: np.ndarray) -> np.ndarray:
        epochs, within = np.divmod(idx, len(self.chosen))
        return self.chosen[within] + epochs * epoch_length(self.parent)


@dataclass(frozen=True, eq=False, repr=False)
class Repeat(IndexOp):
    """Epoch after epoch; all epochs are alike in a stream, and without `reseed_each_epoch`."""

    name = "repeat"
    state_fields = ("epoch",)
    group_fields = ()
    only_reorders = True
    order_params = ("reseed_each_epoch",)  # not `num_epochs`: a state stays valid when there are more epochs
    num_epochs: int | None = None
    reseed_each_epoch: bool = field(default=True, kw_only=True)

    def __post_init__(self):
        if self.num_epochs is not None:
            check_counts(self, "num_epochs", least=1)
        if self.parent.endless:
            raise PipelineError(
                f"`repeat` after an endless dataset does nothing: {self.parent.label()} never ends. Remove "
                "one of the two."
            )

    @cached_from_parents
    def length(self) -> int:
        n = self.parent.length()
        if n == 0:
            return 0
        return ENDLESS if self.num_epochs is None else min(n * self.num_epochs, ENDLESS)

    @property
    def endless(self) -> bool:
        if self.num_epochs is not None:
            return False
        return self.is_stream or self.parent.length() > 0

    def indices(self, idx: np.ndarray) -> np.ndarray:
        return idx if self.reseed_each_epoch else idx % self.parent.length()


@dataclass(frozen=True, eq=False, repr=False)
class Seed(IndexOp):
    """Does nothing to elements; random operations after it derive their seeds from it."""

    name = "seed"
    is_transparent = only_reorders = True
    seed: int

    def __post_init__(self):
        object.__setattr__(self, "seed", check_seed(self.seed, op="seed", bits=None))

    @property
    def seeds_what_follows(self) -> int:
        return self.seed

    def indices(self, idx: np.ndarray) -> np.ndarray:
        return idx


@dataclass(frozen=True, eq=False, repr=False)
class Options(IndexOp):
    """Does nothing to elements; sets options of the whole pipeline."""

    name = "options"
    is_transparent = only_reorders = True
    options: DatasetOptions

    def indices(self, idx: np.ndarray) -> np.ndarray:
        return idx


def gather_options(op: Op) -> DatasetOptions:
    """The options of a pipeline; where several set the same option, the one nearest the consumer wins."""
    merged = DatasetOptions()
    level: list[Any] = [op]
    while level:
        for each in level:
            if isinstance(each, Options):
                merged = merged.merge(each.options)
        level = [parent for each in level for parent in each.parents]
    return merged
