"""The streams of `ops/combine.py`: several parents, each read through a `Feed`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import PipelineError, StateError
from headrace.errors.signals import let_through
from headrace.ops.blocks import Rows, by_part, interleave
from headrace.ops.combine import Interleave, Mix, Mixing, Zip
from headrace.ops.global_batch import GlobalBatch
from headrace.ops.guard import check_nothing_is_paired
from headrace.ops.kernels import fetcher
from headrace.ops.op import Op
from headrace.ops.schedule import BLOCK, ScheduledMix, Timetable
from headrace.ops.streams.stream import At, Context, Feed, Position, Run, Stream, open_stream, start_at, stay, stream_of

MOST_AT_ONCE = 64  # parts that are opened together, so that threads read ahead in all of them


class NaryStream(Stream):
    """A stream over several parents."""

    def __init__(self, position: Position, feeds: list[Feed]):
        super().__init__(position)
        self._feeds = feeds

    def start(self) -> None:
        for feed in self._feeds:
            if feed.is_open:
                feed.stream.start()

    def close(self, *, wait: bool = True) -> None:
        for feed in self._feeds:
            if feed.is_open:
                feed.stream.close(wait=wait)


def open_parts(parts: tuple[Op, ...], positions: Any, context: Context, due: Sequence[int] | None = None) -> list[Feed]:
    """The elements of each part; of many parts, each is opened when it is first due, and one not among `due` never."""
    positions = positions or (None,) * len(parts)
    pairs = zip(parts, positions, strict=True)
    feeds = [Feed(None, (partial(open_stream, part, at, context), at)) for part, at in pairs]
    if len(parts) > MOST_AT_ONCE:
        return feeds
    try:
        for i in range(len(parts)) if due is None else due:
            feeds[i].stream  # noqa: B018  (opens it)
    except BaseException:
        for feed in feeds:
            if feed.is_open:
                feed.stream.close(wait=False)
        raise
    return feeds


class ZipStream(NaryStream):
    """Tuples of one element from each parent; position: (parents',)."""

    def __init__(self, op: Zip, feeds: list[Feed]):
        super().__init__((tuple(feed.stream.position for feed in feeds),), feeds)
        self._op = op

    def pull(self, n: int) -> Run | None:
        count = max(n, 1)
        for feed in self._feeds:
            feed.fill(max(count, 1), single_step=n == 0)
            count = min(count, feed.size)
            if count == 0 and not self._op.strict:
                return None  # do not pull from the other parents after the end of one
        if count == 0:
            self._check_ends()
            return None
        afters = [feed.positions() for feed in self._feeds]
        rows = zip(*(feed.take(count).own_rows() for feed in self._feeds), strict=True)
        return self._run(Rows(list(rows), owned=True), lambda j: (tuple(after(j) for after in afters),))

    def _check_ends(self) -> None:
        ended = [i for i, feed in enumerate(self._feeds) if not feed.size]
        longer = [i for i, feed in enumerate(self._feeds) if feed.size]
        if longer:
            raise PipelineError(
                f"{self._op.label()} (pipeline at {self._op.site}): dataset {ended[0]} ended before dataset "
                f"{longer[0]}. Shorten them to one length with `take`, or pass strict=False."
            )


@stream_of.register
def _(op: Zip, position: Position, context: Context) -> Stream:
    (positions,) = start_at(op, position)
    return ZipStream(op, open_parts(op.parts, positions, context))


class MixStream(NaryStream):
    """Elements of several parents in proportion, until the one due next has ended; position: (numbers, parents')."""

    def __init__(self, op: Mixing, numbers: tuple[Any, ...], feeds: list[Feed]):
        super().__init__((*numbers, tuple(feed.position for feed in feeds)), feeds)
        self._op = op

    def _due(self, n: int, *, single_step: bool) -> tuple[np.ndarray, At]:
        """The parents of about `n` elements, and the numbers of the position after `j` of them."""
        raise NotImplementedError

    def pull(self, n: int) -> Run | None:
        before = self.position[-1]
        which, numbers = self._due(max(n, 1), single_step=n == 0)
        which = which[: self._available(which, single_step=n == 0)]
        if not len(which):
            return None
        used = by_part(which)
        afters = {i: self._feeds[i].positions() for i, _ in used}
        blocks = [self._feeds[i].take(len(places)) for i, places in used]
        block = interleave(blocks, [places for _, places in used]) if blocks[1:] else blocks[0]

        def after(j: int) -> Position:
            parts = list(before)  # parents that gave nothing have not moved, and there may be very many
            for i, taken in zip(*(each.tolist() for each in np.unique(which[:j], return_counts=True)), strict=True):
                parts[i] = afters[i](taken)
            return *numbers(j), tuple(parts)

        return self._run(block, after)

    def _available(self, which: np.ndarray, *, single_step: bool) -> int:
        """Fills the parents; returns how far the schedule leads before one of them has nothing left."""
        far = len(which)
        for i, due in by_part(which):
            self._feeds[i].fill(len(due), single_step=single_step)
            if self._feeds[i].size < len(due):
                far = min(far, int(due[self._feeds[i].size]))
        return far


class FixedMixStream(MixStream):
    """A mix of fixed proportions; its number is the count of elements."""

    _op: Mix

    def _due(self, n: int, *, single_step: bool) -> tuple[np.ndarray, At]:
        count = self.position[0]
        which, _ = self._op.route(np.arange(count, count + n))
        return which, lambda j: (count + j,)


class ScheduledMixStream(MixStream):
    """A mix of changing proportions, planned block by block."""

    _op: ScheduledMix

    def __init__(self, op: ScheduledMix, numbers: tuple[Any, ...], feeds: list[Feed]):
        count, lags, digest = numbers
        super().__init__(op, (count, tuple(lags), digest), feeds)
        self._plan: Timetable | None = None

    def _due(self, n: int, *, single_step: bool) -> tuple[np.ndarray, At]:
        count, lags = self.position[:2]
        offset = count % BLOCK
        if self._plan is None or offset == 0:
            self._plan = self._op.plan_block(count // BLOCK, lags, self.position[2])
        plan = self._plan
        if plan.error is not None and offset == len(plan.which):
            raise plan.error

        def numbers(j: int) -> tuple[Any, ...]:
            if offset + j == BLOCK:
                return count + j, plan.next_lags, 0
            return count + j, plan.lags, plan.digest

        return plan.which[offset : offset + n], numbers


@stream_of.register(Mix)
@stream_of.register(ScheduledMix)
def _(op: Any, position: Position, context: Context) -> Stream:
    *numbers, positions = start_at(op, position)
    kind: Any = FixedMixStream if isinstance(op, Mix) else ScheduledMixStream
    return kind(op, tuple(numbers), open_parts(op.parts, positions, context, op.due_parts))


class InterleaveStream(Stream):
    """Datasets in turn; position: (slot next in turn, next dataset, what each slot has open).

    An open slot is (dataset, its position); it is `None` if its dataset has ended or none has begun.
    """

    def __init__(self, op: Interleave, position: Position, context: Context):
        self._op = op
        self._context = context
        self._slot, self._next, slots = position or op.first_position(())
        super().__init__((self._slot, self._next, slots))
        self._slots = [None if slot is None else (slot[0], Feed(self._open(*slot))) for slot in slots]
        self._ahead: dict[int, Stream] = {}  # datasets opened before their turn

    def _open(self, dataset: int, position: Position) -> Stream:
        part = interleaved_part(self._op, dataset)
        if self._context.guard is not None and self._context.guard.skips:
            check_nothing_is_paired(part)
        self._context.enter(self._op, dataset, part)
        return open_stream(part, position, self._context)

    def _open_next(self) -> tuple[int, Feed] | None:
        """The next dataset in turn; `None` if there are no more."""
        self._skip_holes()
        if self._next >= self._op.num_datasets:
            return None
        dataset = self._next
        stream = self._ahead.pop(dataset, None) or self._open(dataset, None)
        self._next += 1
        return dataset, Feed(stream)

    def _skip_holes(self) -> None:
        while self._next < self._op.num_datasets and _part_or_none(self._op, self._next) is None:
            self._next += 1

    def _open_ahead(self) -> None:
        for later in range(self._next, min(self._next + self._context.lookahead, self._op.num_datasets)):
            if later not in self._ahead:
                # Skip a missing dataset, and one whose opening fails: the error recurs in the dataset's turn.
                try:
                    self._ahead[later] = self._open(later, None)
                    self._ahead[later].start()
                except Exception as e:
                    let_through(e)

    def pull(self, n: int) -> Run | None:
        waiting = self._next < self._op.num_datasets
        if n <= len(self._slots) or (waiting and None in self._slots):
            return self._visit(single_step=n == 0)
        return self._rounds(n) or self._visit(single_step=False)

    def _rounds(self, n: int) -> Run | None:
        """Whole rounds over all open slots at once, as many as all of them have elements for."""
        width = len(self._slots)
        following = self._next
        turn = [(self._slot + i) % width for i in range(width)]
        order = [(i, *slot) for i in turn if (slot := self._slots[i]) is not None]
        if not order:
            return None
        feeds = [feed for _, _, feed in order]
        for feed in feeds:
            feed.fill(n // len(feeds), single_step=False)
        rounds = min(n // len(feeds), *(feed.size for feed in feeds))
        if not rounds:
            return None
        afters = [feed.positions() for feed in feeds]
        places = np.arange(rounds * len(feeds)).reshape(rounds, len(feeds))
        block = interleave([feed.take(rounds) for feed in feeds], list(places.T))
        numbers = [(i, dataset) for i, dataset, _ in order]
        self._slot = (numbers[-1][0] + 1) % width

        def after(j: int) -> Position:
            whole, part = divmod(j, len(numbers))
            slots: list[Position] = [None] * width
            for k, ((i, dataset), at) in enumerate(zip(numbers, afters, strict=True)):
                slots[i] = (dataset, at(whole + (k < part)))
            return (numbers[part - 1][0] + 1) % width, following, tuple(slots)

        return self._run(block, after)

    def _visit(self, *, single_step: bool) -> Run | None:
        """Goes round the slots until one has an element."""
        idle = 0
        while idle < len(self._slots):
            here = self._slot
            self._slot = (here + 1) % len(self._slots)
            if self._slots[here] is None:
                self._slots[here] = self._open_next()
                if self._slots[here] is None:
                    idle += 1
                    continue
                self._open_ahead()
            _, feed = self._slots[here]  # type: ignore[misc]
            feed.fill(1, single_step=single_step)
            if feed.size:
                block = feed.take(1)
                return self._run(block, stay((self._slot, self._next, tuple(map(_slot_position, self._slots)))))
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
        for stream in self._ahead.values():
            stream.close(wait=wait)


def _slot_position(slot: tuple[int, Feed] | None) -> Position:
    return None if slot is None else (slot[0], slot[1].positions()(0))


class PartsMade(dict[int, Op]):
    """The datasets of an interleave that are in use, by number."""


def part_made(op: Interleave | GlobalBatch, number: int) -> Op:
    """A part of an operation that makes its parts when they are opened: an interleaved dataset, or a lane."""
    return op.lane(number) if isinstance(op, GlobalBatch) else interleaved_part(op, number)


def interleaved_part(op: Interleave, number: int) -> Op:
    """The operation of one interleaved dataset, as a stream; cached while the dataset is in use."""
    part = _part_or_none(op, number)
    if part is None:
        raise StateError(
            f"The state has dataset {number} of {op.label()} open, but there is none at that index now. "
            "Restore the list of datasets as it was."
        )
    return part


def _part_or_none(op: Interleave, number: int) -> Op | None:
    if not isinstance(op.datasets, Op):
        return op.datasets[number]
    made = op.kept.of(PartsMade)
    if number in made:
        return made[number]
    part = _make_part(op, op.datasets, number)
    if part is not None:
        made[number] = part
        for old in list(made)[: -2 * op.cycle_length]:
            made.pop(old, None)
    return part


def _make_part(op: Interleave, datasets: Op, number: int) -> Op | None:
    (dataset,) = fetcher(datasets)(range(number, number + 1)).rows()
    if dataset is None:
        return None
    part = getattr(dataset, "_stream_op", None)
    if part is None:
        raise PipelineError(
            f"{op.label()} needs elements that are datasets; element {number} is {type(dataset).__name__}. "
            "Map each to a dataset first."
        )
    if part.lanes > 1:
        raise PipelineError(
            f"Dataset {number} of {op.label()} has {part.lanes} lanes. Distribute the datasets over lanes "
            f"instead: `interleave(..., num_lanes={part.lanes})`."
        )
    return part


stream_of.register(Interleave, InterleaveStream)
