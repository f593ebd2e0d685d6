"""Protocol buffers as bytes: fields, numbers and lists of numbers."""

from collections.abc import Iterator

import numpy as np

FEWEST_AT_ONCE = 24  # fewer numbers are faster one by one

Piece = tuple[bytes, int, int]  # bytes, and where a message begins and ends in them


class Malformed(Exception):
    """What is wrong with a record."""


def messages(message: Piece, tag: int) -> Iterator[Piece]:
    """The messages in the fields that have this tag."""
    data, begin, end = message
    return ((data, a, b) for found, a, b in fields(data, begin, end) if found == tag)


def merged(pieces: list[Piece]) -> Piece:
    """A message that is stored in several pieces, with their fields joined."""
    if len(pieces) == 1:
        return pieces[0]
    data = b"".join(data[a:b] for data, a, b in pieces)
    return data, 0, len(data)


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The tag of each field of a message, and where its value begins and ends."""
    while at < end:
        tag, at = varint(data, at, end)
        wire = tag & 7 if tag >> 3 else -1
        if wire == 2:
            length, at = varint(data, at, end)
            stop = at + length
        elif wire == 0:
            stop = varint(data, at, end)[1]
        elif wire in (1, 5):
            stop = at + (8 if wire == 1 else 4)
        else:
            raise Malformed(f"the bytes before offset {at} do not begin a field")
        if stop > end:
            raise Malformed(f"the field at offset {at} ends {stop - end} bytes after the message around it")
        yield tag, at, stop
        at = stop


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at an offset, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise Malformed(f"a number ends too early, at offset {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed(f"the number at offset {at - 10} has more than 10 bytes")


def ints_of(raw: np.ndarray) -> np.ndarray | None:
    """Packed ints of 1 to 10 bytes each; None if these bytes are not that."""
    if not len(raw) or raw.max() < 0x80:
        return raw.astype(np.int64)
    stops = np.flatnonzero(raw < 0x80) + 1
    begins = np.append(0, stops[:-1])
    widths = stops - begins
    if not len(stops) or stops[-1] != len(raw) or widths.max() > 10:
        return None
    bits = raw & 0x7F
    ints = bits[begins].astype(np.uint64)
    longer = np.flatnonzero(widths > 1)
    for i in range(1, int(widths.max())):
        longer = longer[widths[longer] > i]
        ints[longer] |= bits[begins[longer] + i].astype(np.uint64) << np.uint64(7 * i)
    return ints.view(np.int64)


def short_ints(words: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The int of 1 to 8 bytes that begins each 8-byte word, and whether it has the given length."""
    within = np.uint64(2**64 - 1) >> (np.uint64(8) * (np.uint64(8) - lengths.astype(np.uint64)))
    ends = _NOT_LAST & within
    found = words & within
    right = (found & _NOT_LAST) == ends >> np.uint64(8)
    for keep, move, by in _FOLDS:  # pairs of groups of 7 bits, of 14 and of 28 move together
        found = found & keep | (found & move) >> by
    return found.view(np.int64), right & (lengths > 0)


_STARTS = [[bytes([number << 3 | 2, size]) for size in range(128)] for number in range(16)]  # of short fields
_LARGER = np.uint64(1) << np.arange(7, 64, 7, dtype=np.uint64)  # the first numbers of 2 bytes, of 3, and so on
_NOT_LAST = np.uint64(0x8080808080808080)  # the continuation bit of each byte
_FOLDS = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


def as_varint(value: int) -> bytes:
    """An unsigned number of up to 64 bits as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def varints(numbers: np.ndarray) -> bytes:
    """Int64 numbers as a packed list."""
    if not len(numbers) or (numbers.min() >= 0 and numbers.max() < 128):
        return numbers.astype(np.uint8).tobytes()
    left = np.ascontiguousarray(numbers).view(np.uint64)
    if len(left) < FEWEST_AT_ONCE:
        return b"".join(map(as_varint, left.tolist()))
    widths = np.searchsorted(_LARGER, left, side="right") + 1
    ends = np.cumsum(widths)
    out = np.empty(ends[-1], np.uint8)
    at = ends - widths
    while len(left):
        out[at] = left & np.uint64(0x7F) | np.uint64(0x80)
        more = left > 0x7F
        left, at = left[more] >> np.uint64(7), at[more] + 1
    out[ends - 1] &= 0x7F
    return out.tobytes()


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    size = len(payload)
    return _STARTS[number][size] + payload if size < 128 else bytes([number << 3 | 2]) + as_varint(size) + payload
