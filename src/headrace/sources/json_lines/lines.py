"""How lines are parsed: as JSON, or as text."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import DataError, available
from headrace.sources.json_lines.notes import restored
from headrace.sources.notes import NOTE

BOM = b"\xef\xbb\xbf"
WHITE = b" \t\r\n"
SHOWN_BYTES = 60

_scan_value = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # `raw_decode` takes a tenth longer
_LINE_ENDS = frozenset(("\n", "\r\n", ""))
_DIGITS = bytes(ord("0") if chr(i) in "0123456789" else ord(".") for i in range(256))
_LONG_NUMBER = b"0" * 19
_NOTE = NOTE.encode()


@dataclass(frozen=True)
class Format:
    """How lines are parsed."""

    name: str
    skips_blank: bool
    parser: Callable[[], Callable[[bytes], Any]]
    fix: str

    def unreadable(self, path: str, number: int, offset: int, line: bytes, error: Exception) -> DataError:
        """The error for a line that does not parse; the first line is number 1, as in editors."""
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg.removesuffix(' at')}, at column {min(error.pos, len(error.doc.rstrip())) + 1}"
        elif isinstance(error, UnicodeDecodeError):
            why = f"byte {error.start + 1} of the line is not UTF-8"
        else:
            why = f"{type(error).__name__}: {error}"
        shown = repr(line[:SHOWN_BYTES].rstrip(WHITE))[1:] + ("…" if len(line) > SHOWN_BYTES else "")
        return DataError(f"Line {number} of {path}, at offset {offset}, is not {self.name}: {why}: {shown}. {self.fix}")


def json_value(line: bytes) -> Any:
    """The value of a line, parsed by the standard library."""
    text = str(line, "utf-8")
    try:
        value, end = _scan_value(text, 0)
    except (StopIteration, json.JSONDecodeError):  # maybe white space at the front
        value, end = json.loads(text), len(text)
    if text[end:] not in _LINE_ENDS:
        value = json.loads(text)
    return restored(value) if _NOTE in line else value


@functools.cache
def json_parser() -> Callable[[bytes], Any]:
    """The fastest parser of a line: orjson if it is installed, with the same values as `json`."""
    orjson = available("orjson")
    if orjson is None:
        return json_value
    loads = orjson.loads

    def parse(line: bytes) -> Any:
        if _LONG_NUMBER in line.translate(_DIGITS):  # orjson turns ints beyond 64 bits into floats
            return json_value(line)
        try:
            value = loads(line)
        except (ValueError, RecursionError):  # NaN, half a surrogate pair: `json` accepts more
            return json_value(line)
        return restored(value) if _NOTE in line else value

    return parse


def _text(line: bytes) -> str:
    return str(line, "utf-8").removesuffix("\n").removesuffix("\r")


JSON = Format("JSON lines", True, json_parser, "Every line must be one JSON value: fix the line, or remove it.")
TEXT = Format("text", False, lambda: _text, "Text must be UTF-8: convert the file, or fix the line.")
