"""Elements as JSON and back: plain values, and a note on what JSON does not have (see `headrace.sources.notes`).

Arrays and tuples become lists, scalars of NumPy numbers, and bytes text. The note says what they were, and is left out
if there are none. It is text in the JSON, since other readers expect one type in each column.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.sources.notes import (
    BARE,
    NOTE,
    RECORD,
    array_of,
    check_name,
    dtype_name,
    dtype_named,
    is_sequence,
    sequence_note,
    shape_noted,
)

_as_text = json.JSONEncoder(separators=(",", ":")).encode
_JSON = frozenset((str, int, float, bool, type(None)))
_AS_PYTHON = (np.str_, np.bool_, np.int64, np.float64)  # scalars that stand for Python's
_SEQUENCES: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}


def is_json(value: Any) -> bool:
    """Whether JSON gives a value back as it is."""
    kind = type(value)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str or (type(item) not in _JSON and not is_json(item)):
                return False
        return True
    return kind in _JSON or (kind is list and (_JSON.issuperset(map(type, value)) or all(map(is_json, value))))


def with_note(element: Any) -> Any:
    """An element as JSON, with the note on it if it needs one."""
    if is_json(element) and not (type(element) is dict and NOTE in element):
        return element
    is_dict = isinstance(element, Mapping)
    if is_dict and NOTE in element:
        check_name(NOTE)  # raises
    plain, note = _noted(element)
    if note is None:
        return plain
    return plain | {NOTE: _as_text(note)} if is_dict else {RECORD: plain, NOTE: _as_text([BARE, note])}


def _noted(value: Any) -> tuple[Any, Any]:
    """A value as JSON, and the note on it; None if it needs none."""
    kind = type(value)
    if kind in _JSON:
        return value, None
    if isinstance(value, Mapping):
        return _noted_dict(value)
    if is_sequence(value):
        plain, note = _noted_items(value, "tuple" if kind is tuple else "list")
        return plain, None if kind is not tuple and _is_empty(note) else note
    if isinstance(value, bytes | bytearray | memoryview):
        return _text(bytes(value)), "bytes"
    if isinstance(value, np.generic):
        return (value.item(), None) if kind in _AS_PYTHON else _noted_array(np.asarray(value))
    for base in (str, bool, int, float):  # a class derived from one of these
        if isinstance(value, base):
            return base(value), None
    array = array_of(value, "A value")
    if array is None:
        raise TypeError(f"{kind.__name__} is not text, a number, an array, a list, a tuple or a dict")
    return _noted_array(array)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise ValueError(f"bytes that are not UTF-8 ({e}), which ArrayRecord, TFRecord, Parquet and Arrow hold") from e


def _noted_dict(values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    plain, notes = {}, {}
    for name, value in values.items():
        if not isinstance(name, str):
            check_name(name)  # raises
        plain[name], note = _noted(value)
        if note is not None:
            notes[name] = note
    return plain, notes or None


def _noted_items(items: Sequence[Any], tag: str) -> tuple[list[Any], Any]:
    found = [_noted(item) for item in items]
    return [plain for plain, _ in found], sequence_note(tag, [note for _, note in found])


def _is_empty(note: Any) -> bool:
    """Whether the note of a list says nothing of its items."""
    return len(note) == 2 and note[1].count(None) == len(note[1])


def _noted_array(array: np.ndarray) -> tuple[Any, Any]:
    dtype = array.dtype
    if dtype.kind == "O" and array.ndim:
        plain, note = _noted_items(array.reshape(-1).tolist(), "list")
        return plain, ("object", array.shape, None if _is_empty(note) else note)
    if dtype.kind in "mM":
        plain = array.astype(dtype.newbyteorder("=")).view(np.int64).tolist()
    elif dtype.kind == "S":
        plain = np.char.decode(array, "utf-8").tolist()
    elif dtype.kind in "biuU" or (dtype.kind == "f" and dtype.itemsize <= 8):
        plain = array.tolist()
    else:
        raise TypeError(f"an array of {dtype} is not one of numbers or text")
    return plain, (dtype_name(dtype), array.shape) if array.ndim else (dtype_name(dtype),)


def restored(value: Any) -> Any:
    """The element that a value in JSON lines was written for; raises ValueError if its note does not fit."""
    if type(value) is not dict or NOTE not in value:
        return value
    try:
        note = json.loads(value.pop(NOTE))
        if isinstance(note, list) and note[0] == BARE:
            return _value(value[RECORD], note[1])
        return _value(value, note)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as e:
        raise ValueError(f"the note {NOTE!r} does not fit the values ({type(e).__name__}: {e})") from e


def _value(value: Any, note: Any) -> Any:
    """A value as its note says."""
    if note is None:
        return value
    if isinstance(note, dict):
        return value | {name: _value(value[name], one) for name, one in note.items()}
    if note == "bytes":
        return value.encode()
    tag, *rest = note
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](_items(value, *rest))
    if tag == "object":
        shape = shape_noted(rest[0])
        items = _value(value, rest[1])
        return np.fromiter(items, object, len(items)).reshape(shape)
    return _array(value, dtype_named(tag), *rest)


def _items(values: list[Any], notes: Any, count: int | None = None) -> list[Any]:
    if count is not None:
        return [_value(value, notes) for value in values]
    return [_value(value, note) for value, note in zip(values, notes, strict=True)]


def _array(value: Any, dtype: np.dtype, shape: Any = None) -> Any:
    if dtype.kind in "mM":
        array = np.array(value, np.int64).view(dtype.newbyteorder("=")).astype(dtype)
    elif dtype.kind == "S":
        array = np.char.encode(np.array(value, str), "utf-8").astype(dtype)
    else:
        array = np.array(value, dtype)
    return array[()] if shape is None else array.reshape(shape_noted(shape))
