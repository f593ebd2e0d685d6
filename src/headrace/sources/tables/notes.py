"""Elements of Parquet and Arrow files as they were written, by the note in the schema's metadata.

The metadata `headrace` is JSON, `{"element": note}`. Its notes are those of `headrace.sources.notes`, with these for
what the rows of a column have in common; a column without one is as Arrow gives it, and a null is None.

    {"a": …}                              a dict, with the notes on some of its values
    ["array", dtype, [null, 4], …]        an array in lists of lists, the sizes that all of the first rows have, and the
                                          note on its items if they are objects; the dtype if it is not that of Arrow
    ["list", …]  ["tuple", …]             a list, and the note on its items
    ["fields", […, …]]                    a tuple in a struct with the fields 0, 1 and so on
    ["datetime64[s]"]                     a scalar of NumPy
    "python"                              an object as of `to_pylist`, such as a date
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import DataError
from headrace.sources.notes import BARE, RECORD, dtype_named
from headrace.sources.tables.values import arrow, extents, spec_of, values_of

KEY = b"headrace"
ARRAY, LIST, TUPLE, FIELDS, PYTHON = "array", "list", "tuple", "fields", "python"
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
        raise DataError(f"{path} has metadata {KEY.decode()!r} that Headrace did not write: {str(found)[:200]}.") from e


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
    told = [(path, one or Notes({})) for path, one in zip(paths, notes, strict=True)]
    first_path, first = told[0]
    for path, one in told if len({id(one) for one in notes}) > 1 else []:
        names = first.columns.keys() | one.columns.keys()
        other = [name for name in names if gist(first.columns.get(name)) != gist(one.columns.get(name))]
        if other or first.is_bare != one.is_bare:
            what = f"column {other[0]!r}" if other else "elements"
            raise DataError(
                f"{path} and {first_path} were written from different {what}: their metadata {KEY.decode()!r} differs. "
                "Open them one by one, or write one of them again."
            )
    return None if None in notes else [one for _, one in told]


def gist(note: Any) -> Any:
    """A note without what may differ between files of the same elements."""
    if isinstance(note, dict):
        return {name: found for name, one in note.items() if (found := gist(one)) is not None} or None
    if not isinstance(note, list):
        return note
    return [ARRAY, note[1], len(note[2]), gist(note[3])] if note[0] == ARRAY else list(map(gist, note))


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
        return _dicts(array, note or {})
    spec = spec_of(array.type, nulls=False)
    return values_of(array, None) if spec is None else _numbers(array, spec.dtype)


def _numbers(array: Any, dtype: np.dtype) -> Any:
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    there = iter(_numbers(array.drop_null(), dtype))
    return [next(there) if valid else None for valid in array.is_valid().to_pylist()]


def _dicts(array: Any, notes: dict[str, Any]) -> list[Any]:
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
    begins, items = [], array
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
            begin, end = int(offsets[begin]), int(offsets[end])
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
