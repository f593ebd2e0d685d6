"""The rows of tables a group at a time: in order, as batches of columns, or shuffled."""

from typing import Any, TypeVar

import numpy as np

from headrace._ops.order import GroupShuffle
from headrace._ops.source import Source
from headrace._utils import trees
from headrace.dataset import IterDataset, MapDataset
from headrace.errors import PipelineError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources.base import numbers_in
from headrace.sources.tables.base import TableDataSource

T = TypeVar("T")


def check_table(source: Any) -> None:
    """Raises unless a source is a `TableDataSource`."""
    if not isinstance(source, TableDataSource):
        raise PipelineError(
            "`source` must be a source of tables, such as `ParquetDataSource(paths)`; got "
            f"{type(source).__name__}: {source!r}."
        )


class GroupIterator(DatasetIterator[T]):
    """Iterates over rows a group at a time; its position is a group and the number of its rows that came."""

    def __init__(self):
        super().__init__()
        self._group, self._row = 0, 0
        self._decoded: tuple[int, Any] | None = None  # the group that was read last

    def _decode(self, number: int) -> Any:
        """The columns of a group."""
        raise NotImplementedError

    def _read(self, number: int) -> Any:
        """The same, with only one group in memory at a time."""
        if self._decoded is None or self._decoded[0] != number:
            self._decoded = None
            self._decoded = number, self._decode(number)
        return self._decoded[1]

    def close(self) -> None:
        super().close()
        self._decoded = None


class TableBatches(IterDataset[dict[str, Any]]):
    """The rows of a table in order, as batches of columns, without a Python object for a row or a number.

    Other values (strings, lists, structs with nulls) are in arrays of objects.

    >>> from headrace.sources import ParquetDataSource, write_parquet
    >>> paths = write_parquet([{"x": i} for i in range(4)], folder / "a.parquet")
    >>> list(TableBatches(ParquetDataSource(paths), batch_size=3))
    [{'x': array([0, 1, 2])}, {'x': array([3])}]

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        batch_size: How many rows a batch has.
        drop_remainder: Whether to leave out a smaller batch at the end.
    """

    def __init__(self, source: TableDataSource, batch_size: int = 1024, *, drop_remainder: bool = False):
        super().__init__()
        check_table(source)
        check_count("batch_size", batch_size, least=1)
        self._source, self._batch_size, self._drop_remainder = source, batch_size, drop_remainder

    def __iter__(self) -> "TableBatchIterator":
        return TableBatchIterator(self._source, self._batch_size, drop_remainder=self._drop_remainder)


class TableBatchIterator(GroupIterator[dict[str, Any]]):
    """Cuts groups of rows into batches."""

    def __init__(self, source: TableDataSource, batch_size: int, *, drop_remainder: bool):
        super().__init__()
        self._source, self._batch_size, self._drop_remainder = source, batch_size, drop_remainder
        self._lengths: list[int] = np.diff(source.group_ends, prepend=0).tolist()
        self._starts: list[int] = [0, *source.group_ends.tolist()]

    def _decode(self, number: int) -> dict[str, Any]:
        return self._source.read_group(number)

    def __next__(self) -> dict[str, Any]:
        self._assert_not_closed()
        left = self._starts[-1] - self._starts[self._group] - self._row
        if left <= 0 or (left < self._batch_size and self._drop_remainder):
            self._decoded = None
            raise StopIteration
        group, row, pieces, needed = self._group, self._row, [], min(self._batch_size, left)
        while needed:
            if row == self._lengths[group]:
                group, row = group + 1, 0
            end = min(row + needed, self._lengths[group])
            pieces.append(trees.tree_map(lambda leaf, a=row, b=end: leaf[a:b], self._read(group)))
            needed, row = needed - (end - row), end
        self._group, self._row = (group, row) if row < self._lengths[group] else (group + 1, 0)
        return trees.tree_map(lambda *leaves: np.concatenate(leaves), *pieces)

    def get_state(self) -> dict[str, Any]:
        return {"group": self._group, "row_in_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        group, row = numbers_in(state, "batches of a table", "group", "row_in_group")
        count = len(self._lengths)
        if not (0 <= group < count and 0 <= row < self._lengths[group]) and (group, row) != (count, 0):
            raise StateError(
                f"The state says row {row} of group {group}, but {self._source!r} has {count} groups. The files, "
                "columns or filters are not those that the state was saved with."
            )
        self._group, self._row = group, row


def shuffled_groups(source: TableDataSource, *, window_size: int, seed: int) -> MapDataset[dict[str, Any]]:
    """The rows of a table in a random order that decodes each group of rows once in an epoch.

    The groups are shuffled, and then the rows within windows: whole groups with up to `window_size` rows together, or
    parts of a larger group. Each epoch has another order. The groups of two windows are in memory.

    >>> from headrace.sources import ParquetDataSource, write_parquet
    >>> source = ParquetDataSource(write_parquet([{"x": i} for i in range(4)], folder / "a.parquet", row_group_rows=2))
    >>> sorted(row["x"].item() for row in shuffled_groups(source, window_size=4, seed=1))
    [0, 1, 2, 3]

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        window_size: How many rows are shuffled together, at most.
        seed: Determines the order.
    """
    check_table(source)
    op = GroupShuffle(Source(source), source.group_ends, window_size, seed)
    if source.element_spec is not None:
        _check_cache(source, op.window_size)
    return MapDataset._of(op)


def _check_cache(source: TableDataSource, window_size: int) -> None:
    """Raises if the groups of two windows, which a batch may touch, do not fit in the cache."""
    lengths = np.diff(source.group_ends, prepend=0)
    rows = min(int(lengths.sum()), 2 * max(window_size, int(lengths.max(initial=0))))
    specs = trees.leaves(source.element_spec)
    needed = rows * sum(np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape)) for spec in specs)
    if needed > source.cache_bytes:
        raise PipelineError(
            f"Two windows of {window_size} rows touch groups of up to {rows} rows, of {needed} bytes, but the cache of "
            f"{type(source).__name__} has {source.cache_bytes}: each batch would decode them again. Set "
            f"`cache_bytes={needed}`, choose fewer `columns`, or use a smaller `window_size`."
        )
