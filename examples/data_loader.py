"""A DataLoader: a sampler orders the records, a source reads them, operations transform them, and Orbax saves it."""

import tempfile

import numpy as np
import orbax.checkpoint as ocp

from headrace import DataLoader, ReadOptions
from headrace.checkpoint import CheckpointRestore, CheckpointSave
from headrace.data import digits
from headrace.samplers import IndexSampler
from headrace.sharding import ShardOptions
from headrace.sources import InMemoryDataSource
from headrace.transforms import Batch, Filter, Map, RandomMap

Example = dict[str, np.ndarray]

# The sampler orders each epoch. It gives each record its place, its key in the source, and a random generator.
for metadata in IndexSampler(num_records=3, num_epochs=2, shuffle=True, seed=0):
    assert metadata.rng is not None  # always set if the sampler has a seed
    print(f"place {metadata.index}: record {metadata.record_key}, draws {metadata.rng.integers(100)}")

# With shards, each process reads its own part of the records.
parts = [IndexSampler(10, ShardOptions(shard_index=i, shard_count=2), num_epochs=1) for i in range(2)]
keys = [[part[place].record_key for place in range(i, 10, 2)] for i, part in enumerate(parts)]
print(f"shards of 10 records: {keys}")


# Operations are classes with one method each; a map can also be a plain function.
class IsOdd(Filter):
    def filter(self, element: Example) -> bool:
        return bool(element["label"] % 2)


class Enlarge(Map):
    def __init__(self, factor: int):
        self.factor = factor

    def map(self, element: Example) -> Example:
        return {**element, "image": element["image"].repeat(self.factor, axis=0).repeat(self.factor, axis=1)}


class Crop(RandomMap):
    def random_map(self, element: Example, rng: np.random.Generator) -> Example:
        top, left = rng.integers(0, 5, size=2)
        return {**element, "image": element["image"][top : top + 12, left : left + 12]}


def make_loader(worker_count: int) -> DataLoader:
    return DataLoader(
        data_source=digits(),
        sampler=IndexSampler(1797, shuffle=True, seed=42),  # endless
        operations=[IsOdd(), Enlarge(2), Crop(), Batch(32)],
        worker_count=worker_count,
        read_options=ReadOptions(num_threads=0),  # the data is in memory, so threads would not help
    )


# The loader's batches and state are the same with any number of workers.
inline, parallel = iter(make_loader(worker_count=0)), iter(make_loader(worker_count=2))
same = all(np.array_equal(next(inline)["image"], next(parallel)["image"]) for _ in range(5))
print(f"5 batches of {next(inline)['image'].shape}; the same from 2 workers: {same}")
next(parallel)
print(f"the same state: {inline.get_state() == parallel.get_state()}")

# Orbax: save with two workers, restore without workers.
with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
    manager.save(6, args=CheckpointSave(parallel))
    manager.wait_until_finished()
    expected = [next(parallel)["label"] for _ in range(3)]
    restored = iter(make_loader(worker_count=0))
    manager.restore(6, args=CheckpointRestore(restored))
    same = all(np.array_equal(next(restored)["label"], labels) for labels in expected)
    print(f"after restoring, the next batches are the same: {same}")
parallel.close()

# Python values in shared memory, which worker processes read without copying.
words = InMemoryDataSource(["the", "water", "drives", "the", "wheel"])
sampler = IndexSampler(len(words), num_epochs=1, shuffle=True, seed=1)
loader = DataLoader(data_source=words, sampler=sampler, worker_count=2)
print(f"from shared memory: {' '.join(loader)}")
