"""An output does not wait for a record far behind it."""

import itertools
import threading
import time

import pytest

import headrace
from headrace import MapDataset, ReadOptions
from tests.support.proc import WAIT_S

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
            waited.append(enough.wait(WAIT_S if num_threads or name == "ahead" else 0))
        return x

    pipeline = build(MapDataset.range(1000).map(slow_once), ReadOptions(num_threads=num_threads))
    with iter(pipeline) as iterator:
        for _ in itertools.islice(iterator, SLOW // size + 2):
            num_there += size
            if num_there >= least:
                enough.set()
    assert waited[0], "what came before the slow record was not handed over"


@pytest.mark.parametrize("name", ["elements", "batches of the stream", "batches"])
def test_where_records_become_slow_what_is_there_is_handed_over(name):
    size, build = PIPELINES[name]
    num_slow = 0

    def slow_from_2000(x):
        nonlocal num_slow
        num_slow += x >= 2000
        end = time.perf_counter() + (0.02 if x >= 2000 else 30e-6)
        while time.perf_counter() < end:
            pass
        return x

    pipeline = build(MapDataset.range(3000).map(slow_from_2000), ReadOptions(num_threads=0))
    found, most, last = [], 0, 0
    with iter(pipeline) as iterator:
        for output in itertools.islice(iterator, 2020 // size):
            most, last = max(most, num_slow - last), num_slow
            found += [output] if size == 1 else output.tolist()
    assert found == list(range(2020))
    assert 0 < most < 60  # a run has 128 records, or more, where nobody else uses the machine
