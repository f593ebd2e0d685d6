"""Frames of zstd, decompressed a few blocks at a time.

A block may need only four bytes for 128 KiB of data, so 64 KiB may expand to two gigabytes. The library decompresses
all its input at once; here its input ends after some blocks.
"""

from typing import Any

MOST_BLOCKS = 32
MAGIC_BYTES, SKIPPABLE_HEADER_BYTES, BLOCK_HEADER_BYTES = 4, 8, 3
SKIPPABLE = b"\x2a\x4d\x18"  # after a byte from 0x50 to 0x5f: a frame without data
DICTIONARY_BYTES = (0, 1, 2, 4)
CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class Frame:
    """A frame, with the attributes of zlib's objects: `eof`, `unused_data` and `unconsumed_tail`."""

    eof = False
    unused_data = unconsumed_tail = b""

    def __init__(self, zstd: Any):
        self._zstd = zstd
        self._header = b""  # the bytes read so far of the next header
        self._skipped = 0  # bytes to skip before it
        self._blocks_follow, self._is_over = False, False

    def decompress(self, data: bytes, _: int = 0) -> bytes:
        """The decompressed bytes of the next blocks; unused input is in `unconsumed_tail`."""
        cut = self._after_some_blocks(data)
        plain = self._zstd.decompress(data[:cut] if cut < len(data) else data)
        self.eof, rest = self._zstd.eof, data[cut:]
        if self.eof:
            self.unused_data = self._zstd.unused_data + rest
        else:
            self.unconsumed_tail = rest
        return plain

    def _after_some_blocks(self, data: bytes) -> int:
        """Goes from header to header, and leaves it to the library to check them."""
        at, num_blocks = 0, 0
        while at < len(data) and not self._is_over:
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped, at = self._skipped - step, at + step
                continue
            if num_blocks == MOST_BLOCKS:
                return at
            more = data[at : at + self._header_bytes() - len(self._header)]
            self._header, at = self._header + more, at + len(more)
            if len(self._header) == self._header_bytes():
                num_blocks += self._blocks_follow
                self._read_header()
        return len(data)

    def _header_bytes(self) -> int:
        """How many bytes of the next header are needed here."""
        if self._blocks_follow:
            return BLOCK_HEADER_BYTES
        return SKIPPABLE_HEADER_BYTES if self._header[1:MAGIC_BYTES] == SKIPPABLE else MAGIC_BYTES + 1

    def _read_header(self) -> None:
        header, self._header = self._header, b""
        if self._blocks_follow:
            number = int.from_bytes(header, "little")
            is_repeated = number >> 1 & 3 == 1  # one byte, repeated `size` times
            self._skipped = 1 if is_repeated else number >> 3
            self._is_over = bool(number & 1)
        elif header[1:MAGIC_BYTES] == SKIPPABLE:
            self._is_over = True
        else:
            flags = header[-1]
            is_single = flags >> 5 & 1
            content_size = CONTENT_SIZE_BYTES[flags >> 6] or is_single
            self._skipped = (0 if is_single else 1) + DICTIONARY_BYTES[flags & 3] + content_size
            self._blocks_follow = True
