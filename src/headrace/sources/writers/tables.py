"""Files of tables: Parquet, Arrow and CSV."""

import csv as text_csv
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.sources.writers.shards import File, Progress, Writing, write

ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 64 << 20


def write_parquet(
    records: Any,
    path: str | os.PathLike,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
    schema: Any = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    **options: Any,
) -> list[str]:
    """Writes records to Parquet files, and returns their paths; other arguments as for `write_array_record`.

    A dict becomes a row, an array in it a list, and a dict in it a struct; other records become the column `record`.

    Args:
        schema: The pyarrow schema; by default that of the first row group.
        row_group_rows: The most rows in a row group, which also ends at 64 MiB.
        options: Arguments of `pyarrow.parquet.ParquetWriter`; pages have checksums by default.
    """
    parquet = optional("pyarrow.parquet", extra="parquet")
    options = {"write_page_checksum": True} | options
    open_writer = functools.partial(parquet.ParquetWriter, **options)
    make = _maker(open_writer, parquet.read_schema, _no_columns, schema, row_group_rows)
    kind = f"Parquet {row_group_rows} {sorted(options.items())} {schema}"
    how: Writing = {"num_shards": num_shards, "overwrite": overwrite, "job": job, "progress": progress}
    return write(records, path, make, kind, **how)


def write_arrow(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to Arrow IPC (Feather) files, as `write_parquet` does."""
    ipc = optional("pyarrow.ipc", extra="parquet")

    def schema_of(path: str) -> Any:
        with ipc.open_file(path) as file:
            return file.schema

    return write(records, path, _maker(ipc.new_file, schema_of, _no_columns), "Arrow", **how)


def write_csv(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to CSV files, as `write_parquet` does; each begins with the names of the columns."""
    csv, arrow = optional("pyarrow.csv", extra="parquet"), optional("pyarrow", extra="parquet")

    def header_of(first: str | None) -> Any:
        """A schema for a file without rows, with the columns of the first shard or of the source's elements."""
        if first is not None:
            with open(first, encoding="utf-8", newline="") as file:
                names = next(text_csv.reader(file))
        else:
            spec = getattr(records, "element_spec", None) if hasattr(type(records), "__getcolumns__") else None
            names = list(spec) if isinstance(spec, Mapping) else []
        if not names:
            raise PipelineError(
                "There are no records, so the names of the columns, with which a CSV file begins, are unknown. Write "
                "Parquet, or leave the file out."
            )
        return arrow.schema([(name, arrow.string()) for name in names])

    return write(records, path, _maker(csv.CSVWriter, lambda path: None, header_of), "CSV", **how)


def _maker(
    open_writer: Callable[[str, Any], Any],
    schema_of: Callable[[str], Any],
    header_of: Callable[[str | None], Any],
    schema: Any = None,
    row_group_rows: int = ROW_GROUP_ROWS,
) -> Callable[[str, str | None], File]:
    """Opens files to write to; without a schema, all shards have that of the first.

    Args:
        open_writer: Opens pyarrow's writer for a path and a schema.
        schema_of: The schema of a file; None if it does not say.
        header_of: The schema for a file without rows, given the first shard.
    """

    def make(partial: str, first: str | None) -> File:
        found = schema_of(first) if first is not None and schema is None else schema
        return _TableFile(partial, open_writer, found or None, row_group_rows, lambda: header_of(first))

    return make


def _no_columns(first: str | None) -> Any:
    return optional("pyarrow", extra="parquet").schema([])


class _TableFile:
    """Collects rows into row groups; the first group determines the schema, unless one is given."""

    def __init__(self, path: str, open_writer: Any, schema: Any, most_rows: int, empty_schema: Callable[[], Any]):
        self._arrow = optional("pyarrow", extra="parquet")
        self._path, self._open_writer, self._schema = path, open_writer, schema
        self._most_rows, self._empty_schema = most_rows, empty_schema
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def write(self, record: Any) -> None:
        row = record if isinstance(record, Mapping) else {"record": record}
        if not row or not all(isinstance(name, str) for name in row):
            raise PipelineError(f"A row must be a nonempty dict with text as keys; got {str(record)[:200]}.")
        if self._rows and row.keys() != self._rows[0].keys():
            raise PipelineError(f"A row has the columns {sorted(row)}, but those before it {sorted(self._rows[0])}.")
        self._rows.append(row)
        self._num_bytes += sum(_num_bytes(value) for value in row.values())
        if len(self._rows) >= self._most_rows or self._num_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        names = list(self._rows[0]) if self._schema is None else self._schema.names
        if self._rows[0].keys() != set(names):
            raise PipelineError(f"A row has the columns {sorted(self._rows[0])}, but the schema {sorted(names)}.")
        columns = [self._column(name) for name in names]
        if self._schema is None:
            self._schema = self._arrow.schema(zip(names, [column.type for column in columns], strict=True))
        table = self._arrow.Table.from_arrays(columns, schema=self._schema)
        try:
            self._open().write_table(table, len(self._rows))
        except self._arrow.ArrowException as e:
            shown = ", ".join(f"{field.name} ({field.type})" for field in self._schema)
            raise PipelineError(f"This format cannot hold one of the columns {shown}: {e}.") from e
        self._rows, self._num_bytes = [], 0

    def _column(self, name: str) -> Any:
        values = [row[name] for row in self._rows]
        kind = None if self._schema is None else self._schema.field(name).type
        try:
            column = _arrow_array(self._arrow, values)
            return column if kind is None or column.type == kind else column.cast(kind)
        except (self._arrow.ArrowException, TypeError, ValueError, OverflowError) as e:
            is_null = kind is not None and self._arrow.types.is_null(kind)
            why = ", and all its values are null" if is_null else ""
            raise PipelineError(
                f"Column {name!r} cannot be written as {kind or 'one type'}: {str(e).rstrip('.')}. The first row group "
                f"determines the types{why}: to choose them, call `write_parquet` and give `schema`."
            ) from e

    def _open(self) -> Any:
        if self._writer is None:
            schema = self._empty_schema() if self._schema is None else self._schema
            self._writer = self._open_writer(self._path, schema)
        return self._writer

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._open().close()


def _num_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes | str) else 8


def _arrow_array(arrow: Any, values: list[Any]) -> Any:
    """Values as a pyarrow array: arrays as lists of their dtype, dicts as structs."""
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return arrow.StructArray.from_arrays([_arrow_array(arrow, [v[k] for v in values]) for k in first], list(first))
    if isinstance(first, np.generic) and all(type(v) is type(first) for v in values):
        return arrow.array(np.array(values, first.dtype if first.dtype.kind not in "SU" else object))
    arrays = [v for v in values if v is not None]
    if not arrays or not all(_is_like(v, arrays[0]) for v in arrays):
        return arrow.array([v.tolist() if isinstance(v, np.ndarray) else v for v in values])
    if len(arrays) == len(values):
        return _lists(arrow, arrays, arrays[0].dtype, arrays[0].ndim)
    kind = arrow.from_numpy_dtype(arrays[0].dtype)
    for _ in range(arrays[0].ndim):
        kind = arrow.list_(kind)
    return arrow.array([None if v is None else v.tolist() for v in values], kind)


def _is_like(value: Any, first: Any) -> bool:
    """Whether both are arrays of numbers that fit into one column of lists."""
    if not isinstance(first, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    return first.dtype.kind in "iufb" and first.ndim > 0 and (value.dtype, value.ndim) == (first.dtype, first.ndim)


def _lists(arrow: Any, arrays: list[np.ndarray], dtype: np.dtype, ndim: int) -> Any:
    """Arrays of one dtype and number of axes as lists, lists of lists, and so on."""
    if ndim == 1:
        inner = arrow.array(np.concatenate([np.empty(0, dtype), *arrays]))
    elif len({array.shape for array in arrays}) == 1:
        stacked = np.concatenate(arrays)
        inner = _lists(arrow, [stacked.reshape(-1, *stacked.shape[2:])], dtype, ndim - 1).flatten()
        inner = arrow.ListArray.from_arrays(_offsets(arrow, [stacked.shape[1]] * len(stacked)), inner)
    else:
        inner = _lists(arrow, [part for array in arrays for part in array], dtype, ndim - 1)
    return arrow.ListArray.from_arrays(_offsets(arrow, [len(array) for array in arrays]), inner)


def _offsets(arrow: Any, lengths: list[int]) -> Any:
    return arrow.array(np.cumsum([0, *lengths], dtype=np.int32))
