"""Operations on several parents.

`route(idx)` says for each output index which part the element comes from, and its index there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headrace._ops.base import ENDLESS, Kept, Op, from_parents
from headrace._ops.proportions import Shares
from headrace.errors import PipelineError
from headrace.options import check_counts


@dataclass(frozen=True, eq=False, repr=False)
class Nary(Op):
    """An operation on several parents."""

    parts: tuple[Op, ...]

    def __post_init__(self):
        if not self.parts:
            raise PipelineError(f"`{self.name}` needs at least one dataset; got none.")

    @property
    def parents(self) -> tuple[Op, ...]:
        return self.parts

    def with_parts(self, parts: tuple[Op, ...]) -> Op:
        return replace(self, parts=parts)

    def how(self) -> str:
        return "ordering point: takes parts in turn" if self.is_stream else "routes indices to parts"

    @from_parents
    def spec(self) -> Any:
        return self.parts[0].spec()


class RouteOp(Nary):
    """An operation each of whose elements is an element of one part."""

    keeps_part_order = True  # consecutive outputs take consecutive elements of each part

    def route(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part of each output index, and the index there."""
        raise NotImplementedError


class Mixing(Nary):
    """Elements of several parts in proportion to weights; as a stream, it ends when the part due next has ended."""

    maps_move_into_parts = True
    names: tuple[str, ...] | None


@dataclass(frozen=True, eq=False, repr=False)
class Mix(RouteOp, Mixing):
    """Elements of several parts in fixed proportions, spread evenly."""

    name = "mix"
    state_fields = ("count",)
    weights: Sequence[float] | Mapping[str, float] | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "weights", self._in_order(self.weights))
        assert isinstance(self.weights, tuple)
        if len(self.weights) != len(self.parts):
            raise PipelineError(
                f"`mix` needs one weight for each dataset; got {len(self.weights)} for {len(self.parts)}."
            )
        for i, weight in enumerate(self.weights):
            if not weight > 0 or weight == float("inf"):
                raise PipelineError(
                    f"Weights of a `mix` must be positive; weight {i} is {weight!r}. Leave out a dataset that "
                    "you do not want."
                )
        self._check_parts()

    def _check_parts(self) -> None:
        empty = [] if self.is_stream else [i for i, part in enumerate(self.parts) if not part.length()]
        if empty:
            part = self.parts[empty[0]]
            raise PipelineError(
                f"`mix` needs datasets that have elements; dataset {empty[0]}, {part.label()} (pipeline at "
                f"{part.site}), is empty. Leave it out."
            )

    def _in_order(self, weights: Sequence[float] | Mapping[str, float] | None) -> tuple[float, ...]:
        """The weights in the order of the parts."""
        if weights is None:
            return (1,) * len(self.parts)
        if not isinstance(weights, Mapping):
            return tuple(weights)
        if self.names is None or set(weights) != set(self.names):
            raise PipelineError(f"`mix` has datasets {list(self.names or ())} but weights for {sorted(weights)}.")
        return tuple(weights[name] for name in self.names)

    def identity(self) -> dict[str, Any]:
        return {"proportion": self.proportions}

    @cached_property
    def proportions(self) -> tuple[int, ...]:
        """The weights as ints: hundredths of the smallest."""
        assert isinstance(self.weights, tuple)
        least = min(self.weights)
        return tuple(int(weight * 100 / least) for weight in self.weights)

    @cached_property
    def shares(self) -> Shares:
        """Which part each output comes from."""
        return Shares(self.proportions)

    @from_parents
    def length(self) -> int:
        total = sum(self.proportions)
        shortest = min(part.length() / (p / total) for part, p in zip(self.parts, self.proportions, strict=True))
        return min(int(shortest), ENDLESS)

    @property
    @from_parents
    def endless(self) -> bool:
        return all(part.endless for part in self.parts)

    def route(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.shares(idx)


@dataclass(frozen=True, eq=False, repr=False)
class Concatenate(RouteOp):
    """One part after the other."""

    name = "concatenate"
    order_params = ()

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each part ends in the whole."""
        lengths = [part.length() for part in self.parts]
        if sum(lengths) > ENDLESS:
            raise PipelineError("`concatenate` got an endless dataset: those after it would never be reached.")
        return np.cumsum(lengths)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    @from_parents
    def length(self) -> int:
        return int(self.ends[-1])

    def route(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        epochs, within = np.divmod(idx, self.length())
        which = np.searchsorted(self.ends, within, side="right")
        lengths = self._lengths[which]
        return which, within - (self.ends[which] - lengths) + epochs * lengths


@dataclass(frozen=True, eq=False, repr=False)
class Select(RouteOp):
    """Elements that a selection map chooses."""

    name = "select_from_datasets"
    keeps_part_order = False
    selection_map: Any

    def identity(self) -> dict[str, Any]:
        return {"length": self.length()}

    def length(self) -> int:
        return len(self.selection_map)

    @property
    def endless(self) -> bool:
        return False

    def route(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = [self._select(i) for i in idx.tolist()]
        return np.array([part for part, _ in pairs], np.intp), np.array([index for _, index in pairs], np.int64)

    def _select(self, i: int) -> tuple[int, int]:
        """The map's choice. If the map covers only one epoch, later epochs repeat it, an epoch further in each part."""
        epoch, place = divmod(i, self.length())
        try:
            part, index = self.selection_map[i]
            later = 0
        except IndexError:
            if epoch == 0:
                raise
            part, index = self.selection_map[place]
            later = epoch
        if not 0 <= part < len(self.parts):
            raise PipelineError(
                f"The selection map names dataset {part} at index {i}; there are {len(self.parts)} datasets."
            )
        if not self.parts[part].length():
            raise PipelineError(f"The selection map names dataset {part} at index {i}, which is empty.")
        return part, index + later * self.parts[part].length()


@dataclass(frozen=True, eq=False, repr=False)
class Zip(Nary):
    """Tuples of one element from each part."""

    name = "zip"
    state_fields = ()
    strict: bool = field(default=True, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.is_stream or not self.strict:
            return
        lengths = [part.length() for part in self.parts]
        if len(set(lengths)) > 1:
            raise PipelineError(
                f"`zip` needs datasets of one length; got {lengths}. Cut them with `take`, or give strict=False."
            )

    @from_parents
    def length(self) -> int:
        return min(part.length() for part in self.parts)

    @property
    @from_parents
    def endless(self) -> bool:
        return all(part.endless for part in self.parts)

    @from_parents
    def spec(self) -> Any:
        return tuple(part.spec() for part in self.parts)


@dataclass(frozen=True, eq=False, repr=False)
class Interleave(Op):
    """Elements of `cycle_length` datasets in turn; when one ends, the next that has not begun takes its place.

    `datasets` is a sequence of operations, or one random-access operation whose elements are datasets.
    """

    name = "interleave"
    state_fields = ("slot", "next_dataset")
    state_params = ("cycle_length",)
    maps_move_into_parts = True
    hides_seeds = True
    datasets: "Sequence[Op] | Op" = field(repr=False)
    cycle_length: int
    kept: Kept = field(default_factory=Kept, repr=False)

    def __post_init__(self):
        check_counts(self, "cycle_length", least=1)
        if not isinstance(self.datasets, Op) and not self.datasets:
            raise PipelineError("`interleave` needs at least one dataset; got none.")

    @property
    def parents(self) -> tuple[Op, ...]:
        return (self.datasets,) if isinstance(self.datasets, Op) else tuple(self.datasets)

    @property
    def is_stream(self) -> bool:
        return True

    def first_position(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return 0, 0, (None,) * self.cycle_length

    def with_parts(self, parts: tuple[Op, ...]) -> Op:
        return replace(self, datasets=parts, kept=Kept())

    def how(self) -> str:
        return "ordering point: takes datasets in turn"

    @property
    def last_slot(self) -> int:
        return self.cycle_length - 1

    @property
    def num_datasets(self) -> int:
        return self.datasets.length() if isinstance(self.datasets, Op) else len(self.datasets)

    @property
    @from_parents
    def endless(self) -> bool:
        return not isinstance(self.datasets, Op) and any(op.endless for op in self.datasets)

    def spec(self) -> Any:
        return self.parents[0].spec() if not isinstance(self.datasets, Op) else super().spec()
