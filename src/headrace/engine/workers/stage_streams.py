"""Streams that workers compute: they send tasks ahead of demand, and return results in the order of the tasks."""

import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, cast

from headrace.engine.plan import (
    BlockStage,
    IndexStage,
    Stage,
    Stages,
    StreamStage,
    all_operations,
    base_position,
    depth,
    portable,
    rebase,
)
from headrace.engine.sizing import BufferLimit
from headrace.engine.workers.tasks import BlockTask, CloseStream, IndexTask, Result, StreamTask, Task
from headrace.engine.workers.tracebacks import unpack_error
from headrace.errors import BadRecord, ElementTimeout
from headrace.ops.blocks import Block
from headrace.ops.op import Op
from headrace.ops.origins import index_in, last_visible_op, show_elements, show_source_indices
from headrace.ops.profile import waited
from headrace.ops.streams import Context, MissingElement, Position, Run, Stream, open_stream
from headrace.ops.streams.stream import places_base, start_of, where_after
from headrace.options import AUTOTUNE, MultiprocessingOptions
from headrace.protocols import PendingTask, TaskPool


@dataclasses.dataclass(frozen=True)
class Prefetching:
    """One `mp_prefetch` at work: its stages, the pool that computes them, and the options."""

    stages: Stages
    pool: TaskPool
    options: MultiprocessingOptions
    single_step: bool

    def remote_stream(self, op: Op, position: Position, context: Context) -> Stream | None:
        """The stream of an operation that ends a stage; `None` for others."""
        stage = self.stages.of(op)
        return None if stage is None else _STREAMS[type(stage)](stage, position, self, context)


@dataclasses.dataclass(slots=True)
class _Sent:
    """A task under way.

    Attributes:
        chunk: The size of its chunk.
        late: Keys of elements that took too long; `again` submits the task without them.
        num_bytes: The expected size of its result.
    """

    pending: PendingTask
    chunk: int
    late: list[str]
    again: Callable[[], PendingTask]
    num_bytes: int = 0


class StageStream(Stream):
    """The outputs of a stage, in order."""

    def __init__(self, stage: Stage, position: Position, prefetching: Prefetching, context: Context):
        super().__init__(start_of(stage.top) if position is None else position)
        self._stage = stage
        self._place = prefetching.stages.place(stage.top)
        self._pool = prefetching.pool
        self._options = prefetching.options
        self._single_step = prefetching.single_step
        self._load = self._pool.load
        self._context = context
        self._record = context.record(stage.top, "workers")
        size = self._options.per_worker_buffer_size
        self._limit = BufferLimit(1) if size is AUTOTUNE else None
        self._tasks: deque[_Sent] = deque()
        # The size of a chunk, and the bytes of a chunk of one, as other streams of this kind found.
        known = None if self._single_step else self._load.chunks.get(self._place.kind_path)
        self._chunk, self._unit_bytes = known or (1, 0.0)
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._watches: dict[int, Any] = {}
        with self._pool.locked():
            self._load.num_streams += self._is_source

    _is_source = True  # not fed by another stage

    def pull(self, n: int) -> Run | None:
        if self._error is not None:
            raise self._error
        with self._pool.locked():  # another thread may find that this stream's worker has died
            self._work_ahead()
            while self._tasks:
                waited_s = self._wait()
                result = self._result(self._tasks[0])
                if result is None:
                    continue
                sent = self._tasks.popleft()
                self._load.expected_bytes -= sent.num_bytes
                run = self._finish(result)
                if run is not None:
                    self._record.add(run.block, sent.pending.took_s, waited_s)
                    self._add_times(result, len(run.block), sent.pending.took_s)
                    self._adapt(sent, run.block)
                    return run
            return None

    def _add_times(self, result: Result, elements: int, took_s: float) -> None:
        moving_s = max(0.0, took_s - result.took_s)
        moving = f"sending the results of {self._label}", moving_s, elements
        self._record.add_times([*result.times, moving], result.cpu_s + moving_s)

    @cached_property
    def _label(self) -> str:
        return last_visible_op(self._stage.top).label()

    def _wait(self) -> float:
        """Waits for the next result; returns how long."""
        self._record.computed_by = self._pool.num_workers
        self._record.fill(sum(sent.pending.num_bytes is not None for sent in self._tasks) / len(self._tasks))
        if self._limit is not None:
            if not self._pool.ready(self._tasks[0].pending):
                self._limit.empty()
            self._limit.update()
        waited_s = 0.0
        begin = time.perf_counter()
        while not self._pool.wait(self._tasks[0].pending):
            waited_s += time.perf_counter() - begin
            self._learn_size()
            self._work_ahead()
            begin = time.perf_counter()
        waited_s += time.perf_counter() - begin
        waited(waited_s)
        return waited_s

    def _result(self, sent: _Sent) -> Result | None:
        """The result of a task; `None` if it is under way again, without an element that took too long."""
        try:
            return self._pool.result(sent.pending)
        except ElementTimeout as e:
            if self._context.guard is None or not e.key or e.key in sent.late:
                raise
            sent.late.append(e.key)
            sent.pending = sent.again()
            return None

    def ready(self) -> bool:
        return bool(self._tasks) and self._pool.ready(self._tasks[0].pending)

    def start(self) -> None:
        with self._pool.locked():
            if self._pool.num_open < 2 * self._pool.num_workers:  # with more, the first output needed would wait
                self._work_ahead()

    def _work_ahead(self) -> None:
        """Submits tasks while there is room."""
        if self._limit is not None and self._tasks and all(self._pool.ready(sent.pending) for sent in self._tasks):
            self._limit.full()  # workers have nothing to do, since no more was allowed
        while not self._ended and self._has_room():
            sent = self._next_task()
            if sent is None:
                self._ended = True
                return
            sent.num_bytes = int(self._unit_bytes * sent.chunk)
            self._load.expected_bytes += sent.num_bytes
            self._tasks.append(sent)

    def _has_room(self) -> bool:
        under_way = len(self._tasks)
        if under_way == 0:
            return True
        if self._single_step:
            return False
        options = self._options
        workers = self._pool.num_workers
        limits = self._pool.chunk_limits
        if not self._unit_bytes and under_way >= min(2 * workers, limits.unmeasured):
            return False  # until a result shows how large they are
        ready = -(-self._buffer_size * self._place.weight // self._chunk)
        most = workers * (1 + min(ready, limits.under_way))
        # At least two, or nothing would be under way while the consumer uses a result.
        if under_way >= max(2, most // max(1, self._load.num_streams)):
            return False
        most_bytes = min(options.buffer_bytes, limits.buffer_bytes)
        return self._load.expected_bytes + self._unit_bytes * self._chunk <= most_bytes

    @property
    def _buffer_size(self) -> int:
        """The outputs that each worker may have ready."""
        return cast(int, self._options.per_worker_buffer_size) if self._limit is None else self._limit.number

    def _learn_size(self) -> None:
        """While the next result is not there: learns the size of results from others."""
        if not self._unit_bytes:
            sizes = [(sent.pending.num_bytes or 0) / sent.chunk for sent in self._tasks]
            self._unit_bytes = max(sizes, default=0.0)

    def _next_task(self) -> _Sent | None:
        raise NotImplementedError

    def _finish(self, result: Result) -> Run | None:
        """A result as a run; `None` at the end of the stream."""
        raise NotImplementedError

    def _adapt(self, sent: _Sent, block: Block) -> None:
        """Doubles the chunk size after a cheap chunk of full size; halves it after a slow one."""
        if self._single_step:
            return
        limits = self._pool.chunk_limits
        took_s = sent.pending.took_s
        size = max(1, self._size(sent, block))
        num_bytes = block.num_bytes()
        self._unit_bytes = max(self._unit_bytes * 0.9, num_bytes / size)
        if took_s > 4 * limits.seconds:
            self._chunk = max(1, size // 2)
        elif took_s < limits.seconds and 2 * num_bytes < limits.num_bytes and size >= self._chunk:
            self._chunk = min(2 * self._chunk, limits.elements)
        self._load.chunks[self._place.kind_path] = self._chunk, self._unit_bytes

    def _size(self, sent: _Sent, block: Block) -> int:
        """The actual size of a chunk."""
        return sent.chunk

    def _submit(
        self,
        make: Callable[[int], Task],
        describe: Callable[[], str],
        worker: int | None = None,
        *,
        chunk: int | None = None,
    ) -> _Sent:
        late = self._late()

        def make_without_late(number: int) -> Task:
            return dataclasses.replace(make(number), late=tuple(late))  # type: ignore[type-var]

        def submit() -> PendingTask:
            return self._pool.submit(make_without_late if late else make, describe, worker)

        return _Sent(submit(), self._chunk if chunk is None else chunk, late, submit)

    def _late(self) -> list[str]:
        """The keys of elements that took too long, for a new task."""
        return []

    def _forget_tasks(self) -> None:
        with self._pool.locked():
            self._load.expected_bytes -= sum(sent.num_bytes for sent in self._tasks)
            self._pool.cancel([sent.pending for sent in self._tasks])
            self._tasks.clear()

    def _open_result(self, result: Result) -> Block:
        """The outputs of a result; if an error came after them, the next pull raises it."""
        self._watch(result.counts)
        if self._context.guard is not None:
            self._context.guard.count_read(result.read)
            self._context.guard.report(self._locate(result.bad))
        self._error = None if result.error is None else unpack_error(result.error)
        return result.block()

    def _locate(self, bad: Sequence[BadRecord]) -> list[BadRecord]:
        """Bad records that say where their elements are in the whole stream."""
        return list(bad)

    def _watch(self, counts: Any) -> None:
        """Reports what filters saw and kept."""
        for number, seen, kept in counts:
            if number not in self._watches:
                self._watches[number] = self._context.watch(all_operations(self._stage.top)[number])
            self._watches[number].count(seen, kept)

    def close(self, *, wait: bool = True) -> None:
        if not self._closed and not self._pool.closed:
            with self._pool.locked():
                self._load.num_streams -= self._is_source
                self._forget_tasks()
        self._closed = True


class IndexStageStream(StageStream):
    """A stage on a random-access chain: tasks are ranges of indices."""

    def __init__(self, stage: Stage, position: Position, prefetching: Prefetching, context: Context):
        super().__init__(stage, position, prefetching, context)
        self._origin, self._first = self.position, base_position(stage, self.position)
        self._next = self._first
        self._length = stage.base.parents[0].length()

    def _next_task(self) -> _Sent | None:
        first = self._next
        if first >= self._length:
            return None
        self._next = stop = min(first + self._stage.inputs * self._chunk, self._length)
        position = rebase(self._stage, self._origin, lambda _: first, inputs=first - self._first)
        task = IndexTask(self._place.path, portable(position), stop, self._stage.counts, self._single_step)
        return self._submit(lambda _: task, partial(self._describe, first, stop))

    def _describe(self, first: int, stop: int) -> str:
        indices = show_source_indices(self._stage.base, first, stop)
        return f"{show_elements(self._stage.top, first, stop)}; source indices {indices})"

    def _finish(self, result: Result) -> Run | None:
        positions = result.positions  # not `result` in the lambda: a position must not keep the outputs alive
        return self._run(self._open_result(result), lambda j: positions[j - 1])


class BlockStageStream(StageStream):
    """A stage on an ordering point: tasks are blocks that the consumer has computed."""

    _is_source = False

    def __init__(self, stage: Stage, position: Position, prefetching: Prefetching, context: Context):
        super().__init__(stage, position, prefetching, context)
        # Keep `None` for the start: a cache is filled, and used, only from there.
        self._parent = open_stream(stage.base, None if position is None else base_position(stage, position), context)
        self._origin = self.position
        self._inputs = 0
        self._runs: deque[Run] = deque()  # the inputs of the tasks under way

    def _has_room(self) -> bool:
        # Making a task may mean waiting for its elements; a result that is there should not wait for that.
        return super()._has_room() and not (len(self._tasks) > 1 and self._pool.ready(self._tasks[0].pending))

    def _next_task(self) -> _Sent | None:
        run = self._parent.pull(0 if self._single_step else self._chunk)
        while run is not None and not len(run.block):
            run = self._parent.pull(0 if self._single_step else self._chunk)
        if run is None:
            return None
        stage = self._stage
        block = run.block
        first = self._inputs
        position = rebase(stage, self._origin, lambda _: 0, inputs=first)
        task = BlockTask(self._place.path, portable(position), depth(stage), block, self._single_step)
        self._inputs += len(block)
        self._runs.append(run)
        return self._submit(lambda _: task, partial(self._describe, run), chunk=len(block))

    def _describe(self, run: Run) -> str:
        text = f"{len(run.block)} elements for {self._stage.top.label()}"
        begin, end = (index_in(self._stage.base, run.at(j)) for j in (0, len(run.block)))
        if begin is None or end is None:
            return f"{text} after position {run.at(0)}"
        # Within one window the position does not move, so the elements may come from anywhere in the window.
        (base, first), (_, stop) = begin, end
        return f"{text} (from source indices {show_source_indices(base, first, max(stop, first + 1))})"

    def _finish(self, result: Result) -> Run | None:
        at = self._runs[0].at
        positions = result.positions
        block = self._open_result(result)
        self._runs.popleft()
        return self._run(block, lambda j: rebase(self._stage, positions[j - 1], at))

    def _locate(self, bad: Sequence[BadRecord]) -> list[BadRecord]:
        at = self._runs[0].at  # the worker has counted elements from the start of its block
        base = places_base(self._stage.base)
        return [dataclasses.replace(each, **_locate(base, at, str(each.element))) for each in bad]

    def start(self) -> None:
        self._parent.start()

    def close(self, *, wait: bool = True) -> None:
        super().close(wait=wait)
        self._parent.close(wait=wait)


def _locate(base: Op | None, at: Callable[[int], Position], element: str) -> dict[str, Any]:
    """Where an element is that a worker has named by its number in a block, and by its children there."""
    number, _, children = element.partition(", child ")
    return where_after(base, at(int(number)), [int(each) for each in children.split(".") if each])  # type: ignore[arg-type]


class WholeStream(StageStream):
    """A stream that one worker computes: tasks ask for its next outputs."""

    _keys = itertools.count()

    def __init__(self, stage: Stage, position: Position, prefetching: Prefetching, context: Context):
        super().__init__(stage, position, prefetching, context)
        self._known = position  # the last position to resume from; `None` is the start
        self._key = next(WholeStream._keys)
        self._worker = self._pool.pick_worker()
        self._process: int | None = None  # the process that has the stream open
        self._asked = self._answered = 0
        self._late_ones: list[str] = []

    def _next_task(self) -> _Sent | None:
        number = self._asked
        n = 0 if self._single_step else self._chunk
        self._asked += 1

        def make(process: int) -> Task:
            # A process that has the stream open continues it; another one needs the position.
            is_new = process != self._process
            self._process = process
            return StreamTask(self._place.path, self._key, number, self._position_before(number) if is_new else None, n)

        return self._submit(make, self._describe, self._worker)

    def _late(self) -> list[str]:
        return self._late_ones  # one list for all tasks, since another one may read the elements again

    def _describe(self) -> str:
        return f"the outputs of {self._stage.top.label()} after position {self.position}"

    def _position_before(self, number: int) -> tuple[Position]:
        """The last position known before a task; all tasks before it have answers."""
        before = [self._pool.peek(self._tasks[i].pending) for i in range(number - self._answered)]
        found = next(
            (result.positions[-1:] for result in reversed(before) if result and result.positions), [self._known]
        )
        return (portable(*found),)

    def _size(self, sent: _Sent, block: Block) -> int:
        return len(block)

    def _finish(self, result: Result) -> Run | None:
        self._answered += 1
        if result.ended:
            self._ended = True
            self._forget_tasks()
            return None
        positions = result.positions
        run = self._run(self._open_result(result), lambda j: positions[j - 1])
        if positions:
            self._known = self.position
        return run

    def close(self, *, wait: bool = True) -> None:
        if not self._closed:
            self._pool.forget_stream(self._worker, CloseStream(self._place.path, self._key))
        super().close(wait=wait)


_STREAMS = {IndexStage: IndexStageStream, BlockStage: BlockStageStream, StreamStage: WholeStream}


class PrefetchedStream(Stream):
    """The stream of an `mp_prefetch`, computed by workers.

    If an index unexpectedly has no element, the counts that stages rely on are wrong. The stream then opens everything
    again at its position, with stages that do not rely on counts.
    """

    def __init__(
        self,
        start: Callable[[bool], Prefetching],
        position: Position,
        context: Context,
        end: Callable[[], None] | None,
    ):
        self._prefetching = start
        self._outer = context
        self._end = end
        self._stream = self._open(position, sparse=False)
        self._started = False
        super().__init__(self._stream.position)

    def _open(self, position: Position, *, sparse: bool) -> Stream:
        prefetching = self._prefetching(sparse)
        context = dataclasses.replace(
            self._outer,
            prefetch=Context.prefetch,
            processes=Context.processes,
            remote_stream=prefetching.remote_stream,
            enter=prefetching.stages.enter,
            lookahead=0 if prefetching.single_step else prefetching.pool.num_workers,
        )
        return open_stream(prefetching.stages.root, position, context)

    def pull(self, n: int) -> Run | None:
        if not self._started:
            self.start()
        try:
            run = self._stream.pull(n)
        except MissingElement:
            self._stream.close()
            self._stream = self._open(self.position, sparse=True)
            run = self._stream.pull(n)
        return None if run is None else self._run(*run)

    def ready(self) -> bool:
        return self._stream.ready()

    def start(self) -> None:
        self._started = True
        self._stream.start()

    def close(self, *, wait: bool = True) -> None:
        self._stream.close(wait=wait)
        if self._end is not None:
            self._end()
