"""Every format read from a web server and from S3: the same as from this machine."""

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset
from headrace.sources import JsonLinesDataSource, ZarrDataSource, opening, writers
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.storage import test_remote, test_remote_s3
from tests.storage.test_remote import TWO
from tests.storage.test_remote_s3 import address

server, cache_folder, bucket = test_remote.server, test_remote.cache_folder, test_remote_s3.bucket

NUM_ROWS = 200
FORMATS = [
    "array_record",
    "parquet",
    "tfrecord",
    "tfrecord.gz",
    "jsonl",
    "jsonl.gz",
    "csv",
    "npy",
    "zarr.zip",
    "tar",
    "tar.gz",
]
WORDS = ["", "text", "wörd"]


def write(path, suffix):
    """A file, or a folder, of as many rows as there are."""
    rows = [{"x": i, "y": WORDS[i % 3] * (i % 50)} for i in range(NUM_ROWS)]
    records = [b"%d" % i * 50 for i in range(NUM_ROWS)]
    if suffix == "npy":
        np.save(path, np.arange(NUM_ROWS * 10).reshape(NUM_ROWS, 10))
    elif suffix == "zarr.zip":
        zarr = pytest.importorskip("zarr")
        with zarr.storage.ZipStore(path, mode="w") as store:
            zarr.create_array(store, data=np.arange(NUM_ROWS * 10).reshape(NUM_ROWS, 10), chunks=(100, 10))
    elif suffix == "csv":
        path.write_text("x,y\n" + "".join("{x},{y}\n".format(**row) for row in rows))
    elif suffix.startswith("jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    elif suffix.startswith("tar"):
        (plain,) = writers.write_tar(
            [{"bin": record, "cls": i} for i, record in enumerate(records)], path.parent / "p.tar"
        )
        content = Path(plain).read_bytes()
        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    elif suffix == "tfrecord.gz":
        (plain,) = writers.write_tfrecord(records, path.parent / "plain")
        path.write_bytes(gzip.compress(Path(plain).read_bytes()))
    else:
        writers.writer_of(str(path))(rows if suffix == "parquet" else records, path)


@pytest.fixture(params=["http", "s3"])
def upload(request):
    """Puts bytes under a name, and gives their address; the web server has faults, some of the time."""
    if request.param == "http":
        server = request.getfixturevalue("server")
        faults = [None, 503, "drop", None, "half", None, 429]
        server.fault = lambda number: faults[number % len(faults)]
        return lambda name, content: server.contents.update({name: content}) or server.url(name)
    bucket = request.getfixturevalue("bucket")
    return lambda name, content: bucket.put_object(Bucket="data", Key=name, Body=content) and address(bucket, name)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_the_same_from_far_away(upload, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path, suffix)
    open_source = ZarrDataSource if suffix == "zarr.zip" else opening.open
    far, near = open_source(upload(path.name, path.read_bytes())), open_source(path)
    elements = list(far)
    assert len(elements) == NUM_ROWS
    assert_equal(elements, list(near))
    if isinstance(far, IterDataset):
        assert_resumable(far.batch(7), max_outputs=5)
        return
    indices = np.random.default_rng(0).integers(0, NUM_ROWS, 100).tolist()
    shuffled = MapDataset.source(far)[:100].shuffle(seed=1)
    assert_block_law(shuffled)
    assert_equal([pickle.loads(pickle.dumps(far))[i] for i in indices[:5]], [near[i] for i in indices[:5]])
    assert_equal(list(shuffled), list(MapDataset.source(near)[:100].shuffle(seed=1)))


def test_a_zarr_folder_is_the_same_from_far_away(bucket, tmp_path):
    zarr = pytest.importorskip("zarr")
    array = np.arange(300).reshape(30, 10)  # few rows, since a chunk is asked for with each
    zarr.create_array(tmp_path / "a.zarr", data=array, chunks=(10, 10))
    for path in (tmp_path / "a.zarr").rglob("*"):
        if path.is_file():
            bucket.put_object(Bucket="data", Key=str(path.relative_to(tmp_path)), Body=path.read_bytes())
    far = ZarrDataSource(address(bucket, "a.zarr"))
    assert_equal(list(far), list(array))
    assert_block_law(MapDataset.source(far).shuffle(seed=1))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("suffix", ["array_record", "jsonl", "parquet"])
def test_two_workers_give_the_same_stream_from_far_away(upload, tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    write(path, suffix)
    ds = MapDataset.source(opening.open(upload(path.name, path.read_bytes()))).shuffle(seed=3).to_iter_dataset()
    with iter(ds.mp_prefetch(TWO)) as workers:
        assert_equal(list(workers), list(ds))


def test_files_are_looked_at_scanned_and_read_at_once(server):
    paths = []
    for i in range(12):
        server.contents[f"{i}.jsonl"] = b"%d\n" % i
        paths.append(server.url(f"{i}.jsonl"))
    server.together = 4
    source = JsonLinesDataSource(paths)
    assert server.most_at_once >= 4
    server.most_at_once = 0
    assert source.__getitems__(range(11, -1, -1)) == list(range(11, -1, -1))
    assert server.most_at_once >= 4
