"""`num_workers=AUTOTUNE`: how many workers there are, and that streams do not depend on it."""

import itertools
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import AUTOTUNE, IterDataset, MapDataset, ReadOptions
from headrace.engine.tuning import IDLE_WINDOWS, LITTLE_BYTES, TuningWindow, WorkerCountController
from headrace.engine.workers.pool import ProcessPool, open_pools
from headrace.errors import WorkerError
from headrace.testing import assert_equal
from headrace.threads import ThreadPool
from tests.support.chains import stream_datasets
from tests.support.proc import LIMIT_S, nothing_left, until, workers_of

INLINE = ReadOptions(num_threads=0)


# ------------------------------------------------------------------------------------- the decision


class Machine:
    """A machine whose workers each make an output in `work_s`, on a core for `cpu_s` of it, for a loop of `loop_s`."""

    def __init__(self, *, cores, work_s, cpu_s, loop_s=0.0, most=float("inf")):
        self.cores, self.work_s, self.cpu_s, self.loop_s, self.most = cores, work_s, cpu_s, loop_s, most

    def window(self, workers, **more):
        made = min(workers / self.work_s, self.cores / max(self.cpu_s, 1e-9), self.most)
        rate = min(made, 1 / self.loop_s if self.loop_s else made)
        waited_s = 1 - rate * self.loop_s
        return TuningWindow(1.0, round(1000 * rate) / 1000, waited_s, rate * self.work_s, rate * self.cpu_s, **more)


def settled(machine, *, start, most=64, windows=200):
    climber = WorkerCountController(start, most, machine.cores)
    return [climber.next(machine.window(climber.number)) for _ in range(windows)]


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(cores=16, work_s=0.01, cpu_s=0.01), range(14, 17)),  # each needs a core
        (Machine(cores=16, work_s=0.1, cpu_s=0.005), [64]),  # they wait for data most of the time
        (Machine(cores=16, work_s=0.1, cpu_s=0.1, loop_s=0.0251), range(4, 6)),  # the loop takes no more
        (Machine(cores=16, work_s=0.1, cpu_s=0.01, most=40), range(4, 7)),  # something else gives no more
    ],
)
def test_as_many_workers_as_help(machine, expected):
    numbers = settled(machine, start=2)
    assert sorted(numbers[-50:])[25] in expected, numbers


def test_tries_that_do_not_help_get_rare():
    numbers = settled(Machine(cores=16, work_s=0.1, cpu_s=0.01, most=40), start=4, windows=300)
    tries = sum(b > a for a, b in itertools.pairwise(numbers))
    assert tries < 12


def test_workers_that_have_nothing_to_do_leave():
    numbers = settled(Machine(cores=16, work_s=0.01, cpu_s=0.01, loop_s=0.02), start=8, windows=8 * IDLE_WINDOWS)
    assert numbers[0] == 8
    assert numbers[-1] == 1


def test_workers_leave_when_memory_gets_short_and_none_are_added():
    machine, climber = Machine(cores=16, work_s=0.01, cpu_s=0.001), WorkerCountController(4, 64, 16)
    short = {"free_bytes": LITTLE_BYTES // 2, "worker_bytes": 100 << 20}
    assert [climber.next(machine.window(climber.number, **short)) for _ in range(5)] == [3, 2, 1, 1, 1]
    tight = {"free_bytes": LITTLE_BYTES + (50 << 20), "worker_bytes": 100 << 20}
    assert {climber.next(machine.window(climber.number, **tight)) for _ in range(20)} == {1}


def test_nothing_is_decided_while_workers_start():
    machine, climber = Machine(cores=16, work_s=0.01, cpu_s=0.01), WorkerCountController(2, 64, 16)
    assert {climber.next(machine.window(2, all_ready=False)) for _ in range(10)} == {2}


# ------------------------------------------------------------------------------------- the stream


def pool_of_this_process():
    (pool,) = open_pools(ProcessPool)
    return pool


def read_while_resizing(ds, seed, *, kill=False):
    """All elements, and some states on the way; the number of workers changes at random, and one may be killed."""
    chance, found, states = random.Random(seed), [], {}
    with iter(ds.mp_prefetch(2)) as iterator:
        for element in iterator:
            found.append(element)
            if chance.random() < 0.1:
                pool_of_this_process().resize(chance.randint(1, 4))
            if chance.random() < 0.1:
                states[len(found)] = iterator.get_state()
            if kill and len(found) == 5 and (pids := pool_of_this_process().pids):
                os.kill(chance.choice(pids), signal.SIGKILL)
    return found, states


@pytest.mark.usefixtures("no_other_workers")
@settings(max_examples=settings.default.max_examples // 2)
@given(stream_datasets(), st.integers(0, 1000), st.booleans())
def test_streams_do_not_depend_on_how_many_workers_there_are(ds, seed, kill):
    expected = list(ds.take(60))
    found, states = read_while_resizing(ds.take(60), seed, kill=kill)
    assert_equal(found, expected)
    for count, state in list(states.items())[:1]:
        with iter(ds.take(60).mp_prefetch(2)) as iterator:
            iterator.set_state(state)
            assert_equal(list(iterator), expected[count:])


def whole_stream(i):
    return MapDataset.range(40 * i, 40 * i + 40).to_iter_dataset(INLINE).filter(lambda x: x % 3).shuffle(4, seed=i)


@pytest.mark.usefixtures("no_other_workers")
def test_whole_streams_stay_with_their_workers():
    ds = IterDataset.interleave(MapDataset.range(8).map(whole_stream), cycle_length=3)
    assert read_while_resizing(ds, 1, kill=True)[0] == list(ds)


@pytest.mark.usefixtures("no_other_workers")
def test_workers_that_leave_end_and_leave_nothing():
    with nothing_left(), iter(MapDataset.range(10_000).map(abs).to_iter_dataset().mp_prefetch(4)) as iterator:
        next(iterator)
        pool = pool_of_this_process()
        until(pool.all_ready, "the workers start")
        assert len(workers_of(os.getpid())) == 4
        pool.resize(1)
        expected = iter(range(1, 10_000))
        until(lambda: next(iterator) == next(expected) and len(workers_of(os.getpid())) == 1, "three workers end")
        pool.resize(3)
        assert pool.num_workers == 3
        assert next(iterator) == next(expected)


@pytest.mark.usefixtures("no_other_workers")
def test_a_stream_goes_on_if_no_more_processes_can_be_started(monkeypatch):
    with nothing_left(), iter(MapDataset.range(100).map(abs).to_iter_dataset().mp_prefetch(1)) as iterator:
        assert next(iterator) == 0

        def refused(index):
            raise WorkerError("Resource temporarily unavailable")

        with monkeypatch.context() as patch:
            patch.setattr("headrace.engine.workers.pool.Process", refused)
            pool_of_this_process().resize(3)
        assert pool_of_this_process().num_workers == 1
        assert list(iterator) == list(range(1, 100))


def test_after_a_refusal_the_next_try_is_late():
    machine, climber = Machine(cores=16, work_s=0.01, cpu_s=0.01), WorkerCountController(2, 64, 16)
    assert climber.next(machine.window(2)) > 2
    climber.settle_for(2)
    assert {climber.next(machine.window(2)) for _ in range(50)} == {2}


# ------------------------------------------------------------------------------------- as users meet it


def sleepy(x):
    time.sleep(0.02)
    return np.full(4, x)


@pytest.mark.usefixtures("no_other_workers")
def test_workers_are_added_while_the_consumer_waits():
    ds = MapDataset.range(100_000).map(sleepy).to_iter_dataset(INLINE).mp_prefetch()
    most, end = 0, time.monotonic() + LIMIT_S
    with nothing_left(), iter(ds) as iterator:
        for i, element in enumerate(iterator):
            assert element[0] == i
            most = max([most, *(pool.num_workers for pool in open_pools(ProcessPool))])
            if most > max(2, os.cpu_count()) or time.monotonic() > end:
                break
    assert most > max(2, os.cpu_count())


def test_threads_are_added_while_they_wait_for_data():
    ds = MapDataset.range(100_000).map(sleepy).to_iter_dataset()
    most, end = 0, time.monotonic() + LIMIT_S
    with iter(ds) as iterator:
        for i, element in enumerate(iterator):
            assert element[0] == i
            most = max(most, *(stage.computed_by for stage in iterator.stats().stages)) if i % 50 == 0 else most
            if most > 16 or time.monotonic() > end:
                break
    assert most > 16


def test_a_pool_of_threads_changes_its_size():
    pool = ThreadPool(2, "headrace-test")
    for size, expected in ((2, 2), (5, 5), (1, 1), (3, 3)):
        pool.resize(size)
        meeting = threading.Barrier(expected)
        futures = [pool.submit(meeting.wait, LIMIT_S) for _ in range(expected)]  # all of them at once
        assert sorted(future.result() for future in futures) == list(range(expected))
        until(lambda size=size: sum(thread.is_alive() for thread in pool.threads) == size, "threads leave")
    pool.close()
    assert not any(thread.is_alive() for thread in pool.threads)


@pytest.mark.usefixtures("no_other_workers")
def test_the_first_output_does_not_wait_for_workers():
    with iter(MapDataset.range(10).map(sleepy).to_iter_dataset(INLINE).mp_prefetch(AUTOTUNE)) as iterator:
        next(iterator)
        assert not open_pools(ProcessPool)
