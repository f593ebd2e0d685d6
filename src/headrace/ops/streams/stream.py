"""How streams are computed: `open_stream(op, position, context)` returns runs of outputs from a position.

The position law: `run.at(j)` depends on the pipeline and on the number of outputs so far, never on how runs
were cut; a stream opened there returns the rest. The position after an output is the earliest possible one,
before anything that only later outputs need. A position is the operation's own numbers, in the order of
its `state_fields`, and then its parent's position, or a tuple of its parents'.

`pull(n)` returns about `n` outputs, or `None` at the end; a run may be empty if a filter dropped all of it.
`pull(0)` takes a single step: it reads one input, or as many as one output needs.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from headrace.ops.blocks import Block, Rows, concat
from headrace.ops.buffer import MpPrefetch, Prefetch, ToStream
from headrace.ops.guard import Guard
from headrace.ops.kernels import Fetch, fetcher
from headrace.ops.op import Op, ProcessLocal
from headrace.ops.origins import origin
from headrace.ops.profile import timed_pull
from headrace.ops.recorder import StageRecord
from headrace.ops.source import UserDataset
from headrace.protocols import Executor
from headrace.trees import Empty

Position = Any
At = Callable[[int], Position]
S = TypeVar("S")
LONGEST_POSITION = 80  # characters; of a longer one, bad records list a digest


class Run(NamedTuple):
    """Consecutive outputs, and the position after the first `j` of them."""

    block: Block
    at: At


class Places:
    """The indices of a run's elements in a chain whose position is the next index."""

    def __init__(self, run: Run):
        self._at = run.at
        self._length = len(run.block)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, j: int) -> int:
        return self._at(j + 1) - 1

    def numbers(self) -> Sequence[int]:
        """All of them."""
        first = self[0]
        last = self[self._length - 1]
        if last - first == self._length - 1:
            return range(first, last + 1)
        return [self[j] for j in range(self._length)]


def places_base(op: Op) -> ToStream | None:
    """The start of a stream, if each output of an operation on it comes from one index of a random-access chain."""
    while op.is_transparent or (op.is_elementwise and op.state_fields is None and op.upstream is not None):
        op = op.parents[0]
    return op if isinstance(op, ToStream) else None


def has_places(op: Op) -> bool:
    """Whether each output of an operation comes from one index of a random-access chain."""
    return places_base(op) is not None


def places(op: Op, run: Run) -> Places | None:
    """The indices of an operation's inputs in the random-access chain below, if each comes from one."""
    return Places(run) if has_places(op.parents[0]) else None


def where_after(base: ToStream | None, position: Position, children: Sequence[int] = ()) -> dict[str, Any]:
    """Where the element before a position comes from, as fields of a `BadRecord`.

    `base` is where indices begin, and `children` says which child it is, after each `flat_map`.
    """
    if base is not None:
        element: Any = position - 1
        where = origin(base.parent, element)
    else:
        element = repr(position)
        where = {}
        if len(element) > LONGEST_POSITION:
            element = hashlib.sha1(element.encode()).hexdigest()
    return {"element": f"{element}, child {'.'.join(map(str, children))}" if children else element, **where}


class MissingElement(Exception):
    """An index had no element, though the caller relies on every index having one."""


class Stream:
    """Outputs in order from a position on; `position` is the one after all outputs pulled so far."""

    is_relative = False  # whether positions only count the elements of a block
    op: Op | None = None  # the operation that its time is counted for
    counts_time = True  # else its parts do that themselves

    def __init__(self, position: Position):
        self.position = position

    def __init_subclass__(cls) -> None:
        if "pull" in vars(cls):
            cls.pull = timed_pull(cls.pull)  # type: ignore[method-assign]

    def pull(self, n: int) -> Run | None:
        """About `n` outputs, or None at the end."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the next outputs can be had without waiting for threads or workers."""
        return True

    def start(self) -> None:
        """Starts computing ahead, if anything does."""

    def close(self, *, wait: bool = True) -> None:
        """Releases what the stream holds."""

    def _run(self, block: Block, after: At) -> Run:
        """A run of this stream; `at(0)` is the position after the last run."""
        before = self.position
        if len(block):
            self.position = after(len(block))
        return Run(block, lambda j: after(j) if j else before)


def kept_places(mask: list[Any], count: int) -> Callable[[int], int]:
    """A function from `j` to the number of inputs that hold the first `j` of the `count` elements that a mask keeps."""
    places: list[np.ndarray] = []

    def place(j: int) -> int:
        if j == count:
            last = len(mask) - 1
            while not mask[last]:
                last -= 1
            return last + 1
        if not places:
            places.append(np.flatnonzero(np.fromiter(map(bool, mask), bool, len(mask))))
        return int(places[0][j - 1]) + 1

    return place


class Watch(Protocol):
    """Receives the counts of what a filter keeps and drops."""

    def count(self, seen: int, kept: int) -> None:
        """Adds to the numbers of elements seen and kept."""
        ...


@dataclass(frozen=True)
class Context:
    """What streams run on: executors, threads, workers, and who watches filters.

    By default nothing is computed ahead, and there are no workers. The caller that opened a stream closes the context
    after it; with `wait=False`, without waiting for threads to end.

    Attributes:
        executor: Makes the executor that computes chunks of a random-access chain, given the start of a stream.
        watch: Makes the `Watch` of a filter.
        prefetch: Makes a stream that a thread computes ahead.
        processes: Opens the stream of an `mp_prefetch`.
        warm_start: Wraps the stream of a whole pipeline so that a thread computes its first outputs ahead.
        close: Releases what the streams share.
        interrupt: Makes threads stop waiting for each other and end; called before the streams are closed.
        remote_stream: The stream of an operation that workers compute; `None` if they do not.
        enter: Called with an interleave or a global batch, a number and that dataset or lane, before it is opened.
        lookahead: How many datasets an interleave opens before their turn.
        fetch: The function from indices to a block that computes an operation, given that and the guard.
        record: The record of the stage that ends with an operation, given who computes it.
        memory: Makes the arrays to stack an operation's batches in; `None` for NumPy's own.
        stop: A random-access chain ends before this index.
        dense: Whether an index without an element is an error.
        fill: Fills the caches on disk that a random-access chain reads, given the start of a stream.
        guard: Decides about bad records; `None` where every error ends the run.
        kept: What belongs to an iterator until it moves to another position, even if streams are reopened.
    """

    executor: Callable[[ToStream], Executor]
    watch: Callable[[Op], Watch]
    prefetch: Callable[[Stream, Prefetch], Stream] = lambda stream, op: stream
    processes: Callable[[MpPrefetch, Position, "Context"], Stream] = lambda op, position, context: open_stream(
        op.parent, position, context
    )
    close: Callable[..., None] = lambda **_: None
    warm_start: Callable[[Stream, Op], Stream] = lambda stream, op: stream
    interrupt: Callable[..., None] = lambda **_: None
    remote_stream: Callable[[Op, Position, "Context"], Stream | None] = lambda op, position, context: None
    enter: Callable[[Op, int, Op], None] = lambda interleave, number, part: None
    lookahead: int = 0
    fetch: Callable[..., Fetch] = fetcher
    record: Callable[[Op, str], StageRecord] = lambda op, where: StageRecord(where)
    memory: Callable[[Op], Empty | None] = lambda op: None
    stop: int | None = None
    dense: bool = False
    fill: Callable[[Op], None] = lambda op: None
    guard: Guard | None = None
    kept: ProcessLocal = field(default_factory=ProcessLocal)


def start_of(op: Op) -> Position:
    """The position before the first output."""
    numbers: list[tuple[Any, ...]] = []
    while op.upstream is not None:
        if op.state_fields is not None:
            numbers.append(op.first_numbers())
        op = op.upstream
    parts = tuple(start_of(part) for part in op.parents if part.is_stream and not isinstance(op, UserDataset))
    position = op.first_position(parts)
    for own in reversed(numbers):
        position = (*own, position)
    return position


def open_stream(op: Op, position: Position, context: Context) -> Stream:
    """The stream of an operation from a position on; `None` is the start."""
    remote = context.remote_stream(op, position, context)
    if remote is not None:
        return remote
    stream = stream_of(op, position, context)
    if stream.op is None and stream.counts_time:
        stream.op = op
    return stream


@singledispatch
def stream_of(op: Op, position: Position, context: Context) -> Stream:
    """The stream of an operation, computed here; its parents are opened with `open_stream`.

    An operation outside this package has a method `open_stream(position, context)` instead.
    """
    own = getattr(op, "open_stream", None)
    if own is None:
        raise TypeError(f"{op.label()} is not a stream.")
    return own(position, context)


def start_at(op: Op, position: Position) -> tuple[Any, ...]:
    """The numbers of an operation at a position, and its parents' position; `None` is the start."""
    return position or (*op.first_numbers(), None)


def computes(kind: type[Op]) -> Callable[[type[S]], type[S]]:
    """Registers a stream class for an operation on one parent; it takes (op, *numbers, parent's stream)."""

    def register(stream: Any) -> Any:
        def open_it(op: Any, position: Position, context: Context) -> Stream:
            *numbers, inner = start_at(op, position)
            return stream(op, *numbers, open_stream(op.parent, inner, context))

        stream_of.register(kind, open_it)
        return stream

    return register


def stay(position: Position) -> At:
    """The same position after any number of outputs."""
    return lambda j: position


class UnaryStream(Stream):
    """A stream over one parent."""

    def __init__(self, position: Position, parent: Stream):
        super().__init__(position)
        self.parent = parent

    def ready(self) -> bool:
        return self.parent.ready()

    def start(self) -> None:
        self.parent.start()

    def close(self, *, wait: bool = True) -> None:
        self.parent.close(wait=wait)


class Feed:
    """Elements pulled from a stream and not used yet, with the position after each."""

    def __init__(self, stream: Stream | None, open_at: "tuple[Callable[[], Stream], Position] | None" = None):
        """The elements of a stream, or of one that is opened at a position when it is first used."""
        self._stream = stream
        self._open_at = open_at
        self.ended = False
        self.size = 0
        self._pieces: deque[tuple[Block, At, int]] = deque()

    @property
    def stream(self) -> Stream:
        """The stream itself."""
        if self._stream is None:
            assert self._open_at is not None
            self._stream = self._open_at[0]()
        return self._stream

    @property
    def is_open(self) -> bool:
        """Whether anybody has used the stream."""
        return self._stream is not None

    @property
    def position(self) -> Position:
        """The stream's position, which is `None` before its first element."""
        return self._stream.position if self._stream is not None else self._open_at and self._open_at[1]

    def fill(self, count: int, *, single_step: bool, enough: int | None = None) -> None:
        """Pulls until it has `count` elements or the stream ends; once it has `enough`, it does not wait for more."""
        least = 1
        while self.size < count and not self.ended:
            stream = self._stream or self.stream
            wanted = count if enough is None or stream.ready() else enough
            if self.size >= wanted:
                return
            run = stream.pull(0 if single_step else max(wanted - self.size, least))
            least = wanted // 4  # a filter returns less than it is asked for: do not ask for fewer and fewer
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

    def row_bytes(self) -> float:
        """About how much memory one of the elements takes that were pulled last."""
        block = self._pieces[-1][0]
        return block.num_bytes() / len(block)

    def rows_from(self, start: int) -> list[Any]:
        """The elements that it has, without the first `start`; they stay here."""
        rows: list[Any] = []
        for block, _, offset in self._pieces:
            length = len(block) - offset
            if start < length:
                rows += block.own_rows()[offset + start :]
            start = max(start - length, 0)
        return rows

    def positions(self) -> At:
        """The position after `j` more elements, for the elements that it has now."""
        pieces = [(at, offset, len(block) - offset) for block, at, offset in self._pieces]
        end = self.position

        def after(j: int) -> Position:
            for at, offset, length in pieces:
                if j <= length:
                    return at(offset + j)
                j -= length
            return end

        return after


class GroupStream(UnaryStream):
    """One group of outputs after another; position: (group, outputs taken from it, parent's at its start).

    `_make(ordinal, single_step)` returns a group's outputs, and the parent's position at the start of the next.
    """

    def __init__(self, group: int, taken: int, parent: Stream):
        super().__init__((group, taken, parent.position), parent)
        self._feed = Feed(parent)
        self._ordinal = group
        self._taken = taken
        self._start = parent.position
        self._ready: Block | None = None
        self._next_start: Position = None

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        raise NotImplementedError

    def pull(self, n: int) -> Run | None:
        if self._ready is None:
            made = self._make(self._ordinal, single_step=n == 0)
            if made is None:
                return None
            self._ready, self._next_start = made
        ordinal = self._ordinal
        taken = self._taken
        start = self._start
        following = self._next_start
        size = len(self._ready)
        end = min(taken + max(n, 1), size)
        block = self._ready.cut(taken, end)
        self._taken = end
        if end >= size:
            self._ready = None
            self._ordinal = ordinal + 1
            self._taken = 0
            self._start = following

        def after(j: int) -> Position:
            return (ordinal, taken + j, start) if taken + j < size else (ordinal + 1, 0, following)

        return self._run(block, after)
