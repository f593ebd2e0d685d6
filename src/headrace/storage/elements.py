"""Elements of a pipeline in a folder, as `cache(path)` keeps them: as they were, with their types, dtypes and shapes.

Elements that are alike are columns: `column-0`, `column-1`, … have the rows of one array each. Others are records:
`records` has them one after the other, and `offsets` says where each begins. `manifest.json` says how they are laid
out. A folder appears under its name when it is complete. No code is stored, so none is run when it is read.
"""

import ast
import contextlib
import functools
import json
import math
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from headrace.errors import DataError, PipelineError, translate_full_disk
from headrace.storage import files
from headrace.storage.files import MappedFile
from headrace.storage.indices import BlockSource, checked_index, checked_indices
from headrace.storage.private import Untrusted, check_kept, create, make_folder, open_lock

# ---------------------------------------------------------------------------------------------------------- layout
# How an element is laid out in bytes. The structure of an element is its layout, which many elements share.
#
# A layout is text, a `list` or a `dict` with the layouts of what they hold. All numbers are little-endian, and each
# value begins at a multiple of 8 bytes.


Layout = tuple[Any, ...]
Decode = Callable[[Any, int], tuple[Any, int]]  # from bytes and an offset to a value and the offset after it
_Q = struct.Struct("<q")
_D = struct.Struct("<d")
_DD = struct.Struct("<dd")
_SMALLEST = -(1 << 63)
_LARGEST = (1 << 63) - 1
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
        f"`cache(path)` cannot store {kind}{f' at {place}' if place else ''}: it stores dicts, lists and "
        "tuples of NumPy arrays, numbers, strings and bytes. Convert elements in a `map` first, or cache "
        "them in memory with `cache()`."
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


# ----------------------------------------------------------------------------------------------------------- names
# What the files of a folder are called, and how its layouts are stored.


MANIFEST = "manifest.json"
RECORDS = "records"
OFFSETS = "offsets"
COLUMN = "column-{}"
VERSION = 2
UNFINISHED = ".unfinished"


def as_layout(found: Any) -> Layout:
    """A layout that was stored as JSON, which has lists instead of tuples."""
    if isinstance(found, list):
        return tuple(map(as_layout, found))
    return found


def damaged_error(folder: str, what: str) -> DataError:
    """The error for a folder that is not as it was written."""
    return DataError(f"{folder} cannot be read as a cache of elements: {what}. Remove it, and it will be rebuilt.")


# --------------------------------------------------------------------------------------------------------- columns
# Elements that are alike, trees of arrays of the same dtypes and shapes: the rows of each array are in one file.


MOST_COLUMNS = 64  # elements with more arrays are records: each column is an open file
WRITE_BYTES = 1 << 18
READ_ROWS = 1024

Take = Callable[[np.ndarray], np.ndarray]
"""Copies of the rows at some places."""


class Column(NamedTuple):
    """One array of all elements, in the file of this number."""

    number: int
    dtype: np.dtype
    shape: tuple[int, ...]
    is_scalar: bool

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def columns_of(layout: Layout, shapes: list[tuple[int, ...]]) -> Any:
    """A tree of columns; `None` if something in the layout is not an array or a number of NumPy."""
    left = list(shapes)
    made = []

    def place(layout: Layout) -> Any:
        kind = layout[0]
        if kind == "dict":
            return {key: place(inner) for key, inner in zip(layout[1], layout[2], strict=True)}
        if kind == "tuple" and layout[1]:
            return tuple(map(place, layout[1]))
        if kind not in ("array", "scalar") or (kind == "array" and not layout[2]):
            raise LookupError
        made.append(Column(len(made), dtype_named(layout[1]), tuple(left.pop(0)), kind == "scalar"))
        return made[-1]

    try:
        tree = place(layout)
    except LookupError:
        return None
    return tree if 0 < len(made) <= MOST_COLUMNS else None


def each_column(function: Callable[[Column], Any], tree: Any) -> Any:
    """A tree of what a function makes of each column."""
    if isinstance(tree, Column):
        return function(tree)
    if isinstance(tree, dict):
        return {key: each_column(function, inner) for key, inner in tree.items()}
    return tuple([each_column(function, inner) for inner in tree])


class ColumnWriter:
    """Writes elements that are like the first one."""

    def __init__(self, folder: str, first: Element):
        self._folder = folder
        self._layout = first.layout
        self._shapes = first.shapes
        self._paths = [os.path.join(folder, COLUMN.format(k)) for k in range(len(first.shapes))]
        self.files = [create(path, buffering=WRITE_BYTES) for path in self._paths]
        self._length = 0

    def holds(self, element: Element) -> bool:
        """Whether an element can be added."""
        return element.layout == self._layout and element.shapes == self._shapes

    def write(self, element: Element) -> None:
        """Adds an element."""
        for file, content in zip(self.files, element.arrays, strict=True):
            file.write(content)
        self._length += 1

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"layout": self._layout, "shapes": self._shapes}

    def taken_back(self) -> Iterator[Any]:
        """The elements so far, which nobody else can read from then on."""
        for file in self.files:
            file.close()
        reader = ColumnReader(self._folder, self._length, self.described())
        for start in range(0, self._length, READ_ROWS):
            yield from reader.read(np.arange(start, min(start + READ_ROWS, self._length)))
        reader.close()
        for path in self._paths:
            os.unlink(path)


class ColumnReader:
    """Reads elements that a `ColumnWriter` wrote."""

    def __init__(self, folder: str, length: int, manifest: dict[str, Any]):
        self._length = length
        self._tree = columns_of(as_layout(manifest["layout"]), manifest["shapes"])
        if self._tree is None:
            raise damaged_error(folder, f"{manifest['layout']} is not a layout of arrays")
        self._columns: list[Column] = []
        each_column(self._columns.append, self._tree)
        self._paths = [os.path.join(folder, COLUMN.format(column.number)) for column in self._columns]
        versions = {path: files.fingerprint(path) for path in self._paths}
        for column, (path, version) in zip(self._columns, versions.items(), strict=True):
            if version.size != length * column.row_bytes:
                name = os.path.basename(path)
                expected = length * column.row_bytes
                raise damaged_error(folder, f"{name} has {version.size} bytes, not {expected}")
        self._pool = files.Pool(versions=versions, maps=True)
        self._open: tuple[list[Take], list[Callable[[], None]]] | None = None  # with what checks files

    def gather(self, places: np.ndarray) -> Any:
        """The elements at some places, all in range, as new columns."""
        takes = self._taking()
        return each_column(lambda column: takes[column.number](places), self._tree)

    def read(self, places: np.ndarray) -> list[Any]:
        """The elements at some places, each a new object."""
        rows = [take(places) for take in self._taking()]

        def own(column: Column, i: int) -> Any:
            row = rows[column.number][i : i + 1].copy()
            return row[0] if column.is_scalar else row.reshape(column.shape)

        return [each_column(lambda column, i=i: own(column, i), self._tree) for i in range(len(places))]

    def _taking(self) -> list[Take]:
        """What takes the rows of each column, from files that have not changed."""
        if self._open is None:
            opened = [self._pool.get(path) if column.row_bytes else None for column, path in self._with_paths()]
            takes = [self._take(column, file) for column, file in zip(self._columns, opened, strict=True)]
            pairs = zip(opened, self._paths, strict=True)
            checks = [partial(file.check_unchanged, path) for file, path in pairs if isinstance(file, MappedFile)]
            self._open = takes, checks
            return takes
        takes, checks = self._open
        for check in checks:
            check()
        return takes

    def _with_paths(self) -> Iterator[tuple[Column, str]]:
        return zip(self._columns, self._paths, strict=True)

    def _take(self, column: Column, file: Any) -> Take:
        _, dtype, shape, _ = column
        size = column.row_bytes
        if not size:
            return lambda places: np.zeros((len(places), *shape), dtype)
        if isinstance(file, MappedFile):
            # As rows without a meaning, which NumPy copies at once, whatever they hold.
            every = np.ndarray((self._length,), f"V{size}", file.buffer)
            return lambda places: every.take(places, 0, None, "clip").view(dtype).reshape(len(places), *shape)

        def read(places: np.ndarray) -> np.ndarray:
            pieces = self._pool.get(self._paths[column.number]).read_many([(size * i, size) for i in places.tolist()])
            return np.frombuffer(bytearray().join(pieces), dtype).reshape(len(places), *shape)

        return read

    def close(self) -> None:
        self._open = None
        self._pool.close()


# --------------------------------------------------------------------------------------------------------- records
# Elements of any layout, one after the other in a file, and where each begins in another.


MOST_LAYOUTS = 1000  # more are stored with their elements
OWN_LAYOUT = -1
RECORDS_WRITE_BYTES = 1 << 20
MAPPED_BYTES = 1 << 20  # offsets of at least this size are mapped, so processes share them
_INT64 = struct.Struct("<q")


class RecordWriter:
    """Writes elements as records: the number of a layout, then what is laid out."""

    def __init__(self, folder: str):
        paths = [os.path.join(folder, name) for name in (RECORDS, OFFSETS)]
        self.files = [create(path, buffering=RECORDS_WRITE_BYTES) for path in paths]
        self._records, self._offsets = self.files
        self._at = 0
        self._offsets.write(_INT64.pack(0))
        self._layouts: dict[Layout, int] = {}

    def holds(self, element: Element) -> bool:
        """Whether an element can be added."""
        return True

    def write(self, element: Element) -> None:
        """Adds an element."""
        record = b"".join([self._head(element.layout), *element.pieces])
        self._records.write(record)
        self._at += len(record)
        self._offsets.write(_INT64.pack(self._at))

    def _head(self, layout: Layout) -> bytes:
        """The number of an element's layout, or the layout itself."""
        number = self._layouts.get(layout)
        if number is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                text = json.dumps(layout).encode()
                return _INT64.pack(OWN_LAYOUT) + _INT64.pack(len(text)) + text + bytes(-len(text) % 8)
            number = self._layouts[layout] = len(self._layouts)
        return _INT64.pack(number)

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"num_bytes": self._at, "layouts": list(self._layouts)}


class RecordReader:
    """Reads elements that a `RecordWriter` wrote."""

    def __init__(self, folder: str, length: int, manifest: dict[str, Any]):
        self._folder = folder
        self._length = length
        self._num_bytes = manifest["num_bytes"]
        self._path = os.path.join(folder, RECORDS)
        version = files.fingerprint(self._path)
        if version.size != self._num_bytes:
            raise damaged_error(folder, f"{RECORDS} has {version.size} bytes, not {self._num_bytes}")
        self._pool = files.Pool(versions={self._path: version}, maps=True)
        self._decoders: list[Decode] = [decoder(as_layout(layout)) for layout in manifest["layouts"]]

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        path = os.path.join(self._folder, OFFSETS)
        found = np.memmap(path, "<i8", "r") if 8 * self._length >= MAPPED_BYTES else np.fromfile(path, "<i8")
        if len(found) != self._length + 1 or found[0] != 0 or found[-1] != self._num_bytes:
            raise damaged_error(self._folder, f"{OFFSETS} does not fit {RECORDS}")
        return np.asarray(found)

    def read(self, places: np.ndarray) -> list[Any]:
        """The elements at some places, each a new object."""
        file = self._pool.get(self._path) if self._num_bytes else None
        begins = self._offsets[places].tolist()
        if isinstance(file, files.MappedFile):
            return [self._element(file.buffer, begin) for begin in begins]
        ends = self._offsets[places + 1].tolist()
        pieces = file.read_many([(a, b - a) for a, b in zip(begins, ends, strict=True)]) if file else []
        return [self._element(piece, 0) for piece in pieces]

    def _element(self, buffer: Any, at: int) -> Any:
        try:
            number = _INT64.unpack_from(buffer, at)[0]
            if number != OWN_LAYOUT:
                return self._decoders[number](buffer, at + 8)[0]
            length = _INT64.unpack_from(buffer, at + 8)[0]
            layout = as_layout(json.loads(buffer[at + 16 : at + 16 + length]))
            return decoder(layout)(buffer, at + 16 + (length + 7 & ~7))[0]
        except (struct.error, ValueError, IndexError, KeyError, TypeError) as e:
            raise damaged_error(self._folder, f"an element at offset {at} is damaged ({e})") from e

    def close(self) -> None:
        self._pool.close()


# --------------------------------------------------------------------------------------------------------- reading
# Reads elements that a folder keeps, by index.


class KeptElements(BlockSource[Any]):
    """The elements in a folder, each as it was written."""

    def __init__(self, folder: str):
        check_kept(folder)
        self.folder = folder
        manifest = self._manifest()
        self._length = manifest["num_elements"]
        reader = ColumnReader if "shapes" in manifest else RecordReader
        self._reader = reader(folder, self._length, manifest)

    def _manifest(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self.folder, MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            if manifest["version"] != VERSION:
                raise ValueError(f"its version is {manifest['version']}, but this version of Headrace reads {VERSION}")
        except (ValueError, KeyError, TypeError) as e:
            raise damaged_error(self.folder, str(e)) from e
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # so that one sees which were used last
        return manifest

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checked_index(index, self._length, "elements")])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """The elements at these indices, each a new object."""
        return self._reader.read(checked_indices(indices, self._length, "elements"))

    @property
    def __getcolumns__(self) -> Any:
        if isinstance(self._reader, ColumnReader):
            return self._reader.gather
        raise AttributeError("__getcolumns__")

    def close(self) -> None:
        self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptElements, (self.folder,)

    def __repr__(self) -> str:
        return f"KeptElements({self.folder!r}, num_elements={self._length})"


# --------------------------------------------------------------------------------------------------------- writing
# Writes elements to a folder, which appears under its name when it is complete.


class Filling:
    """Writes elements; the folder `path/key` appears at the end of the context, unless that is an error.

    They are columns as long as they are alike, and records from then on.
    """

    def __init__(self, path: str, key: str):
        self._path = path
        self._folder = os.path.join(path, key)
        self._partial = os.path.join(path, f".{key}.{secrets.token_hex(8)}{UNFINISHED}")
        self._writer: ColumnWriter | RecordWriter | None = None
        self.num_elements = 0

    def __enter__(self) -> Self:
        with self._translate_full_disk():
            os.mkdir(self._partial, 0o700)
        return self

    def _translate_full_disk(self) -> contextlib.AbstractContextManager[None]:
        return translate_full_disk(self._folder, "Free some space, or cache to another folder: `cache(another_path)`.")

    def write(self, value: Any) -> None:
        """Adds an element."""
        element = Element(value)
        try:
            self._add(element)
        except OSError:
            with self._translate_full_disk():
                raise

    def _add(self, element: Element) -> None:
        if self._writer is None:
            has_columns = columns_of(element.layout, element.shapes) is not None
            self._writer = ColumnWriter(self._partial, element) if has_columns else RecordWriter(self._partial)
        elif not self._writer.holds(element):
            self._writer = self._as_records(self._writer)
        self._writer.write(element)
        self.num_elements += 1

    def _as_records(self, columns: Any) -> RecordWriter:
        records = RecordWriter(self._partial)
        for value in columns.taken_back():
            records.write(Element(value))
        return records

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                with self._translate_full_disk():
                    self._finish(self._writer or RecordWriter(self._partial))
        finally:
            with contextlib.suppress(OSError, ValueError):  # a full disk; the first error is the one to raise
                for file in [] if self._writer is None else self._writer.files:
                    file.close()
            remove(self._partial)

    def _finish(self, writer: ColumnWriter | RecordWriter) -> None:
        manifest = {"version": VERSION, "num_elements": self.num_elements, **writer.described()}
        with create(os.path.join(self._partial, MANIFEST)) as file:
            file.write(json.dumps(manifest).encode())
            _sync(file)
        for file in writer.files:
            _sync(file)
            file.close()
        _sync_folder(self._partial)
        try:
            os.rename(self._partial, self._folder)
        except OSError:
            if not os.path.exists(os.path.join(self._folder, MANIFEST)):  # else another process was done before
                raise
        _sync_folder(self._path)


def remove(folder: str) -> None:
    """Removes a folder as far as possible."""
    import shutil  # slow to import, and hardly ever needed

    shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------------------------------------------------- folder
# Which folder has the elements of a pipeline, and who fills it: one process at a time.


class Folder:
    """A folder for elements: `path/key`, which appears when it is complete.

    Whoever fills it holds a lock, which ends with the process. What a killed process has left is removed by the next
    one that fills it. It is for this user alone, and one that others may have written is an error.
    """

    def __init__(self, path: str, key: str):
        self.path = path
        self.key = key

    @property
    def name(self) -> str:
        return os.path.join(self.path, self.key)

    def is_complete(self) -> bool:
        """Whether its elements can be read."""
        return os.path.exists(os.path.join(self.name, MANIFEST))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Waits until no other process fills the folder."""
        check_kept(self.name)
        make_folder(self.path)
        try:
            fd = open_lock(os.path.join(self.path, f".{self.key}.lock"))
        except Untrusted as e:
            raise PipelineError(f"`cache({self.path!r})` cannot be filled. {e}") from e
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").info("Another process is filling %s; waiting for it to finish.", self.name)
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: whoever is done first wins, and the others drop what they have
            return
        for name in os.listdir(self.path):
            if name.startswith(f".{self.key}.") and name.endswith(UNFINISHED):
                remove(os.path.join(self.path, name))

    def filling(self) -> Filling:
        """Opens it to be filled."""
        return Filling(self.path, self.key)

    def opened(self) -> KeptElements | None:
        """Its elements; `None` until it is complete."""
        return KeptElements(self.name) if self.is_complete() else None
