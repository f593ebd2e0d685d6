"""One worker process: how it is started, spoken to and ended."""

import contextlib
import fcntl
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace._executors.wire import MESSAGE_BYTES
from headrace.errors import WorkerError

if TYPE_CHECKING:
    from headrace._executors.pool import Pool, Ticket

HAS_PIDFD = hasattr(os, "pidfd_open")
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
    """One worker process, and the tickets it has to answer, oldest first; no other process ever has its number."""

    _numbers = itertools.count()

    def __init__(self, index: int, pool: "Pool"):
        self.index, self.number = index, next(Process._numbers)
        self.tickets: deque[Ticket] = deque()
        self.ready = False
        self.num_lanes = 0
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, _MESSAGES)
        with theirs:
            their_fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)  # none of those that Popen replaces
        fds = (their_fd, pool.slots.fd, pool.parcel.fd)
        in_main_thread = threading.current_thread() is threading.main_thread()
        arguments = map(str, (*fds, int(in_main_thread), os.getpid()))
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-P", "-m", "headrace._executors.worker", *arguments]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=fds, env=_environment(), process_group=0
            )
        except OSError as e:
            self.socket.close()
            raise WorkerError(f"Worker process {index} of {pool.num_workers} could not be started: {e}.") from e
        finally:
            os.close(their_fd)
        self.end_fd = os.pidfd_open(self.process.pid) if HAS_PIDFD else -1

    def set_up(self, pool: "Pool") -> None:
        """Tells the process what it needs to know before its first task."""
        self.send(pickle.dumps((self.index, pool.num_workers, pool.parcel.sheet, pool.world)))

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

    def ask_to_end(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold the socket as well

    def end(self, deadline: float) -> int:
        """Waits for the process to end, and kills it when it is time; its exit status."""
        if self.ready:  # before that, it has nothing to put away
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, deadline - time.monotonic()))
        self.process.kill()
        status = self.process.wait()
        self.socket.close()
        if self.end_fd >= 0:
            os.close(self.end_fd)
            self.end_fd = -1
        return status


_MESSAGES = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM


def _environment() -> dict[str, str]:
    """What a worker finds in its environment: JAX leaves the accelerator alone, libraries use one thread."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return dict.fromkeys(ONE_THREAD, "1") | KEPT_MEMORY | os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}


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
