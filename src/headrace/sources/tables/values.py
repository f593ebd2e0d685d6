"""Arrow columns as NumPy arrays: their shapes and dtypes, their values, and whether they can be read safely."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from headrace._utils import trees
from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import optional

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
    keys, items = values_of(array.keys, None), values_of(array.items, None)
    for i, begin, end in extents(array):
        objects[i] = list(zip(keys[begin:end], items[begin:end], strict=True))
    return objects


def _dicts(array: Any) -> np.ndarray:
    objects, names = np.empty(len(array), object), [field.name for field in array.type]
    rows = zip(*(values_of(child, None) for child in array.flatten()), strict=True)
    for i, (valid, row) in enumerate(zip(array.is_valid().to_pylist(), rows, strict=True)):
        if valid:
            objects[i] = dict(zip(names, row, strict=True))
    return objects


def _scalars(array: Any) -> np.ndarray:
    objects, types, kind = np.empty(len(array), object), arrow().types, array.type
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
    pa, types = arrow(), arrow().types
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
