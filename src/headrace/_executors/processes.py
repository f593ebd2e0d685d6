"""One worker process: how it is started, spoken to and ended."""

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

from headrace._executors.messages import MESSAGE_BYTES, STARTED_AS_WORKER, WORKER
from headrace._utils.signals import raised_by_signal
from headrace.errors import WorkerError

if TYPE_CHECKING:
    from headrace._executors.pool import Pending, ProcessPool


def _has_pidfd() -> bool:
    """Whether the end of a process can be waited for: some kernels and containers refuse it."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
KEPT_MEMORY = {  # large arrays are made in memory that is at hand, not page by page: half the time of making one
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
}


class Process:
    """One worker process, and the tasks it has to answer, oldest first; no other process ever has its number."""

    _numbers = itertools.count()

    def __init__(self, index: int, pool: "ProcessPool"):
        self.index, self.number = index, next(Process._numbers)
        self.tasks: deque[Pending] = deque()
        self.ready = False
        self.num_streams = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.end_fd = -1
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, _MESSAGES)
        try:
            with theirs:
                self.process = self._start(theirs, pool)
            self.end_fd = os.pidfd_open(self.process.pid) if HAS_PIDFD else -1
        except BaseException:
            self.end(time.monotonic())
            raise

    def _start(self, theirs: socket.socket, pool: "ProcessPool") -> "subprocess.Popen[bytes]":
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [_python(), *flags, "-P", "-m", WORKER]
        in_main_thread = threading.current_thread() is threading.main_thread()
        their_fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)  # none of those that Popen replaces
        try:
            fds = (their_fd, pool.slots.fd, pool.plan.fd)
            command += map(str, (*fds, int(in_main_thread), os.getpid()))
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=fds, env=_environment(), process_group=0
            )
        except OSError as e:
            raise WorkerError(f"Worker process {self.index} of {pool.num_workers} could not be started: {e}.") from e
        finally:
            os.close(their_fd)

    def set_up(self, pool: "ProcessPool") -> None:
        """Tells the process what it needs to know before its first task."""
        self.send(pickle.dumps((self.index, pool.num_workers, pool.plan.extent, pool.world)))

    def send(self, message: bytes) -> bool:
        """Sends a message; whether there was room for it."""
        try:
            self.socket.send(message, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # it is dead: that is seen to where answers are read
        return True

    def messages(self) -> list[bytes]:
        """What has come so far; an empty message is the end."""
        found = []
        try:
            while True:
                found.append(self.socket.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT))
                if not found[-1]:
                    break
        except BlockingIOError:
            pass
        except ConnectionError:
            found.append(b"")
        return found

    def is_dead(self) -> bool:
        """Whether the process has ended; its number stays its own until `end`."""
        if self.process is None or self.process.returncode is not None:
            return True
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True  # somebody else has waited for it

    def ask_to_end(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold the socket as well
        except OSError as e:
            if raised_by_signal(e):
                raise

    def end(self, deadline: float) -> int:
        """Waits for the process to end, and kills it and all that it has started when it is time; its exit status."""
        status = 0
        if self.process is not None:
            while not self.is_dead() and (left_s := deadline - time.monotonic()) > 0:
                self._wait(left_s)
            if self.process.returncode is None:  # its number, and so its group's, is still its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        self.socket.close()
        if self.end_fd >= 0:
            os.close(self.end_fd)
            self.end_fd = -1
        return status

    def _wait(self, seconds: float) -> None:
        """Waits until the process has ended, or for a while."""
        if self.end_fd < 0:
            time.sleep(min(seconds, 0.01))
            return
        poll = select.poll()
        poll.register(self.end_fd, select.POLLIN)
        poll.poll(seconds * 1000)


_MESSAGES = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM


def _python() -> str:
    """The interpreter that workers run in; an error where there is none, rather than a program that starts itself."""
    spawn = sys.modules.get("multiprocessing.spawn")  # where `multiprocessing.set_executable` says which
    executable = os.fsdecode((spawn.get_executable() if spawn else sys.executable) or "")
    is_named = executable != sys.executable  # by the user, who knows
    is_python = is_named or os.path.basename(executable).lower().startswith(("python", "pypy", "graalpy"))
    if STARTED_AS_WORKER in os.environ:
        raise WorkerError(
            f"This program was started as a worker process, by {executable!r}, and asks for workers itself. {_ADVICE}"
        )
    is_frozen = getattr(sys, "frozen", False) and not is_named
    if is_frozen or not is_python:
        kind = "a frozen program" if is_frozen else "no Python interpreter"
        raise WorkerError(f"Worker processes need a Python interpreter, and {executable!r} is {kind}. {_ADVICE}")
    return executable


_ADVICE = (
    "Name an interpreter that has headrace installed with `multiprocessing.set_executable(path)`, or do without "
    "workers: num_workers=0, with threads by ReadOptions."
)


def _environment() -> dict[str, str]:
    """What a worker finds in its environment: JAX leaves the accelerator alone, libraries use one thread."""
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
    """Lets what is half done be finished: Ctrl-C comes at the end of it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
        return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    return f"killed by signal {-status}"
