"""What the header of an image file says: its size, its orientation, and how a JPEG is laid out."""

import struct
from typing import NamedTuple

JPEG = b"\xff\xd8"
PNG = b"\x89PNG\r\n\x1a\n"
WEBP = b"WEBP"
END_OF_JPEG = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of JPEG that begin a frame
_ALONE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length
_ORIENTATION = 0x112


class JpegFrame(NamedTuple):
    """How a JPEG is laid out.

    Attributes:
        height_at: Where in the file its height stands, as two bytes.
        pixels_at: Where its first scan begins.
        components: How many channels it has.
        block_height: How many rows of pixels are coded together.
        in_order: Whether its rows are coded one after the other, with all channels, and without restarts in between.
        bits: Of a channel.
    """

    height_at: int
    pixels_at: int
    components: int
    block_height: int
    in_order: bool
    bits: int


class Header(NamedTuple):
    """The size of an image as it is stored, its EXIF orientation (1 to 8), and the frame of a JPEG."""

    height: int
    width: int
    orientation: int = 1
    frame: JpegFrame | None = None


def read_header(content: bytes | bytearray) -> Header | None:
    """The header of a JPEG, PNG or WebP; None for other formats, and where it cannot be read."""
    try:
        if content[:2] == JPEG:
            found = _jpeg(content)
        elif content[:8] == PNG:
            found = _png(content)
        elif content[:4] == b"RIFF" and content[8:12] == WEBP:
            found = _webp(content)
        else:
            return None
    except (IndexError, struct.error):
        return None
    return found if found is not None and found.height and found.width else None


def _jpeg(content: bytes | bytearray) -> Header | None:
    at = 2
    orientation = 1
    restarts = 0
    size = None
    frame = None
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        length = content[at + 2] << 8 | content[at + 3]
        if marker in _FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", content, at + 4)
            rows = max(content[at + 11 + 3 * i] & 15 for i in range(components))
            size = (height, width)
            frame = (at + 5, components, 8 * rows, marker in (0xC0, 0xC1), bits)
        elif marker == 0xDD:
            restarts = content[at + 4] << 8 | content[at + 5]
        elif marker == 0xE1 and content[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(content[at + 10 : at + 2 + length])
        elif marker == 0xDA:
            if size is None or frame is None:
                return None
            height_at, components, block_height, sequential, bits = frame
            in_order = sequential and content[at + 4] == components and not restarts
            return Header(*size, orientation, JpegFrame(height_at, at, components, block_height, in_order, bits))
        at += 2 + length
    return None


def _png(content: bytes | bytearray) -> Header:
    width, height = struct.unpack_from(">II", content, 16)
    at = 8
    orientation = 1
    while at + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        if kind == b"IDAT":
            break
        if kind == b"eXIf":
            orientation = _orientation(content[at + 8 : at + 8 + length])
        at += 12 + length
    return Header(height, width, orientation)


def _webp(content: bytes | bytearray) -> Header | None:
    kind = content[12:16]
    if kind == b"VP8 ":
        if content[23:26] != b"\x9d\x01\x2a":
            return None
        width, height = struct.unpack_from("<HH", content, 26)
        return Header(height & 0x3FFF, width & 0x3FFF)
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return Header((bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1)
    if kind != b"VP8X":
        return None
    width, height = (int.from_bytes(content[i : i + 3], "little") + 1 for i in (24, 27))
    at = 12
    orientation = 1
    while at + 8 <= len(content):
        kind, length = struct.unpack_from("<4sI", content, at)
        if kind == b"EXIF":
            found = content[at + 8 : at + 8 + length]
            orientation = _orientation(found[6:] if found[:6] == b"Exif\0\0" else found)
        at += 8 + length + length % 2
    return Header(height, width, orientation)


def _orientation(exif: bytes | bytearray) -> int:
    """The orientation in EXIF data; 1, which is upright, where there is none."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(exif[:2]))
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for i in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, start + 2 + 12 * i)
            if tag == _ORIENTATION:
                return value if kind == 3 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
