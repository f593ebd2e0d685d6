"""Streams that workers compute: tasks go out in order, ahead of what is asked for, and results come back in order."""

import dataclasses
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace._executors.block_codec import pack, unpack
from headrace._executors.pool import Pool, Task
from headrace._executors.slots import Extent
from headrace._executors.tracebacks import unpacked_error
from headrace._ops.base import Op
from headrace._plan.blocks import Block
from headrace._plan.origins import index_in, show_elements, show_source_indices
from headrace._plan.stages import (
    ANY,
    BlockStage,
    IndexStage,
    Place,
    Stage,
    StreamStage,
    all_operations,
    base_position,
    depth,
    is_one_worker_stream,
    later,
    places_in_plan,
    portable,
    rebased,
    stages_up_to,
    start_of,
)
from headrace._plan.streams import Context, GapFound, Position, Run, Stream, open_stream
from headrace.options import MultiprocessingOptions

CHUNK_S = 0.004  # chunks grow while they take less than this
CHUNK_BYTES = 1 << 20  # and have less than this
LONGEST_CHUNK = 1 << 13
MOST_CHUNKS = 16  # under way for each worker


class Plan:
    """How one `mp_prefetch` is computed: which of its operations are stages, and where workers find them."""

    def __init__(
        self, root: Op, number: int, pool: Pool, options: MultiprocessingOptions, *, single_step: bool, gaps: bool
    ):
        self.root, self.pool, self.options, self.single_step = root, pool, options, single_step
        self._gaps = gaps
        self._places: weakref.WeakKeyDictionary[Op, Place] = weakref.WeakKeyDictionary()
        self._places.update(places_in_plan(root, (number,)))
        self._stages: weakref.WeakKeyDictionary[Op, Stage | None] = weakref.WeakKeyDictionary()

    def enter(self, interleave: Op, number: int, part: Op) -> None:
        """Notes where workers find a dataset of an interleave."""
        at = self._places[interleave]
        path, family = (*at.path, number), (*at.family, ANY)
        self._places.update(places_in_plan(part, path, family=family, is_part=True, weight=at.weight))

    def elsewhere(self, op: Op, position: Position, context: Context) -> Stream | None:
        """The stream of an operation that is a stage."""
        place = self._places[op]
        stage = StreamStage(op, op) if place.is_part and is_one_worker_stream(op) else self._stage(op)
        return None if stage is None else _STREAMS[type(stage)](stage, place, position, self, context)

    def _stage(self, op: Op) -> Stage | None:
        if op not in self._stages:
            self._stages.update(stages_up_to(op, gaps=self._gaps))
        return self._stages[op]


class StageStream(Stream):
    """The outputs of a stage, in order."""

    def __init__(self, stage: Stage, place: Place, position: Position, plan: Plan, context: Context):
        super().__init__(start_of(stage.top) if position is None else position)
        self._stage, self._place, self._plan, self._pool = stage, place, plan, plan.pool
        self._context = context
        self._tasks: deque[Task] = deque()
        # How much a chunk should hold, and how large a chunk of one is: as others like it found.
        self._chunk, self._unit_bytes = (1, 0.0) if plan.single_step else plan.pool.chunks.get(place.family, (1, 0.0))
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._watches: dict[int, Any] = {}
        with self._pool.locked():
            self._pool.num_stages += self._is_source

    _is_source = True  # not fed by another stage

    def pull(self, n: int) -> Run | None:
        if self._error is not None:
            raise self._error
        with self._pool.locked():  # another thread may find that this stream's worker has died
            self._work_ahead()
            while self._tasks:
                while not self._pool.wait(self._tasks[0]):
                    self._learn_size()
                    self._work_ahead()
                result = self._pool.result(self._tasks[0])
                task = self._tasks.popleft()
                self._pool.expected_bytes -= task.num_bytes
                run = self._finish(result)
                if run is not None:
                    self._adapt(task, run.block)
                    return run
            return None

    def ready(self) -> bool:
        return bool(self._tasks) and self._pool.ready(self._tasks[0])

    def start(self) -> None:
        with self._pool.locked():
            if self._pool.num_open < 2 * self._pool.num_workers:  # or the first that is asked for would have to wait
                self._work_ahead()

    def _work_ahead(self) -> None:
        """Gives out tasks as long as there is room."""
        while not self._ended and self._has_room():
            task = self._next_task()
            if task is None:
                self._ended = True
                return
            task.num_bytes = int(self._unit_bytes * task.chunk)
            self._pool.expected_bytes += task.num_bytes
            self._tasks.append(task)

    def _has_room(self) -> bool:
        under_way = len(self._tasks)
        if under_way == 0:
            return True
        if self._plan.single_step:
            return False
        options, workers = self._plan.options, self._pool.num_workers
        if not self._unit_bytes and under_way >= 2 * workers:
            return False  # until it is known how large they are
        ready = -(-options.per_worker_buffer_size * self._place.weight // self._chunk)
        most = workers * (1 + min(ready, MOST_CHUNKS))
        # Two at least, or nothing would be under way while a result is used.
        if under_way >= max(2, most // max(1, self._pool.num_stages)):
            return False
        return self._pool.expected_bytes + self._unit_bytes * self._chunk <= options.buffer_bytes

    def _learn_size(self) -> None:
        """While the next result is waited for: how large results are, if others tell."""
        if not self._unit_bytes:
            sizes = [task.answer.total / task.chunk for task in self._tasks if isinstance(task.answer, Extent)]
            self._unit_bytes = max(sizes, default=0.0)

    def _next_task(self) -> Task | None:
        raise NotImplementedError

    def _finish(self, result: Any) -> Run | None:
        """The run that a result is; `None` where it says that there is no more."""
        raise NotImplementedError

    def _adapt(self, task: Task, block: Block) -> None:
        """Chunks grow while they are cheap, and as long as was asked; one that is late halves them."""
        if self._plan.single_step:
            return
        size, num_bytes = max(1, self._size(task, block)), block.num_bytes()
        self._unit_bytes = max(self._unit_bytes * 0.9, num_bytes / size)
        if task.took_s > 4 * CHUNK_S:
            self._chunk = max(1, size // 2)
        elif task.took_s < CHUNK_S and 2 * num_bytes < CHUNK_BYTES and size >= self._chunk:
            self._chunk = min(2 * self._chunk, LONGEST_CHUNK)
        self._pool.chunks[self._place.family] = self._chunk, self._unit_bytes

    def _size(self, task: Task, block: Block) -> int:
        """How much a chunk held."""
        return task.chunk

    def _submit(self, make: Any, describe: Any, worker: int | None = None, *, chunk: int | None = None) -> Task:
        task = self._pool.submit(make, describe, worker)
        task.chunk = self._chunk if chunk is None else chunk
        return task

    def _forget_tasks(self) -> None:
        with self._pool.locked():
            self._pool.expected_bytes -= sum(task.num_bytes for task in self._tasks)
            self._pool.cancel(self._tasks)
            self._tasks.clear()

    def _opened(self, result: Any) -> tuple[Any, Any]:
        """The outputs of a result and the positions after them; the next pull raises an error that came after them."""
        packed, positions, counts, *error = result
        self._watch(counts)
        self._error = unpacked_error(error[0]) if error else None
        return packed, positions

    def _watch(self, counts: list[tuple[int, int, int]]) -> None:
        """Tells whoever watches filters what they saw and kept."""
        for number, seen, kept in counts:
            if number not in self._watches:
                self._watches[number] = self._context.watch(all_operations(self._stage.top)[number])
            self._watches[number].saw(seen, kept)

    def close(self, *, wait: bool = True) -> None:
        if not self._closed and not self._pool.closed:
            with self._pool.locked():
                self._pool.num_stages -= self._is_source
                self._forget_tasks()
        self._closed = True


class IndexStageStream(StageStream):
    """A stage on a random-access chain: tasks are ranges of indices."""

    def __init__(self, stage: Stage, place: Place, position: Position, plan: Plan, context: Context):
        super().__init__(stage, place, position, plan, context)
        self._origin, self._first = self.position, base_position(stage, self.position)
        self._next, self._length = self._first, stage.base.parents[0].length()

    def _next_task(self) -> Task | None:
        first = self._next
        if first >= self._length:
            return None
        self._next = stop = min(first + self._stage.inputs * self._chunk, self._length)
        position = self._origin
        if first > self._first:
            position = later(self._stage, self._origin, first - self._first, first)
        request = ("index", self._place.path, portable(position), stop, self._stage.counts, self._plan.single_step)
        return self._submit(lambda process: request, partial(self._describe, first, stop))

    def _describe(self, first: int, stop: int) -> str:
        indices = show_source_indices(self._stage.base, first, stop)
        return f"{show_elements(self._stage.top, first, stop)}; source indices {indices})"

    def _finish(self, result: Any) -> Run | None:
        packed, positions = self._opened(result)
        return self._run(unpack(packed), lambda j: positions[j - 1])


class BlockStageStream(StageStream):
    """A stage on an ordering point: tasks are blocks that the consumer has."""

    _is_source = False

    def __init__(self, stage: Stage, place: Place, position: Position, plan: Plan, context: Context):
        super().__init__(stage, place, position, plan, context)
        # The start stays `None`: a cache is only filled, and only used, from there.
        self._parent = open_stream(stage.base, None if position is None else base_position(stage, position), context)
        self._origin, self._inputs = self.position, 0
        self._runs: deque[Run] = deque()  # what the tasks under way were given

    def _has_room(self) -> bool:
        # Making a task may mean waiting for its elements, and a result that is there should not wait for that.
        return super()._has_room() and not (len(self._tasks) > 1 and self._pool.ready(self._tasks[0]))

    def _next_task(self) -> Task | None:
        run = self._parent.pull(0 if self._plan.single_step else self._chunk)
        while run is not None and not len(run.block):
            run = self._parent.pull(0 if self._plan.single_step else self._chunk)
        if run is None:
            return None
        stage, block, first = self._stage, run.block, self._inputs
        position = later(stage, self._origin, first, 0) if first else rebased(stage, self._origin, lambda _: 0)
        request = (
            "block",
            self._place.path,
            portable(position),
            depth(stage),
            partial(pack, block),
            self._plan.single_step,
        )
        self._inputs += len(block)
        self._runs.append(run)
        return self._submit(lambda process: request, partial(self._describe, run), chunk=len(block))

    def _describe(self, run: Run) -> str:
        text = f"{len(run.block)} elements for {self._stage.top.label()}"
        begin, end = (index_in(self._stage.base, run.at(j)) for j in (0, len(run.block)))
        if begin is None or end is None:
            return f"{text} after position {run.at(0)}"
        # The elements of one window, or the last few of it, are anywhere in it.
        (base, first), (_, stop) = begin, end
        return f"{text} (from source indices {show_source_indices(base, first, max(stop, first + 1))})"

    def _finish(self, result: Any) -> Run | None:
        packed, positions = self._opened(result)
        at = self._runs.popleft().at
        return self._run(unpack(packed), lambda j: rebased(self._stage, positions[j - 1], at))

    def start(self) -> None:
        self._parent.start()

    def close(self, *, wait: bool = True) -> None:
        super().close(wait=wait)
        self._parent.close(wait=wait)


class WholeStream(StageStream):
    """A stream that one worker computes: tasks ask for its next outputs."""

    _keys = itertools.count()

    def __init__(self, stage: Stage, place: Place, position: Position, plan: Plan, context: Context):
        super().__init__(stage, place, position, plan, context)
        self._known = position  # the last position to go on from; `None` is the start
        self._key = next(WholeStream._keys)
        self._worker = self._pool.choose_worker()
        self._process: int | None = None  # that has the stream open
        self._asked = self._answered = 0

    def _next_task(self) -> Task | None:
        number, n = self._asked, 0 if self._plan.single_step else self._chunk
        self._asked += 1

        def make(process: int) -> tuple[Any, ...]:
            # A process that has the stream open goes on with it; another one has to be told where.
            is_new, self._process = process != self._process, process
            return "stream", self._place.path, self._key, number, self._position_before(number) if is_new else None, n

        return self._submit(make, self._describe, self._worker)

    def _describe(self) -> str:
        return f"the outputs of {self._stage.top.label()} after position {self.position}"

    def _position_before(self, number: int) -> tuple[Position]:
        """The last position known before a task, all before it having been answered."""
        before = [self._pool.peek(self._tasks[i]) for i in range(number - self._answered)]
        found = next(((result[1][-1],) for result in reversed(before) if result and result[1]), (self._known,))
        return (portable(*found),)

    def _size(self, task: Task, block: Block) -> int:
        return len(block)

    def _finish(self, result: Any) -> Run | None:
        self._answered += 1
        if result is None:
            self._ended = True
            self._forget_tasks()
            return None
        packed, positions = self._opened(result)
        run = self._run(unpack(packed), lambda j: positions[j - 1])
        if positions:
            self._known = self.position
        return run

    def close(self, *, wait: bool = True) -> None:
        if not self._closed:
            self._pool.forget_stream(self._worker, ("drop", self._place.path, self._key))
        super().close(wait=wait)


_STREAMS = {IndexStage: IndexStageStream, BlockStage: BlockStageStream, StreamStage: WholeStream}


class PrefetchedStream(Stream):
    """What comes before an `mp_prefetch`, computed by workers.

    An index that turns out to have no element, though nothing said so, upsets the counts that stages rely on; then
    all is opened again where it is, and no stage relies on them.
    """

    def __init__(
        self,
        make_plan: Callable[[bool], Plan],
        position: Position,
        context: Context,
        end: Callable[[], None] | None,
    ):
        self._make_plan, self._outer, self._end = make_plan, context, end
        self._stream, self._started = self._open(position, gaps=False), False
        super().__init__(self._stream.position)

    def _open(self, position: Position, *, gaps: bool) -> Stream:
        plan = self._make_plan(gaps)
        context = dataclasses.replace(
            self._outer,
            ahead=lambda stream, _: stream,
            processes=lambda op, position, context: open_stream(op.parent, position, context),
            elsewhere=plan.elsewhere,
            enter=plan.enter,
            lookahead=0 if plan.single_step else plan.pool.num_workers,
        )
        return open_stream(plan.root, position, context)

    def pull(self, n: int) -> Run | None:
        if not self._started:
            self.start()
        try:
            run = self._stream.pull(n)
        except GapFound:
            self._stream.close()
            self._stream = self._open(self.position, gaps=True)
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
