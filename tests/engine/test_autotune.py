"""The choice among the consumer, threads and worker processes, while a pipeline runs."""

import contextlib
import functools
import logging
import os
import re
import sys
import sysconfig
import threading
import time
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

import headrace.engine.runtime
from headrace import AUTOTUNE, DatasetOptions, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.__main__ import main
from headrace.engine import tuning
from headrace.engine.thread_executor import ThreadExecutor, Threads
from headrace.engine.tuning import AutotunedExecutor, TrialResult, TrialStream
from headrace.engine.workers.pool import ProcessPool
from headrace.errors import WorkerError
from headrace.ops.inline import InlineExecutor
from headrace.ops.streams import Context, FilterWatch, open_stream
from headrace.performance import num_cores
from headrace.sources import write_tfrecord
from headrace.testing import assert_resumable
from headrace.threads import has_gil
from tests.support.proc import LIMIT_S, nothing_left

TRIES = 12
BLOB = zlib.compress(np.random.default_rng(0).integers(0, 9, 400_000).astype(np.uint8).tobytes())


def spin(x):
    """Work that holds the GIL."""
    return sum(i for i in range(60_000)) + x


def spun(count):
    """What `spin` returns for numbers below a count."""
    first = spin(0)
    return [first + x for x in range(count)]


def inflate(x):
    """Work that releases the GIL."""
    return len(zlib.decompress(BLOB)) + x


def wait(x):
    time.sleep(0.003)
    return x


def add_one(x):
    return x + 1


@pytest.fixture
def executors(monkeypatch):
    """The executors that were made."""
    made = []
    init = AutotunedExecutor.__init__
    monkeypatch.setattr(AutotunedExecutor, "__init__", lambda self, *args: made.append(self) or init(self, *args))
    return made


@pytest.fixture
def advice(monkeypatch, caplog):
    """The warnings; lines that have had one may have it again."""
    monkeypatch.setattr(headrace.engine.runtime, "_advised", set())
    caplog.set_level(logging.WARNING, "headrace")
    return caplog


def read(ds, count=200):
    """The first elements."""
    with iter(ds) as iterator:
        return [x for x, _ in zip(iterator, range(count), strict=False)]


def two_threads_gain():
    """How much faster two bare threads are than one."""

    def work():
        for x in range(20):
            inflate(x)

    took_s = []
    for count in (1, 2):
        begin, threads = time.perf_counter(), [threading.Thread(target=work) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s.append(time.perf_counter() - begin)
    return 2 * took_s[0] / took_s[1]


# ---- threads


@pytest.mark.skipif(num_cores() < 2 or not has_gil(), reason="nothing can be gained, or nothing holds a GIL")
def test_threads_that_hold_the_gil_are_not_used_and_the_user_is_told_once(executors, advice):
    ds = MapDataset.range(10_000).map(spin).to_iter_dataset()
    for _ in range(TRIES):  # a trial on a busy machine knows nothing
        read(ds)
        if advice.records:
            break
    if not advice.records and os.getloadavg()[0] > num_cores():
        pytest.skip("others use the cores")
    (record,) = advice.records
    assert executors[-1].threads_help is not True
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert "map(spin" in text
    assert "test_autotune.py:" in text
    assert "hold the GIL" in text
    assert "add `.mp_prefetch()`" in text
    read(ds)
    assert len(advice.records) == 1


def test_the_advice_names_what_computes_and_not_what_orders(advice):
    ds = MapDataset.range(10).map(spin).shuffle(seed=1).slice(slice(8)).seed(2).repeat().to_iter_dataset()
    headrace.engine.runtime._advise(ds._op, "threads do not scale")
    (record,) = advice.records
    assert record.getMessage().startswith("map(spin at test_autotune.py:")
    assert "repeat" not in record.getMessage()


@pytest.mark.parametrize(("function", "count"), [(wait, 200), (inflate, 200), (add_one, 20_000)])
def test_nobody_is_told_where_threads_scale_or_elements_are_cheap(advice, function, count):
    for _ in range(3):
        read(MapDataset.range(10**6).map(function).to_iter_dataset(), count)
    is_crowded = function is inflate and os.getloadavg()[0] > num_cores()  # others may have had the cores
    assert not advice.records or is_crowded


def test_threads_are_used_for_functions_that_wait(executors):
    for _ in range(5):  # others may have had the cores
        read(MapDataset.range(10_000).map(wait).to_iter_dataset())
        if executors[-1].threads_help:
            break
    assert executors[-1].threads_help


@pytest.mark.parametrize("with_workers", [False, True])
def test_threads_read_at_full_speed_right_after_the_first_slow_reads(with_workers):
    ds = MapDataset.range(10_000).map(lambda x: (time.sleep(0.05), x)[1]).batch(2).to_iter_dataset()
    for tries_left in range(3)[::-1]:  # others may have had the cores
        with iter(ds.mp_prefetch() if with_workers else ds) as iterator:
            begin = time.monotonic()
            for _ in range(80):  # 8 s one after the other, and half a second in 16 threads
                next(iterator)
            took_s = time.monotonic() - begin
            assert {stage.where for stage in iterator.stats().stages} == {"threads"}
        if took_s < 1.0:
            break
        assert tries_left, took_s


@pytest.mark.sampled(every=2)
@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
@pytest.mark.parametrize("function", [inflate, pytest.param(spin, marks=pytest.mark.skipif(has_gil(), reason="a GIL"))])
def test_threads_are_used_for_functions_that_release_the_gil(executors, function):
    are_free = 0
    for _ in range(TRIES):
        read(MapDataset.range(10_000).map(function).to_iter_dataset(), 120 + 40 * num_cores())  # some for each thread
        if executors[-1].threads_help:
            return
        are_free += os.getloadavg()[0] < num_cores() and two_threads_gain() > 1.6
        assert are_free < TRIES // 3, "threads were never used"
    pytest.skip("others use the cores")


def test_cheap_elements_stay_with_the_consumer(executors):
    read(MapDataset.range(10**6).map(add_one).to_iter_dataset(), 100_000)
    assert executors[-1].threads_help is not True


@pytest.mark.parametrize("options", [ReadOptions(num_threads=0), ReadOptions(num_threads=4)])
def test_nothing_is_tried_where_the_user_says_how_many(executors, advice, options):
    read(MapDataset.range(300).map(spin).to_iter_dataset(options))
    assert not executors
    assert not advice.records


class Clock:
    """Time that passes only where a test says so; in it, `ran` and `queued` threads run and wait for a core.

    An element takes 4 ms, and threads make `gain` as many as the consumer.
    """

    def __init__(self, monkeypatch, ran, queued, gain):
        self.now, self.ran, self.queued, self.gain, self.wanted = 0.0, ran, queued, gain, 0.0
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning, "thread_wanted_s", lambda: self.wanted)
        monkeypatch.setattr(
            tuning, "on_cores_s", lambda threads: (self.now * self.ran, self.now * self.queued) if threads else (0, 0)
        )


@contextlib.contextmanager
def trial(monkeypatch, clock, on_stuck=lambda text: None):
    """An executor, and a function that takes one element of it, of which the consumer computes a share of the time."""

    class Paced(ThreadExecutor):
        def next(self):
            clock.now += 0.004 / clock.gain
            return super().next()

    class Block(list):
        def num_bytes(self):
            return 8

    monkeypatch.setattr(tuning, "ThreadExecutor", Paced)
    threads = Threads()
    executor = AutotunedExecutor(threads, lambda number: ThreadExecutor(threads, number or 16, 64, 1 << 20), on_stuck)

    def step(share=1.0):
        def inline():
            clock.now += 0.004
            clock.wanted += share * 0.004
            return Block([1])

        while size := executor.wants(1):
            is_inline = executor._current is executor._inline
            executor.submit(inline if is_inline else lambda: Block([1]), size)
        executor.next()

    try:
        yield executor, step
    finally:
        executor.close()
        threads.close()


@pytest.mark.parametrize(
    ("gain", "ran", "queued", "cores", "share", "elsewhere_s", "gil", "pays", "told"),
    [
        (1.0, 1.0, 0.1, 2, 1.0, 0.0, True, False, True),  # the GIL is held
        (1.5, 1.0, 2.9, 2, 1.0, 0.0, True, False, False),  # the machine is busy: more threads get more of it
        (1.9, 1.9, 2.0, 2, 1.0, 0.0, True, True, False),  # the GIL is released
        (1.1, 1.9, 2.0, 2, 1.0, 0.0, True, False, False),  # not enough to pay
        (3.9, 0.1, 0.0, 2, 0.1, 0.0, True, True, False),  # functions wait
        (2.0, 2.2, 0.2, 16, 1.0, 0.0, True, True, True),  # they pay, and processes would be far better
        (14.0, 14.0, 0.5, 16, 1.0, 0.0, True, True, False),
        (5.0, 0.9, 0.1, 2, 1.0, 0.004, True, True, False),  # the consumer does something else, and hardly waits
        (1.0, 1.0, 0.1, 1, 1.0, 0.0, True, False, False),  # there is only one core
        (1.9, 1.9, 2.0, 2, 1.0, 0.0, False, True, False),  # there is no GIL
        (1.5, 1.0, 2.9, 2, 1.0, 0.0, False, True, False),  # nor here, and the machine is busy
        (1.0, 1.0, 0.1, 2, 1.0, 0.0, False, False, True),  # but a lock
    ],
)
def test_what_is_concluded(monkeypatch, gain, ran, queued, cores, share, elsewhere_s, gil, pays, told):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
    monkeypatch.setattr(tuning, "num_cores", lambda: cores)
    clock, said = Clock(monkeypatch, ran, queued, gain), []
    with trial(monkeypatch, clock, said.append) as (executor, step):
        for _ in range(400):
            step(share)
            clock.now += elsewhere_s
            if executor.threads_help is not None:
                break
        assert executor.threads_help is pays
    assert bool(said) is told
    assert all(f"on {cores} cores" in text and ("GIL" in text) is gil for text in said)


def test_threads_that_did_not_pay_are_tried_again(monkeypatch):
    """As on a machine whose cores others had at first."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.setattr(tuning, "num_cores", lambda: 2)
    clock = Clock(monkeypatch, ran=1.0, queued=2.9, gain=1.5)
    with trial(monkeypatch, clock) as (executor, step):
        for pause_s in (tuning.RETRY_THREADS_S, 2 * tuning.RETRY_THREADS_S):
            while executor.threads_help is None or not executor.inline:
                step()
            assert executor.threads_help is False
            clock.now += pause_s - 1
            assert executor.inline
            clock.now += 2
            assert not executor.inline
        clock.ran, clock.queued, clock.gain = 1.9, 0.1, 1.9
        for _ in range(400):
            step()
        assert executor.threads_help
        assert executor.num_threads == 4


@pytest.mark.parametrize("built_without", [0, 1])
def test_the_user_is_told_who_has_turned_the_gil_on(monkeypatch, built_without):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": built_without}.get)
    assert ("PYTHON_GIL=0" in tuning._why()) is bool(built_without)


# ---- worker processes


@pytest.fixture(autouse=True)
def short_runs_get_workers(monkeypatch):
    monkeypatch.setattr(tuning, "WORTH_WORKERS_S", 0.0)


@functools.cache
def expected_of_costly():
    """The outputs and states of 600 elements: so many that workers start meanwhile."""
    return outputs_and_states(costly(600))


def outputs_and_states(ds):
    with iter(ds) as iterator:
        outputs, states = [], [iterator.get_state()]
        for x in iterator:
            outputs.append(x)
            states.append(iterator.get_state())
        stages = iterator.stats().as_dict()["stages"]
    return [repr(x) for x in outputs], states, {stage["where"] for stage in stages}


def costly(n):
    return (
        MapDataset.range(n)
        .shuffle(seed=2)
        .map(spin)
        .to_iter_dataset()
        .filter(lambda x: x % 5 > 0)
        .random_map(lambda x, rng: x + int(rng.integers(9)), seed=1)
        .window_shuffle(7, seed=3)
        .batch(2)
    )


@pytest.mark.sampled(every=2)
@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
@pytest.mark.parametrize("stays", [True, False])
def test_workers_go_on_from_any_place_and_so_does_the_consumer(monkeypatch, stays):
    monkeypatch.setattr(tuning, "WORKERS_GAIN", 0.0 if stays else 1e9)
    monkeypatch.setattr(tuning, "HERE_S", 0.05)
    monkeypatch.setattr(tuning, "WORKERS_S", 0.02)
    monkeypatch.setattr(tuning, "ELEMENT_S", 1e-12)  # elements are costly,
    monkeypatch.setattr(tuning.AutotunedExecutor, "threads_help", False)  # and threads do not help
    expected = expected_of_costly()
    ds = costly(600).mp_prefetch(AUTOTUNE)
    with nothing_left():
        for _ in range(2):  # the second time it is known
            found = outputs_and_states(ds)
            assert found[:2] == expected[:2]
            assert ds._op.kept.of(TrialResult).workers is stays
            assert ("workers" in found[2]) or not stays
        with iter(ds) as iterator:  # a state taken on one side is good on the other
            iterator.set_state(expected[1][170])
            assert [repr(x) for x in iterator] == expected[0][170:]
        del ds


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
def test_workers_that_were_no_faster_are_tried_again(monkeypatch):
    """As on a machine whose cores others had at first."""
    for name, value in (
        ("HERE_S", 0.05),
        ("WORKERS_S", 0.02),
        ("ELEMENT_S", 1e-12),
        ("RETRY_WORKERS_S", 0.1),
        ("WORKERS_GAIN", 1e9),
    ):
        monkeypatch.setattr(tuning, name, value)
    monkeypatch.setattr(tuning.AutotunedExecutor, "threads_help", False)
    ds = MapDataset.range(10**6).map(spin).to_iter_dataset().mp_prefetch(AUTOTUNE)
    choice, got, end = ds._op.kept.of(TrialResult), [], time.monotonic() + LIMIT_S
    with nothing_left(), iter(ds) as iterator:
        while choice.workers is not False and time.monotonic() < end:
            got.append(next(iterator))
        assert choice.workers is False
        num_before = len(got)
        monkeypatch.setattr(tuning, "WORKERS_GAIN", 0.0)
        while not choice.workers and time.monotonic() < end:
            got.append(next(iterator))
        assert len(got) - num_before < 4000  # and not as many at once as workers would have given
        got += [next(iterator) for _ in range(50)]
        assert choice.workers
        del ds
    assert got == spun(len(got))


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
@pytest.mark.parametrize(("least_s", "stays"), [(0.0005, True), (0.005, False)])
def test_workers_that_still_become_faster_are_not_judged(monkeypatch, least_s, stays):
    """An output takes 2 ms here; of workers 20 ms at first, and then ever less."""
    now_s, worker_s = 0.0, 0.02

    def spend(x):
        nonlocal now_s, worker_s
        now_s += worker_s if choice.workers else 0.002
        if choice.workers:
            worker_s = max(0.99 * worker_s, least_s)
        return x

    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: now_s))
    ds = MapDataset.range(10**6).map(spend).to_iter_dataset().mp_prefetch(AUTOTUNE)
    choice, context = TrialResult(), Context(lambda _: InlineExecutor(), lambda _: None)
    opened = lambda position: open_stream(ds._op.parent, position, context)  # noqa: E731
    trial = TrialStream(ds._op, None, context, choice, lambda: lambda: True, opened, lambda: None)
    while now_s < 10:
        trial.pull(1)
    assert choice.workers is stays


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
@pytest.mark.parametrize(
    ("count", "length_is_known", "epochs", "started_s"),
    [
        (1500, True, 1, None),  # over before workers are ready
        (1500, True, 2, 3.25),  # but it comes again
        (2500, True, 1, 0.25),
        (1400, False, 1, None),
        (2500, False, 1, 3.0),  # long already, so perhaps it goes on
    ],
)
def test_short_runs_get_no_workers(monkeypatch, count, length_is_known, epochs, started_s):
    """An output takes 2 ms."""
    now_s, started = 0.0, []

    def spend(x):
        nonlocal now_s
        now_s += 0.002
        return x

    def start():
        started.append(now_s)
        return lambda: False

    monkeypatch.setattr(tuning, "WORTH_WORKERS_S", 3.0)
    monkeypatch.setattr(tuning, "time", SimpleNamespace(perf_counter=lambda: now_s))
    ds = MapDataset.range(count).map(spend).to_iter_dataset(ReadOptions(num_threads=0))
    ds = (ds if length_is_known else ds.filter(lambda x: True)).mp_prefetch(AUTOTUNE)
    choice, context = TrialResult(), Context(lambda _: InlineExecutor(), lambda op: FilterWatch(op, DatasetOptions()))
    for _ in range(epochs):
        trial = TrialStream(ds._op, None, context, choice, start, lambda position: None, lambda: None)
        while trial.pull(1) is not None:
            pass
    assert started[:1] == ([] if started_s is None else [pytest.approx(started_s, abs=0.3)])


def test_cheap_outputs_get_no_workers(monkeypatch):
    on_cores = SimpleNamespace(perf_counter=time.thread_time)  # whatever else runs on this machine
    monkeypatch.setattr(tuning, "time", on_cores)
    ds = MapDataset.range(3000).map(add_one).mp_prefetch(AUTOTUNE)
    with nothing_left():
        outputs, _, where = outputs_and_states(ds)
    assert outputs == [repr(x) for x in range(1, 3001)]
    assert where == {"consumer"}


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
@pytest.mark.parametrize("gil", [True, False])
def test_without_a_gil_workers_come_after_a_trial_of_threads(monkeypatch, gil):
    started = []

    def start(stream):
        started.append(stream)
        stream._ends = True

    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
    monkeypatch.setattr(tuning, "HERE_S", 0.01)  # ends before any trial of threads
    monkeypatch.setattr(tuning, "THREADS_S", 1e9)
    monkeypatch.setattr(tuning, "THREADS_GAIN", 0.0)  # in which threads always pay
    monkeypatch.setattr(AutotunedExecutor, "_report_stuck", lambda *found: None)
    monkeypatch.setattr(tuning.TrialStream, "_start", start)
    assert list(MapDataset.range(400).map(spin).mp_prefetch(AUTOTUNE)) == spun(400)
    assert bool(started) is gil


def test_functions_that_wait_get_threads_and_no_workers():
    with nothing_left():
        for _ in range(5):  # others may have had the cores
            where = outputs_and_states(MapDataset.range(400).map(wait).mp_prefetch(AUTOTUNE))[2]
            if "workers" not in where:
                break
    assert "workers" not in where


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
def test_functions_that_workers_cannot_have_stay_with_the_consumer(monkeypatch, caplog):
    monkeypatch.setattr(tuning, "HERE_S", 0.02)
    lock = threading.Lock()

    def locked(x):
        with lock:
            return spin(x)

    ds = MapDataset.range(100).map(locked).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=AUTOTUNE))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert list(ds) == spun(100)
    assert any("without worker processes" in record.getMessage() for record in caplog.records)


def test_errors_come_after_all_elements_before_them(monkeypatch):
    monkeypatch.setattr(tuning, "HERE_S", 0.02)
    monkeypatch.setattr(tuning, "WORKERS_GAIN", 0.0)

    def fails(x):
        return spin(x) if x < 150 else 1 // 0

    with iter(MapDataset.range(300).map(fails).to_iter_dataset().mp_prefetch(AUTOTUNE)) as iterator:
        assert [next(iterator) for _ in range(150)] == spun(150)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                next(iterator)


@pytest.mark.skipif(num_cores() < 2, reason="nothing can be gained")
def test_what_ends_its_process_does_not_end_the_consumer(monkeypatch):
    monkeypatch.setattr(ProcessPool, "all_ready", lambda pool: True)  # they go on at once
    monkeypatch.setattr(tuning, "HERE_S", 0.02)
    monkeypatch.setattr(tuning, "ELEMENT_S", 1e-12)  # elements are costly,
    monkeypatch.setattr(tuning.AutotunedExecutor, "threads_help", False)  # and threads do not help
    monkeypatch.setattr(tuning, "WORKERS_GAIN", 0.0)  # workers stay
    consumer = os.getpid()

    def ends(x):
        if x == 100 and os.getpid() != consumer:
            os._exit(1)
        return spin(x)

    with iter(MapDataset.range(130).map(ends).to_iter_dataset().mp_prefetch(AUTOTUNE)) as iterator:
        assert [next(iterator) for _ in range(100)] == spun(100)
        with pytest.raises(WorkerError):
            next(iterator)


def test_a_worker_init_fn_has_workers_from_the_start():
    def init(index, count):
        globals()["there"] = True

    ds = MapDataset.range(6).map(lambda x: (x, "there" in globals())).to_iter_dataset().mp_prefetch(AUTOTUNE, init)
    assert list(ds) == [(x, True) for x in range(6)]


def test_every_output_is_a_checkpoint(monkeypatch):
    monkeypatch.setattr(ProcessPool, "all_ready", lambda pool: True)
    monkeypatch.setattr(tuning, "HERE_S", 0.01)
    monkeypatch.setattr(tuning, "WORKERS_GAIN", 0.0)
    assert_resumable(costly(20).mp_prefetch(AUTOTUNE))


def test_the_plan_says_so():
    ds = MapDataset.range(6).to_iter_dataset().mp_prefetch(AUTOTUNE)
    assert "mp_prefetch()" in str(ds.explain())
    assert "worker processes if a trial shows that they help" in str(ds.explain())


def test_advice_names_the_users_line_and_none_is_given_for_what_a_command_reads(monkeypatch, advice, tmp_path):
    init = AutotunedExecutor.__init__

    def stuck(self, threads, make, on_stuck):
        """As if a trial had shown that threads do not help."""
        init(self, threads, make, on_stuck)
        on_stuck("functions hold the GIL")

    monkeypatch.setattr(AutotunedExecutor, "__init__", stuck)
    path = str(tmp_path / "a.tfrecord")
    ds = MapDataset.range(3).map(lambda x: b"%d" % x)
    write_tfrecord(ds, path)
    (record,) = advice.records
    assert re.search(r"\(pipeline at \S*test_autotune\.py:\d+\): functions hold", record.getMessage())
    advice.clear()
    assert main(["head", path]) == main(["convert", path, str(tmp_path / "b.jsonl"), "--quiet"]) == 0
    assert not advice.records


def test_threads_read_on_while_the_consumer_uses_the_first_element():
    read = []

    class Slow:
        def __len__(self):
            return 64

        def __getitem__(self, i):
            time.sleep(0.05)
            read.append(i)
            return i

    with iter(MapDataset.source(Slow()).to_iter_dataset(ReadOptions(num_threads=2))) as iterator:
        next(iterator)
        deadline = time.monotonic() + 10
        while len(read) < 12 and time.monotonic() < deadline:  # a long step of training
            time.sleep(0.05)
        assert len(read) >= 12
