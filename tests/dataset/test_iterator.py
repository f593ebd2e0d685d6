"""Iterators: states, threads, and leaving nothing behind."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from headrace import DatasetOptions, IterDataset, MapDataset, ReadOptions
from headrace.errors import ClosedError, StateError
from headrace.experimental import get_next_index, set_next_index
from headrace.testing import assert_equal
from tests.support.proc import LIMIT_S, WAIT_S, until


def test_states_after_any_output():
    ds = MapDataset.range(10).shuffle(seed=1).to_iter_dataset()
    iterator = iter(ds)
    assert iterator.get_state()["next_index"] == 0
    first = [next(iterator) for _ in range(4)]
    state = iterator.get_state()
    assert state["next_index"] == 4
    rest = list(iterator)
    assert iterator.get_state()["next_index"] == 10
    iterator.set_state(state)
    assert list(iterator) == rest
    iterator.set_state({"next_index": 0})
    assert [next(iterator) for _ in range(4)] == first
    assert list(iterator) == rest
    assert next(iterator, None) is None


def test_next_index():
    iterator = iter(MapDataset.range(10).to_iter_dataset())
    next(iterator)
    assert get_next_index(iterator) == 1
    set_next_index(iterator, 7)
    assert next(iterator) == 7
    other = iter(MapDataset.range(10).to_iter_dataset().window_shuffle(3, seed=1))
    with pytest.raises(StateError, match="has no next index"):
        get_next_index(other)


def test_a_state_far_into_an_endless_pipeline_is_restored_at_once():
    ds = MapDataset.range(10**6).shuffle(seed=1).repeat().batch(32).to_iter_dataset()
    iterator = iter(ds)
    iterator.set_state({"next_index": 10**9})
    expected = [MapDataset.range(10**6).shuffle(seed=1)[32 * 10**9 + i] for i in range(32)]
    assert next(iterator).tolist() == expected


def test_closing():
    iterator = iter(MapDataset.range(1000).to_iter_dataset(ReadOptions(num_threads=4)).prefetch(10))
    next(iterator)
    iterator.close()
    iterator.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="closed"):
            next(iterator)
    with pytest.raises(ClosedError):
        iterator.start_prefetch()
    with iter(MapDataset.range(10).to_iter_dataset()) as iterator:
        assert next(iterator) == 0


def test_closing_an_iterator_that_was_never_used_opens_nothing():
    class Unopened(IterDataset):
        def __iter__(self):
            raise OSError("opened")

    iter(Unopened().map(str)).close()


def threads():
    """The threads of pipelines, without the one that watches slow ones."""
    return [t for t in threading.enumerate() if t.name.startswith("headrace") and t.name != "headrace-watch"]


@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.prefetch(4), lambda ds: ds.batch(2).prefetch(100)])
def test_an_iterator_dropped_without_close_leaves_no_thread(make):
    for _ in range(20):
        iterator = iter(make(MapDataset.range(10**6).to_iter_dataset(ReadOptions(num_threads=3))))
        next(iterator)
        del iterator
    gc.collect()
    until(lambda: not threads(), "threads left")


def test_the_parts_of_a_mix_share_their_threads():
    parts = [MapDataset.range(1000).to_iter_dataset(ReadOptions(num_threads=4)) for _ in range(30)]
    with iter(IterDataset.mix(parts)) as iterator:
        assert [next(iterator) for _ in range(90)] == [i for i in range(3) for _ in range(30)]
        assert 1 <= len(threads()) <= 4
    assert not threads()


def test_start_prefetch_computes_before_the_first_element_is_asked_for():
    computed = threading.Event()
    ds = MapDataset.range(10).map(lambda x: computed.set() or x)
    for stream in (ds.to_iter_dataset(ReadOptions(num_threads=1)), ds.to_iter_dataset().prefetch(2)):
        computed.clear()
        with iter(stream) as iterator:
            iterator.start_prefetch()
            assert computed.wait(WAIT_S)
            assert list(iterator) == list(range(10))


def test_a_slow_element_is_not_overtaken_and_others_are_computed_meanwhile():
    release = threading.Event()
    done = []

    def work(x):
        if x == 3:
            assert release.wait(2 * WAIT_S)
        done.append(x)
        return x

    ds = MapDataset.range(64).map(work).to_iter_dataset(ReadOptions(num_threads=4, prefetch_buffer_size=32))
    with iter(ds) as iterator:
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        until(lambda: len(done) >= 12, "others wait for the slow element")
        release.set()
        assert list(iterator) == list(range(3, 64))


def test_threads_read_ahead_within_their_bounds():
    started = []

    def work(x):
        started.append(x)
        return np.zeros(1000)

    options = ReadOptions(num_threads=4, prefetch_buffer_size=20)
    with iter(MapDataset.range(10**4).map(work).to_iter_dataset(options)) as iterator:
        for i in range(50):
            next(iterator)
            time.sleep(0.001)
            assert len(started) <= i + 1 + 2 * 20
    started.clear()
    options = ReadOptions(num_threads=4, prefetch_buffer_size=1000, prefetch_buffer_bytes=40_000)
    with iter(MapDataset.range(10**4).map(work).to_iter_dataset(options)) as iterator:
        for _ in range(200):
            next(iterator)
            time.sleep(0.0005)
        assert len(started) <= 300


def test_waiting_sources_get_threads_by_themselves():
    names = set()

    class Slow:
        def __len__(self):
            return 10**6

        def __getitem__(self, i):
            names.add(threading.current_thread().name)
            time.sleep(0.002)
            return i

    with iter(MapDataset.source(Slow())) as iterator:
        assert [next(iterator) for _ in range(400)] == list(range(400))
    assert any(name.startswith("headrace") for name in names)


def test_cheap_chains_stay_in_the_consumers_thread():
    names = set()
    ds = MapDataset.range(300_000).map(lambda x: names.add(threading.current_thread().name) or x)
    for _ in range(10):  # if this thread has to wait for a core, the chain looks dear
        names.clear()
        assert sum(1 for _ in ds) == 300_000
        if names == {threading.current_thread().name}:
            return
    raise AssertionError(f"computed in {names}")


def test_the_first_run_is_one_element():
    seen = []
    iterator = iter(MapDataset.range(10**6).map(lambda x: seen.append(x) or x))
    next(iterator)
    assert seen == [0]


def test_an_interrupt_loses_nothing():
    script = """
        import os, signal, sys, threading, time
        from headrace import MapDataset, ReadOptions
        ds = MapDataset.range(10**6).map(lambda x: time.sleep(0.002) or x).to_iter_dataset(%s)
        iterator, seen, interrupts = iter(ds), [], 0
        def interrupt():
            for i in range(3):
                while interrupts < i:
                    time.sleep(0.01)
                time.sleep(0.1)
                os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt, daemon=True).start()
        while interrupts < 3 or len(seen) < 400:
            try:
                seen.append(next(iterator))
            except KeyboardInterrupt:
                interrupts += 1
                if iterator.get_state()["next_index"] > len(seen):
                    seen.append(len(seen))  # it was taken, and the interrupt came before it was kept
        assert seen == list(range(len(seen))), seen[:20]
    """
    for options in ("ReadOptions(num_threads=0)", "ReadOptions(num_threads=2)"):
        subprocess.run([sys.executable, "-c", textwrap.dedent(script) % options], check=True, timeout=LIMIT_S)


def test_a_program_that_ends_half_way_exits_at_once():
    script = """
        from headrace import MapDataset, ReadOptions
        ds = MapDataset.range(10**9).to_iter_dataset(ReadOptions(num_threads=8)).prefetch(100)
        iterator = iter(ds)
        print(next(iterator))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0\n"
    assert done.stderr == ""


def test_the_traceback_of_a_users_error_starts_in_their_code():
    def broken(x):
        return 1 // (x - 2)

    iterator = iter(MapDataset.range(5).map(broken))
    with pytest.raises(ZeroDivisionError) as info:
        list(iterator)
    frames = [frame.name for frame in info.traceback]
    assert frames[-1] == "broken"
    assert len(frames) <= 4
    assert "element 2 (pipeline at test_iterator.py:" in info.value.__notes__[0]
    assert "map(broken at test_iterator.py:" in info.value.__notes__[0]


def test_a_chained_error_keeps_its_cause():
    def broken(x):
        try:
            raise KeyError("inner")
        except KeyError as e:
            raise ValueError("outer") from e

    with pytest.raises(ValueError, match="outer") as info:
        MapDataset.range(5).map(broken)[0]
    assert isinstance(info.value.__cause__, KeyError)


def test_a_function_that_raises_stop_iteration_does_not_end_the_stream():
    def broken(x):
        if x == 3:
            raise StopIteration
        return x

    for ds in (
        MapDataset.range(9).map(broken),
        MapDataset.range(9).to_iter_dataset().filter(lambda x: broken(x) or 1),
    ):
        iterator = iter(ds)
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="raised StopIteration"):
                next(iterator)


def test_states_do_not_depend_on_line_numbers_or_addresses():
    def build():
        ds = MapDataset.range(50).to_iter_dataset().filter(lambda x: x % 2)
        return IterDataset.mix([ds.window_shuffle(4, seed=1).map(lambda x: x), ds.shuffle(3, seed=2)]).batch(2)

    a, b = iter(build()), iter(build())
    next(a), next(b)
    state = json.dumps(a.get_state())
    assert state == json.dumps(b.get_state())
    assert ".py" not in state
    assert "0x" not in state
    assert len(state) < 1000


def test_memory_does_not_grow_with_the_number_of_elements():
    script = """
        import gc, resource
        from headrace import MapDataset
        def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ds = MapDataset.range(10**7).shuffle(seed=1).random_map(lambda x, rng: x, seed=1).to_iter_dataset()
        ds = ds.window_shuffle(100, seed=1).batch(10)
        iterator = iter(ds)
        for _ in range(1000): next(iterator)
        before = peak()
        for _ in range(10_000): next(iterator)
        assert peak() - before < 10_000, peak() - before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=LIMIT_S)


@pytest.mark.skipif(not hasattr(os, "fork") or not hasattr(signal, "SIGKILL"), reason="needs POSIX")
def test_importing_loads_numpy_and_little_else():
    script = """
        import sys, numpy
        before = set(sys.modules)
        import headrace
        heavy = {"jax", "torch", "tensorflow", "pandas", "pyarrow", "grain", "cloudpickle", "asyncio"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=LIMIT_S)


def test_a_prefetch_of_a_prefetch_closes_while_nothing_comes():
    def nothing(ds):
        return ds.filter(lambda x: False).with_options(DatasetOptions(filter_warn_threshold_ratio=None))

    iterator = iter(nothing(MapDataset.range(10).repeat().to_iter_dataset()).prefetch(1).prefetch(1))
    iterator.start_prefetch()
    time.sleep(0.05)
    iterator.close()


@pytest.mark.parametrize("how", ["prefetch(2)", "batch(2)", "map(abs)"])
def test_an_iterator_that_is_left_at_the_programs_end_says_nothing(how):
    script = f"""
    import jax
    from headrace import MapDataset, ReadOptions
    iterator = iter(MapDataset.range(10**6).to_iter_dataset(ReadOptions(4, 16)).{how})
    next(iterator)
    """
    pytest.importorskip("jax")
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "least"), [(None, 100), (ReadOptions(), 100), (ReadOptions(num_threads=2, prefetch_buffer_size=20), 20)]
)
def test_start_prefetch_reads_ahead_before_the_first_element_is_asked_for(options, least):
    computed = []
    ds = MapDataset.range(2000).map(lambda x: computed.append(x) or x).to_iter_dataset(options)
    for stream, expected in ((ds, 0), (ds.batch(4), [0, 1, 2, 3]), (IterDataset.mix([ds, ds]), 0)):
        computed.clear()
        with iter(stream) as iterator:
            iterator.start_prefetch()
            until(lambda: len(computed) >= least, "too little was computed ahead")
            assert iterator.get_state() == iter(stream).get_state()
            assert_equal(next(iterator), expected if isinstance(expected, int) else np.array(expected))
            state = iterator.get_state()
            rest = [next(iterator) for _ in range(300)]
            iterator.set_state(state)
            iterator.start_prefetch()
            iterator.start_prefetch()
            assert_equal([next(iterator) for _ in range(300)], rest)
    assert not threads()


def test_start_prefetch_makes_nothing_ahead_where_reading_is_inline():
    computed = []
    ds = MapDataset.range(20).map(lambda x: computed.append(x) or x).to_iter_dataset(ReadOptions(num_threads=0))
    with iter(ds) as iterator:
        iterator.start_prefetch()
        time.sleep(0.1)
        assert not computed
        assert list(iterator) == list(range(20))


def test_an_error_in_a_head_start_comes_in_its_place():
    def broken(x):
        if x == 30:
            raise ValueError("thirty")
        return x

    with iter(MapDataset.range(100).map(broken).to_iter_dataset()) as iterator:
        iterator.start_prefetch()
        assert [next(iterator) for _ in range(30)] == list(range(30))
        for _ in range(2):
            with pytest.raises(ValueError, match="thirty"):
                next(iterator)


def test_one_call_of_next_does_not_compute_thousands_of_elements_by_default():
    """While it is tried whether threads pay, and after."""
    computed = []

    def load(x):
        computed.append(x)
        time.sleep(0.0005)
        return x

    most = 0
    with iter(MapDataset.range(20_000).map(load).to_iter_dataset()) as iterator:
        for _ in range(600):
            before = len(computed)
            next(iterator)
            most = max(most, len(computed) - before)
    assert most < 1000  # threads may fill their buffer of 500


def test_large_elements_are_not_computed_far_ahead_by_default():
    computed = []

    def load(x):
        computed.append(x)
        time.sleep(0.001)
        return np.zeros(100_000, np.uint8)

    with iter(MapDataset.range(20_000).map(load).to_iter_dataset()) as iterator:
        for _ in range(200):
            next(iterator)
    assert len(computed) < 200 + 600


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(20_000).map(abs).to_iter_dataset(),
        MapDataset.range(20_000).map(abs).to_iter_dataset().prefetch(4),
        MapDataset.range(20_000).map(abs).to_iter_dataset().filter(lambda x: True).mp_prefetch(2),
    ],
    ids=["inline", "prefetch", "workers"],
)
def test_threads_that_share_an_iterator_get_each_element_once(ds):
    got, errors = [], []

    def take(iterator):
        try:
            for x in iterator:
                got.append(x)  # noqa: PERF402
        except BaseException as e:
            errors.append(e)

    with iter(ds) as iterator:
        threads = [threading.Thread(target=take, args=(iterator,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert errors == []
    assert sorted(got) == list(range(20_000))
