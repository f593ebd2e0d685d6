"""Worker processes: what they move, what they gain, how soon they begin. Two workers on two cores."""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import mnist
from benchmarks.measure import Row, faster_than, in_fresh_process, in_time, seconds_per_element, side_by_side

WORKERS = 2
BATCH = 128


def two_workers(buffer_size: int = 2) -> hr.MultiprocessingOptions:
    return hr.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=buffer_size)


# ---- large elements


def large_element(i: int) -> np.ndarray:
    """38.5 MB, made fresh."""
    return np.full((64, 224, 224, 3), i, np.float32)


class LargeElements:
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, i: int) -> np.ndarray:
        return large_element(i)


def large_elements() -> list[Row]:
    import grain
    import torch
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["benchmarks"])

    def ours():
        return hr.MapDataset.source(LargeElements()).to_iter_dataset().mp_prefetch(two_workers())

    def grains():
        ds = grain.MapDataset.source(LargeElements()).to_iter_dataset(grain.ReadOptions(1, 1))
        return ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2))

    def torchs():
        return torch.utils.data.DataLoader(LargeElements(), batch_size=None, num_workers=WORKERS, prefetch_factor=2)

    mine, peer, pytorch = side_by_side(
        lambda: seconds_per_element(ours, 150, warm_up=10),
        lambda: seconds_per_element(grains, 40, warm_up=5),
        lambda: seconds_per_element(torchs, 40, warm_up=5),
        rounds=3,
    )
    return [
        faster_than("38.5 MB float32 elements made in a worker", "Grain, 2 workers", 4, mine, peer),
        faster_than("the same", "PyTorch DataLoader, 2 workers", 4, mine, pytorch),
    ]


# ---- costly functions


class Digits:
    """MNIST as the tutorials write it."""

    def __init__(self):
        self._data = mnist.load()

    def __len__(self) -> int:
        return len(self._data["label"])

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self._data["image"][i], "label": int(self._data["label"][i])}


def rounds_of_python(seconds: float) -> int:
    """How many rounds of a loop take so long here."""
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        costly({}, 100_000)
        took.append(time.perf_counter() - begin)
    return max(1, int(100_000 * seconds / min(took)))


def costly(element: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Python that takes a while."""
    x = 0
    for i in range(rounds):
        x ^= i
    return element


def against_inline(work: str, floor: float, build: Callable[[], Any], count: int, per: int) -> Row:
    """A row that compares two workers with the consumer's own thread."""
    mine, inline = side_by_side(
        lambda: seconds_per_element(lambda: build().mp_prefetch(two_workers()), count, per, warm_up=count // 4),
        lambda: seconds_per_element(build, count // 2, per),
        rounds=9,  # what two cores give here varies by a quarter
    )
    return faster_than(work, "ours inline", floor, mine, inline)


def costly_map() -> Row:
    source, rounds = Digits(), rounds_of_python(50e-6)

    def build():
        ds = hr.MapDataset.source(source).shuffle(seed=1).repeat().map(lambda e: costly(e, rounds))
        return ds.batch(BATCH).to_iter_dataset(hr.ReadOptions(num_threads=0))

    return against_inline("MNIST source, map of 50 µs of Python, batches of 128", 1.7, build, 200, BATCH)


def costly_map_after_filter() -> Row:
    source, rounds = Digits(), rounds_of_python(50e-6)

    def build():
        ds = hr.MapDataset.source(source).shuffle(seed=1).repeat().to_iter_dataset(hr.ReadOptions(num_threads=0))
        return ds.filter(lambda e: e["label"] != 0).map(lambda e: costly(e, rounds)).batch(BATCH)

    return against_inline("the same with a filter before the map", 1.6, build, 200, BATCH)


class ParquetRows(hr.IterDataset):
    """The rows of a Parquet file."""

    def __init__(self, path: Path):
        super().__init__()
        self._path = path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(256):
                yield from batch.to_pylist()


def parquet_interleave() -> Row:
    import pyarrow
    import pyarrow.parquet

    rounds = rounds_of_python(50e-6)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{i}.parquet" for i in range(8)]
        for i, path in enumerate(paths):
            table = pyarrow.table({"id": np.arange(10_000) + 10_000 * i, "x": np.random.default_rng(i).random(10_000)})
            pyarrow.parquet.write_table(table, path)

        def build():
            ds = hr.IterDataset.interleave([ParquetRows(path) for path in paths], cycle_length=8)
            return ds.map(lambda e: costly(e, rounds)).batch(BATCH)

        return against_inline("an interleave of 8 Parquet files, such a map, batches", 1.6, build, 200, BATCH)


# ---- the first batch

FIRST_BATCH = """
    import time, jax, numpy as np
    import {library} as grain
    try:
        from absl import flags; flags.FLAGS(["x"])
    except ImportError: pass

    class Source:
        def __init__(self): self.x = np.zeros((60_000, 28, 28), np.uint8)
        def __len__(self): return len(self.x)
        def __getitem__(self, i): return self.x[i]

    if __name__ == "__main__":
        begin = time.perf_counter()
        ds = grain.MapDataset.source(Source()).shuffle(seed=1).batch(128)
        ds = ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
        iterator = iter(ds)
        next(iterator)
        print(time.perf_counter() - begin, flush=True)
        iterator.close()
"""


def first_batch() -> list[Row]:
    mine, peer = side_by_side(
        lambda: in_fresh_process(FIRST_BATCH.format(library="headrace")),
        lambda: in_fresh_process(FIRST_BATCH.format(library="grain")),
        rounds=5,
    )
    work = "first batch, 2 workers, JAX imported, 47 MB source"
    return [
        Row(f"{work} (s)", in_time(mine), "", mine, 0.6, higher_is_better=False),
        faster_than("the same", "Grain", 4, mine, peer),
    ]


# ---- JPEG


def photographs(count: int = 64) -> list[bytes]:
    import simplejpeg

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (count, 24, 32, 3), np.uint8)
    import cv2

    images = (cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC) for small in noise)
    return [simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=90) for image in images]


def decode(data: bytes) -> np.ndarray:
    import simplejpeg

    return simplejpeg.decode_jpeg(data)


def augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    import cv2

    top, left = rng.integers(0, 76), rng.integers(0, 126)
    image = cv2.resize(image[top : top + 300, left : left + 375], (224, 224), interpolation=cv2.INTER_LINEAR)
    return image[:, ::-1] if rng.integers(2) else image


def jpeg() -> Row:
    import cv2

    files, size = photographs(), 64
    cv2.setNumThreads(1)

    def build():
        ds = hr.MapDataset.source(files).seed(1).shuffle().repeat().map(decode).random_map(augment).batch(size)
        return ds.to_iter_dataset(hr.ReadOptions(num_threads=0)).mp_prefetch(two_workers())

    def bare() -> Iterator[np.ndarray]:
        with ThreadPoolExecutor(WORKERS) as pool:

            def make(i: int) -> np.ndarray:
                rng = np.random.default_rng(i)
                return np.stack([augment(decode(files[j]), rng) for j in rng.permutation(len(files))[:size]])

            under_way = [pool.submit(make, i) for i in range(2 * WORKERS)]
            for i in itertools.count(len(under_way)):
                yield under_way.pop(0).result()
                under_way.append(pool.submit(make, i))

    mine, peer = side_by_side(
        lambda: seconds_per_element(build, 60, size, warm_up=10),
        lambda: seconds_per_element(bare, 60, size, warm_up=10),
    )
    return faster_than(
        "JPEG decode and augment to 224×224, batches of 64", "a bare loop in two threads", 0.9, mine, peer
    )


ROWS: list[Callable[[], Row | list[Row]]] = [
    large_elements,
    costly_map,
    costly_map_after_filter,
    parquet_interleave,
    first_batch,
    jpeg,
]
