"""Streams that need several elements for an output, or several parents.

Each reads its parents through a `Feed`, so that what is read beyond a group is kept for the next one while
the position stays at the group's own start.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from headrace import _tree
from headrace._ops.base import Op
from headrace._ops.combine import Interleave, Mix, Zip
from headrace._ops.group import Batch, BufferShuffle, PaddedBatch, Rebatch
from headrace._ops.order import WindowShuffle
from headrace._plan.blocks import Block, Columns, Rows, concat, interleave
from headrace._plan.kernels import add_note, fetcher, make_batch
from headrace._plan.streams import Context, Feed, Position, Run, Stream, Unary, open_stream
from headrace.errors import PipelineError, StructureError

# ------------------------------------------------------------------------------------------------ batches


class BatchStream(Unary):
    """Batches; the position is the parent's at the start of the next batch."""

    def __init__(self, op: Batch, parent: Stream):
        super().__init__(parent.position, parent)
        self._op, self._feed = op, Feed(parent)

    def pull(self, n: int) -> Run | None:
        op, size = self._op, self._op.batch_size
        self._feed.fill(size * max(n, 1), careful=n == 0)
        after = self._feed.positions()
        count = min(self._feed.size // size, max(n, 1))
        batches = [make_batch(op, self._feed.take(size)) for _ in range(count)]
        if not count:
            rest = self._feed.size
            if not rest or op.drop_remainder:
                return None
            batches = [make_batch(op, self._feed.take(rest))]
            return self._run(Rows(batches, owned=True), lambda j: after(rest))
        return self._run(Rows(batches, owned=True), lambda j: after(j * size))


@open_stream.register
def _(op: Batch, position: Position, context: Context) -> Stream:
    return BatchStream(op, open_stream(op.parent, position, context))


class RebatchStream(Unary):
    """Batches cut anew; position: (rows taken of the parent's next element, parent's)."""

    def __init__(self, op: Rebatch, taken: int, parent: Stream):
        super().__init__((taken, parent.position), parent)
        self._op, self._feed = op, Feed(parent)
        self._taken = taken
        self._open: list[Columns] = []  # elements read and not used up, the first of them from `_taken` on
        self._rows = 0

    def pull(self, n: int) -> Run | None:
        batches, positions = [], []
        for _ in range(max(n, 1)):
            self._read(careful=n == 0)
            if self._rows == 0 or (self._rows < self._op.batch_size and self._op.drop_remainder):
                break
            batches.append(self._cut(min(self._rows, self._op.batch_size)))
            positions.append((self._taken, self._here))
        if not batches:
            return None
        return self._run(Rows(batches, owned=True), lambda j: positions[j - 1])

    def _read(self, *, careful: bool) -> None:
        """Reads elements until they hold enough rows."""
        while self._rows < self._op.batch_size:
            self._feed.fill(1, careful=careful)
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
            pieces.append(first.cut(self._taken, end) if (self._taken, end) != (0, len(first)) else first)
            count -= end - self._taken
            self._taken, self._here = end, first.before
            if end == len(first):
                self._open.pop(0)
                self._taken, self._here = 0, first.after
        return concat(pieces).stack()


class _Opened(Columns):
    __slots__ = ("after", "before")

    def __init__(self, tree: Any, length: int, *, before: Position, after: Position):
        super().__init__(tree, length)
        self.before, self.after = before, after


def _leading_length(op: Op, element: Any) -> int:
    lengths = {np.shape(leaf)[:1] for leaf in _tree.leaves(element)}
    if len(lengths) != 1 or lengths == {()}:
        raise StructureError(
            f"{op.label()} needs elements whose leaves have one leading length; got "
            f"{[np.shape(leaf) for leaf in _tree.leaves(element)]}. Batch them first."
        )
    return lengths.pop()[0]


@open_stream.register
def _(op: Rebatch, position: Position, context: Context) -> Stream:
    taken, inner = position or (0, None)
    return RebatchStream(op, taken, open_stream(op.parent, inner, context))


# ------------------------------------------------------------------------------------------------- groups


class GroupStream(Unary):
    """One group of outputs after another; position: (group, outputs taken of it, parent's at its start).

    `_make(ordinal, careful)` gives a group's outputs, and the parent's position at the start of the next.
    """

    def __init__(self, group: int, taken: int, parent: Stream):
        super().__init__((group, taken, parent.position), parent)
        self._feed = Feed(parent)
        self._ordinal, self._taken, self._start = group, taken, parent.position
        self._ready: Block | None = None
        self._next_start: Position = None

    def _make(self, ordinal: int, *, careful: bool) -> tuple[Block, Position] | None:
        raise NotImplementedError

    def pull(self, n: int) -> Run | None:
        if self._ready is None:
            made = self._make(self._ordinal, careful=n == 0)
            if made is None:
                return None
            self._ready, self._next_start = made
        ordinal, taken, start, following = self._ordinal, self._taken, self._start, self._next_start
        size = len(self._ready)
        end = min(taken + max(n, 1), size)
        block = self._ready.cut(taken, end)
        self._taken = end
        if end >= size:
            self._ready = None
            self._ordinal, self._taken, self._start = ordinal + 1, 0, following

        def after(j: int) -> Position:
            return (ordinal, taken + j, start) if taken + j < size else (ordinal + 1, 0, following)

        return self._run(block, after)


class WindowShuffleStream(GroupStream):
    """Windows of a stream, each in an order of its own."""

    def __init__(self, op: WindowShuffle, *at: Any):
        super().__init__(*at)
        self._op = op

    def _make(self, ordinal: int, *, careful: bool) -> tuple[Block, Position] | None:
        self._feed.fill(self._op.window_size, careful=careful)
        block = self._feed.take(self._op.window_size)
        if not len(block):
            return None
        return block.take(self._op.window_order(ordinal, len(block))), self._feed.positions()(0)


class BufferShuffleStream(GroupStream):
    """Groups of a sliding-buffer shuffle: group `g` is made from the stretches `g - 1` and `g`.

    A group's start is the start of stretch `g - 1`, so that one group is re-made from two stretches.
    """

    def __init__(self, op: BufferShuffle, *at: Any):
        super().__init__(*at)
        self._op = op
        self._late: tuple[Block, np.ndarray] | None = None  # of the stretch before: what lands in this group
        self._stretch_start = self._start

    def _make(self, ordinal: int, *, careful: bool) -> tuple[Block, Position] | None:
        size = self._op.buffer_size
        if ordinal and self._late is None:
            self._late = self._split(ordinal - 1, careful=careful)[2:]
        begins = self._feed.positions()(0)
        early, early_at, late, late_at = self._split(ordinal, careful=careful)
        before, before_at = self._late or (Rows([], owned=True), np.empty(0))
        if not len(before) and not len(early) and not len(late):
            return None
        self._late = late, late_at
        # What is left of the stretch before was counted from that stretch's start, one `size` earlier.
        order = np.argsort(np.concatenate([before_at - size, early_at]), kind="stable")
        return concat([before, early]).take(order), begins

    def _split(self, stretch: int, *, careful: bool) -> tuple[Block, np.ndarray, Block, np.ndarray]:
        """A stretch of the input: what lands inside it, and what lands in the next."""
        size = self._op.buffer_size
        self._feed.fill(size, careful=careful)
        block = self._feed.take(size)
        landing = self._op.landing(stretch)[: len(block)]
        inside = landing < size
        here, later = np.flatnonzero(inside), np.flatnonzero(~inside)
        return block.take(here), landing[here], block.take(later), landing[later]


class PaddedBatchStream(GroupStream):
    """The padded batches of one window after another."""

    def __init__(self, op: PaddedBatch, *at: Any):
        super().__init__(*at)
        self._op = op

    def _make(self, ordinal: int, *, careful: bool) -> tuple[Block, Position] | None:
        assert self._op.window_size is not None
        self._feed.fill(self._op.window_size, careful=careful)
        elements = self._feed.take(self._op.window_size).own_rows()
        if not elements:
            return None
        try:
            batches = [self._op.pad([elements[i] for i in rows], to) for rows, to in self._op.groups(elements)]
        except Exception as e:
            add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
            raise
        return Rows(batches, owned=True), self._feed.positions()(0)


_GROUP_STREAMS: dict[type[Op], Callable[..., GroupStream]] = {
    WindowShuffle: WindowShuffleStream,
    BufferShuffle: BufferShuffleStream,
    PaddedBatch: PaddedBatchStream,
}


@open_stream.register(WindowShuffle)
@open_stream.register(BufferShuffle)
@open_stream.register(PaddedBatch)
def _(op: Any, position: Position, context: Context) -> Stream:
    group, taken, inner = position or (0, 0, None)
    return _GROUP_STREAMS[type(op)](op, group, taken, open_stream(op.parent, inner, context))


# ----------------------------------------------------------------------------------------- several parents


class NaryStream(Stream):
    """A stream over several parents."""

    def __init__(self, position: Position, feeds: list[Feed]):
        super().__init__(position)
        self._feeds = feeds

    def start(self) -> None:
        for feed in self._feeds:
            feed.stream.start()

    def close(self, *, wait: bool = True) -> None:
        for feed in self._feeds:
            feed.stream.close(wait=wait)


def _open_parts(parts: tuple[Op, ...], positions: Any, context: Context) -> list[Feed]:
    positions = positions or (None,) * len(parts)
    return [Feed(open_stream(part, at, context)) for part, at in zip(parts, positions, strict=True)]


class ZipStream(NaryStream):
    """Tuples of one element from each parent; position: (parents',)."""

    def __init__(self, op: Zip, feeds: list[Feed]):
        super().__init__((tuple(feed.stream.position for feed in feeds),), feeds)
        self._op = op

    def pull(self, n: int) -> Run | None:
        for feed in self._feeds:
            feed.fill(max(n, 1), careful=n == 0)
        count = min(max(n, 1), *(feed.size for feed in self._feeds))
        if count == 0:
            self._check_ends()
            return None
        afters = [feed.positions() for feed in self._feeds]
        rows = zip(*(feed.take(count).own_rows() for feed in self._feeds), strict=True)
        return self._run(Rows(list(rows), owned=True), lambda j: (tuple(after(j) for after in afters),))

    def _check_ends(self) -> None:
        if not self._op.strict:
            return
        ended = [i for i, feed in enumerate(self._feeds) if not feed.size]
        longer = [i for i, feed in enumerate(self._feeds) if feed.size]
        if longer:
            raise PipelineError(
                f"{self._op.label()} (pipeline at {self._op.site}): dataset {ended[0]} ended before dataset "
                f"{longer[0]}. Cut them to one length with `take`, or give strict=False."
            )


@open_stream.register
def _(op: Zip, position: Position, context: Context) -> Stream:
    (positions,) = position or (None,)
    return ZipStream(op, _open_parts(op.parts, positions, context))


class MixStream(NaryStream):
    """Elements of several parents in proportion, until one that is due has ended; position: (count, parents')."""

    def __init__(self, op: Mix, count: int, feeds: list[Feed]):
        super().__init__((count, tuple(feed.stream.position for feed in feeds)), feeds)
        self._op, self._count = op, count

    def pull(self, n: int) -> Run | None:
        count = self._count
        which, _ = self._op.route(np.arange(count, count + max(n, 1)))
        which = which[: self._available(which, careful=n == 0)]
        if not len(which):
            return None
        self._count += len(which)
        afters = [feed.positions() for feed in self._feeds]
        needed = np.bincount(which, minlength=len(afters)).tolist()
        blocks = [feed.take(k) for feed, k in zip(self._feeds, needed, strict=True)]
        used = [i for i, k in enumerate(needed) if k]
        block = interleave([blocks[i] for i in used], np.searchsorted(used, which)) if used[1:] else blocks[used[0]]

        def after(j: int) -> Position:
            taken = np.bincount(which[:j], minlength=len(afters)).tolist()
            return count + j, tuple(at(k) for at, k in zip(afters, taken, strict=True))

        return self._run(block, after)

    def _available(self, which: np.ndarray, *, careful: bool) -> int:
        """Fills the parents; how far the schedule goes before one of them has nothing left."""
        far = len(which)
        for i, feed in enumerate(self._feeds):
            due = np.flatnonzero(which == i)
            feed.fill(len(due), careful=careful)
            if feed.size < len(due):
                far = min(far, int(due[feed.size]))
        return far


@open_stream.register
def _(op: Mix, position: Position, context: Context) -> Stream:
    count, positions = position or (0, None)
    return MixStream(op, count, _open_parts(op.parts, positions, context))


class InterleaveStream(Stream):
    """Datasets in turn; position: (slot next in turn, next dataset, what each slot has open).

    What a slot has open is (dataset, its position), or None where its dataset has ended or none has begun.
    """

    def __init__(self, op: Interleave, position: Position, context: Context):
        self._op, self._context = op, context
        self._slot, self._next, slots = position or (0, 0, (None,) * op.cycle_length)
        super().__init__((self._slot, self._next, slots))
        self._slots = [None if slot is None else (slot[0], self._feed(*slot)) for slot in slots]

    def _feed(self, dataset: int, position: Position) -> Feed:
        return Feed(open_stream(interleaved_part(self._op, dataset), position, self._context))

    def pull(self, n: int) -> Run | None:
        waiting = self._next < self._op.num_datasets
        if n <= len(self._slots) or (waiting and None in self._slots):
            return self._visit(careful=n == 0)
        return self._rounds(n) or self._visit(careful=False)

    def _rounds(self, n: int) -> Run | None:
        """Whole rounds of all open slots at once, as many as every one of them can give."""
        width, following = len(self._slots), self._next
        turn = [(self._slot + i) % width for i in range(width)]
        order = [(i, *slot) for i in turn if (slot := self._slots[i]) is not None]
        if not order:
            return None
        feeds = [feed for _, _, feed in order]
        for feed in feeds:
            feed.fill(n // len(feeds), careful=False)
        rounds = min(n // len(feeds), *(feed.size for feed in feeds))
        if not rounds:
            return None
        afters = [feed.positions() for feed in feeds]
        rows = zip(*(feed.take(rounds).own_rows() for feed in feeds), strict=True)
        numbers = [(i, dataset) for i, dataset, _ in order]
        self._slot = (numbers[-1][0] + 1) % width

        def after(j: int) -> Position:
            whole, part = divmod(j, len(numbers))
            slots: list[Position] = [None] * width
            for k, ((i, dataset), at) in enumerate(zip(numbers, afters, strict=True)):
                slots[i] = (dataset, at(whole + (k < part)))
            return (numbers[part - 1][0] + 1) % width, following, tuple(slots)

        return self._run(Rows(list(chain.from_iterable(rows)), owned=True), after)

    def _visit(self, *, careful: bool) -> Run | None:
        """Goes round the slots until one gives an element."""
        idle = 0
        while idle < len(self._slots):
            here = self._slot
            self._slot = (here + 1) % len(self._slots)
            if self._slots[here] is None:
                if self._next >= self._op.num_datasets:
                    idle += 1
                    continue
                self._slots[here] = (self._next, self._feed(self._next, None))
                self._next += 1
            _, feed = self._slots[here]  # type: ignore[misc]
            feed.fill(1, careful=careful)
            if feed.size:
                block = feed.take(1)
                return self._run(
                    block, partial(_fixed, (self._slot, self._next, tuple(map(_slot_position, self._slots))))
                )
            feed.stream.close()
            self._slots[here] = None
            idle = 0
        return None

    def start(self) -> None:
        for slot in self._slots:
            if slot is not None:
                slot[1].stream.start()

    def close(self, *, wait: bool = True) -> None:
        for slot in self._slots:
            if slot is not None:
                slot[1].stream.close(wait=wait)


def _fixed(position: Position, j: int) -> Position:
    return position


def _slot_position(slot: tuple[int, Feed] | None) -> Position:
    return None if slot is None else (slot[0], slot[1].positions()(0))


def interleaved_part(op: Interleave, number: int) -> Op:
    """The operation of one interleaved dataset, as a stream."""
    if not isinstance(op.datasets, Op):
        return op.datasets[number]
    (dataset,) = fetcher(op.datasets)(range(number, number + 1)).rows()
    part = getattr(dataset, "_stream_op", None)
    if part is None:
        raise PipelineError(
            f"{op.label()} needs elements that are datasets; element {number} is {type(dataset).__name__}. "
            "Map each to a dataset first."
        )
    return part


@open_stream.register
def _(op: Interleave, position: Position, context: Context) -> Stream:
    return InterleaveStream(op, position, context)
