"""Files of CSV.

CSV has no types: readers see them in the values. So a column holds int64, float64, bools or text, no None, and its text
must not all look like numbers.
"""

import csv as text_csv
import io
import os
from collections.abc import Mapping
from typing import Any, Unpack

from headrace.errors import PipelineError, optional
from headrace.errors.suggestions import explains_keywords
from headrace.sources.notes import PLAIN
from headrace.sources.writers.columns import arrow
from headrace.sources.writers.shards import Writing, write
from headrace.sources.writers.table_writers import TableWriter

FEW_ROWS = 16  # most often, these show the type of a column


@explains_keywords
def write_csv(records: Any, path: str | os.PathLike, *, plain: bool = False, **how: Unpack[Writing]) -> list[str]:
    """Writes rows to CSV files, and returns their paths; each begins with the names of the columns.

    A value is text, an int, a float or a bool; what `CsvDataSource` would give back as something else is an error.
    Arguments are as for `write_array_record`.
    """

    def schema_without_rows(first: str | None) -> Any:
        """The columns of the first shard or of the source's elements."""
        if first is not None:
            with open(first, encoding="utf-8", newline="") as file:
                names = next(text_csv.reader(file))
        else:
            spec = getattr(records, "element_spec", None) if hasattr(type(records), "__getcolumns__") else None
            names = list(spec) if isinstance(spec, Mapping) else []
        if not names:
            raise PipelineError(
                "There are no records, so the column names for the header of the CSV file are unknown. Write "
                "Parquet, or skip the file."
            )
        return arrow().schema([(name, arrow().string()) for name in names])

    def open_writer(path: str, schema: Any) -> _Writer:
        return _Writer(path, schema, plain)

    table = TableWriter(open_writer, lambda path: None, schema_without_rows, plain=plain, rows_only=True)
    return write(records, path, table.open, f"CSV plain={plain}", **how)


class _Writer:
    """Writes tables to a file, and checks that values come back as they are."""

    def __init__(self, path: str, schema: Any, plain: bool):
        self._csv = optional("pyarrow.csv", extra="parquet")
        self._plain = plain
        if not plain:
            _check_types(schema)
        self._unseen: dict[str, Any] | None = None  # columns whose types are not yet seen in their values
        header = arrow().schema([(name, arrow().string()) for name in schema.names])
        self._file = open(path, "wb")  # noqa: SIM115  (closed by `close`)
        self._csv.write_csv(header.empty_table(), self._file)

    def write_table(self, table: Any, num_rows: int) -> None:
        if not self._plain:
            table = self._checked(table)
        self._csv.write_csv(table, self._file, self._csv.WriteOptions(include_header=False))

    def _checked(self, table: Any) -> Any:
        unseen = self._unseen = {f.name: f.type for f in table.schema} if self._unseen is None else self._unseen
        for i, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            _check_values(name, column)
            if name in unseen and arrow().types.is_floating(column.type) and not self._shows(column, column.type):
                column = arrow().chunked_array(
                    [list(map(repr, column.to_pylist()))]
                )  # pyarrow would write `1` for `1.0`
                table = table.set_column(i, name, column)
            if name in unseen and self._shows(column, unseen[name]):
                del unseen[name]
        return table

    def _shows(self, column: Any, kind: Any) -> bool:
        """Whether a reader would see a type in the values of a column."""
        return any(self._inferred(rows) == kind for rows in (column.slice(0, FEW_ROWS), column))

    def _inferred(self, column: Any) -> Any:
        buffer = io.BytesIO()
        self._csv.write_csv(arrow().table({"x": column}), buffer)
        parse = self._csv.ParseOptions(newlines_in_values=True)
        read = self._csv.ReadOptions(use_threads=False, block_size=len(buffer.getvalue()) + 1)
        return self._csv.read_csv(io.BytesIO(buffer.getvalue()), read, parse).schema.field(0).type

    def close(self) -> None:
        self._file.close()
        for name, kind in (self._unseen or {}).items():
            raise PipelineError(
                f"All values of column {name!r} look like a type other than {kind}, so they would not read back "
                f"from CSV as they are. Write Parquet or JSON lines; or {PLAIN}."
            )


def _check_types(schema: Any) -> None:
    pa = arrow()
    for field in schema:
        if field.type not in (pa.int64(), pa.float64(), pa.bool_(), pa.string()):
            raise PipelineError(
                f"Column {field.name!r} is of type {field.type}, but CSV holds only int64, float64, bools and "
                f"text. Convert it in a `map`, or write Parquet or JSON lines; or {PLAIN}."
            )


def _check_values(name: str, column: Any) -> None:
    compute = optional("pyarrow.compute", extra="parquet")
    if column.null_count:
        what = "None"
    elif arrow().types.is_string(column.type) and compute.any(compute.match_substring(column, "\0")).as_py():
        what = "text with the character \\0"
    else:
        return
    raise PipelineError(f"Column {name!r} has {what}, which CSV cannot hold. Write Parquet or JSON lines; or {PLAIN}.")
