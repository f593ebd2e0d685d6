"""`headrace.diagnose`: what operations cost, and what more workers would give."""

import json
import sys
import time

import numpy as np
import pytest

from headrace import DataLoader, MapDataset, ReadOptions, diagnose, samplers
from headrace.errors import PipelineError

INLINE = ReadOptions(num_threads=0)
NUMBERS = MapDataset.range(1_000_000)
LOCKED = __file__  # not the program: other suites on this machine may have the same


@pytest.fixture(autouse=True)
def few_workers(monkeypatch):
    monkeypatch.setattr("headrace.stats.bounds.ALWAYS_TRIED", 4)


def sleepy(x):
    time.sleep(0.02)
    return x


def spin(x, seconds=0.004):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return x


def short_spin(x):
    return spin(x, 0.0005)


def large(x):
    return np.full(1_000_000, x)


class SlowSource:
    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        time.sleep(0.02)
        return i


def in_one_at_a_time(x):
    """Workers wait for each other, which nobody can see in one of them."""
    import fcntl

    with open(LOCKED, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(0.01)
    return x


def in_turns(x):
    """Two workers are twice as fast as one, and four hardly more."""
    time.sleep(0.01)
    return in_one_at_a_time(x)


WAITING = {
    "a sleep": (NUMBERS.map(abs).map(sleepy), "map(sleepy "),
    "a slow source": (MapDataset.source(SlowSource()).map(abs), "source(SlowSource"),
    "a sleep beside a spin": (NUMBERS.map(short_spin).map(sleepy), "map(sleepy "),
}
if sys.platform == "linux":
    WAITING["a sleep, and a lock"] = (NUMBERS.map(in_turns), "map(in_turns ")
AT_WORK = {
    "a spin": (NUMBERS.map(abs).map(spin).batch(2), "map(spin "),
    "a large array": (NUMBERS.map(large).map(len), "map(large "),
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", WAITING)
def test_workers_give_what_was_predicted(name):
    ds, operation = WAITING[name]
    for tries_left in range(3)[::-1]:  # the load of this machine may change between prediction and trial
        found = diagnose(ds.to_iter_dataset(INLINE), seconds=2)
        assert found.operations[0].operation.startswith(operation)
        assert found.verdict.startswith(operation)
        as_predicted = found.measured == pytest.approx(found.rates[found.best], rel=0.25)
        if found.best >= 2 and as_predicted:
            break
        assert tries_left, found
    if max(found.threads.values(), default=0) > found.measured:
        assert "It mostly waits: `to_iter_dataset(ReadOptions(num_threads=" in found.verdict
    else:
        assert f"`.mp_prefetch({found.best})`" in found.verdict


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", AT_WORK)
def test_what_keeps_a_core_busy_is_named(name):
    ds, operation = AT_WORK[name]
    found = diagnose(ds.to_iter_dataset(INLINE).prefetch(4), seconds=2)
    assert found.operations[0].operation.startswith(operation)
    assert found.verdict.startswith(operation)
    assert not any(each.operation.startswith("prefetch") for each in found.operations)  # it is left out


def test_workers_do_not_pay_where_taking_results_costs_more_than_making_them():
    found = diagnose(NUMBERS, seconds=0.5)
    assert found.best == 0
    assert found.measured == found.rates[0]
    assert "do not help" in found.verdict


@pytest.mark.skipif(sys.platform != "linux", reason="locks a file of Linux")
def test_a_trial_that_gives_less_than_predicted_is_shown():
    found = diagnose(NUMBERS.map(in_one_at_a_time).to_iter_dataset(INLINE), seconds=2)
    number = max(found.tried)
    assert number > 1
    assert found.tried[number] == pytest.approx(found.tried[0], rel=0.5)
    assert f"At the rate of one worker, {number} workers would give" in found.verdict
    assert "they compete for something" in found.verdict
    assert f"{found.tried[number]:,.1f}" in str(found)


def test_it_is_shown_and_logged():
    loader = DataLoader(data_source=range(50), sampler=samplers.SequentialSampler(50), operations=[])
    found = diagnose(loader, seconds=0.3)  # shorter than that: it is run again
    assert sum(each.elements for each in found.operations) > 100
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["best"] == found.best
    assert plain["rates"]["0"] == plain["tried"]["0"] == pytest.approx(found.rates[0])
    for shown in (str(found), found._repr_html_()):
        assert "elements/s" in shown
        assert "source(" in shown
    assert "<table>" in found._repr_html_()


def test_what_cannot_be_diagnosed():
    with pytest.raises(PipelineError, match="has none"):
        diagnose(MapDataset.range(10).filter(lambda x: x > 10))
    with pytest.raises(PipelineError, match="got list"):
        diagnose([1, 2])
    with pytest.raises(ZeroDivisionError):
        diagnose(MapDataset.range(10).map(lambda x: x // 0))


class Far:
    """A source that waits, such as for a network."""

    def __len__(self):
        return 50_000

    def __getitem__(self, i):
        time.sleep(0.02)
        return i


def test_threads_are_tried_for_a_source_that_waits():
    found = diagnose(MapDataset.source(Far()).to_iter_dataset(ReadOptions(num_threads=0)).batch(2), seconds=1.5)
    assert found.threads, str(found)
    assert "`to_iter_dataset(ReadOptions(num_threads=" in found.verdict
