"""The stream of `_ops/global_batch.py`: the next rows of each lane as one batch."""

import numpy as np

from headrace._ops.global_batch import GlobalBatch
from headrace._plan.blocks import Block, Rows, concat
from headrace._plan.kernels import make_batch
from headrace._plan.streams.base import Context, Feed, Position, Run, Stream, open_stream, start_at, stream_of
from headrace._plan.streams.combine import NaryStream
from headrace.errors import PipelineError


class GlobalBatchStream(NaryStream):
    """Global batches; position: (how many have come, the positions of the lanes that this process computes)."""

    def __init__(self, op: GlobalBatch, step: int, feeds: list[Feed]):
        super().__init__((step, tuple(feed.stream.position for feed in feeds)), feeds)
        self._op = op

    def pull(self, n: int) -> Run | None:
        op, step, size = self._op, self.position[0], self._op.rows_per_lane
        wanted = max(n, 1) if op.num_batches is None else min(max(n, 1), max(op.num_batches - step, 0))
        count = self._available(wanted, single_step=n == 0) if wanted else 0
        if not count:
            return None
        afters = [feed.positions() for feed in self._feeds]
        block, b = self._take(count), len(op.rows)
        batches = [make_batch(op, block.cut(i * b, (i + 1) * b)) for i in range(count)]
        return self._run(Rows(batches, owned=True), lambda j: (step + j, tuple(after(j * size) for after in afters)))

    def _take(self, count: int) -> Block:
        """This process's rows of the next batches."""
        size, lanes = self._op.rows_per_lane, self._op.own_rows.values()
        block = concat([feed.take(count * size) for feed in self._feeds])
        if len(lanes) == 1 and len(self._op.rows) == size:
            return block
        first = np.concatenate([i * count * size + places for i, places in enumerate(lanes)])
        return block.take((np.arange(count)[:, None] * size + first).ravel())

    def _available(self, wanted: int, *, single_step: bool) -> int:
        """Fills the lanes; returns how many batches all of them have rows for."""
        size = self._op.rows_per_lane
        for lane, feed in zip(self._op.own_rows, self._feeds, strict=True):
            feed.fill(wanted * size, single_step=single_step, enough=size)
            wanted = min(wanted, feed.size // size)
            if not wanted:
                self._check_end(lane)
                return 0
        return wanted

    def _check_end(self, lane: int) -> None:
        op, step = self._op, self.position[0]
        if op.num_batches is not None and step < op.num_batches:
            raise PipelineError(
                f"{op.label()} (pipeline at {op.site}): lane {lane} of {op.num_lanes} has no rows left for batch "
                f"{step}, and num_batches={op.num_batches}. Ask for fewer batches, or `repeat()` the data."
            )

    def ready(self) -> bool:
        return all(feed.size >= self._op.rows_per_lane or feed.stream.ready() for feed in self._feeds)


@stream_of.register
def _(op: GlobalBatch, position: Position, context: Context) -> Stream:
    step, positions = start_at(op, position)
    feeds: list[Feed] = []
    try:
        for lane, at in zip(op.own_rows, positions or op.first_position(())[-1], strict=True):
            part = op.lane(lane)
            context.enter(op, lane, part)
            feeds.append(Feed(open_stream(part, at, context)))
    except BaseException:
        for feed in feeds:
            feed.stream.close(wait=False)
        raise
    return GlobalBatchStream(op, step, feeds)
