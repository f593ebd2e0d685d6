"""Small things that users of Grain rely on: what comes of `None`, of empty parts and of wrong arguments, as the wheel has it."""

import contextlib
import inspect
import logging
import multiprocessing.shared_memory
import os
import pickle
import struct
import threading

import grain
import grain.python
import numpy as np
import pytest

import headrace
from headrace.errors import ClosedError, PipelineError
from headrace.testing import assert_equal, assert_resumable
from tests.support.proc import until

BOTH = pytest.mark.parametrize("lib", [grain, headrace])


def holes(lib):
    return lib.MapDataset.range(8).filter(lambda x: x % 3 != 0)


def stream(lib):
    return holes(lib).to_iter_dataset(allow_nones=True)


class Twice:
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


def twice(lib, ds):
    kind = type("Twice", (Twice, lib.experimental.FlatMapTransform), {})
    return lib.experimental.FlatMapIterDataset(ds, kind())


def draw(x, rng):
    return x, int(rng.integers(1000))


# ------------------------------------------------------------------------------------------------------------ None


@pytest.mark.parametrize(
    "use",
    [
        lambda lib: stream(lib).map(lambda x: x * 10),
        lambda lib: stream(lib).map_with_index(lambda i, x: (i, x)),
        lambda lib: stream(lib).random_map(draw, seed=3),
        lambda lib: stream(lib).map(lambda x: None if x == 2 else x).map(lambda x: x * 10),
        lambda lib: stream(lib).filter(lambda x: x is None),
        lambda lib: stream(lib).filter(lambda x: x != 2).map_with_index(lambda i, x: (i, x)),
        lambda lib: twice(lib, stream(lib)),
        lambda lib: stream(lib).batch(3, batch_fn=list),
        lambda lib: lib.experimental.ZipIterDataset([stream(lib), lib.MapDataset.range(8).to_iter_dataset()]),
        lambda lib: lib.experimental.ZipMapDataset([holes(lib), lib.MapDataset.range(8)]).map(lambda row: (row, 1)),
        lambda lib: lib.experimental.ZipMapDataset([holes(lib), holes(lib).map(str)]).to_iter_dataset(),
    ],
)
def test_none_in_a_stream_and_in_a_zip(use):
    ours = use(headrace)
    assert list(ours) == list(use(grain))
    assert_resumable(ours)


def test_functions_of_many_elements_do_not_see_none():
    class Rows(headrace.transforms.Map):
        def map(self, element):
            return element + 1

        def map_rows(self, elements):
            assert None not in elements
            return [element + 1 for element in elements]

    expected = [None, 2, 3, None, 5, 6, None, 8]
    assert list(stream(headrace).map(Rows())) == expected
    assert list(stream(headrace).map(lambda column: column + 1, batched=True)) == expected
    assert list(stream(headrace).map(Rows()).mp_prefetch(headrace.MultiprocessingOptions(num_workers=1))) == expected


@BOTH
def test_a_loaders_operations_see_none(lib):
    class Show(lib.python.MapTransform):
        def map(self, element):
            return [element]

    loader = lib.DataLoader(
        data_source=[0, None, 2],
        sampler=lib.samplers.SequentialSampler(3, lib.sharding.NoSharding()),
        operations=[Show()],
    )
    assert list(loader) == [[0], [None], [2]]


@BOTH
def test_transformation_is_any_of_the_classes_and_nothing_else(lib):
    class Add(lib.transforms.Map):
        def map(self, element):
            return element + 1

    for kind in (lib.transforms.Transformation, lib.python.Transformation):
        assert isinstance(Add(), kind)
        assert isinstance(lib.transforms.Batch(3), kind)
        for other in (5, "map", None, [Add()], Add, lambda x: x, lib.python.BatchOperation(3)):
            assert not isinstance(other, kind), other
    names = ["Batch", "Map", "RandomMap", "TfRandomMap", "Filter", "FlatMap", "MapWithIndex"]
    assert [kind.__name__ for kind in lib.transforms.Transformation.__args__] == names


# ----------------------------------------------------------------------------------------------------- empty parts


class Alternate:
    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return index % 2, index // 2


def selected(lib, *parts, length=6):
    kind = type("Map", (Alternate, lib.transforms.DatasetSelectionMap), {})
    return lib.MapDataset.select_from_datasets(list(parts), kind(length))


def test_a_selection_from_slices():
    def of(lib):
        ds = lib.MapDataset.range(10)
        return [*selected(lib, ds.slice(slice(0, 3)), ds.slice(slice(5, 8))), *selected(lib, ds, ds, length=0)]

    assert of(headrace) == of(grain)


def test_a_selection_from_an_empty_dataset_is_an_error():
    ds = headrace.MapDataset.range(5)
    chosen = selected(headrace, ds, ds.slice(slice(0, 0)))
    assert chosen[0] == 0
    with pytest.raises(ValueError, match="names dataset 1 at index 1, which is empty"):
        chosen[1]


def test_a_mix_with_an_empty_part():
    for lib in (grain, headrace):
        ds = lib.MapDataset.range(5)
        with pytest.raises(ValueError, match=r"dataset(\(s\) at index)? 1"):
            lib.MapDataset.mix([ds, ds.slice(slice(0, 0)), ds])
        empty = ds.slice(slice(0, 0)).to_iter_dataset()
        assert list(lib.IterDataset.mix([ds.to_iter_dataset(), empty])) == [0]
        assert list(lib.IterDataset.mix([empty, ds.to_iter_dataset()])) == []


# -------------------------------------------------------------------------------------------- what is taken or not


@BOTH
def test_a_buffer_of_nothing_reads_in_the_consumers_thread(lib):
    options = lib.ReadOptions(prefetch_buffer_size=0)
    assert options.num_threads == 16
    assert list(lib.MapDataset.range(5).to_iter_dataset(options)) == [0, 1, 2, 3, 4]


def test_an_interleave_passes_over_holes():
    def parts(ds):
        return ds.filter(lambda i: i % 3 == 1).map(lambda i: headrace.MapDataset.range(10 * i, 11 * i + 1))

    files = headrace.MapDataset.range(12)
    for cycle_length in (1, 2, 3, 7):
        lazily = headrace.IterDataset.interleave(parts(files), cycle_length=cycle_length)
        given = [headrace.MapDataset.range(10 * i, 11 * i + 1) for i in (1, 4, 7, 10)]
        assert list(lazily) == list(headrace.IterDataset.interleave(given, cycle_length=cycle_length))
        assert_resumable(lazily)
        workers = lazily.mp_prefetch(headrace.MultiprocessingOptions(num_workers=1))
        if cycle_length == 2:
            assert list(workers) == list(lazily)


@BOTH
@pytest.mark.parametrize("what", [3, "12", None])
def test_what_is_no_slice(lib, what):
    with pytest.raises(ValueError, match=r"slice.*(int|str|NoneType)"):
        lib.MapDataset.range(5).slice(what)


@BOTH
@pytest.mark.parametrize(
    "wrong",
    [{"index": 11}, {"index": -1}, {"max_index": -1}, {"rounds": 3}, {"rounds": 2}, {"rounds": 0}, {"rounds": 1026}],
)
def test_what_index_shuffle_refuses(lib, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        lib.experimental.index_shuffle(**{"index": 3, "max_index": 10, "seed": 1, "rounds": 4} | wrong)


@BOTH
def test_words_that_tests_look_for(lib):
    for kind in (lib.samplers.IndexSampler, lib.samplers.SequentialSampler):
        for number in (0, -1):
            with pytest.raises(ValueError, match="Invalid number of records"):
                kind(number, lib.sharding.NoSharding())
    for elements in ([{"a": 1}, {"b": 1}], [{"a": 1}, 1], [(1, 2), (1, 2, 3)], [np.ones(2), np.ones(3)]):
        source = lib.MapDataset.source(elements)
        for batches in (source.batch(2), source.to_iter_dataset().batch(2)):
            with pytest.raises(ValueError, match="same structure"):
                list(batches)


# ---------------------------------------------------------------------------------------- elastic, another batch size


@pytest.mark.parametrize(("size", "count"), [(2, 1), (3, 3), (4, 2), (6, 3)])
@pytest.mark.parametrize("length", [12, 17])
def test_an_elastic_iterator_goes_on_from_any_position(size, count, length):
    def rest(lib, position, shard):
        ds = lib.MapDataset.range(length).shuffle(seed=3)
        it = iter(lib.experimental.ElasticIterator(ds, size, lib.sharding.ShardOptions(shard, count)))
        it.set_state({"global_next_index": position})
        return [batch.tolist() for batch in it], it.get_state()

    for position in range(length + 1):
        steps = (length - position) // size
        ours = [rest(headrace, position, shard) for shard in range(count)]
        theirs = [rest(grain, position, shard)[0][:steps] for shard in range(count)]  # later ones are not whole
        assert all(state == {"global_next_index": position + steps * size} for _, state in ours)
        for step in range(steps):
            strided = [x for row in zip(*(shard[step] for shard in theirs), strict=True) for x in row]
            assert [x for batches, _ in ours for x in batches[step]] == strided


def test_an_elastic_iterator_moves_within_and_past_the_end():
    it = headrace.experimental.ElasticIterator(headrace.MapDataset.range(10), 4, headrace.sharding.NoSharding())
    for position, expected in [(4, [4, 5, 6, 7]), (3, [3, 4, 5, 6]), (0, [0, 1, 2, 3]), (5, [5, 6, 7, 8])]:
        it.set_state({"global_next_index": position})
        assert next(it).tolist() == expected
    it.set_state({"global_next_index": 12})  # Grain's, after a last batch of two
    assert list(it) == []
    with pytest.raises(ValueError, match="has . elements"):
        it.set_state({"global_next_index": 40})


# ---------------------------------------------------------------------------------------------------- smaller names


def test_generators_by_operation():
    for seed, index, op_seed in [(5, 3, 0), (5, 3, 6), (7, 2**40, 2**40), (5, 3, 1)]:
        ours, theirs = headrace.experimental.RngPool(seed), grain.experimental.RngPool(seed)
        for op in (op_seed, 0):  # a generator that was given back is used again
            a, b = ours.acquire_rng(index, op_seed=op), theirs.acquire_rng(index, op_seed=op)
            assert a.integers(10**9) == b.integers(10**9)
            ours.release_rng(a)
            theirs.release_rng(b)


def test_settings_are_attributes():
    config = headrace.config
    assert config.py_traceback_filtering == "auto"
    config.update("py_traceback_filtering", "off")
    assert config.py_traceback_filtering == config.get_or_default("py_traceback_filtering") == "off"
    config.update("py_traceback_filtering", "auto")
    with pytest.raises(AttributeError, match="no setting 'nothing'; the settings are .*py_debug_mode"):
        config.nothing  # noqa: B018


def exists(name):
    return os.path.exists(f"/dev/shm/{name}")


@contextlib.contextmanager
def memory(size=80):
    shm = multiprocessing.shared_memory.SharedMemory(create=True, size=size)
    try:
        yield shm
    finally:
        shm.close()
        with contextlib.suppress(FileNotFoundError):
            shm.unlink()


def test_an_array_on_shared_memory_of_the_standard_library():
    with memory() as shm:
        array = headrace.multiprocessing.SharedMemoryArray.from_shared_memory(shm, (2, 5), np.float64)
        array[:] = 3
        assert struct.unpack_from("10d", shm.buf) == (3,) * 10
        assert (array.metadata.name, array.metadata.shape) == (shm.name, (2, 5))
        del array
        assert exists(shm.name)
        with pytest.raises(TypeError, match="too small"):
            headrace.multiprocessing.SharedMemoryArray.from_shared_memory(shm, (3000, 5), np.float64)


@pytest.mark.parametrize("unlink", [True, False])
def test_shared_memory_is_closed_in_a_thread(unlink):
    with memory() as shm:
        headrace.multiprocessing.SharedMemoryArray.close_shm_async(shm, unlink)
        is_closed = lambda: shm.buf is None and getattr(shm, "_fd", -1) < 0  # noqa: E731
        until(lambda: is_closed() and exists(shm.name) is not unlink, "it is not closed")


def test_metadata_removes_the_name():
    array = headrace.multiprocessing.SharedMemoryArray((3,), np.int64)
    metadata = array.metadata
    assert exists(metadata.name)
    metadata.close_and_unlink_shm()
    assert not exists(metadata.name)
    metadata.close_and_unlink_shm()
    array[:] = 7
    assert array.sum() == 21


def test_the_format_of_elements_in_memory():
    source = headrace.sources.SharedMemoryDataSource([1, "two", None])
    pickled = struct.unpack_from(source.format, source._memory.buffer, int(source._ends[0]))
    assert [pickle.loads(each) for each in pickled] == [1, "two", None]
    assert headrace.python.InMemoryDataSource([]).format == ""


def test_metrics_are_numbers_of_the_process():
    monitoring = headrace.monitoring
    latency = monitoring.EventMetric("/x", monitoring.Metadata("d", units=monitoring.Units.SECONDS), root=None)
    latency.Record(2.5, "a")
    latency.Record(1, "a")
    assert (latency.Get("a"), latency.Get("b")) == (3.5, 0)
    latency.ClearAll()
    assert latency.Get("a") == 0
    gauge = monitoring.Metric("/y", value_type=int)
    gauge.Set(4)
    assert gauge.Get() == 4


# ---------------------------------------------------------------------------------- iterators that clients write


def stepping(lib):
    class Iterator(lib.DatasetIterator):
        def __next__(self):
            self._assert_not_closed()
            with self._stats.record_self_time():
                element = next(self._parent)
            with self._stats.record_self_time(offset_ns=5, num_elements=2):
                return self._stats.record_bytes_produced(self._stats.record_output_spec(element)) + 1

        def get_state(self):
            return self._parent.get_state()

        def set_state(self, state):
            self._parent.set_state(state)

    class Steps(lib.IterDataset):
        def __iter__(self):
            return Iterator(iter(self._parent))

    return Steps(lib.MapDataset.range(4).to_iter_dataset())


@BOTH
def test_iterators_tell_their_statistics_and_know_that_they_are_closed(lib):
    assert list(stepping(lib)) == [1, 2, 3, 4]
    iterator = iter(stepping(lib))
    next(iterator)
    iterator._assert_not_closed()
    iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    own = iter(lib.MapDataset.range(3))
    own.close()
    with pytest.raises(ValueError, match="closed"):
        own._assert_not_closed()


def test_a_closed_iterator_raises_our_error():
    iterator = iter(stepping(headrace))
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)


# ------------------------------------------------------------------------------------- a `__getitems__` that is wrong


class Broken:
    def __init__(self, answer):
        self._answer, self.calls = answer, 0

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return index * 2

    def __getitems__(self, indices):
        self.calls += 1
        return self._answer(indices)


def missing_argument(indices):
    return (lambda a, b: a)(indices)


@pytest.mark.parametrize(
    "answer",
    [missing_argument, lambda _: None, lambda _: [], lambda indices: {i: i for i in indices}, lambda _: "no"],
)
def test_a_source_whose_getitems_is_broken_is_read_one_by_one(answer, caplog):
    source = Broken(answer)
    ds = headrace.MapDataset.source(source)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert [ds[i] for i in range(3)] == [0, 2, 4]
        assert list(ds.shuffle(seed=1).to_iter_dataset()) == [
            2 * i for i in headrace.MapDataset.range(50).shuffle(seed=1)
        ]
    assert source.calls == 1
    (record,) = [record for record in caplog.records if record.name == "headrace"]
    assert "does not work, so its items are read one by one" in record.getMessage()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            lambda indices: indices[:3],
            r"`__getitems__` of Broken returned a list of 3 items for \d+ indices. It must return one item",
        ),
        (lambda indices: indices if len(indices) < 4 else None, "'NoneType' object is not iterable"),
    ],
    ids=["too few", "broken later"],
)
def test_a_getitems_that_has_worked_is_not_replaced_in_silence(answer, says):
    ds = headrace.MapDataset.source(Broken(answer))
    assert ds[3] == 3
    assert ds._fetch([]).own_rows() == []  # nothing was asked for
    with pytest.raises((PipelineError, TypeError), match=says):
        list(ds.batch(5))


def test_an_error_of_reading_is_raised_as_it_is():
    def fail(indices):
        raise OSError("the disk is gone")

    source = Broken(fail)
    with pytest.raises(OSError, match="the disk is gone"):
        headrace.MapDataset.source(source)[3]
    assert source.calls == 1


def test_a_source_of_tensorflow_datasets_that_is_a_mock(caplog):
    tfds = pytest.importorskip("tensorflow_datasets")
    with tfds.testing.mock_data(num_examples=7):
        source = tfds.data_source("mnist", split="train")
        labels = [int(source[i]["label"]) for i in range(7)]
        ds = headrace.MapDataset.source(source)
        assert [int(element["label"]) for element in ds] == labels
        assert [batch["image"].shape for batch in ds.batch(3)] == [(3, 28, 28, 1), (3, 28, 28, 1), (1, 28, 28, 1)]
    assert "read one by one" in caplog.text


def test_messages_of_executions_are_grains():
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2
    from grain.proto import execution_summary_pb2 as theirs
    from headrace.proto import execution_summary_pb2 as ours

    described = []
    for module in (ours, theirs):
        described.append(descriptor_pb2.FileDescriptorProto())
        module.DESCRIPTOR.CopyToProto(described[-1])
    assert described[0] == described[1]
    summary = ours.ExecutionSummary()
    summary.nodes[3].name = "map"
    summary.nodes[3].inputs.extend([1, 2])
    text = ours.ExecutionSummaries(execution_summaries=[summary]).SerializeToString()
    again = theirs.ExecutionSummaries.FromString(text)
    assert (again.execution_summaries[0].nodes[3].name, list(again.execution_summaries[0].nodes[3].inputs)) == (
        "map",
        [1, 2],
    )


def test_a_batch_of_an_array_and_lists_is_grains():
    for rows in ([np.array([1, 2]), [3, 4]], [np.array([1, 2]), (3, 4.5)], [np.ones((2, 2)), [[3, 4], [1, 2]]]):
        for elements in (rows, [{"a": row} for row in rows]):
            ours, theirs = (list(lib.MapDataset.source(elements).batch(2)) for lib in (headrace, grain))
            assert_equal(ours, theirs)
    for rows in ([[3, 4], np.array([1, 2])], [np.ones(2), [3, 4, 5]]):
        for lib in (headrace, grain):
            with pytest.raises(ValueError):
                list(lib.MapDataset.source(rows).batch(2))


def test_a_slice_may_be_a_sequence_or_a_dataset_of_indices():
    ds = headrace.MapDataset.range(10).map(lambda x: x * x)
    assert list(ds.slice([3, 1, 4])) == [9, 1, 16]
    assert list(ds.slice(headrace.MapDataset.range(1, 8, 3))) == [1, 16, 49]
    with pytest.raises(headrace.errors.PipelineError, match="finite"):
        ds.slice(headrace.MapDataset.range(3).repeat())


def _interleaved(lib):
    parts = [lib.MapDataset.range(k, k + 3).to_iter_dataset() for k in range(0, 50, 10)]
    return lib.experimental.InterleaveIterDataset(parts, cycle_length=2)


@pytest.mark.parametrize("sl", [slice(0, None, 2), slice(1, None, 2), slice(4, None, 8)])
def test_set_slice_of_an_interleave_keeps_grains_datasets(sl):
    made = [_interleaved(lib) for lib in (headrace, grain)]
    for ds in made:
        ds.set_slice(sl)
    assert list(made[0]) == list(made[1])


def test_errors_are_of_the_classes_that_programs_expect():
    for lib in (headrace, grain):
        for index in (-1, 99):
            with pytest.raises(IndexError):
                lib.experimental.set_next_index(iter(lib.MapDataset.range(5)), index)
            with pytest.raises(IndexError):
                iter(lib.MapDataset.range(5)).set_state({"next_index": index})
        iterator = iter(_interleaved(lib))
        next(iterator)
        with pytest.raises(NotImplementedError):
            lib.experimental.get_next_index(iterator)
        with pytest.raises(TypeError):
            lib.python.IndexSampler(4, lib.python.NoSharding(), shuffle=True, num_epochs=1, seed="a")
        with pytest.raises(TypeError):
            list(lib.MapDataset.range(4).shuffle(seed="a"))


def test_what_cannot_be_pickled_is_a_value_error():
    ds = headrace.MapDataset.range(4).map(threading.Lock().acquire).to_iter_dataset()
    with pytest.raises(ValueError, match="cannot be pickled"):
        list(ds.mp_prefetch(headrace.MultiprocessingOptions(1)))


def test_the_older_operations_clear_the_record_key():
    for lib in (headrace.python, grain.python):
        operations = [
            lib.MapOperation(lambda x: x),
            lib.RandomMapOperation(lambda x, rng: x),
            lib.FilterOperation(lambda x: True),
        ]
        for operation in operations:
            (made,) = operation(iter([lib.Record(lib.RecordMetadata(3, record_key=5), 0)]))
            assert (made.metadata.index, made.metadata.record_key) == (3, None)


def test_fewer_elements_ahead_than_threads_are_logged(caplog):
    headrace.ReadOptions(num_threads=4, prefetch_buffer_size=4)
    headrace.ReadOptions(num_threads=4, prefetch_buffer_size=0)
    assert not caplog.text
    headrace.ReadOptions(num_threads=4, prefetch_buffer_size=2)
    assert "prefetch_buffer_size=2 is smaller than num_threads=4" in caplog.text


def test_every_name_that_dir_lists_resolves():
    modules = [value for value in map(vars(headrace).get, dir(headrace)) if inspect.ismodule(value)]
    for module in (headrace, headrace.python, headrace.experimental, *modules):
        assert [name for name in dir(module) if not hasattr(module, name)] == []


def test_set_slice_of_parquet_files_keeps_grains_files(tmp_path):
    paths = []
    for k in range(3):
        paths += map(
            str, headrace.sources.write_parquet([{"x": 10 * k + i} for i in range(3)], tmp_path / f"{k}.parquet")
        )
    made = [lib.experimental.ParquetIterDataset(paths) for lib in (headrace, grain)]
    for ds in made:
        ds.set_slice(slice(0, None, 2))
    assert_equal(list(made[0]), list(made[1]))
