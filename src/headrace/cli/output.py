"""What commands print: with colours and lines in a terminal that has `rich`, otherwise as plain text.

Texts may come from data, so codes that a terminal would obey are escaped, and nothing in them is markup.
"""

import base64
import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from headrace.errors.one_line import one_line, short_repr

GAP = "  "
LONGEST = 10_000  # characters of a value


@dataclass(frozen=True)
class Fields:
    """Names and values, one pair on a line."""

    pairs: Iterable[tuple[str, Any]]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under the names of their columns; `right` are the columns whose values end at the right, as numbers do."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]
    title: str = ""
    right: Sequence[str] = ()


@dataclass(frozen=True)
class Lines:
    """Lines of text, as they are; `strong` ones stand out."""

    lines: Sequence[str]
    title: str = ""
    strong: bool = field(default=False, kw_only=True)


Part = Fields | Table | Lines


def show(*parts: Part) -> None:
    """Prints parts one after the other, with a line between them."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from headrace.cli import rich_output

        rich_output.show(parts)
        return
    print("\n\n".join("\n".join(_lines(part)) for part in parts))


def cell(value: Any, *, indented: bool = False) -> str:
    """A value in one printable line; with `indented`, spaces at its beginning are kept."""
    text = str(value)
    return text[: len(text) - len(text.lstrip(" "))] * indented + one_line(text, LONGEST)


def _lines(part: Part) -> list[str]:
    title = [part.title] if part.title else []
    if isinstance(part, Lines):
        return title + [cell(line, indented=True) for line in part.lines]
    indent = GAP if title else ""
    if isinstance(part, Fields):
        pairs = [(cell(name), cell(value)) for name, value in part.pairs]
        width = max((len(name) for name, _ in pairs), default=0)
        return title + [f"{indent}{name:<{width}}{GAP}{value}".rstrip() for name, value in pairs]
    return title + [indent + line for line in _align(part)]


def _align(table: Table) -> list[str]:
    rows = [list(table.columns), *([cell(value, indented=True) for value in row] for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if name in table.right else "<" for name in table.columns]
    return [
        GAP.join(f"{value:{side}{width}}" for value, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in rows
    ]


def no_progress(done: int, total: int | None) -> None:
    """For `--quiet`: shows nothing."""


# ---------------------------------------------------------------------------------------------------------- values
# Elements as JSON.


MOST_VALUES = 1000  # of an array
MOST_BYTES = 1 << 16
MOST_TEXT = 1000  # characters of other objects


def as_json(value: Any) -> Any:
    """An element as plain values; of large arrays and bytes, what they are and their beginning.

    >>> as_json({"x": np.arange(3), "y": b"ab"})
    {'x': {'dtype': 'int64', 'shape': [3], 'values': [0, 1, 2]}, 'y': {'num_bytes': 2, 'base64': 'YWI='}}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.number | np.bool_ | np.str_ | np.bytes_):
        plain = value.item()
        return str(plain) if isinstance(plain, np.generic | complex) else as_json(plain)
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        return {"num_bytes": len(content), "base64": base64.b64encode(content[:MOST_BYTES]).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return _array(np.asarray(value))
    return {"type": type(value).__name__, "repr": short_repr(value, MOST_TEXT)}


def _array(array: np.ndarray) -> Any:
    shown = array.ravel()[:MOST_VALUES].tolist() if array.size > MOST_VALUES else array.tolist()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": as_json(shown)}
