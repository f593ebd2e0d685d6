"""Tasks for workers, and `TaskRunner`, which computes them: in a process, a thread, or on another machine.

A task names an operation by its path in the pipelines that all workers have. Its result is a block, the position after
each output, and what filters saw; so the results in order are the stream, whichever workers compute them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from headrace import trees
from headrace.engine.filling import fill_caches
from headrace.engine.plan import Path, all_operations, find, last_batch, portable
from headrace.engine.runtime import thread_executor
from headrace.engine.thread_executor import Threads
from headrace.engine.workers.imports import DeferredImports
from headrace.engine.workers.messages import FAILURE, RESULT
from headrace.engine.workers.plan_file import find_culprit
from headrace.engine.workers.slots import Slot, Writer
from headrace.engine.workers.tracebacks import pack_error
from headrace.errors import BadRecord, ElementTimeout, WorkerError
from headrace.errors.signals import in_pipeline
from headrace.ops.blocks import Block, Rows, concat
from headrace.ops.buffer import ToStream
from headrace.ops.guard import Guard, GuardedCall
from headrace.ops.inline import InlineExecutor
from headrace.ops.kernels import fetcher
from headrace.ops.op import Op
from headrace.ops.origins import last_visible_op
from headrace.ops.profile import Profile
from headrace.ops.recorder import Operations, StageRecord, Times
from headrace.ops.streams import Context, Position, Run, Stream, open_stream
from headrace.options import DatasetOptions, num_threads
from headrace.trees import Empty

# ----------------------------------------------------------------------------------------------------- block codec
# How a block travels from one process to another: rows of one kind travel as columns and arrive as rows again.


STACKED_BYTES = 1 << 14  # larger arrays are copied one by one, each to an aligned place
LONGEST_TUPLE = 16  # longer lists and tuples are not split into columns
_PLAIN = {int, float, bool, complex, str, bytes, type(None)}


class Memory(Protocol):
    """Makes the arrays of an encoded block."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array for the caller to fill."""
        ...

    def holds(self, array: np.ndarray) -> bool:
        """Whether `empty` made this array."""
        ...


class Heap:
    """Memory of this process, for results that are pickled whole."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def holds(self, array: np.ndarray) -> bool:
        return False


def encode(block: Block, memory: Memory) -> Any:
    """A block in a form to pickle; rows are split into columns where possible."""
    return _encode(block.items, memory, owned=block.owned) if isinstance(block, Rows) else block


def decode(encoded: Any) -> Block:
    """The block again; only the caller refers to its elements."""
    return encoded if isinstance(encoded, Block) else Rows(_decode(encoded), owned=True)


def _encode(rows: list[Any], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is np.ndarray:
        return _encode_arrays(rows, memory, owned=owned)
    if kind is dict:
        keys = tuple(rows[0])
        if keys and set(map(type, keys)) == {str} and all(tuple(row) == keys for row in rows):
            columns = [[row[key] for row in rows] for key in keys]
            if not _has_twice(columns):
                return dict, keys, [_encode(column, memory, owned=owned) for column in columns]
    elif kind in (tuple, list) and 0 < len(rows[0]) <= LONGEST_TUPLE and len(set(map(len, rows))) == 1:
        columns = [list(column) for column in zip(*rows, strict=True)]
        if not _has_twice(columns):
            return kind, None, [_encode(column, memory, owned=owned) for column in columns]
    elif kind is not None and trees.is_plain_number(kind) and len(rows) > 1:
        stacked = np.array(rows)
        if stacked.dtype.type is kind:
            return np.ndarray, None, stacked
    return None, None, rows if owned else [trees.copy_tree(row) for row in rows]


def _has_twice(columns: list[list[Any]]) -> bool:
    """Whether a row contains one object twice; it must arrive as one object, so the row is not split."""
    whole = [column for column in columns if type(column[0]) not in _PLAIN]
    return len(whole) > 1 and any(len(set(map(id, row))) < len(row) for row in zip(*whole, strict=True))


def _encode_arrays(rows: list[np.ndarray], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    first = rows[0]
    if first.dtype.hasobject:
        return None, None, rows if owned else [trees.copy_tree(row) for row in rows]
    is_small = 0 < first.nbytes < STACKED_BYTES and not memory.holds(first)
    if len(rows) > 1 and is_small and all(_like(row, first) for row in rows):
        stacked = memory.empty((len(rows), *first.shape), first.dtype)
        np.concatenate(rows, out=stacked.reshape(-1, *first.shape[1:]))
        return np.ndarray, None, stacked
    # A view is a new object: an array that occurs twice arrives as two.
    return None, None, [row if memory.holds(row) else row.view() for row in rows]


def _like(row: np.ndarray, first: np.ndarray) -> bool:
    return row.ndim > 0 and row.shape == first.shape and row.dtype == first.dtype and row.flags.c_contiguous


def _decode(encoded: tuple[Any, ...]) -> list[Any]:
    kind, keys, content = encoded
    if kind is None:
        return content
    if kind is np.ndarray:
        return list(content)
    columns = zip(*map(_decode, content), strict=True)
    if kind is dict:
        return [dict(zip(keys, values, strict=True)) for values in columns]
    return [kind(values) for values in columns]


UNBOUNDED = 1 << 30  # more elements than any chunk has
MOST_FOUND = 1000  # the most operations to remember by path


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a task.

    Attributes:
        encoded: The outputs, as `encode` makes them.
        positions: The position after each output.
        counts: For each filter, its number among all operations, how many elements it saw, and how many it kept.
        error: An error that came after these outputs.
        ended: Whether a stream has ended.
        bad: The bad records among the inputs, in order.
        read: How many records were read.
        times: The seconds and outputs of each operation.
        took_s: How long it took to compute.
        cpu_s: How much of that was on a core.
    """

    encoded: Any = None
    positions: Sequence[Position] = ()
    counts: Sequence[tuple[int, int, int]] = ()
    error: bytes | None = None
    ended: bool = False
    bad: Sequence[BadRecord] = ()
    read: int = 0
    times: Times = ()
    took_s: float = 0.0
    cpu_s: float = 0.0

    def block(self) -> Block:
        """The outputs."""
        return decode(self.encoded)


class Task(Protocol):
    """Work for a worker, on the operation at `path`."""

    @property
    def path(self) -> Path: ...

    @property
    def late(self) -> tuple[str, ...]:
        """The keys of elements that took too long when a worker computed the task before."""
        ...

    def run(self, runner: "TaskRunner", op: Op, memory: Memory) -> Result | None:
        """Computes the task; arrays of the result may be made in `memory`."""
        ...


@dataclass(frozen=True, slots=True)
class IndexTask:
    """All outputs for a range of indices: from a position of the operation up to index `stop`.

    With `dense`, an index without an element is an error.
    """

    path: Path
    position: Position
    stop: int
    dense: bool
    single_step: bool
    late: tuple[str, ...] = ()

    def run(self, runner: "TaskRunner", op: Op, memory: Memory) -> Result:
        counts = Counts()
        context = runner.context(counts, stacked=last_batch(op), in_memory=memory, stop=self.stop, dense=self.dense)
        stream = open_stream(op, self.position, context)
        return runner.everything(stream, op, counts, memory, single_step=self.single_step)


@dataclass(frozen=True, slots=True)
class BlockTask:
    """All outputs for a block of inputs, which come from the operation `depth` steps before this one."""

    path: Path
    position: Position
    depth: int
    block: Any
    single_step: bool
    late: tuple[str, ...] = ()

    def encoded(self, memory: Memory) -> "BlockTask":
        """The task with its block in a form to pickle."""
        return replace(self, block=encode(self.block, memory))

    def run(self, runner: "TaskRunner", op: Op, memory: Memory) -> Result:
        counts = Counts()
        given = find(op, (0,) * self.depth)

        def remote_stream(op: Op, position: Any, context: Context) -> Stream | None:
            return BlockInput(decode(self.block)) if op is given else None

        stream = open_stream(op, self.position, runner.context(counts, remote_stream=remote_stream))
        return runner.everything(stream, op, counts, memory, single_step=self.single_step)


@dataclass(frozen=True, slots=True)
class StreamTask:
    """About `n` more outputs of a stream that a worker keeps open, as request number `number` on it.

    `position` is where to open the stream, in a tuple; `None` if the worker has it open.
    """

    path: Path
    key: int
    number: int
    position: tuple[Position] | None
    n: int
    late: tuple[str, ...] = ()

    def run(self, runner: "TaskRunner", op: Op, memory: Memory) -> Result:
        stream, counts, expected = runner.streams.pop(self.key, (None, Counts(), -1))
        if stream is None or expected != self.number:
            if self.position is None:
                raise WorkerError("This stream failed earlier and cannot continue. Restore a state in a new iterator.")
            stream = open_stream(op, self.position[0], runner.context(counts))
        run = stream.pull(self.n)
        runner.streams[self.key] = stream, counts, self.number + 1
        if run is None:
            return Result(ended=True)
        return Result(encode(run.block, memory), _positions(run), counts.by_number(op))


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Closes a stream that the consumer no longer needs."""

    path: Path
    key: int
    late: tuple[str, ...] = ()

    def run(self, runner: "TaskRunner", op: Op, memory: Memory) -> None:
        stream, _, _ = runner.streams.pop(self.key, (None, None, 0))
        if stream is not None:
            stream.close()


class TaskRunner:
    """Computes tasks of some pipelines, one after the other."""

    def __init__(
        self,
        pipelines: list[Op],
        options: DatasetOptions,
        explain: Callable[[BaseException], None] = lambda error: None,
        is_lost: Callable[[Exception], bool] = lambda error: False,
    ):
        self.explain = explain  # adds notes to an error
        self._bad: list[BadRecord] = []  # since the task began
        self._read = 0
        self.guard: Guard | None = None
        if not options.on_error.raises or options.timeout_s is not None:
            self.guard = Guard(options.on_error, self._bad.extend, self._saw, is_lost, options.timeout_s)
        self.streams: dict[int, tuple[Stream, Counts, int]] = {}
        self._pipelines = pipelines
        self._found: dict[Path, Op] = {}
        self._fetchers: dict[int, tuple[Op, Any]] = {}
        self._threads = Threads()
        self._operations = Operations()  # those that threads compute

    def run(self, task: Task, memory: Memory) -> Result | None:
        """Computes a task."""
        self._bad.clear()
        self._read = 0
        if self.guard is not None:
            self.guard.known = task.late
        profile = Profile()
        try:
            result = profile.run(in_pipeline, task.run, self, self.find(task.path), memory)
        finally:
            if self.guard is not None:
                self.guard.now.clear()
        if result is None:
            return None
        times = [(self._operations.label(op), time.seconds, time.elements) for op, time in profile.times.items()]
        times += self._operations.take()
        took_s = profile.took_s
        cpu_s = profile.cpu_s
        return replace(result, bad=list(self._bad), read=self._read, times=times, took_s=took_s, cpu_s=cpu_s)

    def _saw(self, count: int) -> None:
        self._read += count

    def find(self, path: Path) -> Op:
        """The operation at a path."""
        if path not in self._found:
            if len(self._found) > MOST_FOUND:  # an interleave of very many datasets
                self._found.clear()
                self._fetchers.clear()
            self._found[path] = find(self._pipelines[path[0]], path[1:])
        return self._found[path]

    def context(
        self, counts: "Counts", *, stacked: Op | None = None, in_memory: Memory | None = None, **settings: Any
    ) -> Context:
        """What the streams of a task run on: nothing is computed ahead, and there are no workers.

        The batches of the operation `stacked` are stacked in the memory `in_memory`.
        """
        empty = None if in_memory is None else in_memory.empty
        return Context(
            executor=self._executor,
            watch=counts.watch,
            fetch=lambda op, guard: self._fetch(op, stacked, empty),
            fill=fill_caches,
            guard=self.guard,
            memory=lambda op: empty if op is stacked else None,
            record=lambda op, where: StageRecord(where, op, self._operations),
            **settings,
        )

    def everything(self, stream: Stream, op: Op, counts: "Counts", memory: Memory, *, single_step: bool) -> Result:
        """All outputs of a stream; in single steps, an error comes with the outputs before it."""
        blocks: list[Block] = []
        positions: Any = None
        error = None
        try:
            while (run := stream.pull(0 if single_step else UNBOUNDED)) is not None:
                if len(run.block):
                    blocks.append(run.block)
                    found = _positions(run)
                    positions = found if positions is None else [*positions, *found]
        except Exception as e:
            if not (single_step and blocks):
                raise
            self.explain(e)
            error = pack_error(e)
        finally:
            stream.close()
        block = concat(blocks) if blocks else Rows([], owned=True)
        return Result(encode(block, memory), positions or [], counts.by_number(op), error)

    def _fetch(self, op: Op, stacked: Op | None, empty: Empty | None) -> Any:
        """One fetcher for all chunks, since it caches its index blocks."""
        batch = last_batch(op)
        if id(op) not in self._fetchers:
            self._fetchers[id(op)] = op, fetcher(batch or op, self.guard)
        fetch = self._fetchers[id(op)][1]
        return partial(fetch, empty=empty) if batch is not None and batch is stacked else fetch

    def _executor(self, op: ToStream) -> Any:
        options = op.read_options
        threads = num_threads(options, in_worker=True)
        if threads == 0:
            return InlineExecutor()
        assert options is not None
        return thread_executor(self._threads, threads, options)


class Counts:
    """What filters saw and kept, to report to the consumer."""

    def __init__(self):
        self._counts: list[_Count] = []

    def watch(self, op: Op) -> "_Count":
        self._counts.append(_Count(op))
        return self._counts[-1]

    def by_number(self, top: Op) -> list[tuple[int, int, int]]:
        """For each filter, its number among all operations, and the counts seen and kept since the last call."""
        if not any(count.seen for count in self._counts):
            return []
        numbers = {op: i for i, op in enumerate(all_operations(top))}
        return [(numbers[count.op], *count.take()) for count in self._counts if count.op in numbers]


class _Count:
    def __init__(self, op: Op):
        self.op = op
        self.seen = 0
        self.kept = 0

    def count(self, seen: int, kept: int) -> None:
        self.seen += seen
        self.kept += kept

    def take(self) -> tuple[int, int]:
        taken = self.seen, self.kept
        self.seen = self.kept = 0
        return taken


class BlockInput(Stream):
    """A stream of one given block; positions are counts of its elements."""

    is_relative = True

    def __init__(self, block: Block):
        super().__init__(0)
        self._block: Block | None = block

    def pull(self, n: int) -> Run | None:
        block = self._block
        self._block = None
        return None if block is None else self._run(block, lambda j: j)


def _positions(run: Run) -> Any:
    """The position after each output; consecutive numbers as a range."""
    count = len(run.block)
    if count and type(run.at(1)) is int:
        first = run.at(1)
        last = run.at(count)
        if last - first == count - 1:
            return range(first, last + 1)
    return [portable(run.at(j)) for j in range(1, count + 1)]


# ----------------------------------------------------------------------------------------------------- task server
# What every worker does with a task, wherever it runs: computes it, lays out the result in a slot, explains errors.


class TaskServer:
    """Answers tasks with results in slots."""

    def __init__(
        self,
        pipelines: list[Op],
        options: DatasetOptions,
        missing: DeferredImports,
        pack: Callable[[Writer, Any], Any] = Writer.dump,
    ):
        self._pack = pack
        self._runner = TaskRunner(pipelines, options, missing.explain, missing.may_be_cause_of)
        self._missing = missing
        self._timeout_s = options.timeout_s

    def answer(self, task: Task, slot: Slot) -> tuple[int, Any]:
        """Computes a task; returns whether that failed, and what `pack` makes of the result or the error."""
        try:
            writer = Writer(slot)
            # A stream that failed is not run again here: the consumer opens it again at the right position.
            run = self._runner.run if isinstance(task, StreamTask) else self._missing.retry(self._runner.run)
            result = run(task, writer)
            try:
                return RESULT, self._pack(writer, result)
            except WorkerError:
                raise
            except Exception as e:
                raise _unpicklable_error(self._runner.find(task.path), result, e) from e
        except BaseException as e:
            return self.failure(e, slot)

    def failure(self, error: BaseException, slot: Slot) -> tuple[int, Any]:
        """The answer to a task that failed."""
        self._missing.explain(error)
        return FAILURE, self._pack(Writer(slot), pack_error(error))

    def late_step(self) -> GuardedCall | None:
        """The call that has taken more than `timeout_s`, if there is one."""
        if self._timeout_s is None or self._runner.guard is None:
            return None
        begun = time.monotonic() - self._timeout_s
        return next((step for step in list(self._runner.guard.now.values()) if step.since < begun), None)

    def late_error(self, step: GuardedCall) -> ElementTimeout:
        """The error of a call that has taken too long."""
        where = step.where(step.j or 0)
        which = "elements from" if step.j is None else "element"
        origin = where.get("file") or where.get("source")
        record = "" if origin is None else f" (record {where['index']} of {origin})"
        error = ElementTimeout(
            f"{step.op.label()} (pipeline at {step.op.site}) took more than timeout_s={self._timeout_s:g} for {which} "
            f"{where['element']}{record}, so its worker process was ended."
        )
        error.key = "" if step.ends_run else step.key
        return error


def begin(init: Callable[[int, int], None] | None, index: int, count: int) -> None:
    """Calls the user's `worker_init_fn`."""
    try:
        if init is not None:
            init(index, count)
    except BaseException as e:
        e.add_note(f"in worker_init_fn({index}, {count})")
        raise


def _unpicklable_error(op: Op, result: Any, error: Exception) -> WorkerError:
    """The error for outputs that cannot be pickled."""
    last = last_visible_op(op)
    path, what = find_culprit([("", row) for row in result.block().rows()])
    found = f"{f'its {path}, ' if path else ''}{type(what).__name__},"
    return WorkerError(
        f"An output of {last.label()} (pipeline at {last.site}) cannot be sent from a worker process: {found} cannot "
        f"be pickled ({type(error).__name__}: {error}). Return arrays and plain objects, or move the operation after "
        "`mp_prefetch`."
    )
