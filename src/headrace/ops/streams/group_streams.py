"""The streams of `ops/group.py`: several elements make an output, or come out in another order.

Each reads its parent through a `Feed`, which keeps what it reads beyond a group for the next one, while the
position stays at the group's own start.
"""

from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import StructureError
from headrace.ops.blocks import Block, Columns, Rows, concat
from headrace.ops.calls import add_note
from headrace.ops.group import BatchOp, BufferShuffle, PaddedBatch, Rebatch
from headrace.ops.kernels import make_batch
from headrace.ops.op import Op
from headrace.ops.streams.stream import (
    Context,
    Feed,
    GroupStream,
    Position,
    Run,
    Stream,
    UnaryStream,
    computes,
    open_stream,
    stream_of,
)


class BatchStream(UnaryStream):
    """Batches; the position is the parent's at the start of the next batch."""

    def __init__(self, op: BatchOp, parent: Stream, context: Context):
        super().__init__(parent.position, parent)
        self._op = op
        self._feed = Feed(parent)
        self._empty = context.memory(op)

    def pull(self, n: int) -> Run | None:
        op = self._op
        size = self._op.batch_size
        empty = self._empty
        self._feed.fill(size * max(n, 1), single_step=n == 0, enough=size)
        after = self._feed.positions()
        count = min(self._feed.size // size, max(n, 1))
        batches = [make_batch(op, self._feed.take(size), empty=empty) for _ in range(count)]
        if not count:
            rest = self._feed.size
            if not rest or op.drop_remainder:
                return None
            batches = [make_batch(op, self._feed.take(rest), empty=empty)]
            return self._run(Rows(batches, owned=True), lambda j: after(rest))
        return self._run(Rows(batches, owned=True), lambda j: after(j * size))


@stream_of.register
def _(op: BatchOp, position: Position, context: Context) -> Stream:
    return BatchStream(op, open_stream(op.parent, position, context), context)


@computes(Rebatch)
class RebatchStream(UnaryStream):
    """Batches cut to another size; position: (rows taken from the parent's next element, parent's)."""

    def __init__(self, op: Rebatch, taken: int, parent: Stream):
        super().__init__((taken, parent.position), parent)
        self._op = op
        self._feed = Feed(parent)
        self._taken = taken
        self._open: list[Columns] = []  # elements not used up yet, the first of them from row `_taken` on
        self._rows = 0

    def pull(self, n: int) -> Run | None:
        batches = []
        positions = []
        for _ in range(max(n, 1)):
            self._read(single_step=n == 0)
            if self._rows == 0 or (self._rows < self._op.batch_size and self._op.drop_remainder):
                break
            batches.append(self._cut(min(self._rows, self._op.batch_size)))
            positions.append((self._taken, self._here))
        if not batches:
            return None
        return self._run(Rows(batches, owned=True), lambda j: positions[j - 1])

    def _read(self, *, single_step: bool) -> None:
        """Reads elements until they hold enough rows."""
        while self._rows < self._op.batch_size:
            self._feed.fill(1, single_step=single_step)
            if not self._feed.size:
                return
            after = self._feed.positions()
            (element,) = self._feed.take(1).own_rows()
            length = _leading_length(self._op, element)
            self._open.append(_Opened(element, length, before=after(0), after=after(1)))
            self._rows += length - (self._taken if len(self._open) == 1 else 0)

    def _cut(self, count: int) -> Any:
        """Takes rows off the open elements."""
        self._rows -= count
        pieces: list[Block] = []
        while count:
            first: Any = self._open[0]
            end = min(self._taken + count, len(first))
            is_whole = (self._taken, end) == (0, len(first))
            pieces.append(Columns(first.tree, end) if is_whole else first.cut(self._taken, end))
            count -= end - self._taken
            self._taken = end
            self._here = first.before
            if end == len(first):
                self._open.pop(0)
                self._taken = 0
                self._here = first.after
        joined = concat(pieces)
        return joined.as_batch() if isinstance(joined, Columns) else joined.stack()


class _Opened(Columns):
    __slots__ = ("after", "before")

    def __init__(self, tree: Any, length: int, *, before: Position, after: Position):
        super().__init__(tree, length)
        self.before = before
        self.after = after


def _leading_length(op: Op, element: Any) -> int:
    lengths = {np.shape(leaf)[:1] for leaf in trees.leaves(element)}
    if len(lengths) != 1 or lengths == {()}:
        raise StructureError(
            f"{op.label()} needs elements whose arrays have the same length along their first axis; got "
            f"the shapes {[np.shape(leaf) for leaf in trees.leaves(element)]}. Batch them first."
        )
    return lengths.pop()[0]


@computes(BufferShuffle)
class BufferShuffleStream(GroupStream):
    """Groups of a sliding-buffer shuffle: group `g` is made from the stretches `g - 1` and `g`.

    A group's start is the start of stretch `g - 1`, so two stretches are enough to make the group again.
    """

    def __init__(self, op: BufferShuffle, *at: Any):
        super().__init__(*at)
        self._op = op
        self._late: tuple[Block, np.ndarray] | None = None  # from the last stretch, what lands in this group

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        size = self._op.buffer_size
        if ordinal and self._late is None:
            self._late = self._split(ordinal - 1, single_step=single_step)[2:]
        begins = self._feed.positions()(0)
        early, early_at, late, late_at = self._split(ordinal, single_step=single_step)
        before, before_at = self._late or (Rows([], owned=True), np.empty(0))
        if not len(before) and not len(early) and not len(late):
            return None
        self._late = late, late_at
        # The landing places from the last stretch count from its own start, `size` earlier.
        order = np.argsort(np.concatenate([before_at - size, early_at]), kind="stable")
        return concat([before, early]).take(order), begins

    def _split(self, stretch: int, *, single_step: bool) -> tuple[Block, np.ndarray, Block, np.ndarray]:
        """A stretch of the input: what lands inside it, and what lands in the next."""
        size = self._op.buffer_size
        self._feed.fill(size, single_step=single_step)
        block = self._feed.take(size)
        landing = self._op.landing(stretch, len(block))
        inside = landing < size
        here = np.flatnonzero(inside)
        later = np.flatnonzero(~inside)
        return block.take(here), landing[here], block.take(later), landing[later]


@computes(PaddedBatch)
class PaddedBatchStream(GroupStream):
    """The padded batches of one window after another."""

    def __init__(self, op: PaddedBatch, *at: Any):
        super().__init__(*at)
        self._op = op

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        assert self._op.window_size is not None
        self._feed.fill(self._op.window_size, single_step=single_step)
        elements = self._feed.take(self._op.window_size).own_rows()
        if not elements:
            return None
        try:
            batches = [self._op.pad([elements[i] for i in rows], to) for rows, to in self._op.groups(elements)]
        except Exception as e:
            add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
            raise
        return Rows(batches, owned=True), self._feed.positions()(0)
