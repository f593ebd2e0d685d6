"""The laws that hold for every operation and for any chain of them."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.engine.iteration
from headrace import MapDataset, ReadOptions
from headrace.engine.plan import Plan
from headrace.engine.runtime import context
from headrace.engine.workers import Workers
from headrace.ops.recorder import Recorder
from headrace.ops.streams import open_stream
from headrace.testing import FakeSource, assert_block_law, assert_equal, assert_resumable
from headrace.transforms import SeedGlobals
from tests.support import reference
from tests.support.chains import ELEMENT, HOLE_OPS, MAP_OPS, STREAM_OPS, map_datasets, stream_datasets

SOURCES = {
    "range": lambda: MapDataset.range(13),
    "array": lambda: MapDataset.source(np.arange(26).reshape(13, 2)),
    "arrays": lambda: MapDataset.source({"x": np.arange(13), "y": np.ones((13, 2))}),
    "rows": lambda: MapDataset.source(FakeSource(13)),
    "list": lambda: MapDataset.source([np.arange(i, i + 2) for i in range(13)]),
}


def outputs(ds, limit=200):
    """Elements, and the bytes of the state after each."""
    with iter(ds) as iterator:
        elements, states = [], [json.dumps(iterator.get_state())]
        for element in iterator:
            elements.append(element)
            states.append(json.dumps(iterator.get_state()))
            if len(elements) == limit:
                break
    return elements, states


def assert_same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert_equal(x, y)


# ---- what is computed in blocks is what is meant


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(MAP_OPS | HOLE_OPS))
def test_every_operation_obeys_the_block_law(name, source):
    for k in (1, 4, 11):
        ds = (MAP_OPS | HOLE_OPS)[name](SOURCES[source](), k)
        assert_block_law(ds, seed=k)
        if not ds._op.is_sparse:
            assert_block_law(ds.batch(3), seed=k)


@given(map_datasets(), st.data())
def test_random_chains_obey_the_block_law(ds, data):
    if len(ds) == 0:
        return
    indices = data.draw(st.lists(st.integers(0, 3 * len(ds)), min_size=1, max_size=20))
    rows = ds._fetch(np.array(indices)).own_rows()
    assert_same(rows, [reference.item(ds._op, i) for i in indices])
    assert_same(rows, [ds[i] for i in indices])


@given(map_datasets())
def test_random_chains_mean_what_the_reference_says(ds):
    assert_same(list(ds.to_iter_dataset(allow_nones=True)), [reference.item(ds._op, i) for i in range(len(ds))])


@given(stream_datasets())
def test_random_streams_mean_what_the_reference_says(ds):
    assert_same(list(ds), list(reference.stream(ds._op)))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_every_stream_operation_means_what_the_reference_says(name, source):
    for k in (4,) if name == "global_batch of lanes" else (1, 4, 11):  # of few elements, the reference takes seconds
        ds = STREAM_OPS[name](SOURCES[source]().to_iter_dataset(), k)
        assert_same(list(ds), list(reference.stream(ds._op)))


# ---- every output is a checkpoint


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_every_stream_operation_is_resumable(name, source):
    for k in (1, 4, 11):
        assert_resumable(STREAM_OPS[name](SOURCES[source]().to_iter_dataset(), k))


@pytest.mark.parametrize("name", sorted(MAP_OPS | HOLE_OPS))
def test_every_random_access_operation_is_resumable(name):
    assert_resumable((MAP_OPS | HOLE_OPS)[name](MapDataset.range(13), 4))


@given(stream_datasets())
def test_random_streams_are_resumable(ds):
    assert_resumable(ds, max_outputs=40)


@given(stream_datasets())
def test_states_are_small(ds):
    _, states = outputs(ds, limit=30)
    parts = max(state.count("next_index") for state in states)
    assert max(map(len, states)) < 4096 + 256 * parts


# ---- one stream, whatever computes it


def pulled(ds, sizes, single_step=False):
    """All outputs and positions, pulled in runs of these sizes."""
    op = ds._stream_op
    plan = Plan(op)
    run_on = context(plan, Workers(plan), Recorder(), single_step=single_step)
    stream = open_stream(op, None, run_on)
    elements, positions = [], [stream.position]
    for _ in range(10_000):
        run = stream.pull(sizes[len(elements) % len(sizes)])
        if run is None:
            break
        positions += [run.at(j + 1) for j in range(len(run.block))]
        elements += run.block.own_rows()
    stream.close()
    run_on.close()
    return elements, positions


@given(stream_datasets(), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_how_runs_are_cut_changes_neither_values_nor_positions(ds, sizes):
    elements, positions = pulled(ds, sizes)
    one_by_one, positions_1 = pulled(ds, [1])
    single_step, positions_0 = pulled(ds, [0], single_step=True)
    assert_same(elements, one_by_one)
    assert_same(elements, single_step)
    assert positions == positions_1 == positions_0


@given(map_datasets(max_ops=3), st.sampled_from(sorted(STREAM_OPS)), st.integers(0, 20), st.integers(1, 5))
def test_threads_and_buffers_change_neither_values_nor_states(ds, name, k, threads):
    ds = ds.take(50)
    options = [
        ReadOptions(num_threads=0),
        None,
        ReadOptions(num_threads=threads, prefetch_buffer_size=k + 1),
        ReadOptions(num_threads=16, prefetch_buffer_size=500),
        ReadOptions(num_threads=2, prefetch_buffer_size=7, prefetch_buffer_bytes=100),
    ]
    results = [outputs(STREAM_OPS[name](ds.to_iter_dataset(option), k)) for option in options]
    results.append(outputs(STREAM_OPS[name](ds.to_iter_dataset(), k).prefetch(k + 1)))
    for elements, states in results[1:]:
        assert_same(elements, results[0][0])
        assert states == results[0][1]


@pytest.mark.parametrize("limits", [(1, 1.0, 1), (4, 1.0, 1 << 20), (1 << 13, 1e-9, 1 << 20)])
def test_the_limits_of_runs_change_neither_values_nor_states(limits, monkeypatch):
    ds = (
        MapDataset.range(300)
        .shuffle(seed=1)
        .to_iter_dataset()
        .filter(lambda x: x % 3)
        .window_shuffle(7, seed=2)
        .batch(4)
    )
    expected = outputs(ds)
    for name, value in zip(("LONGEST_RUN", "RUN_S", "RUN_BYTES"), limits, strict=True):
        monkeypatch.setattr(headrace.engine.iteration, name, value)
    elements, states = outputs(ds)
    assert_same(elements, expected[0])
    assert states == expected[1]


# ---- errors come where they belong


class Boom(Exception):
    pass


def fails_at(bad):
    def check(x):
        if number(x) == bad:
            raise Boom(f"at {bad}")
        return x

    def number(x):
        return x if isinstance(x, int) else int(np.asarray(x).ravel()[0])

    return check


@pytest.mark.parametrize("options", [ReadOptions(num_threads=0), None, ReadOptions(num_threads=3)])
@pytest.mark.parametrize("bad", [0, 1, 5, 99, 100, 4000])
def test_outputs_before_a_failing_element_come_first_then_its_error_again_and_again(bad, options):
    ds = MapDataset.range(5000).map(fails_at(bad)).to_iter_dataset(options)
    with iter(ds) as iterator:
        for i in range(bad):
            assert next(iterator) == i
        state = iterator.get_state()
        for _ in range(3):
            with pytest.raises(Boom, match=f"at {bad}") as info:
                next(iterator)
            assert f"element {bad} " in info.value.__notes__[0]
            assert iterator.get_state() == state
        iterator.set_state({"next_index": bad + 1})
        assert next(iterator) == bad + 1


def until_it_fails(iterator):
    elements = []
    with contextlib.suppress(Boom):
        elements.extend(iterator)
    return elements


BY_SIZE = {"by size", "by size of a feature", "by size, not padded"}
GROUPS = BY_SIZE | {
    "cache on disk",
    "shuffle",
    "window_shuffle",
    "padded",
    "interleave",
    "interleave lazily",
    "mix",
    "mix by name",
    "zip",
}


@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_what_came_before_an_error_does_not_depend_on_runs(name, monkeypatch):
    def build(fn):
        return STREAM_OPS[name](MapDataset.range(40).map(fn).to_iter_dataset(), 5)

    failing = build(fails_at(23))
    with iter(failing) as iterator:
        elements = until_it_fails(iterator)
    whole = list(reference.stream(build(lambda x: x)._op))
    assert_same(elements, whole[: len(elements)])
    if name not in GROUPS:  # a group needs all its elements, and a combination reads its parts ahead of their turn
        assert_same(elements, until_it_fails(reference.stream(failing._op)))
    monkeypatch.setattr(headrace.engine.iteration, "LONGEST_RUN", 1)
    with iter(failing) as iterator:
        assert_same(until_it_fails(iterator), elements)


def test_an_error_in_a_prefetching_thread_comes_after_what_was_computed():
    ds = MapDataset.range(100).to_iter_dataset().map(fails_at(50)).prefetch(8)
    with iter(ds) as iterator:
        assert [next(iterator) for _ in range(50)] == list(range(50))
        for _ in range(2):
            with pytest.raises(Boom):
                next(iterator)


@pytest.mark.parametrize("name", sorted(ELEMENT))
def test_an_edit_in_place_never_reaches_the_source(name):
    arrays = {"x": np.zeros((5, 2)), "y": np.zeros(5)}
    rows = [{"x": np.zeros(2), "list": [np.zeros(1)]} for _ in range(5)]
    shared = (np.zeros(2), [1, 2])

    class Views:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            return arrays["x"][i]

    def edit(x, *_):
        for leaf in x.values() if isinstance(x, dict) else [x]:
            if isinstance(leaf, list):
                leaf[0] += 1
                leaf.append(0)
            elif isinstance(leaf, np.ndarray):
                leaf += 1
        return x

    def edit_indexed(_, x):
        return edit(x)

    for source in (arrays, rows, Views()):
        ds = MapDataset.source(source)
        fn = edit_indexed if name == "map_with_index" else edit
        changed = {
            "map": lambda ds, fn=fn: ds.map(fn),
            "map in place": lambda ds, fn=fn: ds.filter(lambda x: edit(x) is not None),
            "map with columns": lambda ds, fn=fn: ds.cache().map(fn),
            "map_with_index": lambda ds, fn=fn: ds.map_with_index(fn),
            "random_map": lambda ds, fn=fn: ds.random_map(fn, seed=1),
            "random_map of globals": lambda ds, fn=fn: ds.random_map(SeedGlobals(fn), seed=1),
            "map of columns": lambda ds, fn=fn: ds.map(fn).cache().map(fn),
        }[name](ds)
        first = [changed[i] for i in range(5)]
        list(changed.to_iter_dataset())
        list(changed.repeat(2))
        assert_same([changed[i] for i in range(5)], first)
        for element in ds:
            edit(element)
        edit(ds[0])
    assert not arrays["x"].any()
    assert not arrays["y"].any()
    assert all(not row["x"].any() and len(row["list"]) == 1 for row in rows)
    assert shared[1] == [1, 2]


def test_an_edit_in_place_never_reaches_objects_in_an_array_or_another_child():
    ragged = np.empty(3, object)
    ragged[:] = [np.zeros(2), np.zeros(3), np.zeros(1)]
    for source in (ragged, {"x": ragged}):
        ds = MapDataset.source(source).map(lambda e: e["x"] if isinstance(e, dict) else e)
        first = ds.map(lambda x: x.__iadd__(1))
        assert [x.tolist() for x in first] == [x.tolist() for x in first] == [[1, 1], [1, 1, 1], [1]]
        for batch in MapDataset.source(source).batch(3):
            for x in batch["x"] if isinstance(batch, dict) else batch:
                x += 1
        element = ds[0]
        element += 1
    assert not any(x.any() for x in ragged)
    halves = MapDataset.source([np.zeros(4)]).flat_map(lambda x: [x[:3], x[1:]], max_fan_out=2)
    edited = halves.map(lambda x: x.__iadd__(1))
    assert_same(edited._fetch(range(2)).rows(), [np.ones(3), np.ones(3)])


@pytest.mark.parametrize("length", [2**31, 2**47, 2**62, 2**63 - 1])
def test_shuffles_of_any_length_obey_the_block_law(length):
    ds = MapDataset.range(length).shuffle(seed=3)
    for start in (0, length - 200):
        indices = np.arange(start, start + 100)
        rows = ds._fetch(indices).rows()
        assert rows == [ds[int(i)] for i in indices]
        assert all(0 <= row < length for row in rows)
    assert_block_law(MapDataset.range(10).repeat().shuffle(seed=0)[:100])


def test_later_epochs_of_a_cut_from_an_endless_dataset_are_its_first():
    ds = MapDataset.range(3).map_with_index(lambda i, x: (i, x)).repeat()
    assert list(ds.take(5).repeat(2)) == [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)] * 2
    assert list(ds[[4, 1]].repeat(2)) == [(4, 1), (1, 1)] * 2
    assert list(MapDataset.range(3).repeat().flat_map(lambda x: [x], max_fan_out=2)[:4].to_iter_dataset()) == [0, 1]


def test_a_lopsided_mix_does_not_overflow():
    op = MapDataset.mix([MapDataset.range(10).repeat()] * 2, weights=[1e3, 5e10])._op
    which, inner = op.route(np.array([0, 2 * 10**9, 10**15]))
    a, b = op.proportions
    for k, part, index in zip([0, 2 * 10**9, 10**15], which.tolist(), inner.tolist(), strict=True):
        share = (k + 1) * (a, b)[part] / (a + b)
        assert abs(index - share) < 2


def test_columns_do_not_depend_on_which_rows_are_asked_for_together():
    ds = MapDataset.source([1, 2, 3, 2.5, 7, "a", "bcd"]).map(lambda x: x, batched=True)
    assert_same(list(ds.to_iter_dataset(ReadOptions(0))), list(ds.to_iter_dataset(ReadOptions(1, 1))))


def test_an_array_made_fresh_is_not_copied_again():
    made = []

    class Fresh:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            array = np.full(3, i)
            made.append(array.__array_interface__["data"][0])
            return {"x": array, "pair": (i, [i])}

    seen = []
    ds = MapDataset.source(Fresh()).map(lambda e: seen.append(e["x"].__array_interface__["data"][0]) or e)
    list(ds)
    assert seen == made[: len(seen)]
