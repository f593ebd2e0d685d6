"""The stream of `ops/global_batch.py`: the next rows of each lane as one batch.

A batch may need only a few rows of each lane, and a pull costs about the same for few rows as for many. So lanes are
read ahead, one now and others at later batches: each batch takes about as long as the others. Positions are those
after the rows that batches have, so how far a lane was read makes no difference to them.
"""

import time
from collections.abc import Callable

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.blocks import Block, Rows, concat
from headrace.ops.global_batch import GlobalBatch
from headrace.ops.kernels import make_batch
from headrace.ops.streams.combined_streams import NaryStream
from headrace.ops.streams.stream import Context, Feed, Position, Run, Stream, open_stream, start_at, stream_of

LANE_S = 0.006  # the work of one pull from a lane: with less, the pull itself costs too much
CROWDED = 16  # on a busy machine, the same work takes up to so many times as long
LANE_ROWS = 192  # the most rows of one pull: more of them would make it hardly cheaper
AHEAD_BYTES = 16 << 20  # the most bytes that all lanes together may have read ahead
AHEAD_BATCHES = 64  # the most batches read ahead; after an error, at least this many are made one row at a time


class GlobalBatchStream(NaryStream):
    """Global batches; position: (how many have come, the positions of the lanes that this process computes)."""

    def __init__(self, op: GlobalBatch, step: int, feeds: list[Feed]):
        self._op = op
        self._first = step
        self._step = step
        super().__init__((step, tuple(feed.position for feed in feeds)), feeds)
        self._row_s = self._row_bytes = 0.0  # what a row of a lane costs, once one has been read

    @property
    def position(self) -> Position:
        """The position after all batches pulled so far, assembled when somebody asks: there may be many lanes."""
        return self._find_position()

    @position.setter
    def position(self, position: Position) -> None:
        self._find_position: Callable[[], Position] = lambda: position

    def pull(self, n: int) -> Run | None:
        op = self._op
        step = self._step
        size = self._op.rows_per_lane
        wanted = max(n, 1) if op.num_batches is None else min(max(n, 1), max(op.num_batches - step, 0))
        count = self._available(wanted, single_step=n == 0) if wanted else 0
        if not count:
            return None
        afters = [feed.positions() for feed in self._feeds]
        block = self._take(count)
        b = len(op.rows)
        batches = [make_batch(op, block.cut(i * b, (i + 1) * b)) for i in range(count)]

        def after(j: int) -> Position:
            return step + j, tuple(lane(j * size) for lane in afters)

        before = self._find_position
        self._step, self._find_position = step + count, lambda: after(count)
        return Run(Rows(batches, owned=True), lambda j: after(j) if j else before())

    def _take(self, count: int) -> Block:
        """This process's rows of the next batches."""
        size = self._op.rows_per_lane
        lanes = self._op.own_rows.values()
        block = concat([feed.take(count * size) for feed in self._feeds])
        if len(lanes) == 1 and len(self._op.rows) == size:
            return block
        first = np.concatenate([i * count * size + places for i, places in enumerate(lanes)])
        return block.take((np.arange(count)[:, None] * size + first).ravel())

    def _available(self, wanted: int, *, single_step: bool) -> int:
        """Fills the lanes; returns how many batches all of them have rows for."""
        size = self._op.rows_per_lane
        spare = 0 if single_step else wanted * size * len(self._feeds)  # rows to read ahead: as many as are needed
        ahead = self._worth_reading(wanted)
        for lane, feed in zip(self._op.own_rows, self._feeds, strict=True):
            if feed.size < wanted * size:
                more = min(spare, max(0, ahead - wanted * size))
                self._fill(feed, wanted * size + more, single_step=single_step)
                spare -= more
            wanted = min(wanted, feed.size // size)
            if not wanted:
                self._check_end(lane)
                return 0
        return wanted

    def _worth_reading(self, wanted: int) -> int:
        """How many rows of a lane to read at once: enough for the pull not to matter, within limits."""
        if not self._row_s:
            return 0
        op = self._op  # more and more of them
        batches = min(AHEAD_BATCHES, wanted + self._step - self._first)
        if op.num_batches is not None:
            batches = min(batches, op.num_batches - self._step)
        most = AHEAD_BYTES / len(self._feeds) / max(self._row_bytes, 1)
        return min(batches * op.rows_per_lane, int(min(LANE_S / self._row_s, LANE_ROWS, most)))

    def _fill(self, feed: Feed, count: int, *, single_step: bool) -> None:
        """Fills a lane, and notes what its rows cost."""
        there = feed.size
        begin = time.perf_counter()
        cpu_begin = time.thread_time()
        feed.fill(count, single_step=single_step, enough=self._op.rows_per_lane)
        if feed.size > there:
            took_s = max(time.thread_time() - cpu_begin, (time.perf_counter() - begin) / CROWDED)
            row_s = took_s / (feed.size - there)
            self._row_s = min(row_s, 1.25 * (self._row_s or row_s))  # others may have had the core for once
            self._row_bytes = feed.row_bytes()

    def _check_end(self, lane: int) -> None:
        op = self._op
        step = self._step
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
