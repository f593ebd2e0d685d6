"""Common pipelines: arrays and text files, splits, augmentation, caching, and how fast they are."""

import json
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from headrace import MapDataset, MultiprocessingOptions
from headrace.data import digits

# Arrays are a source without changes. A split selects indices, so the parts share no elements in any epoch.
everything = MapDataset.source(digits())
order = np.random.default_rng(0).permutation(len(everything))
train, test = everything[order[:1500]], everything[order[1500:]]
print(f"split: {len(train)} to train, {len(test)} to test")


# Training: a new order in each epoch, random augmentation, and batches of equal size for compiled steps.
def shift(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**example, "image": np.roll(example["image"], rng.integers(-1, 2), axis=1)}


def normalize(batch: dict[str, Any]) -> dict[str, Any]:
    return {"image": batch["image"].astype(np.float32) / 16, "label": np.eye(10, dtype=np.float32)[batch["label"]]}


batches = train.seed(42).shuffle().repeat(2).random_map(shift).batch(64, drop_remainder=True).map(normalize)
print(f"training: {len(batches)} batches of {batches[0]['image'].shape} and {batches[0]['label'].shape}")
print(f"reading a batch twice gives the same numbers: {np.array_equal(batches[7]['image'], batches[7]['image'])}")

# Testing: no shuffling or augmentation, and the last, smaller batch is kept.
print(f"testing: batches of {[len(batch['label']) for batch in test.batch(128).map(normalize)]}")


# Cache expensive operations that are not random, and put random operations after the cache.
def costly(example: dict[str, Any]) -> dict[str, Any]:
    return {**example, "image": np.linalg.matrix_power(example["image"] / 16, 200)}


cached = train.map(costly).cache().seed(1).shuffle().random_map(shift).batch(64)
for epoch in ("first", "second"):
    begin = time.perf_counter()
    count = sum(len(batch["label"]) for batch in cached)
    print(f"cache: {epoch} epoch, {count} examples in {1000 * (time.perf_counter() - begin):.0f} ms")


# Any object with `__len__` and `__getitem__` is a source. This one keeps only the offsets of the lines in memory.
class JsonLines:
    def __init__(self, path: Path):
        self.path = path
        with open(path, "rb") as file:
            self.starts = np.cumsum([0] + [len(line) for line in file])[:-1]

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.path, "rb") as file:
            file.seek(self.starts[index])
            return json.loads(file.readline())


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "topics.jsonl")
    path.write_text("".join(json.dumps({"name": name, "text": text}) + "\n" for name, text in topics.items()))
    lines = MapDataset.source(JsonLines(path)).shuffle(seed=4).map(lambda line: (line["name"], len(line["text"])))
    print(f"lines: {len(lines)} topics of Python's documentation; the first two, with lengths: {lines[0]}, {lines[1]}")

# How fast is it? Worker processes change only the speed, and need no `if __name__ == "__main__"`.
stream = everything.map(costly).batch(64).to_iter_dataset()
begin = time.perf_counter()
inline = np.concatenate([batch["image"] for batch in stream])
print(f"speed: {len(everything) / (time.perf_counter() - begin):,.0f} examples per second in this process")
with iter(stream.mp_prefetch(MultiprocessingOptions(num_workers=2))) as iterator:
    parallel = np.concatenate([batch["image"] for batch in iterator])
print(f"the same from 2 workers: {np.array_equal(inline, parallel)}")
