"""TFRecord files: streams of bytes, and random access through an index of offsets.

Every checksum is verified before a record is returned. From top to bottom: CRC32C, the framing of records,
decompression, random access, and streams.
"""

import contextlib
import functools
import os
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import DataError, PipelineError, StateError, available
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources.record_source import IndexedFiles
from headrace.storage import files
from headrace.storage.files import GZIP
from headrace.storage.indices import checked_index, checked_indices
from headrace.storage.sidecar import Index

# ---------------------------------------------------------------------------------------------------------- crc32c
# CRC-32C, which TFRecord files use: by google-crc32c if it is installed, otherwise by NumPy.


POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
ROW_BYTES = 512
PIECE_BYTES = 64 * ROW_BYTES  # small enough for the CPU cache
SHORT_BYTES = 64  # up to here, a loop is faster than NumPy


def masked(crc: Any) -> Any:
    """A checksum, or an array of them, as the format stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def checksum() -> Callable[[bytes], int]:
    """The fastest function for the CRC-32C of bytes: google-crc32c if it is installed, otherwise `crc32c` below."""
    module = available("google_crc32c")
    return module.value if module is not None and module.implementation == "c" else crc32c


@functools.lru_cache(maxsize=1 << 16)
def masked_crc_of_length(length: int) -> int:
    """The checksum of a length; cached, since lengths recur."""
    return masked(crc32c(length.to_bytes(8, "little")))


def masked_crcs_of_lengths(lengths: np.ndarray) -> np.ndarray:
    """The same for many."""
    rows = lengths.astype("<u8").view(np.uint8).reshape(-1, 8)
    return masked(np.array(_crcs_of_rows(rows), np.uint32) ^ np.uint32(_after_zeros(0xFFFFFFFF, 8) ^ 0xFFFFFFFF))


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    if len(data) <= SHORT_BYTES:
        table = _table()
        for byte in data:
            crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
    pieces = np.frombuffer(data, np.uint8)
    cuts = range(len(data) % ROW_BYTES, len(data), PIECE_BYTES)
    for piece in np.split(pieces, cuts):
        width = min(ROW_BYTES, len(piece))
        for row in _crcs_of_rows(piece.reshape(-1, width)) if width else ():
            crc = _after_zeros(crc, width) ^ row
    return crc ^ 0xFFFFFFFF


def _crcs_of_rows(rows: np.ndarray) -> list[int]:
    """The checksum of each row: it is linear, so each byte contributes a number that depends on its place."""
    places = np.arange(256 * (rows.shape[1] - 1), -1, -256)
    return np.bitwise_xor.reduce(_tables_by_place().take(rows + places), axis=1).tolist()


def _after_zeros(crc: int, count: int) -> int:
    """A checksum after `count` more zero bytes."""
    tables = _tables_by_place()
    out = crc >> 8 * count
    for i in range(min(4, count)):
        out ^= tables.item(count - 1 - i, crc >> 8 * i & 0xFF)
    return out


@functools.cache
def _table() -> list[int]:
    """The checksum after each byte, from zero."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1)
    return table.tolist()


@functools.cache
def _tables_by_place() -> np.ndarray:
    """The same with `i` zero bytes after it, in row `i`."""
    tables = np.empty((ROW_BYTES, 256), np.uint32)
    tables[0] = _table()
    for i in range(1, ROW_BYTES):
        tables[i] = tables[0][tables[i - 1] & 0xFF] ^ tables[i - 1] >> 8
    return tables


# --------------------------------------------------------------------------------------------------------- framing
# The layout of records in a TFRecord file, and the errors for damaged ones.
#
# A record is its length (8 bytes), the length's masked CRC-32C, the bytes, and their masked CRC-32C; numbers are
# little-endian.


HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
READ_BYTES = 1 << 18


class DamagedFile(DataError, PipelineError):
    """A TFRecord file cannot be read at some record."""


def damaged_error(path: str, number: int, offset: int, what: str) -> DamagedFile:
    """The error for an unreadable record."""
    return DamagedFile(
        f"{path} is damaged at record {number}, offset {offset}: {what}. Is the file truncated, or not a TFRecord file?"
    )


def another_file(path: str, offset: int) -> StateError:
    """The error for a state that was saved with another file."""
    return StateError(
        f"No record of {path} starts at offset {offset}, the position in the state. The state was saved with "
        "a different file."
    )


def framed(record: bytes) -> bytes:
    """A record as it is stored in a file.

    >>> len(framed(b"four"))
    20
    """
    header = HEADER.pack(len(record), masked_crc_of_length(len(record)))
    return header + record + FOOTER.pack(masked(checksum()(record)))


def begins_record(start: bytes) -> bool:
    """Whether these bytes can begin a record: they hold a length and its correct checksum."""
    if len(start) < HEADER.size:
        return False
    length, crc = HEADER.unpack_from(start)
    return crc == masked_crc_of_length(length)


# ------------------------------------------------------------------------------------------------------ compressed
# GZIP and ZLIB files of records, read by offset in the decompressed bytes.


EITHER_HEADER = zlib.MAX_WBITS | 32  # zlib detects GZIP or ZLIB


def is_compressed(start: bytes) -> bool:
    """Whether a file that begins like this is a GZIP or ZLIB file, rather than one of plain records."""
    if begins_record(start):  # the length of a record may look like the start of either
        return False
    return start.startswith(GZIP) or (start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0)


class Inflated:
    """The decompressed bytes of a file, by offset; going back decompresses from the start again."""

    size = sys.maxsize  # unknown before the end

    def __init__(self, path: str, file: BinaryIO):
        self._path = path
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._file.seek(0)
        self._zlib = zlib.decompressobj(EITHER_HEADER)
        self._rest = b""
        self._at = 0

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on; none at the end."""
        if offset < self._at:
            self._begin()
        while self._at < offset:
            if not self._next(min(offset - self._at, READ_BYTES)):
                raise another_file(self._path, offset)
        return self._next(length)

    def _next(self, length: int) -> bytes:
        while True:
            given = self._rest or self._file.read(READ_BYTES)
            if self._zlib.eof:
                if not given.strip(b"\0"):
                    return b""
                self._zlib = zlib.decompressobj(EITHER_HEADER)  # another member follows, as in files joined by `cat`
            ended = not given
            found, self._rest = self._inflate(given, length)
            if found:
                self._at += len(found)
                return found
            if ended and not self._zlib.eof:
                raise zlib.error("they end too early")

    def _inflate(self, given: bytes, length: int) -> tuple[bytes, bytes]:
        """Up to `length` bytes and the unused input; before damage, all bytes that can still be read."""
        while True:
            before = self._zlib.copy()
            try:
                found = self._zlib.decompress(given, length)
                return found, self._zlib.unconsumed_tail or self._zlib.unused_data
            except zlib.error:
                if length == 1:
                    raise
                self._zlib = before
                length = length // 2

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()


# --------------------------------------------------------------------------------------------------- random access
# The records of TFRecord files by index, and the index that says where they are.


NEAR_BYTES = 1 << 12  # records with at most this much between them are read together
LONGEST = np.uint64(1 << 60)  # bytes of a record: sums of offsets must not overflow
LARGE_BYTES = 1 << 15  # the search for offsets skips records of this size instead of reading them


class RecordIndex(Index):
    """Where each record of a file begins and the last one ends."""

    SUFFIX = ".index"
    FOLDER = "tfrecord"

    def _find(self, file: files.File) -> np.ndarray:
        return find_offsets(file, self.path, self.advance)


def find_offsets(file: files.File, path: str, advance: Callable[[int], None] = lambda num_bytes: None) -> np.ndarray:
    """Goes from record to record, and verifies the checksum of each length."""
    found = [np.zeros(1, np.int64)]
    at = 0
    number = 0
    mean = 0
    size = file.size
    while at < size:
        block = file.read(at, HEADER.size if mean > LARGE_BYTES and not files.is_remote(path) else READ_BYTES)
        if at == 0 and is_compressed(block[: HEADER.size]):
            raise PipelineError(
                f"{path} is compressed, so it has no random access to its records. Read it as a stream with "
                "`TFRecordIterDataset`, or write it without compression."
            )
        lengths = _lengths_in(path, block, number, at)
        ends = at + np.cumsum(lengths + FRAME_BYTES)
        if ends[-1] > size:
            what = f"it has {lengths[-1]} bytes, but the file ends {ends[-1] - size} bytes too early"
            raise damaged_error(path, number + len(lengths) - 1, int(ends[-1] - lengths[-1] - FRAME_BYTES), what)
        found.append(ends)
        advance(int(ends[-1]) - at)
        number = number + len(lengths)
        at = int(ends[-1])
        mean = int(lengths.mean())
    return np.concatenate(found)


def _lengths_in(path: str, block: bytes, number: int, offset: int) -> np.ndarray:
    """The lengths of the records whose headers are in a block, which begins with a record."""
    unpack = HEADER.unpack_from
    last = len(block) - HEADER.size
    at = 0
    headers = []
    while at <= last:
        header = unpack(block, at)
        headers.append(header)
        at += header[0] + FRAME_BYTES
    if not headers:
        raise damaged_error(path, number, offset, f"the file ends {len(block)} bytes into it, before its length")
    lengths, crcs = (np.array(column, np.uint64) for column in zip(*headers, strict=True))
    wrong = masked_crcs_of_lengths(lengths) != crcs
    if (wrong | (lengths > LONGEST)).any():
        first = int(np.argmax(wrong if wrong.any() else lengths > LONGEST))
        what = "the checksum of its length is wrong" if wrong.any() else f"it claims to have {lengths[first]} bytes"
        raise damaged_error(path, number + first, offset + int(lengths[:first].sum()) + FRAME_BYTES * first, what)
    return lengths.astype(np.int64)


class TFRecordDataSource(IndexedFiles[bytes]):
    """The records of TFRecord files by index, as bytes, one file after the other.

    >>> from headrace.sources import write_tfrecord
    >>> TFRecordDataSource(write_tfrecord([b"a", b"b"], folder / "a.tfrecord"))[1]
    b'b'

    Args:
        paths: A path, a pattern (`*`, `?`), or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes. By default the index of a file is a hidden file beside it or, where that
            cannot be written, one in `~/.cache/headrace/tfrecord`.
        verify: Whether to check the checksum of every record that is read.
    """

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None, verify: bool = True):
        self._verify = verify
        self._open_files(paths, RecordIndex, index_dir, what="TFRecord files", maps=False)

    def _num_elements(self, index: RecordIndex) -> int:
        return len(index.numbers) - 1

    def __getitem__(self, index: int) -> bytes:
        number, place = self._parts.find(checked_index(index, len(self), self._what))
        return _cut(*self._read(number, np.array([place])))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """The records at these indices: each file is read once, in its own order."""
        return _cut(*self.read_block(indices))

    def read_block(self, indices: Sequence[int] | np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Bytes that hold the records at these indices, and the offset and length of each record in them."""
        places = checked_indices(indices, len(self), self._what)
        order = slice(None)
        if (places[1:] <= places[:-1]).any():
            places, order = np.unique(places, return_inverse=True)
        pieces: list[bytes] = []
        starts, lengths = np.empty((2, len(places)), np.int64)
        base = 0
        for number, run, inside in self._parts.runs(places):
            piece, starts[run], lengths[run] = self._read(number, inside)
            starts[run] += base
            base += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), starts[order], lengths[order]

    def describe_place(self, index: int) -> str:
        """Where a record is, for messages."""
        number, place = self._parts.find(index % len(self))
        return f"record {place} of {self._paths[number]}, at offset {self._indexes[number].numbers[place]}"

    def _read(self, number: int, places: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The same for records of one file, by their places in it, in ascending order."""
        path = self._paths[number]
        offsets = self._indexes[number].numbers
        begins = offsets[places]
        ends = offsets[places + 1]
        first = np.flatnonzero(np.append(True, begins[1:] - ends[:-1] > NEAR_BYTES))  # of those read together
        sizes = ends[np.append(first[1:], len(places)) - 1] - begins[first]
        pieces = self._pool.get(path).read_many(list(zip(begins[first].tolist(), sizes.tolist(), strict=True)))
        if any(len(piece) != size for piece, size in zip(pieces, sizes.tolist(), strict=True)):
            raise files.changed_error(path)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        moved = np.repeat(np.cumsum(sizes) - sizes - begins[first], np.diff(first, append=len(places)))
        starts = begins + moved + HEADER.size
        lengths = ends - begins - FRAME_BYTES
        if self._verify:
            found = np.array(list(map(checksum(), _cut(data, starts, lengths))), np.uint32)
            wrong = np.flatnonzero(masked(found) != _numbers_at(data, starts + lengths, "<u4"))
            if len(wrong):
                what = "the checksum of its bytes is wrong"
                raise damaged_error(path, int(places[wrong[0]]), int(begins[wrong[0]]), what)
        return data, starts, lengths


def _cut(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _numbers_at(data: bytes, offsets: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers at these offsets, which need not be aligned."""
    size = np.dtype(dtype).itemsize
    windows = np.ndarray(max(0, len(data) - size + 1), f"V{size}", data, strides=(1,))  # one begins at each byte
    return windows[offsets].view(dtype)


# ---------------------------------------------------------------------------------------------------------- stream
# The records of a TFRecord file in order; the position is an offset in its (decompressed) bytes.


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
        self._path = os.fsdecode(path)
        self._verify = verify
        self._max_record_bytes = max_record_bytes

    def __iter__(self) -> "TFRecordIterator":
        return TFRecordIterator(self)


class TFRecordIterator(DatasetIterator[bytes]):
    """Iterates over the records of one file, which it opens for the first of them."""

    def __init__(self, dataset: TFRecordIterDataset):
        super().__init__()
        self._path = dataset._path
        self._verify = dataset._verify
        self._max_record_bytes = dataset._max_record_bytes
        self._file: files.File | Inflated | None = None
        self._block = b""  # what has been read ahead, and how much of it is used
        self._at = 0
        self._offset = 0  # of the block in the file

    def __next__(self) -> bytes:
        block = self._block
        at = self._at
        if at + HEADER.size > len(block):
            block = self._read_on(HEADER.size)
            at = 0
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
            block = self._read_on(needed)
            begin = HEADER.size
            end = HEADER.size + length
            if len(block) < needed:
                raise self._broken(f"it has {length} bytes, but the file ends {needed - len(block)} bytes too early")
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
            raise self._broken(f"it has {length} bytes, but the file ends {length - left} bytes too early")
        if length > self._max_record_bytes and isinstance(file, Inflated):
            raise self._broken(
                f"it has {length} bytes, but `max_record_bytes` is {self._max_record_bytes}. If the record is "
                "that long, raise the limit"
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
        self._block = b""
        self._at = 0
        self._offset = offset

    def close(self) -> None:
        self._offset = self._offset + self._at
        self._block = b""
        self._at = 0
        super().close()
        self._close_file()

    def _close_file(self) -> None:
        file = self._file
        self._file = None
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
        pieces = [self._block[self._at :]]
        end = self._offset + len(self._block)
        missing = needed - len(pieces[0])
        try:
            while missing > 0 and (piece := file.read(end, max(missing, READ_BYTES))):
                pieces.append(piece)
                missing = missing - len(piece)
                end = end + len(piece)
        except zlib.error as e:
            raise self._broken(f"its compressed bytes cannot be read ({e})") from e
        self._offset = self._offset + self._at
        self._at = 0
        self._block = b"".join(pieces)
        return self._block

    def _broken(self, what: str) -> DamagedFile | StateError:
        offset = self._offset + self._at
        number = _number_of_record(self._path, offset)
        return another_file(self._path, offset) if number is None else damaged_error(self._path, number, offset, what)


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
