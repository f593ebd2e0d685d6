"""The streams of `ops/element.py`: consecutive element operations are one stream, which applies them in turn.

A position is that of the stream below, after the element that an output comes from; filters change which one that is,
and each operation that counts adds a number, `(number, position below)`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import FilterError
from headrace.ops.blocks import Block, Rows
from headrace.ops.buffer import ToStream
from headrace.ops.calls import blame, element_kernel
from headrace.ops.element import FilterOp, FlatMapOp, MapOp, MapWithIndexOp, PlacedMap, RandomMapOp, Transformed
from headrace.ops.guard import BAD, Where, call_each, guarded_kernel
from headrace.ops.op import Op
from headrace.ops.order import Options, Seed
from headrace.ops.profile import measuring, timed
from headrace.ops.streams.stream import (
    At,
    Context,
    MissingElement,
    Places,
    Position,
    Run,
    Stream,
    UnaryStream,
    kept_places,
    open_stream,
    places_base,
    start_at,
    stay,
    stream_of,
    where_after,
)
from headrace.options import DatasetOptions

COUNTED = MapWithIndexOp | RandomMapOp


class Level(NamedTuple):
    """How the outputs of an operation in one run follow from its inputs there.

    Attributes:
        down: For the position after `j` outputs, the operation's own number, if it has one, and the number of inputs.
        before: The position before the first output, in a tuple; `None` if it follows from the one below.
        source: The number of the input that output number `j` comes from.
        child: Which child of that input it is, where an input may have several.
    """

    down: Callable[[int], tuple[Any, int]]
    before: tuple[Position] | None = None
    source: Callable[[int], int] = lambda j: j
    child: Callable[[int], int] | None = None


class Trace:
    """Where the elements of one run come from, on its way through the operations."""

    def __init__(self, at: At, count: int):
        self._at = at  # type: ignore[var-annotated]
        self._levels = []
        self.end = at(count)  # the position after all of it
        self._places: Places | None = None

    def add(self, level: Level, end: Position) -> None:
        """Adds an operation: from now on, elements are its outputs."""
        self._levels.append(level)
        self.end = end
        self._places = None

    def position(self, num_levels: int, j: int) -> Position:
        """The position after `j` elements, counted after the first `num_levels` levels."""
        numbers = []
        for i in range(num_levels - 1, -1, -1):
            level = self._levels[i]
            if j == 0 and level.before is not None:
                (position,) = level.before
                break
            number, j = level.down(j)
            if number is not None:
                numbers.append(number)
        else:
            position = self._at(j)
        for number in reversed(numbers):
            position = (number, position)
        return position

    def here(self) -> At:
        """The position after `j` elements, counted after all levels so far."""
        return partial(self.position, len(self._levels))

    def below(self, j: int) -> tuple[Position, list[int]]:
        """The position of the stream below after the input that element `j` comes from, and which child it is."""
        children = []
        for level in reversed(self._levels):
            if level.child is not None:
                children.append(level.child(j))
            j = level.source(j)
        return self._at(j + 1), children[::-1]

    def places(self, block: Block) -> Places:
        """The indices of elements in the random-access chain below."""
        if self._places is None:
            self._places = Places(Run(block, self.here()))
        return self._places


class Chain(NamedTuple):
    """What the operations of one chain share: the context, and the start of the stream if elements have indices."""

    context: Context
    base: ToStream | None

    def where(self, trace: Trace) -> Where:
        """Where elements come from, for bad records."""
        return lambda j: where_after(self.base, *trace.below(j))


class Step:
    """An operation on blocks; `position` is the one before its next output."""

    def __init__(self, op: Any, position: Position, chain: Chain, *, placed: bool):
        self.op = op
        self.position = position
        self._chain = chain
        self._placed = placed
        self._guard = chain.context.guard

    def __call__(self, block: Block, trace: Trace) -> Block:
        raise NotImplementedError

    def _places(self, block: Block, trace: Trace) -> Places | None:
        return trace.places(block) if self._placed else None

    def _call_each(self, fn: Callable[[Any], Any], block: Block, trace: Trace) -> list[Any]:
        """The output of a function for each element, `BAD` where it fails."""
        assert self._guard is not None
        places = self._places(block, trace)
        where = self._chain.where(trace)
        return call_each(self.op, block.own_rows(), places, lambda x, _: fn(x), self._guard, where, none=True)

    def _keep(self, block: Block, mask: list[Any], trace: Trace, first: int | None = None) -> Block:
        """The elements that a mask keeps; their operation counts inputs from `first` on, if it counts."""
        kept = block.keep(mask)
        if len(kept):
            place = kept_places(mask, len(kept))
            last = place(len(kept))
            below = trace.here()
            end = trace.end if last == len(mask) else below(last)
            number = (lambda j: None) if first is None else (lambda j: first + place(j))
            level = Level(lambda j: (number(j), place(j)), (self.position,), lambda j: place(j + 1) - 1)
            self.position = end if first is None else (first + last, end)
            trace.add(level, self.position)
        return kept


class MapStep(Step):
    """Maps each element; positions stay those below, or are as after a filter if bad records are skipped."""

    def __init__(self, op: MapOp, position: Position, chain: Chain, *, placed: bool):
        super().__init__(op, position, chain, placed=placed)
        self._kernel: Any = element_kernel(op) if self._guard is None else guarded_kernel(op, self._guard)

    def __call__(self, block: Block, trace: Trace) -> Block:
        return self._map_block(block, self._places(block, trace), trace)

    def _map_block(self, block: Block, idx: Any, trace: Trace, first: int | None = None) -> Block:
        if self._guard is None:
            return self._kernel(block, idx)
        made = self._kernel(block, idx, self._chain.where(trace))
        mask = [row is not BAD for row in made.items] if isinstance(made, Rows) else [True] * len(made)
        if self._chain.context.dense and not all(mask):
            raise MissingElement
        return self._keep(made, mask, trace, first)


class PlacedStep(MapStep):
    """Maps each element with its place."""

    def __call__(self, block: Block, trace: Trace) -> Block:
        return self._map_block(block, trace.places(block).numbers(), trace)


class CountedStep(MapStep):
    """Maps each element with the count of those before it; position: (count, the one below)."""

    def __init__(self, op: Any, position: Position, chain: Chain, *, placed: bool):
        super().__init__(op, position, chain, placed=placed)
        self._count = position[0]

    def __call__(self, block: Block, trace: Trace) -> Block:
        first, self._count = self._count, self._count + len(block)
        made = self._map_block(block, self.op.lane.numbers(first, self._count), trace, first)
        if self._guard is None:
            trace.add(Level(lambda j: (first + j, j)), (self._count, trace.end))
        return made


class FilterStep(Step):
    """Keeps the elements for which a function is true; the position is the one below after the last element kept."""

    def __init__(self, op: FilterOp, position: Position, chain: Chain, *, placed: bool):
        super().__init__(op, position, chain, placed=placed)
        self._fn = op.fn
        self._watch = chain.context.watch(op)
        self._seen = self._kept = 0

    def __call__(self, block: Block, trace: Trace) -> Block:
        mask = self._mask(block, trace)
        kept = self._keep(block, mask, trace)
        self._seen, self._kept = self._seen + len(block), self._kept + len(kept)
        self._watch.count(len(block), len(kept))
        return kept

    def inputs(self, n: int) -> int:
        """About how many inputs `n` outputs come from, but at most twice as many: the next may be kept more often."""
        return min(n * self._seen // max(self._kept, 1), 2 * n) if n > 1 and self._kept else n

    def _mask(self, block: Block, trace: Trace) -> list[bool]:
        fn = self._fn
        if self._guard is not None:
            return [kept is not BAD and bool(kept) for kept in self._call_each(fn, block, trace)]
        feed = iter(block.own_rows())
        try:
            return [True if fn(x) else False for x in feed]  # noqa: SIM210  (a third of what `bool` costs)
        except Exception as e:
            blame(e, self.op, feed, self._places(block, trace))
            raise


class FlatMapStep(Step):
    """The children of each element in turn; position: (children taken, the one below before the element).

    `fan_out` is about how many children an element has.
    """

    fan_out = 1

    def __init__(self, op: FlatMapOp, position: Position, chain: Chain, *, placed: bool):
        super().__init__(op, position, chain, placed=placed)
        self._taken = position[0]

    def __call__(self, block: Block, trace: Trace) -> Block:
        families = self._families(block, trace)
        skipped = self._taken
        self._taken = 0
        ends = np.cumsum([len(family) for family in families])
        children = [child for family in families for child in family][skipped:]
        self.fan_out = max(1, len(children) // max(1, len(families)))

        def down(j: int) -> tuple[int, int]:
            last = int(np.searchsorted(ends, j + skipped))  # the element that the last child belongs to
            if ends[last] == j + skipped:
                return 0, last + 1
            return j + skipped - int(ends[last - 1] if last else 0), last

        def source(j: int) -> int:
            return int(np.searchsorted(ends, j + skipped, side="right"))

        def child(j: int) -> int:
            family = source(j)
            return j + skipped - int(ends[family - 1] if family else 0)

        if children:
            taken, inputs = down(len(children))
            end = taken, trace.end if inputs == len(families) else trace.here()(inputs)
            trace.add(Level(down, (self.position,), source, child), end)
            self.position = end
        return Rows(children, owned=False)

    def inputs(self, n: int) -> int:
        """About how many inputs `n` outputs come from."""
        return max(1, n // self.fan_out)

    def _families(self, block: Block, trace: Trace) -> list[list[Any]]:
        children = self.op.children
        if self._guard is not None:
            return [[] if family is BAD else list(family) for family in self._call_each(children, block, trace)]
        feed = iter(block.own_rows())
        try:
            return [children(x) for x in feed]
        except Exception as e:
            blame(e, self.op, feed, self._places(block, trace))
            raise


class ChainStream(UnaryStream):
    """A chain of element operations."""

    counts_time = False

    def __init__(self, steps: list[Step], position: Position, parent: Stream):
        super().__init__(position, parent)
        self._steps = steps
        self._not_one_to_one = [step for step in reversed(steps) if isinstance(step, FlatMapStep | FilterStep)]
        self._waiting: list[tuple[int, Run, int]] = []  # the next step of a run, the run, and how much of it is used

    def pull(self, n: int) -> Run | None:
        if n == 0 or self._waiting:
            return self._pull_one()
        for step in self._not_one_to_one:
            n = step.inputs(n)
        run = self.parent.pull(n)
        if run is None:
            return None
        trace = Trace(run.at, len(run.block))
        block = run.block
        for step in self._steps:
            if not len(block):
                break
            block = timed(step.op, step, block, trace) if measuring.threads else step(block, trace)
        return self._made(block, trace)

    def _pull_one(self) -> Run | None:
        """One element or child at a time: one that fails must not take those before it along."""
        if not self._waiting:
            run = self.parent.pull(0)
            if run is None or not len(run.block):
                return run and Run(run.block, stay(self.position))
            self._waiting.append((0, run, 0))
        first, run, used = self._waiting.pop()
        block, trace = self._next_of(first, run, used)
        for i in range(first, len(self._steps)):
            block = self._steps[i](block, trace)
            if not len(block):
                break
            if len(block) > 1:
                block, trace = self._next_of(i + 1, Run(block, trace.here()), 0)
        return self._made(block, trace)

    def _next_of(self, first: int, run: Run, used: int) -> tuple[Block, Trace]:
        """The next element of a run that continues with step `first`; the others wait."""
        if used + 1 < len(run.block):
            self._waiting.append((first, run, used + 1))
        return run.block.cut(used, used + 1), Trace(lambda j: run.at(used + j), 1)

    def _made(self, block: Block, trace: Trace) -> Run:
        before = self.position
        if len(block):
            self.position = trace.end
        after = trace.here()
        return Run(block, lambda j: after(j) if j else before)


@stream_of.register(Transformed)
@stream_of.register(Seed)
@stream_of.register(Options)
def _(op: Op, position: Position, context: Context) -> Stream:
    chain: list[tuple[Any, int]] = []  # operations with their numbers, the last one first
    parent: Stream | None = None
    while parent is None:
        number = 0
        if isinstance(op, COUNTED | FlatMapOp):
            number, position = start_at(op, position)
        chain.append((op, number))
        op = op.parents[0]
        if isinstance(op, Transformed | Seed | Options):
            parent = context.remote_stream(op, position, context)
        else:
            parent = open_stream(op, position, context)
    return _open_chain(chain, None if parent.is_relative else places_base(op), parent, context)


def _open_chain(chain: list[tuple[Any, int]], base: ToStream | None, parent: Stream, context: Context) -> Stream:
    steps: list[Step] = []
    position = parent.position
    placed = base is not None
    for op, number in reversed(chain):
        if isinstance(op, Seed | Options):
            continue
        if isinstance(op, COUNTED | FlatMapOp):
            position = (number, position)
        steps.append(_step(op, position, Chain(context, base), placed=placed))
        placed = placed and isinstance(op, MapOp | FilterOp)
    return ChainStream(steps, position, parent) if steps else parent


def _step(op: Any, position: Position, chain: Chain, *, placed: bool) -> Step:
    kinds = {PlacedMap: PlacedStep, MapOp: MapStep, FlatMapOp: FlatMapStep, FilterOp: FilterStep}
    kind = next((step for kind, step in kinds.items() if isinstance(op, kind)), CountedStep)
    return kind(op, position, chain, placed=placed)


class FilterWatch:
    """Warns once, or raises if the options say so, when a filter drops nearly everything."""

    EVERY = 1000

    def __init__(self, op: Op, options: DatasetOptions):
        self._op = op
        self._warn = options.filter_warn_threshold_ratio
        self._raise = options.filter_raise_threshold_ratio
        self._seen = self._kept = 0

    def count(self, seen: int, kept: int) -> None:
        """Counts elements, and checks the share once it has seen `EVERY` elements."""
        self._seen += seen
        self._kept += kept
        if self._seen < self.EVERY:
            return
        dropped = 1 - self._kept / self._seen
        limits = [limit for limit in (self._raise, self._warn) if limit is not None]
        if not limits or dropped < min(limits):
            return
        text = f"{self._op.label()} dropped {dropped:.1%} of the {self._seen} elements it saw"
        if self._raise is not None and dropped >= self._raise:
            raise FilterError(
                f"{text}, at or over filter_raise_threshold_ratio={self._raise}. "
                "Check the filter's condition, or raise the ratio in DatasetOptions."
            )
        if self._warn is not None and dropped >= self._warn:
            self._warn = None
            text += ": most of the work before it is wasted. Filter earlier, or set "
            text += "filter_warn_threshold_ratio in DatasetOptions."
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning("%s (pipeline at %s)", text, self._op.site)
