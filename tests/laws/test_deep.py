"""Chains of thousands of operations: nothing recurses over them."""

import copy
import gc
import json
import pickle
import weakref

import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import SpecError
from headrace.experimental import ElasticIterator
from headrace.sharding import ShardOptions

DEPTH = 1600  # Python calls no functions so deep
WORKERS = MultiprocessingOptions(num_workers=2)


def add_one(x):
    return x + 1


def with_index(i, x):
    return x + 1


def random(x, rng):
    return x + 1


def kept(x):
    return True


def one_child(x):
    return [x]


ELEMENT = [
    lambda ds: ds.map(add_one),
    lambda ds: ds.filter(kept),
    lambda ds: ds.random_map(random, seed=1),
    lambda ds: ds.map_with_index(with_index),
    lambda ds: ds.flat_map(one_child, max_fan_out=1),
    lambda ds: ds.seed(3),
]
INDEX = [
    lambda ds: ds.shuffle(seed=1),
    lambda ds: ds.slice(slice(0, 20)),
    lambda ds: ds.repeat(1),
]


def chained(ds, operations, depth=DEPTH):
    for i in range(depth):
        ds = operations[i % len(operations)](ds)
    return ds


def expected(operations, depth=DEPTH):
    """What `depth` operations add to an element."""
    adds = [1, 0, 1, 1, 0, 0] if operations is ELEMENT else [1]
    return sum(adds[i % len(adds)] for i in range(depth))


MAPS = ELEMENT[:1]
CHAINS = {"maps": MAPS, "mixed": ELEMENT}


# ---- random access


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_has_random_access(name):
    ds, added = chained(MapDataset.range(20), CHAINS[name]), expected(CHAINS[name])
    assert len(ds) == 20
    assert [ds[3], ds[19]] == [3 + added, 19 + added]
    assert list(ds) == list(range(added, 20 + added))
    assert list(ds.to_iter_dataset(ReadOptions(num_threads=2))) == list(range(added, 20 + added))
    assert list(ds.to_iter_dataset().prefetch(4)) == list(range(added, 20 + added))


def test_a_long_chain_can_be_batched():
    ds = chained(MapDataset.range(20), MAPS).batch(5)
    assert ds[1].tolist() == list(range(5 + DEPTH, 10 + DEPTH))
    assert len(ds) == 4


def test_a_long_chain_of_index_operations():
    ds = chained(MapDataset.range(20), INDEX)
    assert sorted(ds) == list(range(20))
    assert len(ds) == 20
    assert sorted(chained(MapDataset.range(20).map(add_one), INDEX)) == list(range(1, 21))


def test_a_long_chain_of_element_and_index_operations_in_turn():
    operations = [MAPS[0], INDEX[0], ELEMENT[4], INDEX[1]]
    ds = chained(MapDataset.range(20), operations)
    assert sorted(ds) == list(range(DEPTH // 4, DEPTH // 4 + 20))
    assert ds[5] == list(ds)[5]


# ---- streams


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("last", [lambda ds: ds, lambda ds: ds.prefetch(4), lambda ds: ds.mp_prefetch(WORKERS)])
def test_a_long_chain_on_a_stream(name, last):
    ds = last(chained(MapDataset.range(20).to_iter_dataset(), CHAINS[name]))
    added = expected(CHAINS[name])
    with iter(ds) as iterator:
        assert list(iterator) == list(range(added, 20 + added))


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_of_random_access_in_workers(name):
    ds = chained(MapDataset.range(20), CHAINS[name]).to_iter_dataset().batch(5).mp_prefetch(WORKERS)
    added = expected(CHAINS[name])
    assert [batch.tolist() for batch in ds] == [list(range(i + added, i + added + 5)) for i in range(0, 20, 5)]


def test_operations_that_count_on_both_sides_of_filters_do_so_in_workers_too():
    operations = [ELEMENT[1], ELEMENT[2]]
    ds = chained(MapDataset.range(12).to_iter_dataset(), operations, 300)
    assert list(ds.mp_prefetch(WORKERS)) == list(ds)


def test_maps_move_below_many_operations_that_change_nothing():
    ds = chained(MapDataset.range(20).to_iter_dataset(), [MAPS[0], ELEMENT[5]]).mp_prefetch(WORKERS)
    assert list(ds) == list(range(DEPTH // 2, DEPTH // 2 + 20))


@pytest.mark.parametrize("operations", [MAPS, ELEMENT[:2]])
def test_states_of_a_long_chain_are_those_of_what_it_begins_with(operations):
    ds = chained(MapDataset.range(20).to_iter_dataset(), operations)
    iterator = iter(ds)
    assert [next(iterator) for _ in range(5)] == list(range(expected_of(operations), expected_of(operations) + 5))
    assert iterator.get_state()["next_index"] == 5
    fresh = iter(ds)
    fresh.set_state(iterator.get_state())
    assert list(fresh) == list(iterator)


def expected_of(operations):
    return DEPTH // len(operations)


def test_an_error_far_down_a_long_chain_names_its_operation_and_element():
    def fails(x):
        if x == 3:
            raise ValueError("no 3")
        return x

    for ds in (
        chained(MapDataset.range(20).map(fails), MAPS),
        chained(MapDataset.range(20).to_iter_dataset().map(fails), MAPS),
    ):
        iterator = iter(ds)
        assert [next(iterator) for _ in range(3)] == list(range(DEPTH, DEPTH + 3))
        with pytest.raises(ValueError, match="no 3") as caught:
            next(iterator)
        assert "element 3 " in caught.value.__notes__[0]


# ---- what else is done with datasets


class Told:
    """A map that tells the spec after it."""

    def map(self, x):
        return x

    def output_spec(self, spec):
        return spec


def test_the_element_spec_of_a_long_chain():
    ds = chained(MapDataset.range(20), [lambda ds: ds.map(Told())])
    assert ds.element_spec == MapDataset.range(20).element_spec
    with pytest.raises(SpecError, match="add_one"):
        _ = chained(MapDataset.range(20), MAPS).element_spec
    with pytest.raises(SpecError, match="add_one"):
        _ = ds.map(add_one).map(Told()).batch(3).element_spec


def shown(ds):
    return [len(str(ds).splitlines()), len(str(ds.explain()).splitlines())]


def test_long_chains_can_be_shown():
    assert shown(chained(MapDataset.range(20), ELEMENT)) == [DEPTH + 1] * 2
    stream = chained(MapDataset.range(20).to_iter_dataset(), ELEMENT)
    assert shown(stream) == [DEPTH + 2] * 2
    assert shown(stream.mp_prefetch(WORKERS)) == [DEPTH + 3] * 2
    assert shown(IterDataset.mix([stream, stream])) == [2 * DEPTH + 5] * 2


def test_long_chains_can_be_copied_and_pickled():
    for ds in (chained(MapDataset.range(20), ELEMENT), chained(MapDataset.range(20).to_iter_dataset(), ELEMENT)):
        elements, text = list(ds), str(ds)
        for again in (copy.copy(ds), copy.deepcopy(ds), pickle.loads(pickle.dumps(ds))):
            assert list(again) == elements
            assert str(again) == text


def test_parts_that_are_shared_stay_shared_in_a_pickle():
    part = MapDataset.range(5).cache()
    again = pickle.loads(pickle.dumps(MapDataset.zip([part, part.map(add_one)])))
    first, second = again._op.parts
    assert second.parent is first
    assert list(again) == [(i, i + 1) for i in range(5)]


def test_a_long_chain_is_freed():
    ds = chained(MapDataset.range(20).to_iter_dataset(), ELEMENT)
    assert len(list(ds)) == 20
    bottom = ds._op
    while bottom.parents:
        bottom = bottom.parents[0]
    freed = weakref.ref(bottom)
    del bottom, ds
    gc.collect()
    assert freed() is None


def test_an_elastic_iterator_takes_a_long_chain():
    ds = chained(MapDataset.range(20), MAPS)
    iterator = ElasticIterator(ds, 4, ShardOptions(shard_index=0, shard_count=1))
    assert next(iter(iterator)).tolist() == list(range(DEPTH, DEPTH + 4))


def test_states_of_many_operations_that_count_are_json():
    ds = chained(MapDataset.range(20).to_iter_dataset(), ELEMENT)
    with iter(ds) as iterator:
        next(iterator), next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        rest = list(iterator)
    with iter(ds) as iterator:
        iterator.set_state(state)
        assert json.loads(json.dumps(iterator.get_state())) == state
        assert list(iterator) == rest
        assert rest
