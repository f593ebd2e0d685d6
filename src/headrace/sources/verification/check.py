"""Verifies a data set: reads all of it in other processes, and goes on after those that die."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle

from headrace._utils.addresses import redacted
from headrace._utils.progress import Bar
from headrace.errors import MissingDependency, PipelineError, WorkerError
from headrace.sources import files, opening
from headrace.sources.opening import formats
from headrace.sources.verification.process import Place, ReadingProcess, Task, Unit
from headrace.sources.verification.report import Damage, Part, Verification

TIMEOUT_S = 60.0
MEMORY_BYTES = 4 << 30
MOST_DAMAGES = 100
MOST_DEATHS, MOST_HANGS = 10, 3  # processes that may die, and records that may hang, of one file or folder
OPENING_S, OPENED_BYTES_PER_S = 20.0, 10e6  # libraries are imported, and some formats read files to their end

Progress = Callable[[int, int | None], None]


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
    """Reads a data set once, in a process of its own, and says which files and records are damaged.

    Every record is read as a pipeline reads it. A record that ends the process, hangs or takes too much memory is
    reported, and another process goes on after it. Each file is opened on its own; if all are good, all together. In a
    stream, such as a compressed file, what follows a damaged record is not read.

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
        max_damaged: After how many damages to stop.
        progress: Called with the number of records read so far, and None; by default it shows a bar, if it takes long.
        options: As for `open`. By default, all splits are read.
    """
    if not 0 < timeout_s < float("inf"):
        raise PipelineError(f"`timeout_s` must be a positive number of seconds; got {timeout_s!r}.")
    for name, value in (("max_memory_bytes", max_memory_bytes), ("max_damaged", max_damaged)):
        if value < 1:
            raise PipelineError(f"`{name}` must be at least 1; got {value!r}.")
    with Bar("Verifying", keep=True) as bar:
        run = _Run(timeout_s, max_memory_bytes, max_damaged, progress or bar.tell)
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
    form, paths, checksums = opening.parts_of(source, format=format, storage_options=storage_options)
    options |= {"format": form.name}
    if "split" in options and form.name not in opening.HAVE_SPLITS:
        raise PipelineError(
            f"{form.name} files are verified as a whole: leave out `split`, or verify what `headrace.open(path, "
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
        self.timeout_s, self._max_memory_bytes, self._max_damaged = timeout_s, max_memory_bytes, max_damaged
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
        task = Task(units, options, self.timeout_s, self._max_memory_bytes)
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
                raise WorkerError(f"The process that reads could not be started: {process.death}.")
            if process.death is not None and not self._is_stopped:
                self._after_death(process.death, process.place, hangs=process.hangs)
        while self._is_stopped and self._now.number < len(units):
            self._end_unit(unread_from=self._now.unread_from or 0)

    def check_files_in(self, folders: list[str]) -> None:
        """For folders that cannot be opened, checks the files in them one by one, which may tell more."""
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
        self._now.is_open, self._now.is_stream = True, length is None

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

    def _after_death(self, death: str, place: Place, *, hangs: bool) -> None:
        """Says what a process died of, and where to go on."""
        now = self._now
        if not now.is_open:
            self._failed(death)
        elif now.is_stream:
            self._add(None, place.first, 1, death)
            self._end_unit(unread_from=place.first + 1)
        else:
            now.num_deaths, now.start = now.num_deaths + 1, place.first
            if place.stop - place.first > 1:  # one of these records, which the next process reads one by one
                now.careful = place.stop
            else:
                self._add(*now.tried, 1, death)
                now.num_hangs, now.start = now.num_hangs + hangs, now.start + 1
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
            self._is_stopped, self._now.unread_from = True, record
        else:
            self._damaged.append(damage)

    def _end_unit(self, unread_from: int | None) -> None:
        if not self._units[self._now.number].only_opened:
            self._parts.append(Part(_shown(self._path), self._now.num_good, unread_from))
            self._num_read += self._now.num_good
        self._now = _Progress(self._now.number + 1)


def _data_files(folder: str) -> Iterator[str]:
    """The files of records below a folder."""
    suffixes = tuple(suffix for name in ("ArrayRecord", "TFRecord", "Arrow") for suffix in formats.named(name).suffixes)
    for parent, _, names in sorted(os.walk(folder)):
        yield from (os.path.join(parent, name) for name in sorted(names) if formats.plain_name(name).endswith(suffixes))
