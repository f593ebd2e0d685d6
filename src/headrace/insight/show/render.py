"""An element with all its values: each with its name, what it is, and how it looks."""

import dataclasses
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors.one_line import one_line
from headrace.insight.show.arrays import as_array, note_of
from headrace.insight.show.element_view import ElementView, escaped
from headrace.insight.show.sounds import is_sound, rate_in
from headrace.insight.show.tokens import SEGMENTS, Decoder, decoder_for, decoders_of, token_view
from headrace.insight.show.values import view_of

MOST_VALUES = 50
MOST_ITEMS = 8  # of a list
MOST_LOOKED_AT = 1000  # items of a list, to see what it is of
DEEPEST = 6
_SCALARS = (str, int, float, bool, np.number, type(None))
MOST_COLUMNS = 16
NUMBERS = frozenset(("int", "float", "bool", *(np.dtype(code).name for code in "?bhilqBHILQefd")))
Views = list[tuple[str, ElementView]]
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
    return _values_text(list(_views(element, dataset)), width or terminal_width())


def element_html(element: Any, dataset: Any = None) -> str:
    """An element as a fragment of HTML: a table with a row for each value, a row of a table, or one value alone.

    Args:
        element: Any element.
        dataset: The dataset or loader that it is from, which may know how to decode tokens.
    """
    views = list(_views(element, dataset))
    return _row_html([views]) if _is_row(views) else _values_html(views)


def elements_text(elements: Sequence[Any], dataset: Any = None, *, width: int | None = None) -> str:
    """Elements as text; those that are rows of a table as a table.

    >>> print(elements_text([{"id": 1, "name": "a"}, {"id": 22, "name": "b"}], width=60))
    id  name
     1  'a'
    22  'b'
    """
    width = width or terminal_width()
    all_views = [list(_views(element, dataset)) for element in elements]
    if _are_rows(all_views):
        table = _row_text(all_views)
        if max(map(len, table)) <= width:
            return "\n".join(table)
    shown = [_values_text(views, width) for views in all_views]
    return "\n".join(shown) if all("\n" not in text for text in shown) else "\n\n".join(shown)


def elements_html(elements: Sequence[Any], dataset: Any = None) -> str:
    """Elements as a fragment of HTML; those that are rows of a table as a table."""
    all_views = [list(_views(element, dataset)) for element in elements]
    return _row_html(all_views) if _are_rows(all_views) else "<hr>".join(map(_values_html, all_views))


def terminal_width() -> int:
    """How many characters fit a line of the terminal."""
    return shutil.get_terminal_size((100, 24)).columns


# ---------------------------------------------------------------------------------------- one line for each value


def _values_text(views: Views, width: int) -> str:
    names = min(max(len(one_line(name, 40)) for name, _ in views), 40)
    notes = min(max(len(view.note) for _, view in views), 24)
    lines = []
    for name, view in views:
        columns = [f"{one_line(name, 40):<{names}}"] * bool(names) + [f"{view.note:<{notes}}"] * bool(notes)
        lines.append(_cut("  ".join([*columns, view.text]).rstrip(), width))
    return "\n".join(lines)


def _values_html(views: Views) -> str:
    if len(views) == 1 and not views[0][0]:
        return f"<div>{_html_of(views[0][1])} {_note(views[0][1])}</div>"
    rows = (f"{_cell(f'<b>{escaped(name)}</b>')}{_cell(_note(view))}{_cell(_html_of(view))}" for name, view in views)
    return _table(rows)


# --------------------------------------------------------------------------------------------- rows of a table


def _is_row(views: Views) -> bool:
    return 1 < len(views) <= MOST_COLUMNS and all(name and view.is_short for name, view in views)


def _are_rows(all_views: Sequence[Views]) -> bool:
    names = [[name for name, _ in views] for views in all_views]
    return all(map(_is_row, all_views)) and all(each == names[0] for each in names)


def _row_text(all_views: Sequence[Views]) -> list[str]:
    table = [[one_line(name, 40) for name, _ in all_views[0]]]
    table += [[view.text for _, view in views] for views in all_views]
    for i, column in enumerate(zip(*all_views, strict=True)):
        width = max(len(row[i]) for row in table)
        is_number = all(view.note in NUMBERS for _, view in column)
        for row in table:
            row[i] = row[i].rjust(width) if is_number else row[i].ljust(width)
    return ["  ".join(row).rstrip() for row in table]


def _row_html(all_views: Sequence[Views]) -> str:
    header = "".join(_cell(f"<b>{escaped(name)}</b> {_note(view)}") for name, view in all_views[0])
    return _table([header, *("".join(_cell(_html_of(view)) for _, view in views) for views in all_views)])


# ------------------------------------------------------------------------------------------------------- parts


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _cell(inner: str) -> str:
    return f'<td style="{_CELL}">{inner}</td>'


def _note(view: ElementView) -> str:
    return f'<code style="opacity: 0.7; white-space: nowrap">{escaped(view.note)}</code>' if view.note else ""


def _html_of(view: ElementView) -> str:
    try:
        return view.html()
    except Exception:
        return escaped(view.text)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


# ------------------------------------------------------------------------------------------------ its values


def _views(element: Any, dataset: Any) -> Iterator[tuple[str, ElementView]]:
    for count, found in enumerate(_walk("", element, decoders_of(dataset))):
        if count == MOST_VALUES:
            yield "…", _text_view("and more")
            return
        yield found


def _walk(name: str, value: Any, decoders: list[Decoder], depth: int = 0) -> Iterator[tuple[str, ElementView]]:
    """The values in an element, with their names."""
    fields = _fields(value) if depth < DEEPEST else None
    if fields is None:
        yield name, (None if name else _tokens(value, None, {}, decoders)) or view_of(value)
        return
    rate = rate_in(fields)
    sound = None
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
        yield f"{name}[…]", _text_view(f"{len(value)} in all")


def _text_view(text: str) -> ElementView:
    return ElementView("", text, lambda: text)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a value by name or number; None if it has none."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))  # type: ignore[attr-defined]
    if isinstance(value, list | tuple):
        if all(isinstance(each, _SCALARS) for each in value[:MOST_LOOKED_AT]):
            return None  # in one line
        return dict(enumerate(value[:MOST_ITEMS]))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _longest_sound(fields: Mapping[Any, Any]) -> Any:
    """The name of the samples that a sampling rate belongs to."""
    arrays = {key: array for key, each in fields.items() if (array := as_array(each)) is not None and is_sound(array)}
    return max(arrays, key=lambda key: arrays[key].size, default=None)


def _tokens(value: Any, key: Any, fields: Mapping[Any, Any], decoders: list[Decoder]) -> ElementView | None:
    decoder = decoder_for(key, fields, decoders)
    array = None if decoder is None else as_array(value)
    if decoder is None or array is None:
        return None
    segments = as_array(fields.get(f"{key}{SEGMENTS}"))
    if segments is not None and segments.shape != array.shape:
        segments = None
    return token_view(array, segments, decoder, note_of(array))
