"""Many processes: what one host of eight pays for global batches that do not depend on their number."""

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, in_time, seconds_per_element, side_by_side
from headrace.sharding import ShardOptions

HOSTS = 8
LANES = (1, 8, 64)
BATCH = 1024  # rows of all hosts


Cut = Callable[[hr.MapDataset], hr.IterDataset]


def filtered(cut: Cut) -> Any:
    return cut(hr.MapDataset.range(10**6).shuffle(seed=1).repeat()).filter(lambda x: x % 2 == 0)


def packed(cut: Cut) -> Any:
    parts = [
        cut(hr.MapDataset.range(10**6).shuffle(seed=i).repeat().map(lambda x: {"x": np.arange(x % 50 + 1)}))
        for i in range(8)
    ]
    mix = hr.IterDataset.mix(parts, range(1, 9)).filter(lambda e: len(e["x"]) > 5)
    return mix.window_shuffle(100, seed=1).pack({"x": 128}, num_packing_bins=8)


def short(cut: Cut) -> Any:
    """Rows that cost so little that what a lane costs by itself shows."""
    parts = [cut(hr.MapDataset.range(10**6).seed(i).shuffle().repeat()) for i in range(8)]
    sequences = [part.filter(lambda x: x % 3).map(lambda x: {"x": np.full(x % 20 + 1, x)}) for part in parts]
    return hr.IterDataset.mix(sequences, [1.0] * 8).pack({"x": 64}, num_packing_bins=8)


def slow(cut: Cut) -> Any:
    return filtered(cut).map(_work)


def _work(x: int) -> int:
    end = time.perf_counter() + 200e-6
    while time.perf_counter() < end:
        pass
    return x


def in_lanes(count: int) -> Cut:
    return lambda ds: ds.to_iter_dataset(num_lanes=count)


def _costs(work: str, build: Callable[[Cut], Any], *, batches: int, rounds: int = 5, most: float = 1.5) -> list[Row]:
    """What a row of one host costs with lanes, against a shard that only a run on eight hosts can restore."""
    rows = BATCH // HOSTS

    def shard() -> float:
        own = build(lambda ds: ds.shard(HOSTS, 3).to_iter_dataset()).batch(rows)
        return seconds_per_element(lambda: own, batches, rows, warm_up=batches // 10)

    def lanes(count: int) -> float:
        own = build(in_lanes(count)).global_batch(BATCH, ShardOptions(3, HOSTS))
        return seconds_per_element(lambda: own, batches, rows, warm_up=batches // 10)

    plain, *others = side_by_side(shard, *(partial(lanes, n) for n in LANES), rounds=rounds)
    return [
        Row(
            f"one host of 8: {work}, {n} lane{'s' if n > 1 else ''}",
            in_time(took),
            f"a plain shard {in_time(plain)}",
            took / plain,
            HOSTS + 1 if n == 1 else most,
            higher_is_better=False,
        )
        for n, took in zip(LANES, others, strict=True)
    ]


def lanes_of_filter() -> list[Row]:
    return _costs("cheap filter", filtered, batches=3000)


def lanes_of_packing() -> list[Row]:
    return _costs("mix of 8, filter, window, packing", packed, batches=50)


def lanes_of_short_rows() -> list[Row]:
    return _costs("mix of 8, filter, packing of short rows", short, batches=100, most=2.0)


def lanes_of_slow_map() -> list[Row]:
    return _costs("filter, map of 200 µs", slow, batches=10, rounds=3)


def restore_lanes() -> list[Row]:
    """The states of all hosts joined, restored by one that computes all lanes."""
    ds = packed(in_lanes(64)).global_batch(BATCH)
    iterator = iter(ds)
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))

    def once() -> float:
        begin = time.perf_counter()
        again = iter(ds)
        again.set_state(state)
        next(again)
        took = time.perf_counter() - begin
        again.close()
        return took

    took, size = statistics.median(once() for _ in range(5)), len(json.dumps(state)) / 1000
    return [
        Row("restoring 64 lanes of a mix of 8 (s)", in_time(took), "", took, 0.5, higher_is_better=False),
        Row(
            "the state of 64 lanes of a mix of 8, all hosts (kB)",
            f"{size:.0f} kB",
            "",
            size,
            64,
            higher_is_better=False,
        ),
    ]


def many_lanes() -> list[Row]:
    """One host of eight at the first batch of 1,024 lanes, one row of each, and at the first after restoring."""
    ds = short(in_lanes(1024)).global_batch(BATCH, ShardOptions(3, HOSTS))
    with iter(ds) as iterator:
        next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))

    def first(state: Any = None) -> float:
        begin = time.perf_counter()
        with iter(ds) as iterator:
            if state is not None:
                iterator.set_state(state)
            next(iterator)
            return time.perf_counter() - begin

    began, restored = (statistics.median(first(at) for _ in range(5)) for at in (None, state))
    return [
        Row("one host of 8: the first batch of 1,024 lanes (s)", in_time(began), "", began, 1, higher_is_better=False),
        Row("the same, after restoring (s)", in_time(restored), "", restored, 1, higher_is_better=False),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [
    lanes_of_filter,
    lanes_of_packing,
    lanes_of_short_rows,
    lanes_of_slow_map,
    restore_lanes,
    many_lanes,
]
