"""The index of a TFRecord file: made once, and again when it is of another version of the file, or damaged."""

import os
import pickle

import pytest

from headrace.errors import DataError
from headrace.sources import tfrecord
from headrace.sources.tfrecord import TFRecordDataSource
from tests.sources.fixtures.tfrecords import some_records, write


@pytest.fixture
def scans(monkeypatch):
    """The files whose records were looked for."""
    seen, find = [], tfrecord.find_offsets
    monkeypatch.setattr(
        tfrecord, "find_offsets", lambda file, path, *rest: seen.append(path) or find(file, path, *rest)
    )
    return seen


def test_an_index_is_made_once(tmp_path, scans):
    path = write(tmp_path / "t", some_records(30))
    for _ in range(3):
        assert list(TFRecordDataSource(path)) == some_records(30)
    assert scans == [path]
    assert sorted(os.listdir(tmp_path)) == [".t.index", "t"]


def test_an_index_of_another_version_of_the_file_is_made_again(tmp_path, scans):
    path = write(tmp_path / "t", [b"12", b"3"])
    assert list(TFRecordDataSource(path)) == [b"12", b"3"]
    write(path, [b"1", b"23"])  # of the same size
    os.utime(path, ns=(1, 1))
    assert list(TFRecordDataSource(path)) == [b"1", b"23"]
    write(path, [b"1"])
    assert list(TFRecordDataSource(path)) == [b"1"]
    assert len(scans) == 3


@pytest.mark.parametrize(
    "change", [lambda d: d[:-1], lambda d: b"", lambda d: d[:60], lambda d: d[:-9] + b"\1" + d[-8:]]
)
def test_a_damaged_index_is_made_again(tmp_path, scans, change):
    path = write(tmp_path / "t", some_records(30))
    TFRecordDataSource(path)
    kept = tmp_path / ".t.index"
    kept.write_bytes(change(kept.read_bytes()))
    assert list(TFRecordDataSource(path)) == list(TFRecordDataSource(path)) == some_records(30)
    assert len(scans) == 2


def test_an_index_may_be_in_a_folder_of_its_own(tmp_path, scans):
    paths = [write(tmp_path / name, [name.encode()]) for name in "ab"]
    for _ in range(2):
        assert list(TFRecordDataSource(paths, index_dir=tmp_path / "new/indices")) == [b"a", b"b"]
    assert len(scans) == len(os.listdir(tmp_path / "new/indices")) == 2
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "new"]


def test_an_index_that_cannot_be_beside_its_file_is_in_the_cache(tmp_path, scans, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / ("t" * 252), [b"1"])  # its index would have too long a name
    for _ in range(2):
        assert list(TFRecordDataSource(path)) == [b"1"]
    assert len(scans) == len(os.listdir(tmp_path / "cache/tfrecord")) == 1


def test_an_index_that_can_be_nowhere_is_not_needed(tmp_path, scans):
    path, not_a_folder = write(tmp_path / "t", [b"1"]), write(tmp_path / "f", [])
    source = TFRecordDataSource(path, index_dir=not_a_folder)
    assert source[0] == pickle.loads(pickle.dumps(source))[0] == b"1"
    assert len(scans) == 1
    assert sorted(os.listdir(tmp_path)) == ["f", "t"]


def test_a_file_that_is_still_written_is_an_error(tmp_path, monkeypatch):
    path, find = write(tmp_path / "t", [b"1"]), tfrecord.find_offsets

    def find_while_it_is_written(file, path, *rest):
        found = find(file, path, *rest)
        write(path, [b"1", b"2"])
        return found

    monkeypatch.setattr(tfrecord, "find_offsets", find_while_it_is_written)
    with pytest.raises(DataError, match="t was modified while it was being indexed"):
        TFRecordDataSource(path)
