"""A worker process: `python -m headrace._executors.worker`, started by `processes.py` and by nobody else.

It gets its plan once, then tasks one after the other, and answers each with a block in a slot of shared memory. It
ends when the consumer closes the connection, and when the consumer is gone, whoever still holds the pipes.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from headrace._executors import thread_executor, workers
from headrace._executors.block_codec import pack, unpack
from headrace._executors.imports import Missing
from headrace._executors.inline import InlineExecutor
from headrace._executors.messages import (
    ANSWER,
    FAILURE,
    MESSAGE_BYTES,
    NO_START,
    READY,
    RESULT,
    SKIPPED,
    STARTED_AS_WORKER,
    TASK,
)
from headrace._executors.shared_plan import find_culprit, open_shared_plan
from headrace._executors.slots import Extent, Slot, Writer, read
from headrace._executors.threads import Threads
from headrace._executors.tracebacks import packed_error
from headrace._ops.base import Op
from headrace._plan.blocks import Block, Rows, concat
from headrace._plan.kernels import fetcher, stacked_in
from headrace._plan.origins import last_own
from headrace._plan.stages import Path, all_operations, find, last_batch, portable
from headrace._plan.streams import Context, Run, Stream, open_stream
from headrace.compat.grain import as_grain
from headrace.compat.grain.marks import in_pipeline
from headrace.errors import WorkerError
from headrace.options import AUTOTUNE, ReadOptions

PR_SET_PDEATHSIG = 1
FAR = 1 << 30  # more elements than any chunk has


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the consumer's business
    os.environ.pop(STARTED_AS_WORKER, None)  # or programs that functions start would have it
    connection_fd, ring_fd, plan_fd, kill_with_parent, parent = map(int, sys.argv[1:])
    _end_with(parent, by_signal=bool(kill_with_parent))
    connection = socket.socket(fileno=connection_fd)
    index, count, plan, world = pickle.loads(_receive(connection) or _leave())
    known = read(Slot(ring_fd).bytes(world.total), world)
    _enter(known)
    workers.is_worker = True
    missing = Missing(known["imports"])
    try:
        pipelines, init = _open(plan_fd, plan, missing)
        if init is not None:
            _begin(init, index, count)
        worker = _Worker(pipelines, ring_fd, missing)
    except BaseException as e:
        _send(connection, ANSWER.pack(0, NO_START, 0, 0, 0.0) + packed_error(e, MESSAGE_BYTES // 2))
        _leave()
    _send(connection, ANSWER.pack(0, READY, 0, 0, 0.0))
    while message := _receive(connection):
        _send(connection, worker.answer(message))
    _leave()


def _open(fd: int, plan: Extent, missing: Missing) -> Any:
    try:
        return open_shared_plan(fd, plan)
    except LookupError:
        if not missing.import_rest():
            raise
    return open_shared_plan(fd, plan)


def _begin(init: Callable[[int, int], None], index: int, count: int) -> None:
    try:
        init(index, count)
    except BaseException as e:
        e.add_note(f"in worker_init_fn({index}, {count})")
        raise


def _enter(world: dict[str, Any]) -> None:
    """Makes the process see what its consumer sees."""
    sys.path[:], sys.argv[:] = world["path"], world["argv"]
    importlib.invalidate_caches()  # or a namespace package stays as it was found while the process started
    os.environ.pop("PYTHONPATH", None)
    if world["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = world["pythonpath"]
    as_grain.enforce(*world["as_grain"])


def _receive(connection: socket.socket) -> bytes:
    """The next message; nothing where the consumer has closed the connection."""
    try:
        return connection.recv(MESSAGE_BYTES)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, message: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # closed: the next receive will tell
        connection.send(message)


def _leave() -> NoReturn:
    """Ends the process: what the user registered for this is done, and nothing waits for threads."""
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end_with(parent: int, *, by_signal: bool) -> None:
    """Sees to it that the process ends when its parent is gone.

    A signal from the kernel comes even while a function holds the interpreter's lock, but it comes as well when only
    the parent's thread that started this process ends.
    """
    if by_signal and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, args=(parent,), name="headrace-parent", daemon=True).start()


def _watch(parent: int) -> None:
    try:
        parents_end = os.pidfd_open(parent)
    except (AttributeError, OSError):
        parents_end = None
    while os.getppid() == parent:
        if parents_end is None:
            time.sleep(0.5)
        else:
            select.select([parents_end], [], [])
    if os.getpgrp() == os.getpid():  # with whatever functions have started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _Worker:
    """Computes tasks."""

    def __init__(self, pipelines: list[Op], ring_fd: int, missing: Missing):
        self._pipelines, self._ring_fd, self._missing = pipelines, ring_fd, missing
        self._slots: dict[int, Slot] = {}
        self._found: dict[Path, Op] = {}
        self._fetchers: dict[int, tuple[Op, Any]] = {}
        self._streams: dict[int, tuple[Stream, _Counts, int]] = {}
        self._threads = Threads()
        self._cancelled_below = self._slot(0).bytes(8).view(np.int64)

    def answer(self, message: bytes) -> bytes:
        """The answer to a message."""
        number, slot_number, total, start = TASK.unpack_from(message)
        slot = self._slot(slot_number)
        begin = time.perf_counter()
        kind, writer = RESULT, Writer(slot)
        try:
            # What came in the slot is copied out: the answer will be written over it.
            inline = start < 0
            task = (
                pickle.loads(message[TASK.size :]) if inline else read(slot.bytes(total).copy(), Extent(total, start))
            )
            if number < self._cancelled_below[0] and task[0] != "drop":
                return ANSWER.pack(number, SKIPPED, 0, 0, 0.0)
            made = self._compute_with_all_there(task, writer)
            try:
                extent = writer.dump(made)
            except WorkerError:
                raise
            except Exception as e:
                raise _cannot_be_sent(self._find(task[1]), made, e) from e
        except BaseException as e:
            self._missing.explain(e)
            kind, extent = FAILURE, Writer(slot).dump(packed_error(e))
        return ANSWER.pack(number, kind, *extent, time.perf_counter() - begin)

    def _slot(self, number: int) -> Slot:
        if number not in self._slots:
            self._slots[number] = Slot(self._ring_fd, number)
        return self._slots[number]

    def _find(self, path: Path) -> Op:
        if path not in self._found:
            if len(self._found) > 1000:  # an interleave of very many datasets
                self._found.clear()
                self._fetchers.clear()
            self._found[path] = find(self._pipelines[path[0]], path[1:])
        return self._found[path]

    def _fetch(self, op: Op) -> Any:
        """One fetcher for all chunks: it keeps what it has planned."""
        if id(op) not in self._fetchers:
            self._fetchers[id(op)] = op, fetcher(op)
        return self._fetchers[id(op)][1]

    def _compute_with_all_there(self, task: tuple[Any, ...], writer: Writer) -> Any:
        """What is computed, with all modules there that a function may miss."""
        try:
            return self._compute(task, writer)
        except LookupError:
            # A stream that failed is opened again by the consumer, who knows where.
            if not self._missing.import_rest() or task[0] == "stream":
                raise
        return self._compute(task, writer)

    def _compute(self, task: tuple[Any, ...], writer: Writer) -> Any:
        """A block to pickle, the position after each output, and what filters saw; `None` at the end of a stream."""
        kind, path, *rest = task
        op = self._find(path)
        made = in_pipeline(getattr(self, f"_{kind}"), op, writer, *rest)
        if made is None:
            return None
        block, positions, counts, *error = made
        for each in error:
            self._missing.explain(each)
        return pack(block, writer), positions, counts.by_number(op), *map(packed_error, error)

    # ---- the kinds of tasks

    def _index(self, op: Op, writer: Writer, position: Any, stop: int, gapless: bool, single_step: bool) -> "_Made":
        """All outputs of a range of indices."""
        counts, batch = _Counts(), last_batch(op)
        if batch is not None:
            stacked_in[batch] = writer.empty
        try:
            stream = open_stream(op, position, self._context(counts, stop=stop, gapless=gapless))
            return _everything(stream, counts, single_step=single_step)
        finally:
            stacked_in.clear()

    def _block(self, op: Op, writer: Writer, position: Any, depth: int, packed: Any, single_step: bool) -> "_Made":
        """All outputs of a block of inputs, which the operation `depth` before this one has made."""
        counts, given = _Counts(), find(op, (0,) * depth)

        def elsewhere(op: Op, position: Any, context: Context) -> Stream | None:
            return _Given(unpack(packed)) if op is given else None

        stream = open_stream(op, position, self._context(counts, elsewhere=elsewhere))
        return _everything(stream, counts, single_step=single_step)

    def _stream(self, op: Op, writer: Writer, key: int, number: int, position: Any, n: int) -> "_Made | None":
        """The next outputs of a stream; `position` is where to open it, if it is not open here yet."""
        stream, counts, expected = self._streams.pop(key, (None, _Counts(), -1))
        if stream is None or expected != number:
            if position is None:
                raise WorkerError("A stream that failed was asked for more.")
            stream = open_stream(op, position[0], self._context(counts))
        run = stream.pull(n)
        self._streams[key] = stream, counts, number + 1
        return None if run is None else (run.block, _positions(run), counts)

    def _drop(self, op: Op, writer: Writer, key: int) -> None:
        """Closes a stream that nobody asks for any more."""
        stream, _, _ = self._streams.pop(key, (None, None, 0))
        if stream is not None:
            stream.close()

    def _context(self, counts: "_Counts", **settings: Any) -> Context:
        return Context(
            executor=self._executor,
            ahead=lambda stream, _: stream,
            processes=lambda op, position, context: open_stream(op.parent, position, context),
            watch=counts.watch,
            close=lambda **_: None,
            fetch=self._fetch,
            **settings,
        )

    def _executor(self, options: ReadOptions | None) -> Any:
        if options is None or options.num_threads in (0, AUTOTUNE):
            return InlineExecutor()
        return thread_executor(self._threads, options.num_threads, options)


_Made = tuple[Any, ...]  # a block, the positions after its outputs, `_Counts`, and, if one came then, an error


class _Counts:
    """What filters saw and kept, for the consumer to judge."""

    def __init__(self):
        self._counts: list[_Count] = []

    def watch(self, op: Op) -> "_Count":
        self._counts.append(_Count(op))
        return self._counts[-1]

    def by_number(self, top: Op) -> list[tuple[int, int, int]]:
        """For each filter: its number among all operations, seen, kept since this was last asked."""
        if not any(count.seen for count in self._counts):
            return []
        numbers = {op: i for i, op in enumerate(all_operations(top))}
        return [(numbers[count.op], *count.take()) for count in self._counts if count.op in numbers]


class _Count:
    def __init__(self, op: Op):
        self.op, self.seen, self.kept = op, 0, 0

    def saw(self, seen: int, kept: int) -> None:
        self.seen += seen
        self.kept += kept

    def take(self) -> tuple[int, int]:
        taken = self.seen, self.kept
        self.seen = self.kept = 0
        return taken


class _Given(Stream):
    """A block that is there; positions are counts of its elements."""

    def __init__(self, block: Block):
        super().__init__(0)
        self._block: Block | None = block

    def pull(self, n: int) -> Run | None:
        block, self._block = self._block, None
        return None if block is None else self._run(block, lambda j: j)


def _everything(stream: Stream, counts: "_Counts", *, single_step: bool) -> _Made:
    """All that a stream has, and the position after each output; in single steps, an error and what came before it."""
    blocks: list[Block] = []
    positions: Any = None
    errors: list[Exception] = []
    try:
        while (run := stream.pull(0 if single_step else FAR)) is not None:
            if len(run.block):
                blocks.append(run.block)
                found = _positions(run)
                positions = found if positions is None else [*positions, *found]
    except Exception as e:
        if not (single_step and blocks):
            raise
        errors.append(e)
    finally:
        stream.close()
    return concat(blocks) if blocks else Rows([], owned=True), positions or [], counts, *errors


def _positions(run: Run) -> Any:
    """The position after each output; consecutive numbers as a range."""
    count = len(run.block)
    if count and type(run.at(1)) is int:
        first, last = run.at(1), run.at(count)
        if last - first == count - 1:
            return range(first, last + 1)
    return [portable(run.at(j)) for j in range(1, count + 1)]


def _cannot_be_sent(op: Op, made: Any, error: Exception) -> WorkerError:
    """What is wrong with outputs that cannot be pickled."""
    last = last_own(op)
    path, what = find_culprit([("", row) for row in unpack(made[0]).rows()])
    found = f"{f'its {path}, ' if path else ''}{type(what).__name__},"
    return WorkerError(
        f"An output of {last.label()} (pipeline at {last.site}) cannot be sent from a worker process: {found} cannot "
        f"be pickled ({type(error).__name__}: {error}). Return arrays and plain objects, or put the operation after "
        "`mp_prefetch`."
    )


if __name__ == "__main__":
    main()
