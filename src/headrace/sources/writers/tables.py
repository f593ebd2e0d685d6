"""Files of tables: Parquet, Arrow and CSV."""

import csv as text_csv
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.sources.writers.columns import arrow_array
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

    A dict is a row, an array in it a list, a dict in it a struct; any other record is a row with one column, `record`.

    Args:
        schema: The pyarrow schema; by default that of the first row group.
        row_group_rows: The most rows in a row group; it also ends at 64 MiB.
        options: Arguments of `pyarrow.parquet.ParquetWriter`.
    """
    parquet = optional("pyarrow.parquet", extra="parquet")
    form = _Form(lambda path, schema: parquet.ParquetWriter(path, schema, **options), parquet.read_schema)
    kind = f"Parquet {row_group_rows} {sorted(options.items())} {schema}"
    how: Writing = {"num_shards": num_shards, "overwrite": overwrite, "job": job, "progress": progress}
    return write(records, path, form.maker(schema, row_group_rows), kind, **how)


def write_arrow(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to Arrow IPC (Feather) files, as `write_parquet` does."""
    ipc = optional("pyarrow.ipc", extra="parquet")

    def schema_of(path: str) -> Any:
        with ipc.open_file(path) as file:
            return file.schema

    return write(records, path, _Form(ipc.new_file, schema_of).maker(None, ROW_GROUP_ROWS), "Arrow", **how)


def write_csv(records: Any, path: str | os.PathLike, **how: Unpack[Writing]) -> list[str]:
    """Writes records to CSV files, as `write_parquet` does; each begins with the names of the columns."""
    csv, arrow = optional("pyarrow.csv", extra="parquet"), optional("pyarrow", extra="parquet")

    def header_of(first: str | None) -> Any:
        """The names of the columns for a file without rows: those of the first shard, or of the source's elements."""
        if first is not None:
            with open(first, encoding="utf-8", newline="") as file:
                names = next(text_csv.reader(file))
        else:
            spec = getattr(records, "element_spec", None) if hasattr(type(records), "__getcolumns__") else None
            names = list(spec) if isinstance(spec, Mapping) else []
        if not names:
            raise PipelineError(
                "There are no records, so nobody knows the names of the columns that a CSV file begins with. Write "
                "Parquet, or leave the file out."
            )
        return arrow.schema([(name, arrow.string()) for name in names])

    form = _Form(csv.CSVWriter, lambda path: None, header_of)
    return write(records, path, form.maker(None, ROW_GROUP_ROWS), "CSV", **how)


@dataclass(frozen=True)
class _Form:
    """How pyarrow writes tables of a format."""

    open_writer: Callable[[str, Any], Any]
    schema_of: Callable[[str], Any]  # that a file has; None where it does not say
    header_of: Callable[[str | None], Any] | None = None  # the schema of a file without rows, after the first shard

    def maker(self, schema: Any, row_group_rows: int) -> Callable[[str, str | None], File]:
        """What opens files to write to; without a schema, the first shard's is the others' too."""

        def make(partial: str, first: str | None) -> File:
            found = self.schema_of(first) if first is not None and schema is None else schema
            return _TableFile(self, partial, found or None, row_group_rows, first)

        return make


class _TableFile:
    """Rows that become row groups; the first of all fixes the schema, unless one is given."""

    def __init__(self, form: _Form, path: str, schema: Any, row_group_rows: int, first: str | None):
        self._arrow = optional("pyarrow", extra="parquet")
        self._form, self._path, self._schema, self._most_rows = form, path, schema, row_group_rows
        self._first = first
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._num_bytes = 0

    def write(self, record: Any) -> None:
        row = record if isinstance(record, Mapping) else {"record": record}
        if not row or not all(isinstance(name, str) for name in row):
            raise PipelineError(f"A row is a dict that has columns, and their names are text; got {str(record)[:200]}.")
        if self._rows and row.keys() != self._rows[0].keys():
            raise PipelineError(f"A row has the columns {sorted(row)}, and those before it {sorted(self._rows[0])}.")
        self._rows.append(row)
        self._num_bytes += sum(_num_bytes(value) for value in row.values())
        if len(self._rows) >= self._most_rows or self._num_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        names = list(self._rows[0]) if self._schema is None else self._schema.names
        if self._rows[0].keys() != set(names):
            raise PipelineError(f"A row has the columns {sorted(self._rows[0])}, and the schema {sorted(names)}.")
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
            column = arrow_array(self._arrow, values)
            return column if kind is None or column.type == kind else column.cast(kind)
        except (self._arrow.ArrowException, TypeError, ValueError, OverflowError) as e:
            is_null = kind is not None and self._arrow.types.is_null(kind)
            why = ", and all its values are null" if is_null else ""
            raise PipelineError(
                f"Column {name!r} cannot be written as {kind or 'one type'}: {str(e).rstrip('.')}. The first row group "
                f"fixes the types{why}: to choose them, call `write_parquet` and give `schema`."
            ) from e

    def _open(self) -> Any:
        if self._writer is None:
            schema = self._empty_schema() if self._schema is None else self._schema
            self._writer = self._form.open_writer(self._path, schema)
        return self._writer

    def _empty_schema(self) -> Any:
        return self._arrow.schema([]) if self._form.header_of is None else self._form.header_of(self._first)

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._open().close()


def _num_bytes(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes | str) else 8
