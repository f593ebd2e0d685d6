"""A stream cut into stages that any worker may compute, at the points that need the order.

What stands before an `mp_prefetch` is first rewritten by rules that change no value (`ready_for_workers`), and then
cut. A stage is a chain of element operations on a *base*:

- `IndexStage`: the base is a random-access chain. A chunk is a range of its indices.
- `BlockStage`: the base is an ordering point, computed in the consumer. A chunk is a block of its outputs.
- `LaneStage`: a stream without random access, or a part of several such. One worker computes all of it.

Inside a stage nothing may need the number of elements that came before, unless it follows from the number of
inputs: a `random_map` behind a `filter` starts a stage of its own, and a `batch` there belongs to the consumer.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import Limit, MpPrefetch, Prefetch, ToStream
from headrace._ops.combine import Interleave, Mixing, RouteOp, Zip
from headrace._ops.element import Filter, FlatMap, Map, MapWithIndex, RandomMap
from headrace._ops.group import Batch, BufferShuffle
from headrace._ops.order import IndexOp, Options, Repeat, Seed, WindowShuffle
from headrace._ops.source import Source, UserDataset
from headrace._plan.streams.base import Position
from headrace._plan.streams.combine import interleaved_part
from headrace.options import AUTOTUNE

Path = tuple[int, ...]
TRANSPARENT = Seed | Options | Prefetch | MpPrefetch
COUNTED = MapWithIndex | RandomMap
ELEMENT = Map | Filter | FlatMap | COUNTED


# ------------------------------------------------------------------------------------------------- rules


class BatchFunction(Map):
    """The function of a `batch`, as a map over lists of its elements."""

    @property
    def batch_fn(self) -> None:
        return None

    @property
    def fn(self) -> Callable[[Any], Any]:
        return self.transform

    def label(self) -> str:
        return dataclasses.replace(self.parent, batch_fn=self.transform).label()


def a_batch_function_is_a_map_of_lists(op: Op) -> Op:
    """So that it runs in workers: making lists is all that is left to the consumer."""
    if isinstance(op, Batch) and op.is_stream and op.batch_fn is not None and op.batch_fn is not list:
        return BatchFunction(dataclasses.replace(op, batch_fn=list), op.batch_fn, site=op.site)
    return op


def maps_move_below_what_only_changes_the_order(op: Op) -> Op:
    """So that a map runs in the stage that reads its elements, and they are not sent to workers again."""
    if type(op) is not Map:
        return op
    below = op.parent
    if isinstance(below, WindowShuffle | BufferShuffle | Repeat | Limit | TRANSPARENT) and below.is_stream:
        return dataclasses.replace(below, parent=_move(op, below.parent))
    if isinstance(below, Mixing) and below.is_stream:
        return dataclasses.replace(below, parts=tuple(_move(op, part) for part in below.parts))
    if isinstance(below, Interleave):
        if isinstance(below.datasets, Op):
            inner: Any = Map(below.datasets, _ThenMap(op))
        else:
            inner = tuple(_move(op, part) for part in below.datasets)
        return dataclasses.replace(below, datasets=inner, made={})
    return op


def _move(op: Map, parent: Op) -> Op:
    return maps_move_below_what_only_changes_the_order(dataclasses.replace(op, parent=parent))


class _ThenMap:
    """Puts a map behind a dataset."""

    def __init__(self, op: Map):
        self._transform, self._batched, self._site = op.transform, op.batched, op.site

    def __call__(self, dataset: Any) -> Any:
        return dataset._then(Map(dataset._stream_op, self._transform, self._batched, site=self._site))


def ready_for_workers(op: Op, *, as_written: bool) -> Op:
    """What comes before an `mp_prefetch`, rewritten; `as_written`, operations stay where they are."""
    if not op.is_stream or isinstance(op, ToStream | UserDataset):
        return op
    if isinstance(op, Mixing | Zip):
        parts = tuple(ready_for_workers(part, as_written=as_written) for part in op.parts)
        return dataclasses.replace(op, parts=parts)
    if isinstance(op, Interleave):
        if isinstance(op.datasets, Op):
            return dataclasses.replace(op, made={})
        parts = tuple(ready_for_workers(part, as_written=as_written) for part in op.datasets)
        return dataclasses.replace(op, datasets=parts, made={})
    new = dataclasses.replace(op, parent=ready_for_workers(op.parents[0], as_written=as_written))  # type: ignore[call-arg]
    new = a_batch_function_is_a_map_of_lists(new)
    return new if as_written else maps_move_below_what_only_changes_the_order(new)


# ----------------------------------------------------------------------------------------------- cutting


@dataclass(frozen=True)
class Stage:
    """Element operations from `base` (not computed here, but for an `IndexStage`) up to `top`.

    Attributes:
        top: The last operation.
        base: What the stage reads.
        aligned: Whether the number of outputs follows from the number of inputs.
        inputs: How many inputs make one output, where it does.
        counts: Whether an operation relies on that.
    """

    top: Op
    base: Op
    aligned: bool = True
    inputs: int = 1
    counts: bool = False


class IndexStage(Stage):
    """A stage on ranges of indices."""


class BlockStage(Stage):
    """A stage on blocks from an ordering point."""


class LaneStage(Stage):
    """A stream that one worker computes from a position on."""


def stage_at(op: Op, *, gaps: bool) -> Stage | None:
    """The stage that ends with an operation; `None` where it belongs to the consumer.

    With `gaps`, any index may turn out to have no element.
    """
    if isinstance(op, ToStream):
        return IndexStage(op, op, aligned=op.allow_nones or not (gaps or op.parent.has_holes))
    if isinstance(op, UserDataset):
        return LaneStage(op, op)
    if not isinstance(op, ELEMENT | Batch | TRANSPARENT):
        return None
    below = stage_at(op.parents[0], gaps=gaps)
    longer = None if below is None else _extended(below, op)
    if longer is not None or not isinstance(op, ELEMENT):
        return longer
    return _extended(BlockStage(op.parents[0], op.parents[0]), op)


def _extended(stage: Stage, op: Op) -> Stage | None:
    if isinstance(stage, LaneStage):
        return None
    if isinstance(op, Map | TRANSPARENT):
        return dataclasses.replace(stage, top=op)
    if isinstance(op, Filter):
        return dataclasses.replace(stage, top=op, aligned=False)
    if not stage.aligned:
        return None
    if isinstance(op, FlatMap):  # among an element's children, its position is the one before the element
        return dataclasses.replace(stage, top=op, aligned=False, counts=True)
    if isinstance(op, COUNTED):
        return dataclasses.replace(stage, top=op, counts=True)
    assert isinstance(op, Batch)
    if not isinstance(stage, IndexStage):
        return None
    return dataclasses.replace(stage, top=op, inputs=stage.inputs * op.batch_size, counts=True)


def is_lane(op: Op) -> bool:
    """Whether a part of several is best computed by one worker as a whole: there is no random access in it."""
    while len(op.parents) == 1 and not isinstance(op, ToStream | UserDataset):
        op = op.parents[0]
    return isinstance(op, UserDataset)


def last_batch(op: Op) -> Batch | None:
    """The batch that is the last step, so that it can be stacked where it is wanted; none where threads read it."""
    while isinstance(op, TRANSPARENT | ToStream):
        if isinstance(op, ToStream) and op.read_options and op.read_options.num_threads not in (0, AUTOTUNE):
            return None
        op = op.parents[0]
    return op if isinstance(op, Batch) and op.batch_fn is None else None


# ------------------------------------------------------------------------------------------ finding again


@dataclass(frozen=True)
class Place:
    """Where an operation is in the plan that workers have."""

    path: Path
    family: Path  # the same for all datasets of an interleave
    lane: bool  # a part of several: see `is_lane`
    weight: int  # how many of its elements make one output of the whole


ANY = -1


def places_in_plan(
    op: Op, path: Path, *, family: Path | None = None, lane: bool = False, weight: int = 1
) -> Iterator[tuple[Op, Place]]:
    """All stream operations of a plan but the datasets of an interleave, which are numbered as they are opened."""
    family = path if family is None else family
    yield op, Place(path, family, lane, weight)
    if isinstance(op, ToStream | UserDataset | Interleave):
        return
    weight *= getattr(op, "batch_size", 1)
    several = len(op.parents) > 1
    for i, parent in enumerate(op.parents):
        yield from places_in_plan(parent, (*path, i), family=(*family, i), lane=several, weight=weight)


def find(root: Op, path: Path) -> Op:
    """The operation at a path."""
    for step in path:
        root = interleaved_part(root, step) if isinstance(root, Interleave) else root.parents[step]
    return root


def all_operations(op: Op) -> list[Op]:
    """An operation and all before it, in an order that is the same in every process."""
    found = [op]
    for parent in op.parents:
        found += all_operations(parent)
    return found


# --------------------------------------------------------------------------------------------- positions


def start_of(op: Op) -> Position:
    """The position before the first output."""
    if isinstance(op, ToStream):
        return 0
    if isinstance(op, UserDataset):
        return None, 0
    if isinstance(op, Interleave):
        return 0, 0, (None,) * op.cycle_length
    if isinstance(op, Mixing | Zip):
        parts = tuple(map(start_of, op.parts))
        return (*op.start, parts) if isinstance(op, Mixing) else (parts,)
    inner = start_of(op.parents[0])
    return inner if op.state_fields is None else (*(0,) * len(op.state_fields), inner)


def base_position(stage: Stage, position: Position) -> Position:
    """The position of a stage's base in a position of its top."""
    return _rebuilt(stage, position, lambda base: base, taken=True)[1]


def later(stage: Stage, position: Position, inputs: int, base: Position) -> Position:
    """The position `inputs` inputs after another one, where the base's is `base`."""
    return _rebuilt(stage, position, lambda _: base, inputs=inputs)[0]


def rebased(stage: Stage, position: Position, at: Callable[[Any], Position]) -> Position:
    """A position with that of its base replaced."""
    return _rebuilt(stage, position, at, taken=True)[0]


def _rebuilt(
    stage: Stage, position: Position, at: Callable[[Any], Position], *, inputs: int = 0, taken: bool = False
) -> tuple[Position, Position]:
    """A position with its counts moved on and its base's replaced, and that of its base."""
    numbers = []
    for op in _chain(stage):
        if isinstance(op, FlatMap | COUNTED):
            number, position = position
            numbers.append((op, number))
    rebuilt, unit = at(position), 1
    for op in reversed(_chain(stage)):
        if isinstance(op, Batch):
            unit *= op.batch_size
        elif isinstance(op, FlatMap | COUNTED):
            _, number = numbers.pop()
            if isinstance(op, FlatMap):
                rebuilt = (number if taken else 0, rebuilt)
            else:
                rebuilt = (number + inputs // unit, rebuilt)
    return rebuilt, position


def depth(stage: Stage) -> int:
    """How many operations stand above the base."""
    return len(_chain(stage))


def _chain(stage: Stage) -> list[Op]:
    """The operations above the base, the last one first."""
    ops, op = [], stage.top
    while op is not stage.base:
        ops.append(op)
        op = op.parents[0]
    return ops


# -------------------------------------------------------------------------------------------- for people

MOST_SHOWN = 20


def last_own(op: Op) -> Op:
    """The last operation that does something to elements."""
    while isinstance(op, TRANSPARENT | ToStream):
        op = op.parents[0]
    return op


def show_elements(top: Op, first: int, stop: int) -> str:
    """Some outputs of a stage, with the operation that they are of."""
    op = last_own(top)
    which = f"element {first}" if stop == first + 1 else f"elements {first} to {stop - 1}"
    return f"{which} of {op.label()} (pipeline at {op.site}"


def show_source_indices(base: Op, first: int, stop: int) -> str:
    """Which items of its sources some elements of a random-access chain are made from."""
    items = source_indices(base.parents[0], np.arange(first, min(stop, first + MOST_SHOWN)))
    return ", ".join(map(str, items[:MOST_SHOWN])) + (", …" if max(len(items), stop - first) > MOST_SHOWN else "")


def index_in(op: Op, position: Position) -> tuple[Op, int] | None:
    """Where the random-access chain below a stream is at a position, if there is exactly one."""
    while not isinstance(op, ToStream):
        if len(op.parents) != 1 or isinstance(op, UserDataset | Interleave):
            return None
        position = position if op.state_fields is None else position[-1]
        op = op.parents[0]
    return op, position


def source_indices(op: Op, idx: np.ndarray) -> list[int]:
    """The items of sources that elements of a random-access chain are made from."""
    if isinstance(op, Source | UserDataset):
        return (idx % max(op.length(), 1)).tolist()
    if isinstance(op, IndexOp):
        return source_indices(op.parent, op.indices(idx))
    if isinstance(op, Batch):
        starts, stops = op.bounds(idx)
        pieces = [np.arange(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        return source_indices(op.parent, np.concatenate(pieces)) if pieces else []
    if isinstance(op, RouteOp):
        which, inner = op.route(idx)
        return [i for k, part in enumerate(op.parts) for i in source_indices(part, inner[which == k])]
    if isinstance(op, FlatMap) and op.max_fan_out:
        idx = np.unique(idx // op.max_fan_out)
    return source_indices(op.parents[0], idx)
