"""The rows of Parquet files as streams.

A position is a row group and a row in it, and a row group is read at once: what nulls make of a column's dtype then
depends on the file alone, and going to a position reads one row group.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, PipelineError, StateError, optional
from headrace.iterator import DatasetIterator
from headrace.sources.tables.choice import prefixes

Row = dict[str, Any]
CYCLE_LENGTH = 16  # files that are open at a time


def ParquetIterDataset(
    path: str | os.PathLike | Sequence[str | os.PathLike],
    *,
    columns: Sequence[str] | None = None,
    **read_kwargs: Any,
) -> IterDataset[Row]:
    """The rows of a Parquet file, in order; of several files, one row of each in turn.

    A number is a NumPy scalar, a list an array, a string `str`, and a struct a dict. In a row group that has nulls, a
    column of ints is of floats with NaN, and any other has None.

    Args:
        path: A path, or several; up to 16 files are open at a time.
        columns: Which columns to read; all by default.
        read_kwargs: Arguments of `pyarrow.parquet.ParquetFile`.
    """
    if isinstance(path, str | os.PathLike):
        return ParquetRows(path, columns, read_kwargs)
    if not isinstance(path, Sequence) or not path:
        raise PipelineError(f"`path` must be a path, or a sequence of at least one; got {path!r}.")
    files = [ParquetRows(one, columns, read_kwargs) for one in path]
    return IterDataset.interleave(files, cycle_length=min(len(files), CYCLE_LENGTH))


class ParquetRows(IterDataset[Row]):
    """The rows of one Parquet file."""

    def __init__(self, path: str | os.PathLike, columns: Sequence[str] | None, read_kwargs: dict[str, Any]):
        super().__init__()
        if isinstance(columns, str):
            raise PipelineError(f"`columns` must be a sequence of names; got the string {columns!r}.")
        self._path, self._read_kwargs = os.fspath(path), read_kwargs
        self._columns = None if columns is None else list(columns)

    def __iter__(self) -> "ParquetIterator":
        return ParquetIterator(self._path, self._columns, self._read_kwargs)


class ParquetIterator(DatasetIterator[Row]):
    """Hands over the rows of one file; the file is opened for the first of them."""

    def __init__(self, path: str, columns: list[str] | None, read_kwargs: dict[str, Any]):
        super().__init__()
        self._path, self._columns, self._read_kwargs = path, columns, read_kwargs
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
        self._group, self._row, self._rows = group, row, None

    def close(self) -> None:
        self._closed, self._rows = True, None
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _open(self) -> Any:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        if self._file is None:
            parquet = optional("pyarrow.parquet", extra="parquet")
            with _blaming(self._path):
                file = parquet.ParquetFile(self._path, **self._read_kwargs)
            if self._columns is not None:
                _check_columns(self._path, self._columns, file.schema)
            self._file = file
        return self._file

    def _rows_of_group(self, group: int, start: int) -> Iterator[Row]:
        """The rows of a row group from `start` on."""
        file = self._open()
        num_rows = file.metadata.row_group(group).num_rows if 0 <= group < file.num_row_groups else 0
        if not 0 <= start <= num_rows:
            raise StateError(
                f"The state says row {start} of row group {group}; {self._path} has {file.num_row_groups} row groups, "
                f"and {num_rows} rows in that one. It is not the file that the state was saved with."
            )
        if start == num_rows:
            return iter(())
        with _blaming(f"{self._path}, row group {group}"):
            table = file.read_row_group(group, columns=self._columns)
            arrays = [column.to_numpy()[start:] for column in table.columns]
        return map(dict, map(zip, itertools.repeat(table.column_names), zip(*arrays, strict=True)))


@contextlib.contextmanager
def _blaming(place: str) -> Iterator[None]:
    """Notes on an error of pyarrow's where it came from: many do not say which file."""
    try:
        yield
    except Exception as e:
        e.add_note(f"reading {place}")
        raise


def _check_columns(path: str, columns: list[str], schema: Any) -> None:
    """Raises unless the file has all columns: pyarrow leaves out those that it does not find."""
    if not columns:
        raise PipelineError("`columns` is empty: name at least one column, or leave it out for all of them.")
    paths = [schema.column(i).path for i in range(len(schema))]
    known = set(itertools.chain.from_iterable(map(prefixes, paths)))
    missing = [name for name in columns if name not in known]
    if missing:
        raise PipelineError(f"{path} has no columns {missing}; it has {list(dict.fromkeys(paths))}.")
