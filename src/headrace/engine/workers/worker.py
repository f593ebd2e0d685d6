"""A worker process: `python -m headrace.engine.workers.worker`; only `process.py` starts it.

It reads its plan once, then receives one task after another, and answers each with a block in a slot of shared memory.
It ends when the consumer closes the connection or is gone, even if a fork of the consumer still holds the socket.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, NoReturn

import numpy as np

from headrace.engine.workers.imports import DeferredImports
from headrace.engine.workers.messages import (
    ANSWER,
    FAILURE,
    MESSAGE_BYTES,
    NO_START,
    READY,
    SKIPPED,
    STACKS,
    STARTED_AS_WORKER,
    TASK,
    TEMPLATE,
)
from headrace.engine.workers.plan_file import open_shared_plan
from headrace.engine.workers.slots import Extent, Slot, Writer, read
from headrace.engine.workers.tasks import CloseStream, Task, TaskServer, begin
from headrace.engine.workers.tracebacks import pack_error
from headrace.ops.guard import GuardedCall

PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the consumer handles Ctrl-C
    if sys.argv[1] == TEMPLATE:
        from headrace.engine.workers.template import copies

        requests_fd, in_main_thread, parent = map(int, sys.argv[2:])
        serve(*copies(requests_fd, parent), in_main_thread, parent)
    else:
        serve(*map(int, sys.argv[1:]))


def serve(
    connection_fd: int, slots_fd: int, plan_fd: int, stacks_fd: int, kill_with_parent: int, parent: int
) -> NoReturn:
    """Answers tasks until the consumer closes the connection."""
    os.environ.pop(STARTED_AS_WORKER, None)  # programs that functions start must not inherit it
    if STACKS is not None:
        faulthandler.register(STACKS, stacks_fd)
    _end_with(parent, by_signal=bool(kill_with_parent))
    connection = socket.socket(fileno=connection_fd)
    index, count, plan, world = pickle.loads(_receive(connection) or _leave())
    known = read(Slot(slots_fd).bytes(world.total), world)
    _enter(known)
    missing = DeferredImports(known["imports"])
    try:
        pipelines, init, options = missing.retry(open_shared_plan)(plan_fd, plan)
        begin(init, index, count)
        worker = WorkerLoop(TaskServer(pipelines, options, missing), slots_fd)
        if options.timeout_s is not None:
            end_late = partial(_end_when_late, worker, connection, stacks_fd, options.timeout_s)
            threading.Thread(target=end_late, name="headrace-late", daemon=True).start()
    except BaseException as e:
        _send(connection, ANSWER.pack(0, NO_START, 0, 0, 0.0) + pack_error(e, MESSAGE_BYTES // 2))
        _leave()
    _send(connection, ANSWER.pack(0, READY, 0, 0, 0.0))
    while message := _receive(connection):
        answer = worker.answer(message)
        with worker.answering:
            _send(connection, answer)
    _leave()


def _enter(world: dict[str, Any]) -> None:
    """Gives the process the consumer's paths, arguments and settings."""
    sys.path[:], sys.argv[:] = world["path"], world["argv"]
    importlib.invalidate_caches()  # else namespace packages stay as they were found at startup
    os.environ.pop("PYTHONPATH", None)
    if world["pythonpath"] is not None:
        os.environ["PYTHONPATH"] = world["pythonpath"]
    for set_up in world["set_ups"]:
        set_up()


def _receive(connection: socket.socket) -> bytes:
    """The next message; empty if the consumer has closed the connection."""
    try:
        return connection.recv(MESSAGE_BYTES)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, message: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # closed: the next receive will notice
        connection.send(message)


def _leave() -> NoReturn:
    """Ends the process: runs the user's `atexit` functions, but does not wait for threads."""
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end_with(parent: int, *, by_signal: bool) -> None:
    """Makes the process end when its parent is gone.

    A signal from the kernel arrives even while a function holds the GIL. It also arrives when only the parent's thread
    that started this process ends, so it is used if that is the main thread (`by_signal`). A thread here watches in any
    case.
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
    if os.getpgrp() == os.getpid():  # also kill what functions have started
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_when_late(worker: "WorkerLoop", connection: socket.socket, stacks_fd: int, timeout_s: float) -> None:
    """Ends the process when a function or a read takes longer than `timeout_s`, with an error as the task's answer."""
    while True:
        os.utime(stacks_fd)  # shows that this thread runs
        time.sleep(min(1.0, timeout_s / 10))
        step = worker.server.late_step()
        if step is None:
            continue
        with worker.answering:
            if worker.server.late_step() is step:
                _send(connection, worker.late_answer(step))
                if os.getpgrp() == os.getpid():  # also kill what functions have started
                    os.killpg(0, signal.SIGKILL)
                os._exit(1)


class WorkerLoop:
    """Answers messages: reads tasks from slots, and has a `TaskServer` write results to the same slots."""

    def __init__(self, server: TaskServer, slots_fd: int):
        self.server = server
        self._slots_fd = slots_fd
        self._slots: dict[int, Slot] = {}
        self._task: tuple[int, int] = (0, 0)  # the number and the slot of the task under way
        self.answering = threading.Lock()
        self._cancelled_below = self._slot(0).bytes(8).view(np.int64)

    def answer(self, message: bytes) -> bytes:
        """The answer to a message."""
        number, slot_number, total, start = TASK.unpack_from(message)
        self._task = number, slot_number
        slot = self._slot(slot_number)
        begun = time.perf_counter()
        try:
            # Copy a task out of its slot: the answer overwrites it.
            inline = start < 0
            task: Task = (
                pickle.loads(message[TASK.size :]) if inline else read(slot.bytes(total).copy(), Extent(total, start))
            )
        except BaseException as e:
            kind, extent = self.server.failure(e, slot)
        else:
            if number < self._cancelled_below[0] and not isinstance(task, CloseStream):
                return ANSWER.pack(number, SKIPPED, 0, 0, 0.0)
            kind, extent = self.server.answer(task, slot)
        return ANSWER.pack(number, kind, *extent, time.perf_counter() - begun)

    def late_answer(self, step: GuardedCall) -> bytes:
        """The answer to the task under way when a call has taken too long."""
        number, slot = self._task
        extent = Writer(Slot(self._slots_fd, slot)).dump(pack_error(self.server.late_error(step)))
        return ANSWER.pack(number, FAILURE, *extent, time.monotonic() - step.since)

    def _slot(self, number: int) -> Slot:
        if number not in self._slots:
            self._slots[number] = Slot(self._slots_fd, number)
        return self._slots[number]


if __name__ == "__main__":
    main()
