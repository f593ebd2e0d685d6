"""Streams of several lanes for every kind of operation, and their global batches."""

from pathlib import Path
from typing import Any

import numpy as np

from headrace import IterDataset, MapDataset, MultiprocessingOptions, WeightSchedule

BATCH = 24  # which 1, 2, 3, 4 and 6 processes divide, and 12 lanes
LANES = 12


def numbers(seed: int = 1) -> MapDataset:
    return MapDataset.range(1000).shuffle(seed=seed).repeat()


def tokens(x: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(x, x + x % 9 + 1, dtype=np.int32)}


def sequences(lanes: int, seed: int = 1) -> IterDataset:
    return numbers(seed).map(tokens).to_iter_dataset(num_lanes=lanes)


def is_kept(x: int) -> bool:
    return x % 3 != 0


def children(x: int) -> list[int]:
    return [x * 10 + j for j in range(x % 4)]


def add_random(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.integers(10**6)


def plain(lanes: int) -> IterDataset:
    return numbers().to_iter_dataset(num_lanes=lanes)


def write_files(folder: Path) -> None:
    """Real Parquet files of different lengths."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for i in range(24):
        pq.write_table(pa.table({"x": np.arange(20 + i) + 1000 * i}), folder / f"part-{i:02}.parquet", row_group_size=7)


def files(folder: str, lanes: int) -> IterDataset:
    from headrace.sources import ParquetIterDataset

    parts = [ParquetIterDataset(str(path)) for path in sorted(Path(folder).glob("*.parquet"))]
    return IterDataset.interleave([part.repeat() for part in parts], cycle_length=2, num_lanes=lanes)


def weighted(lanes: int) -> IterDataset:
    parts = {"a": plain(lanes).filter(is_kept), "b": numbers(7).to_iter_dataset(num_lanes=lanes)}
    return IterDataset.mix(parts, {"a": 3, "b": 1})


def scheduled(lanes: int) -> IterDataset:
    schedule = WeightSchedule({0: [1, 0], 50: [1, 2], 150: [0, 1]})
    return IterDataset.mix([plain(lanes), numbers(7).to_iter_dataset(num_lanes=lanes)], schedule)


def together(lanes: int) -> IterDataset:
    """A mix, filtered, augmented, shuffled in windows, and packed."""
    mix = weighted(lanes).random_map(add_random, seed=3).map(lambda x: tokens(int(x) % 1000))
    return mix.filter(lambda e: len(e["x"]) > 2).window_shuffle(20, seed=4).pack({"x": 16}, num_packing_bins=3)


STREAMS = {
    "filter": lambda lanes: plain(lanes).filter(is_kept),
    "flat_map": lambda lanes: plain(lanes).flat_map(children),
    "window shuffle": lambda lanes: plain(lanes).filter(is_kept).window_shuffle(10, seed=2),
    "buffer shuffle": lambda lanes: plain(lanes).filter(is_kept).shuffle(10, seed=2),
    "first fit": lambda lanes: sequences(lanes).pack({"x": 16}, strategy="first_fit", num_packing_bins=4),
    "best fit": lambda lanes: sequences(lanes).pack({"x": 16}, strategy="best_fit", num_packing_bins=4),
    "concat then split": lambda lanes: sequences(lanes).pack({"x": 16}, strategy="concat_split"),
    "mix": weighted,
    "mix by schedule": scheduled,
    "random_map": lambda lanes: plain(lanes).filter(is_kept).random_map(add_random, seed=5),
    "workers": lambda lanes: together(lanes).mp_prefetch(MultiprocessingOptions(num_workers=2)),
    "together": together,
}

ALL = [
    "shuffle and batch",
    "interleave of files",
    *STREAMS,
    *(f"{name}, one lane" for name in STREAMS if name != "workers"),
]


def global_batches(name: str, folder: str, rows: Any) -> IterDataset:
    """This process's rows of a pipeline's global batches."""
    if name == "shuffle and batch":
        return numbers().random_map(add_random, seed=5).global_batch(BATCH, rows).to_iter_dataset()
    name, _, one = name.partition(", ")
    lanes = 1 if one else LANES
    stream = files(folder, lanes) if name == "interleave of files" else STREAMS[name](lanes)
    return stream.global_batch(BATCH, rows)
