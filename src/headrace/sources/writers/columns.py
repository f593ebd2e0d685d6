"""Columns of Arrow made from the values of rows, with the note on each (see `headrace.sources.tables`).

A column has one type. Values that would come back as something else raise ValueError; those that Arrow refuses, one of
its own errors.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import optional
from headrace.sources.notes import array_of, check_name, dtype_name
from headrace.sources.tables import ARRAY, FIELDS, LIST, PYTHON, TUPLE, shape_of_lists

MOST_ITEMS = (1 << 31) - 1  # in the lists of a column
NONE = type(None)

arrow = functools.partial(optional, "pyarrow", extra="parquet")


class NotedColumn(NamedTuple):
    """Values as an Arrow array, and the note on them."""

    array: Any
    note: Any = None


def column_of(values: Sequence[Any], kind: Any = None, note: Any = None) -> NotedColumn:
    """Values as a column.

    Args:
        values: One for each row.
        kind: The Arrow type of the rows before.
        note: The note on them.
    """
    types = set(map(type, values))
    words = set(map(_word_for, types - {NONE}))
    if not words:
        return NotedColumn(arrow().nulls(len(values), kind), note)
    if kind is not None and arrow().types.is_null(kind):
        raise ValueError("there are other values")
    if words <= _NUMBERS:
        column = _numbers(values, types, kind)
    elif len(words) > 1:
        raise ValueError(f"it has values of the kinds {', '.join(sorted(words))}")
    else:
        column = _MAKERS.get(words.pop(), _objects)(values, kind, note)
    if kind is None or column.array.type == kind:
        return column
    return column._replace(array=column.array.cast(kind))  # they differ in the names of lists' items, or in a unit


def converted(values: Sequence[Any], kind: Any) -> NotedColumn:
    """Values as a column of a type, or of one that fits them, even if they come back as something else."""
    pa = arrow()
    if kind is not None and isinstance(kind, pa.FixedShapeTensorType):
        return NotedColumn(_tensors(values, kind))
    try:
        column = column_of(values)
    except (ValueError, pa.ArrowException):
        column = NotedColumn(pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values]))
    return column if kind in (None, column.array.type) else column._replace(array=column.array.cast(kind))


def _tensors(values: Sequence[Any], kind: Any) -> Any:
    arrays = [None if value is None else np.asarray(value) for value in values]
    if other := {array.shape for array in arrays if array is not None and array.shape != tuple(kind.shape)}:
        raise ValueError(f"it has arrays of the shape {other.pop()}")
    flat = converted([array if array is None else array.reshape(-1) for array in arrays], kind.storage_type)
    return arrow().ExtensionArray.from_storage(kind, flat.array)


_NUMBERS = frozenset(("bool", "int", "float", "scalar"))
_TIMES = frozenset((np.datetime64, np.timedelta64))  # their dtypes have units


@functools.lru_cache(maxsize=1024)
def _word_for(value: type) -> str:
    """What values of a class are in a table."""
    for word, base in (
        ("str", str),
        ("bytes", bytes | bytearray | memoryview),
        ("scalar", np.generic),
        ("bool", bool),
        ("int", int),
        ("float", float),
        ("array", np.ndarray),
        ("dict", Mapping),
        ("list", list),
    ):
        if issubclass(value, base):
            return word
    if value is tuple:
        return "tuple"
    return "array" if hasattr(value, "__array__") or hasattr(value, "__array_interface__") else value.__name__


def _numbers(values: Sequence[Any], types: set[type], kind: Any) -> NotedColumn:
    """Numbers; Python's take the dtype of NumPy's among them, if that holds them exactly."""
    python = {one for one in types - {NONE} if not issubclass(one, np.generic)}
    if any(issubclass(one, bool) for one in python) and len(python) > 1:
        raise ValueError("it has bools and other numbers")
    if python == types - {NONE}:
        return NotedColumn(_python_numbers(values, kind))
    if len(types) == 1 and not types & _TIMES:
        return _of_numpy(np.array(values, values[0].dtype), kind)
    dtypes = {value.dtype for value in values if isinstance(value, np.generic)}
    if len(dtypes) > 1:
        raise ValueError(f"it has values of {' and '.join(sorted(map(str, dtypes)))}")
    (dtype,) = dtypes
    if python and not all(_holds(dtype, value) for value in values):
        raise ValueError(f"it has values that {dtype} does not hold exactly")
    zero = np.zeros((), dtype)[()]
    filled = np.array([zero if value is None else value for value in values], dtype)
    return _of_numpy(filled, kind, [value is None for value in values])


def _of_numpy(data: np.ndarray, kind: Any, missing: list[bool] | None = None) -> NotedColumn:
    """A one-axis array as a column."""
    dtype = data.dtype
    if dtype.kind not in "biufmM":
        raise ValueError(f"it has values of {dtype}, for which Arrow has no type")
    mask = None if missing is None else np.array(missing)
    array = arrow().array(data.astype(dtype.newbyteorder("="), copy=False), mask=mask)
    if kind is not None and array.type != kind and dtype.kind not in "mM":
        raise ValueError(f"it has values of {dtype}")
    return NotedColumn(array, [dtype_name(dtype)] if dtype.kind in "mM" or not dtype.isnative else None)


def _python_numbers(values: Sequence[Any], kind: Any) -> Any:
    if kind is not None and arrow().types.is_floating(kind):
        dtype = np.dtype(kind.to_pandas_dtype())
        if not all(_holds(dtype, value) for value in values):
            raise ValueError("it has values that this does not hold exactly")
    elif kind is not None and any(isinstance(value, float) for value in values):
        raise ValueError("it has floats")
    return arrow().array(values, kind)


def _holds(dtype: np.dtype, value: Any) -> bool:
    """Whether a number keeps its value and its kind in a dtype."""
    if value is None or isinstance(value, np.generic):
        return True
    allowed = "b" if isinstance(value, bool) else "iuf" if isinstance(value, int) else "f"
    if dtype.kind not in allowed:
        return False
    with np.errstate(over="ignore"):
        held = dtype.type(value).item()
    return held == value or held != held


def _texts(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    return NotedColumn(_of_type(arrow().array(values, arrow().string()), kind, "text"))


def _bytes(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    plain = [value if value is None else bytes(value) for value in values]
    return NotedColumn(_of_type(arrow().array(plain, arrow().binary()), kind, "bytes"))


def _of_type(array: Any, kind: Any, what: str) -> Any:
    if kind is not None and array.type != kind:
        raise ValueError(f"it has {what}")
    return array


def _objects(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    """Values of other classes, such as dates, if Arrow gives them back as they are."""
    array = arrow().array(values, kind)
    found = array.to_pylist()
    if found != list(values) or list(map(type, found)) != list(map(type, values)):
        other = next(
            value for value, one in zip(values, found, strict=True) if value != one or type(value) is not type(one)
        )
        raise ValueError(f"values of the class {type(other).__name__} would come back as something else")
    return NotedColumn(array, PYTHON)


def _dicts(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    first = next(value for value in values if value is not None)
    names = list(first)
    notes = note or {}
    if kind is not None:
        _check_nested(kind, arrow().types.is_struct, "dicts")
        names = [field.name for field in kind]
    for value in values:
        if value is not None and value.keys() != set(names):
            raise ValueError(f"it has dicts with the keys {sorted(value, key=str)} and with {sorted(names)}")
    for name in names:
        check_name(name)
    kinds = {name: None if kind is None else kind.field(name).type for name in names}
    parts = {
        name: column_of([value if value is None else value[name] for value in values], kinds[name], notes.get(name))
        for name in names
    }
    found = {name: part.note for name, part in parts.items() if part.note is not None}
    return NotedColumn(_structs(values, {name: part.array for name, part in parts.items()}), found)


def _structs(values: Sequence[Any], arrays: Mapping[str, Any]) -> Any:
    if not arrays:
        return arrow().array([value if value is None else {} for value in values], arrow().struct([]))
    mask = arrow().array([value is None for value in values])
    return arrow().StructArray.from_arrays(list(arrays.values()), list(arrays), mask=mask)


def _lists(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    items = [item for value in values if value is not None for item in value]
    if kind is not None:
        _check_nested(kind, arrow().types.is_list, "lists")
    part = column_of(items, None if kind is None else kind.value_type, note[1] if note else None)
    lengths = [0 if value is None else len(value) for value in values]
    return NotedColumn(_listed(part.array, lengths, [value is None for value in values]), [LIST, part.note])


def _tuples(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    """Tuples as lists if all items are of one kind, otherwise as structs of their items."""
    if note is None:
        words = {_word_for(one) for value in values if value is not None for one in set(map(type, value)) - {NONE}}
        lengths = {len(value) for value in values if value is not None}
        if len(words) <= 1 or len(lengths) > 1:
            try:
                return _tuples_as_lists(values, kind, note)
            except (ValueError, arrow().ArrowException):
                if len(lengths) > 1:
                    raise
    elif note[0] == TUPLE:
        return _tuples_as_lists(values, kind, note)
    return _tuples_as_fields(values, kind, note)


def _tuples_as_lists(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    column = _lists(values, kind, note)
    return column._replace(note=[TUPLE, column.note[1]])


def _tuples_as_fields(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    lengths = {len(value) for value in values if value is not None}
    if len(lengths) > 1 or (note is not None and lengths != {len(note[1])}):
        raise ValueError(f"it has tuples of {' and '.join(map(str, sorted(lengths)))} items")
    (size,) = lengths
    kinds = [None] * size if kind is None else [field.type for field in kind]
    notes = [None] * size if note is None else note[1]
    parts = [
        column_of([value if value is None else value[i] for value in values], kinds[i], notes[i]) for i in range(size)
    ]
    array = _structs(values, {str(i): part.array for i, part in enumerate(parts)})
    return NotedColumn(array, [FIELDS, [part.note for part in parts]])


def _arrays(values: Sequence[Any], kind: Any, note: Any) -> NotedColumn:
    found = [value if type(value) is np.ndarray else _array_or_none(value) for value in values]
    arrays = [array for array in found if array is not None]
    if all(array.ndim == 0 for array in arrays):
        return column_of([array if array is None else array[()] for array in found], kind, note)
    dtypes = {array.dtype for array in arrays}
    axes = {array.ndim for array in arrays}
    if len(dtypes) > 1 or len(axes) > 1:
        raise ValueError(
            f"it has arrays of {' and '.join(sorted(map(str, dtypes)))}, of {' and '.join(map(str, sorted(axes)))} axes"
        )
    (dtype,), (num_axes,) = dtypes, axes
    _, name, hint, inner = note or (ARRAY, None, _common_shape(arrays), None)
    if note is not None and (name, len(hint)) != (_noted_dtype(dtype), num_axes):
        raise ValueError(f"it has arrays of {dtype}, of {num_axes} axes")
    for shape in {array.shape for array in arrays}:
        if shape_of_lists(shape, hint) != shape:
            raise ValueError(f"an array of the shape {shape} has no values, and would come back in another shape")
    part = _items_of(arrays, dtype, _innermost(kind, num_axes), inner)
    missing = [array is None for array in found]
    nested = _nested(part.array, [(0,) * num_axes if array is None else array.shape for array in found], missing)
    return NotedColumn(nested, [ARRAY, _noted_dtype(dtype), hint, part.note if dtype.kind == "O" else None])


def _array_or_none(value: Any) -> np.ndarray | None:
    return None if value is None else array_of(value, "A value")


def _noted_dtype(dtype: np.dtype) -> str | None:
    """The name of a dtype, if it does not follow from the type of Arrow."""
    return "object" if dtype.kind == "O" else dtype_name(dtype) if dtype.kind in "USmM" or not dtype.isnative else None


def _common_shape(arrays: Sequence[np.ndarray]) -> list[int | None]:
    """The sizes that all arrays have in common, None where they differ."""
    sizes = zip(*{array.shape for array in arrays}, strict=True)
    return [size.pop() if len(size := set(found)) == 1 else None for found in sizes]


def _innermost(kind: Any, num_axes: int) -> Any:
    """The type of the items in lists of lists."""
    if kind is None:
        return None
    for _ in range(num_axes):
        _check_nested(kind, arrow().types.is_list, "arrays")
        kind = kind.value_type
    return kind


def _check_nested(kind: Any, is_such: Callable[[Any], bool], what: str) -> None:
    if not is_such(kind):
        raise ValueError(f"it has {what}")


def _items_of(arrays: Sequence[np.ndarray], dtype: np.dtype, kind: Any, note: Any) -> NotedColumn:
    flat = [array.reshape(-1) for array in arrays]
    if dtype.kind in "USO":
        return column_of([item for array in flat for item in array.tolist()], kind, note)
    return _of_numpy(np.concatenate(flat), kind)


def _nested(items: Any, shapes: Sequence[tuple[int, ...]], missing: list[bool]) -> Any:
    """Items as lists of these shapes: lists of lists, and so on."""
    for axis in range(len(shapes[0]) - 1, 0, -1):
        lengths = [(shape[axis], math.prod(shape[:axis])) for shape in shapes]
        items = _listed(items, np.repeat(*np.array(lengths).T))
    return _listed(items, [shape[0] for shape in shapes], missing)


def _listed(items: Any, lengths: Any, missing: list[bool] | None = None) -> Any:
    ends = np.cumsum([0, *lengths] if isinstance(lengths, list) else np.append(0, lengths), dtype=np.int64)
    if ends[-1] > MOST_ITEMS:
        raise ValueError(f"its lists have {ends[-1]} items, but at most {MOST_ITEMS} fit into a column")
    mask = arrow().array(missing) if missing is not None and any(missing) else None
    return arrow().ListArray.from_arrays(arrow().array(ends.astype(np.int32)), items, mask=mask)


_MAKERS: dict[str, Callable[[Sequence[Any], Any, Any], NotedColumn]] = {
    "str": _texts,
    "bytes": _bytes,
    "dict": _dicts,
    "list": _lists,
    "tuple": _tuples,
    "array": _arrays,
}
