"""The verdict names the operation that is the bottleneck, wherever it stands and whoever computes it."""

import random
import time

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, ReadOptions, diagnose
from headrace.performance import num_cores
from headrace.stats import OperationStats, StageStats, Stats

SECONDS = 0.1, 0.5, 2.0  # of a run: on a busy machine, even the start of threads takes long


def slow(x):
    """The planted operation."""
    time.sleep(0.002)
    return x


def tokens(x):
    """Sequences of 3 to 7 tokens."""
    return np.arange(3 + int(np.sum(x)) % 5)


def packed(ds, strategy, **options):
    return (
        ds.map(lambda x: {"x": tokens(x)}).pack({"x": 20}, strategy=strategy, **options).map(lambda row: row["x"][:4])
    )


ELEMENTS = {
    "map": lambda ds: ds.map(lambda x: x),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1),
    "filter": lambda ds: ds.filter(lambda x: int(np.sum(x)) % 4 > 0),
}
GROUPS = {
    "batch": lambda ds: ds.map(np.sum).batch(4),
    "rebatch": lambda ds: ds.map(np.sum).batch(3).rebatch(5),
    "padded_batch": lambda ds: ds.map(tokens).padded_batch(4),
    "batch_by_size": lambda ds: ds.map(tokens).batch_by_size(40, window_size=20, seed=1),
    "window_shuffle": lambda ds: ds.window_shuffle(30, seed=1),
    "shuffle": lambda ds: ds.shuffle(30, seed=1),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x, x, x]),
    "mix": lambda ds: IterDataset.mix([ds, ds.skip(1)], [2, 1]),
    "mix by size": lambda ds: IterDataset.mix([ds.map(tokens), ds.skip(1).map(tokens)], [2, 1], weigh_by=len),
    "zip": lambda ds: IterDataset.zip([ds, ds.skip(1)]).map(lambda pair: pair[0]),
    "interleave": lambda ds: IterDataset.interleave([ds, ds.skip(1), ds.skip(2)], cycle_length=2),
    "lazy interleave": lambda ds: IterDataset.interleave(
        MapDataset.range(1000).map(lambda i: ds.skip(i).take(9)), cycle_length=2
    ),
    "repeat": lambda ds: ds.take(40).repeat(),
    "cache": lambda ds: ds.cache(),
    "global_batch": lambda ds: ds.map(np.sum).global_batch(4),
    "first fit": lambda ds: packed(ds, "first_fit", num_packing_bins=3),
    "best fit": lambda ds: packed(ds, "best_fit", num_packing_bins=3),
    "concat_split": lambda ds: packed(ds, "concat_split"),
}
EXECUTORS = {
    "inline": (ReadOptions(num_threads=0), lambda ds: ds),
    "threads": (ReadOptions(num_threads=2), lambda ds: ds),
    "thread": (ReadOptions(num_threads=0), lambda ds: ds.prefetch(4)),
    "threads and a thread": (ReadOptions(num_threads=2), lambda ds: ds.prefetch(4)),
    "default": (None, lambda ds: ds),
    "workers": (None, lambda ds: ds.mp_prefetch(2)),
}
HERE = sorted(EXECUTORS.keys() - {"workers"})


def chain(names, place, options=None):
    """Operations in this order, with the slow one at a place; at 0 it is read by index."""
    ds = MapDataset.range(1_000_000)
    ds = (ds.map(slow) if place == 0 else ds).to_iter_dataset(options)
    for number, name in enumerate(names, start=1):
        ds = (ELEMENTS | GROUPS)[name](ds)
        if number == place:
            ds = ds.map(slow)
    return ds


def assert_is_found(ds, about):
    for seconds in SECONDS:
        with iter(ds) as iterator:
            begin = time.monotonic()
            for count, _ in enumerate(iterator, start=1):
                if count >= 12 and time.monotonic() > begin + seconds:
                    break
            stats = iterator.stats()
        if stats.verdict.startswith("map(slow "):
            return
    pytest.fail(f"{about}: {stats}")


def random_chain(seed):
    """Some names, of which at most one makes few outputs of many inputs, and a place."""
    chance, few = random.Random(seed), sorted(ELEMENTS) + ["window_shuffle", "shuffle", "flat_map", "mix", "zip"]
    names = [chance.choice(sorted(GROUPS)), *chance.sample(few, 2)]
    chance.shuffle(names)
    return names, chance.randint(0, len(names))


@pytest.mark.parametrize("where", ["read by index", "before", "after"])
@pytest.mark.parametrize("group", GROUPS)
def test_a_slow_operation_beside_each_kind_of_group(group, where):
    names, place = {"read by index": ([group], 0), "before": (["map", group], 1), "after": ([group, "map"], 1)}[where]
    executor = random.Random(group + where).choice(HERE)
    options, computed = EXECUTORS[executor]
    assert_is_found(computed(chain(names, place, options)), executor)


@pytest.mark.parametrize(("executor", "seed"), [*((name, 1) for name in HERE), ("workers", 1), ("workers", 2)])
def test_a_slow_operation_in_each_executor(executor, seed):
    options, computed = EXECUTORS[executor]
    names, place = random_chain(seed)
    assert_is_found(computed(chain(names, place, options)), (names, place))


def test_a_slow_operation_that_is_diagnosed(monkeypatch):
    monkeypatch.setattr("headrace.stats.bounds.ALWAYS_TRIED", 2)
    names, place = random_chain(3)
    found = diagnose(chain(names, place), seconds=0.5)
    assert found.verdict.startswith("map(slow "), f"{names}, {place}: {found}"


def random_stats(chance):
    """A run of some seconds with workers, in which any part of the time may go anywhere."""
    workers, wall_s = chance.choice([1, 2, 8]), chance.uniform(1, 10)
    next_s = wall_s * chance.random()
    busy_s = workers * wall_s * chance.random()
    cpu_s = busy_s * chance.random()
    return Stats(
        elements=chance.randint(8, 10_000),
        bytes=chance.randint(8, 10_000_000),
        next_s=next_s,
        waited_s=next_s * chance.random(),
        consumer_s=wall_s - next_s,
        cpu_s=cpu_s + wall_s * chance.random() * chance.choice([0, 1]),
        stages=(StageStats("map(slow)", "workers", workers, 10, 10, 0, busy_s, cpu_s, 0.0, 0.0, None),),
        operations=(OperationStats("map(slow)", "workers", 10, busy_s),),
    )


@pytest.mark.parametrize(("threads_cpu_s", "named"), [(3.6, "map(slow) is the bottleneck"), (0.5, "mix(")])
def test_threads_that_hold_the_gil_are_not_taken_for_the_consumer(threads_cpu_s, named):
    """What the consumer does then takes long, though it is not on a core."""
    stats = Stats(
        elements=1000,
        bytes=8000,
        next_s=4.0,
        waited_s=0.1,
        consumer_s=0.1,
        cpu_s=3.9,
        stages=(StageStats("map(slow)", "threads", 16, 1000, 1000, 0, 3.7, threads_cpu_s, 0.0, 0.0, None),),
        operations=(
            OperationStats("mix((1, 9))", "consumer", 1000, 3.9),
            OperationStats("map(slow)", "threads", 1000, 3.6),
        ),
    )
    assert stats.verdict.startswith(named)


def test_verdicts_do_not_contradict_themselves():
    chance, said = random.Random(1), set()
    for _ in range(3000):
        stats = random_stats(chance)
        cores = stats.cpu_s / stats.wall_s
        said.add(stats.verdict.rpartition(": ")[2])
        if "needed already" in stats.verdict or "core is in use" in stats.verdict:
            assert cores >= num_cores() / 2, stats.verdict
    assert len(said) > 3
