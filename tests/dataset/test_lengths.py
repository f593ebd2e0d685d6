"""`len()` of streams and loaders: right where it is known without reading, a `TypeError` where it is not."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm

import headrace
from headrace import DataLoader, IndexSampler, IterDataset, MapDataset, SequentialSampler, transforms
from tests.support.chains import may_be_sparse, stream_datasets

TEN = MapDataset.range(10).to_iter_dataset()
KNOWN = {
    "map": TEN.map(str),
    "random_map": TEN.random_map(lambda x, rng: x, seed=1),
    "map_with_index": TEN.map_with_index(lambda i, x: x),
    "batch": TEN.batch(3),
    "batch, drop_remainder": TEN.batch(3, drop_remainder=True),
    "batch_and_pad": TEN.batch_and_pad(3),
    "padded_batch": TEN.map(np.ones).padded_batch(4),
    "padded_batch in windows": TEN.map(np.ones).padded_batch(4, window_size=7, drop_remainder=True),
    "take": TEN.take(4),
    "take more": TEN.take(40),
    "skip": TEN.skip(4),
    "skip more": TEN.skip(40),
    "repeat": TEN.repeat(3),
    "repeat, take": TEN.repeat().take(25),
    "repeat nothing": TEN.take(0).repeat().take(25),
    "shuffle": TEN.shuffle(4, seed=1),
    "window_shuffle": TEN.window_shuffle(4, seed=1),
    "shard": MapDataset.range(10).shard(3, 0).to_iter_dataset(),
    "seed": TEN.seed(3),
    "cache": TEN.cache(),
    "prefetch": TEN.prefetch(2),
    "zip": IterDataset.zip([TEN, TEN.map(str)]),
    "zip, not strict": IterDataset.zip([TEN, TEN.take(3)], strict=False),
    "mix": IterDataset.mix([TEN, TEN.take(3), TEN.repeat()], [5, 2, 3]),
    "interleave": IterDataset.interleave([TEN, TEN.take(3)], cycle_length=2),
    "global_batch": TEN.global_batch(4),
    "global_batch of lanes": MapDataset.range(50).to_iter_dataset(num_lanes=2).take(31).global_batch(4),
    "None, allowed": MapDataset.range(10).filter(lambda x: x > 5).to_iter_dataset(allow_nones=True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_lengths_are_known_through(name):
    ds = KNOWN[name]
    assert len(ds) == sum(1 for _ in ds)


def test_the_length_after_mp_prefetch_is_known():
    assert len(TEN.batch(3).mp_prefetch(2)) == 4  # and starts no worker


class Own(IterDataset):
    def __iter__(self):
        return iter(range(3))


class OwnLength(Own):
    def __len__(self):
        return 3


UNKNOWN = {
    "filter": TEN.filter(bool),
    "filter before": MapDataset.range(10).filter(bool).to_iter_dataset(),
    "filter, repeat, take": TEN.filter(bool).repeat().take(5),
    "flat_map": TEN.flat_map(lambda x: [x]),
    "rebatch": TEN.batch(3).rebatch(2),
    "packing": TEN.map(lambda x: {"x": np.ones(x)}).pack({"x": 20}),
    "buckets": TEN.map(np.ones).padded_batch(2, boundaries=(4,), length_fn=len),
    "a stream of one's own": Own().map(str),
    "interleave of a dataset": IterDataset.interleave(MapDataset.range(2).map(MapDataset.range), cycle_length=1),
    "zip that fails": IterDataset.zip([TEN, TEN.take(3)]),
    "on_error": TEN.map(str).on_error("skip"),
    "lanes": MapDataset.range(10).to_iter_dataset(num_lanes=2),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_lengths_are_not_known_through(name):
    with pytest.raises(TypeError, match="known only after reading all of it"):
        len(UNKNOWN[name])
    assert operator.length_hint(UNKNOWN[name], -1) == -1
    assert UNKNOWN[name]


def test_an_endless_stream_has_no_length():
    for ds in (
        TEN.repeat(),
        MapDataset.range(3).repeat().to_iter_dataset(),
        TEN.repeat().batch(4),
        TEN.filter(bool).repeat(),
        IterDataset.mix([TEN.repeat(), TEN.repeat()], [1, 3]),
        IterDataset.mix([TEN.repeat(), TEN.repeat()], [1, 3]).filter(bool).batch(4),
    ):
        with pytest.raises(TypeError, match="is endless"):
            len(ds)


def test_a_class_of_ones_own_may_have_a_length():
    assert len(OwnLength()) == 3
    assert list(OwnLength()) == [0, 1, 2]


def test_an_empty_stream_is_true():
    assert len(TEN.take(0)) == 0
    assert TEN.take(0)
    assert headrace.load(range(3), num_epochs=1, transformations=[], batch_size=5, drop_remainder=True)


@given(stream_datasets())
def test_random_streams_are_as_long_as_they_say(ds):
    if may_be_sparse(ds._op):
        return
    try:
        length = len(ds)
    except TypeError:
        return
    assert length == sum(1 for _ in ds)


@given(
    st.lists(
        st.tuples(st.none() | st.integers(0, 40), st.sampled_from([1, 2, 3, 0.5, 7, 1.37])), min_size=1, max_size=6
    ).filter(lambda parts: any(count is not None for count, _ in parts)),
)
def test_a_mix_is_as_long_as_it_says(parts):
    counts, weights = zip(*parts, strict=True)
    parts = [TEN.repeat() if n is None else MapDataset.range(n).to_iter_dataset() for n in counts]
    mix = IterDataset.mix(parts, weights)
    assert len(mix) == sum(1 for _ in mix)


def test_the_length_of_a_mix_of_many_parts_is_cheap():
    parts = [MapDataset.range(i % 7 + 100).to_iter_dataset() for i in range(3000)]
    assert len(IterDataset.mix(parts)) == 3000 * 100


def loader(**options):
    sampler = options.pop("sampler", IndexSampler(10, num_epochs=2, seed=1))
    return DataLoader(data_source=range(10), sampler=sampler, **options)


def test_a_loader_has_a_length():
    for found in (loader(), loader(operations=[abs, transforms.Batch(3)]), loader(sampler=SequentialSampler(10))):
        assert len(found) == sum(1 for _ in found)
    assert len(loader(operations=[transforms.Batch(3)], worker_count=2)) == 7
    with pytest.raises(TypeError, match="known only after reading all of it"):
        len(loader(operations=[transforms.Filter(bool)]))
    with pytest.raises(TypeError, match="endless"):
        len(loader(sampler=IndexSampler(10, seed=1)))


def test_a_loader_of_a_source_that_is_a_stream_has_no_length():
    class Stream:
        def __init__(self):
            self._elements = iter(range(4))

        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            return next(self._elements)

    source = Stream()
    with headrace.as_grain():
        found = DataLoader(data_source=source, sampler=SequentialSampler(len(source)), worker_count=0)
        with pytest.raises(TypeError, match="known only after reading all of it"):
            len(found)
        assert list(found) == [0, 1, 2, 3]


def test_tqdm_shows_the_total(capsys):
    with tqdm(loader(operations=[transforms.Batch(5)])) as bar:
        assert bar.total == 4
    with tqdm(UNKNOWN["filter"]) as bar:
        assert bar.total is None
    capsys.readouterr()
