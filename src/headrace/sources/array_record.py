"""ArrayRecord files as a source of their records, as bytes."""

import contextlib
import functools
import os
import re
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import PipelineError, optional
from headrace.sources.record_files import Damaged, Reader, ReadSpeed, RecordFiles, damage
from headrace.storage import files
from headrace.threads import num_cores

# Records are read one by one, so reading ahead would be wasted; the default prefetch of the index is larger than most
# files.
READER_OPTIONS = {"readahead_buffer_size": "0", "max_parallelism": "0", "footer_prefetch_bytes": "0"}
FILE_BUFFER_BYTES = 2 << 10
# The reader's calls for many records use all cores, which helps only for many; the one for a list of indices also
# visits all groups of the file.
FEWEST_AT_ONCE = 512
GROUPS_PER_INDEX = 256
GROUPS_PER_SLOW_INDEX = 1 << 14
TAIL_BYTES = 128 << 10  # of a remote file: what is written at its end takes at least 64 KiB


class ArrayRecordDataSource(RecordFiles):
    """The records of ArrayRecord files, as bytes.

    >>> from headrace.sources import write_array_record
    >>> paths = write_array_record([b"a", b"b", b"c"], folder / "train.array_record")
    >>> list(MapDataset.source(ArrayRecordDataSource(paths)))
    [b'a', b'b', b'c']

    Differs from Grain: missing files are named all at once, and damage is a `DataError` with path and record.

    Args:
        paths: A path, a pattern (`*`, `?`, `[…]`), an address, `path[a:b]` for some of a file's records, an object with
            the fields of a `FileInstruction`, or a sequence of these.
        reader_options: Options of ArrayRecord's reader by name, in addition to those for random access.
    """

    FORMAT = "ArrayRecord"

    def __init__(self, paths: Any, reader_options: Mapping[str, str] | None = None):
        options = READER_OPTIONS | dict(reader_options or {})
        self._options = ",".join(f"{name}:{value}" for name, value in options.items())
        self._pace = ReadSpeed()
        super().__init__(paths)

    def _open(self, path: str) -> Reader:
        return _ArrayRecordReader(path, self._options, self._pace)

    def _count_remote(self, file: files.File) -> int:
        """Opens a file with a hole in place of the records: the reader only looks at both ends."""
        tail = TAIL_BYTES
        while True:
            begin = max(0, file.size - tail)
            with tempfile.NamedTemporaryFile(prefix="headrace-") as local:
                local.write(file.read(0, min(TAIL_BYTES, begin)))
                local.seek(begin)
                local.write(file.read(begin, file.size - begin))
                local.flush()
                try:
                    reader = self._open(local.name)
                except Damaged:
                    if begin == 0:
                        raise
                    tail *= 8
                    continue
                reader.close()
                return reader.num_records


class _ArrayRecordReader:
    def __init__(self, path: str, options: str, pace: ReadSpeed):
        make = optional("array_record.python.array_record_module", extra="arrayrecord").ArrayRecordReader
        try:
            # As bytes, since the name may not be Unicode.
            self._reader = make(os.fsencode(path), options, file_reader_buffer_size=FILE_BUFFER_BYTES)
        except ValueError as e:
            raise PipelineError(f"ArrayRecord's reader does not take the options {options!r}: {e}.") from e
        self._pace = pace
        if not self._reader.ok():
            with damage(RuntimeError):
                self._reader.close()
        self.num_records: int = self._reader.num_records()

    @functools.cached_property
    def _num_groups(self) -> int:
        written = re.search(r"group_size:(\d+)", self._reader.writer_options_string() or "")
        return self.num_records // (int(written[1]) if written else 1)

    def read(self, places: list[int]) -> list[bytes]:
        first = places[0]
        last = places[-1]
        count = len(places)
        in_a_row = last - first + 1 == count
        reader = self._reader
        with damage(RuntimeError):
            if self._cores_pay(count, in_a_row=in_a_row):
                return reader.read(first, last + 1) if in_a_row else reader.read(places)
            begin = time.perf_counter()
            seek = reader.seek
            read = reader.read
            if in_a_row:
                seek(first)
                records = [read() for _ in places]
            else:
                records = []
                for place in places:
                    seek(place)
                    records.append(read())
            self._pace.took(time.perf_counter() - begin, count)
            return records

    def _cores_pay(self, count: int, *, in_a_row: bool) -> bool:
        if self._pace.is_slow():
            return count * GROUPS_PER_SLOW_INDEX >= self._num_groups
        if count < FEWEST_AT_ONCE or num_cores() == 1:
            return False
        return self._num_groups == self.num_records if in_a_row else count * GROUPS_PER_INDEX >= self._num_groups

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # it raises earlier errors again
            self._reader.close()
