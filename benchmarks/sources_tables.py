"""Tables: Parquet shuffled by row group and window, in batches; and the stream of rows that Grain has as well."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace import experimental
from headrace.sources import ParquetDataSource, TableBatches, shuffled_groups

NUM_ROWS = 10**6
BATCH = 1024
GROUP = WINDOW = 1 << 16
NUM_BATCHES = NUM_ROWS // BATCH - 8  # fewer than there are after the first ones, which are not measured


@contextlib.contextmanager
def written(columns: dict[str, Any]) -> Iterator[str]:
    """A file of these columns."""
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "numbers.parquet")
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=GROUP)
        yield path


def numbers() -> dict[str, Any]:
    """Columns of numbers."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"float{i}": rng.random(NUM_ROWS, np.float32) for i in range(4)}
    columns |= {f"double{i}": rng.random(NUM_ROWS) for i in range(2)}
    return columns | {"id": np.arange(NUM_ROWS), "label": rng.integers(0, 1000, NUM_ROWS, np.int32)}


def in_order(path: str) -> Iterator[dict[str, np.ndarray]]:
    """The same batches as pyarrow reads them, in order."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield {
                name: column.to_numpy(zero_copy_only=False)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def rows_shuffled(path: str, window: int, names: Any = experimental) -> Any:
    """The stream of rows, its window shuffle and batch, by these names of Headrace or Grain."""
    return names.WindowShuffleIterDataset(names.ParquetIterDataset(path), window_size=window, seed=1).batch(BATCH)


def of_grain(path: str, window: int) -> Any:
    import grain

    return rows_shuffled(path, window, grain.experimental)


def shuffled(path: str) -> hr.MapDataset:
    """A new source each time, so that nothing is decoded before."""
    return shuffled_groups(ParquetDataSource(path), window_size=WINDOW, seed=1).batch(BATCH)


def parquet_shuffled() -> list[Row]:
    with written(numbers()) as path:
        everything = [batch["id"] for batch in shuffled(path)]
        assert np.array_equal(np.sort(np.concatenate(everything)), np.arange(NUM_ROWS))
        mine, stream, arrow, grain = side_by_side(
            lambda: seconds_per_element(lambda: shuffled(path), NUM_BATCHES, BATCH),
            lambda: seconds_per_element(lambda: TableBatches(ParquetDataSource(path), BATCH), NUM_BATCHES, BATCH),
            lambda: seconds_per_element(lambda: in_order(path), NUM_BATCHES, BATCH),
            # The first batch waits for a window of rows: so does each 64th.
            lambda: seconds_per_element(lambda: of_grain(path, WINDOW), 64, BATCH, warm_up=65),
        )
    work = "Parquet, 10^6 rows of 8 numbers, shuffled by row group and window, batches of 1,024"
    return [
        faster_than(work, "Grain's rows, window shuffle and batch", 10, mine, grain),
        faster_than("the same", "pyarrow, the batches in order", 0.5, mine, arrow),
        faster_than("the same in order, as a stream", "pyarrow, the batches in order", 0.5, stream, arrow),
    ]


def parquet_rows_shuffled() -> Row:
    rng, window = np.random.default_rng(0), 10_000
    with written({f"double{i}": rng.random(NUM_ROWS) for i in range(8)}) as path:
        both = zip(rows_shuffled(path, window), of_grain(path, window), strict=True)
        for ours, theirs in itertools.islice(both, 20):
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
        mine, grain = side_by_side(
            lambda: seconds_per_element(lambda: rows_shuffled(path, window), NUM_BATCHES, BATCH),
            # The first batch waits for a window of rows: so does about each tenth.
            lambda: seconds_per_element(lambda: of_grain(path, window), 78, BATCH, warm_up=10),
        )
    work = "Parquet, 10^6 rows of 8 doubles, `ParquetIterDataset`, windows of 10,000, batches of 1,024"
    return faster_than(work, "Grain, the same", 10, mine, grain)


ROWS: list[Callable[[], Row | list[Row]]] = [parquet_shuffled, parquet_rows_shuffled]
