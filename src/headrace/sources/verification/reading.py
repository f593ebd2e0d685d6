"""The process that reads a data set, and may die of it: `python -m headrace.sources.verification.reading`.

Before it reads records, it writes their numbers into a shared file, so that whoever started it knows which ones it died
of. Its messages are lines of JSON.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace._executors.messages import STARTED_AS_WORKER
from headrace._utils.addresses import redacted
from headrace.audio.reading import check as check_audio
from headrace.errors import HeadraceError, MissingDependency, PipelineError, in_words
from headrace.sources import opening, sidecar
from headrace.sources.media import MediaFiles
from headrace.sources.verification.process import NUMBERS_BYTES, Task, Unit
from headrace.sources.verification.report import likeness
from headrace.video.reading import check as check_video

BLOCK_S, BLOCK_RECORDS = 0.05, 1024  # blocks grow until they take this long, or have so many records
RUN_RECORDS = 8  # after so many records in a row that fail alike, one looks for the end of the damage
BEAT_S = 1.0
LONGEST_ERROR = 1000
SPARE_S = 60.0


class Link:
    """What the process says to the one that started it."""

    def __init__(self, numbers_fd: int, messages_fd: int, timeout_s: float):
        self._numbers = memoryview(mmap.mmap(numbers_fd, NUMBERS_BYTES)).cast("q")
        self._messages_fd, self._timeout_s = messages_fd, timeout_s
        self._parent, self._next_beat = os.getppid(), 0.0
        self.num_good = 0

    def say(self, *message: Any) -> None:
        left = json.dumps(message).encode() + b"\n"
        while left:
            left = left[os.write(self._messages_fd, left) :]

    def begin(self, number: int, opening_s: float) -> None:
        """Says that a unit is opened."""
        self.num_good = 0
        numbers = self._numbers
        numbers[0], numbers[1], numbers[2], numbers[3] = number, 0, 0, 0
        self._beat(opening_s)
        self.say("opening", number)

    def reading(self, first: int, stop: int) -> None:
        """Says which records are read next."""
        numbers = self._numbers
        numbers[1], numbers[2], numbers[3] = first, stop, self.num_good
        if time.monotonic() > self._next_beat:
            self._beat(self._timeout_s)

    def _beat(self, limit_s: float) -> None:
        """Makes sure that the process ends some time after its parent, even if it hangs then."""
        self._next_beat = time.monotonic() + BEAT_S
        if os.getppid() != self._parent:
            os._exit(1)
        faulthandler.dump_traceback_later(2 * limit_s + SPARE_S, exit=True)


def main(numbers_fd: int, messages_fd: int, number: int, start: int, careful: int) -> None:
    """Checks units from a number on: the first from a record on, and its records before `careful` one by one."""
    os.environ.pop(STARTED_AS_WORKER, None)
    task: Task = pickle.load(sys.stdin.buffer)
    link = Link(numbers_fd, messages_fd, task.timeout_s)
    sidecar.Index.is_stored = False
    _limit_memory(task.max_memory_bytes)
    try:
        for i in range(number, len(task.units)):
            _check(task, i, link, *((start, careful) if i == number else (0, 0)))
    except (MissingDependency, Refused) as e:
        link.say("refused", str(e), isinstance(e, MissingDependency))
        return
    link.say("done")


class Refused(Exception):
    """The source does not take the options."""


def _check(task: Task, number: int, link: Link, start: int, careful: int) -> None:
    unit = task.units[number]
    link.begin(number, unit.opening_s)
    try:
        source = _opened(task, unit)
        is_stream = not (hasattr(source, "__getitem__") or hasattr(source, "__getitems__"))
        length = None if is_stream else len(source)
    except (MissingDependency, Refused):
        raise
    except Exception as e:
        link.say("failed", in_few_words(e, task.max_memory_bytes))
        return
    link.say("opened", length)
    if not unit.only_opened:
        check = Check(source, link, task.max_memory_bytes)
        check.stream() if length is None else check.records(length, start, careful)
    link.say("finished", link.num_good)
    with contextlib.suppress(Exception):
        source.close()


def _opened(task: Task, unit: Unit) -> Any:
    if unit.is_pickled:
        return pickle.loads(unit.given)
    try:
        source = opening.open(unit.given, **task.options)
        return Recordings(source) if isinstance(source, MediaFiles) else source
    except TypeError as e:
        if "unexpected keyword argument" in str(e):
            raise Refused(f"{unit.path} cannot be opened with these options: {e}.") from e
        raise


class Recordings:
    """Files of audio or video, which are decoded to their end: the source has no more than their paths."""

    def __init__(self, source: MediaFiles):
        self._source, self.__where__ = source, source.__where__
        self._check = {"audio": check_audio, "video": check_video}[source.KEY]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> None:
        self._check(self._source[index][self._source.KEY])


def _limit_memory(num_bytes: int) -> None:
    """Limits the memory that the process may allocate; files that it maps do not count."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", encoding="ascii") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (used + num_bytes, used + num_bytes))


def in_few_words(error: Exception, max_memory_bytes: int) -> str:
    if isinstance(error, MissingDependency):
        raise error
    text = str(error) if isinstance(error, HeadraceError | FileNotFoundError) else in_words(error)
    if isinstance(error, MemoryError):
        text += f" (`max_memory_bytes` is {max_memory_bytes}: if the data needs more, raise it)"
    text = " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())
    return redacted(text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…")


class Check:
    """Reads a source to its end, and says which records cannot be read."""

    def __init__(self, source: Any, link: Link, max_memory_bytes: int):
        self._source, self._link, self._max_memory_bytes = source, link, max_memory_bytes
        self._where: Callable[[int], tuple[str | None, int | None]] = getattr(source, "__where__", lambda i: (None, i))

    def stream(self) -> None:
        """Reads a stream up to the first record that cannot be read: what follows is out of reach."""
        link, elements, number = self._link, None, 0
        while True:
            link.reading(number, number + 1)
            try:
                elements = elements or iter(self._source)
                next(elements)
            except StopIteration:
                return
            except Exception as e:
                link.say("damage", None, number, 1, self._text(e))
                link.say("unread", number + 1)
                return
            number += 1
            link.num_good = number

    def records(self, length: int, start: int, careful: int) -> None:
        """Reads records by blocks, and those before `careful` one by one."""
        at, size = start, 1
        while at < length:
            if at < careful:
                at = self._one_by_one(at, min(careful, length), length)
                continue
            stop = min(at + size, length)
            self._begin(at, stop)
            begin = time.monotonic()
            try:
                self._read(at, stop)
            except Exception as e:
                at, size = self._after_failure(at, stop, length, e), 1
                continue
            self._link.num_good += stop - at
            at, took_s = stop, time.monotonic() - begin
            size = min(2 * size, BLOCK_RECORDS) if took_s < BLOCK_S else max(1, size // 2)

    def _begin(self, start: int, stop: int) -> None:
        if stop - start == 1:
            self._link.say("trying", *self._where(start))
        self._link.reading(start, stop)

    def _read(self, start: int, stop: int) -> None:
        """Reads records in the way that a pipeline does."""
        source = self._source
        if hasattr(source, "__getcolumns__"):
            source.__getcolumns__(np.arange(start, stop))
        elif hasattr(source, "__getitems__"):
            list(source.__getitems__(list(range(start, stop))))
        else:
            for i in range(start, stop):
                source[i]

    def _after_failure(self, start: int, stop: int, length: int, error: Exception) -> int:
        """Finds the records of a block that cannot be read; returns where to go on."""
        before = self._link.num_good
        at = self._one_by_one(start, stop, length)
        is_each_good = self._link.num_good - before == stop - start == at - start
        # A block may be too large for the memory, and `__getitems__` may not be implemented.
        if is_each_good and not isinstance(error, MemoryError | TypeError | NotImplementedError | PipelineError):
            self._link.num_good = before
            self._say_damaged(start, stop, f"only one by one can these be read. Together: {self._text(error)}")
        return at

    def _one_by_one(self, start: int, stop: int, length: int) -> int:
        at, run, last = start, 0, None
        while at < stop:
            error = self._error_at(at)
            if error is None:
                self._link.num_good += 1
                at, run, last = at + 1, 0, None
                continue
            alike = self._where(at)[0], likeness(error)
            run, last = run + 1 if alike == last else 1, alike
            end = at + 1 if run < RUN_RECORDS else self._end_of_run(at, length, alike)
            self._say_damaged(at, end, error)
            at = end
        return at

    def _error_at(self, index: int) -> str | None:
        self._begin(index, index + 1)
        try:
            self._source[index]
        except Exception as e:
            return self._text(e)
        return None

    def _end_of_run(self, start: int, length: int, alike: tuple[str | None, str]) -> int:
        """Where the records end that fail like the one at `start`: tries few of them, since there may be many."""

        def fails(index: int) -> bool:
            error = self._error_at(index)
            return error is not None and (self._where(index)[0], likeness(error)) == alike

        step = 1
        while start + step < length and fails(start + step):
            start, step = start + step, 2 * step
        bad, good = start, min(start + step, length)
        while good - bad > 1:
            middle = (bad + good) // 2
            bad, good = (middle, good) if fails(middle) else (bad, middle)
        return good

    def _say_damaged(self, start: int, stop: int, error: str) -> None:
        file, record = self._where(start)
        self._link.say("damage", file, record, stop - start, error)

    def _text(self, error: Exception) -> str:
        return in_few_words(error, self._max_memory_bytes)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
