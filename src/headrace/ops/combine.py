"""Operations on several parents.

`route(idx)` says for each output index which part the element comes from, and its index there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from headrace.errors import PipelineError, StateError
from headrace.errors.signals import let_through
from headrace.ops.lanes import Lane, check_same_lanes
from headrace.ops.op import ENDLESS, Op, ProcessLocal, cached_from_parents
from headrace.ops.order import Slice
from headrace.ops.proportions import Shares
from headrace.ops.state_fields import Fields, PartStates, count, ints, plain
from headrace.options import check_counts


@dataclass(frozen=True, eq=False, repr=False)
class Nary(Op):
    """An operation on several parents."""

    parts: tuple[Op, ...]

    def __post_init__(self):
        if not self.parts:
            raise PipelineError(f"`{self.name}` needs at least one dataset; got none.")
        check_same_lanes(self)

    @property
    def parents(self) -> tuple[Op, ...]:
        return self.parts

    def with_parts(self, parts: tuple[Op, ...]) -> Op:
        return replace(self, parts=parts)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return self.with_parts(parents)

    parts_field = "parents"

    def named_parts(self) -> dict[str, Op]:
        return {str(i): part for i, part in enumerate(self.parts)}

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        return {"parents": [states.encode(part, at) for part, at in zip(self.parts, positions, strict=True)]}

    def how(self) -> str:
        return "ordering point: takes parts in turn" if self.is_stream else "routes indices to parts"

    @cached_from_parents
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

    @cached_property
    def due_parts(self) -> tuple[int, ...]:
        """The parts that can be due: those that have a weight other than 0 at some time."""
        raise NotImplementedError

    @property
    @cached_from_parents
    def endless(self) -> bool:
        return all(self.parts[i].endless for i in self.due_parts)

    @cached_from_parents
    def spec(self) -> Any:
        return self.parts[self.due_parts[0]].spec()

    def named_parts(self) -> dict[str, Op]:
        return dict(zip(self.names, self.parts, strict=True)) if self.names else super().named_parts()

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        fields = super().write_parts(positions, states)
        if self.names:
            fields["parents"] = dict(zip(self.names, fields["parents"], strict=True))
        return fields

    def read_parts(self, fields: Fields, states: PartStates) -> tuple[Any, ...]:
        """The positions of the parts: new ones start at their beginning, those that are gone are dropped."""
        parents: Any = fields["parents"]
        known = list(parents) if isinstance(parents, dict) else len(parents)
        same_parts = known == (list(self.names) if self.names else len(self.parts))
        self._check_mix(fields, known, same_parts=same_parts, reread=states.reread)
        if isinstance(parents, dict) != (self.names is not None):
            kinds = ("named", "numbered") if isinstance(parents, dict) else ("numbered", "named")
            raise StateError(
                f"The state is from a mix of {kinds[0]} datasets, but {self.label()} has {kinds[1]} ones. "
                "Restore the pipeline as it was."
            )
        if self.names is None:
            parents = dict(enumerate(parents))
        return tuple(
            states.decode(part, parents[name]) if name in parents else None
            for part, name in zip(self.parts, self.names or range(len(self.parts)), strict=True)
        )

    def _check_mix(self, fields: Fields, known: Any, *, same_parts: bool, reread: bool) -> None:
        """Raises unless the mix can resume from a state whose parts are `known`."""
        raise NotImplementedError

    def changed_too_early_error(self) -> StateError:
        """The error where parts or weights have changed in the middle of a group of a later operation."""
        return StateError(
            f"The parts or weights of {self.label()} (pipeline at {self.site}) differ from those in the state, and a "
            "later operation is in the middle of a window or batch. Change them at a state where no window or batch "
            "is open, or move that operation before the mix."
        )


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
            if not weight >= 0 or weight == float("inf"):
                part = f"weight {i}" if self.names is None else f"the weight of {self.names[i]!r}"
                raise PipelineError(f"Weights of a `mix` must be 0 or more, and finite; {part} is {weight!r}.")
        if not any(self.weights):
            given = list(self.weights) if self.names is None else dict(zip(self.names, self.weights, strict=True))
            raise PipelineError(
                f"All weights of a `mix` are 0, so it would have no elements: {given}. Give at least one dataset a "
                "positive weight."
            )
        self._check_parts()

    @cached_property
    def due_parts(self) -> tuple[int, ...]:
        assert isinstance(self.weights, tuple)
        return tuple(i for i, weight in enumerate(self.weights) if weight)

    def _check_parts(self) -> None:
        empty = [] if self.is_stream else [i for i in self.due_parts if not self.parts[i].length()]
        if empty:
            part = self.parts[empty[0]]
            raise PipelineError(
                f"`mix` needs datasets that have elements; dataset {empty[0]}, {part.label()} (pipeline at "
                f"{part.site}), is empty. Remove it."
            )

    def _in_order(self, weights: Sequence[float] | Mapping[str, float] | None) -> tuple[float, ...]:
        """The weights in the order of the parts."""
        if weights is None:
            return (1,) * len(self.parts)
        if not isinstance(weights, Mapping):
            return tuple(weights)
        if self.names is None:
            raise PipelineError(
                f"`mix` has a list of datasets, so its weights must be a list in the same order; got {dict(weights)}."
            )
        if set(weights) != set(self.names):
            raise PipelineError(
                f"`mix` has datasets {list(self.names)} but weights for {sorted(weights)}. Give each dataset "
                "one weight."
            )
        return tuple(weights[name] for name in self.names)

    def identity(self) -> dict[str, Any]:
        return {"proportion": self.proportions}

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        return {"weights": ints(self.proportions), **super().write_parts(positions, states)}

    def _check_mix(self, fields: Fields, known: Any, *, same_parts: bool, reread: bool) -> None:
        saved = fields.get("weights")  # proportions, or in older states what users gave
        if reread and not (same_parts and saved in (ints(self.proportions), plain(self.weights))):
            raise self.changed_too_early_error()

    @cached_property
    def proportions(self) -> tuple[int, ...]:
        """The weights as ints: hundredths of the smallest that is not 0."""
        assert isinstance(self.weights, tuple)
        least = min(self.weights[i] for i in self.due_parts)
        return tuple(int(weight * 100 / least) for weight in self.weights)

    @cached_property
    def shares(self) -> Shares:
        """Which part each output comes from."""
        return Shares(self.proportions)

    @cached_from_parents
    def length(self) -> int:
        total = sum(self.proportions)
        shortest = min(self.parts[i].length() / (self.proportions[i] / total) for i in self.due_parts)
        return min(int(shortest), ENDLESS)

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
            raise PipelineError(
                "`concatenate` got an endless dataset, so it would never reach those after it. Limit it with `take`."
            )
        return np.cumsum(lengths)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    @cached_from_parents
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
    order_functions = ("selection_map",)
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
        except IndexError as e:
            let_through(e)
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
                f"`zip` needs datasets of one length; got {lengths}. Shorten them with `take`, or pass strict=False."
            )

    def read_parts(self, fields: Fields, states: PartStates) -> tuple[Any, ...]:
        if len(fields["parents"]) != len(self.parts):
            raise StateError(
                f"The state is from a zip of {len(fields['parents'])} datasets, but {self.label()} has "
                f"{len(self.parts)}. Restore the pipeline as it was."
            )
        return tuple(states.decode(part, state) for part, state in zip(self.parts, fields["parents"], strict=True))

    @cached_from_parents
    def length(self) -> int:
        return min(part.length() for part in self.parts)

    @property
    @cached_from_parents
    def endless(self) -> bool:
        return all(part.endless for part in self.parts)

    @cached_from_parents
    def spec(self) -> Any:
        return tuple(part.spec() for part in self.parts)


NOT_OPEN = {"dataset": -1}


@dataclass(frozen=True, eq=False, repr=False)
class Interleave(Op):
    """Elements of `cycle_length` datasets in turn; when one ends, the next that has not begun takes its place.

    `datasets` is a sequence of operations, or one random-access operation whose elements are datasets.
    """

    name = "interleave"
    state_fields = ("slot", "next_dataset")
    state_params = ("cycle_length",)
    state_limits: ClassVar = {"slot": "last_slot"}
    parts_field = "open"
    maps_move_into_parts = True
    hides_seeds = True
    datasets: "Sequence[Op] | Op" = field(repr=False)
    cycle_length: int
    num_lanes: int = 1
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    def __post_init__(self):
        check_counts(self, "cycle_length", least=1)
        check_counts(self, "num_lanes", least=1)
        if not isinstance(self.datasets, Op) and not self.datasets:
            raise PipelineError("`interleave` needs at least one dataset; got none.")
        check_same_lanes(self)
        if self.num_lanes > 1:
            self._check_lanes()

    def _check_lanes(self) -> None:
        """Raises unless its datasets can be dealt out to its lanes."""
        inner = max((part.lanes for part in self.parents), default=1)
        if inner > 1:
            raise PipelineError(
                f"`interleave` has num_lanes={self.num_lanes}, and its datasets have {inner} lanes each. Split either "
                "the list of datasets or each dataset into lanes, not both."
            )
        if self.num_datasets < self.num_lanes:
            raise PipelineError(
                f"`interleave` has {self.num_datasets} datasets for num_lanes={self.num_lanes}, and each lane needs "
                "at least one. Use fewer lanes."
            )

    @property
    @cached_from_parents
    def lanes(self) -> int:
        return max(self.num_lanes, *(part.lanes for part in self.parents))

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        if self.num_lanes == 1:
            return self.with_parts(parents)
        if isinstance(self.datasets, Op):
            mine: Any = Slice(self.datasets, lane.index, lane.count, lane.below(self.num_datasets), site=self.site)
        else:
            mine = tuple(self.datasets[lane.index :: lane.count])
        return replace(self, datasets=mine, num_lanes=1, kept=ProcessLocal())

    def identity(self) -> dict[str, Any]:
        cut = {"num_lanes": self.num_lanes} if self.num_lanes > 1 else {}
        return {"cycle_length": self.cycle_length} | cut

    @property
    def parents(self) -> tuple[Op, ...]:
        return (self.datasets,) if isinstance(self.datasets, Op) else tuple(self.datasets)

    @property
    def is_stream(self) -> bool:
        return True

    def first_position(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return 0, 0, (None,) * self.cycle_length

    def with_parts(self, parts: tuple[Op, ...]) -> Op:
        return replace(self, datasets=parts, kept=ProcessLocal())

    def named_parts(self) -> dict[str, Op] | None:
        return None if isinstance(self.datasets, Op) else {str(i): part for i, part in enumerate(self.datasets)}

    def part_positions(self, positions: Any) -> dict[str, Any]:
        return {str(slot[0]): slot[1] for slot in positions if slot is not None}

    def write_parts(self, positions: Any, states: PartStates) -> Fields:
        return {"open": [self._write_slot(slot, states) for slot in positions]}

    def read_parts(self, fields: Fields, states: PartStates) -> tuple[Any, ...]:
        if len(fields["open"]) != self.cycle_length:
            raise StateError(
                f"The state was saved with cycle_length={len(fields['open'])}, but {self.label()} has "
                f"{self.cycle_length}. Restore the pipeline as it was."
            )
        slots = tuple(self._read_slot(slot, states) for slot in fields["open"])
        if fields["next_dataset"] > self.num_datasets:
            raise StateError(
                f"The state continues with dataset {fields['next_dataset']}, but {self.label()} has only "
                f"{self.num_datasets}. Restore the list of datasets as it was."
            )
        return slots

    def _write_slot(self, slot: Any, states: PartStates) -> Fields:
        if slot is None:
            return dict(NOT_OPEN)
        number, position = slot
        return {"dataset": number, "state": states.encode(states.made(self, number), position)}

    def _read_slot(self, slot: Any, states: PartStates) -> Any:
        if slot is None or slot == NOT_OPEN:
            return None
        number = count(self, "dataset", slot["dataset"])
        if number >= self.num_datasets:
            raise StateError(
                f"The state has dataset {number} open, but {self.label()} (pipeline at {self.site}) has only "
                f"{self.num_datasets} datasets. Restore the list of datasets as it was."
            )
        return number, states.decode(states.made(self, number), slot["state"])

    def how(self) -> str:
        return "ordering point: takes datasets in turn"

    @property
    def last_slot(self) -> int:
        return self.cycle_length - 1

    @property
    def num_datasets(self) -> int:
        return self.datasets.length() if isinstance(self.datasets, Op) else len(self.datasets)

    @property
    @cached_from_parents
    def endless(self) -> bool:
        """In lanes, each needs its own endless dataset."""
        if isinstance(self.datasets, Op):
            return False
        dealt = (self.datasets[lane :: self.num_lanes] for lane in range(self.num_lanes))
        return all(any(op.endless for op in mine) for mine in dealt)

    def spec(self) -> Any:
        return self.parents[0].spec() if not isinstance(self.datasets, Op) else super().spec()
