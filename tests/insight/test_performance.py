"""The chooser: each kind of pipeline gets what suits it, within its budget and in time."""

import dataclasses
import sys
import threading
import time
import zlib

import numpy as np
import pytest

from headrace import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, performance
from headrace.errors import PipelineError
from headrace.performance import PerformanceConfig, num_cores, pick_performance_config
from headrace.threads import has_gil
from tests.support.proc import nothing_left

TRIES = 30
A_CORE_EACH = min(16, max(2, num_cores()))  # threads
BLOB = zlib.compress(np.random.default_rng(0).integers(0, 9, 400_000).astype(np.uint8).tobytes())


def wait(x):
    time.sleep(0.003)
    return x


def spin(x):
    """Work that holds the GIL, some milliseconds of it."""
    return sum(i for i in range(60_000)) + x


def inflate(x):
    """Work that releases the GIL."""
    return len(zlib.decompress(BLOB)) + x


def chosen(config):
    """How many workers and threads there are."""
    return config.multiprocessing_options.num_workers, config.read_options.num_threads


def once(attempt):
    """Tries until something is true: others use the machine as well, and may make a trial wrong."""
    found = []
    for _ in range(TRIES):
        found.append(attempt())
        if found[-1] is True:
            return True
    raise AssertionError(f"never true, but {found}")


def took_less_than(seconds, ds, **kwargs):
    begin = time.perf_counter()
    assert isinstance(pick_performance_config(ds, **kwargs), PerformanceConfig)
    took_s = time.perf_counter() - begin
    return took_s < seconds or took_s


def picked_once_as(expected, ds, **kwargs):
    """Whether one of some choices is the expected one."""

    def attempt():
        found = chosen(pick_performance_config(ds, **kwargs))
        return found == expected or found

    return once(attempt)


# ---- what is chosen


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(10_000).map(lambda x: x + 1),
        MapDataset.range(10_000).map(lambda x: x + 1).to_iter_dataset().filter(lambda x: x % 2),
        MapDataset.source(np.zeros((1000, 8), np.float32)).shuffle(seed=1).batch(8),
        MapDataset.range(10_000).repeat().to_iter_dataset().window_shuffle(500, seed=1),
    ],
    ids=["map", "stream", "arrays", "window"],
)
def test_cheap_pipelines_run_in_the_consumer(ds):
    assert picked_once_as((0, 0), ds)


def test_functions_that_wait_get_threads():
    assert picked_once_as((0, 16), MapDataset.range(1000).map(wait))
    assert picked_once_as((0, 16), MapDataset.range(1000).map(wait).to_iter_dataset().batch(2))


def test_functions_that_release_the_gil_get_a_thread_a_core():
    assert picked_once_as((0, A_CORE_EACH), MapDataset.range(1000).map(inflate))


@pytest.mark.skipif(not has_gil(), reason="nothing holds a GIL")
def test_functions_that_hold_the_gil_get_workers():
    assert picked_once_as((num_cores(), 0), MapDataset.range(1000).map(spin))
    assert picked_once_as((1, 0), MapDataset.range(1000).map(spin), max_workers=1)
    assert picked_once_as((0, 0), MapDataset.range(1000).map(spin), max_workers=0)


@pytest.mark.skipif(has_gil(), reason="a GIL")
def test_without_a_gil_costly_python_gets_a_thread_a_core():
    assert picked_once_as((0, A_CORE_EACH), MapDataset.range(1000).map(spin))


@pytest.mark.parametrize("gil", [True, False])
def test_python_that_is_too_slow_to_try_gets_threads_only_without_a_gil(monkeypatch, gil):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
    monkeypatch.setattr(performance, "TRIAL_S", 0.0)
    expected = (num_cores(), 0) if gil else (0, A_CORE_EACH)
    assert picked_once_as(expected, MapDataset.range(1000).map(spin))


@pytest.mark.parametrize("function", [wait, spin, inflate])
def test_what_comes_after_the_reading_gets_workers(function):
    """Threads only read: they compute nothing of a stream."""
    ds = MapDataset.range(1000).to_iter_dataset().map(function)
    assert picked_once_as((num_cores(), 0), ds)


def test_a_window_is_not_taken_for_cheap_because_all_but_its_first_output_are():
    ds = MapDataset.range(1000).map(wait).to_iter_dataset().window_shuffle(40, seed=1)
    assert picked_once_as((0, 16), ds)


def test_nor_because_not_one_output_came_in_time():
    ds = MapDataset.range(1000).to_iter_dataset().map(lambda x: (time.sleep(0.5), x)[1]).window_shuffle(10, seed=1)
    assert picked_once_as((num_cores(), 0), ds)


def test_workers_and_threads_that_a_pipeline_has_already_do_not_count():
    ds = MapDataset.range(1000).map(wait).to_iter_dataset(ReadOptions(16, 500))
    with nothing_left():
        assert picked_once_as((0, 16), ds.mp_prefetch(MultiprocessingOptions(2)).prefetch(10))


def test_a_stream_of_the_users_own_gets_workers():
    class Numbers(IterDataset):
        def __iter__(self):
            return NumbersIterator()

    assert chosen(pick_performance_config(Numbers())) == (num_cores(), 0)


closed = []


class NumbersIterator(DatasetIterator):
    def __init__(self):
        super().__init__()
        self._next = 0

    def __next__(self):
        self._next += 1
        return spin(self._next)

    def get_state(self):
        return {"next": self._next}

    def set_state(self, state):
        self._next = state["next"]

    def close(self):
        closed.append(self._next)


def test_what_was_opened_is_closed():
    class Numbers(IterDataset):
        def __iter__(self):
            return NumbersIterator()

    closed.clear()
    pick_performance_config(Numbers().map(lambda x: x), samples_to_check=3)
    (count,) = closed
    assert 1 <= count <= 3


@pytest.mark.parametrize(
    "ds", [MapDataset.range(0), MapDataset.range(0).to_iter_dataset(), MapDataset.range(9).filter(lambda x: False)]
)
def test_of_an_empty_dataset_nothing_is_known_and_nothing_started(ds):
    config = pick_performance_config(ds)
    assert chosen(config) == (0, 0)
    assert list(ds if isinstance(ds, IterDataset) else ds.to_iter_dataset(config.read_options)) == []


# ---- the budget


@pytest.mark.parametrize("megabytes", [1, 8, 40, 300])
def test_buffers_of_threads_stay_within_the_budget(megabytes):
    size = 2 << 20
    ds = MapDataset.range(1000).map(lambda i: (time.sleep(0.003), np.empty(size, np.uint8))[1])

    def attempt():
        options = pick_performance_config(ds, ram_budget_mb=megabytes).read_options
        assert options.prefetch_buffer_size * size <= megabytes << 20
        assert options.prefetch_buffer_bytes <= megabytes << 20
        assert options.num_threads <= options.prefetch_buffer_size
        return bool(options.num_threads) == (megabytes > 1)

    assert once(attempt)


@pytest.mark.parametrize("megabytes", [1, 5, 8, 100])
def test_buffers_of_workers_stay_within_the_budget(megabytes):
    size = 2 << 20
    ds = MapDataset.range(1000).to_iter_dataset().map(lambda i: (spin(i), np.empty(size, np.uint8))[1])

    def attempt():
        options = pick_performance_config(ds, ram_budget_mb=megabytes).multiprocessing_options
        assert options.num_workers * (options.per_worker_buffer_size + 1) * size <= megabytes << 20
        assert options.buffer_bytes <= megabytes << 20
        return bool(options.num_workers) == (megabytes > 1)

    assert once(attempt)


def test_buffers_are_no_longer_than_asked_for():
    def reading():
        options = pick_performance_config(MapDataset.range(1000).map(wait), max_buffer_size=3).read_options
        return 0 < options.num_threads <= options.prefetch_buffer_size == 3

    def working(**limits):
        options = pick_performance_config(stream, max_buffer_size=2, **limits).multiprocessing_options
        return (options.num_workers, options.per_worker_buffer_size)

    assert once(reading)
    stream = MapDataset.range(1000).to_iter_dataset().map(spin)
    assert once(lambda: working() == (num_cores(), 2))
    assert once(lambda: working(max_workers=1) == (1, 2))


# ---- the time

LATE_S = 1.0  # what a busy machine may add


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(10**9).map(wait),
        MapDataset.range(10**9).map(spin).repeat(),
        MapDataset.range(1000).map(lambda x: (time.sleep(0.15), x)[1]),
        MapDataset.range(10**6).map(wait).to_iter_dataset().window_shuffle(100_000, seed=1),
        MapDataset.range(10**6).to_iter_dataset().map(wait).window_shuffle(100_000, seed=1),
        MapDataset.range(10).repeat().filter(lambda x: False).to_iter_dataset(),
        MapDataset.range(10).repeat().to_iter_dataset().filter(lambda x: False).batch(3),
    ],
    ids=["waits", "spins", "slow", "window", "late window", "nothing passes", "nothing to batch"],
)
def test_it_takes_a_second_at_most(ds):
    assert once(lambda: took_less_than(1.0 + LATE_S, ds, samples_to_check=1000))


def test_of_elements_that_take_long_there_is_one():
    calls = []

    def slow(x):
        calls.append(x)
        time.sleep(1.2)
        return x

    ds = MapDataset.range(1000).map(slow)
    assert chosen(pick_performance_config(ds)) == (0, 16)
    assert calls == [0]
    assert once(lambda: took_less_than(1.2 + LATE_S, ds))


def test_it_reads_no_more_than_it_was_told_to_where_elements_are_cheap():
    calls = []

    def attempt():
        calls.clear()
        pick_performance_config(MapDataset.range(1000).map(lambda x: (calls.append(x), x)[1]), samples_to_check=7)
        return calls == list(range(7))

    assert once(attempt)


# ---- use


@pytest.mark.parametrize("function", [lambda x: x + 1, wait, spin])
def test_the_choice_can_be_used_and_changes_nothing(function):
    ds = MapDataset.range(60).shuffle(seed=1).map(function)
    expected = list(ds)
    config = pick_performance_config(ds)
    stream = ds.to_iter_dataset(read_options=config.read_options).mp_prefetch(config.multiprocessing_options)
    assert list(stream) == expected == list(ds)


def test_the_dataset_is_as_it_was():
    ds = MapDataset.range(100).map(wait).to_iter_dataset().cache()
    iterator = iter(ds)
    first = [next(iterator) for _ in range(3)]
    state = iterator.get_state()
    pick_performance_config(ds)
    assert iterator.get_state() == state
    assert first + list(iterator) == list(range(100)) == list(ds)


def test_errors_of_the_pipeline_are_its_own():
    def fail(x):
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        pick_performance_config(MapDataset.range(10).map(fail))

    def fail_in_threads(x):
        if threading.current_thread() is not threading.main_thread():
            raise KeyError("only in threads")
        return wait(x)

    def attempt():
        pick_performance_config(MapDataset.range(1000).map(fail_in_threads))

    with pytest.raises(KeyError, match="only in threads"):
        once(attempt)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ram_budget_mb": 0}, "ram_budget_mb must be a positive int; got 0"),
        ({"ram_budget_mb": 1.5}, "ram_budget_mb must be a positive int; got 1.5"),
        ({"max_workers": -1}, "max_workers must be an int of at least 0; got -1"),
        ({"max_buffer_size": 0}, "max_buffer_size must be a positive int; got 0"),
        ({"samples_to_check": 0}, "samples_to_check must be a positive int; got 0"),
        ({"samples_to_check": None}, "samples_to_check must be a positive int; got None"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(PipelineError, match=message):
        pick_performance_config(MapDataset.range(3), **arguments)
    with pytest.raises(PipelineError, match="takes a MapDataset or an IterDataset; got list"):
        pick_performance_config([1, 2], **arguments)  # type: ignore[arg-type]


def test_a_config_is_frozen_and_empty_by_default():
    config = PerformanceConfig()
    assert (config.multiprocessing_options, config.read_options) == (None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.read_options = ReadOptions()  # type: ignore[misc]


def test_what_cannot_leave_the_process_gets_no_workers():
    jax = pytest.importorskip("jax")
    from headrace.experimental import device_put

    slow = MapDataset.range(1000).to_iter_dataset().map(spin)
    config = pick_performance_config(device_put(slow.batch(2), jax.devices()[0]), max_workers=2)
    assert config.multiprocessing_options.num_workers == 0
