"""The order, random numbers and mixtures of the Grain wheel, which people's seeds already stand for."""

import numpy as np
import pytest

import headrace as hr
from headrace.experimental import index_shuffle
from headrace.testing import assert_equal

grain = pytest.importorskip("grain")

INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
LENGTHS = [1, 2, 3, 10, 100, 1000, 16384, 16385, 65535, 65536, 65538, 100_000, 2**18, 10**7]
SEEDS = [0, 1, 42, 2**31, 2**32 - 1]


def both(build, *, count=None):
    """The elements of one pipeline, built with each library."""
    ours, theirs = build(hr, hr.MapDataset), build(grain, grain.MapDataset)
    if isinstance(theirs, grain.MapDataset):
        count = count or min(len(theirs) * 2, 200)
        return [ours[i] for i in range(count)], [theirs[i] for i in range(count)]
    return list(ours), list(theirs)


def assert_both(build, *, count=None):
    ours, theirs = both(build, count=count)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)


def stream(lib, ds):
    return ds.to_iter_dataset(INLINE) if lib is grain else ds.to_iter_dataset()


def draw(x, rng):
    return x, int(rng.integers(10**9)), float(rng.normal()), rng.integers(2**31, dtype=np.int32).item()


@pytest.mark.parametrize("length", LENGTHS)
def test_index_shuffle(length):
    indices = np.unique(np.random.default_rng(length).integers(0, length, 40)).tolist()
    for seed in SEEDS:
        expected = [grain.experimental.index_shuffle(i, length - 1, seed, 4) for i in indices]
        assert [index_shuffle(i, length - 1, seed, 4) for i in indices] == expected


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [n for n in LENGTHS if 3 < n < 10**6])
def test_shuffle_over_several_epochs(length, seed):
    ours, theirs = (lib.MapDataset.range(length).shuffle(seed=seed) for lib in (hr, grain))
    picks = np.random.default_rng(seed).integers(0, 3 * length, 30)
    assert [ours[int(i)] for i in picks] == [theirs[int(i)] for i in picks]
    block = ours._fetch(range(length - 1, length + 40)).rows()
    assert block == [theirs[i] for i in range(length - 1, length + 40)]


@pytest.mark.parametrize("seed", [0, 3, 2**32 - 100])
@pytest.mark.parametrize(("length", "window"), [(12, 4), (12, 12), (100, 10), (1000, 250), (70_000, 35_000)])
def test_window_shuffle_where_the_window_divides_the_length(length, window, seed):
    def build(lib, cls):
        if lib is grain:
            return grain.experimental.WindowShuffleMapDataset(cls.range(length), window_size=window, seed=seed)
        return hr.experimental.WindowShuffleMapDataset(cls.range(length), window_size=window, seed=seed)

    assert_both(build)


@pytest.mark.parametrize(("length", "window"), [(10, 4), (12, 4), (7, 100), (1000, 250)])
def test_window_shuffle_of_a_stream(length, window):
    def build(lib, cls):
        ds = stream(lib, cls.range(length))
        return lib.experimental.WindowShuffleIterDataset(ds, window_size=window, seed=9)

    assert_both(build)


def test_seeds_are_derived_from_the_distance_to_the_seeded_dataset():
    assert_both(lambda lib, cls: cls.range(20).seed(3).shuffle())
    assert_both(lambda lib, cls: cls.range(20).seed(3).map(lambda x: x).map(lambda x: x).shuffle())
    assert_both(lambda lib, cls: cls.range(20).seed(5).shuffle().seed(3).slice(slice(2, 18)).shuffle())
    assert_both(lambda lib, cls: cls.range(20).seed(3).shuffle().random_map(draw).repeat(2).shuffle())
    assert_both(lambda lib, cls: stream(lib, cls.range(20).seed(3)).map(lambda x: x).random_map(draw))
    assert_both(lambda lib, cls: stream(lib, cls.range(20)).seed(7).random_map(draw))


def test_seeds_of_several_parents_are_gathered_breadth_first():
    def build(lib, cls):
        a = cls.range(20).seed(1).map(lambda x: x)
        return cls.mix([a, cls.range(20).seed(2), cls.range(20).map(lambda x: x).seed(3)]).shuffle()

    assert_both(build)


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**40])
def test_random_map(seed):
    assert_both(lambda lib, cls: cls.range(30).random_map(draw, seed=seed))
    assert_both(lambda lib, cls: stream(lib, cls.range(30).filter(lambda x: x % 3)).random_map(draw, seed=seed))


@pytest.mark.parametrize("weights", [None, [1, 1, 1], [0.5, 0.3, 0.2], [1, 2, 7], [0.001, 1, 1], [3.3, 1.7, 5]])
def test_mix(weights):
    def parts(cls):
        return [cls.range(n, n + 40).shuffle(seed=n) for n in (0, 1000, 2000)]

    assert len(hr.MapDataset.mix(parts(hr.MapDataset), weights)) == len(
        grain.MapDataset.mix(parts(grain.MapDataset), weights)
    )
    assert_both(lambda lib, cls: cls.mix(parts(cls), weights), count=200)
    assert_both(lambda lib, cls: lib.IterDataset.mix([stream(lib, part) for part in parts(cls)], weights))


def test_mix_by_name():
    def build(lib, cls):
        parts = {"a": stream(lib, cls.range(9)), "b": stream(lib, cls.range(100, 120))}
        return lib.IterDataset.mix(parts, {"a": 1, "b": 2})

    assert_both(build)


def test_weights_by_name_belong_to_their_names_whatever_their_order():
    parts = {"b": stream(hr, hr.MapDataset.range(9)), "a": stream(hr, hr.MapDataset.range(100, 120))}
    mixed = list(hr.IterDataset.mix(parts, {"a": 2, "b": 1}))
    assert mixed[:6] == [100, 101, 0, 102, 103, 1]
    assert mixed == list(hr.IterDataset.mix(dict(sorted(parts.items())), {"b": 1, "a": 2}))


def test_mix_far_out():
    ours, theirs = (
        lib.MapDataset.mix([lib.MapDataset.range(7).repeat(), lib.MapDataset.range(5).repeat()], [1, 3])
        for lib in (hr, grain)
    )
    for k in (10**9, 10**10 + 7):
        assert [ours[k + i] for i in range(20)] == [theirs[k + i] for i in range(20)]


@pytest.mark.parametrize("reseed", [True, False])
def test_repeat(reseed):
    assert_both(lambda lib, cls: cls.range(7).shuffle(seed=1).repeat(3, reseed_each_epoch=reseed))
    assert len(hr.MapDataset.range(7).repeat()) == len(grain.MapDataset.range(7).repeat())


def test_repeat_of_a_stream():
    assert_both(lambda lib, cls: lib.experimental.RepeatIterDataset(stream(lib, cls.range(5).shuffle(seed=1)), 3))


@pytest.mark.parametrize("drop", [True, False])
def test_batch(drop):
    assert_both(lambda lib, cls: cls.range(10).shuffle(seed=1).batch(4, drop_remainder=drop))
    assert_both(lambda lib, cls: stream(lib, cls.range(10)).filter(lambda x: x != 3).batch(4, drop_remainder=drop))


ELEMENTS = {
    "ints": [1, 2],
    "floats": [1.0, 2.0],
    "mixed numbers": [1, 2.5],
    "strings": ["a", "bcd"],
    "bytes": [b"a", b"bcd"],
    "bools": [True, False],
    "tuples": [(1, 2.0), (3, 4.0)],
    "lists": [[1, 2], [3, 4]],
    "dicts": [{"a": 1, "b": np.ones(2)}, {"a": 2, "b": np.zeros(2)}],
    "nested": [{"a": (1, [2, 3])}, {"a": (4, [5, 6])}],
    "scalars of two types": [np.int8(1), np.int16(2)],
    "arrays of two types": [np.ones(2, np.float32), np.ones(2, np.int64)],
    "large ints": [2**63, 1],
    "huge ints": [2**70, 1],
    "complex": [1j, 2j],
    "empty dicts": [{}, {}],
    "zero-size": [np.zeros((0, 3)), np.zeros((0, 3))],
    "0-d arrays": [np.array(1), np.array(2)],
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_batches_of_all_kinds_of_elements(name):
    assert_both(lambda lib, cls: cls.source(ELEMENTS[name]).batch(2), count=1)


def test_filter_and_holes():
    assert_both(lambda lib, cls: cls.range(10).filter(lambda x: x % 3).map(lambda x: x + 1))
    assert_both(lambda lib, cls: stream(lib, cls.range(10).filter(lambda x: x % 3)))


@pytest.mark.parametrize(
    "sl", [slice(2, 5), slice(None, None, -1), slice(8, 2, -2), slice(1, None, 3), slice(-4, None)]
)
def test_slices_over_several_epochs(sl):
    assert_both(lambda lib, cls: cls.range(10).shuffle(seed=1).slice(sl), count=25)


def test_concatenate_and_select_over_several_epochs():
    class Alternate:
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return i % 2, i // 2

    def parts(cls):
        return [cls.range(3).shuffle(seed=1), cls.range(10, 14).shuffle(seed=2)]

    assert_both(lambda lib, cls: cls.concatenate(parts(cls)), count=25)
    assert_both(lambda lib, cls: cls.select_from_datasets(parts(cls), Alternate()), count=18)


def test_flat_map():
    def transform(lib):
        class Split(lib.experimental.FlatMapTransform):
            max_fan_out = 3

            def flat_map(self, x):
                return [10 * x + j for j in range(x)]

        return Split()

    assert_both(lambda lib, cls: lib.experimental.FlatMapMapDataset(cls.range(4), transform(lib)), count=24)
    assert_both(lambda lib, cls: lib.experimental.FlatMapIterDataset(stream(lib, cls.range(4)), transform(lib)))


@pytest.mark.parametrize("cycle_length", [1, 2, 3, 9])
@pytest.mark.parametrize("lengths", [[3, 1, 4, 2, 5], [3, 1, 0, 2, 5], [4, 4, 4], [0, 0, 1]])
def test_interleave(lengths, cycle_length):
    def build(lib, cls):
        parts = [stream(lib, cls.range(10 * i, 10 * i + n)) for i, n in enumerate(lengths)]
        return lib.experimental.InterleaveIterDataset(parts, cycle_length=cycle_length)

    assert_both(build)


@pytest.mark.parametrize("drop", [True, False])
def test_rebatch(drop):
    assert_both(
        lambda lib, cls: lib.experimental.RebatchIterDataset(
            stream(lib, cls.range(11).batch(3)), 4, drop_remainder=drop
        )
    )


def test_limit_zip_and_index():
    assert_both(lambda lib, cls: lib.experimental.LimitIterDataset(stream(lib, cls.range(9)), 4))
    assert_both(
        lambda lib, cls: lib.experimental.ZipIterDataset([stream(lib, cls.range(9)), stream(lib, cls.range(9))])
    )
    assert_both(lambda lib, cls: lib.experimental.ZipMapDataset([cls.range(9), cls.range(9).shuffle(seed=1)]))
    assert_both(lambda lib, cls: cls.range(9).shuffle(seed=1).map_with_index(lambda i, x: (i, x)))
    assert_both(lambda lib, cls: stream(lib, cls.range(9).filter(lambda x: x % 2)).map_with_index(lambda i, x: (i, x)))


def test_batch_and_pad_and_rng_pool():
    values = [np.arange(3), np.arange(3)]
    assert_equal(
        hr.experimental.batch_and_pad(values, batch_size=3),
        grain.experimental.batch_and_pad(values, batch_size=3),
    )
    ours, theirs = hr.experimental.RngPool(3).acquire_rng(5), grain.experimental.RngPool(3).acquire_rng(5)
    assert ours.integers(2**60) == theirs.integers(2**60)


def test_states_of_random_access_chains_cross_over():
    def build(lib):
        ds = lib.MapDataset.range(20).shuffle(seed=1).filter(lambda x: x % 3).map(lambda x: x + 1)
        return iter(stream(lib, ds))

    ours, theirs = build(hr), build(grain)
    for _ in range(5):
        assert next(ours) == next(theirs)
        assert ours.get_state().items() >= theirs.get_state().items()
    fresh = build(hr)
    fresh.set_state(theirs.get_state())
    assert list(fresh) == list(theirs)


@pytest.mark.parametrize("length", [65_537, 262_145])
def test_lengths_where_grain_loses_a_record_are_permutations(length):
    ds = hr.MapDataset.range(length).shuffle(seed=5)
    assert np.array_equal(np.sort(ds.to_arrays()), np.arange(length))
    theirs = {grain.experimental.index_shuffle(i, length - 1, 5, 4) for i in range(length)}
    assert len(theirs) < length


def test_windows_that_do_not_divide_the_length_are_permutations():
    for length, window in [(10, 4), (11, 3), (5, 9), (1000, 999)]:
        ds = hr.MapDataset.range(length).window_shuffle(window, seed=1)
        for epoch in range(3):
            rows = ds._fetch(range(epoch * length, (epoch + 1) * length)).rows()
            assert sorted(rows) == list(range(length))
            assert all(row // window == i // window for i, row in enumerate(rows))
    theirs = grain.experimental.WindowShuffleMapDataset(grain.MapDataset.range(10), window_size=4, seed=1)
    assert {theirs[i] for i in range(10)} != set(range(10))


def test_a_windows_seed_wraps_at_2_to_the_32():
    ds = hr.MapDataset.range(12).window_shuffle(4, seed=2**32 - 1)
    assert sorted(ds) == list(range(12))
