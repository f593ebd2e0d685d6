"""The cache of pieces of far-away files: what it saves, what it holds, and who shares it."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import PipelineError, RemoteError
from headrace.storage import files, remote
from headrace.storage.remote import LOCK, BlockCache
from tests.storage import test_remote
from tests.storage.test_remote import some_bytes

server, cache_folder = test_remote.server, test_remote.cache_folder


def kept_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != LOCK)


def test_what_was_read_is_not_fetched_again_until_the_file_changes(server, cache_folder):
    content = server.contents["a"] = some_bytes(2_000_000)
    assert files.open_file(server.url("a")).read(0, 2_000_000) == content
    server.requests.clear()
    assert files.open_file(server.url("a")).read(0, 2_000_000) == content
    assert [command for command, _, _ in server.requests] == ["HEAD"]
    server.contents["a"], server.version = some_bytes(2_000_000, seed=1), "2"
    assert files.open_file(server.url("a")).read(0, 2_000_000) == server.contents["a"]


def test_a_damaged_piece_in_the_cache_is_fetched_again(server, cache_folder):
    content = server.contents["a"] = some_bytes(300_000)
    files.open_file(server.url("a")).read(0, 300_000)
    for path in cache_folder.rglob("*"):
        if path.is_file():
            path.write_bytes(b"short")
    assert files.open_file(server.url("a")).read(0, 300_000) == content


def test_the_cache_never_holds_more_than_it_may(server, cache_folder, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "1000000")
    content = server.contents["a"] = some_bytes(5_000_000)
    file = files.open_file(server.url("a"))
    for offset in range(0, 5_000_000, 200_000):
        assert file.read(offset, 1000) == content[offset : offset + 1000]
        assert kept_bytes(cache_folder) <= 1_000_000
    assert kept_bytes(cache_folder) > 400_000


def test_the_least_recently_used_goes_first(tmp_path):
    cache = BlockCache(str(tmp_path), 100)
    for number in range(10):
        cache.put(f"f/{number}", b"0123456789")
        os.utime(tmp_path / "f" / str(number), (number, number))
    assert cache.get("f/0", 10) == b"0123456789"
    cache.put("f/new", b"0123456789")
    assert [cache.get(f"f/{number}", 10) is not None for number in range(3)] == [True, False, True]
    assert cache.get("f/new", 10) is not None


def test_what_others_keep_counts_too(tmp_path):
    first, second = BlockCache(str(tmp_path), 1600), BlockCache(str(tmp_path), 1600)
    for number in range(40):
        first.put(f"a/{number}", bytes(100))
        second.put(f"b/{number}", bytes(100))
        assert kept_bytes(tmp_path) <= 1600


PUT = """
import sys
from headrace.storage.remote import BlockCache

folder, mark = sys.argv[1:]
cache = BlockCache(folder, 100_000)
sys.stdin.readline()
for number in range(150):
    cache.put(f"{mark}{number % 7}/{number}", mark.encode() * (1000 + 37 * number % 5000))
    piece = cache.get(f"{mark}{number % 7}/{number}", 1000 + 37 * number % 5000)
    assert piece in (None, mark.encode() * (1000 + 37 * number % 5000))
"""


def test_processes_that_share_a_folder_keep_its_bound(tmp_path):
    putters = [
        subprocess.Popen([sys.executable, "-c", PUT, str(tmp_path), mark], stdin=subprocess.PIPE) for mark in "abc"
    ]
    try:
        for putter in putters:
            putter.stdin.write(b"go\n")
            putter.stdin.flush()
        most = 0
        while any(putter.poll() is None for putter in putters):
            most = max(most, sum(_sizes(tmp_path)))
        assert [putter.wait(60) for putter in putters] == [0, 0, 0]
    finally:
        for putter in putters:
            putter.kill()
            putter.wait(60)
            putter.stdin.close()
    assert 50_000 < kept_bytes(tmp_path) <= 100_000
    assert most <= 100_000


def _sizes(folder):
    """The sizes of pieces that are there at one time: nobody may make room or give names meanwhile."""
    if not (folder / LOCK).exists():
        return []
    with BlockCache(str(folder), 100_000)._locked():
        return [path.stat().st_size for path in folder.rglob("*/*")]


def test_what_is_being_written_counts_with_all_of_its_bytes(tmp_path):
    cache = BlockCache(str(tmp_path), 1000)
    for number in range(9):
        cache.put(f"f/{number}", bytes(100))

    def make(partial):
        BlockCache(str(tmp_path), 1000).put("f/new", bytes(100))  # while this one has none of its own yet
        assert kept_bytes(tmp_path) <= 1000 - 500
        with open(partial, "wb") as file:
            file.write(bytes(500))

    cache.keep("g/0", 500, make)
    assert kept_bytes(tmp_path) <= 1000
    assert cache.get("f/new", 100) is not None


def test_threads_that_share_a_folder_keep_its_bound(tmp_path):
    cache = BlockCache(str(tmp_path), 20_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: cache.put(f"{number % 5}/{number}", bytes(1000 + number)), range(200)))
    assert 10_000 < kept_bytes(tmp_path) <= 20_000


@pytest.mark.parametrize("damage", [b"", b"not a number", b"99999999999999999999"])
def test_a_sum_that_is_wrong_is_made_right(tmp_path, damage):
    cache = BlockCache(str(tmp_path), 1000)
    for number in range(5):
        cache.put(f"f/{number}", bytes(100))
    (tmp_path / LOCK).write_bytes(damage)
    for number in range(5, 8):
        cache.put(f"f/{number}", bytes(100))
    assert kept_bytes(tmp_path) == 800


def test_a_file_whose_version_is_not_told_is_not_taken_from_an_older_process(server, cache_folder):
    server.version = None
    content = server.contents["a"] = some_bytes(1000)
    read = "import sys; from headrace.storage import files; print(files.open_file(sys.argv[1]).read(0, 1000).hex())"
    for seed in (0, 1):
        content = server.contents["a"] = some_bytes(1000, seed=seed)
        found = subprocess.run([sys.executable, "-c", read, server.url("a")], capture_output=True, check=True)
        assert bytes.fromhex(found.stdout.decode()) == content


def test_a_copy_that_others_removed_to_make_room_says_so(tmp_path):
    with pytest.raises(RemoteError, match="holds at most 100 bytes, too few for what is being copied to it: raise"):
        BlockCache(str(tmp_path), 100).keep("f/0", 10, os.unlink)
    assert [path.name for path in tmp_path.rglob("*")] == [LOCK]


def test_a_cache_that_cannot_be_written_changes_nothing(server, monkeypatch, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    content = server.contents["a"] = some_bytes(1_000_000)
    assert files.open_file(server.url("a")).read(0, 1_000_000) == content


def test_a_setting_that_is_no_number_is_named(server, monkeypatch):
    server.contents["a"] = b"abc"
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "much")
    with pytest.raises(PipelineError, match="HEADRACE_CACHE_BYTES must be a number of bytes; got 'much'"):
        files.open_file(server.url("a"))


def test_a_whole_copy_is_made_once_in_pieces_and_keeps_its_name(server, monkeypatch, cache_folder):
    content = server.contents["dir/a.bagz"] = some_bytes(5_000_000)
    faults = [None, 503, None, "half"]
    server.fault = lambda number: faults[number % len(faults)]
    path = remote.local_copy(server.url("dir/a.bagz"))
    assert path.endswith("/a.bagz")
    with open(path, "rb") as file:
        assert file.read() == content
    server.requests.clear()
    server.fault = lambda number: None
    assert remote.local_copy(server.url("dir/a.bagz")) == path
    assert [command for command, _, _ in server.requests] == ["HEAD"]
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", "1000")
    with pytest.raises(
        RemoteError, match="has 5000000 bytes and must be copied.*holds 1000: raise HEADRACE_CACHE_BYTES"
    ):
        remote.local_copy(server.url("dir/a.bagz"))
