"""An output does not wait for a record far behind it."""

import itertools
import threading
import time

import pytest

import headrace
from headrace import MapDataset, ReadOptions

SLOW = 250


def loader(ds, options):
    sampler = headrace.SequentialSampler(1000, headrace.NoSharding())
    return headrace.DataLoader(data_source=ds, sampler=sampler, operations=[headrace.Batch(4)], read_options=options)


PIPELINES = {
    "elements": (1, lambda ds, options: ds.to_iter_dataset(options)),
    "batches of the stream": (4, lambda ds, options: ds.to_iter_dataset(options).batch(4)),
    "batches": (4, lambda ds, options: ds.batch(4).to_iter_dataset(options)),
    "ahead": (4, lambda ds, options: ds.to_iter_dataset(options).batch(4).prefetch(64)),
    "loader": (4, loader),
}


@pytest.mark.parametrize("num_threads", [0, 1, 16])
@pytest.mark.parametrize("name", PIPELINES)
def test_only_outputs_near_a_slow_record_are_late(name, num_threads):
    size, build = PIPELINES[name]
    # Threads know what is ready; without them, a run is made as a whole.
    least = SLOW * 4 // 5 if num_threads or name == "ahead" else SLOW * 2 // 3
    num_there, enough, waited = 0, threading.Event(), []

    def slow_once(x):
        if x == SLOW:
            waited.append(enough.wait(20 if num_threads or name == "ahead" else 0))
        return x

    pipeline = build(MapDataset.range(1000).map(slow_once), ReadOptions(num_threads=num_threads))
    with iter(pipeline) as iterator:
        for _ in itertools.islice(iterator, SLOW // size + 2):
            num_there += size
            if num_there >= least:
                enough.set()
    assert waited[0], "what came before the slow record was not handed over"


def slow_from(first):
    def function(x):
        end = time.perf_counter() + (0.02 if x >= first else 30e-6)
        while time.perf_counter() < end:
            pass
        return x

    return function


@pytest.mark.parametrize("name", ["elements", "batches of the stream", "batches"])
def test_where_records_become_slow_what_is_there_is_handed_over(name):
    size, build = PIPELINES[name]
    pipeline = build(MapDataset.range(3000).map(slow_from(2000)), ReadOptions(num_threads=0))
    found, longest_s, last = [], 0.0, time.perf_counter()
    with iter(pipeline) as iterator:
        for output in itertools.islice(iterator, 2020 // size):
            now = time.perf_counter()
            longest_s, last = max(longest_s, now - last), now
            found += [output] if size == 1 else output.tolist()
    assert found == list(range(2020))
    assert longest_s < 60 * 0.02  # a run has 128 records, or more
