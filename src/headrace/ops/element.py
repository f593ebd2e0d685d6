"""Operations on single elements: maps, filters and flat maps.

Maps leave `None` as it is, whether it stands for a missing element or is an element of a stream.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from headrace.errors import PipelineError, SpecError
from headrace.ops.lanes import WHOLE, Lane
from headrace.ops.op import ENDLESS, Op, Unary, cached_from_parents, describe, method_or_function
from headrace.ops.seeds import set_seed


@dataclass(frozen=True, eq=False, repr=False)
class Transformed(Unary):
    """An operation that calls a user's transform on each element: a function, or an object with this `method`."""

    is_elementwise = is_guarded = True
    method: ClassVar[str]
    transform: Any

    def __post_init__(self):
        method_or_function(self.transform, self.method, op=self.method)

    @property
    def fn(self) -> Callable[..., Any]:
        return method_or_function(self.transform, self.method, op=self.method)

    @property
    def draws_from_globals(self) -> bool:
        return getattr(self.transform, "_draws_from_globals", False) is True

    def how(self) -> str:
        return "one call per element"

    @partial(cached_from_parents, when=lambda op: getattr(op.transform, "output_spec", None) is not None)
    def spec(self) -> Any:
        output_spec = getattr(self.transform, "output_spec", None)
        if output_spec is None:
            raise SpecError(
                f"The element spec after {self.label()} cannot be known without reading data. Give its "
                "transform a method `output_spec(input_spec)` that returns the spec; for a function, set it "
                "as an attribute."
            )
        return output_spec(self.parent.spec())


@dataclass(frozen=True, eq=False, repr=False)
class MapOp(Transformed):
    """`transform(element)`; with `batched`, a function of columns that treats each row on its own."""

    name = method = "map"
    skips_none: ClassVar[bool] = True
    batched: bool = False

    def __post_init__(self):
        method_or_function(self.transform, "map_batch" if self.batched else self.method, op=self.method)

    @property
    def batch_fn(self) -> Callable[[Any], Any] | None:
        """The function of columns, if there is one."""
        if self.batched:
            return method_or_function(self.transform, "map_batch", op="map")
        return getattr(self.transform, "map_batch", None)

    @property
    def rows_fn(self) -> Callable[[list[Any]], list[Any]] | None:
        """The function of a list of elements, if there is one besides the function of one element."""
        rows_fn = None if self.batched else getattr(self.transform, "map_rows", None)
        return rows_fn if rows_fn is not None and self.fn == getattr(self.transform, "map", None) else None

    def how(self) -> str:
        if self.batched:
            return "columns, one call per block"
        if self.batch_fn is not None:
            return "one call per block of columns, or per element"
        return super().how() if self.rows_fn is None else "one call per block"


@dataclass(frozen=True, eq=False, repr=False)
class RecordMap(MapOp):
    """A `DataLoader`'s map: it also maps records whose data is `None`."""

    skips_none = False


@dataclass(frozen=True, eq=False, repr=False)
class PlacedMap(RecordMap):
    """`transform(place, element)` in a stream; the place is the element's index in the random-access chain below.

    Only maps and filters may stand in between: what a filter drops does not change the places of the rest.
    """

    method = "map_with_index"

    @property
    def batch_fn(self) -> None:
        return None

    def label(self) -> str:
        return describe(self.transform)


@dataclass(frozen=True, eq=False, repr=False)
class MapWithIndexOp(Transformed):
    """`transform(index, element)`, with the index in a random-access chain, or the count so far in a stream."""

    name = method = "map_with_index"
    state_fields = ("count",)
    counts_elements = True
    lane: Lane = field(default=WHOLE, repr=False, kw_only=True)

    def identity(self) -> None:
        return None

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], lane=lane)


@dataclass(frozen=True, eq=False, repr=False)
class RandomMapOp(Transformed):
    """`transform(element, rng)`, with a generator that depends on the seed and the index or count only."""

    name = method = "random_map"
    state_fields = ("count",)
    counts_elements = True
    state_params = ("seed",)
    seed: int | None = None
    lane: Lane = field(default=WHOLE, repr=False, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        set_seed(self, bits=None)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], lane=lane)

    def how(self) -> str:
        counts = "; ordering point: counts elements" if self.is_stream else ""
        return f"one call per element, each with its own random numbers{counts}"


@dataclass(frozen=True, eq=False, repr=False)
class FilterOp(Transformed):
    """Elements for which `transform(element)` is true; the others are missing, and a stream skips them."""

    name = method = "filter"
    order_functions = ("transform",)
    keeps_count = False
    spec = Unary.spec

    def identity(self) -> dict[str, Any] | None:
        return {} if self.is_stream else None  # with random access, elements keep their indices

    @property
    def is_sparse(self) -> bool:
        return True

    def how(self) -> str:
        return f"one call per element, {'skips' if self.is_stream else 'leaves None for'} the others"


@dataclass(frozen=True, eq=False, repr=False)
class FlatMapOp(Transformed):
    """The children that `transform(element)` returns; in a random-access chain, at most `max_fan_out`."""

    name = method = "flat_map"
    state_fields = group_fields = ("taken_of_group",)
    counts_elements = True  # among an element's children, the parent's position is before the element
    keeps_count = False
    order_params = ("max_fan_out",)
    order_functions = ("transform",)
    max_fan_out: int | None = None

    def __post_init__(self):
        super().__post_init__()
        fan_out = self.max_fan_out
        if fan_out is None:
            fan_out = getattr(self.transform, "max_fan_out", None)
            object.__setattr__(self, "max_fan_out", fan_out)
        if self.is_stream:
            return
        if not isinstance(fan_out, int) or fan_out < 1:
            raise PipelineError(
                "`flat_map` on a MapDataset needs `max_fan_out`, the most children that an element can have, as a "
                f"positive int; got {fan_out!r}. An IterDataset does not need it."
            )

    @cached_from_parents
    def length(self) -> int:
        assert self.max_fan_out is not None
        return min(self.parent.length() * self.max_fan_out, ENDLESS)

    @property
    def is_sparse(self) -> bool:
        return True

    def advanced(self, numbers: tuple[Any, ...], inputs: int) -> tuple[Any, ...]:
        return (0,)

    @property
    def children(self) -> Callable[[Any], list[Any]]:
        """The function from an element to its children, which checks the fan-out."""
        fn = self.fn
        most = None if self.is_stream else self.max_fan_out

        def children(element: Any) -> list[Any]:
            found = list(fn(element))
            if most is not None and len(found) > most:
                raise PipelineError(
                    f"{describe(self.transform)} split an element into {len(found)} children, more than "
                    f"max_fan_out={most}. Raise it, or flat_map after `to_iter_dataset()`."
                )
            return found

        return children
