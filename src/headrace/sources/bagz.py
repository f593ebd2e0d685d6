"""Bagz files as a source of their records, as bytes."""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import PipelineError, optional
from headrace.sources.record_files import Damaged, FilePart, Reader, ReadSpeed, RecordFiles, damage
from headrace.storage import files

MOST_THREADS = 16  # of the reader's batch call, when that pays
NUMBER_BYTES = 8


class BagzDataSource(RecordFiles):
    """The records of Bagz files, as bytes.

    >>> import bagz
    >>> with bagz.Writer(str(folder / "a.bagz")) as writer:
    ...     writer.write(b"a")
    ...     writer.write(b"b")
    >>> list(BagzDataSource(folder / "a.bagz"))
    [b'a', b'b']

    Args:
        paths: A path, a pattern (`*`, `?`, `[…]`), an address, the shards of `name@3.bagz` or `name@*.bagz`,
            `path[a:b]` for some of a file's records, or a sequence of these. Files are read one after the other.
        reader_options: Fields of `bagz.Reader.Options` by name, such as `compression`.
    """

    FORMAT = "Bagz"

    def __init__(self, paths: Any, reader_options: Mapping[str, Any] | None = None):
        self._options = {"max_parallelism": MOST_THREADS} | dict(reader_options or {})
        self._pace = ReadSpeed()
        super().__init__(paths)

    def _files_of(self, part: FilePart) -> list[FilePart]:
        shards = [] if os.path.exists(part.path) else shards_of(part.path)
        parts: list[FilePart] = []
        for path in shards or [part.path]:
            parts += super()._files_of(part._replace(path=files.with_options_of(part.path, path)))
        return parts

    def _open(self, path: str) -> Reader:
        return _BagzReader(path, self._options, self._pace)

    def _count_remote(self, file: files.File) -> int:
        """A file ends with the offsets where records end; the last one is also where these numbers begin."""
        if "limits_placement" in self._options:
            raise PipelineError(
                "A Bagz file at an address must have its limits at its own end. Omit `limits_placement`, or "
                "copy the file to this machine first."
            )
        if file.size == 0:
            return 0
        begin = int.from_bytes(file.read(max(0, file.size - NUMBER_BYTES), NUMBER_BYTES), "little")
        num_records, rest = divmod(file.size - begin, NUMBER_BYTES)
        if num_records < 1 or rest:
            raise Damaged(f"its records claim to end at byte {begin} of {file.size}")
        return num_records


class _BagzReader:
    def __init__(self, path: str, options: Mapping[str, Any], pace: ReadSpeed):
        bagz = optional("bagz", extra="bagz")
        try:
            chosen = bagz.Reader.Options(**options)
        except TypeError as e:
            raise PipelineError(f"Bagz's reader does not take the options {dict(options)!r}: {e}") from e
        with damage(ValueError, FileNotFoundError), _plain_name(path) as name:
            self._reader: Any = bagz.Reader(name, chosen)
        self._path = path  # the reader maps it
        self._file = files.LocalFile(path)
        self._pace = pace
        self.num_records = len(self._reader)

    def read(self, places: list[int]) -> list[bytes]:
        reader = self._reader
        self._file.check_unchanged(self._path)
        with damage(ValueError, FileNotFoundError):
            if self._pace.is_slow():
                # After a damaged record, this call silently leaves records empty.
                records = reader.read_indices(places)
                return [record or reader[place] for record, place in zip(records, places, strict=True)]
            begin = time.perf_counter()
            records = [reader[place] for place in places]
            self._pace.took(time.perf_counter() - begin, len(places))
            return records

    def close(self) -> None:
        self._reader = None  # it has no `close`
        self._file.close()


def shards_of(path: str) -> list[str]:
    """The files or patterns that a path like `name@3.bagz` means; none for other paths."""
    found = re.fullmatch(r"(.*)@(\d+|\*)(\.[^/@]*)?", path, re.DOTALL)
    if found is None:
        return []
    name = found[1]
    count = found[2]
    suffix = found[3] or ""
    if count == "*":
        return [f"{name}-?????-of-?????{suffix}"]
    return [f"{name}-{i:05d}-of-{int(count):05d}{suffix}" for i in range(int(count))]


def _is_plain(path: str) -> bool:
    """Whether the reader takes a path literally, as one file."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return re.search(r",|@(\d+|\*)", path) is None


@contextlib.contextmanager
def _plain_name(path: str) -> Iterator[str]:
    """The path, or that of a link to it."""
    if _is_plain(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        suffix = os.path.splitext(path)[1]
        link = os.path.join(folder, "link" + (suffix if _is_plain(suffix) else ""))
        os.symlink(os.path.abspath(path), link)
        yield link
