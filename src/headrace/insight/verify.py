"""Verifies data: reads all of it in another process, and reports which files and records are damaged."""

import contextlib
import dataclasses
import faulthandler
import json
import mmap
import os
import pickle
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from headrace.audio.decode import check as check_audio
from headrace.engine.workers.messages import STARTED_AS_WORKER
from headrace.errors import HeadraceError, MissingDependency, PipelineError, WorkerError, format_error
from headrace.errors.addresses import redacted
from headrace.errors.suggestions import explains_keywords
from headrace.insight.verify_process import NUMBERS_BYTES, ReadingPlace, ReadingProcess, ReadingTask, Unit
from headrace.progress import Bar
from headrace.sources import opening
from headrace.sources import opening as formats
from headrace.sources.media import MediaFiles
from headrace.storage import files, sidecar
from headrace.video.decode import check as check_video

SHOWN = 20  # damaged places in the text of a report


@dataclass(frozen=True)
class Damage:
    """Records that cannot be read, or a file that cannot be opened.

    >>> damage = Damage("train.tfrecord", record=7, num_records=1, error="a wrong checksum")
    >>> damage.file, damage.record
    ('train.tfrecord', 7)

    Attributes:
        file: The file or folder; None if the source does not say.
        record: The first record that cannot be read, counted from 0 in the file; None for the file as a whole.
        num_records: How many records in a row cannot be read, and fail alike; 0 if a file cannot be opened.
        error: The error of the first of them.
    """

    file: str | None
    record: int | None
    num_records: int
    error: str

    def and_also(self, other: "Damage") -> "Damage | None":
        """Both as one, if the other one follows this one in the file and fails alike."""
        if self.record is None or other.record != self.record + self.num_records or self.file != other.file:
            return None
        if likeness(self.error) != likeness(other.error):
            return None
        return Damage(self.file, self.record, self.num_records + other.num_records, self.error)

    def __str__(self) -> str:
        where = self.file or "the source"
        if self.record is None:
            return f"{where}: {self.error}"
        if self.num_records == 1:
            return f"{where}, record {self.record}: {self.error}"
        return f"{where}, records {self.record} to {self.record + self.num_records - 1}: {self.error}"


def likeness(error: str) -> str:
    """The text of an error without the numbers, by which those of neighboring records differ."""
    return re.sub(r"\d+", "", error)


@dataclass(frozen=True)
class Part:
    """A file or folder that was read on its own.

    >>> part = Part("train.tfrecord", num_records=1000)
    >>> part.num_records, part.unread_from
    (1000, None)

    Attributes:
        path: The file or folder.
        num_records: How many of its records were read without error.
        unread_from: The first record that was not tried, since reading could not continue; None if all were tried.
    """

    path: str
    num_records: int
    unread_from: int | None = None


@dataclass(frozen=True)
class Verification:
    """What `verify` found; printed, it is a report.

    >>> found = Verification("data/", "tfrecord", None, parts=(Part("data/1.tfrecord", 1000),), damaged=())
    >>> found.is_good, found.parts[0].num_records
    (True, 1000)

    Attributes:
        path: What was verified.
        format: Its format, or the class of the source.
        checksums: What the checksums of the format cover; None if this is not known.
        parts: The files that were read, or the folder if it is read as a whole.
        damaged: What cannot be read.
        is_stopped: Whether verification stopped before its end, after `max_damaged` damaged places.
    """

    path: str
    format: str
    checksums: str | None
    parts: tuple[Part, ...]
    damaged: tuple[Damage, ...]
    is_stopped: bool = False

    @property
    def num_records(self) -> int:
        """How many records were read without error."""
        return sum(part.num_records for part in self.parts)

    @property
    def is_good(self) -> bool:
        """Whether every record could be read."""
        return not self.damaged and all(part.unread_from is None for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """The report as a dict that JSON can hold."""
        return {
            "path": self.path,
            "is_good": self.is_good,
            "is_stopped": self.is_stopped,
            "format": self.format,
            "checksums": self.checksums,
            "num_records": self.num_records,
            "damaged": [vars(damage) for damage in self.damaged],
            "parts": [vars(part) for part in self.parts],
        }

    def __str__(self) -> str:
        num_files = f"{len(self.parts):,} {'part' if len(self.parts) == 1 else 'parts'}"
        lines = [
            f"{self.path}: {'good' if self.is_good else 'DAMAGED'}. {self.format}, {num_files}, "
            f"{self.num_records:,} records read without error."
        ]
        lines += [f"  {damage}" for damage in self.damaged[:SHOWN]]
        if len(self.damaged) > SHOWN:
            lines.append(f"  … and {len(self.damaged) - SHOWN} more.")
        unread = [part for part in self.parts if part.unread_from is not None]
        lines += [f"  {part.path}: records from {part.unread_from} on were not read." for part in unread[:SHOWN]]
        if self.is_stopped:
            lines.append(
                "  Stopped here, after `max_damaged` damaged places; the rest was not read. Raise it to read on."
            )
        if self.checksums is not None:
            lines.append(f"Checksums: {self.checksums}.")
        return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------- check
# Verifies a data set: reads all of it in other processes, and continues after those that die.


TIMEOUT_S = 60.0
MEMORY_BYTES = 4 << 30
MOST_DAMAGES = 100
MOST_DEATHS = 10  # processes that may die, and records that may hang, of one file or folder
MOST_HANGS = 3
OPENING_S = 20.0  # libraries are imported, and some formats read files to their end
OPENED_BYTES_PER_S = 10e6

Progress = Callable[[int, int | None], None]


@explains_keywords
def verify(
    source: Any,
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    max_memory_bytes: int = MEMORY_BYTES,
    max_damaged: int = MOST_DAMAGES,
    progress: Progress | None = None,
    **options: Any,
) -> Verification:
    """Reads a data set once, in a separate process, and reports which files and records are damaged.

    Every record is read as a pipeline reads it. A record that ends the process, hangs or takes too much memory is
    reported, and another process continues after it. Each file is opened on its own; if all are good, all together. In
    a stream, such as a compressed file, what follows a damaged record is not read.

    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x":\\n')
    >>> found = verify(folder / "a.jsonl")
    >>> found.is_good, found.damaged[0].record
    (False, 1)

    Args:
        source: As for `headrace.sources.open`; or a source or dataset, which must be picklable.
        format: As for `open`.
        storage_options: As for `open`.
        timeout_s: How long one record may take. Opening a large file may take longer, by its size.
        max_memory_bytes: How much memory reading may take, without that of mapped files.
        max_damaged: After how many damaged places to stop.
        progress: Called with the number of records read so far, and None; by default it shows a bar, if it takes long.
        options: As for `open`. By default, all splits are read.
    """
    if not 0 < timeout_s < float("inf"):
        raise PipelineError(f"`timeout_s` must be a positive number of seconds; got {timeout_s!r}.")
    for name, value in (("max_memory_bytes", max_memory_bytes), ("max_damaged", max_damaged)):
        if value < 1:
            raise PipelineError(f"`{name}` must be at least 1; got {value!r}.")
    with Bar("Verifying", keep=True) as bar:
        run = _Run(timeout_s, max_memory_bytes, max_damaged, progress or bar.report)
        return _checked(source, run, format, storage_options, options)


def _checked(
    source: Any, run: "_Run", format: str | None, storage_options: Mapping[str, Any] | None, options: dict[str, Any]
) -> Verification:
    """What is found in a source, or in the data at a path."""
    timeout_s = run.timeout_s
    if not _is_path(source):
        unit = Unit(type(source).__name__, cloudpickle.dumps(source), timeout_s + OPENING_S, is_pickled=True)
        run.check([unit], {})
        return run.report(type(source).__name__, type(source).__name__, None)
    form, paths, checksums = opening.identify_parts(source, format=format, storage_options=storage_options)
    options |= {"format": form.name}
    if "split" in options and form.name not in opening.HAVE_SPLITS:
        raise PipelineError(
            f"{form.name} files are verified as a whole: omit `split`, or verify what `headrace.open(path, "
            f"split={options['split']!r})` returns."
        )
    if form.name == "TFDS":
        options = {"split": "all"} | options
    if form.name == "Hugging Face" and "split" not in options:
        paths = opening.saved_splits(paths[0])
    run.check([Unit(path, path, timeout_s + _opening_s(path)) for path in paths], options)
    if form in formats.FOLDERS:
        run.check_files_in(paths)
    elif form.many and len(paths) > 1 and run.is_good:
        opening_s = timeout_s + sum(map(_opening_s, paths))
        run.check([Unit(f"all {len(paths)} files together", paths, opening_s, only_opened=True)], options)
    first, *others = [source] if isinstance(source, str | os.PathLike) else source
    named = os.fsdecode(first) + (f" and {len(others)} more" if others else "")
    return run.report(_shown(named), form.name, checksums)


def _is_path(source: Any) -> bool:
    """Whether something is a path or a sequence of paths, rather than a source."""
    if isinstance(source, list | tuple):
        return all(isinstance(one, str | os.PathLike) for one in source)
    return isinstance(source, str | os.PathLike)


def _shown(path: str) -> str:
    """A path for the report: without the secrets of an address."""
    return redacted(path) if files.is_remote(path) else path


def _opening_s(path: str) -> float:
    """How much longer than reading a record opening may take: by the size of the file, or of those in the folder."""
    num_bytes = 0
    with contextlib.suppress(OSError):
        if files.is_remote(path):
            num_bytes = files.fingerprint(path).size
        elif os.path.isdir(path):
            with os.scandir(path) as entries:
                num_bytes = sum(entry.stat().st_size for entry in entries)
        else:
            num_bytes = os.path.getsize(path)
    return OPENING_S + num_bytes / OPENED_BYTES_PER_S


@dataclasses.dataclass
class _Progress:
    """How far a unit has been read, and where the next process begins."""

    number: int = 0
    start: int = 0
    careful: int = 0  # records before this one are read one by one
    num_good: int = 0
    num_deaths: int = 0
    num_hangs: int = 0
    unread_from: int | None = None
    is_open: bool = False
    is_stream: bool = False
    tried: tuple[str | None, int | None] = (None, None)  # the file and the number of the record that is read alone


class _Run:
    """Checks units, and collects what is found."""

    def __init__(self, timeout_s: float, max_memory_bytes: int, max_damaged: int, progress: Progress):
        self.timeout_s = timeout_s
        self._max_memory_bytes = max_memory_bytes
        self._max_damaged = max_damaged
        self._tell = progress
        self._parts: list[Part] = []
        self._damaged: list[Damage] = []
        self._unopened: set[str] = set()
        self._num_read = 0  # records of the parts
        self._is_stopped = False

    @property
    def is_good(self) -> bool:
        return not self._damaged

    def report(self, path: str, format: str, checksums: str | None) -> Verification:
        return Verification(path, format, checksums, tuple(self._parts), tuple(self._damaged), self._is_stopped)

    def check(self, units: list[Unit], options: dict[str, Any]) -> None:
        """Reads units, with as many processes as it takes."""
        task = ReadingTask(units, options, self.timeout_s, self._max_memory_bytes)
        self._units, self._now = units, _Progress()
        while self._now.number < len(units) and not self._is_stopped:
            self._now.is_open = False
            process = ReadingProcess(task, unit=self._now.number, start=self._now.start, careful=self._now.careful)
            with contextlib.closing(process.messages()) as messages:
                for name, *values in messages:
                    getattr(self, f"_{name}")(*values)
                    self._tell(self._num_read + self._now.num_good + process.place.num_good, None)
                    if self._is_stopped:
                        break
            self._now.num_good += process.place.num_good if self._now.is_open else 0
            if process.death is not None and not process.is_started:
                raise WorkerError(f"Could not start the process that reads the data: {process.death}.")
            if process.death is not None and not self._is_stopped:
                self._after_death(process.death, process.place, hangs=process.hangs)
        while self._is_stopped and self._now.number < len(units):
            self._end_unit(unread_from=self._now.unread_from or 0)

    def check_files_in(self, folders: list[str]) -> None:
        """For folders that cannot be opened, checks the files in them one by one, which may show more."""
        for folder in filter(self._unopened.__contains__, folders):
            paths = [] if files.is_remote(folder) else list(_data_files(folder))
            before = len(self._damaged)
            self.check([Unit(path, path, self.timeout_s + _opening_s(path)) for path in paths], {})
            if paths:
                self._parts = [part for part in self._parts if part.path != folder]
            if len(self._damaged) > before:
                self._damaged = [damage for damage in self._damaged if damage.file != folder]

    def _opening(self, number: int) -> None:
        if number != self._now.number:
            self._now = _Progress(number)

    def _opened(self, length: int | None) -> None:
        self._now.is_open = True
        self._now.is_stream = length is None

    def _failed(self, error: str) -> None:
        self._add(None, None, 0, error)
        self._unopened.add(self._path)
        self._end_unit(unread_from=0)

    def _trying(self, file: str | None, record: int | None) -> None:
        self._now.tried = file, record

    def _damage(self, file: str | None, record: int | None, num_records: int, error: str) -> None:
        self._add(file, record, num_records, error)

    def _unread(self, record: int) -> None:
        self._now.unread_from = record

    def _finished(self, num_good: int) -> None:
        self._now.num_good += num_good
        self._end_unit(unread_from=self._now.unread_from)

    def _refused(self, error: str, is_missing: bool) -> None:
        raise MissingDependency(error) if is_missing else PipelineError(error)

    def _waiting(self) -> None:
        pass

    _done = _waiting

    def _after_death(self, death: str, place: ReadingPlace, *, hangs: bool) -> None:
        """Records what a process died of, and where to continue."""
        now = self._now
        if not now.is_open:
            self._failed(death)
        elif now.is_stream:
            self._add(None, place.first, 1, death)
            self._end_unit(unread_from=place.first + 1)
        else:
            now.num_deaths = now.num_deaths + 1
            now.start = place.first
            if place.stop - place.first > 1:  # one of these records, which the next process reads one by one
                now.careful = place.stop
            else:
                self._add(*now.tried, 1, death)
                now.num_hangs = now.num_hangs + hangs
                now.start = now.start + 1
            if now.num_deaths >= MOST_DEATHS or now.num_hangs >= MOST_HANGS:
                if place.stop - place.first > 1:
                    self._add(None, place.first, place.stop - place.first, death)
                self._end_unit(unread_from=now.start)

    @property
    def _path(self) -> str:
        return self._units[self._now.number].path

    def _add(self, file: str | None, record: int | None, num_records: int, error: str) -> None:
        unit = self._units[self._now.number]
        named = file or (None if unit.is_pickled else unit.path)
        damage = Damage(named and _shown(named), record, num_records, error)
        both = self._damaged[-1].and_also(damage) if self._damaged else None
        if both is not None:
            self._damaged[-1] = both
        elif len(self._damaged) == self._max_damaged:
            self._is_stopped = True
            self._now.unread_from = record
        else:
            self._damaged.append(damage)

    def _end_unit(self, unread_from: int | None) -> None:
        if not self._units[self._now.number].only_opened:
            self._parts.append(Part(_shown(self._path), self._now.num_good, unread_from))
            self._num_read += self._now.num_good
        self._now = _Progress(self._now.number + 1)


def _data_files(folder: str) -> Iterator[str]:
    """The files of records below a folder."""
    suffixes = tuple(
        suffix for name in ("ArrayRecord", "TFRecord", "Arrow") for suffix in formats.format_named(name).suffixes
    )
    for parent, _, names in sorted(os.walk(folder)):
        yield from (os.path.join(parent, name) for name in sorted(names) if formats.plain_name(name).endswith(suffixes))


# --------------------------------------------------------------------------------------------------------- reading
# The process that reads a data set, and may die of it: `python -m headrace.insight.verify`.
#
# Before it reads records, it writes their numbers into a shared file, so that whoever started it knows which ones it
# died of. Its messages are lines of JSON.


BLOCK_S = 0.05  # blocks grow until they take this long, or have so many records
BLOCK_RECORDS = 1024
RUN_RECORDS = 8  # after so many records in a row that fail alike, one looks for the end of the damage
BEAT_S = 1.0
LONGEST_ERROR = 1000
SPARE_S = 60.0


class ParentLink:
    """The messages of the process to the one that started it."""

    def __init__(self, numbers_fd: int, messages_fd: int, timeout_s: float):
        self._numbers = memoryview(mmap.mmap(numbers_fd, NUMBERS_BYTES)).cast("q")
        self._messages_fd = messages_fd
        self._timeout_s = timeout_s
        self._parent = os.getppid()
        self._next_beat = 0.0
        self.num_good = 0

    def say(self, *message: Any) -> None:
        left = json.dumps(message).encode() + b"\n"
        while left:
            left = left[os.write(self._messages_fd, left) :]

    def begin(self, number: int, opening_s: float) -> None:
        """Reports that a unit is opened."""
        self.num_good = 0
        numbers = self._numbers
        numbers[0], numbers[1], numbers[2], numbers[3] = number, 0, 0, 0
        self._beat(opening_s)
        self.say("opening", number)

    def reading(self, first: int, stop: int) -> None:
        """Reports which records are read next."""
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
    task: ReadingTask = pickle.load(sys.stdin.buffer)
    link = ParentLink(numbers_fd, messages_fd, task.timeout_s)
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


def _check(task: ReadingTask, number: int, link: ParentLink, start: int, careful: int) -> None:
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


def _opened(task: ReadingTask, unit: Unit) -> Any:
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
        self._source = source
        self.__where__ = source.__where__
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
    text = str(error) if isinstance(error, HeadraceError | FileNotFoundError) else format_error(error)
    if isinstance(error, MemoryError):
        text += f" (`max_memory_bytes` is {max_memory_bytes}: if the data needs more, raise it)"
    text = " ".join(" ".join([text, *getattr(error, "__notes__", ())]).split())
    return redacted(text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]}…")


class Check:
    """Reads a source to its end, and reports which records cannot be read."""

    def __init__(self, source: Any, link: ParentLink, max_memory_bytes: int):
        self._source = source
        self._link = link
        self._max_memory_bytes = max_memory_bytes
        self._where: Callable[[int], tuple[str | None, int | None]] = getattr(source, "__where__", lambda i: (None, i))

    def stream(self) -> None:
        """Reads a stream up to the first record that cannot be read: what follows is out of reach."""
        link = self._link
        elements = None
        number = 0
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
        at = start
        size = 1
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
                at = self._after_failure(at, stop, length, e)
                size = 1
                continue
            self._link.num_good += stop - at
            at = stop
            took_s = time.monotonic() - begin
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
        """Finds the records of a block that cannot be read; returns where to continue."""
        before = self._link.num_good
        at = self._one_by_one(start, stop, length)
        is_each_good = self._link.num_good - before == stop - start == at - start
        # A block may be too large for the memory, and `__getitems__` may not be implemented.
        if is_each_good and not isinstance(error, MemoryError | TypeError | NotImplementedError | PipelineError):
            self._link.num_good = before
            self._say_damaged(
                start, stop, f"these records can be read one at a time, but not together: {self._text(error)}"
            )
        return at

    def _one_by_one(self, start: int, stop: int, length: int) -> int:
        at = start
        run = 0
        last = None
        while at < stop:
            error = self._error_at(at)
            if error is None:
                self._link.num_good += 1
                at = at + 1
                run = 0
                last = None
                continue
            alike = self._where(at)[0], likeness(error)
            run = run + 1 if alike == last else 1
            last = alike
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
            start = start + step
            step = 2 * step
        bad = start
        good = min(start + step, length)
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
