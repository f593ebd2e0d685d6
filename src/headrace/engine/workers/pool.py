"""The pool of worker processes: sends them tasks, waits for answers, and replaces workers that die.

A pool belongs to one iterator at a time. It has no thread: it reads messages while a caller waits for a result.
A task goes to the worker with the fewest tasks, and it always ends in an answer or an error, even if that worker dies:
the pool replaces a dead worker and sends its tasks again, since they are pure. A task that has killed two workers ends
in an error. The number of workers can be changed at any time: those that leave answer their tasks first.
"""

import atexit
import contextlib
import os
import pickle
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from headrace.engine.workers import imports
from headrace.engine.workers.messages import ANSWER, FAILURE, NO_START, READY, SKIPPED, TASK
from headrace.engine.workers.plan_file import SharedPlan
from headrace.engine.workers.process import HAS_PIDFD, Process, ctrl_c_later, ending, worker_command, worker_environment
from headrace.engine.workers.slots import Extent, Slot, Slots, Writer, read
from headrace.engine.workers.tasks import BlockTask, Task
from headrace.engine.workers.template import templates
from headrace.engine.workers.tracebacks import unpack_error
from headrace.errors import ClosedError, ElementTimeout, WorkerError
from headrace.errors.signals import let_through
from headrace.protocols import ChunkLimits, PoolLoad

# --------------------------------------------------------------------------------------------------------- closing
# What pools of workers have in common: one thread uses one at a time, waiting can be interrupted, and it ends once.


P = TypeVar("P", bound="PoolBase")


class PoolBase:
    """The part of a `TaskPool` that does not depend on what its workers are."""

    def __init__(self, shared_plan: SharedPlan):
        self.plan = shared_plan
        self.load = PoolLoad()
        self.interrupted = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = self._given_back = False
        try:
            self.plan.users.add(id(self))
            _pools.add(self)
            self._start()
        except BaseException:
            self.close(wait=False)
            raise

    def _start(self) -> None:
        """Starts the workers."""
        raise NotImplementedError

    def _end(self, *, wait: bool) -> None:
        """Ends the workers and releases memory; after an exception it is called again, and continues with the rest."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Makes every thread that waits for a result stop."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the pool cannot be used any more; in a fork of its process, it never can be."""
        return self._closed or os.getpid() != self._pid

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One thread at a time; Ctrl-C can leave the pool in any state, so the pool is closed then."""
        self._check(even_if_interrupted=True)
        try:
            with self._lock:
                yield
        except Exception:
            raise
        except BaseException:
            self.close(wait=False)
            raise

    def _check(self, *, even_if_interrupted: bool = False) -> None:
        if self.closed or (self.interrupted and not even_if_interrupted):
            raise ClosedError("The workers of this iterator were closed while it waited for them.")

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers and releases their memory, apart from arrays still in use.

        If a signal handler raises meanwhile, the next call continues with the rest.
        """
        if self._given_back or os.getpid() != self._pid:
            return
        self.interrupt()
        with ctrl_c_later(), self._lock:
            if self._given_back:
                return
            self._closed = True
            self._end(wait=wait)
            self.plan.give_up(id(self))
            _pools.discard(self)
            self._given_back = True

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        # At exit, `_close_all` has run, and modules may be gone. Without the attribute, an interrupt came at the start
        # of `__init__`.
        if not is_finalizing() and hasattr(self, "_given_back"):
            self.close(wait=False)


_pools: "weakref.WeakSet[PoolBase]" = weakref.WeakSet()


def open_pools(kind: type[P]) -> list[P]:
    """The open pools of a kind in this process."""
    return [pool for pool in list(_pools) if isinstance(pool, kind)]


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


GRACE_S = 1.0  # how long a worker may take to end by itself
GRACE_DROPPED_S = 0.1  # the same with `wait=False`
BLIND_S = 0.2  # without pidfds, how often to check whether a process has ended
FULL_S = 0.01  # how often to retry sending a task to a worker that has no room for it
INLINE_BYTES = 1 << 14 if sys.platform == "linux" else 1 << 10  # a longer task travels in its slot
STUCK_S = 10.0  # a worker whose threads have not run for this long is stuck
LEASED_SLOTS = 8  # how many blocks a consumer may keep without a copy, besides one per worker


class PendingChunk:
    """A task under way; `make(number)` makes the task when it is sent to the process of that number."""

    __slots__ = ("answer", "attempts", "cancelled", "describe", "make", "number", "slot", "took_s")

    def __init__(self, number: int, make: Callable[[int], Task], describe: Callable[[], str]):
        self.number = number
        self.make = make
        self.describe = describe
        self.attempts = 0
        self.slot: Slot | None = None
        self.answer: Extent | BaseException | None = None
        self.took_s = 0.0
        self.cancelled = False

    @property
    def num_bytes(self) -> int | None:
        """The size of the result, once it is there."""
        return self.answer.total if isinstance(self.answer, Extent) else None


class ProcessPool(PoolBase):
    """A `TaskPool` of worker processes with one plan."""

    chunk_limits = ChunkLimits()

    def __init__(self, shared_plan: SharedPlan, num_workers: int):
        self.num_workers = num_workers
        self.worked_s = 0.0  # how long workers have computed, in all
        self._next_number = 1
        self._bad_starts = 0
        self._wake_fds: list[int] = []  # the two ends of a pipe: to read from, to write to
        self._processes: list[Process] = []  # those that leave are the last
        self._left: list[Process] = []  # those that were asked to end
        super().__init__(shared_plan)

    def _start(self) -> None:
        self.slots = Slots(LEASED_SLOTS + self.num_workers)
        self._control = self.slots.take()  # its first 8 bytes: the number below which tasks are cancelled
        self._wake_fds += os.pipe()
        world = {
            "path": sys.path,
            "argv": sys.argv,
            "pythonpath": os.environ.get("PYTHONPATH"),
            "set_ups": imports.worker_set_ups(),
            "imports": imports.main_script_imports(),
        }
        self.world = Writer(self._control, start=8).dump(world)
        self._add(self.num_workers)

    def _add(self, count: int) -> None:
        with ctrl_c_later():
            template = templates.find(worker_command(), worker_environment())
        for _ in range(count):
            with ctrl_c_later():
                self._processes.append(Process(len(self._processes)))
                try:
                    self._processes[-1].start(self, template)
                except BaseException:
                    self._processes[-1].end(time.monotonic())
                    self._processes.pop()
                    raise
        for process in self._processes[-count:]:  # they start up while this writes the plan
            process.set_up(self)

    # ---- the number of workers

    def resize(self, num_workers: int) -> None:
        """Changes the number of workers; one that computes a whole stream stays, and so do those before it.

        If the system allows no more processes, there are as many as it does: see `num_workers`.
        """
        with self.locked():
            self._check()
            busy = max((process.index + 1 for process in self._processes if process.num_streams), default=1)
            self.num_workers = max(num_workers, busy)
            self.slots.lease_up_to(LEASED_SLOTS + self.num_workers)
            try:
                while len(self._processes) < self.num_workers:
                    self._add(1)
            except (WorkerError, OSError) as e:
                let_through(e)
                self.num_workers = len(self._processes)
            self._release_workers()

    def all_ready(self) -> bool:
        """Whether all workers have started."""
        with self.locked():
            if not all(process.ready for process in self._at_work):
                self._check()
                self._read_answers(0)
            return all(process.ready for process in self._at_work)

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers."""
        return [process.process.pid for process in self._at_work if process.process is not None]

    @property
    def _at_work(self) -> list[Process]:
        return self._processes[: self.num_workers]

    def _release_workers(self) -> None:
        """Ends workers that are too many and have answered their tasks."""
        while len(self._processes) > self.num_workers and not self._processes[-1].tasks:
            self._processes[-1].ask_to_end()
            self._left.append(self._processes.pop())
        for process in [each for each in self._left if each.is_dead()]:
            process.end(time.monotonic())
            self._left.remove(process)

    @property
    def num_open(self) -> int:
        """The number of tasks under way."""
        return sum(len(process.tasks) for process in self._processes)

    # ---- tasks

    def submit(
        self, make: Callable[[int], Task], describe: Callable[[], str], worker: int | None = None
    ) -> PendingChunk:
        """Gives a task to a worker."""
        with self.locked():
            self._check()
            if worker is None:
                worker = min(self._at_work, key=lambda process: (not process.ready, len(process.tasks))).index
            pending = self._new_task(make, describe)
            self._send(worker, pending)
            return pending

    def _new_task(self, make: Callable[[int], Task], describe: Callable[[], str]) -> PendingChunk:
        pending = PendingChunk(self._next_number, make, describe)
        self._next_number += 1
        return pending

    def pick_worker(self) -> int:
        """Chooses a worker for a whole stream."""
        with self.locked():
            process = min(self._at_work, key=lambda process: process.num_streams)
            process.num_streams += 1
            return process.index

    def forget_stream(self, worker: int, task: Task) -> None:
        """Asks a worker to close a stream that it keeps open."""
        if self.closed:
            return
        with self.locked():
            process = self._processes[worker]
            process.num_streams -= 1
            pending = self._new_task(lambda process: task, str)
            pending.cancelled = True
            pending.slot = self.slots.take()
            if process.send(_message(pending, task)):
                process.tasks.append(pending)
            else:  # do not wait for room: the worker keeps the stream until it ends
                self._drop(pending)

    def ready(self, pending: PendingChunk) -> bool:
        """Whether the answer is there."""
        with self.locked():
            if pending.answer is None:
                self._read_answers(0)
            return pending.answer is not None

    def wait(self, pending: PendingChunk) -> bool:
        """Waits until any task has an answer; returns whether this one has."""
        with self.locked():
            if pending.answer is None:
                self._check()
                self._read_answers(None)
            return pending.answer is not None

    def result(self, pending: PendingChunk) -> Any:
        """Takes the answer to a task that has one; raises it if it is an error."""
        with self.locked():
            answer = pending.answer
            slot = pending.slot
            if isinstance(answer, BaseException):
                raise answer
            assert answer is not None
            assert slot is not None
            pending.slot = None
            return self.slots.read(slot, answer)

    def peek(self, pending: PendingChunk) -> Any:
        """A copy of the answer to a task, without taking it; `None` if there is none."""
        if not isinstance(pending.answer, Extent) or pending.slot is None:
            return None
        return read(pending.slot.bytes(pending.answer.total).copy(), pending.answer)

    def cancel(self, pending: Iterable[PendingChunk]) -> None:
        """Drops tasks; workers skip those that they have not begun, if nothing else is under way."""
        if self.closed:
            return
        with self.locked():
            for each in pending:
                each.cancelled = True
                if each.answer is not None:
                    self._drop(each)
            if all(each.cancelled for process in self._processes for each in process.tasks):
                self._control.bytes(8).view(np.int64)[0] = self._next_number

    def _send(self, worker: int, pending: PendingChunk) -> None:
        pending.slot = pending.slot or self.slots.take()
        try:
            process = self._processes[worker]
            message = _message(pending, pending.make(process.number))
            while not process.send(message):
                # A worker that has no room for tasks may be waiting for room for its answers.
                self._read_answers(FULL_S)
                self._check()
                if process is not self._processes[worker]:  # it died meanwhile
                    process = self._processes[worker]
                    message = _message(pending, pending.make(process.number))
            if not process.tasks:
                process.since = time.monotonic()
            process.tasks.append(pending)
        except Exception:
            self._drop(pending)
            raise

    def _drop(self, pending: PendingChunk) -> None:
        if pending.slot is not None:
            size = pending.answer.total if isinstance(pending.answer, Extent) else 0
            self.slots.give_back(pending.slot, size)
            pending.slot = None

    # ---- answers

    def _read_answers(self, timeout_s: float | None) -> None:
        """Waits until a message arrives or a worker ends, and handles all that have."""
        poll = select.poll()
        poll.register(self._wake_fds[0], select.POLLIN)
        for process in self._processes:
            for fd in (process.socket.fileno(), process.end_fd):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
        if timeout_s is None and not HAS_PIDFD:
            timeout_s = BLIND_S
        if timeout_s is None and self.plan.options.timeout_s is not None:
            timeout_s = STUCK_S / 4
            self._end_stuck()
        found = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        for process in list(self._processes):
            if process in self._processes and ({process.socket.fileno(), process.end_fd} & found or not HAS_PIDFD):
                self._take_in(process)  # may replace others
        if len(self._processes) > self.num_workers:
            self._release_workers()

    def _take_in(self, process: Process) -> None:
        messages = process.messages()
        dead = b"" in messages or process.is_dead()
        if dead:
            messages += process.messages()
        for message in messages:
            if message:
                self._receive_answer(process, message)
        if dead and not self._closed and self._processes[process.index] is process:
            self._replace(process)

    def _receive_answer(self, process: Process, message: bytes) -> None:
        number, kind, total, start, took_s = ANSWER.unpack_from(message)
        if kind == READY:
            process.ready = True
            self._bad_starts = 0
            return
        if kind == NO_START:
            self.close(wait=False)
            raise unpack_error(message[ANSWER.size :])
        pending = process.tasks.popleft()
        assert pending.number == number
        pending.took_s = took_s
        self.worked_s += took_s
        pending.answer = Extent(total, start)
        process.since = time.monotonic()
        if kind == FAILURE:
            assert pending.slot is not None
            slot = pending.slot
            pending.slot = None
            pending.answer = unpack_error(self.slots.read_copy(slot, Extent(total, start)))
            process.is_late = isinstance(pending.answer, ElementTimeout)
        if pending.cancelled or kind == SKIPPED:
            self._drop(pending)

    # ---- workers that take long

    def work_of_workers(self) -> list[str]:
        """What each worker that has work is doing, with its stacks."""
        found = []
        for process in list(self._processes):
            tasks = list(process.tasks)
            if process.is_dead() or process.process is None or (process.ready and not tasks):
                continue
            pid = process.process.pid
            doing = f"is computing {tasks[0].describe()}" if process.ready else "is starting"
            stacks = process.stacks.of(pid) if process.ready else ""
            found.append(f"Worker {process.index} (process {pid}) {doing}:\n{stacks}".rstrip())
        return found

    def _end_stuck(self) -> None:
        """Ends workers that are late and cannot end themselves, because a function holds Python's lock."""
        most_s = self.plan.options.timeout_s or 0.0
        for process in self._processes:
            is_late = process.tasks and process.ready and time.monotonic() - process.since > most_s + STUCK_S
            if is_late and process.process is not None and process.stacks.seconds_since_touched() > STUCK_S:
                process.process.kill()

    # ---- death

    def _replace(self, dead: Process) -> None:
        """Starts another worker in place of a dead one, and sends it the dead one's remaining tasks."""
        dead.ask_to_end()
        status = dead.end(time.monotonic() + GRACE_S)  # wait: a process that ends by itself has a telling status
        if not dead.ready:
            self._bad_starts += 1
            if self._bad_starts > 2:
                self.close(wait=False)
                raise WorkerError(
                    f"Worker processes end during startup ({ending(status)}). Their standard error may show why; "
                    "check `worker_init_fn`, and what the pipeline's modules do when imported."
                )
        try:
            with ctrl_c_later():
                template = templates.find(worker_command(), worker_environment())
                new = self._processes[dead.index] = Process(dead.index)
                new.start(self, template)
        except Exception:
            self.close(wait=False)
            raise
        new.set_up(self)
        new.num_streams = dead.num_streams
        if dead.tasks and dead.ready and not dead.is_late:
            self._blame(dead.tasks[0], status)
        for pending in dead.tasks:
            if pending.cancelled or pending.answer is not None:
                self._drop(pending)
                continue
            if self._closed:
                return
            try:
                self._send(dead.index, pending)
            except Exception as e:
                let_through(e)
                pending.answer = e

    def _blame(self, pending: PendingChunk, status: int) -> None:
        """Counts a worker's death against a task; the second one becomes the task's answer."""
        pending.attempts += 1
        if pending.attempts > 1:
            pending.answer = WorkerError(
                f"A worker process ended ({ending(status)}) while computing {pending.describe()}, and so did the one "
                "that retried. If memory ran out, reduce num_workers in MultiprocessingOptions; otherwise check what "
                "the pipeline's functions do with these elements."
            )

    # ---- the end

    def interrupt(self) -> None:
        """Makes every thread that waits for a result stop."""
        if not self.closed and self._wake_fds:
            self.interrupted = True
            os.write(self._wake_fds[1], b"x")

    def go_on(self) -> None:
        """Allows waiting for results again after `interrupt`."""
        with self.locked():
            if self.interrupted:
                self.interrupted = False
                os.read(self._wake_fds[0], 4096)

    def _end(self, *, wait: bool) -> None:
        for process in self._processes:
            process.ask_to_end()
        deadline = time.monotonic() + (GRACE_S if wait else GRACE_DROPPED_S)
        for processes in (self._left, self._processes):
            while processes:
                process = processes[-1]
                process.end(deadline if process.ready else 0.0)  # one that is not ready has nothing to clean up
                processes.pop()
        if hasattr(self, "slots"):  # else `_start` failed before this
            self.slots.close()
        if hasattr(self, "_control"):
            self._control.unmap()
        while self._wake_fds:
            os.close(self._wake_fds.pop())


def _message(pending: PendingChunk, task: Task) -> bytes:
    """The message that sends a task; a task that is long or has a block goes into its slot."""
    assert pending.slot is not None
    if not isinstance(task, BlockTask):
        pickled = pickle.dumps(task)
        if len(pickled) <= INLINE_BYTES:
            return TASK.pack(pending.number, pending.slot.number, 0, -1) + pickled
    writer = Writer(pending.slot)
    extent = writer.dump(task.encoded(writer) if isinstance(task, BlockTask) else task)
    return TASK.pack(pending.number, pending.slot.number, *extent)
