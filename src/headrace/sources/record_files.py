"""Files of records: what ArrayRecord and Bagz have in common.

A file is opened when it is first read, and the least recently used ones are closed. A reader has a position, so one
thread uses it at a time: it takes the reader out of the idle ones, and puts it back after the read.
"""

import abc
import contextlib
import glob
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from headrace.errors import DataError, PipelineError
from headrace.errors.addresses import identity, redacted
from headrace.progress import Bar
from headrace.sources.record_source import FileSource
from headrace.storage import files
from headrace.storage.files import KEPT, Holder, MappedFiles, is_out_of_descriptors, out_of_descriptors
from headrace.storage.indices import Parts, checked_index, checked_indices
from headrace.threads import map_in_threads

MOST_OPEN = 1024  # idle readers of a source
OPENING_S = 0.02
SLOW_FILE_S = 200e-6  # local files take some 40 microseconds, and threads would only slow that down
OPENING_THREADS = 16
SLOW_RECORD_S = 40e-6  # records that take longer wait for a disk, or are large
SLOW_READS = 16  # after this many, one reads records one by one again, to measure that
SLOW_IN_A_ROW = 3  # a single one may just have waited for a core

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class FileInstruction(Protocol):
    """Some records of a file, in the form of TensorFlow Datasets: `take` of them after `skip`."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


class FilePart(NamedTuple):
    """Records `start` to `stop` of a file; without `stop`, all from `start` on."""

    path: str
    start: int
    stop: int | None
    is_known: bool = False  # whether an instruction says that the file has these records


class Damaged(Exception):
    """A reader cannot read a file."""


@contextlib.contextmanager
def damage(*kinds: type[Exception]) -> Iterator[None]:
    """Turns the errors of a library for damaged files into `Damaged`."""
    try:
        yield
    except kinds as e:
        raise Damaged(str(e)) from e


class Reader(Protocol):
    """An open file, for one thread at a time."""

    num_records: int

    def read(self, places: list[int]) -> list[bytes]:
        """The records at ascending places."""
        ...

    def close(self) -> None: ...


class RecordFiles(FileSource[bytes], abc.ABC):
    """The records of files, one file after the other, as bytes."""

    FORMAT: ClassVar[str]

    def __init__(self, paths: Any):
        self._readers = Readers()
        self._seen = MappedFiles()
        given = _given(paths, self.FORMAT)
        try:
            parts = [p for found in _for_all(self._files_of, given) for p in found]
            with Bar(f"Opening {self.FORMAT} files", unit="files", total=len(parts)) as bar:
                stops = _for_all(self._stop_of, parts, bar.advance)
        except (DataError, FileNotFoundError):
            self._name_missing(given)
            for part in given:
                files.check_no_folder(part.path, what=f"{self.FORMAT} files")
            raise
        self._paths = [part.path for part in parts]
        self._ranges = [(part.start, stop) for part, stop in zip(parts, stops, strict=True)]
        self._parts = Parts(stop - start for start, stop in self._ranges)

    @abc.abstractmethod
    def _open(self, path: str) -> Reader:
        """Opens a local file."""

    @abc.abstractmethod
    def _count_remote(self, file: files.File) -> int:
        """The number of records of a remote file, without reading all of it."""

    def _files_of(self, part: FilePart) -> list[FilePart]:
        """The parts of all files that the path of a part means, which may be a pattern or an address."""
        if not files.is_remote(part.path) and not glob.has_magic(part.path):
            return [part]
        return [part._replace(path=path) for path in files.expand(part.path, what=f"{self.FORMAT} files")]

    def _name_missing(self, given: list[FilePart]) -> None:
        """Raises an error that names all missing files."""
        missing: list[str] = []
        num_paths = 0
        for part in given:
            try:
                paths = [one.path for one in self._files_of(part)]
            except FileNotFoundError:
                paths = [part.path]
            missing += [path for path in paths if not files.is_remote(path) and not os.path.exists(path)]
            num_paths += len(paths)
        if missing:
            raise files.not_found(missing, num_paths, what=f"{self.FORMAT} files") from None

    def _stop_of(self, part: FilePart) -> int:
        if part.stop is not None and (part.is_known or files.is_remote(part.path)):
            self._check_version(part.path)
            return part.stop
        if files.is_remote(part.path):
            with contextlib.closing(files.open_file(part.path)) as file:
                try:
                    num_records = self._count_remote(file)
                except Damaged as e:
                    raise self._unreadable(part.path, e) from e
        else:
            with self._reader_of(part.path) as reader:
                num_records = reader.num_records
        if part.start > num_records:
            raise PipelineError(f"{part.path} has {num_records} records, but the slice skips {part.start}.")
        if part.stop is not None and part.stop > num_records:
            raise PipelineError(
                f"{part.path} has {num_records} records, but those from {part.start} to {part.stop} were "
                f"requested. `[{part.start}:]` selects all records from there."
            )
        return num_records if part.stop is None else part.stop

    def _reader_of(self, path: str) -> contextlib.AbstractContextManager[Reader]:
        return self._readers.of(path, self._open_anywhere)

    def _open_anywhere(self, path: str) -> Reader:
        self._check_version(path)
        here = files.local_copy(path)
        try:
            return self._open(here)
        except Damaged as e:
            if not os.path.exists(here):
                raise FileNotFoundError(f"{redacted(path)} does not exist.") from e
            if is_out_of_descriptors(e):
                raise
            raise self._unreadable(path, e) from e

    def _check_version(self, path: str) -> None:
        """Raises for a local file that does not exist, or that changed after the source was made."""
        try:
            self._seen.add(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{redacted(path)} does not exist.") from None

    def _unreadable(self, path: str, error: Exception) -> DataError:
        return DataError(
            f"{path} cannot be read as {self.FORMAT}: {error}. Was its writer closed with `close()`, and was it "
            "copied completely?"
        )

    def __getitem__(self, record_key: int) -> bytes:
        number, place = self._parts.find(checked_index(record_key, self._parts.length, self._what))
        return self._read(number, [place + self._ranges[number][0]])[0]

    def __getitems__(self, record_keys: Sequence[int]) -> list[bytes]:
        """The records at these indices: each file is read once, in its own order."""
        places, order = np.unique(checked_indices(record_keys, len(self), self._what), return_inverse=True)
        records: list[bytes] = []
        for number, _, inside in self._parts.runs(places):
            records += self._read(number, (inside + self._ranges[number][0]).tolist())
        return [records[i] for i in order.tolist()]

    def _read(self, number: int, places: list[int]) -> list[bytes]:
        """Records of a part by their ascending places in its file."""
        path = self._paths[number]
        try:
            with self._reader_of(path) as reader:
                if places[-1] < reader.num_records:
                    if len(places) > 1:  # reading a single record takes hardly longer than this check
                        self._seen.check([path])
                    return reader.read(places)
                num_records = reader.num_records
        except Damaged as e:
            raise self._damaged(path, places, e) from e
        start, stop = self._ranges[number]
        raise PipelineError(
            f"{path} has {num_records} records, but those from {start} to {stop} were requested. Has the file "
            "been replaced?"
        )

    def _damaged(self, path: str, places: list[int], error: Exception) -> DataError:
        """The error of a read, with the first record that cannot be read."""
        if is_out_of_descriptors(error):
            raise out_of_descriptors(path) from error
        self._check_version(path)
        for place in places:
            try:
                with self._reader_of(path) as reader:
                    reader.read([place])
            except Damaged as e:
                return DataError(
                    f"{path} is damaged at record {place}: {e}. Copy or write the file again, or skip the record "
                    f"with `{path}[0:{place}]` and `{path}[{place + 1}:]`."
                )
        return DataError(f"{path} could not be read at records {places[0]} to {places[-1]}: {error}.")

    def close(self) -> None:
        self._readers.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _readers=Readers())

    def __where__(self, index: int) -> tuple[str, int]:
        number, place = self._parts.find(index)
        return self._paths[number], place + self._ranges[number][0]

    def _named(self) -> list[str]:
        ranges = zip(self._paths, self._ranges, strict=True)
        return [f"{identity(path)}[{start}:{stop}]" for path, (start, stop) in ranges]


def _given(paths: Any, form: str) -> list[FilePart]:
    if isinstance(paths, str | os.PathLike | FileInstruction):
        return _parts(paths)
    if not isinstance(paths, Sequence):
        raise _not_a_path(paths)
    if not paths:
        raise PipelineError(f"A source of {form} files needs at least one path; got an empty sequence.")
    return [part for path in paths for part in _parts(path)]


def _parts(given: Any) -> list[FilePart]:
    """One part, or one for each file that a path with braces means."""
    return (
        [_part(one) for one in files.expand_braces(given)]
        if isinstance(given, str) and "{" in given
        else [_part(given)]
    )


def _part(given: Any) -> FilePart:
    if not isinstance(given, str) and isinstance(given, FileInstruction):  # the second check is slow
        stop = given.skip + given.take if given.take >= 0 else None
        return FilePart(os.fsdecode(given.filename), given.skip, stop, is_known=True)
    if not isinstance(given, str | os.PathLike):
        raise _not_a_path(given)
    path = os.fsdecode(given)
    found = re.fullmatch(r"(.*)\[(\d*):(\d*)\]", path, re.DOTALL) if path.endswith("]") else None
    if found is None:
        return FilePart(path, 0, None)
    start = int(found[2] or 0)
    stop = int(found[3]) if found[3] else None
    if stop is not None and stop < start:
        raise PipelineError(f"{path} asks for records from {start} to {stop}: the end is before the start.")
    return FilePart(files.with_options_of(path, found[1]), start, stop)


def _not_a_path(given: Any) -> PipelineError:
    return PipelineError(
        "`paths` must be a path, `path[a:b]`, an object with `filename`, `skip`, `take` and `examples_in_shard`, or a "
        f"sequence of these; got {type(given).__name__}: {given!r}."
    )


def _for_all(call: Callable[[T], R], items: Sequence[T], done: Callable[[], None] = lambda: None) -> list[R]:
    """The results of a call for all items; if they take long, threads share those that are left after some time.

    After each it calls `done`.
    """

    def call_one(item: T) -> R:
        result = call(item)
        done()
        return result

    begin = time.perf_counter()
    answers: list[R] = []
    for item in items:
        if time.perf_counter() - begin > OPENING_S + SLOW_FILE_S * len(answers):
            break
        answers.append(call_one(item))
    rest = items[len(answers) :]
    threads = min(OPENING_THREADS, len(rest))
    if not threads:
        return answers
    late: list[Any] = [None] * len(rest)
    # One task per file would cost more than opening the file.
    open_some = lambda i: [call_one(item) for item in rest[i::threads]]  # noqa: E731
    for i, share in enumerate(map_in_threads(open_some, range(threads), threads, "headrace-open")):
        late[i::threads] = share
    return answers + late


class Readers(Holder):
    """One reader for each open file, which one thread uses at a time."""

    def __init__(self):
        super().__init__(MOST_OPEN)
        self._in_use: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def of(self, path: str, open_file: Callable[[str], Reader]) -> Iterator[Reader]:
        """The reader of a file, for the duration of the context; after an error, it is closed."""
        with self._in_use.setdefault(path, threading.Lock()):
            with self._lock:
                reader = self._held.pop(path, None)
            reader = reader or KEPT.open(path, open_file)
            try:
                yield reader
            except BaseException:
                reader.close()
                raise
            self._hold(path, reader)
            KEPT.use(self, path)

    def _close(self, file: Reader) -> None:
        file.close()


class ReadSpeed:
    """Whether reading records one by one is slow, so that cores should share it: from a slow disk, or large ones."""

    is_volatile = True  # no part of what a source is

    def __init__(self):
        self._num_reads = self._num_slow = 0

    def is_slow(self) -> bool:
        """Whether it is, judged by the last reads; sometimes False, so that it is measured again."""
        self._num_reads += 1
        return self._num_slow >= SLOW_IN_A_ROW and self._num_reads % SLOW_READS != 0

    def took(self, seconds: float, num_records: int) -> None:
        """Records how long reading records one by one took."""
        self._num_slow = self._num_slow + 1 if seconds > SLOW_RECORD_S * num_records else 0
