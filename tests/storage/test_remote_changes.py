"""Files that are replaced while they are open: an error, and never a mixture of the two."""

import contextlib
import json
import os
import pickle
import zipfile

import pytest

from headrace import MapDataset
from headrace.errors import DataError
from headrace.sources import JsonLinesDataSource, JsonLinesIterDataset
from headrace.storage import files, remote
from tests.storage import test_remote, test_remote_s3
from tests.storage.test_remote import RECORD_BYTES, TWO, FixedRecords, some_bytes
from tests.storage.test_remote_s3 import address

server, cache_folder, bucket = test_remote.server, test_remote.cache_folder, test_remote_s3.bucket

OLD = some_bytes(2_000_000)
REPLACED = "was replaced while it was open: its server reported 2000000 bytes and ETag=.*, and now reports .*Recreate the source"


@pytest.fixture(params=["http", "s3"])
def replace(request):
    """Puts bytes where a file is, and gives its address."""
    if request.param == "s3":
        bucket = request.getfixturevalue("bucket")
        return lambda content: bucket.put_object(Bucket="data", Key="a", Body=content) and address(bucket, "a")
    server = request.getfixturevalue("server")

    def put(content):
        server.contents["a"], server.version = content, str(hash(content))
        return server.url("a")

    return put


@pytest.mark.parametrize("num_bytes", [2_000_000, 1_000_000, 3_000_000, 10])
def test_a_file_that_is_replaced_is_an_error_at_the_next_read(replace, num_bytes):
    file = files.open_file(replace(OLD))
    assert file.read(0, 1000) == OLD[:1000]
    replace(some_bytes(num_bytes, seed=1))
    for _ in range(2):
        with pytest.raises(DataError, match=REPLACED):
            file.read(1_200_000, 500_000)
    assert file.read(0, 1000) == OLD[:1000]  # as the cache has it


def test_the_cache_keeps_nothing_of_the_new_file_under_the_old_name(replace):
    path = replace(OLD)
    file = files.open_file(path)
    new = some_bytes(2_000_000, seed=1)
    replace(new)
    with pytest.raises(DataError, match=REPLACED):
        file.read(0, 1000)
    replace(OLD)
    assert files.open_file(path).read(0, 2_000_000) == OLD
    replace(new)
    assert files.open_file(path).read(0, 2_000_000) == new


def test_a_file_that_is_replaced_between_two_requests_of_one_read_is_an_error(server, monkeypatch):
    monkeypatch.setattr(remote, "GROUP_BLOCKS", 2)
    server.contents["a"] = OLD
    file = files.open_file(server.url("a"))

    def fault(number):
        if server.requests[-1][0] == "GET" and server.version == "1":
            server.contents["a"], server.version = some_bytes(2_000_000, seed=1), "2"

    server.fault = fault
    with pytest.raises(DataError, match=REPLACED):
        file.read_many([(0, 10), (700_000, 10), (1_500_000, 10)])


def test_a_copy_of_a_file_that_is_replaced_is_not_kept(server, cache_folder):
    server.contents["a"], server.ranges = OLD, False
    file = files.open_file(server.url("a"))
    server.contents["a"], server.version = some_bytes(2_000_000, seed=1), "2"
    with pytest.raises(DataError, match=REPLACED):
        file.read(0, 10)
    with open(remote.local_copy(server.url("a")), "rb") as copy:
        assert copy.read() == server.contents["a"]


@pytest.mark.parametrize("kind", ["local", "http"])
def test_a_file_in_an_archive_that_is_replaced_is_read_anew(server, tmp_path, kind):
    outer = str(tmp_path / "x.zip") if kind == "local" else server.url("x.zip")
    for number, content in enumerate([b"old", b"new", some_bytes(1000)]):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("a", content)
        os.utime(tmp_path / "x.zip", (number, number))
        server.contents["x.zip"], server.version = (tmp_path / "x.zip").read_bytes(), str(number)
        assert files.open_file(f"zip://a::{outer}").read(0, 2000) == content


def test_a_stream_of_a_file_that_is_replaced_is_an_error(replace):
    lines = [json.dumps({"id": i, "text": "x" * 1000}) for i in range(2000)]
    path = replace("\n".join(lines).encode())
    with contextlib.closing(iter(JsonLinesIterDataset(path))) as iterator:
        assert next(iterator)["id"] == 0
        replace("\n".join(lines[::-1]).encode())
        found = []
        with pytest.raises(DataError, match="was replaced while it was open"):
            found.extend(iterator)
    assert [value["id"] for value in found] == list(range(1, len(found) + 1))


def test_a_file_that_is_opened_again_must_be_the_same(replace):
    pool = files.Pool()
    path = replace(OLD)
    pool.get(path)
    travelled = pickle.dumps(pool)
    replace(some_bytes(2_000_000, seed=1))
    pool.close()
    for other in (pool, pickle.loads(travelled)):
        with pytest.raises(DataError, match="has changed since its source was created. Recreate the source"):
            other.get(path)


def test_a_source_of_lines_that_are_replaced_is_an_error(replace):
    path = replace(b"".join(b"%07d\n" % i for i in range(1000, 2000)))
    source = JsonLinesDataSource(path)
    travelled = pickle.dumps(source)
    replace(b"".join(b"%07d\n" % i for i in range(2000, 3000)))
    for other in (source, pickle.loads(travelled)):
        with pytest.raises(DataError, match="has changed since its source was created"):
            other[3]


def test_workers_notice_too(server):
    server.contents["a"] = OLD
    source = FixedRecords(server.url("a"))
    assert source[0] == OLD[:RECORD_BYTES]
    ds = MapDataset.source(source).to_iter_dataset().mp_prefetch(TWO)
    server.contents["a"], server.version = some_bytes(2_000_000, seed=1), "2"
    with contextlib.closing(iter(ds)) as iterator, pytest.raises(DataError, match="has changed|was replaced"):
        list(iterator)
