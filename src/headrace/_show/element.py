"""An element with all its values: each with its name, what it is, and how it looks."""

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from headrace._show.arrays import as_array, note_of
from headrace._show.sounds import is_sound, rate_in
from headrace._show.tokens import SEGMENTS, Decoder, decoder_for, decoders_of, token_view
from headrace._show.values import view_of
from headrace._show.view import View, escaped
from headrace._utils.one_line import one_line

MOST_VALUES = 50
MOST_ITEMS = 8  # of a list
DEEPEST = 6
_SCALARS = (str, int, float, bool, np.number, type(None))
_CELL = "vertical-align: top; text-align: left; padding: 2px 12px 2px 0"


def element_text(element: Any, dataset: Any = None, *, width: int | None = None) -> str:
    """An element as text, one line for each value.

    >>> print(element_text({"x": np.arange(3), "name": "a"}, width=60))
    x     int64[3]  0 1 2
    name  str[1]    'a'

    Args:
        element: Any element.
        dataset: The dataset or loader that it is from, which may know how to decode tokens.
        width: The most characters of a line; by default those of the terminal.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    views = list(_views(element, dataset))
    names = min(max(len(one_line(name, 40)) for name, _ in views), 40)
    notes = min(max(len(view.note) for _, view in views), 24)
    lines = []
    for name, view in views:
        columns = [f"{one_line(name, 40):<{names}}"] * bool(names) + [f"{view.note:<{notes}}"] * bool(notes)
        lines.append(_cut("  ".join([*columns, view.text]).rstrip(), width))
    return "\n".join(lines)


def element_html(element: Any, dataset: Any = None) -> str:
    """An element as a fragment of HTML: a table with a row for each value, or one value alone.

    Args:
        element: Any element.
        dataset: The dataset or loader that it is from, which may know how to decode tokens.
    """
    views = list(_views(element, dataset))
    if len(views) == 1 and not views[0][0]:
        return f"<div>{_html_of(views[0][1])} {_note(views[0][1])}</div>"
    rows = "".join(
        f'<tr><td style="{_CELL}"><b>{escaped(name)}</b></td><td style="{_CELL}">{_note(view)}</td>'
        f'<td style="{_CELL}">{_html_of(view)}</td></tr>'
        for name, view in views
    )
    return f"<table>{rows}</table>"


def _note(view: View) -> str:
    return f'<code style="opacity: 0.7">{escaped(view.note)}</code>' if view.note else ""


def _html_of(view: View) -> str:
    try:
        return view.html()
    except Exception:
        return escaped(view.text)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


# ------------------------------------------------------------------------------------------------ its values


def _views(element: Any, dataset: Any) -> Iterator[tuple[str, View]]:
    for count, found in enumerate(_walk("", element, decoders_of(dataset))):
        if count == MOST_VALUES:
            yield "…", _said("and more")
            return
        yield found


def _walk(name: str, value: Any, decoders: list[Decoder], depth: int = 0) -> Iterator[tuple[str, View]]:
    """The values in an element, with their names."""
    fields = _fields(value) if depth < DEEPEST else None
    if fields is None:
        yield name, (None if name else _tokens(value, None, {}, decoders)) or view_of(value)
        return
    rate, sound = rate_in(fields), None
    if rate is not None:
        sound = _longest_sound(fields)
    if not fields:
        yield name, view_of(value)
    for key, each in fields.items():
        inner = f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}" if name else str(key)
        if key == sound:
            yield inner, view_of(each, rate)
        elif (tokens := _tokens(each, key, fields, decoders)) is not None:
            yield inner, tokens
        else:
            yield from _walk(inner, each, decoders, depth + 1)
    if isinstance(value, list | tuple) and len(value) > len(fields):
        yield f"{name}[…]", _said(f"{len(value)} in all")


def _said(text: str) -> View:
    return View("", text, lambda: text)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a value by name or number; None if it has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        if all(isinstance(each, _SCALARS) for each in value):
            return None  # in one line
        return dict(enumerate(value[:MOST_ITEMS]))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _longest_sound(fields: Mapping[Any, Any]) -> Any:
    """The name of the samples that a sampling rate belongs to."""
    arrays = {key: array for key, each in fields.items() if (array := as_array(each)) is not None and is_sound(array)}
    return max(arrays, key=lambda key: arrays[key].size, default=None)


def _tokens(value: Any, key: Any, fields: Mapping[Any, Any], decoders: list[Decoder]) -> View | None:
    decoder = decoder_for(key, fields, decoders)
    array = None if decoder is None else as_array(value)
    if decoder is None or array is None:
        return None
    segments = as_array(fields.get(f"{key}{SEGMENTS}"))
    if segments is not None and segments.shape != array.shape:
        segments = None
    return token_view(array, segments, decoder, note_of(array))
