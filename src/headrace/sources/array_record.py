"""ArrayRecord files as a source: element `i` is record `i` of the files, one after the other, as bytes.

A file is opened when it is first read, and the least recently used ones are closed again. A reader has a place in its
file, so one thread has it at a time: it is taken out of those that are idle, and put back after the read.
"""

import bisect
import concurrent.futures
import contextlib
import hashlib
import operator
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.errors import PipelineError, optional

MOST_OPEN = 1024  # idle readers, and no more than a quarter of the descriptors that the process may have
OPENING_THREADS = 16
ITERATED_AT_ONCE = 1024
# Records are looked up one by one or in ranges, and a reader that reads ahead throws that work away at each.
READER_OPTIONS = {"readahead_buffer_size": "0", "max_parallelism": "0"}
FILE_BUFFER_BYTES = 16 << 10
# The reader's call for a list of indices walks over all groups of the file; from so many indices on, that pays.
GROUPS_PER_LISTED_INDEX = 16


@runtime_checkable
class FileInstruction(Protocol):
    """Some records of a file, as TensorFlow Datasets writes it: `take` of them after `skip`."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


@dataclass(frozen=True)
class _Part:
    """Records `start` to `stop` of a file; without a `stop`, all from there on."""

    path: str
    start: int
    stop: int | None


class ArrayRecordDataSource:
    """The records of ArrayRecord files, as bytes.

    Args:
        paths: A path, `path[a:b]` for some of its records, an object with the fields of a `FileInstruction`, or a
            sequence of these.
        reader_options: Options of ArrayRecord's reader by name, on top of those that suit random access.
    """

    def __init__(self, paths: Any, reader_options: Mapping[str, str] | None = None):
        self._options = READER_OPTIONS | dict(reader_options or {})
        self._parts = _parts(paths)
        self._readers = _Readers(self._options)
        found = self._measure()
        self._parts = [_Part(part.path, part.start, stop) for part, stop in zip(self._parts, found, strict=True)]
        lengths = [stop - part.start for part, stop in zip(self._parts, found, strict=True)]
        self._ends: list[int] = np.cumsum(lengths, dtype=np.int64).tolist()

    def _measure(self) -> list[int]:
        """Where the records of each part end; raises if files are missing."""
        threads = min(OPENING_THREADS, len(self._parts))
        with concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="headrace-open") as pool:
            missing = [path for path in pool.map(_if_missing, dict.fromkeys(self.paths)) if path is not None]
            if missing:
                raise FileNotFoundError(
                    f"{len(missing)} of {len(set(self.paths))} ArrayRecord files do not exist: {', '.join(missing)}. "
                    "A path is taken as it is written: expand patterns with `glob.glob` first."
                )
            return list(pool.map(self._stop_of, self._parts))

    def _stop_of(self, part: _Part) -> int:
        if part.stop is not None:
            return part.stop
        with self._readers.of(part.path) as reader:
            num_records = reader.num_records()
        if part.start > num_records:
            raise PipelineError(f"{part.path} has {num_records} records, and {part.start} are to be skipped.")
        return num_records

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return [part.path for part in self._parts]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> bytes:
        place = operator.index(index)
        length = len(self)
        if not -length <= place < length:
            raise IndexError(f"Index {index} is out of range for {length} records.")
        place %= length
        number = bisect.bisect_right(self._ends, place)
        (record,) = self._read(number, [self._place_in_file(number, place)])
        return record

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """The records at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        places = np.asarray(indices)
        if places.dtype.kind not in "iu":
            raise TypeError(f"Indices must be ints; got {places.dtype}: {indices!r}.")
        places = places.astype(np.int64)
        length = len(self)
        outside = places[(places < -length) | (places >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} records.")
        places, order = np.unique(places % length, return_inverse=True)
        numbers = np.searchsorted(self._ends, places, side="right")
        cuts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        records: list[bytes] = []
        for begin, end in zip(cuts, [*cuts[1:], len(places)], strict=True):
            number = int(numbers[begin])
            records += self._read(number, self._place_in_file(number, places[begin:end]).tolist())
        return [records[i] for i in order.tolist()]

    def _place_in_file(self, number: int, place: Any) -> Any:
        return place - (self._ends[number - 1] if number else 0) + self._parts[number].start

    def _read(self, number: int, places: list[int]) -> list[bytes]:
        """Records of a part by their places in its file, which ascend."""
        part = self._parts[number]
        with self._readers.of(part.path) as reader:
            if places[-1] >= reader.num_records():
                raise PipelineError(
                    f"{part.path} has {reader.num_records()} records, and those from {part.start} to {part.stop} were "
                    "asked for. Is it another version of the file?"
                )
            try:
                return reader.read(places)
            except Exception as e:
                e.add_note(f"reading {part.path}, records {places[0]} to {places[-1]}")
                raise

    def __iter__(self) -> Iterator[bytes]:
        length = len(self)
        for start in range(0, length, ITERATED_AT_ONCE):
            yield from self.__getitems__(range(start, min(start + ITERATED_AT_ONCE, length)))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        self._readers.close()

    def __enter__(self) -> "ArrayRecordDataSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "parts": self._parts, "ends": self._ends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._parts, self._ends = state["options"], state["parts"], state["ends"]
        self._readers = _Readers(self._options)

    def __repr__(self) -> str:
        named = "\n".join(f"{part.path}[{part.start}:{part.stop}]" for part in self._parts)
        digest = hashlib.sha1(named.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest()
        return f"ArrayRecordDataSource(num_files={len(self._parts)}, num_records={len(self)}, hash_of_paths={digest})"


# ------------------------------------------------------------------------------------------------- paths


def _parts(paths: Any) -> list[_Part]:
    if isinstance(paths, str | os.PathLike | FileInstruction):
        return [_part(paths)]
    if not isinstance(paths, Sequence):
        raise _not_a_path(paths)
    if not paths:
        raise PipelineError("An ArrayRecord source needs at least one path; got an empty sequence.")
    return [_part(path) for path in paths]


def _part(given: Any) -> _Part:
    if isinstance(given, FileInstruction):
        stop = given.skip + given.take if given.take >= 0 else None
        return _Part(os.fsdecode(given.filename), given.skip, stop)
    if not isinstance(given, str | os.PathLike):
        raise _not_a_path(given)
    path = os.fsdecode(given)
    found = re.fullmatch(r"(.*)\[(\d+):(\d+)\]", path, re.DOTALL)
    if found is None:
        return _Part(path, 0, None)
    start, stop = int(found[2]), int(found[3])
    if stop < start:
        raise PipelineError(f"{path} asks for records from {start} to {stop}: the end is before the start.")
    return _Part(found[1], start, stop)


def _not_a_path(given: Any) -> PipelineError:
    return PipelineError(
        "`paths` must be a path, `path[a:b]`, an object with `filename`, `skip`, `take` and `examples_in_shard`, or a "
        f"sequence of these; got {type(given).__name__}: {given!r}."
    )


def _if_missing(path: str) -> str | None:
    return None if os.path.exists(path) else path


# ----------------------------------------------------------------------------------------------- readers


class _Reader:
    """A file that is open for one thread at a time."""

    def __init__(self, make: Callable[..., Any], path: str, options: str):
        # As bytes, since a name may be one that is not Unicode.
        self._reader = make(os.fsencode(path), options, file_reader_buffer_size=FILE_BUFFER_BYTES)
        if not self._reader.ok():
            self._reader.close()  # raises what was wrong
        self._num_records = self._reader.num_records()
        written = re.search(r"group_size:(\d+)", self._reader.writer_options_string() or "")
        self._num_groups = self._num_records // (int(written[1]) if written else 1)

    def num_records(self) -> int:
        return self._num_records

    def read(self, places: list[int]) -> list[bytes]:
        """Records at places that ascend."""
        reader, first, last = self._reader, places[0], places[-1]
        if last - first + 1 == len(places) > 1:
            return reader.read(first, last + 1)
        if len(places) * GROUPS_PER_LISTED_INDEX >= self._num_groups:
            return reader.read(places)
        seek, read, records = reader.seek, reader.read, []
        for place in places:
            seek(place)
            records.append(read())
        return records

    def close(self) -> None:
        self._reader.close()


def _most_descriptors() -> int:
    try:
        import resource
    except ImportError:  # not on Windows
        return 512
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 20


class _Readers:
    """One reader for each file that is open; those that are idle are in order, the least recently used first."""

    def __init__(self, options: Mapping[str, str]):
        module = optional("array_record.python.array_record_module", extra="arrayrecord")
        self._make = module.ArrayRecordReader
        self._options = ",".join(f"{name}:{value}" for name, value in options.items())
        self._most_idle = min(MOST_OPEN, _most_descriptors() // 4)
        self._idle: dict[str, _Reader] = {}
        self._lock = threading.Lock()
        self._in_use: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def of(self, path: str) -> Iterator[_Reader]:
        """The reader of a file, for as long as the context lasts; after an error in it, it is not used again."""
        with self._in_use.setdefault(path, threading.Lock()):
            with self._lock:
                reader = self._idle.pop(path, None)
            reader = reader or self._open(path)
            try:
                yield reader
            except BaseException:
                with contextlib.suppress(RuntimeError):  # what was wrong is raised once more
                    reader.close()
                raise
            self._put_back(path, reader)

    def _open(self, path: str) -> _Reader:
        try:
            return _Reader(self._make, path, self._options)
        except Exception as e:
            raise PipelineError(
                f"{path} cannot be read as an ArrayRecord file, with the reader options {self._options!r}: {e}. Was it "
                "written to its end, with `close()`?"
            ) from e

    def _put_back(self, path: str, reader: _Reader) -> None:
        evicted = None
        with self._lock:
            self._idle[path] = reader
            if len(self._idle) > self._most_idle:
                evicted = self._idle.pop(next(iter(self._idle)))
        if evicted is not None:
            evicted.close()

    def close(self) -> None:
        with self._lock:
            readers, self._idle = self._idle, {}
        for reader in readers.values():
            reader.close()
