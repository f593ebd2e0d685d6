"""The first bytes of files, also of compressed ones: what they tell of the format."""

import zlib
from collections.abc import Callable

from headrace.sources.files import GZIP, ZSTD
from headrace.sources.tfrecord.framing import begins_record

BEGIN_BYTES = 512


def starts(*magics: bytes) -> Callable[[bytes], bool]:
    """What tells whether a file begins with one of these."""
    return lambda begin: begin.startswith(magics)


def is_idx(begin: bytes) -> bool:
    """Whether a dtype and a number of dimensions stand where IDX has them."""
    return len(begin) > 4 and begin[:2] == b"\0\0" and begin[2] in b"\x08\x09\x0b\x0c\x0d\x0e" and 0 < begin[3] < 9


def is_compressed(begin: bytes) -> bool:
    """Whether a file is a gzip or zstd file, or TFRecords in a ZLIB file."""
    if begins_record(begin):  # the length of its first record may look like the start of a gzip file
        return False
    return begin.startswith((GZIP, ZSTD)) or _is_zlib(begin)


def _is_zlib(begin: bytes) -> bool:
    if len(begin) < 2 or begin[0] != 0x78 or int.from_bytes(begin[:2], "big") % 31:
        return False
    return begins_record(_inflated(begin))  # two bytes alone also begin other files


def decompressed(begin: bytes) -> bytes:
    """The first bytes of what is in a compressed file; none where that takes a library."""
    if begin.startswith(ZSTD):
        return b""
    return _inflated(begin) if is_compressed(begin) else begin


def _inflated(begin: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(begin, BEGIN_BYTES)
    except zlib.error:
        return b""
