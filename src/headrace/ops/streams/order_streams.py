"""The streams of `ops/order.py`: shuffled windows and repeated epochs."""

from typing import Any

from headrace.ops.blocks import Block
from headrace.ops.order import Repeat, WindowShuffle
from headrace.ops.streams.stream import (
    Context,
    GroupStream,
    Position,
    Run,
    Stream,
    computes,
    open_stream,
    start_at,
    stream_of,
)


class RepeatStream(Stream):
    """The parent again and again; position: (epoch, parent's)."""

    def __init__(self, op: Repeat, position: Position, context: Context):
        epoch, inner = start_at(op, position)
        self._op = op
        self._context = context
        self._parent = open_stream(op.parent, inner, context)
        super().__init__((epoch, self._parent.position))
        self._epoch = epoch
        self._gave = inner is not None  # repeating an epoch that gives nothing would never end

    def pull(self, n: int) -> Run | None:
        while (run := self._parent.pull(n)) is None:
            last = self._op.num_epochs is not None and self._epoch + 1 >= self._op.num_epochs
            if last or not self._gave:
                return None
            self._parent.close()
            self._parent = open_stream(self._op.parent, None, self._context)
            self._epoch += 1
            self._gave = False
        epoch = self._epoch
        at = run.at
        self._gave = self._gave or len(run.block) > 0
        return self._run(run.block, lambda j: (epoch, at(j)))

    def start(self) -> None:
        self._parent.start()

    def close(self, *, wait: bool = True) -> None:
        self._parent.close(wait=wait)


stream_of.register(Repeat, RepeatStream)


@computes(WindowShuffle)
class WindowShuffleStream(GroupStream):
    """Windows of a stream, each shuffled."""

    def __init__(self, op: WindowShuffle, *at: Any):
        super().__init__(*at)
        self._op = op

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        self._feed.fill(self._op.window_size, single_step=single_step)
        block = self._feed.take(self._op.window_size)
        if not len(block):
            return None
        return block.take(self._op.window_order(ordinal, len(block))), self._feed.positions()(0)
