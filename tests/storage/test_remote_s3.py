"""Objects of a real S3 server on this machine."""

import contextlib
import pickle

import pytest

from headrace import MapDataset
from headrace.errors import DataError, RemoteError
from headrace.sources import Address
from headrace.storage import files, remote
from headrace.storage.remote import RemoteFile
from headrace.testing import assert_block_law, assert_resumable
from tests.storage import test_remote
from tests.storage.test_remote import RECORD_BYTES, TWO, FixedRecords, some_bytes

pytest.importorskip("fsspec")
cache_folder = test_remote.cache_folder


@pytest.fixture(scope="module")
def bucket():
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket="data")
    client.endpoint = endpoint
    yield client
    client.close()
    server.stop()


def address(bucket, name):
    return Address(f"s3://data/{name}", key="k", secret="s", endpoint_url=bucket.endpoint)


def test_an_address_keeps_its_options_when_it_travels(bucket):
    path = address(bucket, "a")
    again = pickle.loads(pickle.dumps(path))
    assert (again, again.options, repr(again)) == (path, path.options, "'s3://data/a'")


def test_s3_objects_and_patterns(bucket):
    contents = {f"p/train-{i}.bin": some_bytes(400_000 + i, seed=i) for i in range(3)}
    for name, content in contents.items():
        bucket.put_object(Bucket="data", Key=name, Body=content)
    found = files.expand(address(bucket, "p/train-*.bin"), what="Files")
    assert found == [f"s3://data/{name}" for name in contents]
    for path, content in zip(found, contents.values(), strict=True):
        assert files.open_file(path).read(0, 1_000_000) == content
        with files.open_stream(path) as stream:
            assert stream.read() == content
    with pytest.raises(FileNotFoundError, match="s3://data/p/missing"):
        files.expand([found[0], address(bucket, "p/missing")], what="Files")


def test_an_s3_server_that_is_down_is_an_error_with_the_address(monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    path = Address("s3://data/a", key="k", secret="s", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(
        RemoteError, match=r"Looking at s3://data/a failed 2 times in \d+ s, most recently with .*Is the server up"
    ):
        files.open_file(path)


def test_an_s3_source_obeys_the_laws_with_and_without_workers(bucket):
    bucket.put_object(Bucket="data", Key="records", Body=some_bytes(300 * RECORD_BYTES))
    ds = MapDataset.source(FixedRecords(address(bucket, "records")))
    assert_block_law(ds)
    stream = ds.shuffle(seed=1).batch(20).to_iter_dataset()
    assert_resumable(stream, max_outputs=6)
    inline = [list(batch) for batch in stream]
    with contextlib.closing(iter(stream.mp_prefetch(TWO))) as workers:
        assert [list(batch) for batch in workers] == inline


def test_a_rewritten_object_is_read_anew(bucket):
    for seed in (1, 2):
        content = some_bytes(300_000, seed=seed)
        bucket.put_object(Bucket="data", Key="changing", Body=content)
        assert RemoteFile(address(bucket, "changing")).read(0, 300_000) == content


def test_a_listing_does_not_hide_that_an_object_was_rewritten(bucket):
    old, new = some_bytes(300_001, seed=1), some_bytes(300_002, seed=2)
    bucket.put_object(Bucket="data", Key="listed/changing", Body=old)
    (path,) = files.expand(address(bucket, "listed/*"), what="Files")
    file = RemoteFile(path)
    assert file.read(0, 1000) == old[:1000]
    bucket.put_object(Bucket="data", Key="listed/changing", Body=new)
    assert RemoteFile(path).read(0, 400_000) == new
    with pytest.raises(DataError, match="was replaced while it was open"):
        file.read(290_000, 1000)


def test_options_may_come_from_the_environment(bucket, monkeypatch):
    bucket.put_object(Bucket="data", Key="env", Body=b"abc")
    for name, value in (
        ("AWS_ENDPOINT_URL", bucket.endpoint),
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
    ):
        monkeypatch.setenv(name, value)
    path = Address("s3://data/env", default_block_size=123_456)  # nobody else's driver, which fsspec would take again
    assert files.open_file(path).read(0, 10) == b"abc"
