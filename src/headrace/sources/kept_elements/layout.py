"""How an element is laid out in bytes: what it is made of is its layout, which many elements share.

A layout is text, a `list` or a `dict` with the layouts of what they hold. All numbers are little-endian, and each value
begins at a multiple of 8 bytes.
"""

import ast
import functools
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.errors import PipelineError

Layout = tuple[Any, ...]
Decode = Callable[[Any, int], tuple[Any, int]]  # from bytes and an offset to a value and the offset after it
_Q, _D, _DD = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<dd")
_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1
_PADDING = [bytes(-n % 8) for n in range(8)]
_MANY = {int: "ints", float: "floats", bool: "bools", str: "texts", bytes: "many bytes"}


class Element:
    """The bytes of an element: its layout, the pieces of its record, and the values and shapes of arrays in it."""

    def __init__(self, value: Any):
        self.pieces: list[Any] = []
        self.arrays: list[Any] = []
        self.shapes: list[tuple[int, ...]] = []
        self.layout = self._add(value, "")

    def _add(self, value: Any, place: str) -> Layout:
        kind = type(value)
        if kind is np.ndarray:
            return self._add_array(value, place)
        if kind is dict:
            return self._add_dict(value, place)
        if kind in (list, tuple):
            return self._add_sequence(value, kind, place)
        if value is None:
            return ("none",)
        if kind is bool or kind is int:
            return self._add_int(value, kind)
        if kind is float:
            self.pieces.append(_D.pack(value))
            return ("float",)
        if kind is complex:
            self.pieces.append(_DD.pack(value.real, value.imag))
            return ("complex",)
        if kind is str:
            self._add_bytes(_from_text(value))
            return ("text",)
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            array = np.asarray(value)
            self._add_values((), array.tobytes())
            return ("scalar", _name_of(array.dtype))
        if isinstance(value, bytes):
            self._add_bytes(value)
            return ("bytes",)
        if isinstance(value, Mapping):
            return self._add_dict(value, place)
        raise _cannot_keep(value, place)

    def _add_array(self, array: np.ndarray, place: str) -> Layout:
        if array.dtype.hasobject:
            raise _cannot_keep(array, place)
        self.pieces.append(struct.pack(f"<{array.ndim}q", *array.shape))
        self._add_values(array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b"")
        return ("array", _name_of(array.dtype), array.ndim)

    def _add_dict(self, value: Mapping[Any, Any], place: str) -> Layout:
        for key in value:
            if type(key) not in (str, int):
                raise _cannot_keep(key, place, "the key ")
        return ("dict", tuple(value), tuple([self._add(item, f"{place}[{key!r}]") for key, item in value.items()]))

    def _add_sequence(self, value: Any, kind: type, place: str) -> Layout:
        kinds = set(map(type, value))
        name = _MANY.get(next(iter(kinds))) if len(kinds) == 1 and kind is list else None
        if name == "ints" and not all(_SMALLEST <= number <= _LARGEST for number in value):
            name = None
        if name is None:
            inner = [self._add(item, f"{place}[{i}]") for i, item in enumerate(value)]
            return (kind.__name__, tuple(inner))
        self.pieces.append(_Q.pack(len(value)))
        if name in ("ints", "floats", "bools"):
            self.pieces.append(np.array(value, "<f8" if name == "floats" else "<i8").tobytes())
        else:
            content = [_from_text(item) for item in value] if name == "texts" else value
            self.pieces.append(np.array([len(item) for item in content], "<i8").tobytes())
            self._pad(b"".join(content))
        return (name,)

    def _add_int(self, value: int, kind: type) -> Layout:
        if _SMALLEST <= value <= _LARGEST:
            self.pieces.append(_Q.pack(value))
            return (kind.__name__,)
        self._add_bytes(str(value).encode())
        return ("large int",)

    def _add_bytes(self, content: bytes) -> None:
        self.pieces.append(_Q.pack(len(content)))
        self._pad(content)

    def _add_values(self, shape: tuple[int, ...], content: Any) -> None:
        self.shapes.append(shape)
        self.arrays.append(content)
        self._pad(content)

    def _pad(self, content: Any) -> None:
        self.pieces.append(content)
        self.pieces.append(_PADDING[len(content) % 8])


def _cannot_keep(value: Any, place: str, what: str = "") -> PipelineError:
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"{what}{value!r:.60}"
    return PipelineError(
        f"`cache(path)` cannot keep {kind}{f' at {place}' if place else ''}: it keeps dicts, lists and tuples of NumPy "
        "arrays, numbers, texts and bytes. Map elements to these first, or keep them in memory, with `cache()`."
    )


def _from_text(value: str) -> bytes:
    return value.encode(errors="surrogatepass")


def _to_text(content: bytes) -> str:
    return content.decode(errors="surrogatepass")


@functools.cache
def _name_of(dtype: np.dtype) -> str:
    """A dtype as text."""
    if dtype.kind == "V" and dtype.names is None and dtype.type is not np.void:  # of the library ml_dtypes
        return dtype.name
    return repr(np.lib.format.dtype_to_descr(dtype))


@functools.cache
def dtype_named(name: str) -> np.dtype:
    """The dtype with this name."""
    if name.isidentifier():
        import ml_dtypes  # whoever wrote it had it

        return np.dtype(getattr(ml_dtypes, name))
    return np.lib.format.descr_to_dtype(ast.literal_eval(name))


# ---------------------------------------------------------------------------------------------- decoding


def decoder(layout: Layout) -> Decode:
    """The function that makes elements of a layout."""
    kind = layout[0]
    if kind == "array":
        return functools.partial(_array, dtype_named(layout[1]), layout[2], struct.Struct(f"<{layout[2]}q"))
    if kind == "scalar":
        return functools.partial(_scalar, dtype_named(layout[1]))
    if kind == "dict":
        return functools.partial(_dict, layout[1], [decoder(inner) for inner in layout[2]])
    if kind in ("list", "tuple"):
        return functools.partial(_sequence, list if kind == "list" else tuple, [decoder(inner) for inner in layout[1]])
    return _DECODERS[kind]


def _array(dtype: np.dtype, ndim: int, shapes: struct.Struct, buffer: Any, at: int) -> tuple[np.ndarray, int]:
    shape = shapes.unpack_from(buffer, at)
    at += 8 * ndim
    count = math.prod(shape)
    if count < 0:
        raise ValueError(f"the shape of an array is {shape}")
    if not count or not dtype.itemsize:
        return np.zeros(shape, dtype), at
    found = np.frombuffer(buffer, dtype, count, at).reshape(shape).copy()
    return found, at + (found.nbytes + 7 & ~7)


def _scalar(dtype: np.dtype, buffer: Any, at: int) -> tuple[np.generic, int]:
    return np.frombuffer(buffer, dtype, 1, at).copy()[0], at + (dtype.itemsize + 7 & ~7)


def _dict(keys: tuple[Any, ...], inner: list[Decode], buffer: Any, at: int) -> tuple[dict[Any, Any], int]:
    found = {}
    for key, decode in zip(keys, inner, strict=True):
        found[key], at = decode(buffer, at)
    return found, at


def _sequence(kind: type, inner: list[Decode], buffer: Any, at: int) -> tuple[Any, int]:
    found = []
    for decode in inner:
        value, at = decode(buffer, at)
        found.append(value)
    return kind(found), at


def _none(buffer: Any, at: int) -> tuple[None, int]:
    return None, at


def _int(buffer: Any, at: int) -> tuple[int, int]:
    return _Q.unpack_from(buffer, at)[0], at + 8


def _bool(buffer: Any, at: int) -> tuple[bool, int]:
    return _Q.unpack_from(buffer, at)[0] != 0, at + 8


def _large_int(buffer: Any, at: int) -> tuple[int, int]:
    digits, at = _bytes(buffer, at)
    return int(digits), at


def _float(buffer: Any, at: int) -> tuple[float, int]:
    return _D.unpack_from(buffer, at)[0], at + 8


def _complex(buffer: Any, at: int) -> tuple[complex, int]:
    return complex(*_DD.unpack_from(buffer, at)), at + 16


def _bytes(buffer: Any, at: int) -> tuple[bytes, int]:
    at, stop = at + 8, at + 8 + _Q.unpack_from(buffer, at)[0]
    return buffer[at:stop], stop + 7 & ~7


def _text(buffer: Any, at: int) -> tuple[str, int]:
    content, at = _bytes(buffer, at)
    return _to_text(content), at


def _numbers(dtype: str, kind: type, buffer: Any, at: int) -> tuple[list[Any], int]:
    count = _Q.unpack_from(buffer, at)[0]
    found = np.frombuffer(buffer, dtype, count, at + 8).tolist()
    return list(map(bool, found)) if kind is bool else found, at + 8 + 8 * count


def _many_bytes(buffer: Any, at: int) -> tuple[list[bytes], int]:
    lengths, at = _numbers("<i8", int, buffer, at)
    found = []
    for length in lengths:
        found.append(buffer[at : at + length])
        at += length
    return found, at + 7 & ~7


def _texts(buffer: Any, at: int) -> tuple[list[str], int]:
    found, at = _many_bytes(buffer, at)
    return list(map(_to_text, found)), at


_DECODERS: dict[str, Decode] = {
    "none": _none,
    "int": _int,
    "bool": _bool,
    "large int": _large_int,
    "float": _float,
    "complex": _complex,
    "bytes": _bytes,
    "text": _text,
    "ints": functools.partial(_numbers, "<i8", int),
    "floats": functools.partial(_numbers, "<f8", float),
    "bools": functools.partial(_numbers, "<i8", bool),
    "texts": _texts,
    "many bytes": _many_bytes,
}
