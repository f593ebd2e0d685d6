"""`tf.train.Example` and `SequenceExample`, parsed to NumPy and written without TensorFlow.

An `Example` is a protocol buffer: a map from names to lists of floats, of ints, or of bytes. From top to bottom: the
wire format, elements restored by their notes, parsing of single records, writing, and the parser of many records with
expected features, which reads them in step.
"""

import functools
import itertools
import json
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import DataError, PipelineError
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
from headrace.transforms import Map
from headrace.trees import ShapeDtypeStruct

# ------------------------------------------------------------------------------------------------------------ wire
# Protocol buffers as bytes: fields, numbers and lists of numbers.


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
        left = left[more] >> np.uint64(7)
        at = at[more] + 1
    out[ends - 1] &= 0x7F
    return out.tobytes()


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    size = len(payload)
    return _STARTS[number][size] + payload if size < 128 else bytes([number << 3 | 2]) + as_varint(size) + payload


# --------------------------------------------------------------------------------------------------------- restore
# Elements made from the features of an `Example` and the note on them, as `encode_example` wrote them.


Features = dict[str, Any]
Make = Callable[[Any], Any]  # makes a value from the values of a feature

_RESTORED_SCALARS: dict[str, Make] = {
    "bool": lambda values: bool(values[0]),
    "int": lambda values: int(values[0]),
    "float": lambda values: float(values[0]),
    "str": lambda values: values[0].decode(),
    "bytes": operator.itemgetter(0),
}
_MANY: dict[str, Make] = {  # the same for all items of a list
    "bool": lambda values: values.astype(bool).tolist(),
    "int": lambda values: values.astype(np.int64, copy=False).tolist(),
    "float": lambda values: values.tolist(),
    "str": lambda values: [text.decode() for text in values],
    "bytes": list,
}
_SEQUENCES: dict[str, Make] = {"list": list, "tuple": tuple}


def restored(features: Features) -> Any:
    """The element of a record with these features; raises `Malformed` if the note among them does not fit."""
    note = features.pop(NOTE, None)
    if note is None:
        return features
    try:
        for name in [name for name in features if name.startswith(f"{NOTE}/")]:
            (exact,) = features.pop(name)
            features[name.removeprefix(f"{NOTE}/")] = np.frombuffer(exact, "<f8").astype(np.float64)
        return _element(*note)(features)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError) as e:
        raise Malformed(f"its feature {NOTE!r} does not fit the others ({type(e).__name__}: {e})") from e


@functools.lru_cache(maxsize=1024)
def _element(note: bytes) -> Callable[[Features], Any]:
    """Makes elements from features; those that the note does not name are added as they are."""
    found = json.loads(note)
    if isinstance(found, dict):
        make = _dict(found, "")
        return lambda features: make(features) | features
    tag, inner = found
    if tag != BARE:
        raise ValueError(f"the note begins with {tag!r}")
    return _value(inner, RECORD)


def _dict(notes: dict[str, Any], prefix: str) -> Callable[[Features], dict[str, Any]]:
    makes = {name: _value(note, prefix + name) for name, note in notes.items()}
    return lambda features: {name: make(features) for name, make in makes.items()}


def _value(note: Any, name: str) -> Callable[[Features], Any]:
    """Makes the value of this name, and removes its features."""
    if note is None:
        return lambda features: features.pop(name)
    if note == "none":
        return functools.partial(_none, name)
    if isinstance(note, dict):
        return _dict(note, f"{name}/")
    if note[0] == "parts":
        _, tag, notes = note
        sequence = _SEQUENCES[tag]
        makes = [_value(one, f"{name}/{i}") for i, one in enumerate(notes)]
        return lambda features: sequence([make(features) for make in makes])
    if note[0] == "object":
        shape = shape_noted(note[1])
        items = _value(note[2], name)
        return lambda features: np.fromiter(items(features), object, math.prod(shape)).reshape(shape)
    size, make = _flat(note)

    def value(features: Features) -> Any:
        values = features.pop(name)
        if len(values) != size:
            raise ValueError(f"{name!r} has {len(values)} values, not {size}")
        return make(values)

    return value


def _none(name: str, features: Features) -> None:
    features.pop(name)


def _flat(note: Any) -> tuple[int, Make]:
    """How many values of a feature a value takes, and the function that makes it from these."""
    if isinstance(note, str):
        return 1, _RESTORED_SCALARS[note]
    if note[0] in _SEQUENCES:
        return _sequence(*note)
    name, *shape = note
    dtype = dtype_named(name)
    if not shape:
        return 1, lambda values: _restored_array(values, dtype)[0]
    sizes = shape_noted(*shape)
    return math.prod(sizes), lambda values: _restored_array(values, dtype).reshape(sizes)


def _sequence(tag: str, notes: Any, count: int | None = None) -> tuple[int, Make]:
    sequence = _SEQUENCES[tag]
    if count is not None and notes in ("bool", "int", "float", "str", "bytes"):
        many = _MANY[notes]
        return count, lambda values: sequence(many(values))
    parts = [_flat(note) for note in notes] if count is None else [_flat(notes)] * count
    cuts = [0, *itertools.accumulate(size for size, _ in parts)]
    places = [(make, begin, end) for (_, make), (begin, end) in zip(parts, itertools.pairwise(cuts), strict=True)]
    return cuts[-1], lambda values: sequence([make(values[begin:end]) for make, begin, end in places])


def _restored_array(values: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "U":
        return np.array([text.decode() for text in values], dtype)
    if dtype.kind == "S":
        return np.array(values, dtype)
    if dtype.kind in "mM":
        values = values.astype(np.int64, copy=False).view(dtype.newbyteorder("="))
    return values.astype(dtype, copy=False)


# ----------------------------------------------------------------------------------------------------------- alone
# Examples parsed one at a time, in any encoding that protocol buffers allow.


Values = np.ndarray | list[bytes]

BYTES = 0x0A  # a feature's kind, as its tag
FLOATS = 0x12
INTS = 0x1A


def parse_example(record: bytes) -> Any:
    """The features of an `Example`: float32 and int64 arrays of one dimension, and lists of bytes.

    If `write_tfrecord` or `write_array_record` wrote it, the element that they were given.

    >>> parse_example(b"\\n\\x0c\\n\\n\\n\\x01x\\x12\\x05\\x1a\\x03\\n\\x01\\x07")
    {'x': array([7])}
    """
    try:
        return restored(_values_by_name(record))
    except Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is not an `Example`: {e}.") from None


def is_example(record: bytes) -> bool:
    """Whether bytes are an `Example` with features, and nothing else."""
    try:
        pieces = [(record, a, b) for tag, a, b in fields(record, 0, len(record)) if _is_one_of(tag, BYTES)]
        entries = [(record, a, b) for piece in pieces for tag, a, b in fields(*piece) if _is_one_of(tag, BYTES)]
        for entry in entries:
            _ = [_is_one_of(tag, 0x0A, 0x12) for tag, _, _ in fields(*entry)]
        for feature in features_in((record, 0, len(record)), BYTES).values():
            _ = [_is_one_of(tag, BYTES, FLOATS, INTS) for tag, _, _ in fields(*feature)]
            values_of(*kind_of(feature))
    except Malformed:
        return False
    return bool(entries)


def _is_one_of(tag: int, *tags: int) -> bool:
    if tag not in tags:
        raise Malformed(f"there is a field with the tag {tag}")
    return True


def parse_sequence_example(record: bytes) -> tuple[dict[str, Values], dict[str, list[Values]]]:
    """The context of a `SequenceExample`, and its feature lists: the values of each step, as of `parse_example`.

    >>> parse_sequence_example(b"")  # of an empty `tf.train.SequenceExample`
    ({}, {})
    """
    try:
        context = _values_by_name(record)
        lists = features_in((record, 0, len(record)), FLOATS)  # their field has the tag of a feature's floats
        steps = {
            name: [values_of(*kind_of((data, a, b))) for tag, a, b in fields(data, begin, end) if tag == BYTES]
            for name, (data, begin, end) in lists.items()
        }
    except Malformed as e:
        raise DataError(f"A record of {len(record)} bytes is not a `SequenceExample`: {e}.") from None
    return context, steps


def _values_by_name(record: bytes) -> dict[str, Values]:
    return {name: values_of(*kind_of(piece)) for name, piece in features_in((record, 0, len(record)), BYTES).items()}


def features_in(message: Piece, tag: int) -> dict[str, Piece]:
    """The map in the fields that have this tag: the message of each name."""
    found: dict[str, Piece] = {}
    for data, begin, end in messages(message, tag):
        for entry in messages((data, begin, end), BYTES):
            names = [*messages(entry, 0x0A)]
            values = [*messages(entry, 0x12)]
            name = names[-1][0][names[-1][1] : names[-1][2]] if names else b""
            found[text_of(name)] = merged(values)
    return found


def text_of(name: bytes) -> str:
    """The name of a feature."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Malformed(f"the name {name!r} of a feature is not UTF-8") from None


def kind_of(feature: Piece) -> tuple[int, Piece]:
    """Which kind of list a feature has, and the list; the last one set counts."""
    kind = 0
    lists = []
    data, begin, end = feature
    for tag, a, b in fields(data, begin, end):
        if tag in (BYTES, FLOATS, INTS):
            lists = [*lists, (data, a, b)] if tag == kind else [(data, a, b)]
            kind = tag
    return kind, merged(lists)


def values_of(kind: int, message: Piece) -> Values:
    """The values in a list of some kind."""
    data, begin, end = message
    if kind == FLOATS:
        # Each field is either a number or many of them, packed.
        pieces = [data[a:b] for tag, a, b in fields(data, begin, end) if tag in (0x0A, 0x0D)]
        if any(len(piece) % 4 for piece in pieces):
            raise Malformed("the size of a list of floats is not a multiple of 4 bytes")
        return np.frombuffer(b"".join(pieces), "<f4").astype(np.float32)
    if kind == INTS:
        packed = b"".join([data[a:b] for tag, a, b in fields(data, begin, end) if tag in (0x0A, 0x08)])
        ints = ints_of(np.frombuffer(packed, np.uint8))
        if ints is None:
            raise Malformed("a list of ints ends in the middle of one, or has one of more than 10 bytes")
        return ints
    return [data[a:b] for tag, a, b in fields(data, begin, end) if tag == 0x0A]


# ---------------------------------------------------------------------------------------------------------- encode
# Elements written as `tf.train.Example`.
#
# A feature is a flat list of int64, float32 or bytes. What that does not say of a value is in the note of the record
# (see `headrace.sources.notes`); one-axis arrays of int64 and float32 and lists of bytes need none. Floats that are not
# float32 are rounded in their feature, and exact in the feature `__headrace__/NAME`.


TEXTS = 1  # the fields of a feature
FLOAT_KINDS = 2
INT_KINDS = 3
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)
EXACT_INTS = 1 << 53  # ints up to here are exact as float64


class EncodedLeaf(NamedTuple):
    """Values as one list of an Example, and the note on them."""

    kind: int
    values: Any  # a flat array, or a sequence of bytes
    note: Any


def encode_example(element: Any, *, plain: bool = False) -> bytes:
    """An element as a `tf.train.Example`, from which `parse_example` makes an equal one.

    The features of dicts in dicts have joined names (`a/b`); an element that is not a dict is the feature `record`.

    Args:
        element: A dict of arrays, numbers, text, bytes, None, and dicts, lists and tuples of these; or one of them.
        plain: Whether to omit the note: values then come back flat, as int64, float32 and bytes.

    >>> encode_example({"a": np.array([1])})
    b'\\n\\x0c\\n\\n\\n\\x01a\\x12\\x05\\x1a\\x03\\n\\x01\\x01'
    """
    into = _Features(plain)
    if isinstance(element, Mapping):
        note = into.add_dict("", element)
        is_noted = note[2].count(None) < len(note[2])
    else:
        note = (BARE, into.add(RECORD, element))
        is_noted = True
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

    def _add_leaf(self, name: str, leaf: EncodedLeaf) -> Any:
        kind, values, note = leaf
        if kind == INT_KINDS:
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
            raise PipelineError(f"Two values would become the feature {name!r}. Rename one in a `map` first.")
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
    return field(INT_KINDS, field(1, varints(numbers)))


def _floats(numbers: np.ndarray) -> bytes:
    return field(FLOAT_KINDS, field(1, numbers.astype("<f4", copy=False).tobytes()))


def _texts(texts: Sequence[bytes]) -> bytes:
    return field(TEXTS, b"".join([field(1, text) for text in texts]))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise PipelineError(f"The text {text[:100]!r} cannot be written as UTF-8: {e}.") from e


def _leaf(name: str, value: Any) -> EncodedLeaf | None:
    """The values of an array, number or text; None for what has parts."""
    kind = type(value)
    if kind is np.ndarray:
        return _array(name, value)
    if kind in _SCALARS:
        word, field_number, make = _SCALARS[kind]
        return EncodedLeaf(field_number, make(name, [value]), word)
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
        raise PipelineError(
            f"Feature {name!r} has {large}, but an Example holds only int64. Convert it in a `map` first."
        ) from e


# How Python's values are written: the word for them in notes, the field, and the values of many.
_SCALARS: dict[type, tuple[str, int, Callable[[str, Sequence[Any]], Any]]] = {
    bool: ("bool", INT_KINDS, _int64),
    int: ("int", INT_KINDS, _int64),
    float: ("float", FLOAT_KINDS, lambda _, numbers: np.array(numbers, np.float64)),
    str: ("str", TEXTS, lambda _, texts: list(map(_utf8, texts))),
    bytes: ("bytes", TEXTS, lambda _, texts: texts),
}


def _array(name: str, array: np.ndarray) -> EncodedLeaf | None:
    dtype = array.dtype
    flat = array.reshape(-1)
    note = (dtype_name(dtype), array.shape) if array.ndim else (dtype_name(dtype),)
    if dtype.kind == "f" and dtype.itemsize <= 8:
        return EncodedLeaf(
            FLOAT_KINDS, flat.astype(np.float64 if dtype.itemsize == 8 else np.float32, copy=False), note
        )
    if dtype.kind in "iub":
        if dtype.kind == "u" and dtype.itemsize == 8 and flat.size and flat.max() > np.iinfo(np.int64).max:
            raise PipelineError(
                f"Feature {name!r} has {flat.max()}, but an Example holds only int64. Convert it in a `map` first."
            )
        return EncodedLeaf(INT_KINDS, flat.astype(np.int64, copy=False), note)
    if dtype.kind in "mM":
        return EncodedLeaf(INT_KINDS, flat.astype(dtype.newbyteorder("="), copy=False).view(np.int64), note)
    if dtype.kind == "S":
        return EncodedLeaf(TEXTS, flat.tolist(), note)
    if dtype.kind == "U":
        return EncodedLeaf(TEXTS, list(map(_utf8, flat.tolist())), note)
    if dtype.kind == "O" and array.ndim:
        return None
    raise _cannot_hold(name, f"{'an array' if array.ndim else 'a scalar'} of {dtype}")


def _cannot_hold(name: str, what: str) -> PipelineError:
    return PipelineError(
        f"Feature {name!r} is {what}; an Example holds numbers, bytes, text, None, and arrays, lists, tuples "
        "and dicts of these. Convert it in a `map` first."
    )


def _tag(items: Any) -> str:
    return "tuple" if isinstance(items, tuple) else "list"


def _together(name: str, items: Sequence[Any], tag: str) -> EncodedLeaf | None:
    """The values of all items as one list; None if they do not fit into one."""
    kinds = set(map(type, items))
    if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
        word, field_number, make = _SCALARS[kind]
        return EncodedLeaf(field_number, make(name, items), sequence_note(tag, [word] * len(items)))
    leaves: list[EncodedLeaf] = []
    for item in items:
        leaf = _together(name, item, _tag(item)) if is_sequence(item) else _leaf(name, item)
        if leaf is None:
            return None
        leaves.append(leaf)
    return _joined(leaves, tag)


def _joined(leaves: list[EncodedLeaf], tag: str) -> EncodedLeaf | None:
    notes = [leaf.note for leaf in leaves]
    kinds = {leaf.kind for leaf in leaves}
    if kinds == {TEXTS}:
        texts = [text for leaf in leaves for text in leaf.values]
        return EncodedLeaf(TEXTS, texts, sequence_note(tag, notes) if texts else (tag, tuple(notes)))
    if TEXTS in kinds:
        return None
    arrays = [leaf.values for leaf in leaves]
    if kinds == {INT_KINDS, FLOAT_KINDS}:
        ints = [leaf.values for leaf in leaves if leaf.kind == INT_KINDS and leaf.values.size]
        if any(max(array.max(), -array.min()) > EXACT_INTS for array in ints):
            return None
        arrays = [array.astype(np.float64, copy=False) for array in arrays]
    flat = np.concatenate([np.empty(0, np.int64 if kinds == {INT_KINDS} else np.float32), *arrays])
    return EncodedLeaf(
        min(kinds, default=FLOAT_KINDS), flat, sequence_note(tag, notes) if flat.size else (tag, tuple(notes))
    )


# --------------------------------------------------------------------------------------------------------- feature
# The expected type and shape of a feature of an `Example`.


@dataclass(frozen=True)
class Feature:
    """The expected type and shape of a feature.

    >>> Feature(np.float32, shape=(28, 28), default=0.0).shape
    (28, 28)

    Args:
        dtype: `np.float32`, `np.int64` or `bytes`.
        shape: Its shape; None means one dimension of any length, and a batch then has an array of objects.
        default: The value for records without the feature; without a default, they are an error.
    """

    dtype: Any
    shape: Sequence[int] | None = ()
    default: Any = None

    def __post_init__(self):
        dtype = np.dtype(object if self.dtype is bytes else self.dtype)
        if dtype not in (np.float32, np.int64, object):
            raise PipelineError(
                f"The dtype of a feature must be np.float32, np.int64 or bytes; got {self.dtype!r}. Convert it "
                "afterwards."
            )
        shape = None if self.shape is None else tuple(operator.index(size) for size in self.shape)
        if shape is not None and min(shape, default=1) < 0:
            raise PipelineError(f"The shape of a feature must have sizes of 0 or more; got {self.shape!r}.")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)

    @property
    def kind(self) -> int:
        """The tag of its lists."""
        return {"f": FLOATS, "i": INTS, "O": BYTES}[self.dtype.kind]

    @property
    def size(self) -> int | None:
        """How many values it has, if known."""
        return None if self.shape is None else math.prod(self.shape)

    def missing(self, name: str) -> Any:
        """The value for a record that lacks the feature."""
        if self.default is None and self.shape is not None:
            raise Malformed(f"it has no feature {name!r}. Set a default for it if it may be missing")
        if self.default is None:
            return np.empty(0, self.dtype)
        return self.shaped(np.asarray(self.default, self.dtype).reshape(-1), name)

    def shaped(self, values: Values, name: str) -> Any:
        """The values of one record, in their shape."""
        if self.size is not None and len(values) != self.size:
            raise Malformed(f"feature {name!r} has {len(values)} values, not the {self.size} of {self.shape}")
        return as_array(values).reshape(-1 if self.shape is None else self.shape)[()]

    def absent(self, name: str, num_rows: int) -> np.ndarray:
        """The column for records that lack the feature."""
        if self.shape is None:
            return self.column([self.missing(name) for _ in range(num_rows)])
        return np.tile(np.asarray(self.missing(name), self.dtype), (num_rows, *(1 for _ in self.shape)))

    def column(self, values: Sequence[Any]) -> np.ndarray:
        """The values of several elements as one array."""
        if self.shape is None:
            return objects(values)
        return np.array(values, self.dtype).reshape(len(values), *self.shape)


def as_array(values: Values) -> np.ndarray:
    """Values as a one-dimensional array."""
    return values if isinstance(values, np.ndarray) else objects(values)


def objects(values: Sequence[Any]) -> np.ndarray:
    """A one-dimensional array of objects, even if the objects are sequences."""
    return np.fromiter(values, object, len(values))


# ------------------------------------------------------------------------------------------------------------ walk
# Examples of one layout, parsed together with NumPy: one array holds the current offset in each of them.
#
# Writers put the entries of a map one after the other, each as `0a <length> 0a <length> <name> 12 <length> <kind>
# <length> …`; numbers follow as `0a <length> <all of them>`, and each text as `0a <length> <text>`. Lengths and widths
# may differ between records. A record that is damaged or laid out differently does not fit, and is parsed alone: both
# ways give the same values and errors.


MakeColumn = Callable[[Any], np.ndarray]  # takes the rows that fit, which are known at the end

LONGEST_LENGTH = 28  # bits of a length that is read in step


def names_in_order(data: bytes, begin: int, end: int) -> list[bytes]:
    """The names of a record's features in the order they are stored; empty if it is damaged or laid out differently."""
    try:
        ((_, begin, end),) = messages((data, begin, end), BYTES)
        entries = [[*messages(entry, 0x0A)] for entry in messages((data, begin, end), BYTES)]
        return [text_of(data[a:b]).encode() for ((_, a, b),) in entries]
    except (Malformed, ValueError):
        return []


def advance_together(
    features: Mapping[str, Feature], names: list[bytes], data: bytes, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Which records have exactly these names in this order, laid out as writers do; and the columns of those."""
    wanted = {name.encode(): name for name in features}
    iteration = WireWalk(data, starts, ends)
    found: dict[str, MakeColumn] = {}
    for name in names:
        if name in wanted:
            found[wanted[name]] = iteration.read(name, features[wanted[name]])
        else:
            iteration.skip(name)
        if not iteration.fits.any():
            return iteration.fits, {}
    iteration.fits &= iteration.at == ends
    num_rows = int(np.count_nonzero(iteration.fits))
    rows: Any = slice(None) if num_rows == len(starts) else np.flatnonzero(iteration.fits)
    try:
        columns = {
            name: found[name](rows) if name in found else feature.absent(name, num_rows)
            for name, feature in features.items()
        }
    except Malformed:
        return np.zeros(len(starts), bool), {}
    return iteration.fits, columns if num_rows else {}


class WireWalk:
    """An offset in each of many records; a record that does not have the expected bytes there does not fit.

    A message must end where the message around it ends, so the offset of a record that fits is always inside it; the
    others may point anywhere.
    """

    def __init__(self, data: bytes, starts: np.ndarray, ends: np.ndarray):
        self._bytes = data
        self._data = np.frombuffer(data, np.uint8)
        self.at = starts
        self._ends = ends
        self.fits = np.ones(len(starts), bool)
        self._expect(b"\x0a")
        self._enter(ends)

    def skip(self, name: bytes) -> None:
        """Skips the feature of this name."""
        self.at = self._enter_entry(name)

    def read(self, name: bytes, feature: Feature) -> MakeColumn:
        """Reads the feature of this name; returns a function that makes its column."""
        if feature.size is not None and feature.size > len(self._data):  # no record can hold so many values
            self.fits[:] = False
            return lambda rows: np.empty(0)
        if feature.size == 0 or (feature.kind == BYTES and feature.size != 1):
            end = self._enter_entry(name)
            self._expect(bytes([feature.kind]))
            self._enter(end)
            make = self._nothing(feature, end) if feature.size == 0 else self._texts(feature, end)
        else:
            end = self._enter_values(name, feature.kind)
            make = {FLOATS: self._floats, INTS: self._ints, BYTES: self._text}[feature.kind](feature, end)
        self.at = end
        return make

    def _expect(self, constant: bytes) -> None:
        """Skips bytes that each record must have."""
        if len(constant) == 1:
            self.fits &= self._data.take(self.at, mode="clip") == constant[0]
        elif len(constant) <= len(self._data):
            self.fits &= self._windows(self.at, len(constant)) == np.void(constant)
        else:
            self.fits[:] = False
        self.at = self.at + len(constant)

    def _windows(self, at: np.ndarray, size: int) -> np.ndarray:
        """A copy of `size` bytes from each offset on."""
        last = len(self._data) - size
        return np.ndarray(last + 1, f"V{size}", self._data, strides=(1,))[np.minimum(at, last)]

    def _enter(self, end: np.ndarray | None = None) -> np.ndarray:
        """Reads a length and returns where the value of this length ends, which must be `end` if given."""
        byte = self._data.take(self.at, mode="clip")
        length = byte.astype(np.int64)
        self.at = self.at + 1
        if byte.max() > 0x7F:
            self._longer(length, np.flatnonzero(byte > 0x7F))
        found = self.at + length
        if end is not None:
            self.fits &= found == end
        return found

    def _longer(self, lengths: np.ndarray, rows: np.ndarray) -> None:
        """Reads the rest of lengths that have more than one byte."""
        for shift in range(7, LONGEST_LENGTH, 7):
            byte = self._data.take(self.at[rows], mode="clip").astype(np.int64)
            lengths[rows] += (byte - 1) << shift  # minus the continuation bit of the byte before
            self.at[rows] += 1
            rows = rows[byte > 0x7F]
        self.fits[rows] = False

    def _enter_entry(self, name: bytes) -> np.ndarray:
        """Enters the feature of this name; returns where it ends."""
        self._expect(b"\x0a")
        end = self._enter()
        self.fits &= end <= self._ends
        self._expect(b"\x0a" + as_varint(len(name)) + name + b"\x12")
        self._enter(end)
        return end

    def _enter_values(self, name: bytes, kind: int) -> np.ndarray:
        """Enters the only field of the feature's list; returns where it ends, which must be the feature's end."""
        end = self._enter_short_values(name, kind)
        if end is None:
            end = self._enter_entry(name)
            for tag in (kind, 0x0A):
                self._expect(bytes([tag]))
                self._enter(end)
        return end

    def _enter_short_values(self, name: bytes, kind: int) -> np.ndarray | None:
        """The same in one step where all lengths have one byte, so the last gives the others; otherwise None."""
        headers = _short_headers(name, kind)
        if headers is None or headers.itemsize > len(self._data):
            return None
        size = headers.itemsize
        length = self._data.take(self.at + (size - 1), mode="clip")
        found = self._windows(self.at, size) == headers[length]
        if (found < self.fits).any():
            return None
        self.at = self.at + size
        end = self.at + length
        self.fits &= end <= self._ends
        return end

    def _nothing(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        self.fits &= self.at == end
        return lambda rows: np.empty((len(end[rows]), *feature.shape), feature.dtype)  # type: ignore[misc]

    def _floats(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        at = self.at
        if feature.size is None:
            self.fits &= (end - at) % 4 == 0
            return lambda rows: feature.column(
                [np.frombuffer(self._bytes[a:b], "<f4").astype(np.float32) for a, b in _pairs(at[rows], end[rows])]
            )
        size = 4 * feature.size
        self.fits &= at + size == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: self._windows(at[rows], size).view("<f4").astype(np.float32, copy=False).reshape(shape)

    def _ints(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        lengths = np.where(self.fits, end - self.at, 0)
        if feature.size == 1 and lengths.max() <= 8 <= len(self._data):
            return self._short_int(feature, lengths)
        stops = np.cumsum(lengths)
        raw = self._data.take(np.repeat(self.at - stops + lengths, lengths) + np.arange(stops[-1]), mode="clip")
        ended = np.append(0, np.cumsum(raw < 0x80))
        counts = ended[stops] - ended[stops - lengths]
        ints = ints_of(raw)
        if ints is None or (raw[stops[lengths > 0] - 1] > 0x7F).any():
            self.fits[:] = False
            return lambda rows: np.empty(0)
        if feature.size is None:
            pieces = objects([piece.copy() for piece in np.split(ints, np.cumsum(counts)[:-1])])
            return lambda rows: pieces[rows]
        right = counts == feature.size
        column = np.zeros((len(end), feature.size), np.int64)
        column[right] = (ints if right.all() else ints[np.repeat(right, counts)]).reshape(-1, feature.size)
        self.fits &= right
        return lambda rows: column[rows].reshape(-1, *(feature.shape or ()))

    def _short_int(self, feature: Feature, lengths: np.ndarray) -> MakeColumn:
        """One int of up to 8 bytes in each record."""
        before_end = np.minimum(self.at, len(self._data) - 8)
        words = self._windows(before_end, 8).view("<u8") >> (np.minimum(self.at - before_end, 7) * 8).astype(np.uint64)
        column, right = short_ints(words, lengths)
        self.fits &= right
        return lambda rows: column[rows].reshape(-1, *(feature.shape or ()))

    def _text(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        """One text in each record."""
        at = self.at
        return lambda rows: self._cut(at[rows], end[rows]).reshape(-1, *(feature.shape or ()))

    def _texts(self, feature: Feature, end: np.ndarray) -> MakeColumn:
        if feature.size is None:
            at = self.at
            return lambda rows: feature.column(
                [as_array(values_of(BYTES, (self._bytes, a, b))) for a, b in _pairs(at[rows], end[rows])]
            )
        begins, stops = np.empty((2, len(end), feature.size), np.int64)
        for i in range(feature.size):
            self._expect(b"\x0a")
            stops[:, i] = self._enter()
            begins[:, i] = self.at
            self.at = np.minimum(stops[:, i], end)
        self.fits &= stops[:, -1] == end
        shape = (-1, *(feature.shape or ()))
        return lambda rows: self._cut(begins[rows].ravel(), stops[rows].ravel()).reshape(shape)

    def _cut(self, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
        data = self._bytes
        return objects([data[a:b] for a, b in _pairs(begins, ends)])


@functools.lru_cache(maxsize=1024)
def _short_headers(name: bytes, kind: int) -> np.ndarray | None:
    """The bytes before the values of a feature, by the size of the values (the last byte); zeros if too long."""
    headers = []
    for length in range(128):
        entry = field(1, name) + field(2, field(kind >> 3, field(1, bytes(length))))
        if len(entry) > 127:
            break
        headers.append((field(1, entry) + b"\0")[: -length - 1])
    if not headers:
        return None
    size = len(headers[0])
    return np.array(headers + [bytes(size)] * (256 - len(headers)), f"V{size}")


def _pairs(begins: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    return zip(begins.tolist(), ends.tolist(), strict=True)


# ---------------------------------------------------------------------------------------------------------- parser
# Records parsed to dicts of arrays, one at a time, or to columns, a block at a time.


KIND_NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "ints"}
FEWEST_TOGETHER = 8  # fewer records parse faster one by one
MOST_FAILURES = 4  # layouts that fit few records, before the rest of a block is parsed one by one


class ExampleParser(Map):
    """Turns `Example` records into dicts of arrays, one at a time with `map` or many at once with `batch`.

    `ds.map(parser)` makes elements, and `ds.batch(128, batch_fn=parser.batch)` makes batches, much faster: dicts of
    columns with the same rows. See also `ExampleDataSource`.

    >>> from headrace.sources import TFRecordDataSource, write_tfrecord
    >>> paths = write_tfrecord([{"x": 1}, {"x": 3}], folder / "a.tfrecord", plain=True)
    >>> parser = ExampleParser({"x": np.int64})
    >>> list(MapDataset.source(TFRecordDataSource(paths)).map(parser))
    [{'x': np.int64(1)}, {'x': np.int64(3)}]

    Args:
        features: A `Feature` for each name, or only its dtype if it is a single value. Other features are not read.
    """

    def __init__(self, features: Mapping[str, Any]):
        if not isinstance(features, Mapping) or not features:
            raise PipelineError(f"`features` must be a dict with a `Feature` for each name; got {features!r}.")
        self.features = {
            name: feature if isinstance(feature, Feature) else Feature(feature) for name, feature in features.items()
        }

    def map(self, element: bytes) -> dict[str, Any]:
        """The features of one record."""
        try:
            return self._parse(element)
        except Malformed as e:
            raise _unexpected("A record", len(element), e) from None

    def _parse(self, record: bytes) -> dict[str, Any]:
        found = features_in((record, 0, len(record)), BYTES)
        parsed = {}
        for name, feature in self.features.items():
            kind, values = kind_of(found[name]) if name in found else (0, (b"", 0, 0))
            if kind not in (0, feature.kind):
                raise Malformed(f"feature {name!r} has {KIND_NAMES[kind]}, not {KIND_NAMES[feature.kind]}")
            parsed[name] = feature.shaped(values_of(kind, values), name) if kind else feature.missing(name)
        return parsed

    def batch(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The features of many records, as columns."""
        return self.columns(*_joined_columns(records))

    def columns(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, name_of: Callable[[int], str] = "Record {}".format
    ) -> dict[str, np.ndarray]:
        """The same for records that begin at `starts` in `data`; errors call them by `name_of(row)`."""
        parts = []
        left = np.arange(len(starts))
        alone = []
        failures = 0
        while data and len(left) >= FEWEST_TOGETHER and failures < MOST_FAILURES:
            start = int(starts[left[0]])
            names = names_in_order(data, start, start + int(lengths[left[0]]))
            fits, columns = advance_together(self.features, names, data, starts[left], starts[left] + lengths[left])
            if columns:
                parts.append((left[fits], columns))
            failures += np.count_nonzero(fits) < FEWEST_TOGETHER
            alone += [] if fits[0] else [left[0]]
            left = left[~fits][0 if fits[0] else 1 :]
        left = np.sort(np.append(left, alone)).astype(np.int64)
        if len(left) or not parts:
            parts.append((left, self._one_by_one(data, starts, lengths, left, name_of)))
        return {name: _put_together(name, parts, len(starts)) for name in self.features}

    def _one_by_one(
        self, data: bytes, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray, name_of: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        parsed = []
        for row in rows.tolist():
            start = int(starts[row])
            try:
                parsed.append(self._parse(data[start : start + int(lengths[row])]))
            except Malformed as e:
                raise _unexpected(name_of(row), int(lengths[row]), e) from None
        return {name: f.column([element[name] for element in parsed]) for name, f in self.features.items()}

    def output_spec(self, input_spec: Any) -> dict[str, ShapeDtypeStruct]:
        return {
            name: ShapeDtypeStruct((None,) if feature.shape is None else feature.shape, feature.dtype)  # type: ignore[arg-type]
            for name, feature in self.features.items()
        }

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}: {'bytes' if f.kind == BYTES else f.dtype}{['...'] if f.shape is None else list(f.shape)}"
            for name, f in self.features.items()
        )
        return f"ExampleParser({shown})"


def _put_together(name: str, parts: list[tuple[np.ndarray, dict[str, np.ndarray]]], num_rows: int) -> np.ndarray:
    if len(parts) == 1 and len(parts[0][0]) == num_rows:
        return parts[0][1][name]
    whole = np.empty((num_rows, *parts[0][1][name].shape[1:]), parts[0][1][name].dtype)
    for rows, columns in parts:
        whole[rows] = columns[name]
    return whole


class ExampleDataSource:
    """The features of a source of `Example` records, as dicts of arrays; read and parsed in blocks.

    `MapDataset.source(ExampleDataSource(TFRecordDataSource(paths), features)).shuffle(seed=1).batch(128)` creates
    no Python object for a number.

    >>> from headrace.sources import TFRecordDataSource, write_tfrecord
    >>> paths = write_tfrecord([{"x": 1, "y": 2.5}, {"x": 3, "y": 4.5}], folder / "a.tfrecord", plain=True)
    >>> source = ExampleDataSource(TFRecordDataSource(paths), {"x": np.int64, "y": np.float32})
    >>> MapDataset.source(source).batch(2)[0]
    {'x': array([1, 3]), 'y': array([2.5, 4.5], dtype=float32)}

    Args:
        source: Records as bytes, by index: a `TFRecordDataSource`, `ArrayRecordDataSource`, or any other.
        features: As of `ExampleParser`.
    """

    def __init__(self, source: Any, features: Mapping[str, Any] | ExampleParser):
        self._source = source
        self._parser = features if isinstance(features, ExampleParser) else ExampleParser(features)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._source[index]
        try:
            return self._parser._parse(record)
        except Malformed as e:
            raise _unexpected(self._name_of(index), len(record), e) from None

    def __getcolumns__(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The records at `indices` as columns."""
        return self._parser.columns(*self._block(indices), name_of=lambda row: self._name_of(int(indices[row])))

    def _block(self, indices: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Bytes that hold the records at `indices`, and the offset and length of each record in them."""
        if hasattr(self._source, "read_block"):
            return self._source.read_block(indices)
        places = indices.tolist()
        if hasattr(self._source, "__getitems__"):
            return _joined_columns(self._source.__getitems__(places))
        return _joined_columns([self._source[i] for i in places])

    def _name_of(self, index: int) -> str:
        where = f" ({self._source.describe_place(index)})" if hasattr(self._source, "describe_place") else ""
        return f"Record {index}{where}"

    @property
    def element_spec(self) -> dict[str, ShapeDtypeStruct]:
        return self._parser.output_spec(None)

    def __repr__(self) -> str:
        return f"ExampleDataSource({self._source!r}, {self._parser!r})"


def _joined_columns(records: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, records), np.int64, len(records))
    return b"".join(records), np.cumsum(lengths) - lengths, lengths


def _unexpected(record: str, length: int, error: Malformed) -> DataError:
    return DataError(f"{record} ({length} bytes) is not the `Example` expected: {error}.")
