"""TFRecord files as streams of bytes.

A record is its length (8 bytes), the length's masked CRC-32C, the bytes, and their masked CRC-32C; numbers are
little-endian. A position is an offset in the file.
"""

import functools
import io
import os
import struct
from typing import Any

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, PipelineError, StateError
from headrace.iterator import DatasetIterator

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
READ_BYTES = 1 << 18


class TFRecordIterDataset(IterDataset[bytes]):
    """The records of a TFRecord file, in order, as bytes.

    Args:
        path: The file. Several are read by `IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset),
            cycle_length=...)`.
        verify_data: Checks the checksum of every record's bytes, and not of the lengths alone.
    """

    def __init__(self, path: str | os.PathLike, *, verify_data: bool = False):
        super().__init__()
        if not isinstance(path, str | os.PathLike):
            raise PipelineError(
                f"`path` must be one path; got {type(path).__name__}: {path!r}. For several files, use "
                "`IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset), cycle_length=...)`."
            )
        self._path, self._verify_data = os.fspath(path), verify_data

    def __iter__(self) -> "TFRecordIterator":
        return TFRecordIterator(self._path, verify_data=self._verify_data)


class TFRecordIterator(DatasetIterator[bytes]):
    """Hands over the records of one file; the file is opened for the first of them."""

    def __init__(self, path: str, *, verify_data: bool):
        super().__init__()
        self._path, self._verify_data = path, verify_data
        self._file: io.FileIO | None = None
        self._closed = False
        self._block, self._at = b"", 0  # what has been read ahead, and how far it is used
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
            needed = HEADER.size + length + FOOTER.size
            block, begin, end = self._read_on(needed), HEADER.size, HEADER.size + length
            if len(block) < needed:
                raise self._broken(f"it has {length} bytes, and the file ends {needed - len(block)} bytes too early")
        record = block[begin:end]
        if self._verify_data and masked(crc32c(record)) != FOOTER.unpack_from(block, end)[0]:
            raise self._broken("the checksum of its bytes is wrong")
        self._at = end + FOOTER.size
        return record

    def get_state(self) -> dict[str, Any]:
        return {"reader_offset": self._offset + self._at}

    def set_state(self, state: dict[str, Any]) -> None:
        offset = state.get("reader_offset") if isinstance(state, dict) else None
        if not isinstance(offset, int) or offset < 0:
            raise StateError(
                f"The state of a TFRecord file has the field `reader_offset`, an offset in it; got {state!r}. It is "
                "the state of another pipeline."
            )
        self._close_file()
        self._block, self._at, self._offset = b"", 0, offset

    def close(self) -> None:
        self._offset, self._block, self._at = self._offset + self._at, b"", 0
        self._closed = True
        self._close_file()

    def __del__(self) -> None:
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> io.FileIO:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        if self._file is None:
            size = os.stat(self._path).st_size
            if self._offset > size:
                raise StateError(
                    f"The state says offset {self._offset}, and {self._path} has {size} bytes. It is not the file "
                    "that the state was saved with."
                )
            self._file = io.FileIO(self._path)
            self._file.seek(self._offset + len(self._block))
        return self._file

    def _read_on(self, needed: int) -> bytes:
        """The next bytes from where the reader is: at least as many as needed, unless the file ends before."""
        file = self._open()
        pieces = [self._block[self._at :]]
        missing = needed - len(pieces[0])
        while missing > 0 and (piece := file.read(max(missing, READ_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
        self._offset, self._at = self._offset + self._at, 0
        self._block = b"".join(pieces)
        return self._block

    def _broken(self, what: str) -> PipelineError | StateError:
        offset = self._offset + self._at
        number = _number_of_record(self._path, offset)
        if number is None:
            return StateError(
                f"No record of {self._path} begins at offset {offset}, which the state says. It is not the file that "
                "the state was saved with."
            )
        return PipelineError(
            f"{self._path} is damaged at record {number}, offset {offset}: {what}. Was it written or copied to its "
            "end, and is it a TFRecord file without compression?"
        )


def _number_of_record(path: str, offset: int) -> int | None:
    """The number of the record at an offset: an iterator that began in the middle does not know it."""
    place = number = 0
    with open(path, "rb") as file:
        while place < offset:
            file.seek(place)
            header = file.read(HEADER.size)
            if len(header) < HEADER.size:
                return None
            place += HEADER.size + HEADER.unpack(header)[0] + FOOTER.size
            number += 1
    return number if place == offset else None


# ---------------------------------------------------------------------------------------------- checksums

POLYNOMIAL = 0x82F63B78  # of CRC-32C, with its bits in reverse
ROW_BYTES = 512
PIECE_BYTES = 64 * ROW_BYTES  # so that what is worked on stays in the cache
SHORT_BYTES = 64  # up to here a loop is faster than NumPy


def masked(crc: int) -> int:
    """A checksum as the format stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=1 << 16)
def masked_crc_of_length(length: int) -> int:
    """The checksum of a length; lengths come again and again."""
    return masked(crc32c(length.to_bytes(8, "little")))


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
    """The checksum of each row on its own: it is linear, so every byte adds a number that its place decides."""
    places = np.arange(256 * (rows.shape[1] - 1), -1, -256)
    return np.bitwise_xor.reduce(_tables_by_place().take(rows + places), axis=1).tolist()


def _after_zeros(crc: int, count: int) -> int:
    """What `count` zero bytes make of a checksum."""
    tables = _tables_by_place()
    out = crc >> 8 * count
    for i in range(min(4, count)):
        out ^= tables.item(count - 1 - i, crc >> 8 * i & 0xFF)
    return out


@functools.cache
def _table() -> list[int]:
    """What each byte makes of a checksum of zero."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1)
    return table.tolist()


@functools.cache
def _tables_by_place() -> np.ndarray:
    """The same with `i` zero bytes after it, for each `i` in a row."""
    tables = np.empty((ROW_BYTES, 256), np.uint32)
    tables[0] = _table()
    for i in range(1, ROW_BYTES):
        tables[i] = tables[0][tables[i - 1] & 0xFF] ^ tables[i - 1] >> 8
    return tables
