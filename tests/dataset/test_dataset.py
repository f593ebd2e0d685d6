"""What users meet: building, reading and printing datasets."""

import collections
import copy
import pickle
import sys
import textwrap

import cloudpickle
import numpy as np
import pytest

import headrace as hr
from headrace import (
    AUTOTUNE,
    DatasetIterator,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    transforms,
)
from headrace.errors import PipelineError
from headrace.testing import FakeSource, assert_equal, assert_map_batch_agrees, assert_resumable
from headrace.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap

# ---- access


def test_elements_by_index():
    ds = MapDataset.range(5)
    assert ds[1] == 1
    assert ds[-1] == 4
    assert ds[7] == 2
    assert type(ds[np.int64(1)]) is int
    assert list(ds[1:4]) == [1, 2, 3]
    assert list(ds[[3, 0, -1]]) == [3, 0, 4]
    assert list(ds[np.array([1, 1])]) == [1, 1]
    assert list(ds.skip(3)) == [3, 4]
    assert list(ds.take(2)) == [0, 1]
    assert list(ds.take(0)) == []
    assert list(ds.shard(2, 1)) == [1, 3]


def test_a_mix_far_out_does_not_overflow():
    ds = MapDataset.mix([MapDataset.range(7).repeat(), MapDataset.range(5).repeat()], [1, 10**4])
    k = 10**13
    counts = collections.Counter(type(ds[k + i]) for i in range(3))
    assert counts == {int: 3}
    assert len(ds) == sys.maxsize


def test_sources_get_python_ints():
    seen = set()

    class Source:
        def __len__(self):
            return 100

        def __getitem__(self, i):
            seen.add(type(i))
            return i

    ds = MapDataset.source(Source()).shuffle(seed=1).repeat()
    ds[np.int64(3)]
    list(ds.to_iter_dataset().take(300))
    assert seen == {int}


def test_a_block_source_is_asked_in_blocks():
    calls = []

    class Source:
        def __len__(self):
            return 1000

        def __getitems__(self, indices):
            calls.append(len(indices))
            assert all(type(i) is int for i in indices)
            return [i * 2 for i in indices]

    assert list(MapDataset.source(Source())) == list(range(0, 2000, 2))
    assert len(calls) < 40
    assert_equal(MapDataset.source(Source()).batch(10)[3], np.arange(60, 80, 2))


def test_array_sources_are_gathered():
    images, labels = np.random.default_rng(0).integers(0, 255, (50, 4, 4)), np.arange(50)
    ds = MapDataset.source({"image": images, "label": labels}).shuffle(seed=1)
    batch = ds.batch(8)[1]
    assert_equal(batch["image"], images[batch["label"]])
    assert_equal(ds.to_arrays()["image"], images[ds.to_arrays()["label"]])
    assert_equal(MapDataset.source(images)[3], images[3])
    nested = MapDataset.source({"a": {"b": labels}})
    assert_equal(nested.batch(4)[0], {"a": {"b": np.arange(4)}})


def test_later_epochs_everywhere():
    ds = MapDataset.range(4).shuffle(seed=3)
    epochs = [[ds[e * 4 + i] for i in range(4)] for e in range(5)]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_a_cache_keeps_the_first_epoch_and_computes_each_element_once():
    calls = []
    ds = MapDataset.range(6).shuffle(seed=1).map(lambda x: calls.append(x) or np.array([x])).cache().repeat(3)
    first = [int(x[0]) for x in ds]
    assert first == first[:6] * 3
    assert len(calls) == 6
    ds[0][0] = 99
    assert int(ds[0][0]) == first[0]


def test_a_cached_stream_is_computed_once_and_later_epochs_are_equal():
    calls = []
    stream = MapDataset.range(40).to_iter_dataset().map(lambda x: calls.append(x) or np.array([x])).cache()
    ds = stream.map(lambda x: (x.__iadd__(1))[0].item()).repeat(3)
    assert list(ds) == list(range(1, 41)) * 3
    assert len(calls) == 40
    assert list(stream.map(lambda x: x[0].item())) == list(range(40))


def test_select_from_datasets_with_a_map_that_knows_one_epoch():
    class Chosen(transforms.DatasetSelectionMap):
        pairs = ((0, 1), (1, 0), (0, 0))

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return self.pairs[i]

    ds = MapDataset.select_from_datasets([MapDataset.range(2), MapDataset.range(10, 12)], Chosen())
    assert [ds[i] for i in range(6)] == [1, 10, 0, 1, 10, 0]
    assert list(ds) == [1, 10, 0]


# ---- streams


def test_mixtures_can_change_after_a_restore():
    def part(start):
        return MapDataset.range(start, start + 50).to_iter_dataset()

    iterator = iter(IterDataset.mix({"a": part(0), "b": part(100)}, {"a": 1, "b": 1}))
    taken = [next(iterator) for _ in range(10)]
    assert taken == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
    state = iterator.get_state()
    other = iter(IterDataset.mix({"b": part(100), "c": part(200), "a": part(0)}, {"b": 1, "c": 2, "a": 1}))
    other.set_state(state)
    more = [next(other) for _ in range(12)]
    assert [x for x in more if x < 100] == [5, 6, 7]
    assert [x for x in more if 100 <= x < 200] == [105, 106, 107]
    assert [x for x in more if x >= 200] == [200, 201, 202, 203, 204, 205]
    without = iter(IterDataset.mix({"b": part(100)}))
    without.set_state(state)
    assert next(without) == 105


def test_the_sliding_shuffle_moves_no_element_further_than_its_buffer():
    for size in (1, 2, 7, 50, 500):
        order = list(MapDataset.range(200).to_iter_dataset().shuffle(size, seed=3))
        assert sorted(order) == list(range(200))
        assert max(abs(x - i) for i, x in enumerate(order)) < size
    assert order != list(range(200))
    assert list(MapDataset.range(9).to_iter_dataset().shuffle(3, seed=1)) != list(
        MapDataset.range(9).to_iter_dataset().shuffle(3, seed=2)
    )


def test_interleave_takes_a_dataset_of_datasets_and_opens_them_late():
    opened = []

    def part(i):
        opened.append(i)
        return MapDataset.range(10 * i, 10 * i + 3).to_iter_dataset()

    ds = IterDataset.interleave(MapDataset.range(5).map(part), cycle_length=2)
    iterator = iter(ds)
    assert [next(iterator) for _ in range(4)] == [0, 10, 1, 11]
    assert set(opened) == {0, 1}
    assert sorted(ds) == sorted(10 * i + j for i in range(5) for j in range(3))
    assert_resumable(ds)


def test_padded_batches():
    rows = [np.arange(n) for n in (3, 1, 4, 1, 5, 9, 2, 6)]
    ds = MapDataset.source(rows).to_iter_dataset()
    first, *_ = ds.padded_batch(3, pad_value=-1)
    assert_equal(first, np.array([[0, 1, 2, -1], [0, -1, -1, -1], [0, 1, 2, 3]]))
    buckets = list(ds.padded_batch(2, boundaries=(2, 5), length_fn=len, window_size=8))
    assert [b.shape for b in buckets] == [(2, 4), (2, 1), (2, 9), (1, 2), (1, 5)]
    fixed = list(ds.padded_batch(2, boundaries=(2, 5, 9), length_fn=len, window_size=8, pad_to_boundary=True))
    assert {b.shape[1] for b in fixed} == {2, 5, 9}
    full = list(ds.padded_batch(2, boundaries=(2, 5), length_fn=len, window_size=8, drop_remainder=True))
    assert [len(b) for b in full] == [2, 2, 2]
    named = MapDataset.source([{"x": row, "y": len(row)} for row in rows]).to_iter_dataset()
    assert_equal(
        next(iter(named.padded_batch(2, pad_value={"x": 7}))),
        {"x": np.array([[0, 1, 2], [0, 7, 7]]), "y": np.array([3, 1])},
    )


def test_batched_functions_work_on_columns():
    sizes = []

    def double(batch):
        sizes.append(len(batch["x"]))
        return {"x": batch["x"] * 2, "n": batch["x"].astype(np.float32)}

    arrays = MapDataset.source({"x": np.arange(1000)})
    rows = list(arrays.to_iter_dataset().map(double, batched=True))
    assert_equal(rows[3], {"x": np.int64(6), "n": np.float32(3)})
    assert max(sizes) > 100
    by_rows = MapDataset.range(10).map(lambda x: {"x": x}).map(double, batched=True).filter(lambda e: e["n"] > 3)
    assert [int(e["x"]) for e in by_rows] == [8, 10, 12, 14, 16, 18]


def test_a_transform_with_map_batch_is_called_once_a_block():
    calls = collections.Counter()

    class Scale(Map):
        def map(self, x):
            calls["map"] += 1
            return x * 2.0

        def map_batch(self, x):
            calls["map_batch"] += 1
            return x * 2.0

    ds = MapDataset.source(np.arange(512)).map(Scale()).batch(128)
    assert_equal(ds.to_arrays() if len(ds) == 1 else np.concatenate(list(ds)), np.arange(512) * 2.0)
    assert calls["map"] == 0
    assert calls["map_batch"] <= 4
    assert_map_batch_agrees(Scale(), [1.0, 2.0])

    class Wrong(Scale):
        def map_batch(self, x):
            return x * 3.0

    with pytest.raises(AssertionError):
        assert_map_batch_agrees(Wrong(), [1.0, 2.0])


def test_to_arrays():
    ds = MapDataset.source(FakeSource(10)).filter(lambda e: e["index"] % 2 == 0)
    arrays = ds.to_arrays()
    assert_equal(arrays["index"], np.arange(0, 10, 2))
    assert arrays["x"].shape == (5, 4)
    assert_equal(ds.to_iter_dataset().map(lambda e: e["index"]).to_arrays(), np.arange(0, 10, 2))


def test_prefetch_takes_numbers_autotune_and_multiprocessing_options():
    ds = MapDataset.range(100).to_iter_dataset()
    for size in (0, 1, 7, AUTOTUNE, MultiprocessingOptions(), MultiprocessingOptions(num_workers=2)):
        assert list(ds.prefetch(size)) == list(range(100))
    assert list(hr.experimental.multithread_prefetch(ds, num_threads=3, buffer_size=5)) == list(range(100))
    assert list(hr.experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3)) == list(range(100))
    assert list(MapDataset.range(9).to_iter_dataset(ReadOptions(num_threads=AUTOTUNE))) == list(range(9))


def test_runs_grow_behind_filters_and_interleaves():
    streams = [MapDataset.range(30_000).to_iter_dataset(ReadOptions(0)) for _ in range(4)]
    sizes = []
    for ds in (streams[0].filter(lambda x: x % 2), IterDataset.interleave(streams, cycle_length=4)):
        sizes.clear()
        list(ds.map(lambda b: sizes.append(len(b)) or b, batched=True))
        assert max(sizes) > 500


def test_prefetching_an_iterator_that_is_there_already():
    parent = iter(MapDataset.range(50).to_iter_dataset())
    ahead = hr.experimental.ThreadPrefetchDatasetIterator(parent, prefetch_buffer_size=3)
    with ahead:
        assert [next(ahead) for _ in range(20)] == list(range(20))
        state = ahead.get_state()
        assert list(ahead) == list(range(20, 50))
        ahead.set_state(state)
        assert next(ahead) == 20


def test_padding_is_a_tree_that_elements_start_with():
    elements = [{"a": {"b": np.ones(1)}, "c": 1}, {"a": {"b": np.ones(2)}, "c": 2}]
    (batch,) = MapDataset.source(elements).to_iter_dataset().padded_batch(2, pad_value={"a": 7})
    assert_equal(batch, {"a": {"b": np.array([[1.0, 7.0], [1.0, 1.0]])}, "c": np.array([1, 2])})


def test_a_buffer_larger_than_the_data():
    assert sorted(MapDataset.range(10).to_iter_dataset().shuffle(10**12, seed=1)) == list(range(10))


EXPERIMENTAL = """CacheIterDataset DatasetOptions ExecutionTrackingMode FlatMapIterDataset FlatMapMapDataset FlatMapTransform
InterleaveIterDataset LimitIterDataset MapWithIndexTransform RebatchIterDataset RepeatIterDataset RngPool
ShapeDtypeStruct ShapeDtypeStructProtocol ThreadPrefetchDatasetIterator ThreadPrefetchIterDataset
WindowShuffleIterDataset WindowShuffleMapDataset WithOptionsIterDataset ZipIterDataset ZipMapDataset
apply_transformations assert_equal_output_after_checkpoint batch_and_pad get_element_spec get_next_index index_shuffle
multithread_prefetch set_next_index"""


def test_the_names_of_the_experimental_namespace():
    missing = [name for name in EXPERIMENTAL.split() if not hasattr(hr.experimental, name)]
    assert not missing


def test_transforms_as_classes():
    class Plus(Map):
        def map(self, x):
            return x + 1

    class Draw(RandomMap):
        def random_map(self, x, rng):
            return x + int(rng.integers(1, 3))

    class Number(MapWithIndex):
        def map_with_index(self, i, x):
            return (i, x)

    class Odd(Filter):
        def filter(self, x):
            return x % 2 == 1

    class Twice(FlatMap):
        max_fan_out = 2

        def flat_map(self, x):
            return [x, x]

    ds = MapDataset.range(6).seed(1).apply([Plus(), Odd(), Twice(), Draw(), Number()])
    for stream in (
        ds,
        MapDataset.range(6).seed(1).to_iter_dataset().apply([Plus(), Odd(), Twice(), Draw(), Number()]),
    ):
        assert len(list(stream)) == 6
    assert list(MapDataset.range(4).apply(Batch(2, batch_fn=tuple))) == [(0, 1), (2, 3)]
    assert list(MapDataset.range(2).apply(lambda x: -x)) == [0, -1]


# ---- datasets of the user's own


class Squares(MapDataset):
    def __init__(self, parent):
        super().__init__(parent)

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, i):
        return self._parent[i] ** 2


class PairsIterator(DatasetIterator):
    """Sums of neighbours, with a state of its own."""

    def __init__(self, parent):
        super().__init__(parent)
        self._count = 0

    def __next__(self):
        a = next(self._parent)
        self._count += 1
        return a + next(self._parent)

    def get_state(self):
        return {"parent": self._parent.get_state(), "count": self._count}

    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self._count = state["count"]


class Pairs(IterDataset):
    def __iter__(self):
        return PairsIterator(iter(self._parent))


class Countdown(IterDataset):
    """A source of its own, as a plain generator."""

    def __iter__(self):
        yield from range(40, 0, -1)


def test_a_users_own_datasets_work_anywhere_in_a_chain():
    ds = Squares(MapDataset.range(100)).shuffle(seed=1).batch(2).map(lambda b: int(b.sum())).to_iter_dataset()
    ds = Pairs(ds.filter(lambda x: x % 2 == 0)).window_shuffle(3, seed=1)
    assert_resumable(ds)
    mixed = IterDataset.mix([ds, Countdown().map(lambda x: -x)], [1, 2]).batch(3)
    assert_resumable(mixed)
    assert_resumable(Pairs(Pairs(Countdown().skip(2))))
    assert list(Countdown().shuffle(5, seed=1).take(3)) == list(Countdown().shuffle(5, seed=1))[:3]
    assert isinstance(ds.parents[0], Pairs)
    assert list(Squares(MapDataset.range(4)).parents[0]) == [0, 1, 2, 3]


def test_a_users_source_like_dataset_need_not_know_epochs_slices_or_negative_indices():
    class Listed(MapDataset):
        def __init__(self, items):
            super().__init__()
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

    ds = Listed([10, 20, 30])
    assert sorted(ds.seed(1).shuffle().repeat(2)) == [10, 10, 20, 20, 30, 30]
    assert ds[-1] == 30
    assert list(ds[1:]) == [20, 30]
    assert list(ds[[2, 0]]) == [30, 10]
    with pytest.raises(TypeError, match="must be an int"):
        ds["a"]


def test_a_plain_generator_has_states_too():
    iterator = iter(Countdown())
    assert [next(iterator) for _ in range(5)] == [40, 39, 38, 37, 36]
    state = iterator.get_state()
    with iter(Countdown()) as fresh:
        fresh.set_state(state)
        assert next(fresh) == 35
    assert_resumable(Countdown())
    assert_resumable(Pairs(Countdown()))


def test_a_users_iterator_is_asked_for_its_state_only_now_and_then():
    asked = []

    class Counting(PairsIterator):
        def get_state(self):
            asked.append(1)
            return super().get_state()

    class Own(IterDataset):
        def __iter__(self):
            return Counting(iter(self._parent))

    assert len(list(Own(MapDataset.range(400).to_iter_dataset()).map(lambda x: x))) == 200
    assert len(asked) <= 200 // 16


# ---- people and specs


def test_pipelines_read_as_they_were_written():
    ds = MapDataset.range(10).shuffle(seed=42).map(lambda x: x).to_iter_dataset().batch(3, drop_remainder=True)
    text = repr(ds)
    assert "MapDataset.range(10)\n  .shuffle(seed=42)\n  .map(<lambda> at test_dataset.py:" in text
    assert text.endswith(".to_iter_dataset()\n  .batch(3, drop_remainder=True)")


def is_any(batch):
    return True


def test_explain_shows_what_is_done():
    options = ReadOptions(num_threads=2, prefetch_buffer_size=9)
    arrays = MapDataset.source({"x": np.arange(10)}).seed(1).shuffle(seed=3)[::2].batch(2).to_iter_dataset(options)
    plain = MapDataset.range(5, 9).map(is_any).to_iter_dataset().filter(is_any).window_shuffle(3, seed=1)
    ds = IterDataset.mix([arrays, plain], [1, 2]).random_map(is_any, seed=7).batch(4).prefetch(2)
    line = is_any.__code__.co_firstlineno
    expected = f"""
    IterDataset.mix((1, 2)) of                                         | ordering point: takes parts in turn
        MapDataset.source(ArrayDataSource(length=10, ['x']: int64[]))  | columns, gathered by index
          .seed(1)                                                     | no work at run time
          .shuffle(seed=3)                                             | indices only, computed in blocks ahead of time
          .slice(0, step=2, count=5)                                   | indices only, kept as a range
          .batch(2)                                                    | one gather per batch, with the indices of many batches computed at once
          .to_iter_dataset(ReadOptions)                                | in index order, 2 threads
        MapDataset.range(5, 9, 1)                                      | ints
          .map(is_any at test_dataset.py:{line})                            | one call per element
          .to_iter_dataset()                                           | in index order; threads if a trial shows that they help
          .filter(is_any at test_dataset.py:{line})                         | one call per element, skips the others
          .window_shuffle(3, seed=1)                                   | ordering point: one window at a time
      .random_map(is_any at test_dataset.py:{line}, seed=7)                 | one call per element, each with its own random numbers; ordering point: counts elements
      .batch(4)                                                        | ordering point: stacks elements as they come
      .prefetch(2)                                                     | a thread prefetches 2 elements
    """
    shown = str(ds.explain()).replace(repr(options)[:77] + "...", "ReadOptions")
    assert columns(shown) == columns(textwrap.dedent(expected).strip())


def columns(table):
    """The cells of a table, without the padding between them."""
    return [[line.split("|")[0].rstrip(), line.split("|")[1].strip()] for line in table.splitlines()]


def test_element_specs_without_reading_data():
    class Unreadable:
        element_spec = hr.experimental.ShapeDtypeStruct((3,), np.float32)

        def __len__(self):
            return 10

        def __getitem__(self, i):
            raise AssertionError("read")

    class Flat(Map):
        def map(self, x):
            return x

        def output_spec(self, spec):
            return {"flat": spec}

    def spec(shape, dtype):
        return hr.experimental.ShapeDtypeStruct(shape, dtype)

    source = MapDataset.source(Unreadable())
    assert source.element_spec == spec((3,), np.float32)
    assert source.batch(4, drop_remainder=True).element_spec == spec((4, 3), np.float32)
    assert source.batch(4).element_spec == spec((None, 3), np.float32)
    assert source.batch(5).element_spec == spec((5, 3), np.float32)
    assert source.map(Flat()).repeat().element_spec == {"flat": spec((3,), np.float32)}
    stream = source.shuffle(seed=1).to_iter_dataset().filter(bool)
    assert hr.experimental.get_element_spec(stream.batch(2, drop_remainder=True)) == spec((2, 3), np.float32)
    assert stream.batch(2).rebatch(5, drop_remainder=True).element_spec == spec((5, 3), np.float32)
    assert MapDataset.zip([source, MapDataset.range(10)]).element_spec == (
        spec((3,), np.float32),
        spec((), np.int64),
    )
    assert MapDataset.source({"x": np.ones((4, 2))}).element_spec == {"x": spec((2,), np.float64)}
    assert MapDataset.range(5).batch_and_pad(2).element_spec == spec((2,), np.int64)
    assert IterDataset.mix([stream, stream]).window_shuffle(3, seed=1).element_spec == spec((3,), np.float32)


def test_datasets_are_sent_as_functions_of_their_arguments():
    ds = MapDataset.range(20).shuffle(seed=1).map(lambda x: x + 1).cache().batch(3)
    ds[0]
    again = pickle.loads(cloudpickle.dumps(ds))
    assert_equal(list(again), list(ds))
    assert_equal(list(copy.copy(ds)), list(ds))


def test_batched_functions_get_elements_without_leaves():
    holes = MapDataset.range(3).filter(lambda x: False)
    ds = MapDataset.zip([holes, holes]).map(lambda pair: pair, batched=True)
    assert list(ds) == list(ds.to_iter_dataset()) == [(None, None)] * 3


def test_registered_node_types_are_batched():
    optree = pytest.importorskip("optree")
    Point = collections.namedtuple("Point", "x y")
    ds = MapDataset.range(4).map(lambda i: Point(i, {"z": i}))
    assert_equal(ds.batch(2)[0], Point(np.array([0, 1]), {"z": np.array([0, 1])}))

    class Box:
        def __init__(self, value):
            self.value = value

    optree.register_pytree_node(
        Box, lambda b: ((b.value,), None), lambda _, children: Box(*children), namespace="headrace"
    )
    assert_equal(MapDataset.range(4).map(Box).batch(2)[1].value, np.array([2, 3]))


def test_torch_reads_the_arrays_without_a_copy_and_torch_datasets_are_sources():
    torch = pytest.importorskip("torch")

    class Squared(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, i):
            return torch.tensor([float(i * i)])

    batch = MapDataset.source(Squared()).batch(4)[1]
    assert_equal(batch, np.array([[16.0], [25.0], [36.0], [49.0]], np.float32))
    tensor = torch.from_numpy(batch)
    tensor += 1
    assert batch[0, 0] == 17.0


def test_node_types_registered_with_jax_are_batched():
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a, self.b), "kept"

        @classmethod
        def tree_unflatten(cls, aux, children):
            assert aux == "kept"
            return cls(*children)

    ds = MapDataset.range(6).map(lambda i: {"pair": Pair(i, np.ones(2) * i)})
    for batch in (ds.batch(3)[1], next(iter(ds.skip(3).to_iter_dataset().batch(3)))):
        assert_equal(batch["pair"].a, np.array([3, 4, 5]))
        assert batch["pair"].b.shape == (3, 2)
    arrays = MapDataset.range(4).map(lambda i: jax.numpy.ones(2) * i).batch(2)
    assert_equal(arrays[1], np.array([[2.0, 2.0], [3.0, 3.0]], np.float32))
    device = jax.device_put(arrays[1])
    assert float(device.sum()) == 10.0


def test_workers_by_number_and_after_a_map_dataset():
    ds = MapDataset.range(20).map(lambda x: x + 1)
    for stream in (ds.mp_prefetch(2), ds.to_iter_dataset().mp_prefetch(0), ds.mp_prefetch(MultiprocessingOptions(1))):
        assert isinstance(stream, IterDataset)
        assert list(stream) == list(range(1, 21))
    with pytest.raises(ValueError, match="num_workers must be an int of at least 0 or AUTOTUNE; got -1"):
        ds.mp_prefetch(-1)
    with pytest.raises(ValueError, match="takes MultiprocessingOptions; got 'two'"):
        ds.mp_prefetch("two")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ a forgotten return


def forgot(element):
    element + 1


def forgot_index(index, element):
    element + index


def forgot_rng(element, rng):
    element + rng.integers(3)


FORGOTTEN = {
    "map": lambda ds: ds.map(forgot),
    "map_with_index": lambda ds: ds.map_with_index(forgot_index),
    "random_map": lambda ds: ds.random_map(forgot_rng, seed=1),
}


@pytest.mark.parametrize("name", FORGOTTEN)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_a_stream_that_is_all_none_is_an_error(name, num_workers):
    ds = FORGOTTEN[name](MapDataset.range(10).to_iter_dataset()).batch(4)
    with pytest.raises(PipelineError, match=r"batch\(4\) .*4 elements that are all None.*`return`"):
        list(ds.mp_prefetch(hr.MultiprocessingOptions(num_workers)) if num_workers else ds)


@pytest.mark.parametrize(
    "batched",
    [
        lambda ds: ds.batch_and_pad(4),
        lambda ds: ds.padded_batch(4),
        lambda ds: ds.batch_by_size(4, lambda x: 1, seed=1),
        lambda ds: ds.batch(4, batch_fn=lambda rows: rows[0]),
    ],
)
def test_a_padded_batch_of_a_stream_that_is_all_none_is_an_error(batched):
    ds = batched(MapDataset.range(10).to_iter_dataset().map(forgot))
    with pytest.raises(PipelineError, match=r"elements that are all None.*`return`"):
        list(ds)


def test_a_batch_with_some_none_inside_its_elements_is_none():
    ds = MapDataset.range(4).to_iter_dataset().map(lambda x: {"x": x, "y": None})
    assert_equal(list(ds.batch(4)), [{"x": np.arange(4), "y": None}])


@pytest.mark.parametrize("name", FORGOTTEN)
@pytest.mark.parametrize("kind", ["stream", "random access", "single elements"])
def test_a_map_that_returns_none_a_hundred_times_warns(name, kind):
    source = MapDataset.range(300)
    ds = FORGOTTEN[name](source.to_iter_dataset() if kind == "stream" else source)
    with pytest.warns(
        UserWarning, match=rf"{name}\(forgot.* returned None for each of the first 100 .*`return`"
    ) as seen:
        assert not any(ds[i] for i in range(300)) if kind == "single elements" else not any(ds)
    assert len(seen) == 1
    assert seen[0].filename.endswith("test_dataset.py")


def test_a_map_that_returns_none_now_and_then_does_not_warn():
    ds = MapDataset.range(1000)
    assert len(list(ds.map(lambda x: None if 0 < x < 500 else x))) == 501
    assert len(list(ds.map(lambda x: None if x < 99 else x).to_iter_dataset())) == 901
    assert len(list(ds.filter(lambda x: x >= 500).map(lambda x: x).to_iter_dataset())) == 500
