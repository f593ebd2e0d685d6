"""Samplers and shards: the order that Grain gives, and every record once."""

import itertools
import pickle
import re

import grain.python as grain
import numpy as np
import pytest

from headrace.errors import MissingDependency, PipelineError, install_command
from headrace.samplers import IndexSampler, Sampler, SequentialSampler
from headrace.sharding import NoSharding, ShardByJaxProcess, ShardOptions

SHARDS = [(0, 1, False), (0, 3, True), (2, 3, True), (0, 3, False), (1, 3, False), (2, 3, False)]


def seen(metadata):
    drawn = None if metadata.rng is None else metadata.rng.integers(0, 2**63, 3).tolist()
    return metadata.index, metadata.record_key, drawn


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_records", [10, 31])
def test_an_index_sampler_gives_grains_order_and_random_numbers(shard, shuffle, num_records):
    theirs = grain.IndexSampler(num_records, grain.ShardOptions(*shard), shuffle=shuffle, num_epochs=2, seed=7)
    ours = IndexSampler(num_records, ShardOptions(*shard), shuffle=shuffle, num_epochs=2, seed=7)
    assert len(ours) == len(theirs)
    assert list(map(seen, ours)) == list(map(seen, theirs))
    assert repr(ours) == repr(theirs)


def test_an_endless_sampler_goes_on_as_grains_does():
    theirs = grain.IndexSampler(10, shuffle=True, seed=2**32 - 1)
    ours = IndexSampler(10, shuffle=True, seed=2**32 - 1)
    places = [0, 9, 10, 25, 10**6, 2**40]
    assert [seen(ours[i]) for i in places] == [seen(theirs[i]) for i in places]
    assert [m.index for m in itertools.islice(ours, 12)] == list(range(12))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("shard", SHARDS)
def test_a_sequential_sampler_is_grains(shard, seed):
    theirs = grain.SequentialSampler(10, grain.ShardOptions(*shard), seed)
    ours = SequentialSampler(10, ShardOptions(*shard), seed)
    assert list(map(seen, ours)) == list(map(seen, theirs))
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("num_records", [3, 10, 32])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_pieces_of_shards_cover_everything_once(num_records, count):
    pieces = [ShardOptions(i, count).piece(num_records) for i in range(count)]
    assert [i for start, size in pieces for i in range(start, start + size)] == list(range(num_records))
    sizes = [ShardOptions(i, count, drop_remainder=True).piece(num_records)[1] for i in range(count)]
    assert sizes == [num_records // count] * count


def test_metadata_that_is_used_again_says_the_same():
    sampler = IndexSampler(10, shuffle=True, seed=5)
    at = sampler.metadata()
    for i in (3, 0, 3, 2**33):
        assert at(i).rng.normal(size=3).tolist() == sampler[i].rng.normal(size=3).tolist()
        assert at(i).index == i


def test_samplers_are_samplers_and_can_be_pickled():
    for sampler in (IndexSampler(5, shuffle=True, seed=1), SequentialSampler(5)):
        assert isinstance(sampler, Sampler)
        assert repr(pickle.loads(pickle.dumps(sampler))) == repr(sampler)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: IndexSampler(0), "num_records must be a positive int"),
        (lambda: IndexSampler(5, shuffle=True), "needs a seed"),
        (lambda: IndexSampler(5, seed=-1), r"between 0 and 2\*\*32"),
        (lambda: IndexSampler(5, seed=2**32), r"between 0 and 2\*\*32"),
        (lambda: IndexSampler(5, num_epochs=0), "num_epochs must be a positive int"),
        (lambda: IndexSampler(2, ShardOptions(0, 3, drop_remainder=True)), "has none of the 2 records"),
        (lambda: IndexSampler(2, shard_options=3), "must be ShardOptions; got int"),
        (lambda: ShardOptions(3, 3), "between 0 and 2.*got 3"),
        (lambda: ShardOptions(-1, 3), "got -1"),
        (lambda: ShardOptions(0, 0), "shard_count must be a positive int"),
        (lambda: ShardOptions(0.0, 1), "shard_index must be an int"),
    ],
)
def test_wrong_arguments_are_named(make, says):
    with pytest.raises(PipelineError, match=says):
        make()


@pytest.mark.parametrize("sampler", [IndexSampler(5, num_epochs=2), SequentialSampler(10)])
def test_a_place_that_is_not_there_is_an_index_error(sampler):
    assert sampler[9].index == 9
    for place in (-1, 10):
        with pytest.raises(IndexError, match=str(place)):
            sampler[place]


def test_shards_by_jax_process():
    pytest.importorskip("jax")
    assert ShardByJaxProcess(drop_remainder=True) == ShardByJaxProcess(True)
    options = ShardByJaxProcess(drop_remainder=True)
    assert (options.shard_index, options.shard_count, options.drop_remainder) == (0, 1, True)
    assert repr(NoSharding()) == repr(grain.NoSharding())


def test_without_jax_an_import_error_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingDependency, match=re.escape(install_command("jax"))):
        ShardByJaxProcess()
    assert issubclass(MissingDependency, ImportError)


def test_seeds_may_be_numpy_ints():
    assert seen(IndexSampler(5, seed=np.uint32(7))[3]) == seen(IndexSampler(5, seed=7)[3])
