"""ArrayRecord: shuffled reading, and opening many files."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side

NUM_RECORDS = 200_000
RECORD_BYTES = 1000
NUM_FILES = 1000
LISTED = 20_000  # indices of one call of the reader: more of them take longer each, for the memory of the records
GRAINS_THREADS = (0, 1, 2, 4, 16, 64)
RANDOM_ACCESS = "readahead_buffer_size:0,max_parallelism:0"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="headrace-bench-")


def _write(name: str, num_records: int, options: str) -> str:
    from array_record.python.array_record_module import ArrayRecordWriter

    path, rng = str(Path(_folder().name) / name), np.random.default_rng(0)
    writer = ArrayRecordWriter(path, options)
    for _ in range(num_records):
        writer.write(rng.bytes(RECORD_BYTES))
    writer.close()
    return path


def _shuffled(lib: Any, source: Any, num_threads: int | None = None) -> Callable[[], Iterable[bytes]]:
    options = None if num_threads is None else lib.ReadOptions(num_threads, 500 if num_threads else 0)
    return lambda: lib.MapDataset.source(source).shuffle(seed=1).to_iter_dataset(options)


def _grains_best(source: Any) -> tuple[int, Callable[[], float]]:
    """The number of threads with which Grain is fastest here, and a round of it."""
    import grain

    def round_with(num_threads: int) -> float:
        return seconds_per_element(_shuffled(grain, source, num_threads), 1000, warm_up=500)

    best = min(GRAINS_THREADS, key=lambda num_threads: min(round_with(num_threads) for _ in range(2)))
    return best, lambda: round_with(best)


def _listed(path: str, options: str, *, in_order: bool) -> Callable[[], float]:
    """A round of the reader's own call for a list of random indices."""
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(path, options, file_reader_buffer_size=2048)
    rng = np.random.default_rng(1)

    def once() -> float:
        # Others each time: those of before are in the cache of the processor.
        indices = rng.permutation(NUM_RECORDS)[:LISTED]
        chosen = (np.sort(indices) if in_order else indices).tolist()
        begin = time.perf_counter()
        reader.read(chosen)
        return (time.perf_counter() - begin) / LISTED

    return once


def _shuffled_rows(writer_options: str, title: str) -> list[Row]:
    import grain

    from headrace.sources import ArrayRecordDataSource

    path = _write("large.array_record", NUM_RECORDS, writer_options)
    ours = _shuffled(hr, ArrayRecordDataSource(path))
    num_threads, grains = _grains_best(grain.sources.ArrayRecordDataSource(path))
    modes = [_listed(path, options, in_order=order) for options in (RANDOM_ACCESS, "") for order in (False, True)]
    mine, theirs, *listed = side_by_side(
        lambda: seconds_per_element(ours, 40_000, warm_up=5000), grains, *modes, rounds=7
    )
    work = f"ArrayRecord, {NUM_RECORDS:,} records of 1 kB, {title}, shuffled"
    return [
        faster_than(work, f"Grain at its best ({num_threads} threads)", 35, mine, theirs),
        faster_than("the same", "the reader's own batch read of random indices", 0.7, mine, min(listed)),
    ]


def array_record_shuffled() -> list[Row]:
    return _shuffled_rows("group_size:1", "groups of 1")  # which is what the writer does by default


def array_record_opening() -> Row:
    import grain

    from headrace.sources import ArrayRecordDataSource

    paths = [_write(f"{i:05d}.array_record", 20, "group_size:1") for i in range(NUM_FILES)]

    def opened(make: Callable[[list[str]], Any]) -> float:
        begin = time.perf_counter()
        source = make(paths)
        assert len(source) == 20 * NUM_FILES
        source[0]
        return time.perf_counter() - begin

    mine, theirs = side_by_side(
        lambda: opened(ArrayRecordDataSource), lambda: opened(grain.sources.ArrayRecordDataSource), rounds=9
    )
    return faster_than(f"opening {NUM_FILES:,} ArrayRecord files, to the first record", "Grain", 2, mine, theirs)


ROWS: list[Callable[[], Row | list[Row]]] = [array_record_shuffled, array_record_opening]
