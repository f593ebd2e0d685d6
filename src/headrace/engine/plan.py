"""Cuts a stream into stages that workers can compute, at the operations that need elements in order.

Rules that change no value first rewrite the operations before an `mp_prefetch` (`ready_for_workers`), and `Stages` then
cuts the result. A stage is a chain of element operations on a *base*:

- `IndexStage`: the base is a random-access chain. A chunk is a range of its indices.
- `BlockStage`: the base is an ordering point, which the consumer computes. A chunk is a block of its outputs.
- `StreamStage`: a stream without random access, or a combination of several. One worker computes all of it.

An operation that needs to know how many elements came before can be in a stage only if that follows from the number of
inputs: a `random_map` after a `filter` starts a new stage, and the consumer computes a `batch` after a `filter`.
"""

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, ClassVar

from headrace.ops.buffer import MpPrefetch, ToStream
from headrace.ops.by_size import BatchBySize
from headrace.ops.combine import Interleave, Mixing, Nary, Zip
from headrace.ops.element import MapOp
from headrace.ops.global_batch import GlobalBatch
from headrace.ops.group import BatchOp
from headrace.ops.labels import Line, lines
from headrace.ops.op import Op, ProcessLocal, Unary
from headrace.ops.order import gather_options
from headrace.ops.source import UserDataset
from headrace.ops.streams.combined_streams import part_made
from headrace.ops.streams.stream import Position
from headrace.options import DatasetOptions, num_threads

Path = tuple[int, ...]
MOST_BLOCK_STAGES = 32  # in one chain; the consumer computes the rest, since it has to pass every element on anyway


# ------------------------------------------------------------------------------------------------- rules


class BatchFunction(MapOp):
    """The function of a `batch`, as a map over lists of its elements."""

    is_guarded = False

    @property
    def batch_fn(self) -> None:
        return None

    @property
    def fn(self) -> Callable[[Any], Any]:
        return self.transform

    def label(self) -> str:
        return dataclasses.replace(self.parent, batch_fn=self.transform).label()


def a_batch_function_is_a_map_of_lists(op: Op) -> Op:
    """Lets the function run in workers, so that the consumer only makes lists."""
    if not isinstance(op, BatchOp | BatchBySize) or not op.is_stream or op.batch_fn is None or op.batch_fn is list:
        return op
    return BatchFunction(dataclasses.replace(op, batch_fn=list), op.batch_fn, site=op.site)


def maps_move_below_what_only_changes_the_order(chain: list[Op]) -> list[Op]:
    """Lets a map run in the stage that reads its elements, so that they are not sent to workers again.

    `chain` has operations on one stream, the first one first.
    """
    moved: list[Op] = []
    later: list[Op] = []  # operations that only reorder, since the last one that does more
    for op in chain:
        if type(op) is MapOp:
            moved.append(op)
        elif op.only_reorders:
            later.append(op)
        else:
            moved += [*later, op]
            later = []
    return moved + later


class _ThenMap:
    """A map of elements as a map of the datasets that contain them."""

    def __init__(self, op: MapOp):
        self._transform = op.transform
        self._batched = op.batched
        self._site = op.site

    def __call__(self, dataset: Any) -> Any:
        return dataset._then(MapOp(dataset._stream_op, self._transform, self._batched, site=self._site))


def ready_for_workers(op: Op, *, as_written: bool) -> Op:
    """The operations before an `mp_prefetch`, rewritten; with `as_written`, they keep their order."""
    chain: list[Op] = []
    while op.upstream is not None:
        chain.append(op)
        op = op.upstream
    chain.reverse()
    if as_written:
        return _rebuild_on(_with_ready_parts(op, [], as_written=True), chain)
    chain = maps_move_below_what_only_changes_the_order(chain)
    maps = list(takewhile(lambda each: type(each) is MapOp, chain)) if op.maps_move_into_parts else []
    return _rebuild_on(_with_ready_parts(op, maps, as_written=False), chain[len(maps) :])


def _with_ready_parts(op: Op, maps: list[Any], *, as_written: bool) -> Op:
    """The operation that a chain begins with, with `maps` added to each of its parts, if it has parts."""
    if isinstance(op, Interleave) and isinstance(op.datasets, Op):
        datasets = _rebuild_on(op.datasets, (MapOp(each.parent, _ThenMap(each)) for each in maps))
        return dataclasses.replace(op, datasets=datasets, kept=ProcessLocal())
    if not op.is_stream or not op.parents or not op.parents[0].is_stream:
        return op
    return op.with_parts(
        tuple(ready_for_workers(_rebuild_on(part, maps), as_written=as_written) for part in op.parents)
    )


def _rebuild_on(op: Op, chain: Iterable[Any]) -> Op:
    """Rebuilds a chain of operations on top of another operation."""
    for each in chain:
        op = a_batch_function_is_a_map_of_lists(dataclasses.replace(each, parent=op))
    return op


# ----------------------------------------------------------------------------------------------- cutting


@dataclass(frozen=True)
class Stage:
    """The element operations after `base`, up to `top`; an `IndexStage` includes its base.

    Attributes:
        top: The last operation.
        base: The operation that the stage reads.
        aligned: Whether the number of outputs follows from the number of inputs.
        inputs: How many inputs make one output, if `aligned`.
        counts: Whether an operation relies on `aligned`.
    """

    why: ClassVar[str]  # why workers can compute it
    top: Op
    base: Op
    aligned: bool = True
    inputs: int = 1
    counts: bool = False


class IndexStage(Stage):
    """A stage on ranges of indices."""

    why = "any worker can compute any range of indices"


class BlockStage(Stage):
    """A stage on blocks from an ordering point."""

    why = "any worker can compute any block of elements that the consumer has put in order"


class StreamStage(Stage):
    """A stream that one worker computes from a position on."""

    why = "a stream without random access: one worker computes all of it"


class Stages:
    """The stages before one `mp_prefetch`; `path` leads to `root` in the plan that workers have.

    With `sparse`, any index may turn out to have no element; with `lossy`, any operation may drop elements.
    """

    def __init__(self, root: Op, path: Path, *, sparse: bool = False, lossy: bool = False):
        self.root = root
        self._sparse = sparse
        self._lossy = lossy
        self._places: weakref.WeakKeyDictionary[Op, PlanAddress] = weakref.WeakKeyDictionary()
        self._places.update(places_in_plan(root, path))
        self._stages: weakref.WeakKeyDictionary[Op, Callable[[Op], Stage] | None] = weakref.WeakKeyDictionary()

    def of(self, op: Op) -> Stage | None:
        """The stage that ends with an operation; `None` if the consumer computes it."""
        place = self._places.get(op)
        if place is not None and place.is_part and is_one_worker_stream(op):
            return StreamStage(op, op)
        if op not in self._stages:
            found = _stages_up_to(op, sparse=self._sparse, lossy=self._lossy)
            self._stages.update((each, stage and _without_top(stage)) for each, stage in found)
        stage_with_top = self._stages[op]
        return stage_with_top and stage_with_top(op)

    def place(self, op: Op) -> "PlanAddress":
        """Where workers find an operation."""
        return self._places[op]

    def enter(self, several: Op, number: int, part: Op) -> None:
        """Notes where workers find a dataset of an interleave, or a lane."""
        at = self._places[several]
        path = (*at.path, number)
        kind_path = (*at.kind_path, ANY)
        weight = at.weight * getattr(several, "rows_per_lane", 1)
        self._places.update(places_in_plan(part, path, kind_path=kind_path, is_part=True, weight=weight))

    def why_here(self, op: Op) -> str:
        """Why the consumer computes an operation."""
        if not _may_be_in_a_stage(op):
            return "it needs its elements in order"
        if op.upstream is not None and self.of(op.upstream) is None and not op.is_elementwise:
            return "it needs its elements in order" if op.group_size is not None else "the consumer computes its input"
        if op.counts_elements or op.group_size is not None:
            return "it counts its elements, and an index does not determine how many come before it"
        return "there are too many stages before it"


def _stages_up_to(op: Op, *, sparse: bool, lossy: bool) -> list[tuple[Op, Stage | None]]:
    """The stage that ends with each operation on a stream up to `op`, the first one first."""
    chain = [op]
    while _may_be_in_a_stage(op) and op.upstream is not None:
        op = op.upstream
        chain.append(op)
    stage = _first_stage(chain.pop(), sparse=sparse)
    blocks = 0
    found = [(op, stage)]
    for op in reversed(chain):
        longer = None if stage is None else _extend(stage, op, lossy=lossy)
        if longer is None and op.is_elementwise and blocks < MOST_BLOCK_STAGES:
            longer = _extend(BlockStage(op.parents[0], op.parents[0]), op, lossy=lossy)
            blocks += 1
        stage = longer
        found.append((op, stage))
    return found


def _without_top(stage: Stage) -> Callable[[Op], Stage]:
    """Makes the stage again from its last operation.

    In a `WeakKeyDictionary`, a value that refers to its key keeps it: an interleave would keep all its datasets.
    """
    kind = type(stage)
    base = stage.base
    numbers = (stage.aligned, stage.inputs, stage.counts)
    if base is stage.top:
        return lambda top: kind(top, top, *numbers)
    return lambda top: kind(top, base, *numbers)


def _may_be_in_a_stage(op: Op) -> bool:
    return op.is_elementwise or op.is_transparent or op.group_size is not None


def _first_stage(op: Op, *, sparse: bool) -> Stage | None:
    if isinstance(op, ToStream):
        return IndexStage(op, op, aligned=op.allow_nones or not (sparse or op.parent.is_sparse))
    return StreamStage(op, op) if isinstance(op, UserDataset) else None


def _extend(stage: Stage, op: Op, *, lossy: bool) -> Stage | None:
    """A stage with one more operation; `None` if that operation needs to know more than a chunk holds."""
    # On indices, a chunk that has lost an element is noticed (`MissingElement`); on blocks, nobody relies on counts.
    keeps_count = op.keeps_count and not (lossy and op.is_guarded and isinstance(stage, BlockStage))
    needs_count = op.counts_elements or op.group_size is not None
    if isinstance(stage, StreamStage) or not _may_be_in_a_stage(op) or (needs_count and not stage.aligned):
        return None
    if op.group_size is not None and not isinstance(stage, IndexStage):
        return None
    return dataclasses.replace(
        stage,
        top=op,
        aligned=stage.aligned and keeps_count,
        inputs=stage.inputs * (op.group_size or 1),
        counts=stage.counts or needs_count,
    )


def is_one_worker_stream(op: Op) -> bool:
    """Whether one worker should compute a part of a combination as a whole, since it has no random access."""
    while op.upstream is not None or (isinstance(op, Interleave | Mixing | Zip) and len(op.parents) == 1):
        op = op.parents[0]
    return isinstance(op, UserDataset)


def last_batch(op: Op) -> BatchOp | None:
    """The last operation, if it is a batch that can be stacked in given memory; `None` where threads read it."""
    while op.is_transparent or isinstance(op, ToStream):
        if isinstance(op, ToStream) and num_threads(op.read_options, in_worker=True) != 0:
            return None
        op = op.parents[0]
    return op if isinstance(op, BatchOp) and op.batch_fn is None else None


# --------------------------------------------------------------------------------- paths and places in a plan


@dataclass(frozen=True)
class PlanAddress:
    """Where an operation is in the plan that workers have."""

    path: Path
    kind_path: Path  # the path with `ANY` for the number of an interleaved dataset or a lane
    is_part: bool  # whether it is a part of a combination: see `is_one_worker_stream`
    weight: int  # how many of its elements make one output of the whole pipeline


MAKES_PARTS = Interleave | GlobalBatch  # they make their parts when they open them
ANY = -1
DEEP = 64  # more levels of nested positions than this are folded before pickling


def places_in_plan(
    op: Op, path: Path, *, kind_path: Path | None = None, is_part: bool = False, weight: int = 1
) -> Iterator[tuple[Op, PlanAddress]]:
    """The places of all stream operations in a plan, except parts that are made when they are opened."""
    ahead = [(op, PlanAddress(path, path if kind_path is None else kind_path, is_part, weight))]
    while ahead:
        op, place = ahead.pop()
        yield op, place
        if isinstance(op, ToStream | UserDataset | MAKES_PARTS):
            continue
        weight = place.weight * getattr(op, "batch_size", 1)
        several = len(op.parents) > 1
        ahead += [
            (parent, PlanAddress((*place.path, i), (*place.kind_path, i), several, weight))
            for i, parent in reversed(list(enumerate(op.parents)))
        ]


def find(root: Op, path: Path) -> Op:
    """The operation at a path."""
    for step in path:
        root = part_made(root, step) if isinstance(root, MAKES_PARTS) else root.parents[step]
    return root


def all_operations(op: Op) -> list[Op]:
    """An operation and all before it, in the same order in every process."""
    found: list[Op] = []
    ahead = [op]
    while ahead:
        found.append(ahead.pop())
        ahead += reversed(found[-1].parents)
    return found


# --------------------------------------------------------------------------------------------- positions


class Folded:
    """A deeply nested position to be pickled, which unpickles as the position itself: nested tuples would recurse."""

    def __init__(self, position: Position):
        self._position = position

    def __reduce__(self):
        heads = []
        position = self._position
        while type(position) is tuple and position:
            heads.append(position[:-1])
            position = position[-1]
        return _unfold, (heads, position)


def _unfold(heads: list[tuple[Any, ...]], position: Position) -> Position:
    for head in reversed(heads):
        position = (*head, position)
    return position


def portable(position: Position) -> Any:
    """A position in a form that can be pickled."""
    inner = position
    for _ in range(DEEP):
        if type(inner) is not tuple or not inner:
            return position
        inner = inner[-1]
    return Folded(position)


def base_position(stage: Stage, position: Position) -> Position:
    """The base's position within a position of a stage."""
    for op in _chain(stage):
        if op.state_fields is not None:
            position = position[-1]
    return position


def rebase(stage: Stage, position: Position, at: Callable[[Any], Position], *, inputs: int = 0) -> Position:
    """A position `inputs` inputs later, with `at(position of the base)` in place of the base's position."""
    chain = _chain(stage)
    numbers = []
    for op in chain:
        if op.state_fields is not None:
            *own, position = position
            numbers.append(tuple(own))
    rebuilt = at(position)
    unit = 1
    for op in reversed(chain):
        unit *= op.group_size or 1
        if op.state_fields is not None:
            own = numbers.pop()
            rebuilt = (*(op.advanced(own, inputs // unit) if inputs else own), rebuilt)
    return rebuilt


def depth(stage: Stage) -> int:
    """The number of operations after the base."""
    return len(_chain(stage))


def _chain(stage: Stage) -> list[Op]:
    """The operations after the base, the last one first."""
    ops = []
    op = stage.top
    while op is not stage.base:
        ops.append(op)
        op = op.parents[0]
    return ops


# ------------------------------------------------------------------------------------------------------------ plan
# The plan of a pipeline: how each operation is computed, and where.
#
# Workers and `explain()` both read it, so users see what really happens.


CONSUMER = "consumer"
WORKER = "worker"


@dataclass(frozen=True, eq=False)
class PlanStep:
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
    steps: tuple[PlanStep, ...]

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
        """Whether maps may run before what only reorders: not if they drop elements."""
        return self.options.on_error.raises

    # ---- for workers

    @cached_property
    def prefetches(self) -> list[MpPrefetch]:
        """The `mp_prefetch` operations with no other one after them, each once."""
        found: dict[MpPrefetch, None] = {}
        ahead = [self.op]
        seen = {self.op}
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
    def steps(self) -> list[PlanStep]:
        """All operations in display order; those before an `mp_prefetch` as its workers compute them."""
        placed: dict[Op, _Placed] = {}
        root = _as_computed(self.op, placed, as_written=not self.maps_may_move)
        return _number_steps(root, placed)

    @cached_property
    def stages(self) -> list[PlannedStage]:
        """The steps by stage."""
        by_number: dict[int, list[PlanStep]] = {}
        for step in self.steps:
            by_number.setdefault(step.stage, []).append(step)
        return [PlannedStage(i, steps[0].where or CONSUMER, tuple(steps)) for i, steps in sorted(by_number.items())]

    def __str__(self) -> str:
        width = min(120, max(len(step.label) for step in self.steps))
        return "\n".join(f"{step.label:<{width}}  | {_shown(step)}".rstrip() for step in self.steps)

    __repr__ = __str__


def _shown(step: PlanStep) -> str:
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
    """The pipeline as workers receive it, rewritten before each `mp_prefetch`; notes who computes each operation."""
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
    stages = Stages(root, (0,))
    inner = all_operations(root)
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


NOBODY_ELSE = _Placed(CONSUMER, None, "workers compute only what comes before an `mp_prefetch`")


def _number_steps(root: Op, placed: dict[Op, _Placed]) -> list[PlanStep]:
    """The steps of a pipeline, each with the number of its stage."""
    steps: list[PlanStep] = []
    last: dict[Line, Line] = {}  # by line, the last line of its stage
    numbers: dict[Line, int] = {}
    for line in lines(root):
        end = _last_of_stage(line, placed, last)
        mine = placed.get(line.op, NOBODY_ELSE)
        why = placed[end.op] if mine.where == WORKER else mine
        reason = "" if end in numbers else why.reason
        number = numbers.setdefault(end, len(numbers))
        where = mine.where if line.op in placed else None
        steps.append(PlanStep(line.op, line.label, where, _how(line.op, where), number, reason))
    return steps


def _last_of_stage(line: Line, placed: dict[Op, _Placed], known: dict[Line, Line]) -> Line:
    passed = [line]
    while line not in known and line.reader is not None and _share_a_stage(line.op, line.reader.op, placed):
        line = line.reader
        passed.append(line)
    known.update(dict.fromkeys(passed, known.get(line, line)))
    return known[line]


def _share_a_stage(op: Op, reader: Op, placed: dict[Op, _Placed]) -> bool:
    """Whether an operation and the one that reads it are in one stage."""
    mine = placed.get(op, NOBODY_ELSE)
    theirs = placed.get(reader, NOBODY_ELSE)
    return mine.where == theirs.where and (mine.base is theirs.base or not op.is_stream)


def _how(op: Op, where: str | None) -> str:
    if isinstance(op, ToStream) and where and num_threads(op.read_options, in_worker=True) == 0:
        return "in index order, no threads"
    return op.how()
