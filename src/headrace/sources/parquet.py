"""Tables as streams: the rows of Parquet files, batches of columns of any table, and rows in a random order of groups.

A position is a row group and a row in it, and a row group is read at once: what nulls make of a column's dtype then
depends on the file alone, and going to a position reads one row group.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import _tree
from headrace._ops.base import resolve_seed
from headrace._ops.order import IndexOp
from headrace._ops.source import Source
from headrace._rng import permutation, shuffled_indices
from headrace.dataset import IterDataset, MapDataset
from headrace.errors import ClosedError, PipelineError, StateError, optional
from headrace.iterator import DatasetIterator
from headrace.options import check_count, check_counts
from headrace.sources.tables import TableDataSource

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
    known = set(itertools.chain.from_iterable(map(_prefixes, paths)))
    missing = [name for name in columns if name not in known]
    if missing:
        raise PipelineError(f"{path} has no columns {missing}; it has {list(dict.fromkeys(paths))}.")


def _prefixes(path: str) -> Iterable[str]:
    """A nested column by each of the names that select it."""
    return itertools.accumulate(path.split("."), "{}.{}".format)


# ------------------------------------------------------------------------------------- batches of columns


class TableBatches(IterDataset[dict[str, Any]]):
    """The rows of a table in order, as batches of columns: no row or number is a Python object on the way.

    What is no number (strings, lists, structs with nulls) stands in arrays of objects.

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        batch_size: How many rows a batch has.
        drop_remainder: Leaves out a smaller batch at the end.
    """

    def __init__(self, source: TableDataSource, batch_size: int = 1024, *, drop_remainder: bool = False):
        super().__init__()
        if not isinstance(source, TableDataSource):
            raise PipelineError(
                "`source` must be a source of tables, such as `ParquetDataSource(paths)`; got "
                f"{type(source).__name__}: {source!r}."
            )
        check_count("batch_size", batch_size, least=1)
        self._source, self._batch_size, self._drop_remainder = source, batch_size, drop_remainder

    def __iter__(self) -> "TableBatchIterator":
        return TableBatchIterator(self._source, self._batch_size, drop_remainder=self._drop_remainder)


class TableBatchIterator(DatasetIterator[dict[str, Any]]):
    """Cuts groups of rows into batches; position: the row group, and the rows of it that have been handed over."""

    def __init__(self, source: TableDataSource, batch_size: int, *, drop_remainder: bool):
        super().__init__()
        self._source, self._batch_size, self._drop_remainder = source, batch_size, drop_remainder
        self._lengths: list[int] = np.diff(source.group_ends, prepend=0).tolist()
        self._starts: list[int] = [0, *source.group_ends.tolist()]
        self._group, self._row = 0, 0
        self._columns: tuple[int, Any] | None = None  # of the group that was read last
        self._closed = False

    def __next__(self) -> dict[str, Any]:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        left = self._starts[-1] - self._starts[self._group] - self._row
        if left <= 0 or (left < self._batch_size and self._drop_remainder):
            self._columns = None
            raise StopIteration
        group, row, pieces, needed = self._group, self._row, [], min(self._batch_size, left)
        while needed:
            if row == self._lengths[group]:
                group, row = group + 1, 0
            end = min(row + needed, self._lengths[group])
            pieces.append(_tree.tree_map(lambda leaf, a=row, b=end: leaf[a:b], self._read(group)))
            needed, row = needed - (end - row), end
        self._group, self._row = (group, row) if row < self._lengths[group] else (group + 1, 0)
        return _tree.tree_map(lambda *leaves: np.concatenate(leaves), *pieces)

    def _read(self, group: int) -> Any:
        if self._columns is None or self._columns[0] != group:
            self._columns = None  # before the next is read, so that there is one at a time
            self._columns = group, self._source.read_group(group)
        return self._columns[1]

    def get_state(self) -> dict[str, Any]:
        return {"group": self._group, "row_in_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        try:
            group, row = state["group"], state["row_in_group"]
        except (KeyError, TypeError):
            raise StateError(
                f"The state of batches of a table has the fields `group` and `row_in_group`; got {state!r}. It is the "
                "state of another pipeline."
            ) from None
        count = len(self._lengths)
        if not (0 <= group < count and 0 <= row < self._lengths[group]) and (group, row) != (count, 0):
            raise StateError(
                f"The state says row {row} of group {group}, and {self._source!r} has {count} groups. They are not the "
                "files, columns and filters that the state was saved with."
            )
        self._group, self._row = group, row

    def close(self) -> None:
        self._closed, self._columns = True, None


# ---------------------------------------------------------------------------------------- order of groups


def shuffled_groups(source: TableDataSource, *, window_size: int, seed: int) -> MapDataset[Row]:
    """The rows of a table in random order, such that each group of rows is decoded once in an epoch.

    Groups come in random order, and rows are shuffled in windows: of as many whole groups as have up to `window_size`
    rows, or of parts of a larger one. Another epoch has another order. The groups of two windows are in memory.

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        window_size: How many rows are shuffled together, at most.
        seed: What the order follows from.
    """
    op = GroupShuffle(Source(source), source.group_ends, window_size, seed)
    if source.element_spec is not None:
        _check_cache(source, op.window_size)
    return MapDataset._of(op)


def _check_cache(source: TableDataSource, window_size: int) -> None:
    """Raises if the groups of two windows, which one batch may lie in, do not fit in the cache."""
    lengths = np.diff(source.group_ends, prepend=0)
    rows = min(int(lengths.sum()), 2 * max(window_size, int(lengths.max(initial=0))))
    specs = _tree.leaves(source.element_spec)
    needed = rows * sum(np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape)) for spec in specs)
    if needed > source.cache_bytes:
        raise PipelineError(
            f"Two windows of {window_size} rows lie in groups of up to {rows} rows, of {needed} bytes; "
            f"{type(source).__name__} keeps {source.cache_bytes}, and would decode them again for each batch. Give it "
            f"`cache_bytes={needed}`, choose fewer `columns`, or take a smaller `window_size`."
        )


@dataclass(frozen=True, eq=False, repr=False)
class GroupShuffle(IndexOp):
    """Groups of elements in an order that the seed and the epoch name, shuffled in windows that keep to groups."""

    name = "group_shuffle"
    ends: np.ndarray
    window_size: int
    seed: int | None = None

    def __post_init__(self):
        check_counts(self, "window_size", least=1)
        object.__setattr__(self, "seed", resolve_seed(self.seed, self.parents, op="group_shuffle"))
        object.__setattr__(self, "_planned", {})

    def indices(self, idx: np.ndarray) -> np.ndarray:
        n = self.length()
        first, last = int(idx.min()) // n, int(idx.max()) // n
        if first == last:
            return self._within_epoch(idx - first * n, first) + first * n
        out, epochs = np.empty_like(idx), idx // n
        for epoch in sorted(set(epochs.tolist())):
            here = epochs == epoch
            out[here] = self._within_epoch(idx[here] - epoch * n, epoch) + epoch * n
        return out

    def _within_epoch(self, idx: np.ndarray, epoch: int) -> np.ndarray:
        ends, shift, cuts = self._plan(epoch)
        windows = np.searchsorted(cuts, idx, side="right") - 1
        rows = np.empty_like(idx)
        for window in np.unique(windows).tolist():
            here, start, stop = windows == window, cuts[window], cuts[window + 1]
            seed = self._seed(epoch, window)
            rows[here] = shuffled_indices(idx[here] - start, int(stop - start) - 1, seed) + start
        return rows + shift[np.searchsorted(ends, rows, side="right")]

    def _seed(self, epoch: int, window: int) -> int:
        assert self.seed is not None
        return (self.seed + epoch * 0x9E3779B1 + window) % 2**32

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where groups end in the order of an epoch, how far each was moved, and where windows begin and end."""
        planned: dict[int, Any] = self._planned  # type: ignore[attr-defined]
        found = planned.get(epoch)
        if found is None:
            lengths = np.diff(self.ends, prepend=0)
            order = permutation(len(lengths), self._seed(epoch, -1))
            ends = np.cumsum(lengths[order])
            found = ends, self.ends[order] - ends, self._cuts(ends)
            planned.clear()  # epochs come one after the other
            planned[epoch] = found
        return found

    def _cuts(self, ends: np.ndarray) -> np.ndarray:
        cuts, group = [0], 0
        while group < len(ends):
            begin, start = cuts[-1], int(ends[group - 1]) if group else 0
            full = int(np.searchsorted(ends, begin + self.window_size, side="right"))
            if full > group and begin == start:  # whole groups
                cuts.append(int(ends[full - 1]))
            else:  # a part of one, or what is left of it
                cuts.append(min(begin + self.window_size, int(ends[group])))
            group = int(np.searchsorted(ends, cuts[-1], side="right"))
        return np.array(cuts)
