"""GZIP and ZLIB files of records, read by offset in the decompressed bytes."""

import sys
import zlib
from typing import BinaryIO

from headrace.sources.files import GZIP
from headrace.sources.tfrecord.framing import READ_BYTES, another_file, begins_record

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
        self._path, self._file = path, file
        self._begin()

    def _begin(self) -> None:
        self._file.seek(0)
        self._zlib, self._rest, self._at = zlib.decompressobj(EITHER_HEADER), b"", 0

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
                self._zlib, length = before, length // 2

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()
