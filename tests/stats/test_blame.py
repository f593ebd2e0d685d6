"""The verdict names the operation that is the bottleneck, wherever it stands and whoever computes it."""

import functools
import random
import time

import numpy as np
import pytest

import headrace
from headrace import IterDataset, MapDataset, ReadOptions
from headrace.packing import BestFitPackIterDataset, ConcatThenSplitIterDataset, FirstFitPackIterDataset

SLOW_S = 0.01  # far more than anything else takes, also on a busy machine


def element(i):
    return {"x": np.full(4, i, np.int32)}


def busy(x):
    end = time.perf_counter() + SLOW_S
    while time.perf_counter() < end:
        pass
    return x


def asleep(x):
    time.sleep(SLOW_S)
    return x


def same(x):
    return x


def keep(x):
    return True


def packed(kind, ds):
    return kind(ds, length_struct={"x": 16}, num_packing_bins=8)


GROUPS = {
    "window_shuffle": lambda ds: ds.window_shuffle(24, seed=1),
    "shuffle": lambda ds: ds.shuffle(24, seed=1),
    "batch": lambda ds: ds.batch(8),
    "batch_by_size": lambda ds: ds.batch_by_size(32, lambda x: x["x"].size, window_size=24, seed=1),
    "first_fit": functools.partial(packed, FirstFitPackIterDataset),
    "best_fit": functools.partial(packed, BestFitPackIterDataset),
    "concat_split": lambda ds: ConcatThenSplitIterDataset(ds, length_struct={"x": 16}),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x, x, x]),
    "filter": lambda ds: ds.filter(lambda x: int(x["x"].flat[0]) % 4 == 0),
    "batch_of_windows": lambda ds: ds.window_shuffle(24, seed=1).window_shuffle(7, seed=1).batch(8),
    "interleave": lambda ds: IterDataset.mix([ds, ds.map(same)]),
}
MORE = [
    lambda ds: ds.map(same),
    lambda ds: ds.filter(keep),
    lambda ds: ds.window_shuffle(10, seed=2),
    lambda ds: ds.shuffle(10, seed=2),
]
EXECUTORS = {
    "inline": (ReadOptions(num_threads=0), lambda ds: ds),
    "threads": (ReadOptions(num_threads=2), lambda ds: ds),
    "AUTOTUNE": (None, lambda ds: ds),
    "prefetch": (ReadOptions(num_threads=0), lambda ds: ds.prefetch(4)),
    "workers": (ReadOptions(num_threads=0), lambda ds: ds.mp_prefetch(2)),
}


def chain(group, place, executor, slow):
    """A random chain with one slow operation: in the random-access part, before the group, or after it."""
    rng = random.Random(f"{group} {place} {executor}")
    options, ahead = EXECUTORS[executor]
    some = lambda ds: functools.reduce(lambda ds, add: add(ds), rng.sample(MORE, rng.randrange(3)), ds)  # noqa: E731
    ds = MapDataset.range(10**6).map(element)
    ds = (ds.map(slow) if place == "at the source" else ds).to_iter_dataset(options)
    ds = some(ds)
    ds = some(ds.map(slow)) if place == "before" else ds
    ds = GROUPS[group](ds)
    ds = some(ds).map(slow) if place == "after" else ds
    return ahead(some(ds))


def stats_after(ds, seconds=0.6):
    with iter(ds) as iterator:
        end = time.perf_counter() + seconds
        for i in range(10**6):
            next(iterator)
            if i >= 10 and time.perf_counter() > end:
                break
        return iterator.stats()


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("place", ["at the source", "before", "after"])
@pytest.mark.parametrize("group", GROUPS)
def test_the_verdict_names_the_slow_operation(group, place, executor):
    slow = random.Random(f"{group} {executor} {place}").choice([busy, asleep])
    if executor == "AUTOTUNE":
        slow = busy  # a hundred threads would sleep until something else is the bottleneck
    stats = stats_after(chain(group, place, executor, slow))
    assert stats.verdict.startswith(f"map({slow.__name__} "), f"{stats.verdict}\n{stats}"
    assert stats.operations[0].operation.startswith(f"map({slow.__name__} "), str(stats)


@pytest.mark.parametrize("group", ["window_shuffle", "best_fit"])
def test_a_diagnosis_names_the_slow_operation(group):
    found = headrace.diagnose(chain(group, "before", "inline", busy), seconds=1.0)
    assert found.verdict.startswith("map(busy "), str(found)


def test_a_source_that_reads_many_records_at_once_is_named():
    class Bursts(IterDataset):
        def __iter__(self):
            return self

        def __init__(self):
            super().__init__()
            self._number = 0

        def __next__(self):
            self._number += 1
            if self._number % 50 == 0:
                time.sleep(0.1)
            return self._number

    stats = stats_after(Bursts().map(same).batch(2))
    assert "Bursts" in stats.operations[0].operation, str(stats)
