"""The index of lines: made once, kept, checked, shared, and gone back from."""

import os
import pickle
import stat
from pathlib import Path

import pytest

from headrace.errors import DataError
from headrace.sources import json_lines
from headrace.sources.json_lines import JsonLinesDataSource, TextLinesDataSource
from headrace.storage import sidecar
from tests.sources.test_json_lines import EXPECTED, as_lines, values, write, write_shards


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards")


def index_files(folder):
    return sorted(Path(folder).glob(".*.headrace-lines*"))


def scans(monkeypatch):
    """The files that are scanned from now on."""
    found, scan = [], json_lines.scan
    monkeypatch.setattr(json_lines, "scan", lambda file, path, *rest: found.append(path) or scan(file, path, *rest))
    return found


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_an_index_is_made_once_for_json_and_text(shards, monkeypatch, mapped_bytes):
    monkeypatch.setattr(sidecar, "MAPPED_BYTES", mapped_bytes)
    scanned = scans(monkeypatch)
    lengths = [len(kind(shards)) for kind in (JsonLinesDataSource, TextLinesDataSource, JsonLinesDataSource)]
    assert lengths == [271, 351, 271]
    assert sorted(scanned) == shards
    assert list(JsonLinesDataSource(shards)) == EXPECTED
    assert len(index_files(Path(shards[0]).parent)) == 4


def test_indexes_are_kept_in_a_folder_of_their_own(shards, tmp_path, monkeypatch):
    os.makedirs(tmp_path / "other")
    same_name = write(tmp_path / "other" / "0.jsonl", as_lines(values(3)))
    for _ in range(2):
        assert list(
            JsonLinesDataSource([*shards, same_name], index_dir=tmp_path / "new" / "indexes")
        ) == EXPECTED + values(3)
    assert len(index_files(tmp_path / "new" / "indexes")) == 5
    assert index_files(tmp_path / "other") == index_files(Path(shards[0]).parent) == []


@pytest.mark.parametrize("change", ["longer", "touched"])
def test_an_index_older_than_its_file_is_made_again(tmp_path, monkeypatch, change):
    path = write(tmp_path / "x", b"1\n2\n3\n")
    assert list(JsonLinesDataSource(path)) == [1, 2, 3]
    write(path, b"1\n2\n3\n4\n" if change == "longer" else b"11\n22\n")
    os.utime(path, ns=(10**18, 10**18))
    scanned = scans(monkeypatch)
    expected = [1, 2, 3, 4] if change == "longer" else [11, 22]
    assert list(JsonLinesDataSource(path)) == list(JsonLinesDataSource(path)) == expected
    assert scanned == [path]


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:20], lambda b: b[:-8], lambda b: b + b"12345678", lambda b: b"x" + b[1:]]
)
def test_a_damaged_index_is_made_again(tmp_path, monkeypatch, damage):
    path = write(tmp_path / "x", as_lines(values(30)) + b"\n")
    JsonLinesDataSource(path)
    (kept,) = index_files(tmp_path)
    kept.write_bytes(damage(kept.read_bytes()))
    scanned = scans(monkeypatch)
    assert list(JsonLinesDataSource(path)) == list(JsonLinesDataSource(path)) == values(30)
    assert scanned == [path]


def test_an_index_that_cannot_be_written_is_in_memory(tmp_path):
    path = write(tmp_path / "x", as_lines(values(30)))
    in_the_way = write(tmp_path / "file", b"")
    source = JsonLinesDataSource(path, index_dir=in_the_way)
    assert list(source) == list(pickle.loads(pickle.dumps(source))) == values(30)
    assert index_files(tmp_path) == []


def test_an_index_that_cannot_be_beside_its_file_is_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / ("x" * 250), as_lines(values(30)))
    scanned = scans(monkeypatch)
    for _ in range(2):
        assert list(JsonLinesDataSource(path)) == values(30)
    assert scanned == [path]
    assert len(index_files(tmp_path / "cache" / "lines")) == 1


def test_a_source_far_away_travels_as_addresses(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    fsspec.filesystem("memory").pipe("/travelling-lines", as_lines(values(2000)))
    source = JsonLinesDataSource("memory://travelling-lines")
    assert len(pickle.dumps(source)) < 1000
    scanned = scans(monkeypatch)
    assert pickle.loads(pickle.dumps(source))[1999] == JsonLinesDataSource(source.paths)[-1] == values(1, 1999)[0]
    assert scanned == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_no_error(tmp_path):
    path = write(tmp_path / "x", as_lines(values(30)))
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert list(JsonLinesDataSource(path)) == values(30)
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_half_an_index_never_has_its_name(tmp_path, monkeypatch):
    path = write(tmp_path / "x", as_lines(values(30)))

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", fail)
    assert list(JsonLinesDataSource(path)) == values(30)
    assert os.listdir(tmp_path) == ["x"]


def test_a_source_travels_as_paths(tmp_path):
    path = write(tmp_path / "x", as_lines(values(2000)))
    source = JsonLinesDataSource(path)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert repr(copy) == repr(source)
    assert copy[1999] == source[-1] == values(1, 1999)[0]
    (kept,) = index_files(tmp_path)
    kept.unlink()
    assert pickle.loads(pickled)[5] == values(1, 5)[0]
    write(path, b"1\n")
    with pytest.raises(DataError, match="x has changed since its source was created"):
        pickle.loads(pickled)[0]


@pytest.mark.parametrize("opened", [False, True])
def test_a_file_that_becomes_shorter_is_an_error(tmp_path, opened):
    path = write(tmp_path / "x", b"one\ntwo\nthree")
    source = TextLinesDataSource(path)
    assert not opened or source[2] == "three"
    os.truncate(path, 10)
    for _ in range(2):
        with pytest.raises(DataError, match="x has changed since its source was created. Recreate the source"):
            source[2]
    assert list(TextLinesDataSource(path)) == ["one", "two", "th"]


def test_the_repr_tells_files_apart(shards, tmp_path):
    reprs = [
        repr(kind(paths))
        for kind in (JsonLinesDataSource, TextLinesDataSource)
        for paths in (shards, shards[:1], shards[2])
    ]
    assert len(set(reprs)) == 6
    assert reprs[0] == f"JsonLinesDataSource({str(shards[0])!r}, num_files=4, num_lines=271)"
    assert reprs[0] == repr(JsonLinesDataSource(shards, index_dir=tmp_path))
