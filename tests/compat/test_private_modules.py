"""`grain._src` under `as_grain()`: the names that public programs import, and what they do."""

import importlib
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.compat.grain import private_modules
from headrace.errors import DataError
from headrace.sources import write_tfrecord

NAMES = [
    (path, name) for path, homes in private_modules.MODULES.items() for several in homes.values() for name in several
]


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_a_private_name_is_one_of_grains_and_found_here(path, name):
    pytest.importorskip("grain")
    if path == "python.checkpoint.handler":
        pytest.importorskip("orbax.checkpoint")
    assert hasattr(importlib.import_module(f"grain._src.{path}"), name)
    with headrace.as_grain():
        module = importlib.import_module(f"grain._src.{path}")
        assert module.__doc__.startswith("Names of Headrace")
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_modules_that_nobody_imports_are_missing():
    with headrace.as_grain():
        with pytest.raises(ModuleNotFoundError, match="grain._src.python.nothing"):
            importlib.import_module("grain._src.python.nothing")
        with pytest.raises(ModuleNotFoundError, match=r"grain\._src\.cor'"):
            importlib.import_module("grain._src.cor")
        with pytest.raises(ImportError, match="cannot import name 'nothing'"):
            from grain._src.core.sharding import nothing  # noqa: F401


def test_nothing_of_them_is_left_behind():
    with headrace.as_grain():
        import grain._src.core.sharding

        assert grain._src.core.sharding.even_split(10, headrace.sharding.ShardOptions(1, 3)) == (4, 7)
    assert not hasattr(headrace, "_src")


@pytest.fixture
def path(tmp_path):
    write_tfrecord([bytes([i]) * (i + 1) for i in range(5)], tmp_path / "a.tfrecord")
    return str(tmp_path / "a.tfrecord")


def test_a_reader_of_tfrecords_seeks(path):
    reader = private_modules._TFRecordReader(path)
    assert next(reader) == b"\0"
    place = reader.tell()
    assert next(reader) == b"\1\1"
    reader.seek(place)
    assert [next(reader) for _ in range(4)] == [bytes([i]) * (i + 1) for i in range(1, 5)]
    with pytest.raises(StopIteration):
        next(reader)


def test_a_readers_states_are_those_of_grain_and_of_headrace(path):
    iterator = private_modules._TFRecordDatasetIterator(path)
    next(iterator), next(iterator)
    other = iter(headrace.experimental.TFRecordIterDataset(path))
    other.set_state(iterator.get_state())
    assert list(other) == list(iterator)
    library = pytest.importorskip("grain._src.python.dataset.sources.tfrecord_dataset")
    theirs = library._TFRecordDatasetIterator(path)
    next(theirs)
    iterator.set_state(theirs.get_state())
    assert list(iterator) == list(theirs)
    theirs._reader._reader.close()


@pytest.mark.parametrize("place", [3, 12, 20, -3])
def test_a_reader_says_where_a_file_is_damaged(path, place):
    data = bytearray(Path(path).read_bytes())
    data[place] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(DataError, match=r"a\.tfrecord is damaged in the record before offset"):
        list(iter(private_modules._TFRecordReader(path).__next__, None))


def test_a_reader_sees_that_a_file_was_cut_short(path):
    Path(path).write_bytes(Path(path).read_bytes()[:-2])
    with pytest.raises(DataError, match="the file ends too early"):
        list(iter(private_modules._TFRecordReader(path).__next__, None))


def test_mixtures_and_prefetches_under_their_private_names():
    parts = [headrace.MapDataset.range(4), headrace.MapDataset.range(10, 14)]
    mixed = private_modules.MixedMapDataset(parents=parts, proportions=[1, 2])
    assert list(mixed) == list(headrace.MapDataset.mix(parts, [1, 2]))
    streams = [part.to_iter_dataset() for part in parts]
    assert list(private_modules.MixedIterDataset(streams, [1, 2])) == list(headrace.IterDataset.mix(streams, [1, 2]))
    options = headrace.ReadOptions(num_threads=1)
    assert list(
        private_modules.PrefetchIterDataset(private_modules.SourceMapDataset([3, 1]), read_options=options)
    ) == [3, 1]
    assert private_modules._determine_worker_count(None) > 0
    assert np.array_equal(private_modules.ConcatenateMapDataset(parts)[5], 11)
