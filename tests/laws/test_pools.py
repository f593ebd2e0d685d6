"""Any pool of workers gives the same stream: the laws, on a pool of threads and plain pickles."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings

from headrace import IterDataset, MapDataset
from headrace.errors import WorkerError
from headrace.testing import assert_resumable
from tests.laws.test_laws import SOURCES, Boom, assert_same, outputs
from tests.support.chains import STREAM_OPS, stream_datasets
from tests.support.proc import until
from tests.support.thread_pool import Died, ThreadPool, ThreadWorkers


def on_threads(ds, number=2):
    return ds.mp_prefetch(ThreadWorkers(num_workers=number, per_worker_buffer_size=2))


# ---- one stream, every output a checkpoint


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_every_stream_operation_is_one_stream(name):
    for source, k in (("arrays", 4), ("rows", 11)):
        ds = STREAM_OPS[name](SOURCES[source]().repeat(3).to_iter_dataset(), k).map(lambda x: x)
        expected = outputs(ds, 60)
        for number in (1, 3):
            assert_same(outputs(on_threads(ds, number), 60), expected)


@settings(max_examples=settings.default.max_examples // 5)
@given(stream_datasets())
def test_random_streams_are_resumable(ds):
    assert_resumable(on_threads(ds), max_outputs=5)


def test_a_state_of_threads_goes_on_with_processes_and_alone():
    ds = MapDataset.range(400).to_iter_dataset().filter(lambda x: x % 3).window_shuffle(7, seed=1).batch(4)
    with iter(on_threads(ds, 3)) as iterator:
        for _ in range(20):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        rest = list(iterator)
    for other in (ds, ds.mp_prefetch(2), on_threads(ds, 1)):
        with iter(other) as iterator:
            iterator.set_state(state)
            assert_same(list(iterator), rest)


def test_functions_run_in_the_pool():
    ds = MapDataset.range(300).map(lambda x: (x, threading.get_ident())).to_iter_dataset()
    found = list(on_threads(ds))
    assert [x for x, _ in found] == list(range(300))
    assert threading.get_ident() not in {thread for _, thread in found}
    assert "worker: " in str(on_threads(ds).explain())


# ---- errors in order


def test_what_comes_before_an_error_comes_first_and_the_error_again():
    def fails(x):
        if x == 30:
            raise Boom("at 30")
        return x

    iterator, got = iter(on_threads(MapDataset.range(60).map(fails).to_iter_dataset().filter(lambda x: x % 2 == 0))), []
    with pytest.raises(Boom, match="at 30"):  # noqa: PT012
        for x in iterator:
            got.append(x)  # noqa: PERF402
    assert got == list(range(0, 30, 2))
    with pytest.raises(Boom, match="at 30"):
        next(iterator)
    iterator.close()


# ---- a worker that dies


def dies_once(tmp_path, *at):
    def function(x):
        marker = tmp_path / str(x)
        if int(x) in at and not marker.exists():
            marker.touch()
            raise Died
        return x

    return function


def streams_to_die_in(function):
    ds = MapDataset.range(200)
    yield ds.map(function).to_iter_dataset()
    yield ds.to_iter_dataset().window_shuffle(20, seed=1).filter(lambda x: function(x) is not None)
    parts = [MapDataset.range(200 * i, 200 * i + 200).to_iter_dataset() for i in range(3)]
    yield IterDataset.mix([Whole(part).map(function) for part in parts])


class Whole(IterDataset):
    """A stream without random access: one worker computes all of it."""

    def __init__(self, parent):
        super().__init__(parent)

    def __iter__(self):
        return iter(self._parent)


@pytest.mark.parametrize("kind", range(3))
def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path, kind):
    expected = list(list(streams_to_die_in(lambda x: x))[kind])
    before = ThreadPool.deaths
    ds = list(streams_to_die_in(dies_once(tmp_path, 7, 90, 150)))[kind]
    assert_same(list(on_threads(ds)), expected)
    assert ThreadPool.deaths == before + 3


def test_an_element_that_kills_every_worker_is_an_error_that_names_it():
    def kills(x):
        if x == 25:
            raise Died
        return x

    iterator, got = iter(on_threads(MapDataset.range(60).map(kills).to_iter_dataset())), []
    with pytest.raises(WorkerError, match="Workers died over element 25 of map"):  # noqa: PT012
        for x in iterator:
            got.append(x)  # noqa: PERF402
    assert got == list(range(25))
    iterator.close()


# ---- pools


def test_pools_end_with_their_iterator():
    before = set(threading.enumerate())
    with iter(on_threads(MapDataset.range(1000).to_iter_dataset().map(str))) as iterator:
        assert next(iterator) == "0"
        started = {thread.name for thread in threading.enumerate() if thread not in before}
        assert len(started - {"headrace-watch"}) == 2
    until(lambda: set(threading.enumerate()) <= before, "threads left")


def test_arrays_come_back_as_they_were():
    ds = MapDataset.range(50).map(lambda i: {"x": np.full((3, i % 4), i), "name": f"{i}"}).to_iter_dataset()
    assert_same(list(on_threads(ds)), list(ds))
    assert_same(
        list(on_threads(ds.map(lambda row: row["x"][:, :1].sum()).batch(4))),
        list(ds.map(lambda row: row["x"][:, :1].sum()).batch(4)),
    )


def test_each_kind_of_options_has_its_own_pool():
    parts = [MapDataset.range(40).to_iter_dataset().map(str) for _ in range(2)]
    ds = IterDataset.mix([on_threads(parts[0]), parts[1].mp_prefetch(1)])
    assert list(ds) == list(IterDataset.mix(parts))
