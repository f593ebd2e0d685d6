"""Elements made from the features of an `Example` and the note on them, as `encode_example` wrote them."""

import functools
import itertools
import json
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.sources.notes import BARE, NOTE, RECORD, dtype_named, shape_noted
from headrace.sources.tf_example.wire import Malformed

Features = dict[str, Any]
Make = Callable[[Any], Any]  # makes a value from the values of a feature

_SCALARS: dict[str, Make] = {
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
        sequence, makes = _SEQUENCES[tag], [_value(one, f"{name}/{i}") for i, one in enumerate(notes)]
        return lambda features: sequence([make(features) for make in makes])
    if note[0] == "object":
        shape, items = shape_noted(note[1]), _value(note[2], name)
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
        return 1, _SCALARS[note]
    if note[0] in _SEQUENCES:
        return _sequence(*note)
    name, *shape = note
    dtype = dtype_named(name)
    if not shape:
        return 1, lambda values: _array(values, dtype)[0]
    sizes = shape_noted(*shape)
    return math.prod(sizes), lambda values: _array(values, dtype).reshape(sizes)


def _sequence(tag: str, notes: Any, count: int | None = None) -> tuple[int, Make]:
    sequence = _SEQUENCES[tag]
    if count is not None and notes in ("bool", "int", "float", "str", "bytes"):
        many = _MANY[notes]
        return count, lambda values: sequence(many(values))
    parts = [_flat(note) for note in notes] if count is None else [_flat(notes)] * count
    cuts = [0, *itertools.accumulate(size for size, _ in parts)]
    places = [(make, begin, end) for (_, make), (begin, end) in zip(parts, itertools.pairwise(cuts), strict=True)]
    return cuts[-1], lambda values: sequence([make(values[begin:end]) for make, begin, end in places])


def _array(values: Any, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "U":
        return np.array([text.decode() for text in values], dtype)
    if dtype.kind == "S":
        return np.array(values, dtype)
    if dtype.kind in "mM":
        values = values.astype(np.int64, copy=False).view(dtype.newbyteorder("="))
    return values.astype(dtype, copy=False)
