"""Streams that move elements to a device ahead of the consumer.

The number of elements on their way is bounded: they move one at a time, even if many are computed together, and only
while fewer than the buffer holds wait for the consumer.
"""

from collections.abc import Callable
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import PipelineError
from headrace.ops.blocks import Rows
from headrace.ops.buffer import Prefetch
from headrace.ops.calls import blame
from headrace.ops.op import Op
from headrace.ops.streams import Context, Position, Run, Stream, UnaryStream, open_stream
from headrace.ops.streams.stream import places


def check_dataset(ds: Any, name: str) -> None:
    """Raises unless `ds` is a stream of elements."""
    if not isinstance(ds, IterDataset):
        hint = " Call `to_iter_dataset()` first." if hasattr(ds, "to_iter_dataset") else ""
        hint = " Give `loader.dataset`." if hasattr(ds, "dataset") else hint
        raise PipelineError(f"`{name}` takes an IterDataset; got {type(ds).__name__}.{hint}")


class OneByOne(UnaryStream):
    """The parent's outputs one at a time; the others of a run wait here, on the host."""

    def __init__(self, parent: Stream):
        super().__init__(parent.position, parent)
        self._rest: Run | None = None
        self._taken = 0

    def pull(self, n: int) -> Run | None:
        if self._rest is None:
            run = self.parent.pull(min(n, 1))
            if run is None or len(run.block) <= 1:
                return run if run is None else self._run(*run)
            self._rest = run
            self._taken = 0
        (block, at), first = self._rest, self._taken
        self._taken += 1
        if self._taken == len(block):
            self._rest = None
        return self._run(block.cut(first, first + 1), lambda j: at(first + j))


class _OnDevice(Rows):
    """Elements on a device: they do not count for the limits of buffers on the host."""

    def num_bytes(self) -> int:
        return 0


class Moved(UnaryStream):
    """The parent's outputs, changed by a function that moves them; `close` ends what the function uses."""

    def __init__(self, op: Op, parent: Stream, move: Callable[[Any], Any], close: Callable[[], None] = lambda: None):
        super().__init__(parent.position, parent)
        self._op = op
        self._move = move
        self._close = close

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        feed = iter(run.block.own_rows())
        try:
            moved = [self._move(element) for element in feed]
        except Exception as e:
            blame(e, self._op, feed, places(self._op, run))
            raise
        return self._run(_OnDevice(moved, owned=True), run.at)

    def close(self, *, wait: bool = True) -> None:
        super().close(wait=wait)
        self._close()


def moved_ahead(op: Any, position: Position, context: Context, device: Any, move: Callable[[Any], Any]) -> Stream:
    """The outputs of an operation's parent, moved in a thread and handed over in the consumer's."""
    moved = Moved(op, OneByOne(open_stream(op.parent, position, context)), move, device.close)
    return Moved(op, context.prefetch(moved, Prefetch(op, op.buffer_size)), device.hand_over)
