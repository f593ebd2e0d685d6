"""The process that reads, as the one that started it sees it: its start, its messages and its end."""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import cloudpickle

from headrace.engine.workers.process import ending, python_command, worker_environment

READING = "headrace.insight.verify"
NUMBERS = struct.Struct(
    "@4q"
)  # the part, its records that are read now (first and stop), and how many before were good
NUMBERS_BYTES = NUMBERS.size
LONGEST_WAIT_S = 0.1
STARTING_S = 60.0  # more than any import takes
PIPE_BYTES = 1 << 16
TAIL_BYTES = 4096


class Unit(NamedTuple):
    """Something that is opened on its own."""

    path: str  # for the report
    given: Any  # what to open, or the pickled source
    opening_s: float  # how long opening may take
    is_pickled: bool = False
    only_opened: bool = False


@dataclass(frozen=True)
class ReadingTask:
    """What the process reads, and how."""

    units: list[Unit]
    options: dict[str, Any]  # of `open`
    timeout_s: float
    max_memory_bytes: int


class ReadingPlace(NamedTuple):
    """What the process was reading, and how many records of the unit it had read without error."""

    unit: int
    first: int
    stop: int
    num_good: int


class ReadingProcess:
    """A process that reads units from a number on, the first of them from a record on.

    After its messages, `death` says how it ended if it was not done, and `place` where.
    """

    def __init__(self, task: ReadingTask, *, unit: int, start: int, careful: int):
        self._task = task
        self.place = ReadingPlace(unit, 0, 0, 0)
        self.death: str | None = None
        self.hangs = self.is_started = False
        self._doing = "starting"
        self._limit_s = task.timeout_s + STARTING_S
        self._first = map(str, (unit, start, careful))

    def messages(self) -> Generator[list[Any], None, None]:
        """Starts the process; yields its messages until it ends."""
        with contextlib.ExitStack() as stack:
            given, numbers, errors = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            given.write(cloudpickle.dumps(self._task))
            given.seek(0)
            numbers.write(NUMBERS.pack(*self.place))
            numbers.flush()
            read_fd, write_fd = os.pipe()
            stack.callback(os.close, read_fd)
            try:
                process = self._start(given, numbers, errors, write_fd)
            finally:
                os.close(write_fd)
            stack.callback(_end, process)
            yield from self._until_end(process, read_fd, numbers, errors)

    def _start(self, given: IO, numbers: IO, errors: IO, write_fd: int) -> "subprocess.Popen[bytes]":
        fds = numbers.fileno(), write_fd
        command = [python_command(), "-P", "-m", READING, *map(str, fds), *self._first]
        return subprocess.Popen(
            command,
            stdin=given,
            stdout=errors,
            stderr=errors,
            pass_fds=fds,
            env=worker_environment(),
            process_group=0,
        )

    def _until_end(
        self, process: "subprocess.Popen[bytes]", read_fd: int, numbers: IO, errors: IO
    ) -> Generator[list[Any], None, None]:
        rest = b""
        changed_at = time.monotonic()
        while True:
            readable, _, _ = select.select([read_fd], [], [], min(LONGEST_WAIT_S, self._task.timeout_s / 4))
            place, self.place = self.place, ReadingPlace(*NUMBERS.unpack(os.pread(numbers.fileno(), NUMBERS_BYTES, 0)))
            if readable or place != self.place:
                changed_at = time.monotonic()
            if readable:
                piece = os.read(read_fd, PIPE_BYTES)
                *lines, rest = (rest + piece).split(b"\n")
                for message in map(json.loads, lines):
                    self._note(*message)
                    yield message
                if not piece:
                    break
            elif time.monotonic() - changed_at > self._limit_s:
                if self._doing:  # else it is done, and takes long to leave
                    self.death = f"{self._doing} hangs: no answer within {self._limit_s:.3g} seconds"
                    self.hangs = True
                return
            else:
                yield ["waiting"]
        status = process.wait()
        self.place = ReadingPlace(*NUMBERS.unpack(os.pread(numbers.fileno(), NUMBERS_BYTES, 0)))
        if self._doing:
            self.death = f"{self._doing} ends the process ({ending(status)}{_last_line(errors)})"

    def _note(self, name: str, *values: Any) -> None:
        """Keeps in mind what the process is doing, and how long that may take."""
        if name == "opening":
            self.is_started, self._doing, self._limit_s = True, "opening", self._task.units[values[0]].opening_s
        elif name == "opened":
            self._doing = "reading"
            self._limit_s = self._task.timeout_s
        elif name in ("done", "refused"):
            self._doing = ""


def _last_line(errors: IO) -> str:
    """The last thing that the process printed."""
    size = os.fstat(errors.fileno()).st_size
    tail = os.pread(errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").strip()
    return f": {tail.splitlines()[-1]}" if tail else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills the process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
