"""The files in a tar archive: what their headers say, each checked, and the errors for those that cannot be read.

An archive is blocks of 512 bytes. A file is a header and the blocks of its content, a long name is a header of its own
before that, and blocks of zeros end the archive. Headers have checksums, content has none.
"""

import math
import re
import shlex
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.errors import DataError

BLOCK = 512
ZEROS = bytes(BLOCK)
LONGEST_NAME = 1 << 20  # bytes of the headers that hold long names
_HEADER = struct.Struct("100s24x12s12x8sc100x6s82x155s12x")  # name, size, checksum, kind, magic, prefix
_MODULUS = 65521  # of Adler-32, whose lower half is the sum of all bytes and 1
_FILES, _EMPTY, _LINKS = b"0\x007", b"3456V", b"12"
_HAS_NO_FILE = "Was it written or copied to its end, and is it a tar file?"
_SPARSE = "is stored without its empty parts, which is not read. Write the archive without `--sparse`."

Read = Callable[[int, int], bytes]  # offset and length to bytes, which are fewer at the end


class DamagedTar(DataError):
    """A tar file cannot be read at some file in it."""


class Member(NamedTuple):
    """A file in an archive: its content has `size` bytes from `begin` on, and the next header is at `end`."""

    name: str
    begin: int
    size: int
    end: int


def damaged(path: str, at: int, what: str) -> DamagedTar:
    """The error for an archive that is not as it should be at an offset."""
    return DamagedTar(f"{path} is damaged at offset {at}: {what}. {_HAS_NO_FILE}")


def refused(path: str, at: int, what: str) -> DamagedTar:
    """The error for a file in an archive of a kind that is not read."""
    return DamagedTar(f"{path}, at offset {at}: {what}")


def members(path: str, read: Read, at: int, stop: float = math.inf) -> Iterator[Member]:
    """The files in an archive, from a header on, until an offset or its end."""
    extended: dict[str, Any] = {}  # what headers say of the file after them
    while at < stop:
        header = read(at, BLOCK)
        if header == ZEROS:
            _check_end(path, read, at)
            return
        if len(header) < BLOCK:
            raise _ends_early(path, at, len(header))
        field, size, checksum, kind, magic, prefix = _HEADER.unpack(header)
        if not _is_sum(header, checksum):
            raise damaged(path, at, "the checksum of a header is wrong")
        size = extended["size"] if "size" in extended else _number(path, size, at)
        begin = at + BLOCK
        end = begin + (size + BLOCK - 1) // BLOCK * BLOCK
        if kind in _FILES:
            name = extended.get("path") or _name(field, prefix, magic)
            extended = {}
            if not (name.endswith("/") and kind == b"\0"):  # else it is a folder, in old archives
                yield Member(name, begin, size, end)
        elif kind in b"LxXg":
            extended |= _extended(path, read, kind, begin, size, at)
        elif kind in _LINKS:
            _check_link(path, extended.get("path") or _name(field, prefix, magic), at)
            extended, end = {}, begin
        elif kind in _EMPTY:
            extended, end = {}, begin
        elif kind not in b"KD":
            what = _SPARSE if kind == b"S" else f"has the kind {kind!r}, which is not read."
            raise refused(path, at, f"{_name(field, prefix, magic)!r} {what}")
        at = end


def _check_end(path: str, read: Read, at: int) -> None:
    """Raises if something follows the blocks of zeros that end an archive."""
    while block := read(at, 1 << 16):
        if block.count(0) != len(block):
            what = "its end is marked here, but more follows. Archives that were joined by `cat` are read one by one"
            raise damaged(path, at, what)
        at += len(block)


def _ends_early(path: str, at: int, left: int) -> DamagedTar:
    what = f"it ends {left} bytes into a header" if left else "it ends without the blocks of zeros that mark its end"
    error = damaged(path, at, what)
    if not left and at:
        error.add_note(f"To read what there is all the same, add them: head -c 1024 /dev/zero >> {shlex.quote(path)}")
    return error


def is_header(block: bytes) -> bool:
    """Whether a block is a header, by its checksum, or the end of an archive."""
    return len(block) >= BLOCK and (block[:BLOCK] == ZEROS or _is_sum(block[:BLOCK], _HEADER.unpack_from(block)[2]))


def _is_sum(header: bytes, field: bytes) -> bool:
    """Whether a field has the sum of the bytes of a header, in which the field itself counts as spaces."""
    try:
        stored = int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return False
    spaces = 8 * 32 - sum(field)
    if ((zlib.adler32(header) & 0xFFFF) - 1 + spaces - stored) % _MODULUS == 0:
        return True
    return sum(byte - 256 if byte > 127 else byte for byte in header) + spaces == stored  # as some old programs do


def _number(path: str, field: bytes, at: int) -> int:
    """A number in octal digits or, if it is too large for these, in binary."""
    try:
        number = int.from_bytes(field[1:], "big") if field[0] == 0x80 else int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise damaged(path, at, f"a header has the size {field!r}")
    return number


def _name(field: bytes, prefix: bytes, magic: bytes) -> str:
    name = field.partition(b"\0")[0]
    if magic == b"ustar\0" and prefix[0]:
        name = prefix.partition(b"\0")[0] + b"/" + name
    return _text(name)


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")


def _check_link(path: str, name: str, at: int) -> None:
    if key_of(name) is not None:
        raise refused(
            path,
            at,
            f"{name!r} is a link, which has no content of its own. Write the archive with `tar --dereference "
            "--hard-dereference`.",
        )


def _extended(path: str, read: Read, kind: bytes, begin: int, size: int, at: int) -> dict[str, Any]:
    """What a header for the next file says: its name and size."""
    content = read(begin, size) if size <= LONGEST_NAME else b""
    if len(content) < size:
        raise damaged(path, at, f"a header says that {size} bytes of a name or of attributes follow")
    if kind == b"L":
        return {"path": _text(content.partition(b"\0")[0])}
    if not any(name in content for name in (b"path=", b"size=", b"GNU.sparse.")):  # times and the like
        return {}
    found: dict[str, Any] = {}
    for name, value in _attributes(path, content, at):
        if name.startswith("GNU.sparse."):
            raise refused(path, at, f"a file {_SPARSE}")
        if name == "path":
            found["path"] = _text(value)
        elif name == "size":
            if not value.isdigit():
                raise damaged(path, at, f"a header has the size {value!r}")
            found["size"] = int(value[:30])
    if found and kind == b"g":
        raise refused(path, at, "a global header gives one name or size to many files, which is not read.")
    return found


def _attributes(path: str, content: bytes, at: int) -> Iterator[tuple[str, bytes]]:
    """The names and values in `12 name=value\\n23 …`, where numbers are lengths with all of it."""
    place = 0
    while place < len(content):
        digits, space, _ = content[place : place + 20].partition(b" ")
        stop = place + int(digits) if space and digits.isdigit() else 0
        entry = content[place + len(digits) + 1 : stop]
        name, equals, value = entry.partition(b"=")
        if not place + len(digits) < stop <= len(content) or not equals or not value.endswith(b"\n"):
            raise damaged(path, at, "the attributes of a file cannot be read")
        yield _text(name), value[:-1]
        place = stop


_KEY = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_HIDDEN = re.compile(r"__[^/]*__(/|$)")


def key_of(name: str) -> tuple[str, str] | None:
    """The key and the extension of a file, cut at the first dot of its name; None if it is part of no sample.

    >>> key_of("train/dog.1.seg.PNG")
    ('train/dog', '1.seg.png')
    """
    found = _KEY.fullmatch(name)
    if found is None or (name.startswith("__") and _HIDDEN.match(name)):
        return None
    return found[1], found[2].lower()
