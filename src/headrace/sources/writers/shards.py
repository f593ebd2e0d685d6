"""Cuts records into shards, and writes them one after the other."""

import collections
import contextlib
import itertools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypedDict

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import DataError, PipelineError, translate_full_disk
from headrace.progress import Bar
from headrace.sources.writers.job import Job
from headrace.storage.files import is_remote

Progress = Callable[[int, int | None], None]

REPORTED_EVERY = 256  # records
ENDLESS = 1 << 62


class Writing(TypedDict, total=False):
    """The options of all writers; see `write_array_record`."""

    num_shards: int
    overwrite: bool
    job: str | None
    progress: Progress | None


class ShardFile(Protocol):
    """A file being written."""

    def write(self, record: Any) -> None: ...

    def close(self) -> None: ...


def shard_names(path: str, num_shards: int) -> list[str]:
    """The names of the shards of a file.

    >>> shard_names("train.parquet", 2)
    ['train-00000-of-00002.parquet', 'train-00001-of-00002.parquet']
    """
    if num_shards == 1:
        return [path]
    stem, suffix = os.path.splitext(path)
    return [f"{stem}-{number:05}-of-{num_shards:05}{suffix}" for number in range(num_shards)]


def write(
    records: Any,
    path: str | os.PathLike,
    make: Callable[[str, str | None], ShardFile],
    kind: str,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Writes records to files, and returns their paths.

    Args:
        records: As for `write_array_record`, like the arguments that are not listed here.
        path: The file, or the path from which the names of the shards are made.
        make: Opens a file to write to, given its path and, after the first shard, the path of that.
        kind: Text that identifies the format and its options; a call only continues one of the same kind.
    """
    target = os.fsdecode(path)
    if is_remote(target):
        raise PipelineError(
            f"Only local files can be written; got the address {target}. Write a local file, then copy it."
        )
    if operator.index(num_shards) < 1:
        raise PipelineError(f"`num_shards` must be at least 1; got {num_shards}.")
    names = shard_names(target, num_shards)
    shards = Shards(records, num_shards)
    done = 0
    bar = Bar(f"Writing {os.path.basename(target)}", keep=True)
    progress = progress or bar.report
    running = Job(target, names, [job, kind, num_shards], overwrite=overwrite, resumable=job is not None)
    with bar, running:
        for name, (size, part) in zip(names, shards, strict=True):
            if name in running.finished:
                done += size or 0
                continue
            try:
                file = make(running.new_file(), None if name == names[0] else names[0])
                with _opened(part) as iterator:
                    done = _write_file(iterator, file, name, done, shards.total, progress)
            except PipelineError as e:
                if not isinstance(e, DataError):  # a record that cannot be written: no call can continue this one
                    running.discard()
                raise
            running.finish(name)
        if overwrite:
            _remove_other_counts(target, num_shards, getattr(records, "paths", ()))
        progress(done, shards.total)
    return names


def _remove_other_counts(target: str, num_shards: int, read: Iterable[str]) -> None:
    """Removes old shards of another count, except files that the records are read from."""
    folder, name = os.path.split(target)
    stem, suffix = os.path.splitext(name)
    shard = re.compile(rf"{re.escape(stem)}-\d{{5,}}-of-(\d{{5,}}){re.escape(suffix)}")
    source = {os.path.abspath(path) for path in read}
    for other in os.listdir(folder or "."):
        found = shard.fullmatch(other)
        path = os.path.join(folder, other)
        if found and int(found[1]) != num_shards and os.path.abspath(path) not in source:
            os.unlink(path)


def _write_file(
    records: Iterator[Any], file: ShardFile, name: str, done: int, total: int | None, progress: Progress
) -> int:
    """Writes one file; returns how many records have been written in all."""
    todo = "Free some space, and call it again."
    try:
        for record in records:
            try:
                file.write(record)
            except Exception as e:
                e.add_note(f"writing record {done}")
                with translate_full_disk(name, todo):
                    raise
            done += 1
            if done % REPORTED_EVERY == 0:
                progress(done, total)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to raise
            file.close()
        raise
    with translate_full_disk(name, todo):
        file.close()
    return done


class Shards:
    """Records cut into consecutive parts, with the size of each; iterate over all of them, in order."""

    def __init__(self, records: Any, num_shards: int):
        self._num_shards = num_shards
        self._random, self._stream = _dataset(records)
        if self._random is not None:
            self.total = len(self._random)
            if self.total >= ENDLESS:
                raise PipelineError("These records never end (a `repeat()`?): limit them with `take(count)`.")
        elif num_shards == 1:
            self.total = None
        elif hasattr(self._stream, "__next__"):
            raise PipelineError(
                f"An iterator cannot be split into {num_shards} shards, because its length is unknown. Pass a "
                "dataset or a list, or write one shard."
            )
        else:
            with _opened(self._stream) as iterator:
                self.total = sum(1 for _ in iterator)  # reads all of it

    def __iter__(self) -> Iterator[tuple[int | None, Iterable[Any]]]:
        if self.total is None:
            yield None, self._stream
            return
        # Rounded up, so the first shard has records if there are any.
        cuts = [-(-self.total * number // self._num_shards) for number in range(self._num_shards + 1)]
        if self._random is not None:
            for begin, end in itertools.pairwise(cuts):
                yield end - begin, self._random[begin:end]
            return
        with _opened(self._stream) as iterator:
            for begin, end in itertools.pairwise(cuts):
                part = itertools.islice(iterator, end - begin)
                yield end - begin, part
                collections.deque(part, maxlen=0)  # skips the records of a shard that is already finished


@contextlib.contextmanager
def _opened(records: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """An iterator over the records, closed afterwards if it was made here."""
    iterator = iter(records)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None and iterator is not records:
            close()


def _dataset(records: Any) -> tuple[MapDataset | None, Any]:
    """The records by index if possible, otherwise as a stream."""
    if isinstance(records, MapDataset):
        return records, None
    if isinstance(records, str | bytes | bytearray):
        raise PipelineError(f"Records must be an iterable of bytes or dicts; got {type(records).__name__}.")
    if isinstance(records, IterDataset):
        return None, records
    if hasattr(records, "__len__") and (hasattr(records, "__getitem__") or hasattr(records, "__getitems__")):
        return MapDataset.source(records), None
    if not isinstance(records, Iterable):
        raise PipelineError(f"Records must be a dataset, a source or an iterable; got {type(records).__name__}.")
    return None, records
