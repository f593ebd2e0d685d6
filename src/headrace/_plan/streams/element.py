"""Streams of `_ops/element.py`: one element at a time, so a position is little more than the parent's."""

import warnings
from typing import Any

import numpy as np

from headrace._ops.base import Op
from headrace._ops.element import Filter, FlatMap, Map, MapWithIndex, PlacedMap, RandomMap
from headrace._plan.blocks import Rows
from headrace._plan.elements import blame, element_kernel
from headrace._plan.streams.base import Context, Position, Run, Stream, Unary, at_kept, open_stream, places, stream_of
from headrace.errors import FilterError, FilterWarning
from headrace.options import DatasetOptions


class ElementStream(Unary):
    """An operation on each element alone: the position is the parent's."""

    def __init__(self, op: Map, parent: Stream):
        super().__init__(parent.position, parent)
        self._op, self._kernel = op, element_kernel(op, holes=False)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        return self._run(self._kernel(run.block, places(self._op, run)), run.at)


@stream_of.register
def _(op: Map, position: Position, context: Context) -> Stream:
    return ElementStream(op, open_stream(op.parent, position, context))


class PlacedStream(Unary):
    """An operation on each element and its place; the position is the parent's."""

    def __init__(self, op: PlacedMap, parent: Stream):
        super().__init__(parent.position, parent)
        self._op, self._kernel = op, element_kernel(op, holes=False)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None or not len(run.block):
            return run
        where = places(self._op, run)
        assert where is not None
        return self._run(self._kernel(run.block, where.numbers()), run.at)


@stream_of.register
def _(op: PlacedMap, position: Position, context: Context) -> Stream:
    return PlacedStream(op, open_stream(op.parent, position, context))


class CountedStream(Unary):
    """An operation on each element and the count of those before it; position: (count, parent's)."""

    def __init__(self, op: MapWithIndex | RandomMap, count: int, parent: Stream):
        super().__init__((count, parent.position), parent)
        self._kernel = element_kernel(op, holes=False)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        count, at = self.position[0], run.at
        block = self._kernel(run.block, range(count, count + len(run.block)))
        return self._run(block, lambda j: (count + j, at(j)))


@stream_of.register(MapWithIndex)
@stream_of.register(RandomMap)
def _(op: Any, position: Position, context: Context) -> Stream:
    count, inner = position or (0, None)
    return CountedStream(op, count, open_stream(op.parent, inner, context))


class FilterStream(Unary):
    """The elements that a predicate keeps; the position is the parent's after the last one kept."""

    def __init__(self, op: Filter, parent: Stream, context: Context):
        super().__init__(parent.position, parent)
        self._op, self._fn = op, op.fn
        self._watch = context.watch(op)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        block, at = run
        feed = iter(block.own_rows())
        fn = self._fn
        try:
            mask = [True if fn(x) else False for x in feed]  # noqa: SIM210  (a third of what `bool` costs)
        except Exception as e:
            blame(e, self._op, feed, places(self._op, run))
            raise
        kept = block.keep(mask)
        self._watch.saw(len(block), len(kept))
        return self._run(kept, at_kept(mask, len(kept), at))


@stream_of.register
def _(op: Filter, position: Position, context: Context) -> Stream:
    return FilterStream(op, open_stream(op.parent, position, context), context)


class FilterWatch:
    """Warns once, or raises where asked to, when nearly everything is dropped."""

    EVERY = 1000

    def __init__(self, op: Op, options: DatasetOptions):
        self._op = op
        self._warn, self._raise = options.filter_warn_threshold_ratio, options.filter_raise_threshold_ratio
        self._seen = self._kept = 0

    def saw(self, seen: int, kept: int) -> None:
        """Counts elements; the share is looked at from `EVERY` elements on."""
        self._seen += seen
        self._kept += kept
        if self._seen < self.EVERY:
            return
        dropped = 1 - self._kept / self._seen
        text = f"{self._op.label()} dropped {dropped:.1%} of the {self._seen} elements it saw"
        if self._raise is not None and dropped >= self._raise:
            raise FilterError(
                f"{text}, at or over filter_raise_threshold_ratio={self._raise}. "
                "Check the filter's condition, or raise the ratio in DatasetOptions."
            )
        if self._warn is not None and dropped >= self._warn:
            self._warn = None
            text += ": most of the work before it is thrown away. Filter earlier, or set "
            text += "filter_warn_threshold_ratio in DatasetOptions."
            file, _, line = self._op.site.rpartition(":")
            warnings.warn_explicit(text, FilterWarning, file or "?", int(line or 0))


class FlatMapStream(Unary):
    """The children of one element after the other; position: (children taken, parent's before the element)."""

    def __init__(self, op: FlatMap, taken: int, parent: Stream):
        super().__init__((taken, parent.position), parent)
        self._op, self._taken = op, taken
        self._fan_out = 1

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n and max(1, n // self._fan_out))
        if run is None:
            return None
        if not len(run.block):
            return self._run(run.block, run.at)
        at = run.at
        feed = iter(run.block.own_rows())
        try:
            families = [self._op.children(x) for x in feed]
        except Exception as e:
            blame(e, self._op, feed, places(self._op, run))
            raise
        skipped, self._taken = self._taken, 0
        ends = np.cumsum([len(family) for family in families])
        children = [child for family in families for child in family][skipped:]
        self._fan_out = max(1, len(children) // max(1, len(families)))

        def after(j: int) -> Position:
            last = int(np.searchsorted(ends, j + skipped))  # the element whose child came last
            if ends[last] == j + skipped:
                return 0, at(last + 1)
            return j + skipped - int(ends[last - 1] if last else 0), at(last)

        return self._run(Rows(children, owned=False), after)


@stream_of.register
def _(op: FlatMap, position: Position, context: Context) -> Stream:
    taken, inner = position or (0, None)
    return FlatMapStream(op, taken, open_stream(op.parent, inner, context))
