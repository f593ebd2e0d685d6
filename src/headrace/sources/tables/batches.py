"""The rows of tables in order, as batches of columns."""

from typing import Any

import numpy as np

from headrace._utils import trees
from headrace.dataset import IterDataset
from headrace.errors import ClosedError, PipelineError, StateError
from headrace.iterator import DatasetIterator
from headrace.options import check_count
from headrace.sources.tables.base import TableDataSource


def check_table(source: Any) -> None:
    """Raises unless a source is one of tables."""
    if not isinstance(source, TableDataSource):
        raise PipelineError(
            "`source` must be a source of tables, such as `ParquetDataSource(paths)`; got "
            f"{type(source).__name__}: {source!r}."
        )


def numbers_of(state: Any, what: str, *fields: str) -> tuple[int, ...]:
    """The numbers in a state of `what`; raises if it is none."""
    try:
        numbers = tuple(state[field] for field in fields)
    except (KeyError, TypeError):
        names = " and ".join(f"`{field}`" for field in fields)
        raise StateError(
            f"The state of {what} has the fields {names}; got {state!r}. It is the state of another pipeline."
        ) from None
    if any(type(number) is not int for number in numbers):
        raise StateError(f"The fields of the state of {what} are ints; got {state!r}.")
    return numbers


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
        check_table(source)
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
            pieces.append(trees.tree_map(lambda leaf, a=row, b=end: leaf[a:b], self._read(group)))
            needed, row = needed - (end - row), end
        self._group, self._row = (group, row) if row < self._lengths[group] else (group + 1, 0)
        return trees.tree_map(lambda *leaves: np.concatenate(leaves), *pieces)

    def _read(self, group: int) -> Any:
        if self._columns is None or self._columns[0] != group:
            self._columns = None  # before the next is read, so that there is one at a time
            self._columns = group, self._source.read_group(group)
        return self._columns[1]

    def get_state(self) -> dict[str, Any]:
        return {"group": self._group, "row_in_group": self._row}

    def set_state(self, state: dict[str, Any]) -> None:
        group, row = numbers_of(state, "batches of a table", "group", "row_in_group")
        count = len(self._lengths)
        if not (0 <= group < count and 0 <= row < self._lengths[group]) and (group, row) != (count, 0):
            raise StateError(
                f"The state says row {row} of group {group}, and {self._source!r} has {count} groups. They are not the "
                "files, columns and filters that the state was saved with."
            )
        self._group, self._row = group, row

    def close(self) -> None:
        self._closed, self._columns = True, None
