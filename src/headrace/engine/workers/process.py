"""One worker process, as the consumer sees it: starting it, exchanging messages, ending it."""

import contextlib
import fcntl
import itertools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.engine.workers.messages import MESSAGE_BYTES, STACKS, STARTED_AS_WORKER, WORKER
from headrace.engine.workers.slots import anonymous_file
from headrace.engine.workers.template import Child, Copy, Started, Template
from headrace.errors import WorkerError
from headrace.errors.signals import let_through, suppress

if TYPE_CHECKING:
    from headrace.engine.workers.pool import PendingChunk, ProcessPool


def _has_pidfd() -> bool:
    """Whether one can wait for the end of a process with a pidfd: some kernels and containers refuse it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()
STACKS_S = 2.0  # how long a worker may take to write its stacks
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
KEPT_MEMORY = {  # glibc reuses freed memory for large arrays: mapping new pages takes half the time of making one
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


class Process:
    """One worker process, and its unanswered tasks, oldest first; its `number` is unique.

    Keep it before it starts: only so can it be ended whatever a signal handler raises meanwhile.
    """

    _numbers = itertools.count()

    def __init__(self, index: int):
        self.index = index
        self.number = next(Process._numbers)
        self.tasks: deque[PendingChunk] = deque()
        self.ready = False
        self.num_streams = 0
        self.since = time.monotonic()  # when it began its oldest task
        self._child: Child | None = None
        self._copy: Copy | None = None
        self._started = Started()
        self.end_fd = -1
        self.is_late = False  # whether it has ended itself because of an element that took too long
        self.stacks = Stacks()
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, _MESSAGES)

    @property
    def process(self) -> "subprocess.Popen[bytes] | Child | None":
        return self._child or self._started.process

    def start(self, pool: "ProcessPool", template: Template | None) -> None:
        """Starts the process; after an exception, `end` it."""
        with self._theirs as theirs:
            self._start(theirs, pool, template)
        if HAS_PIDFD and self.process is not None:
            self.end_fd = os.pidfd_open(self.process.pid)

    def _start(self, theirs: socket.socket, pool: "ProcessPool", template: Template | None) -> None:
        # Not 0, 1 or 2, which Popen replaces.
        with socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)) as passed:
            fds = (passed.fileno(), pool.slots.fd, pool.plan.fd, self.stacks.fd)
            if template is not None:
                self._copy = Copy(template)
                self._child = self._copy.ask(worker_environment(), fds)
            if self.process is not None:
                return
            in_main_thread = threading.current_thread() is threading.main_thread()
            arguments = map(str, (*fds, int(in_main_thread), os.getpid()))
            try:
                self._started.start(
                    [*worker_command(), *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                    env=worker_environment(),
                    process_group=0,
                )
            except OSError as e:
                let_through(e)
                raise WorkerError(f"Could not start worker process {self.index} of {pool.num_workers}: {e}.") from e

    def set_up(self, pool: "ProcessPool") -> None:
        """Sends the process what it needs before its first task."""
        self.send(pickle.dumps((self.index, pool.num_workers, pool.plan.extent, pool.world)))

    def send(self, message: bytes) -> bool:
        """Sends a message; returns whether there was room for it."""
        try:
            self.socket.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError as e:
            let_through(e)
            return False
        except ConnectionError as e:
            let_through(e)  # it is dead: `ProcessPool._take_in` handles that
        return True

    def messages(self) -> list[bytes]:
        """The messages that have arrived; an empty one is the end."""
        found = []
        try:
            while True:
                found.append(self.socket.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT))
                if not found[-1]:
                    break
        except BlockingIOError as e:
            let_through(e)
        except ConnectionError as e:
            let_through(e)
            found.append(b"")
        return found

    def is_dead(self) -> bool:
        """Whether the process has ended; it keeps its process ID until `end`."""
        if self.process is None or self.process.returncode is not None:
            return True
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True  # other code in this process has waited for it

    def ask_to_end(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold the socket as well
        except OSError as e:
            let_through(e)

    def end(self, deadline: float) -> int:
        """Waits for the process until the deadline, kills it and all that it started; returns its exit status."""
        status = 0
        self._started.stop()
        if self.process is None and self._copy is not None:  # an exception came before the answer
            self._child = self._copy.child()
        if self.process is not None:
            while not self.is_dead() and (left_s := deadline - time.monotonic()) > 0:
                self._wait(left_s)
            if self.process.returncode is None:  # not reaped, so no other process group has its ID
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        self.socket.close()
        self._theirs.close()
        self.stacks.close()
        end_fd = self.end_fd
        self.end_fd = -1
        if end_fd >= 0:
            os.close(end_fd)
        return status

    def _wait(self, seconds: float) -> None:
        """Waits until the process has ended, or for at most `seconds`."""
        if self.end_fd < 0:
            time.sleep(min(seconds, 0.01))
            return
        poll = select.poll()
        poll.register(self.end_fd, select.POLLIN)
        poll.poll(seconds * 1000)


class Stacks:
    """A file to which a worker writes the Python stacks of its threads when it receives a signal.

    The file's offset is the same in both processes.
    """

    def __init__(self):
        self.fd = anonymous_file(0)

    def of(self, pid: int) -> str:
        """The stacks of a worker that nobody has waited for; empty if it does not answer in time."""
        if STACKS is None:
            return ""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        os.kill(pid, STACKS)
        size = -1
        deadline = time.monotonic() + STACKS_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
            last = size
            size = os.fstat(self.fd).st_size
            if size == last and size > 0:
                break
        return os.pread(self.fd, max(size, 0), 0).decode(errors="replace")

    def seconds_since_touched(self) -> float:
        """How long ago the worker's thread that watches for late elements showed that it runs."""
        return time.time() - os.fstat(self.fd).st_mtime

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self):
        if hasattr(self, "fd"):
            self.close()


_MESSAGES = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM


def worker_command() -> list[str]:
    """The command that starts a worker, without the arguments of one."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [python_command(), *flags, "-P", "-m", WORKER]


def python_command() -> str:
    """The interpreter for workers; raises if there is none, so that a program does not start itself over and over."""
    spawn = sys.modules.get("multiprocessing.spawn")  # where `multiprocessing.set_executable` says which
    executable = os.fsdecode((spawn.get_executable() if spawn else sys.executable) or "")
    is_named = executable != sys.executable  # by the user, whom we trust
    is_python = is_named or os.path.basename(executable).lower().startswith(("python", "pypy", "graalpy"))
    if STARTED_AS_WORKER in os.environ:
        raise WorkerError(
            f"This process was started as a worker, by {executable!r}, and tries to start workers itself. {_ADVICE}"
        )
    is_frozen = getattr(sys, "frozen", False) and not is_named
    if is_frozen or not is_python:
        kind = "a frozen program" if is_frozen else "not one"
        raise WorkerError(f"Worker processes need a Python interpreter, but {executable!r} is {kind}. {_ADVICE}")
    return executable


_ADVICE = (
    "Choose an interpreter that has headrace installed with `multiprocessing.set_executable(path)`, or use threads "
    "instead of workers: num_workers=0 and ReadOptions."
)


def worker_environment() -> dict[str, str]:
    """A worker's environment: JAX leaves the accelerator alone, and libraries use one thread."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return (
        dict.fromkeys(ONE_THREAD, "1")
        | KEPT_MEMORY
        | os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": paths,
            STARTED_AS_WORKER: "1",
        }
    )


@contextlib.contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Delays Ctrl-C until the end of the `with` block."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []
    try:  # before the handler is set: another signal's exception may come right after it
        signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        name = signal.Signals(-status).name
        return f"killed by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")
    return f"killed by signal {-status}"
