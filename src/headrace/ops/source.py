"""Where elements come from: sources and user-defined datasets."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.errors import PipelineError, SpecError
from headrace.ops.lanes import Lane
from headrace.ops.op import ENDLESS, Op, ProcessLocal, describe
from headrace.ops.seeds import check_seed
from headrace.ops.state_fields import Fields, count


@dataclass(frozen=True, eq=False, repr=False)
class Source(Op):
    """Items of a source by index; an index past the length belongs to a later epoch."""

    name = "source"
    source: Any
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    @cached_property
    def _length(self) -> int:
        return len(self.source)

    def length(self) -> int:
        return self._length

    @property
    def gathers_columns(self) -> bool:
        return hasattr(self.source, "__getcolumns__") or hasattr(self.source, "__getbatch__")

    def how(self) -> str:
        if isinstance(getattr(self.source, "range", None), range):
            return "ints"
        if hasattr(self.source, "__getcolumns__"):
            return "columns, gathered by index"
        return "rows, read in blocks" if hasattr(self.source, "__getitems__") else "rows, one call per element"

    def identity(self) -> dict[str, Any]:
        return {"length": self.length()}

    def spec(self) -> Any:
        spec = getattr(self.source, "element_spec", None)
        if spec is None:
            kind = type(self.source)
            hint = f"Give {kind.__name__} an attribute `element_spec`."
            if hasattr(kind, "element_spec"):
                hint = (
                    "Not all of its values are numbers, or arrays of one rank: give a `map` after it an `output_spec`."
                )
            raise SpecError(f"The element spec of {self.label()} cannot be known without reading data. {hint}")
        return spec


@dataclass(frozen=True, eq=False, repr=False)
class SeededSource(Source):
    """Items of a source that draws random numbers from the generators of the whole process.

    They are seeded for each item, from the seed and the item's index, which counts on in later epochs.
    """

    seed: int = field(kw_only=True)

    def __post_init__(self):
        object.__setattr__(self, "seed", check_seed(self.seed, op=self.name))
        if self.gathers_columns:
            raise PipelineError(
                "seed_globals=True is for sources whose `__getitem__` draws random numbers, but "
                f"{type(self.source).__name__} is read in columns and draws none. Remove it."
            )

    @property
    def draws_from_globals(self) -> bool:
        return True

    def how(self) -> str:
        return "rows, one seeded call per element"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "seed": self.seed}


@dataclass(frozen=True, eq=False, repr=False)
class UserDataset(Op):
    """A user-defined dataset: random access or a stream, depending on its class."""

    name = "user_dataset"
    state_fields = ("state", "replay")
    hides_parents = True
    optional_fields = ("state",)
    dataset: Any
    stream: bool
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    @property
    def parents(self) -> tuple[Op, ...]:
        return tuple(parent._op for parent in self.dataset.parents)

    @property
    def is_stream(self) -> bool:
        return self.stream

    @property
    def state_is_global(self) -> bool:
        return getattr(self.dataset, "_state_is_global", False)

    @property
    def rows(self) -> Any:
        """The rows of global batches that its elements have, if they have."""
        return getattr(self.dataset, "global_rows", None)

    @property
    def lanes(self) -> int:
        return getattr(self.dataset, "num_lanes", 1) if self.stream else 1

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        shard = getattr(self.dataset, "shard", None)
        if shard is None:
            raise PipelineError(
                f"{self.label()} (pipeline at {self.site}) has num_lanes={self.lanes}, but no method `shard(index, "
                "count)` that returns the dataset of one of them. Define it, or read in one lane."
            )
        return shard(lane.index, lane.count)._op

    def first_position(self, parts: tuple[Any, ...]) -> tuple[None, int]:
        return None, 0

    def write_numbers(self, position: tuple[Any, ...]) -> Fields:
        state, replay = position
        return {"replay": replay} if state is None else {"state": state, "replay": replay}

    def read_numbers(self, fields: Fields) -> tuple[Any, ...]:
        return _with_ints(fields.get("state")), count(self, "replay", fields["replay"])

    def how(self) -> str:
        return getattr(type(self.dataset), "_how", "user-defined, one call per element")

    def length(self) -> int:
        return len(self.dataset)

    def identity(self) -> dict[str, Any]:
        return {} if self.stream else {"length": self.length()}

    @property
    def endless(self) -> bool:
        return not self.stream and len(self.dataset) >= ENDLESS

    @property
    def is_sparse(self) -> bool:
        return False

    def spec(self) -> Any:
        spec = type(self.dataset).__dict__.get("element_spec")
        if spec is None:
            raise SpecError(
                f"The element spec of {type(self.dataset).__name__} cannot be known without reading data. "
                "Give the class a property `element_spec`."
            )
        return self.dataset.element_spec

    def label(self) -> str:
        kind = type(self.dataset)
        paths = getattr(self.dataset, "_paths", None)
        if paths and kind.__module__.startswith("headrace.sources."):
            from headrace.storage.files import shown_paths  # few programs need it

            return f"{describe(kind)}({shown_paths(paths)})"
        return getattr(self.dataset, "_label", None) or describe(kind)


def _with_ints(state: Any) -> Any:
    """The state of a user's iterator with plain ints, as it was before hosts gathered it."""
    if isinstance(state, dict):
        return {name: _with_ints(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_with_ints(value) for value in state]
    is_gathered = getattr(state, "shape", None) == () and state.dtype.kind in "iu"
    return int(state) if is_gathered else state
