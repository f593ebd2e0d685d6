"""A process that has imported what workers need, and copies itself for each of them, which takes milliseconds.

A program starts one when it starts workers for the third time: most training programs never do, notebooks and tests do.
Its copies are children of the consumer, with its environment, folder and output of that moment, like workers that are
started by a command. A template is used only while such workers would start out as it did: with the same limits, and
with the same values of variables that Python and libraries read when they are loaded.
"""

import atexit
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from headrace.engine.workers.messages import CLONE, MESSAGE_BYTES, PROCESS_ID, TEMPLATE, TEMPLATE_READY
from headrace.errors.signals import let_through, suppress
from headrace.threads import start_thread

if sys.platform != "win32":
    import resource

ANSWER_S = 1.0  # how long a template may take to answer; it takes milliseconds, unless it is stopped
STARTS = 2  # how often workers are started before there is a template
READ_WHEN_LOADED = (
    *("LC_", "LD_", "GLIBC_", "MALLOC_", "LANG", "PYTHON", "TZ"),
    *("BLIS_", "GOMP_", "GOTO_", "KMP_", "MKL_", "NPY_", "NUMEXPR_", "OMP_", "OPENBLAS_", "OPENCV_", "VECLIB_"),
)


class Start(NamedTuple):
    """What workers that are started now have in common, and what their template must have had."""

    command: list[str]
    variables: dict[str, str]
    limits: list[tuple[int, int]]
    cores: set[int]
    priority: int
    umask: str
    in_main_thread: bool


def _start(command: list[str], environment: dict[str, str]) -> Start:
    kinds = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})
    with open("/proc/self/status") as f:
        umask = next(line for line in f if line.startswith("Umask"))
    return Start(
        command,
        {name: environment[name] for name in environment if name.startswith(READ_WHEN_LOADED) and name != "PYTHONPATH"},
        [resource.getrlimit(kind) for kind in kinds],
        os.sched_getaffinity(0),
        os.getpriority(os.PRIO_PROCESS, 0),
        umask,
        threading.current_thread() is threading.main_thread(),
    )


class Template:
    """The consumer's side of a template."""

    def __init__(self, start: Start):
        self.start = start
        self.was_ready = False
        self._started = Started()
        self.socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def process(self) -> "subprocess.Popen[bytes] | None":
        return self._started.process

    def begin(self, environment: dict[str, str]) -> None:
        with self._theirs as theirs:
            arguments = map(str, (TEMPLATE, theirs.fileno(), int(self.start.in_main_thread), os.getpid()))
            self._started.start(
                [*self.start.command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                process_group=0,
            )

    def is_ready(self) -> bool:
        """Whether it has imported everything, and lives."""
        if not self.was_ready:
            with suppress(BlockingIOError, ConnectionError):
                self.was_ready = self.socket.recv(len(TEMPLATE_READY), socket.MSG_DONTWAIT) == TEMPLATE_READY
        return self.was_ready and not self.has_ended()

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def close(self) -> None:
        self._theirs.close()
        self.socket.close()
        self._started.stop()
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Started:
    """A process that is started by a command; `process` has it, whatever a signal handler raises meanwhile.

    Handlers run in the main thread, and between a start there and its result they would lose it: nobody would ever
    wait for the process. So another thread starts it.
    """

    def __init__(self):
        self.process: Any = None  # a `subprocess.Popen`, once it has started
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, command: list[str], **options: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.process = subprocess.Popen(command, **options)
            return
        try:
            start_thread(self._run, command, options, name="headrace starts a process", stop=lambda: None).join()
        except BaseException:
            self.stop()
            raise
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def stop(self) -> None:
        """From now on, nothing is started."""
        with self._lock:
            self._stopped = True

    def _run(self, command: list[str], options: dict[str, Any]) -> None:
        with self._lock:
            if not self._stopped:
                try:
                    self.process = subprocess.Popen(command, **options)
                except BaseException as e:
                    self._error = e


class Copy:
    """A request for one more process."""

    def __init__(self, template: Template):
        self._template = template
        self._reply, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answer = b""

    def ask(self, environment: dict[str, str], fds: tuple[int, ...]) -> "Child | None":
        """Has the template copy itself for a worker with some descriptors; returns None if it cannot."""
        with self._theirs, suppress(OSError):
            message = pickle.dumps((os.getcwd(), environment))
            if len(message) <= MESSAGE_BYTES:
                given = [self._theirs.fileno(), 1, 2, *fds]
                socket.send_fds(self._template.socket, [message], given, socket.MSG_DONTWAIT)
        return self.child()

    def child(self) -> "Child | None":
        """The process, if there is one; after an exception, it can be called again."""
        self._theirs.close()
        if not self._answer and self._reply.fileno() >= 0:
            self._answer = self._receive_answer()
        self._reply.close()
        if not self._answer:
            return None
        (pid,) = PROCESS_ID.unpack(self._answer)
        with suppress(OSError):
            os.setpgid(pid, pid)  # it does so itself, perhaps later
        return Child(pid)

    def _receive_answer(self) -> bytes:
        """The answer; it stays in the socket, or a signal handler could lose it. A stopped template gives none."""
        self._reply.settimeout(ANSWER_S)
        for _ in range(2):
            try:
                return self._reply.recv(PROCESS_ID.size, socket.MSG_PEEK)
            except TimeoutError as e:
                let_through(e)
                self._template.close()  # or it would make a copy later, which nobody knows
        return b""


class Child:
    """A child process that nobody has a `Popen` of."""

    def __init__(self, pid: int):
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or 0 if other code in this process has it."""
        if self.returncode is None:
            status = 0
            with suppress(ChildProcessError):
                status = os.waitpid(self.pid, 0)[1]
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Templates:
    """The template of this process, if it has one."""

    def __init__(self):
        self._lock = threading.Lock()
        self._consumer = os.getpid()
        self.current: Template | None = None
        self._last: Start | None = None
        self._num_starts = 0

    def find(self, command: list[str], environment: dict[str, str]) -> Template | None:
        """A template for workers that are started now, if one is ready; otherwise there may be one the next time."""
        if not self._allowed():
            return None
        with self._lock, suppress(OSError):
            start = _start(command, environment)
            if self.current is not None and self.current.start == start:
                if self.current.is_ready():
                    return self.current
                if not self.current.has_ended() or not self.current.was_ready:
                    return None  # not yet, or never
            self._num_starts = self._num_starts + 1 if self._last == start else 1
            self._last = start
            if self._num_starts > STARTS:
                self._end()
                self._begin(Template(start), environment)
        return None

    def _begin(self, template: Template, environment: dict[str, str]) -> None:
        self.current = template
        try:
            template.begin(environment)
        except BaseException:
            self._end()
            raise

    def _allowed(self) -> bool:
        """Not in a fork, whose workers would be its parent's children."""
        return CLONE is not None and hasattr(os, "pidfd_open") and os.getpid() == self._consumer

    def close(self) -> None:
        """Ends the template; there may be another later."""
        if self._allowed():
            with self._lock:
                self._num_starts = 0
                self._end()

    def _end(self) -> None:
        current = self.current
        self.current = None
        if current is not None:
            current.close()


templates = Templates()
atexit.register(templates.close)


# ---------------------------------------------------------------------------------------------------------- copies
# What the template process does: `template.py` starts it, and has it copy itself for each worker.


CLONE_PARENT = 0x8000
PR_SET_NAME = 15


def copies(requests_fd: int, consumer: int) -> tuple[int, int, int, int]:
    """Copies this process for each request, until the consumer is gone; returns the descriptors in each copy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=requests_fd)
    consumers_end = os.pidfd_open(consumer)
    _name("headrace-forks")
    if len(os.listdir("/proc/self/task")) > 1:  # of a library that the user has configured to use several
        os._exit(1)  # a copy would have none of them, and would wait for them
    gc.collect()
    gc.freeze()  # or the first collection in a copy would write to all its memory
    requests.send(TEMPLATE_READY)
    while True:
        readable = select.select([requests, consumers_end], [], [])[0]
        if requests not in readable:
            os._exit(0)
        message, fds, *_ = socket.recv_fds(requests, MESSAGE_BYTES, 8, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        if _fork_beside() == 0:
            requests.close()
            os.close(consumers_end)
            return _begin_copy(fds, *pickle.loads(message))
        for fd in fds:
            os.close(fd)


def _begin_copy(fds: list[int], folder: str, environment: dict[str, str]) -> tuple[int, int, int, int]:
    """Makes a copy a separate process, and reports it to the consumer."""
    os.setpgid(0, 0)
    _name("headrace-worker")
    reply, out, err, connection, slots, plan, stacks = fds
    os.write(reply, PROCESS_ID.pack(os.getpid()))
    os.close(reply)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for fd, standard in ((out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    np.random.seed()  # else all copies would draw the same
    return connection, slots, plan, stacks


def _fork_beside() -> int:
    """Forks this process into another child of its parent; returns 0 there."""
    assert CLONE is not None
    libc: Any = ctypes.PyDLL(None)
    libc.syscall.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(*map(ctypes.c_long, (CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid


def _name(name: str) -> None:
    """What `ps` and `top` call this process."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
