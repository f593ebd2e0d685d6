"""Whatever happens to workers and their consumer: nothing is lost, nothing is left, and nothing hangs.

Each fault is tried `RUNS` times, at moments that are drawn anew; `make faults` tries each 200 times.
"""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from headrace import IterDataset, MapDataset
from headrace.errors import ClosedError, WorkerError
from tests.support import forks
from tests.support.pipelines import PIPELINES, TWO, Counting, assert_same, by_index, expected, slowly
from tests.support.proc import LIMIT_S, WAIT_S, nothing_left, until, workers_of

ROOT = Path(__file__).resolve().parents[2]
RUNS = int(os.environ.get("HEADRACE_FAULT_RUNS", "1"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
runs = pytest.mark.parametrize("run", range(RUNS))


@runs
def test_a_worker_is_killed_at_some_moment(run):
    name, chance = pipeline_of(run), random.Random(run)
    with nothing_left(), iter(PIPELINES[name]().mp_prefetch(TWO)) as iterator:
        iterator.start_prefetch()
        killer = threading.Timer(chance.uniform(0, 0.6), kill_one_worker, [chance])
        killer.start()
        outputs = list(iterator)
        killer.cancel()
        killer.join()
        assert_same(outputs, expected(name))
        iterator.close()


def pipeline_of(run):
    """Each kind of stage in turn."""
    return sorted(PIPELINES)[run % len(PIPELINES)]


def kill_one_worker(chance):
    workers = sorted(workers_of(os.getpid()))
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


CONSUMER = """
    import os, sys, time
    from headrace import MapDataset, MultiprocessingOptions
    ds = MapDataset.range(10**6).map(lambda i: (time.sleep(0.001), i)[1]).to_iter_dataset().batch(4)
    iterator = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    next(iterator)
    fork = os.fork()
    if fork == 0:
        os.close(1)
        time.sleep(600)
        os._exit(0)
    print(fork, flush=True)
    for _ in iterator:
        {then}
"""


@contextlib.contextmanager
def consumer(then="pass"):
    """A consumer that has begun, and a fork of it; both have ended after this."""
    no_warning = "ignore:This process:DeprecationWarning"  # of the fork
    command = [sys.executable, "-W", no_warning, "-c", textwrap.dedent(CONSUMER).replace("{then}", then)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    fork = int(process.stdout.readline())
    try:
        yield process, fork
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(fork, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=WAIT_S)


@runs
def test_the_consumer_is_killed_while_a_fork_of_it_holds_the_pipes(run):
    with consumer() as (process, _):
        assert len(workers_of(process.pid)) == 2
        time.sleep(random.Random(run).uniform(0, 0.1))
        process.kill()
        process.wait(WAIT_S)
        until(lambda: not workers_of(process.pid), "workers outlive their consumer")


@runs
def test_ctrl_c_ends_the_consumer_and_its_workers(run):
    with consumer() as (process, fork):
        os.kill(fork, signal.SIGKILL)
        time.sleep(random.Random(run).uniform(0, 0.1))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode in (1, -signal.SIGINT)
        assert errors.count("Traceback") == 1, errors
        assert "KeyboardInterrupt" in errors
        until(lambda: not workers_of(process.pid), "workers outlive their consumer")


@runs
def test_the_consumer_ends_half_way(run):
    with consumer(then="sys.exit(3)" if run % 2 else "break") as (process, fork):
        os.kill(fork, signal.SIGKILL)
        _, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == (3 if run % 2 else 0)
        assert errors == ""
        until(lambda: not workers_of(process.pid), "workers outlive their consumer")


@runs
def test_ctrl_c_in_a_session_loses_nothing(run):
    press = partial(os.kill, os.getpid(), signal.SIGINT)
    outputs, output = [], None
    with nothing_left(), iter(by_index().mp_prefetch(TWO)) as iterator:
        for i in range(2):
            ctrl_c = threading.Timer(random.Random(2 * run + i).uniform(0.001, 0.4), press)
            try:
                ctrl_c.start()
                for output in iterator:
                    outputs.append(output)  # noqa: PERF402  (one by one, since it may be stopped anywhere)
                ctrl_c.join()
            except KeyboardInterrupt:
                # The loop may have been stopped between taking an output and keeping it.
                iterator.set_state({"next_index": min(12 * len(outputs), 200)})
            ctrl_c.join()
        outputs += iterator
        iterator.close()
        assert_same(outputs, expected("by index"))
        del outputs, output


class Boom(Exception):
    pass


def boom_at(bad):
    def check(i):
        if i == bad:
            raise Boom(f"at {bad}")
        return slowly(i)

    return check


@runs
def test_an_exception_in_a_worker_comes_after_what_was_before_it(run):
    bad = random.Random(run).randrange(200)
    ds = MapDataset.range(200).map(boom_at(bad)).to_iter_dataset().mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        assert [next(iterator) for _ in range(bad)] == list(range(bad))
        for _ in range(2):
            with pytest.raises(Boom, match=f"at {bad}\\n"):
                next(iterator)
        iterator.close()


@runs
def test_a_consumer_stops_half_way(run):
    with nothing_left():
        iterator = iter(PIPELINES[pipeline_of(run)]().mp_prefetch(TWO))
        for _ in range(random.Random(run).randrange(10)):
            next(iterator)
        iterator.close()


@runs
def test_an_iterator_is_dropped_without_close(run):
    ds = by_index().mp_prefetch(TWO)
    with nothing_left():
        iterator = iter(ds)
        batches = [next(iterator) for _ in range(random.Random(run).randrange(1, 10))]
        del iterator
        gc.collect()
        until(lambda: not workers_of(os.getpid()), "workers outlive their iterator")
        assert_same(batches, expected("by index")[: len(batches)])
        del batches


def sleep_long(i):
    time.sleep(1000 if i > 5 else 0)
    return i


@runs
def test_close_while_the_producer_is_blocked(run):
    fast = MapDataset.range(1000).to_iter_dataset().mp_prefetch(TWO).prefetch(1)  # the thread waits for room
    slow = MapDataset.range(1000).map(sleep_long).to_iter_dataset().mp_prefetch(TWO).prefetch(1)  # or for a worker
    ds = slow if run % 2 else fast
    with nothing_left():
        iterator = iter(ds)
        assert next(iterator) == 0
        time.sleep(random.Random(run).uniform(0, 0.05))
        begin = time.monotonic()
        if run % 4 < 2:
            iterator.close()
        else:
            del iterator
            gc.collect()
        assert time.monotonic() - begin < WAIT_S


@pytest.mark.timeout(LIMIT_S + 10 * RUNS)
def test_many_iterators_are_made_and_dropped():
    ds = MapDataset.range(1000).to_iter_dataset().mp_prefetch(TWO)
    with nothing_left():
        for i in range(RUNS):
            iterator = iter(ds)
            if i % 3:
                assert next(iterator) == 0
        iterators = [iter(ds) for _ in range(3)]
        assert [next(iterator) for iterator in iterators for _ in range(3)] == [0, 1, 2] * 3
        del iterator, iterators


class Deadly:
    """Ends its process at some elements: always, or only the first time."""

    def __init__(self, how, bad, once_at=None):
        self._how, self._bad, self._once_at = how, bad, once_at

    def __call__(self, i):
        if i == self._bad and (self._once_at is None or not os.path.exists(self._once_at)):
            if self._once_at is not None:
                open(self._once_at, "w").close()
            if self._how == "exit":
                os._exit(7)
            os.kill(os.getpid(), self._how)
        return i


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("how", ["exit", signal.SIGKILL, signal.SIGSEGV])
def test_a_chunk_that_kills_once_is_computed_again(how, tmp_path):
    ds = MapDataset.range(300).map(Deadly(how, 100, tmp_path / "done")).to_iter_dataset().mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        assert list(iterator) == list(range(300))
        assert (tmp_path / "done").exists()
        iterator.close()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("how", "said"), [("exit", "exit status 7"), (signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV")]
)
def test_a_chunk_that_kills_twice_is_an_error_that_says_so(how, said):
    ds = MapDataset.range(300)[::-1].map(Deadly(how, 199)).to_iter_dataset().mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        assert [next(iterator) for _ in range(100)] == list(range(299, 199, -1))
        for _ in range(2):
            with pytest.raises(WorkerError, match=said) as info:
                next(iterator)
        assert "element 100 of map(Deadly) (pipeline at test_faults.py:" in str(info.value)
        assert "; source indices 199)" in str(info.value)
        iterator.set_state({"next_index": 101})
        assert next(iterator) == 198
        iterator.close()


def test_a_block_that_kills_twice_names_the_source_indices_it_is_from():
    ds = MapDataset.range(300)[::-1].to_iter_dataset().filter(lambda i: i != 150)
    ds = ds.random_map(lambda i, rng: Deadly("exit", 199)(i), seed=1).mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        assert [next(iterator) for _ in range(100)] == list(range(299, 199, -1))
        with pytest.raises(WorkerError, match=r"exit status 7.*random_map.*\(from source indices 199\)"):
            next(iterator)
        iterator.close()


def test_a_worker_that_cannot_start_is_an_error():
    ds = MapDataset.range(10).to_iter_dataset()
    with nothing_left(), pytest.raises(WorkerError, match="end during startup \\(exit status 9\\)"):
        list(ds.mp_prefetch(TWO, lambda index, count: os._exit(9)))
    with nothing_left(), pytest.raises(Boom, match=r"in worker \d\nin worker_init_fn\(\d, 2\)"):
        list(ds.mp_prefetch(TWO, fail_to_start))


def fail_to_start(index, count):
    raise Boom(f"in worker {index}")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("check", sorted(forks.CHECKS))
def test_a_fork_of_the_consumer(check):
    """In a process of its own, since this one has JAX's threads."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.support.forks", check]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_killed_again_and_again_while_streams_are_open():
    parts = [Counting().mp_prefetch(TWO).prefetch(2) for _ in range(3)]
    expected = list(IterDataset.mix([Counting() for _ in range(3)]))
    chance = random.Random(0)
    with nothing_left(), iter(IterDataset.mix(parts)) as iterator:
        outputs = []
        for i, output in enumerate(iterator):
            outputs.append(output)
            if i % 30 == 29:
                kill_one_worker(chance)
        assert_same(outputs, expected)
        del outputs, output
        iterator.close()


def endless_regex(i):
    import re

    return re.match(r"(a+)+$", "a" * 40 + "b") if i else i


@pytest.mark.parametrize("run", range(2))
def test_a_worker_that_holds_the_interpreter_dies_with_its_consumer(run):
    script = """
        from tests.faults.test_faults import *
        iterator = iter(MapDataset.range(9).map(endless_regex).to_iter_dataset().mp_prefetch(TWO))
        next(iterator)
        print("ready", flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.kill()
    process.communicate(timeout=WAIT_S)
    until(lambda: not workers_of(process.pid), "workers outlive their consumer")


def test_close_in_another_thread():
    for delay in (0.0, 0.001, 0.01, 0.05, 0.1):
        ds = by_index().mp_prefetch(TWO).prefetch(2)
        with nothing_left():
            iterator = iter(ds)
            next(iterator)
            closer = threading.Timer(delay, iterator.close)
            closer.start()
            with contextlib.suppress(ClosedError):
                while next(iterator, None) is not None:
                    pass
            closer.join()
            with pytest.raises(ClosedError):
                next(next(iterator._iteration))
            assert not workers_of(os.getpid())
            del iterator, closer
