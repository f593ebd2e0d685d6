"""The core: overhead per element, order, mixtures, filters, arrays, sources, start-up and memory."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import mnist
from benchmarks.measure import Row, faster_than, in_fresh_process, in_time, seconds_per_element, side_by_side
from headrace.rng import shuffled_indices

BATCH = 128


def grain_best(build: Callable[[Any, Any], Any], count: int, per: int = 1) -> Callable[[], float]:
    """Grain's time at the setting that was fastest for it in a first trial."""
    import grain

    settings = [grain.ReadOptions(num_threads=n, prefetch_buffer_size=500 if n else 0) for n in (0, 1, 16)]
    best = min(settings, key=lambda s: seconds_per_element(lambda: build(grain, s), max(1, count // 10), per))
    return lambda: seconds_per_element(lambda: build(grain, best), count, per)


def against_grain(work: str, floor: float, build: Callable[[Any, Any], Any], *, ours: int, theirs: int, per: int = 1):
    """A row for one pipeline built with each library."""
    mine, peer = side_by_side(
        lambda: seconds_per_element(lambda: build(hr, None), ours, per), grain_best(build, theirs, per)
    )
    return faster_than(work, "Grain", floor, mine, peer)


def range_map() -> Row:
    def build(lib, options):
        return lib.MapDataset.range(10**7).map(lambda x: x + 1).to_iter_dataset(options)

    return against_grain("range.map", 30, build, ours=10**6, theirs=30_000)


def random_map() -> Row:
    def build(lib, options):
        ds = lib.MapDataset.range(10**7).seed(3).shuffle()
        return ds.random_map(lambda x, rng: x + rng.integers(10)).to_iter_dataset(options)

    return against_grain("shuffle, random_map drawing one integer", 10, build, ours=200_000, theirs=20_000)


def mix() -> Row:
    def build(lib, options):
        parts = [lib.MapDataset.range(10**7).shuffle(seed=i) for i in range(4)]
        return lib.MapDataset.mix(parts).to_iter_dataset(options)

    return against_grain("mix of four shuffled ranges", 40, build, ours=10**6, theirs=20_000)


def mix_of_many() -> list[Row]:
    """Mixes of shuffled parts, by their number and length."""

    def element_s(num_parts: int, length: int) -> float:
        parts = [hr.MapDataset.range(length + i).seed(i).shuffle().repeat() for i in range(num_parts)]
        mixed = hr.MapDataset.mix(parts, [1 + i % 7 for i in range(num_parts)])
        inline = hr.ReadOptions(num_threads=0)
        return seconds_per_element(lambda: mixed.to_iter_dataset(inline), 8 * 1000, warm_up=1000)

    rows = []
    for num_parts, floor in ((100, 2), (1000, 3)):
        for length in (1000, 65_000, 10**6):
            took = statistics.median(element_s(num_parts, length) for _ in range(5))
            work = f"mix of {num_parts:,} shuffled ranges of {length:,} (µs an element)"
            rows.append(Row(work, in_time(took), "", took * 1e6, floor, higher_is_better=False))
    return rows


def restored_mix() -> Row:
    """A state of a mix of very many streams."""
    mixed = hr.IterDataset.mix([hr.MapDataset.range(100).seed(i).shuffle().to_iter_dataset() for i in range(10_000)])
    iterator = iter(mixed)
    next(iterator)
    state = iterator.get_state()

    def once() -> float:
        begin = time.perf_counter()
        again = iter(mixed)
        again.set_state(state)
        next(again)
        return time.perf_counter() - begin

    took = statistics.median(once() for _ in range(5))
    return Row("restoring a mix of 10,000 streams (s)", in_time(took), "", took, 1, higher_is_better=False)


def filter_batch() -> Row:
    def build(lib, options):
        ds = lib.MapDataset.range(10**7).shuffle(seed=1).to_iter_dataset(options)
        return ds.filter(lambda x: x % 2 == 0).batch(BATCH)

    return against_grain("shuffle, filter, batch on the stream", 30, build, ours=4000, theirs=80, per=BATCH)


def to_float(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"image": batch["image"].astype(np.float32), "label": batch["label"]}


def mnist_pipeline(data: dict[str, np.ndarray]) -> Any:
    return hr.MapDataset.source(data).shuffle(seed=1).repeat().batch(BATCH).map(to_float)


def hand_written(data: dict[str, np.ndarray]) -> Iterator[Any]:
    """The same work with NumPy alone: the cipher over a whole epoch, then a gather and a cast a batch."""
    images, labels = data["image"], data["label"]
    n = len(labels)
    for epoch in range(1000):
        order = shuffled_indices(np.arange(n), n - 1, 1 + epoch)
        for start in range(0, n - BATCH, BATCH):
            rows = order[start : start + BATCH]
            batch = {"image": images.take(rows, 0, mode="clip"), "label": labels.take(rows, 0, mode="clip")}
            yield to_float(batch)


def mnist_numpy() -> Row:
    data = mnist.load()
    mine, peer = side_by_side(
        lambda: seconds_per_element(lambda: mnist_pipeline(data), 4000),
        lambda: seconds_per_element(lambda: hand_written(data), 4000),
        rounds=9,
    )
    return faster_than("MNIST arrays, shuffled batches of 128 to float32", "NumPy by hand", 0.8, mine, peer)


def mnist_tf_data() -> Row:
    import tensorflow as tf

    data = mnist.load()

    def tf_pipeline():
        ds = tf.data.Dataset.from_tensor_slices(data).shuffle(60_000, seed=1).repeat().batch(BATCH)
        ds = ds.map(lambda b: {"image": tf.cast(b["image"], tf.float32), "label": b["label"]}, tf.data.AUTOTUNE)
        return ds.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    mine, peer = side_by_side(
        lambda: seconds_per_element(lambda: mnist_pipeline(data), 3000),
        lambda: seconds_per_element(tf_pipeline, 300),
    )
    return faster_than("the same", "tf.data (batch, then map)", 5, mine, peer)


class Floats:
    """A user's source: flattened images, as the tutorials write it."""

    def __init__(self):
        self._rows = np.random.default_rng(0).random((60_000, 784), np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> np.ndarray:
        return self._rows[i]


class Images:
    """A user's source that makes its arrays: an image as a vector of floats, and its label."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self._images, self._labels = rng.integers(0, 256, (60_000, 28, 28), np.uint8), rng.integers(0, 10, 60_000)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.int64]:
        return np.ravel(self._images[i]).astype(np.float32), self._labels[i]


def _against_loaders(source: Any, *, shuffled: bool, torch_floor: float, bare: bool = False) -> list[tuple[Any, ...]]:
    """For each peer its name, the floor, and the times of both sides."""
    import torch

    def build(lib, options):
        ds = lib.MapDataset.source(source)
        return (ds.shuffle(seed=1) if shuffled else ds).batch(BATCH).to_iter_dataset(options)

    def torch_loader():
        return torch.utils.data.DataLoader(source, batch_size=BATCH, shuffle=shuffled, num_workers=0)

    def bare_loop():
        order = np.random.default_rng(1).permutation(len(source)).tolist()
        for start in range(0, len(source), BATCH):
            images, labels = zip(*[source[i] for i in order[start : start + BATCH]], strict=True)
            yield np.stack(images), np.array(labels)

    mine, *others = side_by_side(
        lambda: seconds_per_element(lambda: build(hr, None), 400, BATCH),
        grain_best(build, 40, BATCH),
        lambda: seconds_per_element(torch_loader, 300, BATCH),
        *([lambda: seconds_per_element(bare_loop, 400, BATCH)] if bare else []),
        rounds=9 if bare else 5,
    )
    peers = [("Grain", 8), ("PyTorch DataLoader, 0 workers", torch_floor), ("a bare loop", 0.8)]
    return [(name, floor, mine, peer) for (name, floor), peer in zip(peers, others, strict=False)]


def user_source() -> list[Row]:
    work = "a __getitem__ source of 784 floats, batches of 128"
    first, *others = _against_loaders(Floats(), shuffled=False, torch_floor=1.0)
    return [faster_than(work, *first), *(faster_than("the same", *other) for other in others)]


def user_source_of_images() -> list[Row]:
    work = "a __getitem__ source that makes 784 floats of an image, with a label, shuffled, batches of 128"
    first, *others = _against_loaders(Images(), shuffled=True, torch_floor=1.1, bare=True)
    return [faster_than(work, *first), *(faster_than("the same", *other) for other in others)]


def first_element() -> Row:
    def once() -> float:
        data = {"x": np.zeros((60_000, 28, 28), np.uint8)}
        begin = time.perf_counter()
        next(iter(hr.MapDataset.source(data).shuffle(seed=1).repeat().batch(BATCH)))
        return time.perf_counter() - begin

    took = statistics.median(once() for _ in range(9))
    return Row("time to the first element, inline (ms)", in_time(took), "", took * 1e3, 5, higher_is_better=False)


def import_time() -> Row:
    script = """
        import time, numpy
        begin = time.perf_counter()
        import headrace
        print(time.perf_counter() - begin)
    """
    took = statistics.median(in_fresh_process(script) for _ in range(9))
    return Row("import headrace, beyond NumPy (ms)", in_time(took), "", took * 1e3, 150, higher_is_better=False)


def memory() -> Row:
    script = """
        import itertools, gc, psutil
        from headrace import MapDataset
        def used(): gc.collect(); return psutil.Process().memory_info().rss
        ds = MapDataset.range(10**7).shuffle(seed=1).map(lambda x: x + 1).to_iter_dataset()
        iterator = iter(ds.filter(lambda x: x % 2).window_shuffle(100, seed=1).batch(10))
        for _ in range(1000): next(iterator)
        before = used()
        for _ in range(100_000): next(iterator)
        print((used() - before) / 2**20)
    """
    grown = in_fresh_process(script)
    return Row("memory after 10^6 elements over 10^4 (MB)", f"{grown:.1f} MB", "", grown, 10, higher_is_better=False)


ROWS: list[Callable[[], Row | list[Row]]] = [
    range_map,
    random_map,
    mix,
    mix_of_many,
    restored_mix,
    filter_batch,
    mnist_numpy,
    mnist_tf_data,
    user_source,
    user_source_of_images,
    first_element,
    import_time,
    memory,
]
