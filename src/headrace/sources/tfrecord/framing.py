"""The layout of records in a TFRecord file, and the errors for damaged ones.

A record is its length (8 bytes), the length's masked CRC-32C, the bytes, and their masked CRC-32C; numbers are
little-endian.
"""

import struct

from headrace.errors import DataError, PipelineError, StateError
from headrace.sources.crc32c import checksum, masked, masked_crc_of_length

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
READ_BYTES = 1 << 18


class DamagedFile(DataError, PipelineError):
    """A TFRecord file cannot be read at some record."""


def damaged(path: str, number: int, offset: int, what: str) -> DamagedFile:
    """The error for an unreadable record."""
    return DamagedFile(
        f"{path} is damaged at record {number}, offset {offset}: {what}. Was it written or copied to its end, and is "
        "it a TFRecord file?"
    )


def another_file(path: str, offset: int) -> StateError:
    """The error for a state that was saved with another file."""
    return StateError(
        f"No record of {path} begins at offset {offset}, where the state says. It is not the file that the state was "
        "saved with."
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
