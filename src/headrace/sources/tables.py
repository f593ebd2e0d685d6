"""Tables in files (Parquet, Arrow IPC and Feather, CSV): as sources, as batches of columns, and shuffled.

A row never depends on the rows that are read with it. Offsets and indices in a file are checked before values are read
through them, so that damage raises an error instead of crashing. From top to bottom: Arrow columns as NumPy arrays,
caches, the selection of columns and rows, notes on elements, stored scans, the base class of all table sources, and
batches and shuffles of whole groups.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import os
import re
import shutil
import tempfile
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO, ClassVar, NamedTuple, TypeVar

import numpy as np

from headrace import trees
from headrace.dataset import IterDataset, MapDataset
from headrace.errors import DataError, HeadraceError, PipelineError, StateError, optional
from headrace.errors.addresses import redacted
from headrace.iterator import DatasetIterator
from headrace.ops.order import GroupShuffle
from headrace.ops.source import Source
from headrace.options import check_count
from headrace.progress import Bar
from headrace.sources.notes import BARE, RECORD, dtype_named
from headrace.sources.record_source import numbers_in
from headrace.storage import files
from headrace.storage.files import MappedFiles
from headrace.storage.indices import Parts, checked_index, checked_indices
from headrace.storage.private import StoragePlace
from headrace.storage.sidecar import Index
from headrace.threads import map_in_threads
from headrace.trees import ShapeDtypeStruct

# ---------------------------------------------------------------------------------------------------------- values
# Arrow columns as NumPy arrays: their shapes and dtypes, their values, and whether they can be read safely.


arrow = functools.partial(optional, "pyarrow", extra="parquet")


def spec_of(kind: Any, *, nulls: bool) -> Any:
    """Shapes and dtypes of the values of a pyarrow type, a tree for a struct; None if they are objects."""
    types: ModuleType = arrow().types
    if isinstance(kind, arrow().FixedShapeTensorType) and list(kind.permutation or ()) == sorted(
        kind.permutation or ()
    ):
        inner = spec_of(kind.value_type, nulls=False)
        return None if nulls or inner is None else ShapeDtypeStruct(kind.shape, inner.dtype)
    if isinstance(kind, arrow().BaseExtensionType):
        return spec_of(kind.storage_type, nulls=nulls)
    if types.is_dictionary(kind):
        return spec_of(kind.value_type, nulls=nulls)
    if types.is_struct(kind):
        fields = {field.name: spec_of(field.type, nulls=False) for field in kind}
        is_tree = len(fields) == kind.num_fields > 0 and all(spec is not None for spec in fields.values())
        return fields if is_tree and not nulls else None
    if types.is_fixed_size_list(kind):
        inner = spec_of(kind.value_type, nulls=False)
        if nulls or not isinstance(inner, ShapeDtypeStruct):
            return None
        return ShapeDtypeStruct((kind.list_size, *inner.shape), inner.dtype)
    if types.is_nested(kind) or is_view(kind):
        return None
    dtype = arrow().nulls(int(nulls), kind).to_numpy(zero_copy_only=False).dtype
    return None if dtype.hasobject else ShapeDtypeStruct((), dtype)


def is_columnar(specs: dict[str, Any]) -> bool:
    """Whether all columns are numbers."""
    return all(spec is not None and not callable(spec) for spec in specs.values())


def values_of(array: Any, spec: Any) -> Any:
    """A pyarrow array as NumPy arrays of these shapes and dtypes, or of objects; or what `spec` makes, if callable."""
    if callable(spec):
        return spec(array)
    if isinstance(array, arrow().ExtensionArray):
        return values_of(array.storage, spec)
    if isinstance(array, arrow().DictionaryArray):
        return values_of(array.dictionary_decode(), spec)
    if isinstance(spec, dict):
        return {name: values_of(child, spec[name]) for name, child in zip(spec, array.flatten(), strict=True)}
    if spec is None:
        return _objects(array)
    if spec.shape:
        items = array
        while isinstance(items, arrow().FixedSizeListArray):
            items = items.flatten()
            items = getattr(items, "storage", items)
        return values_of(items, ShapeDtypeStruct((), spec.dtype)).reshape(len(array), *spec.shape)
    return array.to_numpy(zero_copy_only=False).astype(spec.dtype, copy=False)


def columns_of(table: Any, specs: dict[str, Any]) -> dict[str, Any]:
    """The columns of a pyarrow table as NumPy arrays of these shapes and dtypes, or of objects."""
    columns = {name: table.column(name) for name in specs}
    # Joining would copy even a single chunk.
    arrays = {name: c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for name, c in columns.items()}
    return {name: values_of(arrays[name], spec) for name, spec in specs.items()}


def _objects(array: Any) -> np.ndarray:
    """Values as an array of objects, none of which depends on the others."""
    if isinstance(array, arrow().FixedSizeListArray):
        array = array.cast(arrow().list_(array.type.value_type))
    if isinstance(array, arrow().StructArray):
        return _dicts(array)
    if isinstance(array, arrow().MapArray):
        return _pairs(array)
    pa = arrow()
    if not isinstance(array, pa.ListArray | pa.LargeListArray | pa.ListViewArray | pa.LargeListViewArray):
        return _scalars(array)
    objects = np.empty(len(array), object)
    gaps = has_nulls(array.values)  # then the dtype of a list depends on whether it has some
    values = np.empty(0) if gaps else _list_values(array.values)
    for i, begin, end in extents(array):
        objects[i] = _list_values(array.values.slice(begin, end - begin)) if gaps else values[begin:end]
    return objects


def extents(array: Any) -> Iterator[tuple[int, int, int]]:
    """The place of each non-null list in the array, and where its values begin and end."""
    begins = array.offsets.to_pylist()
    views = isinstance(array, arrow().ListViewArray | arrow().LargeListViewArray)
    ends = map(operator.add, begins, array.sizes.to_pylist()) if views else begins[1:]
    for i, (valid, begin, end) in enumerate(zip(array.is_valid().to_pylist(), begins, ends, strict=False)):
        if valid:
            yield i, begin, end


def _pairs(array: Any) -> np.ndarray:
    """Maps, each as a list of pairs of key and value."""
    objects = np.empty(len(array), object)
    keys = values_of(array.keys, None)
    items = values_of(array.items, None)
    for i, begin, end in extents(array):
        objects[i] = list(zip(keys[begin:end], items[begin:end], strict=True))
    return objects


def _dicts(array: Any) -> np.ndarray:
    objects = np.empty(len(array), object)
    names = [field.name for field in array.type]
    rows = zip(*(values_of(child, None) for child in array.flatten()), strict=True)
    for i, (valid, row) in enumerate(zip(array.is_valid().to_pylist(), rows, strict=True)):
        if valid:
            objects[i] = dict(zip(names, row, strict=True))
    return objects


def _scalars(array: Any) -> np.ndarray:
    objects = np.empty(len(array), object)
    types = arrow().types
    kind = array.type
    # In NumPy, an int beside a null would become a float.
    plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind)
    plain = plain or types.is_nested(kind) or is_view(kind)
    objects[:] = array.to_pylist() if plain else list(array.to_numpy(zero_copy_only=False))
    return objects


def is_view(kind: Any) -> bool:
    """Whether values of a pyarrow type are views of strings or bytes."""
    return arrow().types.is_string_view(kind) or arrow().types.is_binary_view(kind)


def without_views(kind: Any) -> Any:
    """A pyarrow type with strings and bytes in place of views of them, which pyarrow hardly supports."""
    pa = arrow()
    whole = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return with_leaves(kind, lambda leaf: whole.get(leaf, leaf))


def with_leaves(kind: Any, change: Callable[[Any], Any]) -> Any:
    """A pyarrow type, with a function applied to the types inside it that are not nested."""
    pa = arrow()
    types = arrow().types
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, with_leaves(kind.value_type, change), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(with_leaves(field.type, change)) for field in kind])
    if types.is_map(kind):
        pair = (field.with_type(with_leaves(field.type, change)) for field in (kind.key_field, kind.item_field))
        return pa.map_(*pair, keys_sorted=kind.keys_sorted)
    for is_list, make in (
        (types.is_list, pa.list_),
        (types.is_large_list, pa.large_list),
        (types.is_fixed_size_list, lambda inner: pa.list_(inner, kind.list_size)),
    ):
        if is_list(kind):
            return make(kind.value_field.with_type(with_leaves(kind.value_type, change)))
    return change(kind)


def schema_without_views(schema: Any) -> Any:
    """A schema without views."""
    return arrow().schema([field.with_type(without_views(field.type)) for field in schema], schema.metadata)


def table_without_views(table: Any) -> Any:
    """A table without views; the same one if it has none."""
    kinds = table.schema.types
    has_views = any(one is not kind and one != kind for one, kind in zip(map(without_views, kinds), kinds, strict=True))
    return table.cast(schema_without_views(table.schema)) if has_views else table


def _list_values(array: Any) -> np.ndarray:
    spec = spec_of(array.type, nulls=has_nulls(array))
    return values_of(array, spec if isinstance(spec, ShapeDtypeStruct) and not spec.shape else None)


def has_nulls(array: Any) -> bool:
    """Whether a pyarrow array has nulls, at a depth where they change its dtype."""
    if array.null_count:
        return True
    if isinstance(array, arrow().ExtensionArray):
        return has_nulls(array.storage)
    if isinstance(array, arrow().DictionaryArray):
        return has_nulls(array.dictionary)
    if isinstance(array, arrow().StructArray):
        return any(map(has_nulls, array.flatten()))
    return isinstance(array, arrow().FixedSizeListArray) and has_nulls(array.flatten())


def columns_with_nulls(table: Any) -> set[str]:
    """The columns of a pyarrow table that have any such nulls."""
    return {name for name in table.column_names if any(map(has_nulls, table.column(name).chunks))}


def taken(columns: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    # The rows are in range, and clipping is cheaper than checking.
    return {
        name: column.take(rows, 0, None, "clip") if type(column) is np.ndarray else taken(column, rows)
        for name, column in columns.items()
    }


def empty(specs: dict[str, Any], length: int) -> dict[str, Any]:
    return trees.tree_map(lambda spec: np.empty((length, *spec.shape), spec.dtype), specs)


def fill(columns: dict[str, Any], at: np.ndarray, found: dict[str, Any], rows: np.ndarray) -> None:
    """Copies rows of a group to places in columns."""
    for name, column in found.items():
        if type(column) is np.ndarray:
            columns[name][at] = column.take(rows, 0, None, "clip")
        else:
            fill(columns[name], at, column, rows)


def num_bytes(decoded: Any) -> int:
    return trees.num_bytes(decoded) if isinstance(decoded, dict) else decoded.nbytes


def check_bounds(table: Any) -> None:
    """Raises `ArrowInvalid` if reading a value of a table or record batch would leave its buffers.

    Arrow trusts the offsets, indices and sizes in a file, and damaged ones would crash the process.
    """
    for column in table.columns:
        for chunk in getattr(column, "chunks", None) or [column]:
            check_array(chunk)


def check_array(array: Any) -> None:
    """The same for an array: reads its offsets, indices and nulls, but no values.

    Text is checked as bytes, since checking UTF-8 would read it: invalid text raises when it is read.
    """
    array = getattr(array, "storage", array)
    array.validate()
    pa = arrow()
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    plain = with_leaves(array.type, lambda leaf: as_bytes.get(leaf, leaf))
    if plain != array.type:
        with contextlib.suppress(pa.ArrowException):  # types without such a view
            array = array.view(plain)
    array.validate(full=True)


# ------------------------------------------------------------------------------------------------------- lru cache
# A cache of open files and decoded groups, and files for pyarrow to read.


MAGIC_BYTES = 10
_CODECS = {re.escape(files.GZIP): "gzip", re.escape(files.ZSTD): "zstd"}
_CODECS |= {rb"BZh[1-9]1AY&SY": "bz2", rb"\x04\x22M\x18": "lz4"}


def first_line(error: Exception) -> str:
    """The message of a pyarrow error, as part of a sentence."""
    return " ".join(str(error).split()).rstrip(".")


@contextlib.contextmanager
def translate_arrow_errors(place: str, what: str) -> Iterator[None]:
    """Turns errors of pyarrow into ones that name the file and the place in it; `what` is the kind of files."""
    try:
        yield
    except HeadraceError:
        raise
    except (arrow().ArrowException, OSError, ValueError, LookupError, ArithmeticError) as e:  # Unicode, dates, names
        if isinstance(e, OSError) and e.errno is not None:  # of the file system, not about the content
            e.add_note(f"reading {redacted(place)}")
            raise
        raise DataError(
            f"{place} cannot be read: {first_line(e)}. Is the file damaged, truncated, or not one of {what}?"
        ) from e


def open_input(path: str, pool: files.Pool, *, maps: bool = False) -> Any:
    """A file for pyarrow to read; with `maps`, local files are mapped into memory."""
    if files.is_remote(path):
        return arrow().PythonFile(files.Seekable(pool.get(path)), mode="r")
    name = os.fsencode(path)  # pyarrow accepts only strings that are Unicode
    return arrow().memory_map(name) if maps else arrow().OSFile(name)


class LruCache:
    """A cache whose values are made when first requested: once, even if several threads request one.

    If they weigh more than `most` together, the least recently used are dropped, but never the newest.
    """

    def __init__(self, most: int, weigh: Callable[[Any], int], make: Callable[[Any], Any] | None = None):
        self._most = most
        self._weigh = weigh
        self._make = make
        self._lock = threading.Lock()
        self._weight = 0
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._making: dict[Any, threading.Lock] = {}

    def get(self, key: Any, make: Callable[[], Any] | None = None) -> Any:
        """The value of a key."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found[0]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                found = self._kept.get(key)
            if found is None:
                found = self._keep(key, make() if make is not None else self._make(key))  # type: ignore[misc]
        return found[0]

    def _keep(self, key: Any, made: Any) -> tuple[Any, int]:
        weight = self._weigh(made)
        with self._lock:
            self._kept[key] = made, weight
            self._weight += weight
            self._making.pop(key, None)
            while self._weight > self._most and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._weight -= dropped
        return made, weight


def codec_of(magic: bytes) -> str | None:
    """How a file that begins with these bytes is compressed; None if it is not."""
    return next((codec for begin, codec in _CODECS.items() if re.match(begin, magic)), None)


class Unpacked:
    """The bytes of a compressed file by offset, decompressed into an unnamed temporary file."""

    def __init__(self, stream: BinaryIO, codec: str):
        self._file = tempfile.TemporaryFile(prefix="headrace-")  # noqa: SIM115  (as long as this object)
        with arrow().CompressedInputStream(arrow().PythonFile(stream, mode="r"), codec) as unpacking:
            shutil.copyfileobj(unpacking, self._file, 1 << 20)
        self._file.flush()
        self.size = self._file.tell()

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._file.fileno(), length, offset)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(offset, length) for offset, length in ranges]

    def close(self) -> None:
        self._file.close()

    __del__ = close


# ---------------------------------------------------------------------------------------------------------- choice
# Which columns and rows of tables to read, and whether all files have them.


@dataclasses.dataclass(frozen=True)
class ColumnSelection:
    """Columns and filters; `a.b` is the field `b` of the structs in column `a`, unless a column has that name."""

    columns: Sequence[str] | None
    filters: Any

    def __post_init__(self):
        if isinstance(self.columns, str) or (self.columns is not None and not self.columns):
            raise PipelineError(f"`columns` must be a sequence of at least one name, or None; got {self.columns!r}.")

    @functools.cached_property
    def expression(self) -> Any:
        """The filters as a pyarrow expression."""
        try:
            return optional("pyarrow.parquet", extra="parquet").filters_to_expression(self.filters)
        except (TypeError, ValueError) as e:
            raise PipelineError(
                f"`filters` must be a pyarrow expression, or tuples such as [('x', '>', 1)]; got {self.filters!r}: {e}"
            ) from e

    def reads(self, names: Sequence[str]) -> list[str]:
        """The columns to read of a file with these columns: the chosen ones, and those that filters use."""
        wanted = dict.fromkeys(names if self.columns is None else self.columns)
        return [*wanted, *(name for name in self.looks_at(names) if name not in wanted)]

    def looks_at(self, names: Sequence[str]) -> list[str]:
        """Those of these columns that filters use, and maybe more."""
        looked_at = "" if self.filters is None else str(self.expression)
        return [name for name in names if name in looked_at]

    def columns_read(self, names: Sequence[str]) -> list[str]:
        """The columns of a file of which at least a part is read."""
        there = set(names)
        read = {one if one in there else one.partition(".")[0] for one in self.reads(names)}
        return [name for name in names if name in read]

    def schema(self, path: str, whole: Any) -> Any:
        """The schema of the chosen columns of a file."""
        if self.columns is None:
            return whole
        there = set(whole.names)
        try:
            parts = [(name,) if name in there else tuple(name.split(".")) for name in self.columns]
            return arrow().schema(_chosen(whole, parts))
        except KeyError as e:
            name = ".".join(e.args[0])
            raise PipelineError(f"{path} has no column {name!r}, only {whole.names}. Change `columns`.") from None

    def check_filters(self, path: str, schema: Any) -> None:
        """Raises unless the filters fit the columns of a file."""
        if self.filters is None:
            return
        try:
            schema.empty_table().filter(self.expression)
        except (arrow().ArrowException, KeyError) as e:
            raise PipelineError(
                f"The filters {self.filters!r} do not match the columns of {path}: {first_line(e)}. It has "
                f"{[f'{field.name}: {field.type}' for field in schema]}."
            ) from e

    def of(self, table: Any, schema: Any) -> Any:
        """The rows of a table that pass the filters, with the columns of a schema."""
        return with_columns(table if self.filters is None else table.filter(self.expression), schema)


def with_columns(table: Any, schema: Any) -> Any:
    """A table with only the columns of a schema, which may have only some fields of a struct."""
    chosen = table.select(schema.names)
    return chosen if chosen.schema.types == schema.types else chosen.cast(schema)


def _chosen(fields: Any, parts: list[tuple[str, ...]]) -> list[Any]:
    """The chosen parts of the fields of a schema or struct; raises KeyError with a part that is missing."""
    there = {field.name: field for field in fields}
    inside: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in parts:
        inside.setdefault(name, []).append(tuple(rest))
    chosen = []
    for name, rests in inside.items():
        if name not in there:
            raise KeyError((name, *rests[0]))
        # An empty rest chooses the whole field.
        chosen.append(_with_fields(there[name], rests) if all(rests) else there[name])
    return chosen


def _with_fields(field: Any, parts: list[tuple[str, ...]]) -> Any:
    """A column of structs with only some of their fields, in their order."""
    kind = field.type
    if not arrow().types.is_struct(kind):
        raise KeyError((field.name, *parts[0]))
    try:
        chosen = _chosen(kind, parts)
    except KeyError as e:
        raise KeyError((field.name, *e.args[0])) from None
    return field.with_type(arrow().struct(sorted(chosen, key=lambda one: kind.get_field_index(one.name))))


def prefixes(path: str) -> Iterable[str]:
    """All names that choose a nested column."""
    return itertools.accumulate(path.split("."), "{}.{}".format)


def one_schema(paths: list[str], schemas: list[Any], choice: ColumnSelection) -> Any:
    """The schema of the chosen columns of all files; raises if it differs, or if the filters do not fit it."""
    first = choice.schema(paths[0], schemas[0])
    seen: set[int] = set()  # files have equal schemas in the same object
    for path, schema in zip(paths, schemas, strict=True):
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        doubled = [name for name, count in Counter(schema.names).items() if count > 1]
        if doubled:
            raise DataError(f"{path} has several columns named {doubled[0]!r}. Rewrite it with unique names.")
        _check_same(paths[0], first, path, choice.schema(path, schema))
        choice.check_filters(path, schema)
    return first


def _check_same(first_path: str, first: Any, path: str, schema: Any) -> None:
    expected, found = ({field.name: field.type for field in one} for one in (first, schema))
    for name in expected | found:
        if name not in expected or name not in found:
            here, there = (path, first_path) if name in expected else (first_path, path)
            raise PipelineError(
                f"{here} has no column {name!r}, which {there} has. Select columns that all files have with `columns`."
            )
        if not found[name].equals(expected[name]):
            raise DataError(
                f"Column {name!r} has type {found[name]} in {path} but type {expected[name]} in {first_path}. "
                "Rewrite it with one type, or select other `columns`."
            )


# ----------------------------------------------------------------------------------------------------------- notes
# Elements of Parquet and Arrow files as they were written, by the note in the schema's metadata.
#
# The metadata `headrace` is JSON, `{"element": note}`. Its notes are those of `headrace.sources.notes`, with these for
# what the rows of a column have in common; a column without one is as Arrow gives it, and a null is None.
#
#     {"a": …}                          a dict, with the notes on some of its values
#     ["array", dtype, [null, 4], …]    an array in lists of lists: its dtype if it is not that of Arrow, the sizes
#                                       that all of the first rows have, and the note on its items if they are objects
#     ["list", …]  ["tuple", …]         a list or tuple, and the note on its items
#     ["fields", […, …]]                a tuple in a struct with the fields 0, 1, and so on
#     ["datetime64[s]"]                 a scalar of NumPy
#     "python"                          an object as `to_pylist` returns it, such as a date


KEY = b"headrace"
ARRAY = "array"
LIST = "list"
TUPLE = "tuple"
FIELDS = "fields"
PYTHON = "python"
_AS_PYTHON = (np.dtype(np.int64), np.dtype(np.float64), np.dtype(bool))  # in lists


@dataclass(frozen=True, eq=False)
class Notes:
    """What a file says of the elements that were written to it."""

    columns: dict[str, Any]  # the note on each, if it needs one
    is_bare: bool = False  # whether an element is the column `record`, rather than a row

    def metadata(self) -> dict[bytes, bytes]:
        """The notes as metadata of a schema."""
        root = [BARE, self.columns.get(RECORD)] if self.is_bare else self.columns
        return {KEY: json.dumps({"element": root}, separators=(",", ":")).encode()}


def notes_in(path: str, schema: Any) -> Notes | None:
    """The notes in a file's schema; None if it has none."""
    found = (schema.metadata or {}).get(KEY)
    if found is None:
        return None
    try:
        return _parsed(found)
    except (ValueError, TypeError, LookupError, RecursionError) as e:
        raise DataError(
            f"{path} has metadata {KEY.decode()!r} that Headrace did not write: {str(found)[:200]}. "
            "Rewrite the file without it."
        ) from e


@functools.lru_cache(maxsize=64)
def _parsed(metadata: bytes) -> Notes:
    root = json.loads(metadata)["element"]
    if isinstance(root, dict):
        return Notes(root)
    tag, note = root
    if tag != BARE:
        raise ValueError(tag)
    return Notes({RECORD: note}, is_bare=True)


def agreed(paths: Sequence[str], notes: Sequence[Notes | None]) -> Sequence[Notes] | None:
    """The notes of files that are read as one; None if some have none, and the others say nothing of importance."""
    notes_by_path = [(path, one or Notes({})) for path, one in zip(paths, notes, strict=True)]
    first_path, first = notes_by_path[0]
    for path, one in notes_by_path if len({id(one) for one in notes}) > 1 else []:
        names = first.columns.keys() | one.columns.keys()
        other = [
            name for name in names if comparable_note(first.columns.get(name)) != comparable_note(one.columns.get(name))
        ]
        if other or first.is_bare != one.is_bare:
            what = f"column {other[0]!r}" if other else "elements"
            raise DataError(
                f"{path} and {first_path} were written from different {what}: their metadata {KEY.decode()!r} "
                "differs. Open them separately, or rewrite one of them."
            )
    return None if None in notes else [one for _, one in notes_by_path]


def comparable_note(note: Any) -> Any:
    """A note without what may differ between files of the same elements."""
    if isinstance(note, dict):
        return {name: found for name, one in note.items() if (found := comparable_note(one)) is not None} or None
    if not isinstance(note, list):
        return note
    return (
        [ARRAY, note[1], len(note[2]), comparable_note(note[3])]
        if note[0] == ARRAY
        else list(map(comparable_note, note))
    )


def noted_spec(kind: Any, note: Any, *, nulls: bool) -> Any:
    """Shapes and dtypes of the values of a column, as of `spec_of`; or what makes objects of it."""
    if not _fits(kind, note):
        return spec_of(kind, nulls=nulls)
    spec = _spec_without_nulls(kind, note)
    if spec is None and note is None and not arrow().types.is_struct(kind):  # text, for instance
        return None
    return Restored(note) if spec is None or nulls else spec


def _spec_without_nulls(kind: Any, note: Any) -> Any:
    if arrow().types.is_struct(kind) and not isinstance(note, list):
        fields = {field.name: _spec_without_nulls(field.type, (note or {}).get(field.name)) for field in kind}
        return fields if fields and None not in fields.values() else None
    if isinstance(note, list) and len(note) == 1:
        return ShapeDtypeStruct((), dtype_named(note[0]))
    return spec_of(kind, nulls=False) if note is None else None


def _fits(kind: Any, note: Any) -> bool:
    """Whether a note is one on values of an Arrow type: others may have written a file again, with its metadata."""
    types = arrow().types
    if isinstance(note, dict):
        return types.is_struct(kind) and all(_fits(field.type, note.get(field.name)) for field in kind)
    if not isinstance(note, list):
        return note in (None, PYTHON)
    if len(note) == 1:
        return types.is_temporal(kind) or types.is_integer(kind) or types.is_floating(kind)
    if note[0] == FIELDS:
        return (
            types.is_struct(kind)
            and kind.num_fields == len(note[1])
            and all(_fits(field.type, one) for field, one in zip(kind, note[1], strict=True))
        )
    depth, inner = (len(note[2]), note[3]) if note[0] == ARRAY else (1, note[1])
    for _ in range(depth):
        if not (types.is_list(kind) or types.is_large_list(kind)):
            return False
        kind = kind.value_type
    return _fits(kind, inner)


@dataclass(frozen=True)
class Restored:
    """Makes the values of a column as its note says."""

    note: Any

    def __call__(self, array: Any) -> np.ndarray:
        values = _values(array, self.note)
        return np.fromiter(values, object, len(values))


def _values(array: Any, note: Any) -> Any:
    """The values of an Arrow array, as a sequence: a list, or an array of numbers."""
    array = getattr(array, "storage", array)
    if note == PYTHON:
        return array.to_pylist()
    if isinstance(note, list):
        tag, *rest = note
        makers = {ARRAY: _arrays, LIST: _lists, TUPLE: _tuples, FIELDS: _fields}
        return makers[tag](array, *rest) if rest else _numbers(array, dtype_named(tag))
    if arrow().types.is_struct(array.type):
        return _noted_dicts(array, note or {})
    spec = spec_of(array.type, nulls=False)
    return values_of(array, None) if spec is None else _numbers(array, spec.dtype)


def _numbers(array: Any, dtype: np.dtype) -> Any:
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    there = iter(_numbers(array.drop_null(), dtype))
    return [next(there) if valid else None for valid in array.is_valid().to_pylist()]


def _noted_dicts(array: Any, notes: dict[str, Any]) -> list[Any]:
    names = [field.name for field in array.type]
    if not names:
        return array.to_pylist()
    columns = [_values(part, notes.get(name)) for name, part in zip(names, array.flatten(), strict=True)]
    rows = zip(array.is_valid().to_pylist(), zip(*columns, strict=True), strict=True)
    return [dict(zip(names, row, strict=True)) if valid else None for valid, row in rows]


def _fields(array: Any, notes: list[Any]) -> list[Any]:
    columns = [_values(part, note) for note, part in zip(notes, array.flatten(), strict=True)]
    rows = zip(array.is_valid().to_pylist(), zip(*columns, strict=True), strict=True)
    return [row if valid else None for valid, row in rows]


def _lists(array: Any, note: Any) -> list[Any]:
    lists: list[Any] = [None] * len(array)
    items = _values(array.values, note)
    if isinstance(items, np.ndarray) and items.dtype in _AS_PYTHON:
        items = items.tolist()
    for i, begin, end in extents(array):
        lists[i] = list(items[begin:end])
    return lists


def _tuples(array: Any, note: Any) -> list[Any]:
    return [value if value is None else tuple(value) for value in _lists(array, note)]


def _arrays(array: Any, dtype: str | None, hint: list[int | None], note: Any) -> list[Any]:
    """Arrays of the lists in lists that `hint` has sizes for."""
    begins = []
    items = array
    for _ in hint:
        begins.append(items.offsets.to_numpy())
        items = items.values
    make = functools.partial(_items, _values(items, note), dtype)
    arrays: list[Any] = [None] * len(array)
    if len(hint) == 1:
        for i, begin, end in extents(array):
            arrays[i] = make(begin, end)
        return arrays
    for i, begin, end in extents(array):
        shape = [end - begin]
        for offsets in begins[1:]:
            sizes = np.diff(offsets[begin : end + 1])
            if not len(sizes):
                break
            if (sizes != sizes[0]).any():
                raise DataError("the lists of an array have different lengths, which Headrace does not write")
            shape.append(int(sizes[0]))
            begin = int(offsets[begin])
            end = int(offsets[end])
        arrays[i] = make(begin, end if len(shape) == len(hint) else begin).reshape(shape_of_lists(shape, hint))
    return arrays


def _items(items: Any, dtype: str | None, begin: int, end: int) -> np.ndarray:
    if dtype is None and isinstance(items, np.ndarray):
        return items[begin:end]
    if dtype in ("object", None):  # numbers are objects if others have put nulls among them
        return np.fromiter(items[begin:end], object, end - begin)
    return np.array(items[begin:end], dtype_named(dtype))


def shape_of_lists(shape: Sequence[int], hint: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of an array from that of lists: sizes after one of 0 cannot be seen in these, and are those of `hint`.

    >>> shape_of_lists([0, 5], [None, 4])
    (0, 4)
    """
    seen = list(shape).index(0) + 1 if 0 in shape else len(shape)
    return (*shape[:seen], *(size or 0 for size in hint[seen:]))


# ---------------------------------------------------------------------------------------------------- stored scans
# What is known of a large set of files without their rows, stored together so that a later run opens none of them.
#
# Each file's scan is valid as long as the file has the size and modification time that it was made for.


LEAST_FILES = 128  # fewer are opened as fast
FOLDER = "scans"
_MAGIC = b"HRSCANS1"


class StoredScans:
    """The scans of a set of local files: `find(version, number)` gives one, and `store` keeps them for the next time.

    A scan is a schema, the groups as tuples without the number of the file, and the names of the columns with nulls.
    """

    def __init__(self, paths: Sequence[str], what: str, columns: Sequence[str] | None):
        named = json.dumps([what, columns, list(map(os.path.abspath, paths))])
        name = hashlib.sha256(named.encode(errors="surrogateescape")).hexdigest()
        self._place = StoragePlace(os.path.join(files.cache_folder(), FOLDER, f".{name}"))
        self._schemas: list[Any] = []
        self._files: list[Any] = []
        self._read()

    @staticmethod
    def serves(paths: Sequence[str]) -> bool:
        """Whether so many files are worth it, and can be told apart from later versions of them."""
        return Index.is_stored and len(paths) >= LEAST_FILES and not any(map(files.is_remote, paths))

    def find(self, number: int, version: files.Fingerprint) -> tuple[Any, list[Any], list[str]] | None:
        """The scan of a file of this version."""
        if number >= len(self._files):
            return None
        size, changed, schema, groups, nulls = self._files[number]
        return (self._schemas[schema], groups, nulls) if (size, changed) == version else None

    def store(self, scans: Sequence[tuple[files.Fingerprint, Any, list[Any], list[str]]]) -> None:
        """Stores the scans of all files, if it can."""
        numbers: dict[int, int] = {}
        schemas: list[str] = []
        entries = []
        for version, schema, groups, nulls in scans:
            if id(schema) not in numbers:
                numbers[id(schema)] = len(schemas)
                schemas.append(base64.b64encode(schema.serialize()).decode())
            entries.append((*version, numbers[id(schema)], groups, nulls))
        data = json.dumps({"schemas": schemas, "files": entries}, separators=(",", ":")).encode()
        try:
            self._place.write([_MAGIC, zlib.crc32(data).to_bytes(4, "little"), data])
        except OSError:
            return

    def _read(self) -> None:
        try:
            with self._place.open() as file:
                data = file.read()
            magic = data[:8]
            checksum = data[8:12]
            data = data[12:]
            if magic != _MAGIC or int.from_bytes(checksum, "little") != zlib.crc32(data):
                return
            stored = json.loads(data)
            read = arrow().ipc.read_schema
            self._schemas = [read(arrow().py_buffer(base64.b64decode(one))) for one in stored["schemas"]]
            self._files = stored["files"]
        except (OSError, ValueError, LookupError, TypeError):
            return


def interned() -> Callable[[Any], Any]:
    """A function that gives the same object for equal schemas, so that each is looked at only once."""
    known: list[Any] = []

    def intern(schema: Any) -> Any:
        for one in known[-8:]:
            if one.equals(schema, check_metadata=True):
                return one
        known.append(schema)
        return schema

    return intern


# ------------------------------------------------------------------------------------------------------------ base
# Tables in files as sources (Parquet; Arrow IPC and Feather; CSV): element `i` is row `i` of the files, as a dict.
#
# A file is a sequence of groups (row groups, record batches, blocks of lines). A group is decoded at once, and a cache
# of limited size keeps the most recent ones. A column's dtype is the same in all files, and known before the first row
# is read: a number is a NumPy scalar (a float, if a column of ints has nulls anywhere), a list of fixed size an array,
# a struct of these a dict. If all columns are such, blocks of rows are read as columns. Otherwise they are read as
# rows, in which a list is an array, a string `str`, and a null None. A row never depends on the rows that are read with
# it.
#
# Files that a writer of Headrace wrote have a note on their elements (`notes`), which come back as they were written.


CACHE_BYTES = 256 << 20
OPENING_THREADS = 16
MOST_OPEN = 64  # files whose footers or readers are kept


class RowGroup(NamedTuple):
    """Rows of a file that are decoded together; `place` says where, for the format, and `line`, for messages."""

    file: int
    place: Any
    num_rows: int
    line: str


@dataclasses.dataclass(frozen=True)
class Scan:
    """What is known of a file without its rows; `nulls` names the columns that have some."""

    schema: Any
    groups: list[RowGroup]
    nulls: set[str]


@dataclasses.dataclass(eq=False, repr=False)
class TableDataSource:
    """The rows of tables in files; subclasses scan files of a format and read their groups."""

    what: ClassVar[str]
    maps: ClassVar[bool] = False  # whether local files are mapped into memory
    stores: ClassVar[bool] = False  # whether scans of many files are stored
    paths: Any
    _: dataclasses.KW_ONLY
    columns: Sequence[str] | None = None
    filters: Any = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self):
        self._choice = ColumnSelection(self.columns, self.filters)
        self.columns = None if self.columns is None else list(self.columns)
        self.paths = files.expand(self.paths, what=self.what)
        self._pool = files.Pool(MOST_OPEN)
        self._versions: dict[str, files.Fingerprint] = {}
        self._mapped = MappedFiles()
        self._open_caches()
        scans = self._scan_all()
        plain = {id(scan.schema): scan.schema for scan in scans}
        plain = {key: schema_without_views(schema) for key, schema in plain.items()}
        self._schema = self._one_schema([plain[id(scan.schema)] for scan in scans])
        groups = [scan.groups for scan in scans]
        if self.filters is None:
            kept = [[group.num_rows for group in each] for each in groups]
        else:
            with Bar(f"Counting rows of {self.what}", unit="files", total=len(groups)) as bar:
                kept = map_in_threads(self._count, groups, OPENING_THREADS, "headrace-open", bar.advance)
        self._read_notes([scan.schema for scan in scans], set().union(*(scan.nulls for scan in scans)))
        counted = zip([g for s in scans for g in s.groups], [n for counts in kept for n in counts], strict=True)
        left = [(group, count) for group, count in counted if count]
        self._groups = [group for group, _ in left]
        self._parts = Parts(count for _, count in left)

    def _scan_all(self) -> list[Scan]:
        """The scans of all files; those of a large set are stored together."""
        numbers = range(len(self.paths))
        intern = interned()
        is_stored = self.stores and StoredScans.serves(self.paths)
        stored = StoredScans(self.paths, self.what, self.columns) if is_stored else None
        scans: dict[int, Scan] = {}
        for number, path in enumerate(self.paths) if stored is not None else ():
            version = files.fingerprint(path)
            if (found := stored.find(number, version)) is not None:  # type: ignore[union-attr]
                schema, groups, nulls = found
                scans[number] = Scan(schema, [RowGroup(number, *group) for group in groups], set(nulls))
                self._versions[path] = version
        missing = [number for number in numbers if number not in scans]
        if missing:
            with Bar(f"Opening {self.what}", unit="files", total=len(missing)) as bar:
                made = map_in_threads(self._scan, missing, OPENING_THREADS, "headrace-open", bar.advance)
            scans |= {n: Scan(intern(one.schema), one.groups, one.nulls) for n, one in zip(missing, made, strict=True)}
        known = [scans[number] for number in numbers]
        if stored is not None and missing:
            stored.store(
                [
                    (self._versions[path], scan.schema, [group[1:] for group in scan.groups], sorted(scan.nulls))
                    for path, scan in zip(self.paths, known, strict=True)
                ]
            )
        return known

    def _read_notes(self, schemas: list[Any], nulls: set[str]) -> None:
        """Finds out what the columns of each file are, from the types and from the notes of a writer."""
        found: dict[int, Notes | None] = {}
        for path, schema in zip(self.paths, schemas, strict=True):
            if id(schema) not in found:
                found[id(schema)] = notes_in(path, schema)
        notes = agreed(self.paths, [found[id(schema)] for schema in schemas])
        self._bare = notes is not None and notes[0].is_bare and self.columns is None and self._schema.names == [RECORD]
        made: dict[int, dict[str, Any]] = {}

        def specs(noted: Notes | None) -> dict[str, Any]:
            if id(noted) not in made:
                made[id(noted)] = {
                    field.name: spec_of(field.type, nulls=field.name in nulls)
                    if noted is None
                    else noted_spec(field.type, noted.columns.get(field.name), nulls=field.name in nulls)
                    for field in self._schema
                }
            return made[id(noted)]

        self._specs_in = [specs(noted) for noted in notes or [None] * len(self.paths)]
        self._specs = self._specs_in[0]

    @property
    def group_ends(self) -> np.ndarray:
        """Where groups end, in rows after the filters."""
        return self._parts.ends

    def _scan(self, file: int) -> Scan:
        """Finds the schema, groups and nulls of a file."""
        raise NotImplementedError

    def _read(self, group: RowGroup) -> Any:
        """The rows of a group as a pyarrow table, with at least the needed columns; not filtered."""
        raise NotImplementedError

    def _one_schema(self, schemas: list[Any]) -> Any:
        """The schema of the chosen columns, the same for all files."""
        return one_schema(self.paths, schemas, self._choice)

    def _count(self, groups: list[RowGroup]) -> list[int]:
        """How many rows of each group of a file pass the filters."""
        if self.filters is None:
            return [group.num_rows for group in groups]
        return [self._table(group).num_rows for group in groups]

    def _input(self, path: str) -> Any:
        """A file for pyarrow to read; it must not have changed."""
        if not files.is_remote(path):  # the pool checks remote ones
            found = files.fingerprint(path)
            if found != self._versions.setdefault(path, found):
                raise files.changed_error(path)
            if self.maps:
                self._mapped.add(path)
        return open_input(path, self._pool, maps=self.maps)

    def _check_mapped(self, numbers: Iterable[int]) -> None:
        """Raises if a file that these groups are mapped from changed since it was opened."""
        if self.maps and len(self.paths) == 1:
            self._mapped.check(self.paths)
        elif self.maps:
            self._mapped.check(list({self.paths[self._groups[number].file] for number in numbers}))

    def _translate_errors(self, place: str) -> contextlib.AbstractContextManager[None]:
        """Turns errors of pyarrow into ones that name the file and the place in it."""
        return translate_arrow_errors(place, self.what)

    def _table(self, group: RowGroup) -> Any:
        """The chosen rows and columns of a group."""
        with self._translate_group_errors(group):
            return self._choice.of(table_without_views(self._read(group)), self._schema)

    def _translate_group_errors(self, group: RowGroup) -> contextlib.AbstractContextManager[None]:
        return self._translate_errors(f"{self.paths[group.file]}, {group.line},")

    def _decode(self, number: int) -> Any:
        """A group as columns, or as a table if not all columns are numbers."""
        table = self._table(self._groups[number])
        with self._translate_group_errors(self._groups[number]):
            return columns_of(table, self._specs) if self._columnar else table.combine_chunks()

    def _objects(self, number: int, table: Any) -> dict[str, Any]:
        """Rows of a group as columns, of objects where they are not numbers."""
        return columns_of(table, self._specs_in[self._groups[number].file])

    def read_group(self, number: int) -> dict[str, Any]:
        """All rows of a group as columns, which may be read-only; what is not a number is in arrays of objects."""
        self._check_mapped([number])
        decoded = self._decode(number)
        with self._translate_group_errors(self._groups[number]):
            return decoded if self._columnar else self._objects(number, decoded)

    @functools.cached_property
    def _columnar(self) -> bool:
        return is_columnar(self._specs)

    def __len__(self) -> int:
        return self._parts.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checked_index(index, len(self), "rows")])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The rows at these indices; each group is read once."""
        rows = self._rows_at(checked_indices(indices, len(self), "rows"))
        return [row[RECORD] for row in rows] if self._bare else rows

    def _rows_at(self, places: np.ndarray) -> list[dict[str, Any]]:
        if self._columnar:
            arrays, tree = trees.flatten(self._columns_at(places))
            return [tree.unflatten(values) for values in zip(*arrays, strict=True)]
        rows: list[Any] = [None] * len(places)
        for at, number, within in self._by_group(places):
            table = self._decoded.get(number)
            try:
                columns = self._objects(number, table.take(within))
            except Exception:
                with self._translate_group_errors(self._groups[number]):
                    raise
            arrays, tree = trees.flatten(columns)
            for place, values in zip(at.tolist(), zip(*arrays, strict=True), strict=True):
                rows[place] = tree.unflatten(values)
        return rows

    @property
    def __getcolumns__(self) -> Callable[[np.ndarray], Any]:
        """The rows at indices as columns; only if no value is an object."""
        if not self._columnar:
            raise AttributeError("Some columns do not hold numbers: elements are rows.")
        return (lambda indices: self._columns_at(indices)[RECORD]) if self._bare else self._columns_at

    def _columns_at(self, indices: np.ndarray) -> dict[str, Any]:
        if len(indices):
            number, within = self._parts.find(int(indices[0]))
            start = int(indices[0]) - within
            if start <= indices.min() and indices.max() < self._parts.ends[number]:
                self._check_mapped([number])
                return taken(self._decoded.get(number), indices - start if start else indices)
        columns = empty(self._specs, len(indices))
        for at, number, within in self._by_group(indices):
            fill(columns, at, self._decoded.get(number), within)
        return columns

    def _by_group(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """For each group with some of these indices: positions among the indices, its number, and the rows in it."""
        numbers, within = self._parts.find_all(indices)
        order = np.argsort(numbers, kind="stable")
        cuts = [0, *(np.flatnonzero(np.diff(numbers[order])) + 1).tolist(), len(order)]
        self._check_mapped(numbers[order[cuts[:-1]]].tolist() if len(order) else ())
        for begin, end in itertools.pairwise(cuts) if len(order) else ():
            at = order[begin:end]
            number = int(numbers[at[0]])
            yield at, number, within[at]

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of elements, if all are numbers."""
        if not self._columnar:
            return None
        return self._specs[RECORD] if self._bare else self._specs

    def __where__(self, index: int) -> tuple[str, int]:
        """The file of a row, and its number among the rows of that file that pass the filters."""
        file = self._groups[self._parts.find(index)[0]].file
        first = next(i for i, group in enumerate(self._groups) if group.file == file)
        return self.paths[file], index - (int(self._parts.ends[first - 1]) if first else 0)

    def _open_caches(self) -> None:
        self._opened = LruCache(MOST_OPEN, lambda _: 1)
        self._decoded = LruCache(self.cache_bytes, num_bytes, self._decode)

    def close(self) -> None:
        """Closes files and drops decoded groups; reading from the source opens them again."""
        self._pool.close()
        self._open_caches()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_opened", "_decoded")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._open_caches()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({files.shown_paths(self.paths)}, {self._chosen()}num_rows={len(self)})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`."""
        counts = f"num_files={len(self.paths)}, num_rows={len(self)}"
        return f"{type(self).__name__}({counts}, {self._chosen()}hash_of_paths={files.hash_of_paths(self.paths)})"

    def _chosen(self) -> str:
        """The arguments that are not the default."""
        fields = [f for f in dataclasses.fields(self) if f.name not in ("paths", "cache_bytes")]
        shown = (
            (f.name, repr(getattr(self, f.name))) for f in fields if repr(getattr(self, f.name)) != repr(f.default)
        )
        return "".join(f"{name}={value}, " for name, value in shown)


# --------------------------------------------------------------------------------------------------------- batches
# The rows of tables a group at a time: in order, as batches of columns, or shuffled.


T = TypeVar("T")


def check_table(source: Any) -> None:
    """Raises unless a source is a `TableDataSource`."""
    if not isinstance(source, TableDataSource):
        raise PipelineError(
            "`source` must be a source of tables, such as `ParquetDataSource(paths)`; got "
            f"{type(source).__name__}: {source!r}."
        )


class GroupIterator(DatasetIterator[T]):
    """Iterates over rows a group at a time; its position is a group and the number of its rows that came."""

    def __init__(self):
        super().__init__()
        self._group = 0
        self._row = 0
        self._decoded: tuple[int, Any] | None = None  # the group that was read last

    def _decode(self, number: int) -> Any:
        """The columns of a group."""
        raise NotImplementedError

    def _read(self, number: int) -> Any:
        """The same, with only one group in memory at a time."""
        if self._decoded is None or self._decoded[0] != number:
            self._decoded = None
            self._decoded = number, self._decode(number)
        return self._decoded[1]

    def close(self) -> None:
        super().close()
        self._decoded = None


class TableBatches(IterDataset[dict[str, Any]]):
    """The rows of a table in order, as batches of columns, without a Python object for a row or a number.

    Other values (strings, lists, structs with nulls) are in arrays of objects.

    >>> from headrace.sources import ParquetDataSource, write_parquet
    >>> paths = write_parquet([{"x": i} for i in range(4)], folder / "a.parquet")
    >>> list(TableBatches(ParquetDataSource(paths), batch_size=3))
    [{'x': array([0, 1, 2])}, {'x': array([3])}]

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        batch_size: How many rows a batch has.
        drop_remainder: Whether to drop a smaller batch at the end.
    """

    def __init__(self, source: TableDataSource, batch_size: int = 1024, *, drop_remainder: bool = False):
        super().__init__()
        check_table(source)
        check_count("batch_size", batch_size, least=1)
        self._source = source
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder

    def __iter__(self) -> "TableBatchIterator":
        return TableBatchIterator(self._source, self._batch_size, drop_remainder=self._drop_remainder)


class TableBatchIterator(GroupIterator[dict[str, Any]]):
    """Cuts groups of rows into batches."""

    def __init__(self, source: TableDataSource, batch_size: int, *, drop_remainder: bool):
        super().__init__()
        self._source = source
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._lengths: list[int] = np.diff(source.group_ends, prepend=0).tolist()
        self._starts: list[int] = [0, *source.group_ends.tolist()]

    def _decode(self, number: int) -> dict[str, Any]:
        return self._source.read_group(number)

    def __next__(self) -> dict[str, Any]:
        self._assert_not_closed()
        left = self._starts[-1] - self._starts[self._group] - self._row
        if left <= 0 or (left < self._batch_size and self._drop_remainder):
            self._decoded = None
            raise StopIteration
        group = self._group
        row = self._row
        pieces = []
        needed = min(self._batch_size, left)
        while needed:
            if row == self._lengths[group]:
                group = group + 1
                row = 0
            end = min(row + needed, self._lengths[group])
            pieces.append(trees.tree_map(lambda leaf, a=row, b=end: leaf[a:b], self._read(group)))
            needed = needed - (end - row)
            row = end
        self._group, self._row = (group, row) if row < self._lengths[group] else (group + 1, 0)
        return trees.tree_map(lambda *leaves: np.concatenate(leaves), *pieces)

    def get_state(self) -> dict[str, Any]:
        return {"group": self._group, "row_in_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        group, row = numbers_in(state, "batches of a table", "group", "row_in_group")
        count = len(self._lengths)
        if not (0 <= group < count and 0 <= row < self._lengths[group]) and (group, row) != (count, 0):
            raise StateError(
                f"The state is at row {row} of group {group}, but {self._source!r} has {count} groups. The state "
                "was saved with different files, columns or filters."
            )
        self._group = group
        self._row = row


def shuffled_groups(source: TableDataSource, *, window_size: int, seed: int) -> MapDataset[dict[str, Any]]:
    """The rows of a table in a random order that decodes each group of rows once in an epoch.

    The groups are shuffled, and then the rows within windows: whole groups with up to `window_size` rows together, or
    parts of a larger group. Each epoch has another order. The groups of two windows are in memory.

    >>> from headrace.sources import ParquetDataSource, write_parquet
    >>> source = ParquetDataSource(write_parquet([{"x": i} for i in range(4)], folder / "a.parquet", row_group_rows=2))
    >>> sorted(row["x"].item() for row in shuffled_groups(source, window_size=4, seed=1))
    [0, 1, 2, 3]

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        window_size: How many rows are shuffled together, at most.
        seed: Determines the order.
    """
    check_table(source)
    op = GroupShuffle(Source(source), source.group_ends, window_size, seed)
    if source.element_spec is not None:
        _check_cache(source, op.window_size)
    return MapDataset._of(op)


def _check_cache(source: TableDataSource, window_size: int) -> None:
    """Raises if the groups of two windows, which a batch may touch, do not fit in the cache."""
    lengths = np.diff(source.group_ends, prepend=0)
    rows = min(int(lengths.sum()), 2 * max(window_size, int(lengths.max(initial=0))))
    specs = trees.leaves(source.element_spec)
    needed = rows * sum(np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape)) for spec in specs)
    if needed > source.cache_bytes:
        raise PipelineError(
            f"Two windows of {window_size} rows span groups of up to {rows} rows, of {needed} bytes, but the "
            f"cache of {type(source).__name__} has {source.cache_bytes}, so each batch would decode them again. "
            f"Set `cache_bytes={needed}`, select fewer `columns`, or use a smaller `window_size`."
        )
