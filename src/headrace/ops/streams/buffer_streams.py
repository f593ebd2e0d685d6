"""The streams of `ops/buffer.py`: the start and end of a stream, caches, and what is computed ahead."""

import sys
import time
from collections import deque
from functools import cached_property, partial
from threading import get_ident

from headrace.errors import BadRecord, StateError
from headrace.ops.blocks import Block, Rows, concat
from headrace.ops.buffer import Cache, Limit, MpPrefetch, Prefetch, Skip, ToStream
from headrace.ops.disk_cache import FromDisk
from headrace.ops.element import FilterOp, FlatMapOp, MapOp
from headrace.ops.guard import BAD, Guard, records_per_element
from headrace.ops.kernels import Fetch
from headrace.ops.op import Op, parents_first
from headrace.ops.profile import Profile, waited
from headrace.ops.source import SeededSource, Source, UserDataset
from headrace.ops.streams.stream import (
    Context,
    MissingElement,
    Position,
    Run,
    Stream,
    UnaryStream,
    computes,
    kept_places,
    open_stream,
    stream_of,
)

LATE_S = 0.024  # a run that has taken this long is handed over unfinished
PIECE_S = 0.001  # how much work to do between two looks at the clock
CHEAP_S = 2e-6  # if an element costs less, runs are made in one piece
FIRST_PIECE = 4
LOOK_EVERY = 16  # chunks, to see how full the buffer is


class ElementCosts(dict[ToStream, float]):
    """How many seconds an element takes, by the stream whose lanes have such elements."""


class IndexStream(Stream):
    """The elements of a random-access chain in order; its position is the next index."""

    def __init__(self, op: ToStream, position: Position, context: Context):
        super().__init__(position or 0)
        if op.has_disk_cache:
            context.fill(op)
        self._op = op
        self._is_late = False
        self._costs = context.kept.of(ElementCosts)
        self._element_s = 0.0 if op.lane_of is None else self._costs.get(op.lane_of, 0.0)
        self._guard = context.guard
        fetch = context.fetch(op.parent, context.guard)
        self._fetch = fetch if context.guard is None else partial(self._fetch_guarded, fetch, context.guard)
        self._bad: dict[int, list[BadRecord]] = {}  # found ahead: by the first index of what was fetched
        self._length = op.parent.length() if context.stop is None else min(op.parent.length(), context.stop)
        self._executor = context.executor(op)
        self._asked: deque[range] = deque()
        self._next = self.position
        self._skips_missing = not op.allow_nones
        last_filter = _last_filter(op.parent)
        self._watch = None if last_filter is None else context.watch(last_filter)
        self._dense = context.dense
        self._record = context.record(op, "consumer")
        self._made_by: dict[int, tuple[int, float]] = {}  # by a chunk's first index: the thread, and its seconds
        self._chunks = 0

    def pull(self, n: int) -> Run | None:
        if self._executor.inline:
            if self._next >= self._length:
                return None
            first = self._next
            begin = time.perf_counter()
            block = self._fetch_in_time(range(first, min(first + (n or 1), self._length)))
            self._next = first + len(block)
            self._record.add(block, time.perf_counter() - begin)
        else:
            self._ask(n)
            if not self._asked:
                return None
            first = self._asked.popleft().start
            begin = time.perf_counter()
            block = self._executor.next()
            thread, busy_s = self._made_by.pop(first)
            self._record_chunk(block, thread, busy_s, time.perf_counter() - begin)
            if thread != get_ident():
                self._ask(n)  # threads continue while the consumer uses these
        if self._guard is not None:
            return self._without_bad(block, first)
        if self._skips_missing and isinstance(block, Rows):
            full = [row for row in block.items if row is not None]
            if self._watch is not None:
                self._watch.count(len(block), len(full))
            if len(full) < len(block):
                return self._kept(block, first, [row is not None for row in block.items], len(full))
        return self._run(block, lambda j: first + j)

    def _kept(self, block: Rows, first: int, mask: list[bool], count: int) -> Run:
        """The elements that a mask keeps, from index `first` on."""
        if self._dense:
            raise MissingElement
        place = kept_places(mask, count)
        return self._run(block.keep(mask), lambda j: first + place(j))

    # ---- bad records

    def _fetch_guarded(self, fetch: Fetch, guard: Guard, idx: range) -> Block:
        with guard.collecting() as found:
            block = fetch(idx)
        if found:
            self._bad[idx.start] = found
        return block

    def _without_bad(self, block: Block, first: int) -> Run:
        """A block without bad and missing elements; reports the bad ones, in order."""
        assert self._guard is not None
        self._guard.count_read(len(block) * self._records_per_element)  # before the bad ones are compared with it
        if self._bad:
            for start in sorted(start for start in list(self._bad) if start < first + len(block)):
                self._guard.report(self._bad.pop(start))
        if isinstance(block, Rows):
            mask = [row is not BAD and (row is not None or not self._skips_missing) for row in block.items]
            count = sum(mask)
            if self._watch is not None:
                self._watch.count(len(block), count)
            if count < len(block):
                return self._kept(block, first, mask, count)
        return self._run(block, lambda j: first + j)

    @cached_property
    def _records_per_element(self) -> int:
        return records_per_element(self._op.parent)

    # ---- in time

    def _fetch_in_time(self, wanted: range) -> Block:
        """All the elements, or only the first of them if they take long."""
        blocks = []
        begin = time.perf_counter()
        last = begin
        end = 0
        while end < len(wanted) and last - begin < LATE_S:
            size = min(self._piece(), len(wanted) - end)
            blocks.append(self._fetch(wanted[end : end + size]))
            end += size
            now = time.perf_counter()
            self._element_s = (now - last) / size
            last = now
        self._is_late = end < len(wanted)
        if self._op.lane_of is not None:
            self._costs[self._op.lane_of] = self._element_s
        return concat(blocks) if len(blocks) > 1 else blocks[0]

    def _piece(self) -> int:
        """How many elements to make before the next look at the clock."""
        if self._element_s == 0.0:
            return FIRST_PIECE  # the cost is not known yet
        if self._element_s <= CHEAP_S:
            return sys.maxsize
        return max(1, int((LATE_S if self._takes_many else PIECE_S) / self._element_s))

    @cached_property
    def _takes_many(self) -> bool:
        """Whether a source or a function takes many elements at once, which small pieces would defeat."""
        return any(map(_takes_many, parents_first(self._op.parent, lambda _: True)))

    def ready(self) -> bool:
        return not self._is_late if self._executor.inline else self._executor.ready()

    def _ask(self, n: int) -> None:
        """Submits chunks while the executor has room."""
        while self._next < self._length and (size := self._executor.wants(max(n, 1))):
            chunk = range(self._next, min(self._next + size, self._length))
            self._executor.submit(partial(self._fetch_timed, chunk), len(chunk))
            self._asked.append(chunk)
            self._next = chunk.stop

    def _fetch_timed(self, chunk: range) -> Block:
        profile = Profile()
        block = profile.run(self._fetch, chunk)
        self._record.add_profile(profile, profile.took_s, len(block))
        self._made_by[chunk.start] = get_ident(), profile.took_s
        return block

    def _record_chunk(self, block: Block, thread: int, busy_s: float, waited_s: float) -> None:
        """Records a chunk. During a trial of threads the consumer makes some chunks itself, and does not wait."""
        if thread == get_ident():
            waited_s = 0.0
        else:
            self._record.where = "threads"
            self._record.computed_by = self._executor.num_threads
            waited(waited_s)
            self._chunks += 1
            if self._chunks % LOOK_EVERY == 0:
                self._record.fill(self._executor.filled())
        self._record.add(block, busy_s, waited_s)

    def start(self) -> None:
        if not self._executor.inline:
            self._ask(1)

    def close(self, *, wait: bool = True) -> None:
        self._executor.close(wait=wait)


def _takes_many(op: Op) -> bool:
    if isinstance(op, MapOp):
        return op.rows_fn is not None or op.batch_fn is not None
    if isinstance(op, SeededSource):
        return False
    source = op.source if isinstance(op, Source) else op.dataset if isinstance(op, UserDataset) else None
    return hasattr(source, "__getitems__")


def _last_filter(op: Op) -> FilterOp | None:
    """The filter to blame when most indices have no element; `None` if a `flat_map` drops some as well."""
    while not isinstance(op, FlatMapOp) and len(op.parents) == 1:
        if isinstance(op, FilterOp):
            return None if any(isinstance(each, FlatMapOp) for each in parents_first(op, lambda _: True)) else op
        op = op.parents[0]
    return None


stream_of.register(ToStream, IndexStream)


@stream_of.register
def _(op: FromDisk, position: Position, context: Context) -> Stream:
    context.fill(op)
    if op.cache.open_elements() is None:  # whoever only looks at some elements does not fill it
        return open_stream(op.cache.parent, position, context)
    if position is not None and position > op.cache.length():  # a state that was set before the cache was filled
        raise StateError(
            f"The state says next_index={position}, and {op.cache.label()} (pipeline at {op.site}) has "
            f"{op.cache.length()} elements: what comes before it has changed since the state was saved."
        )
    return IndexStream(op, position, context)


@computes(Limit)
class LimitStream(UnaryStream):
    """The first elements; position: (how many are taken, parent's)."""

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


@computes(Skip)
class SkipStream(UnaryStream):
    """All but the first elements; position: (whether they are skipped, parent's)."""

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


class CachedRuns:
    """The runs in a cache of a stream, once an iterator has read it to the end."""

    runs: list[Run] | None = None


class CacheStream(Stream):
    """The parent's runs, cached the first time that an iterator reads them from start to end."""

    def __init__(self, op: Cache, position: Position, context: Context):
        self._cached = op.kept.of(CachedRuns)
        self._kept = None if position is not None else self._cached.runs
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
                self._cached.runs = self._recorded
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


stream_of.register(Cache, CacheStream)


@stream_of.register
def _(op: Prefetch, position: Position, context: Context) -> Stream:
    return context.prefetch(open_stream(op.parent, position, context), op)


@stream_of.register
def _(op: MpPrefetch, position: Position, context: Context) -> Stream:
    return context.processes(op, position, context)
