"""Endless pipelines of every kind, which give the same outputs however they are computed.

The functions sleep in runners (`SOAK_PACE_S`), where faults then find work under way, and not in the reference.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import (
    DataLoader,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    WeightSchedule,
    sources,
    transforms,
)
from headrace.samplers import IndexSampler
from headrace.sources import writers

PACE_S = float(os.environ.get("SOAK_PACE_S", "0"))
NUM_SHARDS, NUM_RECORDS = 3, 3000


@dataclass(frozen=True)
class How:
    """How a pipeline is computed, and where its files are; none of it changes an output."""

    folder: str
    num_workers: int = 0
    num_threads: int = 0
    prefetch: int = 0
    endpoint: str | None = None  # of S3, if the files are read from there
    index_dir: str | None = None

    @property
    def read_options(self) -> ReadOptions:
        return ReadOptions(num_threads=self.num_threads, prefetch_buffer_size=16 if self.num_threads else 0)

    def stream(self, ds: MapDataset) -> IterDataset:
        return ds.to_iter_dataset(self.read_options)

    def ahead(self, ds: IterDataset) -> IterDataset:
        """The stream, computed by workers and read by a thread."""
        ds = ds.mp_prefetch(MultiprocessingOptions(num_workers=self.num_workers, per_worker_buffer_size=2))
        return ds.prefetch(self.prefetch) if self.prefetch else ds

    def paths(self, suffix: str) -> list[str]:
        names = [os.path.basename(name) for name in writers.shard_names(f"train.{suffix}", NUM_SHARDS)]
        if self.endpoint is None:
            return [os.path.join(self.folder, name) for name in names]
        return [sources.Address(f"s3://data/{name}", key="k", secret="s", endpoint_url=self.endpoint) for name in names]


def write_files(folder: str) -> None:
    """The same records as files of each format."""
    records = MapDataset.range(NUM_RECORDS).map(lambda i: {"i": i, "text": f"{i} " * (100 + i % 300)})
    for suffix in ("array_record", "tfrecord", "jsonl", "parquet"):
        path = os.path.join(folder, f"train.{suffix}")
        writers.writer_of(path)(records, path, num_shards=NUM_SHARDS)


def digest(output: Any) -> str:
    """A short text that differs whenever outputs differ in a value, a dtype or their structure."""
    hashed = hashlib.blake2b(digest_size=8)
    for piece in _pieces(output):
        hashed.update(piece)
    return hashed.hexdigest()


def _pieces(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        for key in sorted(x):
            yield key.encode()
            yield from _pieces(x[key])
    elif isinstance(x, list | tuple):
        yield f"{type(x).__name__} {len(x)}".encode()
        for item in x:
            yield from _pieces(item)
    elif isinstance(x, np.ndarray) and x.dtype != object:
        yield f"{x.dtype} {x.shape}".encode()
        yield np.ascontiguousarray(x).data
    else:
        yield repr(x.tolist() if isinstance(x, np.ndarray) else x).encode()


def paced(x: Any) -> Any:
    time.sleep(PACE_S)
    return x


def jittered(x: int, rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.integers(1000, size=50) + paced(x), "i": x}


def is_kept(x: int) -> bool:
    return x % 3 != 0


def split(x: int) -> list[np.ndarray]:
    return [np.full(8, 10 * x + j) for j in range(paced(x) % 4)]


def tokens(x: int) -> dict[str, np.ndarray]:
    return {"tokens": np.arange(paced(x), x + 1 + x * 7919 % 100)}


def large(x: int) -> np.ndarray:
    return np.full(1 << 19, paced(x)) + np.arange(1 << 19) % 7  # 4 MB


def index(how: How) -> IterDataset:
    ds = MapDataset.range(5000).shuffle(seed=1).repeat(None).random_map(jittered, seed=2).batch(4)
    return how.ahead(how.stream(ds))


def stream(how: How) -> IterDataset:
    ds = how.stream(MapDataset.range(5000).shuffle(seed=3).repeat(None)).filter(is_kept).flat_map(split)
    return how.ahead(ds.shuffle(50, seed=4).batch(3).rebatch(7).window_shuffle(5, seed=5))


def packing(how: How) -> IterDataset:
    def rows(seed: int, strategy: str) -> IterDataset:
        ds = how.stream(MapDataset.range(1000).shuffle(seed=seed).repeat(None).map(tokens))
        return ds.pack({"tokens": 256}, strategy=strategy)

    strategies = ("first_fit", "best_fit", "concat_split")
    return how.ahead(IterDataset.mix([rows(seed, name) for seed, name in enumerate(strategies)]).batch(2))


def mix(how: How) -> IterDataset:
    def part(first: int) -> MapDataset:
        return MapDataset.range(first, first + 700).shuffle(seed=first).repeat(None)

    weighted = how.stream(MapDataset.mix([part(0), part(1000)], [0.3, 0.7]).map(paced))
    changing = WeightSchedule({0: [1, 0], 500: [1, 1], 2000: [1, 3]})
    ds = IterDataset.mix([weighted, how.stream(part(2000)).filter(is_kept)], changing)
    ds = IterDataset.mix([ds, how.stream(part(3000))], [2, 1])
    return how.ahead(IterDataset.zip([ds, how.stream(part(4000)).window_shuffle(9, seed=1)]).batch(5))


def parts_in_workers(how: How) -> IterDataset:
    """Streams that have their own workers and threads, and are read in turn."""
    parts = [index(how), how.ahead(how.stream(MapDataset.range(400).map(tokens).repeat(None)).padded_batch(3))]
    return IterDataset.mix(parts, [1, 2])


def streams_of_files(how: How) -> IterDataset:
    kinds = {
        "array_record": lambda path: MapDataset.source(sources.ArrayRecordDataSource(path)),
        "tfrecord": sources.TFRecordIterDataset,
        "jsonl": sources.JsonLinesIterDataset,
        "parquet": sources.ParquetIterDataset,
    }
    paths = MapDataset.source([(kind, path) for kind in kinds for path in how.paths(kind)])
    opened = paths.shuffle(seed=6).repeat(None).map(lambda kind_and_path: kinds[kind_and_path[0]](kind_and_path[1]))
    return how.ahead(IterDataset.interleave(opened, cycle_length=4).map(paced).window_shuffle(20, seed=7))


def records_of_files(how: How) -> IterDataset:
    opened = [
        sources.ArrayRecordDataSource(how.paths("array_record")),
        sources.TFRecordDataSource(how.paths("tfrecord"), index_dir=how.index_dir),
        sources.JsonLinesDataSource(how.paths("jsonl"), index_dir=how.index_dir),
        sources.ParquetDataSource(how.paths("parquet")),
    ]
    ds = MapDataset.concatenate([MapDataset.source(source) for source in opened])
    return how.ahead(how.stream(ds.shuffle(seed=8).repeat(None).map(paced)))


def large_elements(how: How) -> IterDataset:
    return how.ahead(how.stream(MapDataset.range(100).shuffle(seed=9).repeat(None).map(large)))


def loader(how: How) -> DataLoader:
    return DataLoader(
        data_source=sources.InMemoryDataSource(range(3000)),
        sampler=IndexSampler(3000, shuffle=True, seed=10),
        operations=[Jitter(), transforms.Batch(6)],
        worker_count=how.num_workers,
        read_options=how.read_options,
    )


class Jitter(transforms.RandomMap):
    def random_map(self, element: int, rng: np.random.Generator) -> dict[str, Any]:
        return jittered(element, rng)


def remote(how: How) -> IterDataset:
    records = MapDataset.source(sources.TFRecordDataSource(how.paths("tfrecord"), index_dir=how.index_dir))
    lines = sources.JsonLinesIterDataset(how.paths("jsonl")).repeat(None)
    return how.ahead(IterDataset.mix([how.stream(records.shuffle(seed=11).repeat(None)), lines], [1, 3]).map(paced))


PIPELINES: dict[str, Callable[[How], Any]] = {
    "index": index,
    "stream": stream,
    "packing": packing,
    "mix": mix,
    "parts in workers": parts_in_workers,
    "streams of files": streams_of_files,
    "records of files": records_of_files,
    "large elements": large_elements,
    "loader": loader,
    "s3": remote,
    "s3 with a cache": remote,
}
ON_SMALL_DISK = ("records of files", "s3 with a cache")  # what these keep on disk has little room
