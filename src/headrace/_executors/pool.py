"""The pool of worker processes: given tasks, waited for, replaced when they die.

A pool belongs to one iterator at a time. It has no thread of its own: messages are read when a result is waited for.
A task goes to the worker that has the least to do, and whatever happens to that worker, its answer or its error
comes: a dead worker is replaced and its tasks are computed again, since they are pure; one that has killed two
workers is an error.
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
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace._executors import imports
from headrace._executors.messages import ANSWER, FAILURE, NO_START, READY, SKIPPED, TASK
from headrace._executors.processes import HAS_PIDFD, Process, ctrl_c_later, ending
from headrace._executors.shared_plan import SharedPlan
from headrace._executors.slots import Extent, Slot, Slots, Writer, read
from headrace._executors.tracebacks import unpacked_error
from headrace.compat.grain import as_grain
from headrace.errors import ClosedError, WorkerError

GRACE_S = 1.0  # how long a worker may take to end by itself
GRACE_DROPPED_S = 0.1  # the same, where nobody asked to wait
BLIND_S = 0.2  # where the end of a process cannot be waited for, it is looked for so often
FULL_S = 0.01  # where a worker has no room for a task, it is tried again so often
INLINE_BYTES = 1 << 14 if sys.platform == "linux" else 1 << 10  # a longer task travels in its slot
LEASED_SLOTS = 8  # how many blocks a consumer may keep without a copy, besides one for each worker


class Task:
    """A task under way; `make(process)` is what the process of that number gets, made when it is sent."""

    __slots__ = (
        "answer",
        "attempts",
        "cancelled",
        "chunk",
        "describe",
        "make",
        "num_bytes",
        "number",
        "slot",
        "took_s",
    )

    def __init__(self, number: int, make: Callable[[int], tuple[Any, ...]], describe: Callable[[], str]):
        self.number, self.make, self.describe = number, make, describe
        self.attempts = 0
        self.slot: Slot | None = None
        self.answer: Extent | BaseException | None = None
        self.took_s = 0.0
        self.chunk = 1
        self.num_bytes = 0
        self.cancelled = False


class Pool:
    """Worker processes with one plan."""

    def __init__(self, shared_plan: SharedPlan, num_workers: int):
        self.shared_plan, self.num_workers = shared_plan, num_workers
        self.num_stages = 0  # streams that share the workers now
        self.chunks: dict[Any, tuple[int, float]] = {}  # by kind of stage: the size of a chunk, bytes of a unit
        self.expected_bytes = 0  # of all tasks under way, as far as results so far tell
        self.interrupted = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._next_number = 1
        self._bad_starts = 0
        self._wake_fds: list[int] = []  # of a pipe: where to read and where to write
        self._processes: list[Process] = []
        self._closed = self._given_back = False
        try:
            self._start()
        except BaseException:
            self.close(wait=False)
            raise

    def _start(self) -> None:
        self.shared_plan.users.add(id(self))
        self.slots = Slots(LEASED_SLOTS + self.num_workers)
        self._control = self.slots.take()  # in front, the number below which tasks are cancelled
        self._wake_fds += os.pipe()
        world = {
            "path": sys.path,
            "argv": sys.argv,
            "pythonpath": os.environ.get("PYTHONPATH"),
            "as_grain": as_grain.in_force(),
            "imports": imports.of_main_script(),
        }
        self.world = Writer(self._control, start=8).dump(world)
        _pools.add(self)
        for index in range(self.num_workers):
            with ctrl_c_later():
                self._processes.append(Process(index, self))
        for process in self._processes:  # the plan is written while they start
            process.set_up(self)

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more; in a fork of its process, it never can."""
        return self._closed or os.getpid() != self._pid

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One thread at a time; Ctrl-C may come at any point, and then nothing is known any more: start afresh."""
        self._check(even_if_interrupted=True)
        try:
            with self._lock:
                yield
        except Exception:
            raise
        except BaseException:
            self.close(wait=False)
            raise

    @property
    def num_open(self) -> int:
        """How many tasks are under way."""
        return sum(len(process.tasks) for process in self._processes)

    # ---- tasks

    def submit(
        self, make: Callable[[int], tuple[Any, ...]], describe: Callable[[], str], worker: int | None = None
    ) -> Task:
        """Gives a task to a worker."""
        with self.locked():
            self._check()
            if worker is None:
                worker = min(self._processes, key=_load).index
            task = self._new_task(make, describe)
            self._send(worker, task)
            return task

    def _new_task(self, make: Callable[[int], tuple[Any, ...]], describe: Callable[[], str]) -> Task:
        task = Task(self._next_number, make, describe)
        self._next_number += 1
        return task

    def choose_worker(self) -> int:
        """A worker for a stream of its own."""
        with self.locked():
            process = min(self._processes, key=lambda process: process.num_lanes)
            process.num_lanes += 1
            return process.index

    def forget_stream(self, worker: int, request: tuple[Any, ...]) -> None:
        """Tells a worker that a stream of its own is not needed any more."""
        if self.closed:
            return
        with self.locked():
            process = self._processes[worker]
            process.num_lanes -= 1
            task = self._new_task(lambda process: request, str)
            task.cancelled = True
            task.slot = self.slots.take()
            if process.send(_message(task, request)):
                process.tasks.append(task)
            else:  # nothing is waited for here: the worker keeps the stream until it ends
                self._drop(task)

    def ready(self, task: Task) -> bool:
        """Whether the answer is there."""
        with self.locked():
            if task.answer is None:
                self._read_answers(0)
            return task.answer is not None

    def wait(self, task: Task) -> bool:
        """Waits until there is an answer to some task; whether there is one to this."""
        with self.locked():
            if task.answer is None:
                self._check()
                self._read_answers(None)
            return task.answer is not None

    def result(self, task: Task) -> Any:
        """The answer to a task, which is there; the error, where it is one."""
        with self.locked():
            return self._take(task)

    def peek(self, task: Task) -> Any:
        """The answer to a task, if there is one, which stays where it is."""
        if not isinstance(task.answer, Extent) or task.slot is None:
            return None
        return read(task.slot.bytes(task.answer.total).copy(), task.answer)

    def cancel(self, tasks: "deque[Task]") -> None:
        """Forgets tasks; those not begun are not computed if nothing else is under way."""
        if self.closed:
            return
        with self.locked():
            for task in tasks:
                task.cancelled = True
                if task.answer is not None:
                    self._drop(task)
            if all(task.cancelled for process in self._processes for task in process.tasks):
                self._control.bytes(8).view(np.int64)[0] = self._next_number

    def _send(self, worker: int, task: Task) -> None:
        task.slot = task.slot or self.slots.take()
        try:
            process = self._processes[worker]
            message = _message(task, task.make(process.number))
            while not process.send(message):
                # A worker that has no room for tasks may be waiting for room for its answers.
                self._read_answers(FULL_S)
                self._check()
                if process is not self._processes[worker]:  # it died meanwhile
                    process = self._processes[worker]
                    message = _message(task, task.make(process.number))
            process.tasks.append(task)
        except Exception:
            self._drop(task)
            raise

    def _take(self, task: Task) -> Any:
        answer, slot = task.answer, task.slot
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        assert slot is not None
        task.slot = None
        return self.slots.read(slot, answer)

    def _drop(self, task: Task) -> None:
        if task.slot is not None:
            size = task.answer.total if isinstance(task.answer, Extent) else 0
            self.slots.give_back(task.slot, size)
            task.slot = None

    def _check(self, *, even_if_interrupted: bool = False) -> None:
        if self.closed or (self.interrupted and not even_if_interrupted):
            raise ClosedError("The workers of this iterator were closed while it waited for them.")

    # ---- answers

    def _read_answers(self, timeout_s: float | None) -> None:
        """Waits until something comes, and takes in all that has."""
        poll = select.poll()
        poll.register(self._wake_fds[0], select.POLLIN)
        for process in self._processes:
            for fd in (process.socket.fileno(), process.end_fd):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
        if timeout_s is None and not HAS_PIDFD:
            timeout_s = BLIND_S
        found = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        for process in list(self._processes):
            if process in self._processes and ({process.socket.fileno(), process.end_fd} & found or not HAS_PIDFD):
                self._take_in(process)  # which may replace others

    def _take_in(self, process: Process) -> None:
        messages = process.messages()
        dead = b"" in messages or process.is_dead()
        if dead:
            messages += process.messages()
        for message in messages:
            if message:
                self._answered(process, message)
        if dead and not self._closed and self._processes[process.index] is process:
            self._replace(process)

    def _answered(self, process: Process, message: bytes) -> None:
        number, kind, total, start, took_s = ANSWER.unpack_from(message)
        if kind == READY:
            process.ready = True
            self._bad_starts = 0
            return
        if kind == NO_START:
            self.close(wait=False)
            raise unpacked_error(message[ANSWER.size :])
        task = process.tasks.popleft()
        assert task.number == number
        task.took_s = took_s
        task.answer = Extent(total, start)
        if kind == FAILURE:
            task.answer = self._failure(task)
        if task.cancelled or kind == SKIPPED:
            self._drop(task)

    def _failure(self, task: Task) -> BaseException:
        assert task.slot is not None
        assert isinstance(task.answer, Extent)
        slot, task.slot = task.slot, None
        return unpacked_error(self.slots.read_copy(slot, task.answer))

    # ---- death

    def _replace(self, dead: Process) -> None:
        """Starts another worker in place of one that died, and gives it what the dead one had left."""
        dead.ask_to_end()
        status = dead.end(time.monotonic() + GRACE_S)  # one that ends by itself says why
        if not dead.ready:
            self._bad_starts += 1
            if self._bad_starts > 2:
                self.close(wait=False)
                raise WorkerError(
                    f"Worker processes end while they start ({ending(status)}). What they wrote to standard error may "
                    "say why; look at `worker_init_fn`, and at what the modules of the pipeline do when imported."
                )
        try:
            with ctrl_c_later():
                new = self._processes[dead.index] = Process(dead.index, self)
        except Exception:
            self.close(wait=False)
            raise
        new.set_up(self)
        new.num_lanes = dead.num_lanes
        if dead.tasks and dead.ready:
            self._blame(dead.tasks[0], status)
        for task in dead.tasks:
            if task.cancelled or task.answer is not None:
                self._drop(task)
                continue
            if self._closed:
                return
            try:
                self._send(dead.index, task)
            except Exception as e:
                task.answer = e

    def _blame(self, task: Task, status: int) -> None:
        """Notes that a worker died over a task; the second time, that is the answer to it."""
        task.attempts += 1
        if task.attempts > 1:
            task.answer = WorkerError(
                f"A worker process ended ({ending(status)}) while it computed {task.describe()}, and so did the one "
                "that tried again. If it was out of memory, give MultiprocessingOptions fewer num_workers; otherwise "
                "look at what the functions of the pipeline do with these elements."
            )

    # ---- the end

    def interrupt(self) -> None:
        """Makes whoever waits for a result stop, in whatever thread."""
        if not self.closed and self._wake_fds:
            self.interrupted = True
            os.write(self._wake_fds[1], b"x")

    def go_on(self) -> None:
        """Lets results be waited for again."""
        with self.locked():
            if self.interrupted:
                self.interrupted = False
                os.read(self._wake_fds[0], 4096)

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers and gives back their memory, but for what somebody still looks at.

        If an exception of a signal handler comes, the next call goes on with what is left.
        """
        if self._given_back or os.getpid() != self._pid:
            return
        self.interrupt()
        with ctrl_c_later(), self._lock:
            if self._given_back:
                return
            self._closed = True
            for process in self._processes:
                process.ask_to_end()
            deadline = time.monotonic() + (GRACE_S if wait else GRACE_DROPPED_S)
            while self._processes:
                process = self._processes[-1]
                process.end(deadline if process.ready else 0.0)  # before that, it has nothing to put away
                self._processes.pop()
            if hasattr(self, "slots"):  # or it did not come so far
                self.slots.close()
            if hasattr(self, "_control"):
                self._control.unmap()
            self.shared_plan.give_up(id(self))
            while self._wake_fds:
                os.close(self._wake_fds.pop())
            _pools.discard(self)
            self._given_back = True

    def __del__(self):
        if hasattr(self, "_given_back"):  # or an interrupt came before anything was there
            self.close(wait=False)


def _load(process: Process) -> int:
    return len(process.tasks)


def _message(task: Task, request: tuple[Any, ...]) -> bytes:
    """A task as it is sent; one with a block, or a long one, is put into its slot."""
    assert task.slot is not None
    if request[0] != "block":
        packed = pickle.dumps(request)
        if len(packed) <= INLINE_BYTES:
            return TASK.pack(task.number, task.slot.number, 0, -1) + packed
    writer = Writer(task.slot)
    extent = writer.dump(tuple(part(writer) if callable(part) else part for part in request))
    return TASK.pack(task.number, task.slot.number, *extent)


_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
