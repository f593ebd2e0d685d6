"""Datasets for large runs: mixing, shuffling files without random access, prefetching, devices, and checkpoints."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import jax
import numpy as np

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, device_put, pick_performance_config
from headrace.data import digits

everything = MapDataset.source(digits())

# Mix random-access datasets: each one repeats and has its own shuffle seed, so the proportions hold indefinitely.
small = everything[:100].seed(1).shuffle().repeat().map(lambda e: "small")
large = everything[100:].seed(2).shuffle().repeat().map(lambda e: "large")
mixed = MapDataset.mix([small, large], weights=[1, 3])
print(f"mix 1:3, of 400 elements: {dict(Counter(mixed[i] for i in range(400)))}")

# If the datasets are filtered, mix them as streams: dropped elements then do not change the proportions.
zeros = everything.filter(lambda e: e["label"] == 0).repeat().to_iter_dataset()
others = everything.filter(lambda e: e["label"] != 0).repeat().to_iter_dataset()
labels = IterDataset.mix({"zeros": zeros, "others": others}, {"zeros": 1, "others": 1}).map(lambda e: int(e["label"]))
print(f"mix of filtered streams, 1:1: {list(labels.take(10))}")


# Files that can only be read from the start are shuffled in three steps: shuffle the file names, interleave several
# files, and shuffle lines within a window.
class Lines(IterDataset):
    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def __iter__(self) -> Any:
        with open(self.path) as file:
            yield from ((self.path.stem, number, line.strip()) for number, line in enumerate(file))


with tempfile.TemporaryDirectory() as folder:
    texts = {name: topics[name].strip() for name in sorted(topics)[:6]}
    for name, text in texts.items():
        Path(folder, f"{name}.txt").write_text(text)
    files = MapDataset.source(sorted(Path(folder).iterdir())).shuffle(seed=5).map(Lines)
    lines = IterDataset.interleave(files, cycle_length=3).window_shuffle(64, seed=6)
    print(f"lines: {[f'{name}:{number}' for name, number, _ in lines.take(5)]}")
    expected = {(name, number) for name, text in texts.items() for number in range(text.count("\n") + 1)}
    seen = [(name, number) for name, number, _ in lines]
    print(f"every line of {len(texts)} files once: {len(seen) == len(expected) and set(seen) == expected}")

# Prefetch: with threads if elements wait for disks, with workers if they need CPU time. Or let a trial choose.
batches = everything.shuffle(seed=7).repeat().batch(64, drop_remainder=True)
threaded = batches.to_iter_dataset(ReadOptions(num_threads=4, prefetch_buffer_size=16)).prefetch(4)
workers = batches.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4))
config = pick_performance_config(batches, ram_budget_mb=256, max_workers=2, max_buffer_size=None)
chosen = batches.to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)
streams = {"threads": threaded, "workers": workers, "chosen": chosen}
sums = {name: [int(batch["image"].sum()) for batch in stream.take(20)] for name, stream in streams.items()}
same = len(set(map(tuple, sums.values()))) == 1
print(f"20 batches are the same from threads, workers and the chosen settings: {same}")

# Devices: batches are moved before the training step needs them, here split over all devices.
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
placed = device_put(workers, sharding, cpu_buffer_size=3, device_buffer_size=2)

# You can save a checkpoint after any batch. It is small JSON: this one is saved from a stream on devices, and restored
# without workers or devices.
with iter(placed) as iterator:
    on_device = [next(iterator) for _ in range(10)]
    state = json.dumps(iterator.get_state())
    expected = np.asarray(next(iterator)["label"])
print(f"placed on {jax.device_count()} device(s) as {type(on_device[0]['image']).__name__}")
print(f"next index after 10: {json.loads(state)['next_index']}")
again = iter(batches.to_iter_dataset())
again.set_state(json.loads(state))
print(f"after restoring, the next batch is the same: {np.array_equal(next(again)['label'], expected)}")
