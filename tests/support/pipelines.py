"""Pipelines that take a while, one for each kind of stage, and what comes out of them."""

import time

import numpy as np

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.testing import assert_equal

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)


def slowly(x):
    time.sleep(0.001)
    return x


def numbers(i, delay=slowly):
    return {"x": np.full(1000, delay(i)), "i": i}


class Counting(IterDataset):
    """A stream of the user's own: no random access."""

    def __iter__(self):
        for i in range(60):
            yield numbers(i)


def by_index() -> IterDataset:
    return MapDataset.range(200).map(numbers).to_iter_dataset().filter(lambda e: e["i"] % 3).batch(8)


def in_blocks() -> IterDataset:
    ds = MapDataset.range(200).to_iter_dataset().filter(lambda i: i % 3)
    return ds.random_map(lambda i, rng: numbers(i + int(rng.integers(10))), seed=1).batch(8)


def as_whole_streams() -> IterDataset:
    return IterDataset.interleave([Counting(), Counting(), Counting()], cycle_length=2).batch(8)


PIPELINES = {"by index": by_index, "in blocks": in_blocks, "whole streams": as_whole_streams}
EXPECTED: dict[str, list] = {}


def expected(name):
    if name not in EXPECTED:
        EXPECTED[name] = list(PIPELINES[name]())
    return EXPECTED[name]


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert_equal(x, y)
