"""A pool of Ray actors gives the same stream: values, order, errors and states are those of inline."""

import json
import os

import numpy as np
import pytest
import ray
from hypothesis import given, settings

from headrace import IterDataset, MapDataset, RayOptions
from headrace.testing import assert_resumable
from tests.laws.test_laws import SOURCES, Boom, assert_same, outputs
from tests.laws.test_pools import Whole
from tests.support.chains import STREAM_OPS, stream_datasets

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore")]


def on_ray(ds, number=2, **options):
    return ds.mp_prefetch(RayOptions(num_workers=number, per_worker_buffer_size=2, num_cpus=0.05, **options))


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("name", sorted(STREAM_OPS))
def test_every_stream_operation_is_one_stream(name):
    ds = STREAM_OPS[name](SOURCES["arrays"]().repeat(3).to_iter_dataset(), 4).map(lambda x: x)
    with iter(on_ray(ds)) as iterator:
        assert_same(outputs(iterator, 60), outputs(ds, 60))


@settings(max_examples=1, deadline=None)
@given(stream_datasets())
def test_random_streams_are_resumable(ds):
    assert_resumable(on_ray(ds), max_outputs=3)


def kinds():
    """One pipeline for each kind of stage: indices, blocks behind an ordering point, whole streams."""
    yield MapDataset.range(300).map(lambda x: 2 * x).to_iter_dataset()
    yield MapDataset.range(300).to_iter_dataset().filter(lambda x: x % 3).window_shuffle(7, seed=1).map(lambda x: -x)
    yield IterDataset.mix([Whole(MapDataset.range(i, 300).to_iter_dataset()).map(lambda x: x + 1) for i in range(3)])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", range(3))
def test_states_go_from_ray_to_inline_and_processes_and_back(kind):
    ds = list(kinds())[kind].batch(4)
    expected = list(ds)
    places = [on_ray(ds), ds, on_ray(ds, 1), ds.mp_prefetch(1), on_ray(ds)]
    state, got = None, []
    for place in places:
        with iter(place) as iterator:
            if state is not None:
                iterator.set_state(state)
            got += [next(iterator) for _ in range(9)]
            state = json.loads(json.dumps(iterator.get_state()))
    assert_same(got, expected[: len(got)])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", range(3))
def test_what_comes_before_an_error_comes_first_then_the_error_with_the_users_lines(kind):
    def fails(x):
        if x == 34:
            raise Boom("at 34")
        return x

    def failing(ds):
        return ds.map(abs).map(fails)

    ds = failing(list(kinds())[kind])
    expected, got = [], []
    with pytest.raises(Boom):
        expected.extend(ds)
    iterator = iter(on_ray(ds))
    with pytest.raises(Boom, match="at 34") as caught:
        got.extend(iterator)
    assert_same(got, expected)
    assert any(entry.name == "fails" and "test_laws.py" in str(entry.path) for entry in caught.traceback)
    with pytest.raises(Boom, match="at 34"):
        next(iterator)
    iterator.close()


def test_functions_run_in_actors_which_epochs_share():
    ds = on_ray(MapDataset.range(40).map(lambda x: (x, os.getpid(), ray.is_initialized())).to_iter_dataset())
    epochs = [list(ds), list(ds)]
    first, second = ({pid for _, pid, _ in epoch} for epoch in epochs)
    assert [x for x, _, _ in epochs[0]] == [x for x, _, _ in epochs[1]] == list(range(40))
    assert os.getpid() not in first | second
    assert first & second
    assert "prefetches with 2 Ray actors" in str(ds.explain())


def test_users_may_write_to_arrays_large_and_small_and_functions_to_what_they_refer_to():
    scratch = np.zeros(10)

    def make(i):
        scratch[:] = i
        return {"x": np.full(50_000 if i % 2 else 5, i), "sum": scratch.sum()}

    with iter(on_ray(MapDataset.range(6).map(make).to_iter_dataset())) as iterator:
        for i, element in enumerate(iterator):
            assert element["sum"] == 10 * i
            assert element["x"].flags.writeable
            element["x"] += 1
            assert (element["x"] == i + 1).all()
    assert i == 5


def test_a_function_may_change_its_elements_behind_an_ordering_point():
    def change(x):
        x += 1
        return x

    ds = MapDataset.range(40).map(lambda i: np.full(3000, i)).to_iter_dataset().window_shuffle(5, seed=1)
    ds = ds.filter(lambda x: x[0] % 3).map(change).batch(4).map(change)
    with iter(on_ray(ds)) as iterator:
        assert_same(list(iterator), list(ds))


def test_a_large_array_goes_to_the_object_store_once(cluster):
    before = _stored(cluster)
    array = np.random.default_rng(0).random(4 << 20)  # 32 MB
    ds = MapDataset.source(array).batch(1000).to_iter_dataset()
    with iter(on_ray(ds, 3)) as iterator:
        first = next(iterator)
        assert _stored(cluster) - before < 2.5 * array.nbytes  # the array, and not one for each actor
        np.testing.assert_array_equal(first, array[:1000])


def _stored(cluster):
    """How many bytes the object store of this node has."""
    total = ray.nodes()[0]["Resources"]["object_store_memory"]
    free = ray._private.state.available_resources_per_node()[ray.get_runtime_context().get_node_id()]
    return total - free.get("object_store_memory", 0)
