"""The dataset classes of the experimental namespace: each stands for one operation, and may be subclassed."""

import pickle

import numpy as np
import pytest

import headrace as hr
from headrace import IterDataset, MapDataset, ReadOptions, experimental
from headrace.errors import PipelineError, StateError
from headrace.testing import assert_equal, assert_resumable


def odd(x):
    return x % 2 == 1


def flat(lib):
    class Split(lib.experimental.FlatMapTransform):
        max_fan_out = 3

        def flat_map(self, x):
            return [x] * (x % 3)

    return Split()


def pack(lib, name, chain, **options):
    features = chain.map(lambda x: {"x": np.arange(x % 4 + 1)})
    return getattr(lib.experimental, name)(features, length_struct={"x": 5}, **options)


# Each of a random-access chain that has gaps and another order in each epoch, so that a stream of it is told from it.
OF_A_MAP_DATASET = {
    "CacheIterDataset": lambda lib, chain: lib.experimental.CacheIterDataset(chain),
    "FlatMapIterDataset": lambda lib, chain: lib.experimental.FlatMapIterDataset(chain, flat(lib)),
    "LimitIterDataset": lambda lib, chain: lib.experimental.LimitIterDataset(chain, 4),
    "RebatchIterDataset": lambda lib, chain: lib.experimental.RebatchIterDataset(
        chain.map(lambda x: np.full(3, x)), 4, drop_remainder=True
    ),
    "RepeatIterDataset": lambda lib, chain: lib.experimental.RepeatIterDataset(chain, 2),
    "ThreadPrefetchIterDataset": lambda lib, chain: lib.experimental.ThreadPrefetchIterDataset(
        chain, prefetch_buffer_size=3
    ),
    "WindowShuffleIterDataset": lambda lib, chain: lib.experimental.WindowShuffleIterDataset(
        chain, window_size=4, seed=3
    ),
    "WithOptionsIterDataset": lambda lib, chain: lib.experimental.WithOptionsIterDataset(
        chain, lib.experimental.DatasetOptions()
    ),
    "ZipIterDataset": lambda lib, chain: lib.experimental.ZipIterDataset([chain, chain]),
    "InterleaveIterDataset": lambda lib, chain: lib.experimental.InterleaveIterDataset([chain, chain], cycle_length=2),
    "FirstFitPackIterDataset": lambda lib, chain: pack(lib, "FirstFitPackIterDataset", chain, num_packing_bins=2),
    "BestFitPackIterDataset": lambda lib, chain: pack(lib, "BestFitPackIterDataset", chain, num_packing_bins=2),
    "ConcatThenSplitIterDataset": lambda lib, chain: pack(lib, "ConcatThenSplitIterDataset", chain),
}


def chain_with_gaps(lib):
    return lib.MapDataset.range(22).shuffle(seed=5).filter(odd)


@pytest.mark.parametrize("name", sorted(OF_A_MAP_DATASET))
def test_a_map_dataset_is_made_a_stream_first(name):
    grain = pytest.importorskip("grain")
    ours, theirs = (OF_A_MAP_DATASET[name](lib, chain_with_gaps(lib)) for lib in (hr, grain))
    elements, expected = list(ours), list(theirs)
    assert len(elements) == len(expected) > 3
    for element, wanted in zip(elements, expected, strict=True):
        assert_equal(element, wanted)


@pytest.mark.parametrize("name", sorted(OF_A_MAP_DATASET))
def test_they_are_classes_of_datasets(name):
    kind = getattr(experimental, name)
    ds = OF_A_MAP_DATASET[name](hr, chain_with_gaps(hr))
    assert type(ds) is kind
    assert isinstance(ds, IterDataset)
    assert not isinstance(MapDataset.range(3).to_iter_dataset(), kind)
    assert_resumable(ds)
    for same in (ds.map(lambda x: x), ds.prefetch(2), ds.take(10**6)):
        assert_equal(list(same), list(ds))


def test_they_can_be_pickled():
    ds = experimental.WindowShuffleIterDataset(chain_with_gaps(hr), window_size=4, seed=3)
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)


def test_a_subclass_may_set_arguments_and_have_attributes():
    class Two(experimental.LimitIterDataset):
        """Two elements."""

        how_many = 2

        def __init__(self, parent):
            super().__init__(parent, self.how_many)
            self.note = "two"

    ds = Two(MapDataset.range(5))
    assert list(ds) == [0, 1]
    assert ds.note == "two"
    assert Two.how_many == 2
    assert list(ds.map(lambda x: x + 1)) == [1, 2]
    assert isinstance(ds, experimental.LimitIterDataset)


def test_a_subclass_may_have_an_iterator_of_its_own():
    class Doubled(experimental.LimitIterDataset):
        def __iter__(self):  # pyright: ignore[reportIncompatibleMethodOverride]
            for element in super().__iter__():
                yield 2 * element

    ds = Doubled(MapDataset.range(10), 3)
    assert list(ds) == [0, 2, 4]
    assert next(iter(ds.batch(2))).tolist() == [0, 2]
    assert_resumable(ds)


def test_a_subclass_of_a_random_access_class_may_have_elements_of_its_own():
    class Shifted(experimental.WindowShuffleMapDataset):
        def __getitem__(self, index):
            return super().__getitem__(index) + 100

    plain = MapDataset.range(8).window_shuffle(4, seed=3)
    ds = Shifted(MapDataset.range(8), window_size=4, seed=3)
    assert len(ds) == 8
    assert [ds[i] for i in range(8)] == [x + 100 for x in plain]
    assert list(ds.map(lambda x: x)) == list(ds) == [x + 100 for x in plain]


def test_parents_are_the_datasets_that_were_given():
    chain = MapDataset.range(4)
    assert experimental.LimitIterDataset(chain, 2).parents == (chain,)
    assert experimental.ZipMapDataset([chain, chain]).parents == (chain, chain)


def test_thread_prefetch_iterator_is_a_class_of_iterators():
    parent = iter(MapDataset.range(9).to_iter_dataset())
    next(parent)
    iterator = experimental.ThreadPrefetchDatasetIterator(parent, 2)
    assert isinstance(iterator, experimental.ThreadPrefetchDatasetIterator)
    assert isinstance(iterator, hr.DatasetIterator)
    assert list(iterator) == list(range(1, 9))


# ------------------------------------------------------------------------------------------------ next index


def numbered(lib):
    streams = {
        "plain": lambda s: s,
        "map": lambda s: s.map(lambda x: x + 1),
        "random_map": lambda s: s.random_map(lambda x, rng: (x, int(rng.integers(1000))), seed=1),
        "map_with_index": lambda s: s.map_with_index(lambda i, x: (i, x)),
        "batch": lambda s: s.batch(3),
        "batch without the last": lambda s: s.batch(3, drop_remainder=True),
        "batch, random_map": lambda s: s.batch(3).random_map(lambda x, rng: (x, int(rng.integers(1000))), seed=1),
        "random_map, batch": lambda s: s.random_map(lambda x, rng: int(rng.integers(1000)), seed=1).batch(4),
        "limit": lambda s: lib.experimental.LimitIterDataset(s, 10),
        "batch, limit": lambda s: lib.experimental.LimitIterDataset(s.batch(3), 5),
        "limit, batch": lambda s: lib.experimental.LimitIterDataset(s, 10).batch(3),
        "interleave of one": lambda s: lib.experimental.InterleaveIterDataset([s], cycle_length=1),
        "interleave of one, wider": lambda s: lib.experimental.InterleaveIterDataset([s.batch(2)], cycle_length=3),
        "seed and options": lambda s: lib.experimental.WithOptionsIterDataset(
            s.seed(3), lib.experimental.DatasetOptions()
        ),
        "prefetch": lambda s: lib.experimental.ThreadPrefetchIterDataset(s.batch(3), prefetch_buffer_size=2),
    }
    return {name: make(lib.MapDataset.range(25).to_iter_dataset()) for name, make in streams.items()} | {
        "elements that a filter left": lib.MapDataset.range(25).filter(odd).to_iter_dataset().map(str),
        "nones in place of elements": lib.MapDataset.range(25)
        .filter(odd)
        .to_iter_dataset(allow_nones=True)
        .batch(2, batch_fn=list),
    }


@pytest.mark.parametrize("name", sorted(numbered(hr)))
def test_the_next_index_counts_outputs(name):
    grain = pytest.importorskip("grain")
    ours, theirs = numbered(hr)[name], numbered(grain)[name]
    mine, other = iter(ours), iter(theirs)
    indices = [experimental.get_next_index(mine)]
    assert indices == [grain.experimental.get_next_index(other)]
    for element, expected in zip(mine, other, strict=True):
        assert_equal(element, expected)
        indices.append(experimental.get_next_index(mine))
        assert indices[-1] == grain.experimental.get_next_index(other)
    for index in indices[:-1]:
        mine, other = iter(ours), iter(theirs)
        next(mine)
        next(other)
        experimental.set_next_index(mine, index)
        grain.experimental.set_next_index(other, index)
        assert experimental.get_next_index(mine) == index
        assert_equal(list(mine), list(other))
    experimental.set_next_index(mine, indices[-1])
    assert not list(mine)


def test_the_next_index_with_workers_and_threads():
    ds = MapDataset.range(12).to_iter_dataset(ReadOptions(num_threads=2)).batch(3)
    for stream in (ds, ds.mp_prefetch(hr.MultiprocessingOptions(num_workers=1))):
        with iter(stream) as iterator:
            next(iterator)
            experimental.set_next_index(iterator, 2)
            assert next(iterator).tolist() == [6, 7, 8]
            assert experimental.get_next_index(iterator) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.filter(odd),
        lambda s: s.filter(odd).batch(2),
        lambda s: s.window_shuffle(3, seed=1),
        lambda s: s.flat_map(lambda x: [x]),
        lambda s: s.repeat(2),
        lambda s: IterDataset.interleave([s, s], cycle_length=1),
        lambda s: IterDataset.mix([s, s]),
        lambda s: MapDataset.range(9).filter(odd).to_iter_dataset().batch(2),
        lambda s: MapDataset.range(9).filter(odd).to_iter_dataset().random_map(lambda x, rng: x, seed=1),
    ],
)
def test_where_the_number_of_outputs_says_too_little_there_is_no_next_index(make):
    iterator = iter(make(MapDataset.range(9).to_iter_dataset()))
    with pytest.raises(StateError, match="has no next index"):
        experimental.get_next_index(iterator)
    with pytest.raises(StateError, match="has no next index"):
        experimental.set_next_index(iterator, 1)


@pytest.mark.parametrize("index", [5, -1, 1.5, True, None])
def test_a_next_index_that_is_none(index):
    iterator = iter(MapDataset.range(10).to_iter_dataset().batch(3))
    with pytest.raises(StateError, match="next index"):
        experimental.set_next_index(iterator, index)
    assert next(iterator).tolist() == [0, 1, 2]


class Endless:
    """Data that has an element for every index, and counts how often it is read."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.reads += 1
        return index


@pytest.mark.parametrize("kind", [MapDataset, IterDataset])
@pytest.mark.parametrize("given", [Endless(), [1, 2], np.arange(3), {"x": np.arange(3)}, iter("ab"), "data", 5])
def test_a_dataset_made_of_data_by_its_constructor_is_told_of_source(kind, given):
    with pytest.raises(PipelineError, match=rf"`{kind.__name__}\(\.\.\.\)` takes the datasets .*MapDataset\.source\("):
        kind(given)
    assert getattr(given, "reads", 0) == 0


def test_parents_come_from_anything_that_gives_datasets():
    class Sum(MapDataset):
        def __len__(self):
            return len(self.parents[0])

        def __getitem__(self, index):
            return sum(parent[index] for parent in self.parents)

    parts = [MapDataset.range(3), MapDataset.range(10, 13)]
    for given in (parts, tuple(parts), iter(parts), dict(enumerate(parts)).values()):
        assert list(Sum(given)) == [10, 12, 14]
