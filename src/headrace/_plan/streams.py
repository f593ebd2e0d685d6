"""How streams are computed: `open_stream(op, position, context)` hands over runs of outputs from a position.

The position law: `run.at(j)` depends on the pipeline and on the number of outputs so far, never on how runs
were cut; opening a stream there gives the rest. The position after an output is taken as early as it can be,
before anything that later outputs need is read. A position is the operation's own numbers, in the order of
its `state_fields`, and then its parent's position, or a tuple of its parents'.

`pull(n)` gives about `n` outputs, or `None` at the end; a run may be empty where a filter dropped all of it.
`pull(0)` is careful: no more than one input is read for it, or as many as one output needs.
"""

import copy
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any, NamedTuple

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import Cache, Limit, Prefetch, Skip, ToStream
from headrace._ops.element import Filter, FlatMap, Map, MapWithIndex, RandomMap
from headrace._ops.order import Options, Repeat, Seed
from headrace._ops.source import UserDataset
from headrace._plan.blocks import Block, Rows, concat
from headrace._plan.kernels import add_note, blame, element_kernel, fetcher
from headrace.errors import FilterError, FilterWarning
from headrace.options import DatasetOptions, ReadOptions
from headrace.protocols import Executor

Position = Any
At = Callable[[int], Position]


class Run(NamedTuple):
    """Outputs one after the other, and the position after the first `j` of them."""

    block: Block
    at: At


class Places:
    """Where the elements of a run are in the source, as far as their positions tell: for error messages."""

    def __init__(self, run: Run):
        self._at, self._length = run.at, len(run.block)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, j: int) -> Any:
        position = self._at(j + 1)
        while isinstance(position, tuple) and position:
            position = position[-1]
        return position - 1 if isinstance(position, int) else "?"


class Stream:
    """Outputs in order from a position on; `position` is the one after all that were pulled."""

    def __init__(self, position: Position):
        self.position = position

    def pull(self, n: int) -> Run | None:
        """About `n` outputs, or None at the end."""
        raise NotImplementedError

    def start(self) -> None:
        """Begins to work ahead, where anything does."""

    def close(self, *, wait: bool = True) -> None:
        """Gives back what the stream holds."""

    def _run(self, block: Block, after: At) -> Run:
        """A run of this stream: before its first output, the position is what it was after the last one."""
        before = self.position
        if len(block):
            self.position = after(len(block))
        return Run(block, lambda j: after(j) if j else before)


@dataclass(frozen=True)
class Context:
    """What streams need of the world: who computes chunks, who works ahead, which options hold."""

    executor: Callable[[ReadOptions | None], Executor]
    ahead: Callable[[Stream, Prefetch], Stream]
    options: DatasetOptions


@singledispatch
def open_stream(op: Op, position: Position, context: Context) -> Stream:
    """The stream of an operation, from a position on; `None` is the start."""
    raise TypeError(f"{op.label()} is no stream.")


@open_stream.register(Seed)
@open_stream.register(Options)
def _(op: Any, position: Position, context: Context) -> Stream:
    return open_stream(op.parent, position, context)


class Unary(Stream):
    """A stream over one parent."""

    def __init__(self, position: Position, parent: Stream):
        super().__init__(position)
        self.parent = parent

    def start(self) -> None:
        self.parent.start()

    def close(self, *, wait: bool = True) -> None:
        self.parent.close(wait=wait)


# ------------------------------------------------------------------------------------------------ sources


class IndexStream(Stream):
    """The elements of a random-access chain in order; its position is the next index."""

    def __init__(self, op: ToStream, position: Position, context: Context):
        super().__init__(position or 0)
        self._fetch = fetcher(op.parent)
        self._length = op.parent.length()
        self._executor = context.executor(op.read_options)
        self._asked: deque[range] = deque()
        self._next = self.position
        self._closes_holes = not op.allow_nones
        self._watch = FilterWatch(op.parent, context.options)

    def pull(self, n: int) -> Run | None:
        if self._executor.inline:
            if self._next >= self._length:
                return None
            first = self._next
            self._next = min(first + (n or 1), self._length)
            block = self._fetch(range(first, self._next))
        else:
            self._ask(n)
            if not self._asked:
                return None
            first = self._asked.popleft().start
            block = self._executor.next()
        if self._closes_holes and isinstance(block, Rows):
            full = [row for row in block.items if row is not None]
            if len(full) < len(block):
                kept = np.flatnonzero([row is not None for row in block.items])
                self._watch.saw(len(block), len(full))
                return self._run(Rows(full, owned=block.owned), lambda j: first + int(kept[j - 1]) + 1)
        return self._run(block, lambda j: first + j)

    def _ask(self, n: int) -> None:
        """Submits chunks as long as the executor has room."""
        while self._next < self._length and (size := self._executor.wants(max(n, 1))):
            chunk = range(self._next, min(self._next + size, self._length))
            self._executor.submit(partial(self._fetch, chunk), len(chunk))
            self._asked.append(chunk)
            self._next = chunk.stop

    def start(self) -> None:
        self._ask(1)

    def close(self, *, wait: bool = True) -> None:
        self._executor.close(wait=wait)


@open_stream.register
def _(op: ToStream, position: Position, context: Context) -> Stream:
    return IndexStream(op, position, context)


class UserStream(Stream):
    """The iterator of a user's own dataset.

    Its own state is asked for at every `EVERY`-th output only; the position is that state and how many
    outputs came since. An iterator without states is replayed from its start.
    """

    EVERY = 16

    def __init__(self, op: UserDataset, position: Position):
        super().__init__(position or (None, 0))
        self._op = op
        self._iterator = iter(op.dataset)
        state, self._since = self.position
        if state is not None:
            self._iterator.set_state(copy.deepcopy(state))
        for _ in range(self._since):
            next(self._iterator, None)

    def pull(self, n: int) -> Run | None:
        state, since = self.position
        rows: list[Any] = []
        states = [state]
        for _ in range(max(n, 1)):
            try:
                rows.append(next(self._iterator))
            except StopIteration:
                break
            except Exception as e:
                add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
                raise
            if (since + len(rows)) % self.EVERY == 0 and hasattr(self._iterator, "get_state"):
                states.append(copy.deepcopy(self._iterator.get_state()))
        if not rows:
            return None
        if not hasattr(self._iterator, "get_state"):
            return self._run(Rows(rows, owned=False), lambda j: (None, since + j))
        every = self.EVERY
        return self._run(Rows(rows, owned=False), lambda j: (states[(since + j) // every], (since + j) % every))

    def close(self, *, wait: bool = True) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


@open_stream.register
def _(op: UserDataset, position: Position, context: Context) -> Stream:
    return UserStream(op, position)


# ----------------------------------------------------------------------------------------------- elements


class ElementStream(Unary):
    """An operation on each element alone: the position is the parent's."""

    def __init__(self, op: Map, parent: Stream):
        super().__init__(parent.position, parent)
        self._kernel = element_kernel(op, holes=False)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        return self._run(self._kernel(run.block, Places(run)), run.at)


@open_stream.register
def _(op: Map, position: Position, context: Context) -> Stream:
    return ElementStream(op, open_stream(op.parent, position, context))


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


@open_stream.register(MapWithIndex)
@open_stream.register(RandomMap)
def _(op: Any, position: Position, context: Context) -> Stream:
    count, inner = position or (0, None)
    return CountedStream(op, count, open_stream(op.parent, inner, context))


class FilterStream(Unary):
    """The elements that a predicate keeps; the position is the parent's after the last one kept."""

    def __init__(self, op: Filter, parent: Stream, context: Context):
        super().__init__(parent.position, parent)
        self._op, self._fn = op, op.fn
        self._watch = FilterWatch(op, context.options)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        if run is None:
            return None
        block, at = run
        feed = iter(block.own_rows())
        fn = self._fn
        try:
            mask = [fn(x) for x in feed]
        except Exception as e:
            blame(e, self._op, feed, Places(run))
            raise
        kept = block.keep(mask)
        self._watch.saw(len(block), len(kept))
        return self._run(kept, _at_kept(mask, at))


def _at_kept(mask: list[Any], at: At) -> At:
    """Positions after the kept elements, worked out when somebody asks."""
    places: list[np.ndarray] = []

    def after(j: int) -> Position:
        if not places:
            places.append(np.flatnonzero(np.fromiter(map(bool, mask), bool, len(mask))))
        return at(int(places[0][j - 1]) + 1)

    return after


@open_stream.register
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
            warnings.warn(
                f"{text}: most of the work before it is thrown away. Filter earlier, or set "
                "filter_warn_threshold_ratio in DatasetOptions.",
                FilterWarning,
                stacklevel=2,
            )


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
            blame(e, self._op, feed, Places(run))
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


@open_stream.register
def _(op: FlatMap, position: Position, context: Context) -> Stream:
    taken, inner = position or (0, None)
    return FlatMapStream(op, taken, open_stream(op.parent, inner, context))


# ------------------------------------------------------------------------------- the stream as such


class LimitStream(Unary):
    """The first elements; position: (how many were taken, parent's)."""

    def __init__(self, op: Limit, taken: int, parent: Stream):
        super().__init__((taken, parent.position), parent)
        self._count = op.count

    def pull(self, n: int) -> Run | None:
        taken = self.position[0]
        left = self._count - taken
        run = self.parent.pull(min(n, left)) if left > 0 else None
        if run is None:
            return None
        block, at = run
        return self._run(block.cut(0, left) if len(block) > left else block, lambda j: (taken + j, at(j)))


@open_stream.register
def _(op: Limit, position: Position, context: Context) -> Stream:
    taken, inner = position or (0, None)
    return LimitStream(op, taken, open_stream(op.parent, inner, context))


class SkipStream(Unary):
    """All but the first elements; position: (whether they were skipped, parent's)."""

    def __init__(self, op: Skip, skipped: int, parent: Stream):
        super().__init__((skipped, parent.position), parent)
        self._left = 0 if skipped else op.count

    def pull(self, n: int) -> Run | None:
        while True:
            run = self.parent.pull(min(n, self._left) if self._left else n)
            if run is None:
                return None
            block, at = run
            drop = min(self._left, len(block))
            self._left -= drop
            if drop < len(block) or not len(block):
                return self._run(block.cut(drop, len(block)) if drop else block, lambda j: (1, at(j + drop)))  # noqa: B023


@open_stream.register
def _(op: Skip, position: Position, context: Context) -> Stream:
    skipped, inner = position or (0, None)
    return SkipStream(op, skipped, open_stream(op.parent, inner, context))


class RepeatStream(Stream):
    """The parent again and again; position: (epoch, parent's)."""

    def __init__(self, op: Repeat, position: Position, context: Context):
        epoch, inner = position or (0, None)
        self._op, self._context = op, context
        self._parent = open_stream(op.parent, inner, context)
        super().__init__((epoch, self._parent.position))
        self._epoch = epoch
        self._gave = inner is not None  # an epoch that gave nothing from its start would go on for ever

    def pull(self, n: int) -> Run | None:
        while (run := self._parent.pull(n)) is None:
            last = self._op.num_epochs is not None and self._epoch + 1 >= self._op.num_epochs
            if last or not self._gave:
                return None
            self._parent.close()
            self._parent = open_stream(self._op.parent, None, self._context)
            self._epoch += 1
            self._gave = False
        epoch, at = self._epoch, run.at
        self._gave = self._gave or len(run.block) > 0
        return self._run(run.block, lambda j: (epoch, at(j)))

    def start(self) -> None:
        self._parent.start()

    def close(self, *, wait: bool = True) -> None:
        self._parent.close(wait=wait)


@open_stream.register
def _(op: Repeat, position: Position, context: Context) -> Stream:
    return RepeatStream(op, position, context)


class CacheStream(Stream):
    """The parent's runs, kept the first time they are read from the start to the end."""

    def __init__(self, op: Cache, position: Position, context: Context):
        self._store = op.store
        self._kept = None if position is not None else op.store.runs
        self._recorded: list[Run] | None = [] if position is None and self._kept is None else None
        self._parent = None if self._kept else open_stream(op.parent, position, context)
        self._number = 0
        super().__init__(self._parent.position if self._parent else self._kept[0].at(0))  # type: ignore[index]

    def pull(self, n: int) -> Run | None:
        if self._parent is None:
            return self._replay()
        run = self._parent.pull(n)
        if run is None:
            if self._recorded is not None:
                self._store.runs = self._recorded
            return None
        if self._recorded is not None and len(run.block):
            run = Run(Rows(run.block.own_rows(), owned=False), run.at)
            self._recorded.append(Run(Rows(list(run.block.rows()), owned=False), run.at))
        return self._run(run.block, run.at)

    def _replay(self) -> Run | None:
        assert self._kept is not None
        if self._number == len(self._kept):
            return None
        run = self._kept[self._number]
        self._number += 1
        return self._run(Rows(list(run.block.rows()), owned=False), run.at)

    def start(self) -> None:
        if self._parent is not None:
            self._parent.start()

    def close(self, *, wait: bool = True) -> None:
        if self._parent is not None:
            self._parent.close(wait=wait)


@open_stream.register
def _(op: Cache, position: Position, context: Context) -> Stream:
    return CacheStream(op, position, context)


@open_stream.register
def _(op: Prefetch, position: Position, context: Context) -> Stream:
    return context.ahead(open_stream(op.parent, position, context), op)


# --------------------------------------------------------------------------------------------------- feed


class Feed:
    """What has been pulled from a stream and not been used yet, with the position after each element."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self.ended = False
        self.size = 0
        self._pieces: deque[tuple[Block, At, int]] = deque()

    def fill(self, count: int, *, careful: bool) -> None:
        """Pulls until `count` elements are there, or the stream has ended."""
        while self.size < count and not self.ended:
            run = self.stream.pull(0 if careful else count - self.size)
            if run is None:
                self.ended = True
            elif len(run.block):
                self._pieces.append((run.block, run.at, 0))
                self.size += len(run.block)

    def take(self, count: int) -> Block:
        """The next `count` elements, or as many as there are."""
        count = min(count, self.size)
        self.size -= count
        taken: list[Block] = []
        while count:
            block, at, offset = self._pieces.popleft()
            end = min(offset + count, len(block))
            taken.append(block if (offset, end) == (0, len(block)) else block.cut(offset, end))
            count -= end - offset
            if end < len(block):
                self._pieces.appendleft((block, at, end))
        return concat(taken) if taken else Rows([], owned=True)

    def positions(self) -> At:
        """The position after `j` more elements, for elements that are there now."""
        pieces = [(at, offset, len(block) - offset) for block, at, offset in self._pieces]
        end = self.stream.position

        def after(j: int) -> Position:
            for at, offset, length in pieces:
                if j <= length:
                    return at(offset + j)
                j -= length
            return end

        return after
