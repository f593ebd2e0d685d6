"""What is kept on disk: for this user alone, and not used where others may have written it."""

import os
import stat

import pytest

from headrace import MapDataset
from headrace.errors import CacheWarning, RemoteError
from headrace.sources import JsonLinesDataSource, TFRecordDataSource
from headrace.sources.writers import write_json_lines, write_tfrecord
from headrace.storage import files, remote
from headrace.storage.remote import BlockCache
from tests.storage import test_remote
from tests.storage.test_remote import some_bytes

server, cache_folder = test_remote.server, test_remote.cache_folder
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files to another user")
ANOTHER = 12345


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_made_for_this_user_alone(server, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "new" / "cache"))
    before = os.umask(0)
    try:
        server.contents["a"] = some_bytes(300_000)
        files.open_file(server.url("a")).read(0, 300_000)
        write_json_lines([{"x": 1}], tmp_path / "a.jsonl")
        JsonLinesDataSource(tmp_path / "a.jsonl", index_dir=tmp_path / "index")
    finally:
        os.umask(before)
    found = [*(tmp_path / "new").rglob("*"), *(tmp_path / "index").rglob("*"), tmp_path / "new", tmp_path / "index"]
    assert len(found) > 6
    for path in found:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("which", ["remote", "."])
def test_a_cache_that_others_may_write_to_is_not_used(server, cache_folder, which):
    content = server.contents["a"] = some_bytes(300_000)
    files.open_file(server.url("a")).read(0, 300_000)
    (piece,) = cache_folder.rglob("0")
    piece.write_bytes(bytes(len(piece.read_bytes())))  # what another user would like to be read
    (cache_folder.parent / which).chmod(0o777)
    with pytest.warns(CacheWarning, match=r"other users can write to it \(mode 777\).*chmod go-w.*HEADRACE_CACHE"):
        assert files.open_file(server.url("a")).read(0, 300_000) == content
    with (
        pytest.warns(CacheWarning, match="Refusing to store data"),
        pytest.raises(RemoteError, match="must be copied whole to the cache.*Refusing to store data"),
    ):
        remote.local_copy(server.url("a"))


def test_a_cache_in_a_folder_as_tmp_is_used(server, cache_folder):
    cache_folder.parent.chmod(0o1777)
    content = server.contents["a"] = some_bytes(300_000)
    for _ in range(2):
        assert files.open_file(server.url("a")).read(0, 300_000) == content
    assert [command for command, _, _ in server.requests].count("GET") == 1


@needs_root
def test_a_cache_of_another_user_is_not_used(server, cache_folder):
    content = server.contents["a"] = some_bytes(300_000)
    cache_folder.mkdir(mode=0o700)
    os.chown(cache_folder, ANOTHER, ANOTHER)
    with pytest.warns(CacheWarning, match="it belongs to user 12345, but this process runs as user 0.*HEADRACE_CACHE"):
        assert files.open_file(server.url("a")).read(0, 300_000) == content
    assert not list(cache_folder.iterdir())


@needs_root
def test_a_piece_of_another_user_is_fetched_anew(tmp_path):
    cache = BlockCache(str(tmp_path / "cache"), 1000)
    cache.put("a/0", b"good")
    piece = tmp_path / "cache" / "a" / "0"
    piece.write_bytes(b"evil")
    os.chown(piece, ANOTHER, ANOTHER)
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        assert cache.get("a/0", 4) is None
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        cache.put("a/0", b"good")
    assert cache.get("a/0", 4) == b"good"


KINDS = {"a.tfrecord": TFRecordDataSource, "a.jsonl": JsonLinesDataSource}


@pytest.fixture(params=KINDS)
def data(request, tmp_path):
    """A file, its source's class, and where its index is."""
    path = tmp_path / "data" / request.param
    write_tfrecord([b"1"] * 9, tmp_path / "data" / "a.tfrecord")
    write_json_lines([{"x": 1}] * 9, tmp_path / "data" / "a.jsonl")
    beside = path.parent / {"a.tfrecord": ".a.tfrecord.index", "a.jsonl": ".a.jsonl.headrace-lines"}[request.param]
    return path, KINDS[request.param], beside


def test_an_index_beside_its_file_may_be_read_by_whoever_reads_the_file(data):
    path, kind, beside = data
    path.chmod(0o664)
    kind(path)
    assert mode(beside) == 0o644
    beside.chmod(0o664)  # others may write it, and the file as well
    assert len(kind(path)) == 9


def test_an_index_that_others_may_write_is_made_anew(data, tmp_path):
    path, kind, beside = data
    kind(path)
    path.chmod(0o644)
    beside.chmod(0o666)
    with pytest.warns(CacheWarning, match=r"and recomputing its contents: other users can write"):
        assert len(kind(path)) == 9
    folder = tmp_path / "index"
    kind(path, index_dir=folder)
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="Refusing to store data"):
        assert len(kind(path, index_dir=folder)) == 9


@needs_root
def test_an_index_of_another_user_is_used_only_if_the_file_is_theirs(data):
    path, kind, beside = data
    kind(path)
    os.chown(beside, ANOTHER, ANOTHER)
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        assert len(kind(path)) == 9
    assert beside.stat().st_uid == ANOTHER
    os.chown(path, ANOTHER, ANOTHER)
    assert len(kind(path)) == 9


def test_a_fifo_in_place_of_an_index_is_not_waited_for(data):
    path, kind, beside = data
    os.mkfifo(beside)
    with pytest.warns(CacheWarning, match="it is not a file"):
        assert len(kind(path)) == 9


@pytest.mark.parametrize("name", [".a.jsonl.job", ".a.jsonl.partial"])
def test_writing_does_not_follow_links_of_others(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(victim)
    if name.endswith("job"):
        with pytest.raises(OSError, match="which others may have created or changed: it is a link"):
            write_json_lines([{"x": 1}], tmp_path / "data" / "a.jsonl")
    else:
        write_json_lines([{"x": 1}], tmp_path / "data" / "a.jsonl")
        assert len(JsonLinesDataSource(tmp_path / "data" / "a.jsonl")) == 1
    assert victim.read_text() == "precious"


def test_a_job_that_others_may_have_changed_is_refused(tmp_path):
    (tmp_path / ".a.jsonl.job").touch()
    (tmp_path / ".a.jsonl.job").chmod(0o666)
    with pytest.raises(OSError, match=r"Refusing to use.*mode 666"):
        write_json_lines([{"x": 1}], tmp_path / "a.jsonl", job="1")


def test_the_list_of_bad_records_is_private_and_no_link(tmp_path, caplog):
    def run():
        ds = MapDataset.range(3).map(lambda x: 1 // (x - 1)).on_error("skip", quarantine=tmp_path / "bad.jsonl")
        assert len(list(ds.to_iter_dataset())) == 2

    run()
    assert mode(tmp_path / "bad.jsonl") == 0o600
    (tmp_path / "bad.jsonl").rename(tmp_path / "victim")
    (tmp_path / "bad.jsonl").symlink_to(tmp_path / "victim")
    before = (tmp_path / "victim").read_text()
    caplog.clear()
    run()
    assert (tmp_path / "victim").read_text() == before
    assert "Could not list" in caplog.text
    assert "it is a link" in caplog.text
