"""The stream of `ops/by_size.py`: the batches of one window after another."""

import time
from typing import Any

from headrace.errors import PipelineError
from headrace.ops.blocks import Block, Rows
from headrace.ops.by_size import BatchBySize
from headrace.ops.calls import OF_GROUP, blame
from headrace.ops.recorder import StageRecord
from headrace.ops.streams.stream import (
    At,
    Context,
    GroupStream,
    Position,
    Stream,
    open_stream,
    places_base,
    start_at,
    stream_of,
    where_after,
)


class BatchBySizeStream(GroupStream):
    """Batches by size; a group is a window."""

    def __init__(self, op: BatchBySize, record: StageRecord, *at: Any):
        super().__init__(*at)
        self._op = op
        self._record = record

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        op = self._op
        self._feed.fill(op.window_size, single_step=single_step)
        begin = time.perf_counter()
        after = self._feed.positions()
        elements = self._feed.take(op.window_size).own_rows()
        if not elements:
            return None
        sizes = self._sizes(elements, ordinal)
        if max(sizes) > op.max_size:
            elements, sizes = self._without_oversized(elements, sizes, ordinal, after)
        batches = [self._batch([elements[i] for i in rows]) for rows in op.batches(sizes, ordinal)]
        block = Rows(batches, owned=True)
        self._record.add(block, time.perf_counter() - begin)
        return block, self._feed.positions()(0)

    def _sizes(self, elements: list[Any], ordinal: int) -> list[int]:
        first = ordinal * self._op.window_size
        feed = iter(elements)
        size_of = self._op.size_of
        try:
            return [size_of(element) for element in feed]
        except Exception as e:
            blame(e, self._op, feed, range(first, first + len(elements)))
            raise

    def _without_oversized(
        self, elements: list[Any], sizes: list[int], ordinal: int, after: At
    ) -> tuple[list[Any], list[int]]:
        """The elements that fit into a batch, and their sizes; raises for the first that does not."""
        op = self._op
        fit = [i for i, size in enumerate(sizes) if size <= op.max_size]
        first = next(i for i, size in enumerate(sizes) if size > op.max_size)

        def what() -> str:
            return self._oversized(ordinal * op.window_size + first, sizes[first], after(first + 1))

        if op.oversized == "error":
            raise PipelineError(
                f"{what()} Raise max_size, shorten it in an earlier `map`, or drop such elements with "
                "`batch_by_size(..., oversized='drop')`."
            )
        self._record.leave_out(
            len(elements) - len(fit),
            lambda: (
                f"{what()} Such elements are dropped: `iterator.stats()` counts them; `batch_by_size(..., "
                "oversized='error')` makes them an error."
            ),
        )
        return [elements[i] for i in fit], [sizes[i] for i in fit]

    def _oversized(self, number: int, size: int, position: Position) -> str:
        op = self._op
        where = where_after(places_base(self._op.parent), position)
        record = f", record {where['index']} of {where['file'] or where['source']}," if "index" in where else ""
        return f"{op.label()} (pipeline at {op.site}): element {number}{record} has size {size}, over {op.max_size}."

    def _batch(self, elements: list[Any]) -> Any:
        try:
            return self._op.make(elements)
        except Exception as e:
            setattr(e, OF_GROUP, True)
            blame(e, self._op, iter(()), None)
            raise


@stream_of.register
def _(op: BatchBySize, position: Position, context: Context) -> Stream:
    *numbers, inner = start_at(op, position)
    return BatchBySizeStream(op, context.record(op, "consumer"), *numbers, open_stream(op.parent, inner, context))
