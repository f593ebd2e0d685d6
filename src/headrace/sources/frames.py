"""Tables in memory as sources: DataFrames and Series of pandas and polars, tables and columns of pyarrow.

Elements are those of the same table in a Parquet file: a number or time is a NumPy scalar (a float, if a column of ints
has missing values), a list of numbers an array, a category its value, a string `str`, and a value that is missing None.
Columns stay where they are, in NumPy's or Arrow's memory, and rows are gathered from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import PipelineError
from headrace.sources.tables import arrow, has_nulls, spec_of, taken, values_of, without_views
from headrace.storage.indices import checked_index, checked_indices
from headrace.storage.memory import ArrayDataSource
from headrace.trees import ShapeDtypeStruct


def frame_source(frame: Any) -> "ArrayDataSource | FrameRows":
    """The rows of a table, as dicts; the values of a single column."""
    convert = {"pandas": _of_pandas, "polars": _of_polars}.get(type(frame).__module__.partition(".")[0], _of_arrow)
    if not hasattr(frame, "columns"):
        column = convert(frame)
        return ArrayDataSource(column) if _is_numbers(column) else FrameRows({None: column}, named=False)
    columns = {name: convert(column) for name, column in _columns(frame).items()}
    return ArrayDataSource(columns) if all(map(_is_numbers, columns.values())) else FrameRows(columns, named=True)


def _columns(frame: Any) -> dict[Any, Any]:
    """The columns of a table, by name."""
    names = list(frame.schema.names if hasattr(frame, "itercolumns") else frame.columns)
    if len(set(names)) < len(names):
        twice = sorted({str(name) for name in names if names.count(name) > 1})
        raise PipelineError(f"Several columns of the table have the same name: {', '.join(twice)}. Rename them.")
    series = frame.itercolumns() if hasattr(frame, "itercolumns") else (frame[name] for name in names)
    return dict(zip(names, series, strict=True))


def _of_pandas(series: Any) -> Any:
    """A column in NumPy's memory, or in Arrow's if NumPy has no such type."""
    kind = type(series.dtype).__name__
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufcmM":
        return series.to_numpy()
    if kind == "PeriodDtype":  # Arrow would take them for ints
        return series.dt.to_timestamp().to_numpy()
    if kind == "SparseDtype":
        return _of_pandas(series.sparse.to_dense())
    try:
        return _of_arrow(arrow().array(series, from_pandas=True))
    except arrow().ArrowException:  # Python objects of several types, or that Arrow does not know
        values = series.to_numpy(object, copy=True)
        values[series.isna().to_numpy()] = None
        return values


def _of_polars(series: Any) -> Any:
    if str(series.dtype) != "Object":
        return _of_arrow(series.to_arrow())
    values = np.empty(len(series), object)
    values[:] = series.to_list()
    return values


def _of_arrow(column: Any) -> Any:
    """A column of numbers as NumPy arrays; any other as it is, in one chunk if that is possible."""
    column = _joined(column)
    spec = spec_of(column.type, nulls=any(map(has_nulls, getattr(column, "chunks", [column]))))
    return _of_lists(column) if spec is None else values_of(column, spec)


def _of_lists(column: Any) -> Any:
    """A column of lists of numbers as an array, if all are equally long; any other column as it is."""
    pa = arrow()
    if not isinstance(column, pa.ListArray | pa.LargeListArray) or not len(column) or column.null_count:
        return column
    lengths = np.diff(column.offsets.to_numpy())
    items = column.flatten()
    if has_nulls(items) or (lengths != lengths[0]).any():
        return column
    spec = spec_of(items.type, nulls=False)
    is_number = isinstance(spec, ShapeDtypeStruct) and not spec.shape
    return values_of(items, spec).reshape(len(column), lengths[0]) if is_number else column


def _joined(column: Any) -> Any:
    plain = without_views(column.type)
    column = column if plain == column.type else column.cast(plain)
    if not hasattr(column, "chunks"):
        return column
    try:
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    except arrow().ArrowInvalid:  # more text than offsets of 32 bits can tell
        return column


def _is_numbers(column: Any) -> bool:
    """Whether rows of a column are NumPy arrays or scalars, or dicts of these."""
    return isinstance(column, dict) or (isinstance(column, np.ndarray) and not column.dtype.hasobject)


class FrameRows:
    """The rows of a table of which some columns are not numbers."""

    def __init__(self, columns: dict[Any, Any], *, named: bool):
        self._columns = columns
        self._named = named
        self._length = len(trees.leaves(next(iter(columns.values())))[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checked_index(index, len(self), "rows")])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The rows at these indices, gathered column by column."""
        columns = self._taken(checked_indices(indices, len(self), "rows"))
        if not self._named:
            return list(columns[None])
        names = tuple(columns)
        rows = zip(*map(_rows, columns.values()), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def __getbatch__(self, indices: np.ndarray) -> Any:
        """The rows at these indices, stacked without making them."""
        columns = self._taken(indices)
        if not self._named:
            return trees.stack(list(columns[None]))
        return {
            name: trees.stack_columns(columns[name])
            if _is_numbers(columns[name])
            else trees.stack(list(columns[name]), f"[{name!r}]")
            for name in trees.sorted_keys(columns)
        }

    def _taken(self, places: np.ndarray) -> dict[Any, Any]:
        return {name: _taken(column, places) for name, column in self._columns.items()}

    def __repr__(self) -> str:
        names = f", columns={list(self._columns)}" if self._named else ""
        return f"FrameRows(length={len(self)}{names})"


def _taken(column: Any, places: np.ndarray) -> Any:
    """The values of a column at these places, as NumPy arrays."""
    if isinstance(column, np.ndarray | dict):
        found = taken({"": column}, places)[""]
        return found if _is_numbers(column) else trees.copy_tree(found)  # the table keeps its objects
    rows = column.take(arrow().array(places))
    return values_of(rows.combine_chunks() if hasattr(rows, "chunks") else rows, None)


def _rows(column: Any) -> Any:
    """The values of a column one by one; those of a struct are dicts."""
    if not isinstance(column, dict):
        return column
    return (dict(zip(column, row, strict=True)) for row in zip(*map(_rows, column.values()), strict=True))
