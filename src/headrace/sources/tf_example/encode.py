"""Elements written as `tf.train.Example`.

A feature is a flat list of int64, float32 or bytes. What that does not say of a value is in the note of the record (see
`headrace.sources.notes`); one-axis arrays of int64 and float32 and lists of bytes need none. Floats that are not
float32 are rounded in their feature, and exact in the feature `__headrace__/NAME`.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError
from headrace.sources.notes import BARE, NOTE, RECORD, array_of, check_name, dtype_name, is_sequence, sequence_note
from headrace.sources.tf_example.wire import field, varints

TEXTS, FLOATS, INTS = 1, 2, 3  # the fields of a feature
INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
EXACT_INTS = 1 << 53  # ints up to here are exact as float64


class Leaf(NamedTuple):
    """Values as one list of an Example, and the note on them."""

    kind: int
    values: Any  # a flat array, or a sequence of bytes
    note: Any


def encode_example(element: Any, *, plain: bool = False) -> bytes:
    """An element as a `tf.train.Example`, from which `parse_example` makes an equal one.

    The features of dicts in dicts have joined names (`a/b`); an element that is not a dict is the feature `record`.

    Args:
        element: A dict of arrays, numbers, text, bytes, None, and dicts, lists and tuples of these; or one of them.
        plain: Whether to leave out the note: values then come back flat, as int64, float32 and bytes.

    >>> encode_example({"a": np.array([1])})
    b'\\n\\x0c\\n\\n\\n\\x01a\\x12\\x05\\x1a\\x03\\n\\x01\\x01'
    """
    into = _Features(plain)
    if isinstance(element, Mapping):
        note = into.add_dict("", element)
        is_noted = note[2].count(None) < len(note[2])
    else:
        note, is_noted = (BARE, into.add(RECORD, element)), True
    features = into.features
    if is_noted and not plain:
        features[NOTE] = _texts([_note_bytes(note)])
    return field(1, b"".join([field(1, field(1, _utf8(name)) + field(2, features[name])) for name in sorted(features)]))


class _Features:
    """The features of an element, which are added one by one."""

    def __init__(self, plain: bool):
        self.features: dict[str, bytes] = {}
        self._plain = plain

    def add_dict(self, prefix: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Adds the values of a dict; returns the note on it."""
        notes = []
        for name, value in values.items():
            check_name(name)
            notes.append(self.add(prefix + name, value))
        return "dict", tuple(values), tuple(notes)

    def add(self, name: str, value: Any) -> Any:
        """Adds a value; returns the note on it, None if it needs none."""
        if type(value) is np.ndarray and value.ndim == 1 and value.dtype in (INT64, FLOAT32):  # what most features are
            self._set(name, _ints(value) if value.dtype == INT64 else _floats(value))
            return None
        leaf = _leaf(name, value)
        if leaf is not None:
            return self._add_leaf(name, leaf)
        if value is None:
            self._set(name, b"")
            return "none"
        if isinstance(value, Mapping):
            return self.add_dict(f"{name}/", value)
        if is_sequence(value):
            return self._add_items(name, value, _tag(value))
        array = array_of(value, f"Feature {name!r}")
        if array is None:
            raise _cannot_hold(name, f"of the class {type(value).__name__}")
        return "object", array.shape, self._add_items(name, array.reshape(-1).tolist(), "list")

    def _add_items(self, name: str, items: Sequence[Any], tag: str) -> Any:
        """Adds items: as one feature if they fit into one, otherwise each as its own."""
        together = _together(name, items, tag)
        if together is not None:
            return self._add_leaf(name, together)
        return "parts", tag, tuple(self.add(f"{name}/{i}", item) for i, item in enumerate(items))

    def _add_leaf(self, name: str, leaf: Leaf) -> Any:
        kind, values, note = leaf
        if kind == INTS:
            self._set(name, _ints(values))
        elif kind == TEXTS:
            self._set(name, _texts(values))
        else:
            self._add_floats(name, values)
        is_plain = type(note) is tuple and (
            (note[0] in ("int64", "float32") and len(note) > 1 and len(note[1]) == 1) or note[:2] == ("list", "bytes")
        )
        return None if is_plain else note

    def _add_floats(self, name: str, values: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32, copy=False)
        self._set(name, _floats(rounded))
        if values.dtype == np.float64 and not self._plain:
            exact = values.astype("<f8", copy=False).tobytes()
            if rounded.astype("<f8").tobytes() != exact:
                self.features[f"{NOTE}/{name}"] = _texts([exact])

    def _set(self, name: str, feature: bytes) -> None:
        if name in self.features:
            raise PipelineError(f"Two values would be the feature {name!r}. Map the dataset to other names first.")
        self.features[name] = feature


@functools.lru_cache(maxsize=1024)
def _note_bytes(note: Any) -> bytes:
    return json.dumps(_as_json(note), separators=(",", ":")).encode()


def _as_json(note: Any) -> Any:
    if type(note) is not tuple:
        return note
    if note and note[0] == "dict":
        return dict(zip(note[1], map(_as_json, note[2]), strict=True))
    return list(map(_as_json, note))


def _ints(numbers: np.ndarray) -> bytes:
    return field(INTS, field(1, varints(numbers)))


def _floats(numbers: np.ndarray) -> bytes:
    return field(FLOATS, field(1, numbers.astype("<f4", copy=False).tobytes()))


def _texts(texts: Sequence[bytes]) -> bytes:
    return field(TEXTS, b"".join([field(1, text) for text in texts]))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise PipelineError(f"The text {text[:100]!r} cannot be written as UTF-8: {e}.") from e


def _leaf(name: str, value: Any) -> Leaf | None:
    """The values of an array, number or text; None for what has parts."""
    kind = type(value)
    if kind is np.ndarray:
        return _array(name, value)
    if kind in _SCALARS:
        word, field_number, make = _SCALARS[kind]
        return Leaf(field_number, make(name, [value]), word)
    for base in _SCALARS:  # a class derived from one of these
        if isinstance(value, base) and not isinstance(value, np.float64):
            return _leaf(name, base(value))
    if isinstance(value, bytearray | memoryview):
        return _leaf(name, bytes(value))
    if isinstance(value, np.generic):
        return _array(name, np.asarray(value))
    array = array_of(value, f"Feature {name!r}")
    return None if array is None else _array(name, array)


def _int64(name: str, numbers: Sequence[int]) -> np.ndarray:
    try:
        return np.array(numbers, np.int64)
    except OverflowError as e:
        large = next(number for number in numbers if not -(2**63) <= number < 2**63)
        raise PipelineError(f"Feature {name!r} has {large}, but an Example holds only int64.") from e


# How Python's values are written: the word for them in notes, the field, and the values of many.
_SCALARS: dict[type, tuple[str, int, Callable[[str, Sequence[Any]], Any]]] = {
    bool: ("bool", INTS, _int64),
    int: ("int", INTS, _int64),
    float: ("float", FLOATS, lambda _, numbers: np.array(numbers, np.float64)),
    str: ("str", TEXTS, lambda _, texts: list(map(_utf8, texts))),
    bytes: ("bytes", TEXTS, lambda _, texts: texts),
}


def _array(name: str, array: np.ndarray) -> Leaf | None:
    dtype, flat = array.dtype, array.reshape(-1)
    note = (dtype_name(dtype), array.shape) if array.ndim else (dtype_name(dtype),)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return Leaf(FLOATS, flat.astype(np.float64 if dtype.itemsize == 8 else np.float32, copy=False), note)
    if dtype.kind in "iub":
        if dtype.kind == "u" and dtype.itemsize == 8 and flat.size and flat.max() > np.iinfo(np.int64).max:
            raise PipelineError(f"Feature {name!r} has {flat.max()}, but an Example holds only int64.")
        return Leaf(INTS, flat.astype(np.int64, copy=False), note)
    if dtype.kind in "mM":
        return Leaf(INTS, flat.astype(dtype.newbyteorder("="), copy=False).view(np.int64), note)
    if dtype.kind == "S":
        return Leaf(TEXTS, flat.tolist(), note)
    if dtype.kind == "U":
        return Leaf(TEXTS, list(map(_utf8, flat.tolist())), note)
    if dtype.kind == "O" and array.ndim:
        return None
    raise _cannot_hold(name, f"{'an array' if array.ndim else 'a scalar'} of {dtype}")


def _cannot_hold(name: str, what: str) -> PipelineError:
    return PipelineError(
        f"Feature {name!r} is {what}; an Example holds numbers, bytes, text, None, and arrays, lists, tuples and dicts "
        "of these. Map the dataset to such features first."
    )


def _tag(items: Any) -> str:
    return "tuple" if isinstance(items, tuple) else "list"


def _together(name: str, items: Sequence[Any], tag: str) -> Leaf | None:
    """The values of all items as one list; None if they do not fit into one."""
    kinds = set(map(type, items))
    if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
        word, field_number, make = _SCALARS[kind]
        return Leaf(field_number, make(name, items), sequence_note(tag, [word] * len(items)))
    leaves: list[Leaf] = []
    for item in items:
        leaf = _together(name, item, _tag(item)) if is_sequence(item) else _leaf(name, item)
        if leaf is None:
            return None
        leaves.append(leaf)
    return _joined(leaves, tag)


def _joined(leaves: list[Leaf], tag: str) -> Leaf | None:
    notes = [leaf.note for leaf in leaves]
    kinds = {leaf.kind for leaf in leaves}
    if kinds == {TEXTS}:
        texts = [text for leaf in leaves for text in leaf.values]
        return Leaf(TEXTS, texts, sequence_note(tag, notes) if texts else (tag, tuple(notes)))
    if TEXTS in kinds:
        return None
    arrays = [leaf.values for leaf in leaves]
    if kinds == {INTS, FLOATS}:
        ints = [leaf.values for leaf in leaves if leaf.kind == INTS and leaf.values.size]
        if any(max(array.max(), -array.min()) > EXACT_INTS for array in ints):
            return None
        arrays = [array.astype(np.float64, copy=False) for array in arrays]
    flat = np.concatenate([np.empty(0, np.int64 if kinds == {INTS} else np.float32), *arrays])
    return Leaf(min(kinds, default=FLOATS), flat, sequence_note(tag, notes) if flat.size else (tag, tuple(notes)))
