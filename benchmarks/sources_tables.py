"""Tables: Parquet shuffled by row group and window, in batches."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.sources.parquet import TableBatches, shuffled_groups
from headrace.sources.tables import ParquetDataSource

NUM_ROWS = 10**6
BATCH = 1024
GROUP = WINDOW = 1 << 16
NUM_BATCHES = NUM_ROWS // BATCH - 8  # fewer than there are after the first ones, which are not measured


@contextlib.contextmanager
def numbers() -> Iterator[str]:
    """A file of 8 columns of numbers."""
    import pyarrow
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {f"float{i}": rng.random(NUM_ROWS, np.float32) for i in range(4)}
    columns |= {f"double{i}": rng.random(NUM_ROWS) for i in range(2)}
    columns |= {"id": np.arange(NUM_ROWS), "label": rng.integers(0, 1000, NUM_ROWS, np.int32)}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "numbers.parquet")
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=GROUP)
        yield path


def in_order(path: str) -> Iterator[dict[str, np.ndarray]]:
    """The same batches as pyarrow reads them, in order."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            yield {
                name: column.to_numpy(zero_copy_only=False)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }


def of_grain(path: str) -> Any:
    """Grain's stream of rows, its window shuffle and batch."""
    import grain

    rows = grain.experimental.ParquetIterDataset(path)
    return grain.experimental.WindowShuffleIterDataset(rows, window_size=WINDOW, seed=1).batch(BATCH)


def shuffled(path: str) -> hr.MapDataset:
    """A new source each time, so that nothing is decoded before."""
    return shuffled_groups(ParquetDataSource(path), window_size=WINDOW, seed=1).batch(BATCH)


def parquet_shuffled() -> list[Row]:
    with numbers() as path:
        everything = [batch["id"] for batch in shuffled(path)]
        assert np.array_equal(np.sort(np.concatenate(everything)), np.arange(NUM_ROWS))
        mine, stream, arrow, grain = side_by_side(
            lambda: seconds_per_element(lambda: shuffled(path), NUM_BATCHES, BATCH),
            lambda: seconds_per_element(lambda: TableBatches(ParquetDataSource(path), BATCH), NUM_BATCHES, BATCH),
            lambda: seconds_per_element(lambda: in_order(path), NUM_BATCHES, BATCH),
            # The first batch waits for a window of rows: so does each 64th.
            lambda: seconds_per_element(lambda: itertools.islice(of_grain(path), 65 + 64), 64, BATCH, warm_up=65),
        )
    work = "Parquet, 10^6 rows of 8 numbers, shuffled by row group and window, batches of 1,024"
    return [
        faster_than(work, "Grain's rows, window shuffle and batch", 10, mine, grain),
        faster_than("the same", "pyarrow, the batches in order", 0.5, mine, arrow),
        faster_than("the same in order, as a stream", "pyarrow, the batches in order", 0.5, stream, arrow),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [parquet_shuffled]
