"""Files of tables: Parquet and Arrow."""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.errors.suggestions import explains_keywords
from headrace.sources.notes import PLAIN, wrapped
from headrace.sources.tables import Notes, comparable_note, notes_in
from headrace.sources.writers.columns import NotedColumn, arrow, column_of, converted
from headrace.sources.writers.shards import Progress, Writing, write

ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_BYTES = 64 << 20


@explains_keywords
def write_parquet(
    records: Any,
    path: str | os.PathLike,
    *,
    num_shards: int = 1,
    overwrite: bool = False,
    job: str | None = None,
    progress: Progress | None = None,
    plain: bool = False,
    schema: Any = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    **options: Any,
) -> list[str]:
    """Writes records to Parquet files, and returns their paths; other arguments as for `write_array_record`.

    A dict becomes a row, an array in it a list (of lists), and a dict in it a struct; other records become the column
    `record`. The metadata `headrace` says what they were, so that `ParquetDataSource` gives them back equal.

    >>> from headrace import open
    >>> paths = write_parquet([{"x": 1, "y": np.zeros(2)}, {"x": 2, "y": np.ones(2)}], folder / "a.parquet")
    >>> open(paths[0])[1]
    {'x': np.int64(2), 'y': array([1., 1.])}

    Args:
        schema: The pyarrow schema, to which values are converted; by default that of the first row group.
        row_group_rows: The most rows in a row group, which also ends at 64 MiB.
        options: Arguments of `pyarrow.parquet.ParquetWriter`; pages have checksums by default.
    """
    parquet = optional("pyarrow.parquet", extra="parquet")
    options = {"write_page_checksum": True} | options
    open_writer = functools.partial(parquet.ParquetWriter, **options)
    table = TableWriter(open_writer, parquet.read_schema, schema=schema, plain=plain, row_group_rows=row_group_rows)
    kind = f"Parquet {row_group_rows} {sorted(options.items())} {schema} plain={plain}"
    how: Writing = {"num_shards": num_shards, "overwrite": overwrite, "job": job, "progress": progress}
    return write(records, path, table.open, kind, **how)


@explains_keywords
def write_arrow(records: Any, path: str | os.PathLike, *, plain: bool = False, **how: Unpack[Writing]) -> list[str]:
    """Writes records to Arrow IPC (Feather) files, as `write_parquet` does."""
    ipc = optional("pyarrow.ipc", extra="parquet")

    def schema_of(path: str) -> Any:
        with ipc.open_file(path) as file:
            return file.schema

    return write(records, path, TableWriter(ipc.new_file, schema_of, plain=plain).open, f"Arrow plain={plain}", **how)


class TableWriter:
    """How to write tables in some format; without a schema, all shards have that of the first.

    Args:
        open_writer: Opens pyarrow's writer, or one like it, for a path and a schema.
        schema_of: The schema of a file; None if it does not say.
        schema_without_rows: The schema for a file without rows, given the first shard.
        schema: A schema to which values are converted.
        plain: Whether to omit notes, and to convert values that do not fit their column.
        row_group_rows: The most rows in a row group.
        rows_only: Whether the format cannot say that elements were no dicts.
    """

    def __init__(
        self,
        open_writer: Callable[[str, Any], Any],
        schema_of: Callable[[str], Any],
        schema_without_rows: Callable[[str | None], Any] = lambda first: arrow().schema([]),
        *,
        schema: Any = None,
        plain: bool = False,
        row_group_rows: int = ROW_GROUP_ROWS,
        rows_only: bool = False,
    ):
        self.open_writer = open_writer
        self._schema_of = schema_of
        self.schema_without_rows = schema_without_rows
        self.schema = schema
        self.plain = plain
        self.row_group_rows = row_group_rows
        self.rows_only = rows_only
        self.found: Any = None  # the schema of the first shard

    def open(self, path: str, first: str | None) -> "TableFile":
        """Opens a file to write to, given the first shard."""
        if first is not None and self.found is None:
            self.found = self._schema_of(first)
        return TableFile(path, self, first, None if first is None else self.found)


class TableFile:
    """Collects rows into row groups; the first group determines the schema, unless the caller passes one."""

    def __init__(self, path: str, table: TableWriter, first: str | None, schema: Any):
        self._path = path
        self._table = table
        self._first = first
        self._converts = table.plain or table.schema is not None
        self._schema: Any = table.schema if table.schema is not None else schema or None
        notes = None if schema is None else notes_in(path, schema)
        self._notes = None if notes is None else notes.columns
        self._is_bare = None if notes is None else notes.is_bare
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def write(self, record: Any) -> None:
        row, is_bare = wrapped(record)
        if not row or not all(isinstance(name, str) for name in row):
            raise PipelineError(f"A row must be a nonempty dict with text as keys; got {str(record)[:200]}.")
        if self._is_bare is not is_bare and not self._table.plain:
            self._check_kind(is_bare)
        if self._rows and row.keys() != self._rows[0].keys():
            raise PipelineError(
                f"A row has the columns {sorted(row)}, but those before it have {sorted(self._rows[0])}. Give "
                "all rows the same columns in a `map`."
            )
        self._rows.append(row)
        self._num_bytes += sum(map(_num_bytes, row.values()))
        if len(self._rows) >= self._table.row_group_rows or self._num_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _check_kind(self, is_bare: bool) -> None:
        if is_bare and self._table.rows_only:
            raise PipelineError(
                f"A record is not a dict, and this format cannot record that. Write another format; or {PLAIN}."
            )
        if self._is_bare is not None:
            kinds = ("not a dict", "dicts") if is_bare else ("a dict", "not dicts")
            raise PipelineError(
                "A record is {}, but those before it are {}. Convert all records to one type in a `map`.".format(*kinds)
            )
        self._is_bare = is_bare

    def _flush(self) -> None:
        names = list(self._rows[0]) if self._schema is None else self._schema.names
        if self._rows[0].keys() != set(names):
            raise PipelineError(
                f"A row has the columns {sorted(self._rows[0])}, but the schema has {sorted(names)}. Give the "
                "rows the columns of the schema in a `map`, or change `schema`."
            )
        columns = {name: self._column(name) for name in names}
        if self._writer is None:
            self._begin(columns)
        table = arrow().Table.from_arrays([column.array for column in columns.values()], schema=self._schema)
        try:
            self._open().write_table(table, len(self._rows))
        except arrow().ArrowException as e:
            shown = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
            raise PipelineError(f"This format cannot hold one of the columns {shown}: {e}.") from e
        self._rows = []
        self._num_bytes = 0

    def _begin(self, columns: Mapping[str, NotedColumn]) -> None:
        """Determines the types and notes of the file by its first row group, as far as they are not known."""
        if self._notes is None:
            self._notes = {name: column.note for name, column in columns.items() if column.note is not None}
        if self._schema is None:
            self._schema = arrow().schema([(name, column.array.type) for name, column in columns.items()])
        if not self._table.plain:
            notes = Notes(self._notes, is_bare=bool(self._is_bare))
            self._schema = self._schema.with_metadata((self._schema.metadata or {}) | notes.metadata())
        self._table.found = self._schema

    def _column(self, name: str) -> NotedColumn:
        values = [row[name] for row in self._rows]
        kind = None if self._schema is None else self._schema.field(name).type
        note = None if self._notes is None else self._notes.get(name)
        try:
            if not self._converts:
                return column_of(values, kind, note)
            column = converted(values, kind)
            is_new = self._notes is None or self._table.plain or column.array.null_count == len(values)
            if not is_new and comparable_note(column.note) != comparable_note(note):
                raise ValueError(f"it has values of other kinds than the first row group, whose note is {note}")
            return column
        except (arrow().ArrowException, TypeError, ValueError, OverflowError) as e:
            raise self._unfit(name, kind, str(e).rstrip(".")) from e

    def _unfit(self, name: str, kind: Any, why: str) -> PipelineError:
        is_null = kind is not None and arrow().types.is_null(kind)
        nulls = ", and all its values are null" if is_null else ""
        plain = "" if self._table.plain else f"; or {PLAIN}"
        return PipelineError(
            f"Column {name!r} cannot be written as {kind or 'one type'}: {why}. The first row group determines "
            f"the types{nulls}: to choose them, call `write_parquet` and pass `schema`{plain}."
        )

    def _open(self) -> Any:
        if self._writer is None:
            schema = self._table.schema_without_rows(self._first) if self._schema is None else self._schema
            self._writer = self._table.open_writer(self._path, schema)
        return self._writer

    def close(self) -> None:
        try:
            if self._rows:
                self._flush()
            self._open()
        finally:
            if self._writer is not None:
                self._writer.close()


def _num_bytes(value: Any) -> int:
    """About how much memory a value takes."""
    kind = type(value)
    if kind is int or kind is float:
        return 8
    if kind is str or kind is bytes:
        return len(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_num_bytes, value))
    return 8
