"""Actors, nodes and objects are lost, and the stream goes on exactly."""

import _thread
import contextlib
import gc
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from headrace import AUTOTUNE, MapDataset, RayOptions
from headrace.cluster.ray import RayPool
from headrace.errors import WorkerError
from tests.cluster.test_laws import kinds, on_ray
from tests.laws.test_laws import assert_same
from tests.support.proc import WAIT_S, until

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def slow(x):
    time.sleep(0.003)
    return x


def with_pids(folder):
    """A function that says in which processes it runs."""

    def note(x):
        (folder / str(os.getpid())).touch()
        return slow(x)

    return note


def kill(pid):
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", range(3))
def test_actors_killed_at_random_lose_and_repeat_nothing(tmp_path, kind):
    kills = int(os.environ.get("HEADRACE_FAULT_RUNS", "50"))
    kills = kills if kind == 1 else max(3, kills // 8)
    ds = list(kinds())[kind].repeat().map(with_pids(tmp_path))
    rng, killed = random.Random(kind), 0
    inline = iter(list(kinds())[kind].repeat())
    with iter(on_ray(ds, 3)) as iterator:
        end = time.monotonic() + 5 * WAIT_S
        while killed < kills:
            assert time.monotonic() < end
            for _ in range(rng.randrange(1, 60)):
                assert next(iterator) == next(inline)
            killed += kill(rng.choice([path.name for path in tmp_path.iterdir()]))
        for _ in range(200):
            assert next(iterator) == next(inline)


def test_an_element_that_kills_every_actor_is_an_error_with_its_source_indices():
    def kills(x):
        if x == 25:
            os._exit(1)
        return x

    iterator, got = iter(on_ray(MapDataset.range(100, 160).map(lambda x: x - 100).map(kills).to_iter_dataset())), []
    with pytest.raises(WorkerError, match=r"(?s)element 25 of map.*source indices 25.*so did the 2 that retried"):
        got.extend(iterator)
    assert got == list(range(25))
    iterator.close()


def raylet(node):
    (found,) = node.all_processes["raylet"]
    return found.process.pid


def elements(x):
    time.sleep(0.005)
    return {"x": np.full(30_000, x), "pid": os.getpid()}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("number", [8, AUTOTUNE])
def test_a_node_that_comes_is_used_within_ten_seconds_and_takes_nothing_with_it_when_it_goes(cluster, number):
    """It is removed, or its network has stopped, as far as anybody can tell: all its processes stand still."""
    ds = MapDataset.range(10**6).map(elements).to_iter_dataset()
    with iter(ds.mp_prefetch(RayOptions(num_workers=number, per_worker_buffer_size=4))) as iterator:
        numbered = enumerate(iterator)

        def next_pid():
            x, element = next(numbered)
            assert (element["x"] == x).all()
            return element["pid"]

        until(lambda: len({next_pid() for _ in range(100)}) >= 4, "the actors do not start")
        for stands_still in (False, True):
            node = cluster.add_node(num_cpus=2, object_store_memory=200 << 20)
            begin, on_it = time.monotonic(), False
            while not on_it and time.monotonic() - begin < WAIT_S:
                on_it = next_pid() in {p.pid for p in psutil.Process(raylet(node)).children(recursive=True)}
            took_s = time.monotonic() - begin
            with contextlib.ExitStack() as afterwards:
                if stands_still:
                    afterwards.callback(cluster.remove_node, node, allow_graceful=False)
                    own = psutil.Process(raylet(node))
                    for process in (own, *own.children(recursive=True)):
                        afterwards.callback(kill, process.pid)
                        process.suspend()
                else:
                    cluster.remove_node(node, allow_graceful=False)
                for _ in range(600):
                    next_pid()
            assert on_it
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            assert took_s < 10 * max(1.0, 2 * load)  # more where others are at work


def _actors():
    """The processes of Headrace's actors, of all that this process has started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("ray::Actor" in part for part in process.cmdline()):
                found.add(process.pid)
    return found


def test_a_slow_consumer_fills_no_object_store(cluster):
    """Elements of 8 MB, of which a store of 200 MB can have few."""
    ds = MapDataset.range(60).map(lambda x: np.full(1 << 20, x)).to_iter_dataset()
    most = 0
    with iter(on_ray(ds, 4)) as iterator:
        for x, element in enumerate(iterator):
            assert element[0] == x
            time.sleep(0.05)
            free = ray._private.state.available_resources_per_node()
            most = max(most, *((200 << 20) - node.get("object_store_memory", 200 << 20) for node in free.values()))
    assert most < 120 << 20
    assert not list(Path("/tmp/ray").glob("session_latest/**/ray_spilled_objects*/*"))


def test_an_interrupted_wait_stops(cluster):
    ds = MapDataset.range(4).map(lambda x: time.sleep(60)).to_iter_dataset()
    iterator = iter(on_ray(ds))
    timer = threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    iterator.close()
    assert time.monotonic() - begin < 30
    until(lambda: not _actors(), "actors are left")
    assert ray.is_initialized()  # it is the user's


def test_collected_iterators_leave_no_actors():
    iterator = iter(on_ray(MapDataset.range(10**6).to_iter_dataset().map(slow)))
    next(iterator)
    assert _actors()
    del iterator
    until(lambda: not _actors(), "actors are left")


def test_a_pool_that_a_thread_of_ray_is_the_last_to_know_is_closed_by_another(monkeypatch):
    """Ray's own threads wait for ever if they ask Ray for something."""
    closed_by = []
    end = RayPool._end
    monkeypatch.setattr(
        RayPool, "_end", lambda pool, wait: (closed_by.append(threading.current_thread().name), end(pool, wait=wait))
    )
    left = [iter(on_ray(MapDataset.range(10**6).to_iter_dataset().map(slow)))]
    next(left[0])
    _thread.start_new_thread(lambda: (left.clear(), gc.collect()), ())  # as unknown to `threading` as Ray's
    until(lambda: closed_by, "it is not closed")
    assert closed_by == ["headrace-close"]
    until(lambda: not _actors(), "actors are left")


def test_results_are_equal_to_those_of_processes():
    ds = MapDataset.range(64).map(lambda i: np.full((64, 64), i, np.float32)).to_iter_dataset().batch(8)
    with iter(on_ray(ds)) as one, iter(ds.mp_prefetch(1)) as other:
        assert_same(list(one), list(other))
