"""The rows of Parquet files as streams.

A position is a row group and a row in it, and a row group is read at once: what nulls make of a column's dtype then
depends on the file alone, and going to a position reads one row group.
"""

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, PipelineError, StateError, optional
from headrace.iterator import DatasetIterator
from headrace.sources import files
from headrace.sources.mapped import MappedFiles
from headrace.sources.tables.choice import Choice, one_schema, prefixes
from headrace.sources.tables.kept import blaming, open_input
from headrace.sources.tables.values import arrow, table_without_views

Row = dict[str, Any]
WHAT = "Parquet files"
CYCLE_LENGTH = 16  # files that are open at a time


class ParquetIterDataset(IterDataset[Row]):
    """The rows of a Parquet file, in order; of several files, one row of each in turn.

    A number is a NumPy scalar, a list an array, a string `str`, and a struct a dict. In a row group that has nulls, a
    column of ints is of floats with NaN, and any other has None.

    Args:
        path: A path, a pattern, or a sequence of these; up to 16 files are open at a time. Each is compared with the
            first when it is opened: a column must be of one type.
        columns: Which columns to read; all by default.
        read_kwargs: Arguments of `pyarrow.parquet.ParquetFile`. With a `filesystem`, paths are those on it.
    """

    def __init__(
        self,
        path: str | os.PathLike | Sequence[str | os.PathLike],
        *,
        columns: Sequence[str] | None = None,
        **read_kwargs: Any,
    ):
        super().__init__()
        if isinstance(columns, str):
            raise PipelineError(f"`columns` must be a sequence of names; got the string {columns!r}.")
        paths = _paths(path, read_kwargs)
        opener = _Opener(paths[0], None if columns is None else list(columns), read_kwargs)
        rows = [ParquetRows(one, opener) for one in paths]
        several = IterDataset.interleave(rows, cycle_length=min(len(rows), CYCLE_LENGTH))
        self._operation = rows[0]._op if len(rows) == 1 else several._op


def _paths(path: str | os.PathLike | Sequence[str | os.PathLike], read_kwargs: dict[str, Any]) -> list[str]:
    if read_kwargs.get("filesystem") is None:
        paths = files.expand(path, what=WHAT)
    else:
        paths = [os.fspath(one) for one in ([path] if isinstance(path, str | os.PathLike) else path)]
    if not paths:
        raise PipelineError(f"{WHAT} need at least one path; got an empty sequence.")
    return paths


class _Opener:
    """Opens files that must have the same columns as the first of them."""

    def __init__(self, first: str, columns: list[str] | None, read_kwargs: dict[str, Any]):
        self._first, self.columns, self._read_kwargs = first, columns, read_kwargs
        self._pool = files.Pool(CYCLE_LENGTH)

    @property
    def has_filesystem(self) -> bool:
        """Whether paths are those of a file system of the user's."""
        return self._read_kwargs.get("filesystem") is not None

    def open(self, path: str) -> Any:
        """A file, once it is known to have the columns."""
        file = self._file(path)
        try:
            if path != self._first:
                _check_same(self._first, self._schema, path, self._read_schema(path, file))
            else:
                self._schema = self._read_schema(path, file)
        except BaseException:
            file.close(force=True)
            raise
        return file

    @functools.cached_property
    def _schema(self) -> Any:
        """What is read of the first file."""
        with self._file(self._first) as file:
            return self._read_schema(self._first, file)

    def _file(self, path: str) -> Any:
        options = {"pre_buffer": files.is_remote(path), "page_checksum_verification": True} | self._read_kwargs
        parquet = optional("pyarrow.parquet", extra="parquet")
        with blaming(path, WHAT):
            if options.get("filesystem") is not None:
                return parquet.ParquetFile(path, **options)
            return parquet.ParquetFile(open_input(path, self._pool, maps=options.get("memory_map", False)), **options)

    def _read_schema(self, path: str, file: Any) -> Any:
        if self.columns is not None:
            _check_columns(path, self.columns, file.schema)
        with blaming(path, WHAT):
            schema = file.read_row_groups([], columns=self.columns).schema
        return one_schema([path], [schema], Choice(None, None))


class ParquetRows(IterDataset[Row]):
    """The rows of one Parquet file."""

    def __init__(self, path: str, opener: _Opener):
        super().__init__()
        self._path, self._opener = path, opener

    def __iter__(self) -> "ParquetIterator":
        return ParquetIterator(self._path, self._opener)


class ParquetIterator(DatasetIterator[Row]):
    """Hands over the rows of one file; the file is opened for the first of them."""

    def __init__(self, path: str, opener: _Opener):
        super().__init__()
        self._path, self._opener = path, opener
        self._group, self._row = 0, 0
        self._file: Any = None
        self._rows: Iterator[Row] | None = None  # the rest of the row group; None: not read yet
        self._closed = False

    def __next__(self) -> Row:
        if self._rows is None:
            self._rows = self._rows_of_group(self._group, self._row)
        while True:
            for row in self._rows:
                self._row += 1
                return row
            if self._group + 1 >= self._open().num_row_groups:
                self._close_file()
                raise StopIteration
            self._rows = self._rows_of_group(self._group + 1, 0)
            self._group, self._row = self._group + 1, 0

    def get_state(self) -> dict[str, Any]:
        return {"row_group": self._group, "index_within_row_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        try:
            group, row = state["row_group"], state["index_within_row_group"]
        except (KeyError, TypeError):
            raise StateError(
                "The state of a Parquet file has the fields `row_group` and `index_within_row_group`; got "
                f"{state!r}. It is the state of another pipeline."
            ) from None
        if type(group) is not int or type(row) is not int:
            raise StateError(f"The fields of the state of a Parquet file are ints; got {state!r}.")
        self._group, self._row, self._rows = group, row, None

    def close(self) -> None:
        self._closed, self._rows = True, None
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close(force=True)

    def _open(self) -> Any:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        if self._file is None:
            self._mapped = MappedFiles([] if self._opener.has_filesystem else [self._path])
            self._file = self._opener.open(self._path)
        return self._file

    def _rows_of_group(self, group: int, start: int) -> Iterator[Row]:
        """The rows of a row group from `start` on."""
        file = self._open()
        num_rows = file.metadata.row_group(group).num_rows if 0 <= group < file.num_row_groups else 0
        if not 0 <= group < max(1, file.num_row_groups) or not 0 <= start <= num_rows:
            raise StateError(
                f"The state says row {start} of row group {group}; {self._path} has {file.num_row_groups} row groups, "
                f"and {num_rows} rows in that one. It is not the file that the state was saved with."
            )
        if start == num_rows:
            return iter(())
        self._mapped.check([self._path])
        with blaming(f"{self._path}, row group {group},", WHAT):
            table = table_without_views(file.read_row_group(group, columns=self._opener.columns))
            arrays = [column.to_numpy()[start:] for column in table.columns]
        return map(dict, map(zip, itertools.repeat(table.column_names), zip(*arrays, strict=True)))


def _check_same(first_path: str, first: Any, path: str, schema: Any) -> None:
    """Raises unless files have the same columns; one of nothing but nulls suits a column of any type."""
    nulls = {field.name for one in (first, schema) for field in one if arrow().types.is_null(field.type)}
    compared = [
        arrow().schema([field.with_type(arrow().null()) if field.name in nulls else field for field in one])
        for one in (first, schema)
    ]
    one_schema([first_path, path], compared, Choice(None, None))


def _check_columns(path: str, columns: list[str], schema: Any) -> None:
    """Raises unless the file has all columns: pyarrow leaves out those that it does not find."""
    if not columns:
        raise PipelineError("`columns` is empty: name at least one column, or leave it out for all of them.")
    paths = [schema.column(i).path for i in range(len(schema))]
    known = set(itertools.chain.from_iterable(map(prefixes, paths)))
    missing = [name for name in columns if name not in known]
    if missing:
        raise PipelineError(f"{path} has no columns {missing}; it has {list(dict.fromkeys(paths))}.")
