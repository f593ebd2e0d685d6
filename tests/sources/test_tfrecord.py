"""TFRecord files by index, against files that TensorFlow wrote (`fixtures/make_tfrecord.py`)."""

import os
import pickle
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset
from headrace.errors import DataError
from headrace.sources import tfrecord
from headrace.sources.tfrecord import TFRecordDataSource, TFRecordIterDataset, checksum, crc32c
from tests.sources.fixtures.tfrecords import FIXTURES, NUM_FIXTURES, damage, some_records, write


def test_records_that_tensorflow_wrote_are_read_at_random_and_in_order(tmp_path):
    path = shutil.copy(FIXTURES / "examples.tfrecord", tmp_path)
    source, stream = TFRecordDataSource(path), list(TFRecordIterDataset(path))
    assert len(source) == len(stream) == NUM_FIXTURES
    assert list(source) == stream == [source[i] for i in range(len(source))]
    assert source[-1] == source[np.int64(NUM_FIXTURES - 1)] == stream[-1]
    assert source.__getitems__([]) == []


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=30), min_size=1, max_size=4),
    st.lists(st.integers(0, 10**6), max_size=40),
)
def test_records_come_in_the_order_asked_for(tmp_path_factory, shards, picks):
    folder = tmp_path_factory.mktemp("shards")
    source = TFRecordDataSource([write(folder / str(i), shard) for i, shard in enumerate(shards)])
    records = [record for shard in shards for record in shard]
    assert list(source) == records
    indices = [pick % (2 * len(records)) - len(records) for pick in picks] if records else []
    assert source.__getitems__(indices) == [records[i] for i in indices]


@pytest.mark.parametrize("near", [0, 1 << 12, 1 << 30])
def test_records_are_the_same_however_they_are_read_together(tmp_path, monkeypatch, near):
    monkeypatch.setattr(tfrecord, "NEAR_BYTES", near)
    records = some_records(500)
    source = TFRecordDataSource([write(tmp_path / "a", records[:300]), write(tmp_path / "b", records[300:])])
    indices = np.random.default_rng(1).integers(-500, 500, 90).tolist()
    assert source.__getitems__(indices) == [records[i] for i in indices]


@pytest.mark.parametrize("read_bytes", [12, 13, 100, 1 << 18])
def test_an_index_is_the_same_however_the_file_is_read(tmp_path, monkeypatch, read_bytes):
    monkeypatch.setattr(tfrecord, "READ_BYTES", read_bytes)
    records = [*some_records(100), b"x" * 100_000, b"y" * 50_000, b"", *some_records(3)]
    assert list(TFRecordDataSource(write(tmp_path / "t", records))) == records


def test_large_records_are_read_whole(tmp_path):
    large = np.random.default_rng(0).bytes(11 << 20)
    source = TFRecordDataSource(write(tmp_path / "t", [b"a", large, b"", large[:-1]]))
    assert source[1] == large
    assert source.__getitems__([3, 0, 2]) == [large[:-1], b"a", b""]


def test_a_source_is_pickled_as_paths(tmp_path):
    records = some_records(5000)
    source = TFRecordDataSource(write(tmp_path / "t", records))
    source[0]
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert copy[4321] == records[4321]
    assert repr(copy) == repr(source)
    assert repr(copy) != repr(TFRecordDataSource(write(tmp_path / "u", records)))
    other = pickle.loads(pickled)
    write(tmp_path / "t", records[1:])
    with pytest.raises(DataError, match="t has changed since its source was created"):
        other[0]


def test_files_are_closed_with_their_source(tmp_path):
    with TFRecordDataSource(write(tmp_path / "t", [b"1"])) as source:
        assert source[0] == b"1"
        assert _open_files(tmp_path) == 1
    assert _open_files(tmp_path) == 0
    assert source[0] == b"1"
    del source
    assert _open_files(tmp_path) == 0


def _open_files(folder):
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.realpath(link).startswith(str(folder)) for link in links)


def test_addresses_are_read_as_paths_are(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    records = some_records(50)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/tfrecord-test/t", Path(write(tmp_path / "t", records)).read_bytes())
    source = TFRecordDataSource("memory://tfrecord-test/t")
    assert source.__getitems__([40, 3, 3]) == [records[40], records[3], records[3]]
    assert list(TFRecordIterDataset("memory://tfrecord-test/t")) == records
    assert len(os.listdir(tmp_path / "cache/tfrecord")) == 1
    memory.rm("/tfrecord-test", recursive=True)


# -------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-1], "record 2, offset 42: it has 1000 bytes, but the file ends 1 bytes too early"),
        (lambda d: d[:47], "record 2, offset 42: the file ends 5 bytes into it, before its length"),
        (lambda d: d + b"\0\0\0", "record 3, offset 1058: the file ends 3 bytes into it"),
        (lambda d: d[:43] + b"\xff" + d[44:], "record 2, offset 42: the checksum of its length is wrong"),
        (lambda d: b"hello, this is a text", "record 0, offset 0: the checksum of its length is wrong"),
        (lambda d: b"\xff" * 500, "record 0, offset 0: the checksum of its length is wrong"),
    ],
)
@pytest.mark.parametrize("read_bytes", [30, 1 << 18])
def test_a_damaged_file_is_named_with_the_record(tmp_path, monkeypatch, change, message, read_bytes):
    monkeypatch.setattr(tfrecord, "READ_BYTES", read_bytes)
    path = Path(write(tmp_path / "t", [b"12345", b"67890", b"z" * 1000]))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=f"t is damaged at {message}"):
        TFRecordDataSource(path)


def test_damaged_bytes_are_found_where_they_are_read(tmp_path):
    path = write(tmp_path / "t", [b"12345", b"67890", b"z" * 1000])
    damage(path, 42 + 12 + 500)
    source = TFRecordDataSource([path, write(tmp_path / "u", [b"1"])])
    assert source.__getitems__([1, 0, 3]) == [b"67890", b"12345", b"1"]
    for read in (lambda: source[2], lambda: source.__getitems__([3, 2, 1]), lambda: list(source)):
        with pytest.raises(DataError, match="t is damaged at record 2, offset 42: the checksum of its bytes is wrong"):
            read()
    assert len(TFRecordDataSource(path, verify=False)[2]) == 1000
    iterator = iter(MapDataset.source(source).to_iter_dataset())
    assert [next(iterator), next(iterator)] == [b"12345", b"67890"]
    with pytest.raises(DataError, match="record 2, offset 42"):
        next(iterator)


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_that_was_written_anew_is_an_error(tmp_path, verify):
    path = write(tmp_path / "t", [b"old"] * 30)
    source = TFRecordDataSource(path, verify=verify)
    write(tmp_path / "t", [b"new"] * 30)
    os.utime(path, ns=(1, 1))
    for reader in (source, pickle.loads(pickle.dumps(source))):
        with pytest.raises(DataError, match="t has changed since its source was created"):
            reader[3]


def test_one_source_of_more_files_than_descriptors_is_read(tmp_path):
    paths = [write(tmp_path / f"{i:03d}", [b"%d" % i]) for i in range(300)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with TFRecordDataSource(paths) as source, TFRecordDataSource(paths) as other:
            for reader in (source, other, source):
                assert reader.__getitems__(range(300)) == [b"%d" % i for i in range(300)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_has_become_shorter_is_an_error(tmp_path):
    path = Path(write(tmp_path / "t", some_records(30)))
    source = TFRecordDataSource(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="t has changed since its source was created"):
        source[29]


def test_checksums_are_checked_without_google_crc32c(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    checksum.cache_clear()
    try:
        path = write(tmp_path / "t", some_records(20))
        assert checksum() is crc32c
        assert list(TFRecordDataSource(path)) == some_records(20)
        damage(path, 12)
        with pytest.raises(DataError, match="record 0, offset 0: the checksum of its bytes is wrong"):
            TFRecordDataSource(path)[0]
    finally:
        checksum.cache_clear()
