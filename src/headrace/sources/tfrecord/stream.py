"""The records of a TFRecord file in order; the position is an offset in its (decompressed) bytes."""

import contextlib
import os
import zlib
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources import files
from headrace.sources.crc32c import checksum, masked, masked_crc_of_length
from headrace.sources.tfrecord.compressed import Inflated, is_compressed
from headrace.sources.tfrecord.framing import (
    FOOTER,
    FRAME_BYTES,
    HEADER,
    READ_BYTES,
    DamagedFile,
    another_file,
    damaged,
)

RECORD_BYTES = 1 << 28  # the longest record in a compressed file


class TFRecordIterDataset(IterDataset[bytes]):
    """The records of a TFRecord file, in order, as bytes; GZIP and ZLIB files are recognised by their first bytes.

    Resuming goes straight to the record, except in a compressed file, which must be decompressed from its start: about
    a second for 200 MB of records. If that is too slow, store them uncompressed (`python -m headrace convert
    a.tfrecord.gz a.tfrecord`), or in more and smaller files.

    >>> from headrace.sources import write_tfrecord
    >>> (path,) = write_tfrecord([b"a", b"b"], folder / "a.tfrecord")
    >>> list(TFRecordIterDataset(path))
    [b'a', b'b']

    Differs from Grain: a record with a wrong checksum is a `DataError`.

    Args:
        path: The file. For several, use `IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset),
            cycle_length=...)`.
        verify: Whether to check the checksum of every record; those of the lengths are always checked.
        max_record_bytes: How long a record of a compressed file may be: a few compressed bytes can expand enormously.
    """

    def __init__(self, path: str | os.PathLike, *, verify: bool = True, max_record_bytes: int = RECORD_BYTES):
        super().__init__()
        check_count("max_record_bytes", max_record_bytes, least=1)
        if not isinstance(path, str | os.PathLike):
            raise PipelineError(
                f"`path` must be one path; got {type(path).__name__}: {path!r}. For several files, use "
                "`IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset), cycle_length=...)`."
            )
        self._path, self._verify, self._max_record_bytes = os.fsdecode(path), verify, max_record_bytes

    def __iter__(self) -> "TFRecordIterator":
        return TFRecordIterator(self)


class TFRecordIterator(DatasetIterator[bytes]):
    """Iterates over the records of one file, which it opens for the first of them."""

    def __init__(self, dataset: TFRecordIterDataset):
        super().__init__()
        self._path, self._verify, self._max_record_bytes = dataset._path, dataset._verify, dataset._max_record_bytes
        self._file: files.File | Inflated | None = None
        self._block, self._at = b"", 0  # what has been read ahead, and how much of it is used
        self._offset = 0  # of the block in the file

    def __next__(self) -> bytes:
        block, at = self._block, self._at
        if at + HEADER.size > len(block):
            block, at = self._read_on(HEADER.size), 0
            if not block:
                self._close_file()
                raise StopIteration
            if len(block) < HEADER.size:
                raise self._broken(f"the file ends {len(block)} bytes into it, before its length")
        length, length_crc = HEADER.unpack_from(block, at)
        if length_crc != masked_crc_of_length(length):
            raise self._broken("the checksum of its length is wrong")
        begin = at + HEADER.size
        end = begin + length
        if end + FOOTER.size > len(block):
            needed = FRAME_BYTES + length
            self._check_length(length)
            block, begin, end = self._read_on(needed), HEADER.size, HEADER.size + length
            if len(block) < needed:
                raise self._broken(f"it has {length} bytes, and the file ends {needed - len(block)} bytes too early")
        record = block[begin:end]
        if self._verify and masked(checksum()(record)) != FOOTER.unpack_from(block, end)[0]:
            raise self._broken("the checksum of its bytes is wrong")
        self._at = end + FOOTER.size
        return record

    def _check_length(self, length: int) -> None:
        """Raises for a record that is longer than its file or the limit, before memory is allocated for it."""
        file = self._file = self._file or _open(self._path)
        left = file.size - self._offset - self._at - FRAME_BYTES
        if length > left:
            raise self._broken(f"it has {length} bytes, and the file ends {length - left} bytes too early")
        if length > self._max_record_bytes and isinstance(file, Inflated):
            raise self._broken(
                f"it has {length} bytes, and `max_record_bytes` is {self._max_record_bytes}. If it should be that "
                "long, raise the limit"
            )

    def get_state(self) -> dict[str, Any]:
        return {"reader_offset": self._offset + self._at}

    def set_state(self, state: dict[str, Any]) -> None:
        offset = state.get("reader_offset") if isinstance(state, dict) else None
        if not isinstance(offset, int) or offset < 0:
            raise StateError(
                f"The state of a TFRecord file has the field `reader_offset`, an offset; got {state!r}. It is the "
                "state of another pipeline."
            )
        self._close_file()
        self._block, self._at, self._offset = b"", 0, offset

    def close(self) -> None:
        self._offset, self._block, self._at = self._offset + self._at, b"", 0
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read_on(self, needed: int) -> bytes:
        """The next bytes: at least as many as needed, unless the file ends before."""
        self._assert_not_closed()
        self._file = file = self._file or _open(self._path)
        if self._offset > file.size:
            raise another_file(self._path, self._offset)
        if isinstance(file, files.LocalFile):
            file.check_unchanged(self._path)
        pieces, end = [self._block[self._at :]], self._offset + len(self._block)
        missing = needed - len(pieces[0])
        try:
            while missing > 0 and (piece := file.read(end, max(missing, READ_BYTES))):
                pieces.append(piece)
                missing, end = missing - len(piece), end + len(piece)
        except zlib.error as e:
            raise self._broken(f"its compressed bytes cannot be read ({e})") from e
        self._offset, self._at = self._offset + self._at, 0
        self._block = b"".join(pieces)
        return self._block

    def _broken(self, what: str) -> DamagedFile | StateError:
        offset = self._offset + self._at
        number = _number_of_record(self._path, offset)
        return another_file(self._path, offset) if number is None else damaged(self._path, number, offset, what)


def _number_of_record(path: str, offset: int) -> int | None:
    """The number of the record at an offset, which an iterator that was restored does not know."""
    place = number = 0
    with contextlib.closing(_open(path)) as file:
        while place < offset:
            header = file.read(place, HEADER.size)
            if len(header) < HEADER.size:
                return None
            place += HEADER.unpack(header)[0] + FRAME_BYTES
            number += 1
    return number if place == offset else None


def _open(path: str) -> files.File | Inflated:
    file = files.open_file(path)
    if not is_compressed(file.read(0, HEADER.size)):
        return file
    file.close()
    return Inflated(path, files.open_stream(path))
