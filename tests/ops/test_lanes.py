"""Lanes and global batches: the same for any number of processes, as `reference.py` defines them."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, checkpoint
from headrace.engine import iteration
from headrace.errors import MissingLanesError, PipelineError, StateError
from headrace.ops.ending import ends_together
from headrace.ops.streams import global_batch_streams as lanes_joined
from headrace.ops.streams.buffer_streams import IndexStream
from headrace.sharding import ShardOptions
from headrace.testing import assert_equal, assert_resumable
from tests.support import reference
from tests.support.chains import STREAM_OPS, Tail, map_datasets

IN_LANES = sorted(
    set(STREAM_OPS) - {"user", "interleave lazily", "global_batch", "global_batch of lanes", "cache", "cache on disk"}
)
HOSTS = (1, 2, 3, 4, 6)
TWO = MultiprocessingOptions(num_workers=2)


def shards(ds, batch_size, num_hosts, **options):
    return [ds.global_batch(batch_size, ShardOptions(h, num_hosts), batch_fn=list, **options) for h in range(num_hosts)]


def joined(iterators):
    """The next global batch; `None` when all have ended."""
    rows = [next(iterator, None) for iterator in iterators]
    return None if None in rows else [x for part in rows for x in part]


@st.composite
def laned_streams(draw, max_ops=3):
    """A random stream of several lanes, and their number."""
    num_lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    ds = draw(map_datasets(max_ops=2)).take(60).repeat(3).to_iter_dataset(num_lanes=num_lanes)
    for name in draw(st.lists(st.sampled_from(IN_LANES), max_size=max_ops)):
        ds = STREAM_OPS[name](ds, draw(st.integers(0, 20)))
    return ds.take(100 * num_lanes), num_lanes


@given(laned_streams(), st.sampled_from(HOSTS), st.integers(1, 3), st.lists(st.sampled_from(HOSTS), max_size=3))
def test_global_batches_do_not_depend_on_the_number_of_hosts(laned, num_hosts, size, later):
    ds, num_lanes = laned
    batch_size = size * np.lcm.reduce([num_lanes, *HOSTS])
    whole = list(reference.stream(ds.global_batch(batch_size, batch_fn=list)._op))
    state = None
    for step, hosts in enumerate([num_hosts, *later]):
        iterators = [iter(each) for each in shards(ds, batch_size, hosts, num_batches=len(whole))]
        for iterator in iterators:
            if state is not None:
                iterator.set_state(state)
        batch = joined(iterators)
        if step == len(whole):
            assert batch is None
            return
        assert_equal(batch, whole[step])
        state = checkpoint.merge([json.loads(json.dumps(each.get_state())) for each in iterators])


def batches_of(ds, num_hosts, batch_size=24):
    """The global batches of some hosts, with everything in them as lists."""
    iterators = [iter(each) for each in shards(ds, batch_size, num_hosts, num_batches=4)]
    return [joined(iterators) for _ in range(4)]


class CountingIterator(DatasetIterator):
    """A user's iterator over every `step`-th number, which knows only how to go on."""

    def __init__(self, start, step):
        super().__init__()
        self._at, self._step = start, step

    def __next__(self):
        self._at += self._step
        return self._at - self._step

    def get_state(self):
        return {"at": self._at}

    def set_state(self, state):
        self._at = state["at"]


class Counting(IterDataset):
    """A user's stream without random access, cut into lanes."""

    num_lanes = 6

    def __init__(self, start=0, step=1):
        super().__init__()
        self._start, self._step = start, step

    def __iter__(self):
        return CountingIterator(self._start, self._step)

    def shard(self, index, count):
        lane = Counting(self._start + index * self._step, self._step * count)
        lane.num_lanes = 1
        return lane


def some_parts(i):
    return MapDataset.range(100 * i, 100 * i + 10 + i).repeat()


IN_SIX_LANES = {
    "interleave of a list": lambda: IterDataset.interleave(
        [some_parts(i) for i in range(13)], cycle_length=2, num_lanes=6
    ),
    "interleave made lazily": lambda: IterDataset.interleave(
        MapDataset.range(13).map(some_parts), cycle_length=2, num_lanes=6
    ),
    "a user's stream": lambda: Counting().map(lambda x: x),
    "a mix of users' streams": lambda: IterDataset.mix([Counting(), Counting(1000)], [1, 2]).shuffle(5, seed=1),
    "a cache": lambda: MapDataset.range(96).to_iter_dataset(num_lanes=6).cache().repeat(),
}


@pytest.mark.parametrize("name", IN_SIX_LANES)
def test_what_deals_out_its_parts_to_lanes(name):
    ds = IN_SIX_LANES[name]()
    expected = batches_of(ds, 1)
    if not name.startswith("a"):
        whole = reference.stream(ds.global_batch(24, batch_fn=list)._op)
        assert expected == list(itertools.islice(whole, 4))
    for num_hosts in HOSTS[1:]:
        assert batches_of(ds, num_hosts) == expected
    assert_resumable(ds.global_batch(24).take(4))


def test_lanes_are_computed_in_workers_too():
    ds = MapDataset.range(200).repeat().to_iter_dataset(num_lanes=4).filter(lambda x: x % 3).window_shuffle(8, seed=1)
    for where in (ds.mp_prefetch(TWO).global_batch(8), ds.global_batch(8).mp_prefetch(TWO)):
        here, there = iter(ds.global_batch(8)), iter(where)
        for _ in range(5):
            assert_equal(next(there), next(here))
            assert there.get_state() == here.get_state()
        there.close()


# ------------------------------------------------------------------------------------------- what is refused


def lanes(num_lanes=4, batch_size=24, host=0, num_hosts=2, seed=1, **options):
    stream = MapDataset.range(603).shuffle(seed=seed).repeat().to_iter_dataset(num_lanes=num_lanes)
    stream = stream.filter(lambda x: x % 3).window_shuffle(10, seed=2)
    return stream.global_batch(batch_size, ShardOptions(host, num_hosts), **options)


def state_after(ds, steps=2):
    iterator = iter(ds)
    for _ in range(steps):
        next(iterator)
    return iterator.get_state()


def merged():
    return checkpoint.merge([state_after(lanes(host=host)) for host in range(2)])


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"num_lanes": 8}, "saved with num_lanes=4, and .* has num_lanes=8"),
        ({"num_lanes": 1}, "saved with num_lanes=4, and .* has num_lanes=1"),
        ({"batch_size": 48}, "saved with batch_size=24, and .* has batch_size=48"),
        ({"seed": 2}, "shuffle seed 1 → 2"),
    ],
)
def test_a_state_of_another_pipeline_is_refused(other, says):
    with pytest.raises(StateError, match=says):
        iter(lanes(**other)).set_state(merged())


def test_a_state_that_lacks_lanes_names_merge():
    for ds in (lanes(host=1), lanes(num_hosts=1)):
        with pytest.raises(MissingLanesError, match=r"has the lanes 0, 1 of 4, .* needs lane 2 too.*merge\(states\)"):
            iter(ds).set_state(state_after(lanes(host=0)))


def test_a_state_of_another_shard_is_refused():
    def shard(i):
        return MapDataset.range(603).shuffle(seed=1).shard(4, i).batch(3).to_iter_dataset()

    with pytest.raises(StateError, match="slice start 0 → 1"):
        iter(shard(1)).set_state(state_after(shard(0)))


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (lambda: state_after(lanes()), "as a list; got dict"),
        (list, "as a list"),
        (lambda: [3], "state 0 is int"),
        (lambda: [state_after(lanes()), state_after(lanes(host=1), 3)], "step is 2 and 3 .state 0 and state 1"),
        (lambda: [state_after(lanes()), state_after(lanes(host=1, seed=2))], "from different|seed is 1 and 2"),
    ],
)
def test_states_that_do_not_belong_together_do_not_merge(states, says):
    with pytest.raises(StateError, match=says):
        checkpoint.merge(states())


def finite():
    return MapDataset.range(100).to_iter_dataset(num_lanes=2)


HALF = ShardOptions(0, 2)


def filtered_lanes():
    """A lane of it may have no element."""
    return MapDataset.range(8).to_iter_dataset(num_lanes=4).filter(lambda x: x % 4 > 1)


def one_endless_lane():
    parts = [MapDataset.range(3).to_iter_dataset(), some_parts(1).to_iter_dataset()]
    return IterDataset.interleave(parts, cycle_length=1, num_lanes=2)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: lanes(num_hosts=5), "24 rows does not divide evenly among 5 shards. Choose a multiple of 5"),
        (lambda: lanes(num_lanes=5), "same number of rows from each of the 5 lanes .* Choose a multiple of 5"),
        (lambda: list(finite()), "a stream of 2 lanes. Join them with `global_batch"),
        (lambda: list(finite().global_batch(4, ShardOptions(0, 2))), "num_batches=, .* `headrace.stop_together"),
        (lambda: list(finite().global_batch(4, ShardOptions(0, 2), num_batches=26)), "no rows left for batch 25"),
        (lambda: IterDataset.mix([finite(), MapDataset.range(9).to_iter_dataset()]), "lanes; got 2, 1"),
        (lambda: MapDataset.range(9).to_iter_dataset(num_lanes=0), "num_lanes must be a positive int; got 0"),
        (lambda: IterDataset.interleave([finite()] * 3, cycle_length=1, num_lanes=2), "have 2 lanes each"),
        (lambda: IterDataset.interleave([some_parts(1)], cycle_length=1, num_lanes=2), "1 datasets for num_lanes=2"),
        (lambda: next(iter(TailInLanes(finite()).global_batch(4))), r"no method `shard\(index, count\)`"),
        (lambda: finite().global_batch(4, rows=3), "ShardBySharding.*got 3"),
        (lambda: list(finite().global_batch(4, HALF).repeat()), "end after different numbers of batches"),
        (lambda: next(iter(one_endless_lane().global_batch(4, HALF))), "end after different numbers of batches"),
        (lambda: next(iter(filtered_lanes().repeat().global_batch(4, HALF))), "end after different numbers of batches"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(build, says):
    with pytest.raises(PipelineError, match=says):
        build()


class TailInLanes(Tail):
    num_lanes = 2


def test_what_repeats_full_lanes_is_endless():
    ds = MapDataset.range(8).to_iter_dataset(num_lanes=4).map(lambda x: x + 1).repeat()
    assert batches_of(ds, 2, 4) == batches_of(ds, 1, 4)


@pytest.mark.parametrize(
    "then",
    [
        lambda ds: ds.shuffle().to_iter_dataset(),
        lambda ds: ds.to_iter_dataset().window_shuffle(3),
        lambda ds: ds.to_iter_dataset().shuffle(3),
    ],
)
def test_seeds_of_later_operations_do_not_depend_on_the_number_of_hosts(then):
    whole = list(then(MapDataset.range(64).seed(3).global_batch(4)))
    halves = [list(then(MapDataset.range(64).seed(3).global_batch(4, ShardOptions(i, 2)))) for i in range(2)]
    assert_equal([np.concatenate(rows) for rows in zip(*halves, strict=True)], whole)


def test_datasets_of_different_kinds_in_lanes_are_restored():
    parts = [IterDataset.mix([some_parts(0).to_iter_dataset()]), some_parts(1).to_iter_dataset()]
    assert_resumable(IterDataset.interleave(parts, cycle_length=1, num_lanes=2).global_batch(2), max_outputs=5)


@pytest.mark.parametrize(
    "join",
    [
        IterDataset.mix,
        IterDataset.zip,
        lambda parts: IterDataset.mix({"lanes": parts[0], "b": parts[1]}, {"lanes": 1, "b": 1}),
    ],
)
def test_states_of_several_global_batches_merge(join):
    def joined_batches(host, num_hosts):
        parts = [
            MapDataset.range(k, k + 100)
            .repeat()
            .to_iter_dataset(num_lanes=2)
            .global_batch(4, ShardOptions(host, num_hosts))
            for k in (0, 1000)
        ]
        return join(parts)

    merged_state = checkpoint.merge(state_after(joined_batches(host, 2), 3) for host in range(2))
    assert merged_state == state_after(joined_batches(0, 1), 3)


def test_parts_called_lanes_merge():
    def batches(host, num_hosts):
        parts = {name: some_parts(i).to_iter_dataset(num_lanes=2) for i, name in enumerate(("lanes", "b"))}
        return IterDataset.mix(parts, {"lanes": 1, "b": 2}).global_batch(6, ShardOptions(host, num_hosts))

    assert checkpoint.merge([state_after(batches(host, 3)) for host in range(3)]) == state_after(batches(0, 1))


def test_a_state_after_the_last_batch_gives_nothing_more():
    def batches(count):
        return MapDataset.range(100).to_iter_dataset(num_lanes=2).global_batch(2, num_batches=count)

    for count in (19, 20):
        iterator = iter(batches(count))
        iterator.set_state(state_after(batches(30), 20))
        assert list(iterator) == []


def test_a_changed_state_does_not_merge():
    states = [state_after(lanes(host=host)) for host in range(2)]
    states[0]["0 global_batch"]["lanes"]["0"]["next_index"] = 400
    with pytest.raises(StateError, match="was changed"):
        checkpoint.merge(states)


def test_what_only_one_state_has_is_told_whichever_it_is():
    one, other = state_after(lanes()), state_after(lanes(host=1))
    del one["checksum"], other["checksum"]
    for states in ([one, other], [other, one]):
        with pytest.raises(StateError, match="only one has '9 other'"):
            checkpoint.merge([states[0] | {"9 other": {}}, states[1]])


def test_states_of_different_steps_in_a_folder_are_refused(tmp_path):
    for host, steps in ((0, 3), (1, 4)):
        text = json.dumps(state_after(lanes(host=host), steps))
        (tmp_path / f"process_{host}-of-2.json").write_text(text)
    with pytest.raises(StateError, match="step is 3 and 4"):
        checkpoint.CheckpointHandler().restore(tmp_path, item=iter(lanes()))


@pytest.mark.parametrize("change", ["filter", "weights"])
def test_everything_before_a_global_batch_must_be_as_it_was(change):
    def batches(new):
        parts = [some_parts(i).to_iter_dataset(num_lanes=2) for i in range(2)]
        ds = IterDataset.mix(parts, [1, 2 if new and change == "weights" else 1])
        return (ds.filter(lambda x: True) if new and change == "filter" else ds).global_batch(4)

    with pytest.raises(StateError, match="another pipeline"):
        iter(batches(True)).set_state(state_after(batches(False)))


def test_a_mix_ends_together_only_if_all_its_parts_do():
    endless = MapDataset.range(9).repeat().to_iter_dataset().flat_map(lambda x: [x, x])
    finite_shard = MapDataset.range(9).shard(2, 0).to_iter_dataset()
    assert ends_together(endless._op)
    assert not ends_together(finite_shard._op)
    for parts in ([endless, finite_shard], [finite_shard, endless]):
        assert not ends_together(IterDataset.mix(parts)._op)


# ---- what lanes cost, counted rather than timed


@pytest.fixture
def read_far_ahead(monkeypatch):
    """Rows are so cheap that lanes are read as far ahead as is ever allowed, however busy the machine is."""
    monkeypatch.setattr(lanes_joined, "LANE_S", 1e9)


def packed_mix(cut):
    """Packed rows of a mix of four filtered streams, each made by `cut` from a random-access chain."""
    parts = [cut(MapDataset.range(10_000).seed(j).shuffle().repeat()) for j in range(4)]
    sequences = [part.filter(lambda x: x % 3).map(lambda x: {"t": np.full(x % 20 + 1, x)}) for part in parts]
    return IterDataset.mix(sequences, [1.0] * 4).pack({"t": 64}, num_packing_bins=8)


def in_lanes(count, options=None):
    return packed_mix(lambda ds: ds.to_iter_dataset(options, num_lanes=count))


def pulls(monkeypatch, ds, warm_up, batches):
    """How often random-access chains are read for some batches."""
    counted, pull = itertools.count(), IndexStream.pull
    with monkeypatch.context() as patched, iter(ds) as iterator:
        for _ in range(warm_up):
            next(iterator)
        patched.setattr(IndexStream, "pull", lambda self, n: (next(counted), pull(self, n))[1])
        for _ in range(batches):
            next(iterator)
    return next(counted)


def test_a_few_rows_of_each_lane_take_few_pulls(monkeypatch, read_far_ahead):
    monkeypatch.setattr(iteration, "RUN_S", 0.0)  # one batch at a time, however fast the machine is
    lanes = in_lanes(64, ReadOptions(num_threads=0)).global_batch(256, ShardOptions(0, 8))  # 4 rows of each of 8 lanes
    assert pulls(monkeypatch, lanes, 32, 64) <= 64 * 8 * 4 / 2  # half as many as batches with 4 parts of 8 lanes


def test_the_first_batch_of_many_lanes_takes_few_pulls_of_each(monkeypatch):
    lanes = in_lanes(512, ReadOptions(num_threads=0)).global_batch(512, ShardOptions(0, 8))
    assert pulls(monkeypatch, lanes, 0, 1) <= 6 * 4 * 64  # of 4 parts in 64 lanes


def test_lanes_share_the_buffer_of_threads():
    read = itertools.count()

    def counted(x):
        next(read)
        return x

    ds = MapDataset.range(10**6).map(counted).repeat().to_iter_dataset(ReadOptions(), num_lanes=64)
    with iter(ds.filter(lambda x: True).global_batch(64)) as batches:
        next(batches)
    assert next(read) < 64 * 50  # each lane has used one chunk of 15 and has two ahead, not a whole buffer of 500


@pytest.mark.parametrize("options", [ReadOptions(num_threads=0), ReadOptions(), None])
def test_states_do_not_depend_on_how_far_lanes_were_read(monkeypatch, options):
    def walked(lane_s):
        monkeypatch.setattr(lanes_joined, "LANE_S", lane_s)
        with iter(in_lanes(16, options).global_batch(32, ShardOptions(1, 2))) as batches:
            return [(next(batches)["t"].tolist(), json.dumps(batches.get_state())) for _ in range(24)]

    assert walked(1e9) == walked(0.0)


def test_an_error_in_rows_that_were_read_ahead_comes_with_their_batch(read_far_ahead):
    def fail(x):
        if x == 8 * 40 + 5:  # row 40 of lane 5
            raise ValueError("bad")
        return x

    ds = MapDataset.range(10**6).repeat().to_iter_dataset(num_lanes=8).map(fail).global_batch(8)
    with iter(ds) as batches:
        assert [next(batches).tolist() for _ in range(40)] == np.arange(320).reshape(40, 8).tolist()
        with pytest.raises(ValueError, match="bad"):
            next(batches)
