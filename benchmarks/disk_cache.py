"""`cache(path)`, once it is filled, against the same elements in files of other formats."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.sources import NpyDataSource, TFRecordDataSource, write_tfrecord

NUM_RECORDS, RECORD_BYTES = 100_000, 1000
NUM_TIMED = 40_000
BATCH = 256


def _both(source: Any, folder: str, batch: int | None) -> list[float]:
    """Seconds an element of the shuffled source, from its cache and from its own files."""
    plain = hr.MapDataset.source(source)
    cached = plain.cache(folder)
    with iter(cached) as iterator:
        next(iterator)  # fills it

    def timed(ds: hr.MapDataset[Any]) -> float:
        shuffled = ds.shuffle(seed=1)
        stream = (shuffled if batch is None else shuffled.batch(batch)).to_iter_dataset()
        per = batch or 1
        return seconds_per_element(lambda: stream, NUM_TIMED // per, per, warm_up=5000 // per)

    return side_by_side(lambda: timed(cached), lambda: timed(plain), rounds=9)


def disk_cache() -> list[Row]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        records = (rng.bytes(RECORD_BYTES) for _ in range(NUM_RECORDS))
        (path,) = write_tfrecord(records, Path(folder) / "records.tfrecord")
        mine, theirs = _both(TFRecordDataSource(path), folder, batch=None)
        arrays = Path(folder) / "arrays.npy"
        np.save(arrays, rng.random((NUM_RECORDS, RECORD_BYTES // 4), np.float32))
        mine_batched, theirs_batched = _both(NpyDataSource(arrays), folder, batch=BATCH)
    return [
        faster_than("a filled `cache(path)`, 10^5 records of 1 kB, shuffled", "their TFRecord file", 1, mine, theirs),
        faster_than(f"the same of arrays, in batches of {BATCH}", "their .npy file", 0.9, mine_batched, theirs_batched),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [disk_cache]
