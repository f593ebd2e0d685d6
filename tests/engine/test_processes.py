"""Worker processes change nothing but the speed."""

import gc
import importlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    DatasetIterator,
    DatasetOptions,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
)
from headrace.engine.plan import BlockStage, IndexStage, Stages, StreamStage, ready_for_workers
from headrace.engine.workers.slots import Slot, Writer, anonymous_file
from headrace.engine.workers.tasks import IndexTask, TaskRunner
from headrace.errors import (
    FilterError,
    PipelineError,
    SharedMemoryFull,
    StateWarning,
    WorkerError,
)
from headrace.testing import assert_equal, assert_resumable
from tests.laws.test_laws import SOURCES, Boom, assert_same, fails_at, outputs
from tests.support.chains import STREAM_OPS, Tail, stream_datasets
from tests.support.proc import LIMIT_S, WAIT_S, held_bytes, nothing_left, until, workers_of


def workers(count, buffer_size=1, **kwargs):
    return MultiprocessingOptions(count, buffer_size, **kwargs)


def assert_one_stream(ds, counts=(0, 1, 2, 5), buffer_size=1, resume_at=()):
    """With any number of workers, the elements and states are those without; states cross over."""
    elements, states = outputs(ds)
    for count in counts:
        remote = ds.mp_prefetch(workers(count, buffer_size))
        found, found_states = outputs(remote)
        assert_same(found, elements)
        assert found_states == states
        for k in resume_at:
            k = min(k, len(elements))
            for goes_on in (remote, ds):
                with iter(goes_on) as iterator:
                    iterator.set_state(json.loads(found_states[k]))
                    rest = [x for x, _ in zip(iterator, range(20), strict=False)]
                    assert_same(rest, elements[k : k + 20])


# ---- one stream


@settings(max_examples=settings.default.max_examples // 5)
@given(stream_datasets(), st.integers(1, 3), st.integers(0, 150))
def test_random_chains_are_one_stream(ds, buffer_size, k):
    assert_one_stream(ds, buffer_size=buffer_size, resume_at=[k])


@pytest.mark.sampled(every=25)
@pytest.mark.parametrize(("source", "k"), [("arrays", 4), ("rows", 11)])
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_every_stream_operation_is_one_stream(name, source, k):
    ds = STREAM_OPS[name](SOURCES[source]().repeat(3).to_iter_dataset(), k).map(lambda x: x)
    assert_one_stream(ds, counts=(2,), buffer_size=2, resume_at=[5])


def test_a_state_of_three_workers_restores_with_none_and_with_seven():
    ds = MapDataset.range(400).to_iter_dataset().filter(lambda x: x % 3).window_shuffle(7, seed=1).batch(4)
    with iter(ds.mp_prefetch(workers(3))) as iterator:
        for _ in range(20):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        rest = list(iterator)
    for count in (0, 7):
        with iter(ds.mp_prefetch(workers(count))) as iterator:
            iterator.set_state(state)
            assert_same(list(iterator), rest)


def test_workers_are_resumable_half_way_through_groups():
    ds = MapDataset.range(30).to_iter_dataset().flat_map(lambda x: [x] * (x % 4)).batch(3).rebatch(2)
    assert_resumable(ds.mp_prefetch(workers(1)), max_outputs=6)


def holey(i):
    return None if i % 5 == 3 else i


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "then",
    [
        lambda ds: ds.batch(4),
        lambda ds: ds.map_with_index(lambda i, x: (i, x)),
        lambda ds: ds.random_map(lambda x, rng: x + int(rng.integers(1000)), seed=1).batch(3),
    ],
)
def test_indices_that_turn_out_to_have_no_element_do_not_upset_counts(then):
    assert_one_stream(then(MapDataset.range(100).map(holey).to_iter_dataset()), counts=(2,), resume_at=[7])


@pytest.mark.usefixtures("no_other_workers")
def test_parts_of_a_mix_share_one_pool():
    parts = [MapDataset.range(i, 1000, 7).to_iter_dataset().map(lambda x: x).mp_prefetch(workers(2)) for i in range(3)]
    ds = IterDataset.mix(parts, weights=[1, 2, 1])
    expected = list(IterDataset.mix([part._parent for part in parts], weights=[1, 2, 1]))
    with iter(ds) as iterator:
        found = [next(iterator) for _ in range(50)]
        assert len(workers_of(os.getpid())) == 2
        assert found == expected[:50]
        assert iterator.get_state()["0 mix"]["count"] == 50
    assert list(ds) == expected


class Few(IterDataset):
    """Three elements."""

    def __init__(self, i):
        super().__init__()
        self._i = i

    def __iter__(self):
        yield from range(3 * self._i, 3 * self._i + 3)


def test_an_error_names_no_element_where_only_the_place_in_a_chunk_is_known():
    def fails_at_50(x):
        if x == 50:
            raise Boom("at 50")
        return x

    ds = MapDataset.range(60).to_iter_dataset().filter(lambda x: x > 30)
    ds = ds.random_map(lambda x, rng: x, seed=1).map(fails_at_50)
    for each in (ds, ds.mp_prefetch(workers(2))):
        with iter(each) as iterator, pytest.raises(Boom) as error:
            list(iterator)
        (note,) = error.value.__notes__
        assert note.startswith("in map(fails_at_50 at test_processes.py")
        assert "element" not in note


def test_very_many_streams_in_one_worker():
    """More tasks and answers under way than the pipes between them hold."""
    parts = [Few(i) for i in range(350)]
    for ds in (IterDataset.interleave(parts, cycle_length=350), IterDataset.mix(parts)):
        with nothing_left(), iter(ds.mp_prefetch(workers(1))) as iterator:
            assert list(iterator) == list(ds)
            iterator.close()


def test_threads_around_workers_change_nothing():
    parts = [
        MapDataset.range(i, 300, 3).to_iter_dataset().filter(lambda x: x % 5).mp_prefetch(workers(1)).prefetch(2)
        for i in range(3)
    ]
    expected = outputs(IterDataset.mix([part._parent._parent for part in parts]))
    with nothing_left():
        found = outputs(IterDataset.mix(parts))
        assert_same(found[0], expected[0])
        assert found[1] == expected[1]


def test_an_mp_prefetch_in_a_worker_does_nothing():
    inner = MapDataset.range(50).to_iter_dataset().map(lambda x: (x, os.getpid())).mp_prefetch(workers(2))
    ds = inner.map(lambda pair: (*pair, os.getpid())).mp_prefetch(workers(1))
    with iter(ds) as iterator:
        found = list(iterator)
    assert [x for x, _, _ in found] == list(range(50))
    assert all(a == b != os.getpid() for _, a, b in found)


class PassedOn(IterDataset):
    """What its parent gives, read by code of the user's own."""

    def __iter__(self):
        yield from self._parent


@pytest.mark.usefixtures("no_other_workers")
def test_an_mp_prefetch_in_a_users_dataset_in_a_worker_does_nothing():
    inner = MapDataset.range(20).to_iter_dataset().map(pid_of).mp_prefetch(workers(2))
    with iter(PassedOn(inner).mp_prefetch(workers(1))) as iterator:
        assert set(iterator) == workers_of(os.getpid())


def test_workers_of_datasets_that_an_interleave_makes_end_with_them():
    def make(i):
        return MapDataset.range(10 * i, 10 * i + 10).to_iter_dataset().map(lambda x: x).mp_prefetch(workers(1))

    ds = IterDataset.interleave(MapDataset.range(6).map(make), cycle_length=2)
    most = 0
    with nothing_left(), iter(ds) as iterator:
        for _ in iterator:
            most = max(most, len(workers_of(os.getpid())))
        iterator.close()
    assert most <= 3


def test_iterators_at_the_same_time_do_not_disturb_each_other():
    ds = MapDataset.range(300).to_iter_dataset().map(lambda x: np.full(10, x)).mp_prefetch(workers(2))
    with iter(ds) as one, iter(ds) as two:
        pairs = zip(one, two, strict=True)
        assert all(a[0] == b[0] == i for i, (a, b) in enumerate(pairs))


def test_reading_threads_in_workers_change_nothing():
    ds = MapDataset.range(200).map(lambda x: np.full(3, x)).batch(4)
    expected = list(ds)
    threaded = ds.to_iter_dataset(ReadOptions(num_threads=4, prefetch_buffer_size=8)).mp_prefetch(workers(2))
    assert_same(list(threaded), expected)


def test_flat_map_after_what_drops_elements_is_one_stream():
    ds = MapDataset.range(40).to_iter_dataset()
    split = [
        ds.filter(lambda x: x % 4 != 1).flat_map(lambda x: [x] * (x % 4)),
        ds.flat_map(lambda x: [x] * (x % 3)).flat_map(lambda x: [x, x]),
        ds.window_shuffle(5, seed=1).filter(lambda x: x % 4).flat_map(lambda x: [x] * (x % 4)),
        MapDataset.range(40).map(holey).to_iter_dataset().flat_map(lambda x: [x] * (x % 3)),
    ]
    for each in split:
        assert_one_stream(each, counts=(2,), resume_at=[7])


def test_what_a_function_keeps_is_never_overwritten():
    """A cache, or a memory of the user's own, behind a batch that is not the last."""
    rows = [np.full(4000, i) for i in range(16)]
    assert_one_stream(MapDataset.source(rows).batch(2).cache().repeat(4).batch(2).to_iter_dataset(), counts=(1, 2))


class Again(IterDataset):
    """A stream whose iterator begins again when it is asked after its end."""

    def __iter__(self):
        return AgainIterator()


class AgainIterator(DatasetIterator):
    def __init__(self):
        super().__init__()
        self._n = 0

    def __next__(self):
        self._n += 1
        if self._n % 11 == 0:
            raise StopIteration
        return self._n % 11

    def get_state(self):
        return self._n

    def set_state(self, state):
        self._n = state


def test_a_stream_that_begins_again_when_asked_after_its_end_has_ended():
    assert list(Again().map(lambda x: x)) == list(range(1, 11))
    for count in (1, 2):
        for ds in (Again(), Again().map(lambda x: x)):
            assert list(ds.mp_prefetch(workers(count)).take(30)) == list(range(1, 11))


def test_a_cache_before_a_stage_is_used():
    ds = MapDataset.range(5).to_iter_dataset().map(lambda x: (x, os.urandom(2))).cache().map(lambda pair: pair)
    found = list(ds.repeat(2).mp_prefetch(workers(2)))
    assert found[:5] == found[5:]


def test_an_interleave_of_made_datasets_with_more_workers_than_it_keeps_open():
    def make(i):
        ds = MapDataset.range(1000 * i, 1000 * i + 40).repeat().to_iter_dataset().filter(lambda x: x % 3)
        return ds.random_map(lambda x, rng: (x, int(rng.integers(1000))), seed=1)

    ds = IterDataset.interleave(MapDataset.range(12).map(make), cycle_length=2).take(200)
    assert_one_stream(ds, counts=(5,), resume_at=[50])


def test_chunks_do_not_grow_where_runs_stay_short():
    parts = [MapDataset.range(20_000).to_iter_dataset() for _ in range(32)]
    ds = IterDataset.interleave(parts, cycle_length=32).random_map(lambda x, rng: x, seed=1).mp_prefetch(workers(2))
    with iter(ds) as iterator:
        for _ in range(200):
            next(iterator)
        (pool,) = iterator._iteration._workers._pools.values()
        assert max(chunk for chunk, _ in pool.load.chunks.values()) <= 1 << 13
    ds = MapDataset.range(4_000).to_iter_dataset().window_shuffle(8, seed=1)
    ds = ds.random_map(lambda x, rng: x, seed=1).mp_prefetch(workers(1))
    with iter(ds) as iterator:
        assert sum(iterator) == sum(range(4_000))


def test_an_error_far_on_in_a_window_comes_soon(caplog):
    ds = MapDataset.range(4000).to_iter_dataset().window_shuffle(1000, seed=1)
    ds = ds.map(fails_at(list(ds)[990]))
    with iter(ds.mp_prefetch(workers(2))) as iterator, pytest.raises(Boom):
        list(iterator)
    assert (
        caplog.text.count("succeeded when retried one element at a time") <= 2
    )  # each time, the window is read again from its beginning


def test_one_object_in_two_places_of_an_element_stays_one():
    def two(i):
        a = np.full(3, i)
        return {"x": a, "y": a, "z": i}

    def edit(d, rng):
        d["x"] += 1
        return d

    ds = MapDataset.range(6).map(two).to_iter_dataset().filter(lambda d: True).random_map(edit, seed=1)
    assert_one_stream(ds, counts=(2,))
    ds = MapDataset.range(6).map(lambda i: ([i],) * 2).to_iter_dataset().filter(lambda d: True)
    assert all(a is b for a, b in ds.mp_prefetch(workers(1)))


def test_many_slow_streams_do_not_keep_the_first_element_waiting(tmp_path):
    class Slow(IterDataset):
        def __init__(self, is_first):
            super().__init__()
            self._is_first = is_first

        def __iter__(self):
            for i in range(100):
                if not self._is_first:
                    until((tmp_path / "taken").exists, "the first element waits for those of other streams")
                yield i

    ds = IterDataset.mix([Slow(number == 0) for number in range(100)]).mp_prefetch(workers(1))
    with iter(ds) as iterator:
        iterator.start_prefetch()
        begin = time.monotonic()
        assert next(iterator) == 0
        assert time.monotonic() - begin < WAIT_S  # or it came after the others had given up
        (tmp_path / "taken").touch()
        assert [next(iterator) for _ in range(99)] == [0] * 99


# ---- where functions run


def pid_of(x, *_):
    return os.getpid()


RUNS_IN_WORKERS = {
    "map": lambda ds: ds.map(pid_of),
    "map after a filter": lambda ds: ds.filter(lambda x: x % 2).map(pid_of),
    "random_map after a filter": lambda ds: ds.filter(lambda x: x % 2).random_map(pid_of, seed=1),
    "map after a window": lambda ds: ds.window_shuffle(5, seed=1).map(pid_of),
    "map after batches": lambda ds: ds.filter(lambda x: x % 2).batch(4).map(pid_of),
    "map after rebatching": lambda ds: ds.batch(4).rebatch(3).map(pid_of),
    "batch_fn after a filter": lambda ds: ds.filter(lambda x: x % 2).batch(4, batch_fn=pid_of),
    "map after a mix": lambda ds: IterDataset.mix([ds, ds]).map(pid_of),
    "map after an interleave": lambda ds: IterDataset.interleave([ds, ds], cycle_length=2).map(pid_of),
    "map of a user's stream": lambda ds: Tail(ds).map(pid_of),
    "a user's stream": lambda ds: Tail(ds.map(pid_of)),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", RUNS_IN_WORKERS)
def test_functions_run_in_workers(name):
    ds = RUNS_IN_WORKERS[name](MapDataset.range(60).to_iter_dataset())
    with iter(ds.mp_prefetch(workers(2))) as iterator:
        pids = set(iterator)
        assert pids <= workers_of(os.getpid())


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "build",
    [
        lambda ds, work: ds.filter(lambda x: x % 7).map(work),  # not every second one, all of which one worker may get
        lambda ds, work: ds.filter(lambda x: x % 7).batch(2).map(work),
        lambda ds, work: IterDataset.interleave([Tail(ds).map(work) for _ in range(4)], cycle_length=4),
    ],
)
def test_all_workers_have_work(build, tmp_path):
    def work(x):
        (tmp_path / str(os.getpid())).touch()
        until(lambda: len(os.listdir(tmp_path)) == 2, "the other worker has nothing to do")
        return os.getpid()

    with iter(build(MapDataset.range(120).to_iter_dataset(), work).mp_prefetch(workers(2))) as iterator:
        pids = list(iterator)
    assert len(set(pids)) == 2


def test_others_go_on_while_one_worker_is_slow(tmp_path):
    def slow_at_first(i):
        if i == 0:
            until(lambda: len(os.listdir(tmp_path)) >= 4, "the other worker has not run ahead")
        (tmp_path / str(i)).touch()
        return i

    ds = MapDataset.range(20).map(slow_at_first).to_iter_dataset().mp_prefetch(workers(2, buffer_size=4))
    with iter(ds) as iterator:
        assert list(iterator) == list(range(20))


def test_the_cut_into_stages():
    ds = MapDataset.range(10).to_iter_dataset()

    def kind(ds):
        root = ready_for_workers(ds._op, as_written=False)
        stage = Stages(root, (0,)).of(root)
        return None if stage is None else (type(stage), stage.inputs)

    kept = ds.filter(lambda x: x)
    assert kind(ds.map(str).batch(3)) == (IndexStage, 3)
    assert kind(ds.random_map(pid_of, seed=1)) == (IndexStage, 1)
    assert kind(kept.map(str)) == (IndexStage, 1)
    assert kind(kept.batch(3)) is None
    assert kind(kept.random_map(pid_of, seed=1)) == (BlockStage, 1)
    assert kind(kept.batch(3).map(str)) == (BlockStage, 1)
    assert kind(kept.batch(3, batch_fn=tuple)) == (BlockStage, 1)
    assert kind(ds.window_shuffle(3, seed=1).map(str)) is None  # the map has moved below
    assert kind(ds.window_shuffle(3, seed=1).filter(str)) == (BlockStage, 1)
    assert kind(Tail(ds)) == (StreamStage, 1)


def test_maps_move_below_what_only_changes_the_order():
    ds = MapDataset.range(10).to_iter_dataset()
    moved = IterDataset.mix([ds.take(5), ds.window_shuffle(3, seed=1).repeat(2)]).map(str)
    text = str(IterDataset._of(ready_for_workers(moved._op, as_written=False)))
    assert [line.strip().split("(")[0] for line in text.splitlines()] == [
        "IterDataset.mix", "MapDataset.range", ".to_iter_dataset", ".map", ".take",
        "MapDataset.range", ".to_iter_dataset", ".map", ".window_shuffle", ".repeat",
    ]  # fmt: skip
    unmoved = str(IterDataset._of(ready_for_workers(moved._op, as_written=True)))
    assert unmoved.splitlines()[-1].strip().startswith(".map")


def test_explain_says_what_runs_where():
    ds = MapDataset.range(10).map(str).to_iter_dataset().filter(len).window_shuffle(3, seed=1).map(str).batch(2)
    lines = str(ds.mp_prefetch(workers(3)).take(2).explain()).splitlines()
    assert [(line.split("(")[0].strip(), line.split("| ")[1].split(":")[0]) for line in lines] == [
        ("MapDataset.range", "worker"),
        (".map", "worker"),
        (".to_iter_dataset", "worker"),
        (".filter", "worker"),
        (".map", "worker"),
        (".window_shuffle", "consumer"),
        (".batch", "consumer"),
        (".mp_prefetch", "prefetches with 3 worker processes"),
        (".take", "stream"),
    ]


def test_the_plan_can_be_walked():
    ds = MapDataset.range(10).map(str).to_iter_dataset().filter(len).window_shuffle(3, seed=1)
    plan = ds.random_map(pid_of, seed=2).batch(2).mp_prefetch(workers(3)).take(2).explain()
    assert [(stage.where, [step.op.name for step in stage.steps]) for stage in plan.stages] == [
        ("worker", ["source", "map", "to_iter_dataset", "filter"]),
        ("consumer", ["window_shuffle"]),
        ("worker", ["random_map"]),
        ("consumer", ["batch", "mp_prefetch", "take"]),
    ]
    assert [stage.reason for stage in plan.stages[:3]] == [
        "any worker can compute any range of indices",
        "it needs its elements in order",
        "any worker can compute any block of elements that the consumer has put in order",
    ]
    assert "an index does not determine how many" in plan.stages[3].reason
    assert all(step.reason == "" for stage in plan.stages for step in stage.steps[1:])


def test_the_plan_says_why_the_consumer_counts():
    ds = MapDataset.range(10).to_iter_dataset().filter(len).batch(2).mp_prefetch(workers(2))
    assert "it counts its elements" in next(step for step in ds.explain().steps if step.op.name == "batch").reason


def test_the_plan_of_a_mix_and_of_streams_without_random_access():
    ds, other = (MapDataset.range(10).to_iter_dataset() for _ in range(2))
    plan = IterDataset.mix([ds.map(str), Tail(other)]).mp_prefetch(workers(2)).explain()
    assert [(step.op.name, step.where, step.stage) for step in plan.steps] == [
        ("mix", "consumer", 0),
        ("source", "worker", 1),
        ("to_iter_dataset", "worker", 1),
        ("map", "worker", 1),
        ("source", "worker", 2),
        ("to_iter_dataset", "worker", 2),
        ("user_dataset", "worker", 2),
        ("mp_prefetch", None, 0),
    ]
    assert "one worker" in plan.stages[2].reason


# ---- errors


def test_a_remote_error_shows_the_users_frames():
    def outer(x):
        return inner(x)

    def inner(x):
        raise Boom(f"no {x}")

    with nothing_left():
        with iter(MapDataset.range(3).map(outer).to_iter_dataset().mp_prefetch(workers(1))) as iterator:
            with pytest.raises(Boom, match="no 0") as info:
                next(iterator)
            remote = "".join(traceback.format_tb(info.value.__traceback__)[-2:])
            assert "in outer" in remote
            assert "in inner" in remote
            assert 'raise Boom(f"no {x}")' in remote
            assert info.value.__notes__[0].startswith("in map(outer at test_processes.py:")
            assert "element 0" in info.value.__notes__[0]
        del info


class OddError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.lock = a, threading.Lock()


class StubbornError(Exception):
    def __reduce__(self):
        raise TypeError("not to be sent")

    def __new__(cls, *args):
        if len(args) == 1:
            raise TypeError("nor to be made")
        return super().__new__(cls, *args)

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


@pytest.mark.parametrize(("kind", "arrives"), [(OddError, OddError), (StubbornError, WorkerError)])
def test_an_error_that_cannot_be_sent_still_says_what_it_was(kind, arrives):
    def fail(x):
        raise kind(1, 2)

    ds = MapDataset.range(3).map(fail).to_iter_dataset().mp_prefetch(workers(1))
    with iter(ds) as iterator, pytest.raises(arrives, match="1 and 2") as info:
        next(iterator)
    assert getattr(info.value, "a", None) == (1 if kind is OddError else None)


def test_a_function_that_exits_or_stops_iterating_ends_nothing_but_itself():
    def stop(x):
        raise StopIteration

    for fn, expected in ((sys.exit, "SystemExit"), (stop, "StopIteration")):
        ds = MapDataset.range(3).map(fn).to_iter_dataset().mp_prefetch(workers(1))
        with iter(ds) as iterator, pytest.raises(RuntimeError, match=expected):
            next(iterator)


@pytest.mark.sampled(every=25)
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_what_comes_before_an_error_is_what_comes_inline(name):
    ds = STREAM_OPS[name](MapDataset.range(40).map(fails_at(23)).to_iter_dataset(), 5)
    found = []
    for each in (ds, ds.mp_prefetch(workers(2))):
        with iter(each) as iterator:
            elements, error = [], None
            try:
                elements.extend(iterator)
            except Boom as e:
                error = str(e), e.__notes__
            found.append((elements, error, iterator.get_state()))
    assert_same(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_an_error_behind_an_ordering_point_names_its_operation():
    ds = MapDataset.range(40).to_iter_dataset().window_shuffle(5, seed=1).map(fails_at(23))
    expected = list(ds.take(list(MapDataset.range(40).to_iter_dataset().window_shuffle(5, seed=1)).index(23)))
    with iter(ds.mp_prefetch(workers(2))) as iterator:
        assert [next(iterator) for _ in expected] == expected
        with pytest.raises(Boom) as info:
            next(iterator)
        assert info.value.__notes__[0].startswith("in map(check at")
        state = iterator.get_state()
        state |= {"next_index": 30, "1 window_shuffle": state["1 window_shuffle"] | {"window": 6, "taken_of_group": 0}}
        with pytest.warns(StateWarning, match="was changed"):
            iterator.set_state(state, strict=False)
        assert next(iterator) in range(30, 35)


def test_filters_are_watched_in_workers(caplog):
    ds = MapDataset.range(3000).to_iter_dataset().filter(lambda x: x == 7)
    assert list(ds.mp_prefetch(workers(2))) == [7]
    assert "dropped" in caplog.text
    ds = ds.with_options(DatasetOptions(filter_raise_threshold_ratio=0.99)).mp_prefetch(workers(2))
    with iter(ds) as iterator, pytest.raises(FilterError):
        list(iterator)


class Numbers(IterDataset):
    def __iter__(self):
        yield from range(20_000)


def test_filters_in_streams_of_the_users_own_are_watched():
    ds = IterDataset.mix([Numbers().filter(lambda x: x % 10 == 0), Numbers()])
    ds = ds.with_options(DatasetOptions(filter_raise_threshold_ratio=0.5)).mp_prefetch(workers(2))
    with iter(ds) as iterator, pytest.raises(FilterError):
        list(iterator)


@pytest.mark.parametrize("count", [-1, 1.5, True, "2", 100_000])
def test_a_silly_number_of_workers_is_refused(count):
    with pytest.raises(PipelineError, match="num_workers"):
        MultiprocessingOptions(num_workers=count)


def test_other_silly_options_are_refused():
    with pytest.raises(PipelineError, match="per_worker_buffer_size"):
        MultiprocessingOptions(num_workers=1, per_worker_buffer_size=0)
    ds = MapDataset.range(3).to_iter_dataset()
    with pytest.raises(PipelineError, match="MultiprocessingOptions"):
        ds.mp_prefetch("4")
    for init in (3, lambda: 0):
        with pytest.raises(PipelineError, match="worker_init_fn"):
            ds.mp_prefetch(workers(1), worker_init_fn=init)
    with pytest.raises(AttributeError, match="after `to_iter_dataset\\(\\)`"):
        MapDataset.range(3).rebatch(2)
    with pytest.raises(AttributeError, match="before `to_iter_dataset\\(\\)`"):
        ds.shard(2, 0)


class Holder:
    def __init__(self, held):
        self.deep = {"inner": [held]}

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return i


@pytest.mark.usefixtures("no_other_workers")
def test_what_cannot_be_pickled_is_named_with_the_path_to_it():
    lock = threading.Lock()
    with pytest.raises(
        WorkerError, match=r"^source\(Holder\) \(pipeline at test_processes.py:\d+\)\.deep\['inner'\]\[0\] .*lock"
    ):
        list(MapDataset.source(Holder(lock)).to_iter_dataset().mp_prefetch(workers(1)))
    with pytest.raises(WorkerError, match=r"^map\(<lambda> at .*\) \(pipeline at .*\), its variable `lock` .*lock"):
        list(MapDataset.range(3).map(lambda x: (x, lock)).to_iter_dataset().mp_prefetch(workers(1)))
    with pytest.raises(WorkerError, match="^worker_init_fn, its variable `lock` "):
        list(MapDataset.range(3).to_iter_dataset().mp_prefetch(workers(1), lambda i, n: lock))
    assert not workers_of(os.getpid())


def test_an_output_that_cannot_be_pickled_is_named():
    ds = MapDataset.range(4).map(lambda x: {"x": x, "held": [threading.Lock()]}).to_iter_dataset()
    message = r"output of map\(<lambda> at .*\(pipeline at test_processes.*its \['held'\]\[0\], lock, cannot be pickled"
    with iter(ds.mp_prefetch(workers(1))) as iterator, pytest.raises(WorkerError, match=message):
        next(iterator)


@pytest.mark.usefixtures("no_other_workers")
def test_no_worker_is_left_after_an_error_though_it_is_kept():
    with iter(MapDataset.range(4).map(fails_at(2)).to_iter_dataset().mp_prefetch(workers(2))) as iterator:
        with pytest.raises(Boom) as info:
            list(iterator)
        assert not workers_of(os.getpid())
        iterator.set_state({"next_index": 3})
        assert next(iterator) == 3
    del info


def test_too_little_memory_says_what_was_needed_and_which_option_to_change():
    ds = MapDataset.range(3).map(lambda i: np.broadcast_to(np.float32(i), (10**12,)))
    with nothing_left(), iter(ds.to_iter_dataset().mp_prefetch(workers(2))) as iterator:
        with pytest.raises(
            SharedMemoryFull, match=r"[\d,]+ MiB more memory, but [\d,]+ MiB are free.*per_worker_buffer_size"
        ):
            next(iterator)
        iterator.close()


# ---- life of the workers


def test_workers_outlive_an_epoch_and_end_with_close():
    ds = MapDataset.range(50).to_iter_dataset().map(pid_of).mp_prefetch(workers(2))
    with nothing_left():
        first = set(ds)
        assert len(workers_of(os.getpid())) == 2
        with iter(ds) as iterator:
            assert set(iterator) <= first | workers_of(os.getpid())
            assert first <= workers_of(os.getpid())
        assert not workers_of(os.getpid())


def test_workers_end_with_the_dataset():
    ds = MapDataset.range(50).to_iter_dataset().mp_prefetch(workers(2))
    with nothing_left():
        assert len(list(ds)) == 50
        assert len(workers_of(os.getpid())) == 2
        del ds
        gc.collect()


def test_start_prefetch_begins_before_the_first_element(tmp_path):
    ds = MapDataset.range(5).map(lambda i: (tmp_path / str(i)).touch()).to_iter_dataset(allow_nones=True)
    with iter(ds.mp_prefetch(workers(1))) as iterator:
        iterator.start_prefetch()
        until((tmp_path / "0").exists, "nothing was computed ahead")


@pytest.mark.usefixtures("no_other_workers")
def test_worker_init_fn_gets_index_and_count_in_each_worker(tmp_path):
    def init(index, count):
        (tmp_path / f"{index} of {count}").write_text(str(os.getpid()))
        sys.modules["headrace"].the_index = index

    ds = MapDataset.range(200).map(lambda x: sys.modules["headrace"].the_index).to_iter_dataset()
    with iter(ds.mp_prefetch(workers(3), init)) as iterator:
        assert set(iterator) <= {0, 1, 2}
        pids = {int(path.read_text()) for path in tmp_path.iterdir()}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0 of 3", "1 of 3", "2 of 3"]
        assert pids == workers_of(os.getpid())


OF_A_MODULE = """
    import os
    from dataclasses import dataclass

    count = 0

    @dataclass
    class Point:
        x: int

    class Refused(Exception):
        pass

    class Points:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 5:
                raise Refused(index)
            return Point(index)

    def counted(point):
        global count
        count += 1
        return point, count, os.getpid()
"""


def test_workers_import_the_modules_of_functions_and_sources(tmp_path, monkeypatch):
    """Other functions of tests travel by value, as those of notebooks do."""
    (tmp_path / "of_a_user.py").write_text(textwrap.dedent(OF_A_MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("of_a_user")
    ds = MapDataset.source(module.Points()).map(module.counted).to_iter_dataset().mp_prefetch(workers(1))
    with nothing_left(), iter(ds) as iterator:
        for i in range(5):
            point, count, pid = next(iterator)
            assert type(point) is module.Point
            assert (point.x, count) == (i, i + 1)
            assert pid != os.getpid()
        with pytest.raises(module.Refused):
            next(iterator)
        del ds
    assert module.count == 0


def test_the_world_that_workers_see(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "extra")])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")

    def look(_):
        import signal

        return {
            "cwd": os.getcwd(),
            "path": sys.path,
            "argv": sys.argv,
            "stdin": sys.stdin.read(),
            "jax": os.environ["JAX_PLATFORMS"],
            "threads": [os.environ["OMP_NUM_THREADS"], os.environ["MKL_NUM_THREADS"]],
            "pythonpath": os.environ.get("PYTHONPATH"),
            "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        }

    with iter(MapDataset.range(1).map(look).to_iter_dataset().mp_prefetch(workers(1))) as iterator:
        seen = next(iterator)
    assert seen == {
        "cwd": str(tmp_path),
        "path": sys.path,
        "argv": sys.argv,
        "stdin": "",
        "jax": "cpu",
        "threads": ["1", "3"],
        "pythonpath": os.environ.get("PYTHONPATH"),
        "interrupt": True,
    }


SCRIPT = """
    import numpy as np
    from headrace import IterDataset, MapDataset, MultiprocessingOptions
    OFFSET = 10
    class Point:
        def __init__(self, x): self.x = x
    class Source:
        def __len__(self): return 6
        def __getitem__(self, i): return Point(i + OFFSET)
    def twice(n):
        return lambda p: Point(p.x * n)
    ds = MapDataset.source(Source()).map(twice(2)).to_iter_dataset().filter(lambda p: p.x != 24)
    points = list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
    assert all(type(point) is Point for point in points)
    print([point.x for point in points])
"""


@pytest.mark.parametrize("how", ["standard input", "-c", "file"])
def test_scripts_need_no_guard(how, tmp_path):
    script = textwrap.dedent(SCRIPT)
    (tmp_path / "script.py").write_text(script)
    arguments = {"standard input": ["-"], "-c": ["-c", script], "file": [str(tmp_path / "script.py")]}[how]
    done = subprocess.run(
        [sys.executable, *arguments], input=script, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("[20, 22, 26, 28, 30]\n", "")


def test_notebook_cells_work():
    """As a notebook runs them: code that is in no file, in a `__main__` of its own."""
    cells = [textwrap.dedent(SCRIPT).split("ds = ")[0], "ds = " + textwrap.dedent(SCRIPT).split("ds = ")[1]]
    script = f"for i, cell in enumerate({cells!r}):\n    exec(compile(cell, f'<cell {{i}}>', 'exec'), globals())"
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.stdout, done.stderr) == ("[20, 22, 26, 28, 30]\n", "")


OWN_CLASS = """
    from headrace import MapDataset, MultiprocessingOptions
    FACTOR = 1
    class Foo:
        count = 0
        def __init__(self, x): self.x = x
        def value(self): return FACTOR
    class Bad(Exception): pass
    def make(x):
        if x == 5: raise Bad("five")
        return Foo(x)
    iterator = iter(MapDataset.range(10).map(make).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1)))
    next(iterator)
    FACTOR, Foo.count = 5, 7
    found = []
    try:
        for foo in iterator: found.append(foo)
    except Bad as e:
        assert type(e) is Bad
    print(foo.value(), Foo.count, Foo.value.__globals__ is globals(), len(found))
    iterator.close()
"""


def test_classes_of_the_consumer_stay_what_they_are():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OWN_CLASS)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.stdout, done.stderr) == ("5 7 True 4\n", "")


@pytest.mark.parametrize("closed", ["0<&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_may_be_closed(closed, tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
        from headrace import MapDataset, MultiprocessingOptions
        ds = MapDataset.range(5).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=2))
        open({str(tmp_path / "out")!r}, "w").write(str(list(ds)))
    """)
    )
    command = f"{sys.executable} {tmp_path / 'script.py'} {closed}"
    assert subprocess.run(["bash", "-c", command], timeout=LIMIT_S).returncode == 0
    assert (tmp_path / "out").read_text() == "[0, 1, 2, 3, 4]"


def test_a_long_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program", *(f"file number {i}.parquet" for i in range(20_000))])
    ds = MapDataset.range(1).map(lambda _: len(sys.argv)).to_iter_dataset().mp_prefetch(workers(1))
    with iter(ds) as iterator:
        assert next(iterator) == 20_001


def test_prefetch_with_multiprocessing_options_is_an_mp_prefetch():
    ds = MapDataset.range(30).map(pid_of).to_iter_dataset().prefetch(workers(2))
    with iter(ds) as iterator:
        assert os.getpid() not in set(iterator)


def test_a_large_number_of_workers_works():
    with nothing_left(), iter(MapDataset.range(100).to_iter_dataset().mp_prefetch(workers(8))) as iterator:
        assert list(iterator) == list(range(100))
        iterator.close()


# ---- memory


class Rows:
    """A source that reads every row of what it holds."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return int(self.rows[i].max())


def memory_of(pid, field):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(f"{field}:"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_one_copy_of_a_large_source():
    size = 1 << 29
    rows = np.ones((1024, size // 1024), np.uint8)
    ds = MapDataset.source(Rows(rows)).to_iter_dataset().mp_prefetch(workers(3))
    with nothing_left(), iter(ds) as iterator:
        assert sum(iterator) == 1024
        held = [memory_of(pid, "Pss") for pid in workers_of(os.getpid())]
        assert len(held) == 3
        assert sum(held) < 1.3 * size
        iterator.close()


def test_a_batch_is_stacked_in_the_slot_that_it_travels_in():
    ds = MapDataset.range(8).map(lambda i: {"x": np.full(10, i), "i": i})
    for each in (ds.batch(4).to_iter_dataset(), ds.to_iter_dataset().batch(4)):
        fd = anonymous_file(2)
        writer = Writer(Slot(fd, 1))
        task = IndexTask((0,), 0, 4, dense=True, single_step=False)
        _, _, columns = TaskRunner([each._op], DatasetOptions()).run(task, writer).encoded
        ((_, _, labels), (_, _, images)) = columns if columns[0][2][0].ndim == 1 else columns[::-1]
        assert writer.holds(images[0])
        assert labels[0].tolist() == [0, 1, 2, 3]
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_memory_map_travels_as_its_path(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(1_600_000, dtype=np.int64).reshape(200, 8000))
    mapped = np.load(path, mmap_mode="r")

    def look(row):
        with open("/proc/self/maps") as f:
            return int(row[0]), str(path) in f.read()

    for source in (mapped, mapped[100:]):
        ds = MapDataset.source(source).map(look).to_iter_dataset().mp_prefetch(workers(1))
        with iter(ds) as iterator:
            found = list(iterator)
            assert held_bytes() < 1 << 20
        assert all(is_mapped for _, is_mapped in found)
        assert [x for x, _ in found] == source[:, 0].tolist()


def test_what_a_worker_writes_is_its_own():
    rows = np.zeros((4, 1000))

    class Edits:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            rows[i] += 1
            return rows[i].sum()

    source = Edits()
    ds = MapDataset.source(source).to_iter_dataset().mp_prefetch(workers(2))
    with iter(ds) as iterator:
        assert list(iterator) == [1000.0] * 4
    assert not rows.any()


def test_a_slow_consumer_is_not_drowned():
    ds = MapDataset.range(10_000).map(lambda i: np.zeros(1 << 20, np.uint8)).to_iter_dataset()
    with iter(ds.mp_prefetch(workers(2, buffer_size=1000, buffer_bytes=32 << 20))) as iterator:
        next(iterator)
        time.sleep(0.5)
        assert held_bytes() < 128 << 20


class Endless(DatasetIterator):
    def __init__(self):
        super().__init__()
        self._n = 0

    def __next__(self):
        self._n += 1
        return self._n

    def get_state(self):
        return {"n": self._n}

    def set_state(self, state):
        self._n = state["n"]


class EndlessDataset(IterDataset):
    def __iter__(self):
        return Endless()


def test_an_endless_stream_of_the_users_own():
    ds = EndlessDataset().map(lambda x: x * 2).mp_prefetch(workers(2))
    with iter(ds) as iterator:
        assert [next(iterator) for _ in range(1000)] == list(range(2, 2002, 2))
        state = iterator.get_state()
    with iter(EndlessDataset().map(lambda x: x * 2)) as iterator:
        iterator.set_state(state)
        assert next(iterator) == 2002
    assert_equal(state, json.loads(json.dumps(state)))
