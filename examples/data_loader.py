"""A DataLoader: a sampler says which records come when, a source reads them, operations change them; Orbax saves it."""

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

# The sampler: an order for each epoch, and for each record a place, a key in the source, and a random generator.
for metadata in IndexSampler(num_records=3, num_epochs=2, shuffle=True, seed=0):
    assert metadata.rng is not None  # there is one where the sampler has a seed
    print(f"place {metadata.index}: record {metadata.record_key}, draws {metadata.rng.integers(100)}")

# With shards, each process reads its own part of the records.
parts = [IndexSampler(10, ShardOptions(shard_index=i, shard_count=2), num_epochs=1) for i in range(2)]
keys = [[part[place].record_key for place in range(i, 10, 2)] for i, part in enumerate(parts)]
print(f"shards of 10 records: {keys}")


# The operations: classes with one method each, or plain functions for a map.
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
        sampler=IndexSampler(1797, shuffle=True, seed=42),  # without an end
        operations=[IsOdd(), Enlarge(2), Crop(), Batch(32)],
        worker_count=worker_count,
        read_options=ReadOptions(num_threads=0),  # in memory, so nothing to wait for
    )


# The loader: its batches are the same with any number of workers, and so is its state.
inline, parallel = iter(make_loader(worker_count=0)), iter(make_loader(worker_count=2))
same = all(np.array_equal(next(inline)["image"], next(parallel)["image"]) for _ in range(5))
print(f"5 batches of {next(inline)['image'].shape}; the same from 2 workers: {same}")
next(parallel)
print(f"the same state: {inline.get_state() == parallel.get_state()}")

# Orbax: what was saved with two workers is restored without any.
with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder) as manager:
    manager.save(6, args=CheckpointSave(parallel))
    manager.wait_until_finished()
    expected = [next(parallel)["label"] for _ in range(3)]
    restored = iter(make_loader(worker_count=0))
    manager.restore(6, args=CheckpointRestore(restored))
    print(f"restored, it goes on exactly: {all(np.array_equal(next(restored)['label'], e) for e in expected)}")
parallel.close()

# Python values in memory that worker processes share instead of copying.
words = InMemoryDataSource(["the", "water", "drives", "the", "wheel"])
sampler = IndexSampler(len(words), num_epochs=1, shuffle=True, seed=1)
loader = DataLoader(data_source=words, sampler=sampler, worker_count=2)
print(f"from shared memory: {' '.join(loader)}")
