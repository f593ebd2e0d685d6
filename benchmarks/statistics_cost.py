"""What the statistics of `iterator.stats()` cost: pipelines as they are, and with nothing counted or timed."""

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import headrace as hr
from benchmarks import mnist
from benchmarks.core import BATCH, Floats, Images, mnist_pipeline
from benchmarks.measure import Row, in_time
from headrace.ops.recorder import Recorder, StageRecord

MOST_COST = 1.02
PAIRS = 9
SLICES, SLICE_S = 30, 0.015  # both sides take turns every few milliseconds, so that noise falls on both


class _NoRecord(StageRecord):
    """A record that counts nothing, and measures no run."""

    __slots__ = ()

    def profile(self) -> None:
        return None

    def _count_nothing(self, *args: Any) -> None:
        pass

    add = add_busy = add_profile = add_starved = add_times = fill = _count_nothing


class _NoRecorder(Recorder):
    """A recorder that does nothing."""

    def __init__(self, **named: Any):
        super().__init__(**named)
        self.outputs = _NoRecord()

    def of(self, *args: Any) -> StageRecord:
        return _NoRecord()

    def handed_over(self, *args: Any) -> None:
        pass


def _without_statistics(ds: Iterable[Any]) -> Iterator[Any]:
    with mock.patch("headrace.engine.iteration.Recorder", _NoRecorder):
        return iter(ds)


def _pipelines() -> dict[str, tuple[Callable[[], Iterable[Any]], int]]:
    """Pipelines of other rows, and how many outputs come before they are timed."""
    numbers = hr.MapDataset.range(10**9)
    parts = [numbers.shuffle(seed=i) for i in range(4)]
    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(1, 50_000, n, np.int32)} for n in rng.integers(16, 513, 20_000)]
    digits, floats, images = mnist.load(), Floats(), Images()
    inline = hr.ReadOptions(num_threads=0)
    return {
        "range.map": (lambda: numbers.map(lambda x: x + 1).to_iter_dataset(), 300_000),
        "random_map": (
            lambda: numbers.seed(3).shuffle().random_map(lambda x, rng: x + rng.integers(10)).to_iter_dataset(),
            30_000,
        ),
        "a mix of four": (lambda: hr.MapDataset.mix(parts).to_iter_dataset(), 300_000),
        "filter and batch": (
            lambda: numbers.shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(BATCH),
            1000,
        ),
        "MNIST arrays": (lambda: mnist_pipeline(digits), 1500),
        "a `__getitem__` source": (
            lambda: hr.MapDataset.source(floats).repeat().batch(BATCH).to_iter_dataset(inline),
            300,
        ),
        "one that makes its arrays": (
            lambda: hr.MapDataset.source(images).shuffle(seed=1).repeat().batch(BATCH).to_iter_dataset(inline),
            200,
        ),
        "first fit": (lambda: hr.MapDataset.source(texts).repeat().to_iter_dataset().pack({"tokens": 2048}), 1200),
    }


def statistics_cost() -> list[Row]:
    return [_cost(name, *pipeline) for name, pipeline in _pipelines().items()]


def _cost(name: str, make: Callable[[], Iterable[Any]], warm_up: int) -> Row:
    pairs = [_pair(make, warm_up, ours_first=bool(k % 2)) for k in range(PAIRS)]
    ours, bare = map(statistics.median, zip(*pairs, strict=True))
    ratio = statistics.median(ours / bare for ours, bare in pairs)
    work = f"{name} with its statistics"
    return Row(work, in_time(ours), f"without {in_time(bare)}", ratio, MOST_COST, higher_is_better=False)


def _pair(make: Callable[[], Iterable[Any]], warm_up: int, *, ours_first: bool) -> tuple[float, float]:
    """Seconds an output with statistics and without, of two iterators that take turns."""
    sides = [iter(make()), _without_statistics(make())]
    order = (0, 1) if ours_first else (1, 0)
    count = max(1, int(warm_up * SLICE_S / max(_cpu_s(sides[k], warm_up) for k in order)))
    gc.collect()
    took_s = [0.0, 0.0]
    for _ in range(SLICES):
        for k in order:
            took_s[k] += _cpu_s(sides[k], count)
    return took_s[0] / (SLICES * count), took_s[1] / (SLICES * count)


def _cpu_s(iterator: Iterator[Any], count: int) -> float:
    """How long this thread needs a core for some outputs."""
    begin = time.thread_time()
    for _ in itertools.islice(iterator, count):
        pass
    return time.thread_time() - begin


ROWS: list[Callable[[], Row | list[Row]]] = [statistics_cost]
