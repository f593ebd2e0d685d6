"""The rows of tables in a random order that keeps to groups."""

from typing import Any

import numpy as np

from headrace._ops.order import GroupShuffle
from headrace._ops.source import Source
from headrace._utils import trees
from headrace.dataset import MapDataset
from headrace.errors import PipelineError
from headrace.sources.tables.base import TableDataSource
from headrace.sources.tables.batches import check_table


def shuffled_groups(source: TableDataSource, *, window_size: int, seed: int) -> MapDataset[dict[str, Any]]:
    """The rows of a table in random order, such that each group of rows is decoded once in an epoch.

    Groups come in random order, and rows are shuffled in windows: of as many whole groups as have up to `window_size`
    rows, or of parts of a larger one. Another epoch has another order. The groups of two windows are in memory.

    Args:
        source: A `ParquetDataSource`, `ArrowDataSource` or `CsvDataSource`.
        window_size: How many rows are shuffled together, at most.
        seed: What the order follows from.
    """
    check_table(source)
    op = GroupShuffle(Source(source), source.group_ends, window_size, seed)
    if source.element_spec is not None:
        _check_cache(source, op.window_size)
    return MapDataset._of(op)


def _check_cache(source: TableDataSource, window_size: int) -> None:
    """Raises if the groups of two windows, which one batch may lie in, do not fit in the cache."""
    lengths = np.diff(source.group_ends, prepend=0)
    rows = min(int(lengths.sum()), 2 * max(window_size, int(lengths.max(initial=0))))
    specs = trees.leaves(source.element_spec)
    needed = rows * sum(np.dtype(spec.dtype).itemsize * int(np.prod(spec.shape)) for spec in specs)
    if needed > source.cache_bytes:
        raise PipelineError(
            f"Two windows of {window_size} rows lie in groups of up to {rows} rows, of {needed} bytes; "
            f"{type(source).__name__} keeps {source.cache_bytes}, and would decode them again for each batch. Give it "
            f"`cache_bytes={needed}`, choose fewer `columns`, or take a smaller `window_size`."
        )
