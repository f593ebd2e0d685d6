"""TFRecord files and `tf.train.Example`, against files that TensorFlow wrote (`fixtures/make_tfrecord.py`)."""

import contextlib
import gzip
import importlib.util
import os
import pickle
import shutil
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import DataError, PipelineError, StateError
from headrace.sources import tfrecord
from headrace.sources.crc32c import checksum, crc32c, masked
from headrace.sources.tf_example import (
    ExampleDataSource,
    ExampleParser,
    Feature,
    parse_example,
    parse_sequence_example,
)
from headrace.sources.tfrecord import TFRecordDataSource, TFRecordIterDataset
from headrace.testing import assert_block_law, assert_equal, assert_resumable

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
ODD_NAMES = ["with space", "ünï-字", "a[1]", "*?#%20", 'it\'s "so"', "new\nline", os.fsdecode(b"not-\xff-unicode")]
FIXTURES = Path(__file__).parent / "fixtures"
NUM_FIXTURES = 40
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")


def features_of(i):
    """The features of example `i` of the fixtures: two orders, numbers of all widths, and sometimes one more."""
    named = {
        "id": [(-1) ** i * (i << i)],
        "x": [i / 4 + j for j in range(4)],
        "name": [f"näme {i}".encode() + b"\0" * (i % 3)],
        "tags": [j * 50 for j in range(1 + i % 7)],
        "pair": [b"", b"p" * i * 9],
    }
    if i % 5 == 0:
        named["more"] = [float(i)]
    return named if i % 3 else dict(reversed(named.items()))


def sequence_of(i):
    """The context and the feature lists of sequence `i` of the fixtures."""
    lists = {"frames": [[float(i + j), -0.5] for j in range(i % 4)], "words": [[b"w", b"%d" % j] for j in range(3)]}
    return {"length": [i % 4], "key": [b"k%d" % i]}, lists


FEATURES = {
    "id": np.int64,
    "x": Feature(np.float32, (2, 2)),
    "name": bytes,
    "tags": Feature(np.int64, None),
    "pair": Feature(bytes, (2,)),
    "more": Feature(np.float32, default=-1),
}


def expected_of(i):
    """What a parser of `FEATURES` makes of example `i`."""
    named = features_of(i)
    pair = np.empty(2, object)
    pair[:] = named["pair"]
    return {
        "id": np.int64(named["id"][0]),
        "x": np.array(named["x"], np.float32).reshape(2, 2),
        "name": named["name"][0],
        "tags": np.array(named["tags"]),
        "pair": pair,
        "more": np.float32(named.get("more", [-1])[0]),
    }


def as_parsed(values):
    """A list of Python values as `parse_example` gives them."""
    if values and isinstance(values[0], bytes):
        return values
    return np.array(values, np.float32 if values and isinstance(values[0], float) else np.int64)


@pytest.fixture
def copied(tmp_path):
    """Copies a fixture to where an index may be written beside it."""
    return lambda name: shutil.copy(FIXTURES / f"{name}.tfrecord", tmp_path)


def write(path, records):
    with open(path, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            for piece in (length, record):
                file.write(piece + struct.pack("<I", masked(crc32c(piece))))
    return str(path)


def some_records(count, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.bytes(int(n)) for n in rng.integers(0, 200, count)]


def damage(path, offset, byte=b"\xaa"):
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:offset] + byte + data[offset + 1 :])


# ------------------------------------------------------------------------------------------- random access


def test_records_that_tensorflow_wrote_are_read_at_random_and_in_order(copied):
    path = copied("examples")
    source, stream = TFRecordDataSource(path), list(TFRecordIterDataset(path, verify_data=True))
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


def test_empty_files_have_no_records(tmp_path):
    empty, one = write(tmp_path / "e", []), write(tmp_path / "o", [b""])
    assert len(TFRecordDataSource(empty)) == 0
    assert list(TFRecordDataSource([empty, one, empty])) == [b""]
    with pytest.raises(IndexError, match="Index 0 is out of range for 0 records"):
        TFRecordDataSource(empty)[0]


@pytest.mark.parametrize("index", [500, -501, 10**12])
def test_an_index_out_of_range_is_an_error(tmp_path, index):
    source = TFRecordDataSource(write(tmp_path / "t", some_records(500)))
    for read in (source.__getitem__, lambda i: source.__getitems__([0, i])):
        with pytest.raises(IndexError, match=f"Index {index} is out of range for 500 records"):
            read(index)
    with pytest.raises(TypeError):
        source[1.0]  # type: ignore[index]
    with pytest.raises(TypeError, match="Indices must be ints; got float64"):
        source.__getitems__([1.0])  # type: ignore[list-item]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_files_may_have_any_name(tmp_path, name):
    path = write(tmp_path / name, [b"1", b"22"])
    for _ in range(2):  # without an index, and with one
        assert list(TFRecordDataSource(path)) == [b"1", b"22"]
    assert len(os.listdir(tmp_path)) == 2
    assert len(repr(TFRecordDataSource(path))) < 150


def test_a_pattern_finds_the_files_and_not_their_indices(tmp_path):
    for i in (2, 0, 1):
        write(tmp_path / f"t.tfrecord-{i}", [b"%d" % i])
    for _ in range(2):
        assert list(TFRecordDataSource(str(tmp_path / "*"))) == [b"0", b"1", b"2"]
        assert list(TFRecordDataSource(str(tmp_path / "t.tfrecord*"))) == [b"0", b"1", b"2"]


def test_all_missing_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="2 of 3 paths of TFRecord files match no file.*x.*y"):
        TFRecordDataSource([tmp_path / "x", write(tmp_path / "t", [b"1"]), tmp_path / "y"])


def test_the_laws_hold(tmp_path):
    paths = [write(tmp_path / f"{i}", some_records(20 * i, i)) for i in range(4)]
    ds = MapDataset.source(TFRecordDataSource(paths)).shuffle(seed=1)
    assert_block_law(ds.map(len))
    assert_resumable(ds.to_iter_dataset().batch(7, batch_fn=list))


def test_records_are_the_same_with_workers(tmp_path):
    paths = [write(tmp_path / f"{i}", some_records(20 * i, i)) for i in range(4)]
    ds = (
        MapDataset.source(TFRecordDataSource(paths))
        .shuffle(seed=1)
        .to_iter_dataset()
        .filter(len)
        .batch(7, batch_fn=list)
    )
    inline, workers = iter(ds), iter(ds.mp_prefetch(TWO))
    for a, b in zip(inline, workers, strict=True):
        assert_equal(a, b)
        assert inline.get_state() == workers.get_state()
    workers.close()


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
    with pytest.raises(DataError, match="t is not the file that it was when the source was made"):
        other[0]


def test_threads_share_a_source(tmp_path):
    records = some_records(400)
    source = TFRecordDataSource([write(tmp_path / "a", records[:100]), write(tmp_path / "b", records[100:])])
    start = threading.Barrier(8)

    def read(seed):
        start.wait(10)
        for i in range(20):
            indices = np.random.default_rng([seed, i]).integers(0, 400, 20).tolist()
            assert source.__getitems__(indices) == [records[i] for i in indices]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    records = some_records(50)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/tfrecord-test/t", Path(write(tmp_path / "t", records)).read_bytes())
    source = TFRecordDataSource("memory://tfrecord-test/t")
    assert source.__getitems__([40, 3, 3]) == [records[40], records[3], records[3]]
    assert list(TFRecordIterDataset("memory://tfrecord-test/t")) == records
    assert len(os.listdir(tmp_path / "cache/headrace/tfrecord")) == 1
    memory.rm("/tfrecord-test", recursive=True)


# --------------------------------------------------------------------------------------------------- index


@pytest.fixture
def scans(monkeypatch):
    """The files whose records were looked for."""
    seen, find = [], tfrecord._find_offsets

    def watched(path, size):
        seen.append(path)
        return find(path, size)

    monkeypatch.setattr(tfrecord, "_find_offsets", watched)
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
    index = tmp_path / ".t.index"
    index.write_bytes(change(index.read_bytes()))
    assert list(TFRecordDataSource(path)) == list(TFRecordDataSource(path)) == some_records(30)
    assert len(scans) == 2


def test_an_index_may_be_in_a_folder_of_its_own(tmp_path, scans):
    paths = [write(tmp_path / name, [name.encode()]) for name in "ab"]
    for _ in range(2):
        assert list(TFRecordDataSource(paths, index_dir=tmp_path / "new/indices")) == [b"a", b"b"]
    assert len(scans) == len(os.listdir(tmp_path / "new/indices")) == 2
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "new"]


def test_an_index_that_cannot_be_beside_its_file_is_in_the_cache(tmp_path, scans, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / ("t" * 252), [b"1"])  # its index would have too long a name
    for _ in range(2):
        assert list(TFRecordDataSource(path)) == [b"1"]
    assert len(scans) == len(os.listdir(tmp_path / "cache/headrace/tfrecord")) == 1


def test_an_index_that_can_be_nowhere_is_not_needed(tmp_path, scans):
    path, not_a_folder = write(tmp_path / "t", [b"1"]), write(tmp_path / "f", [])
    source = TFRecordDataSource(path, index_dir=not_a_folder)
    assert source[0] == pickle.loads(pickle.dumps(source))[0] == b"1"
    assert len(scans) == 2
    assert sorted(os.listdir(tmp_path)) == ["f", "t"]


def test_a_file_that_is_still_written_is_an_error(tmp_path, monkeypatch):
    path, find = write(tmp_path / "t", [b"1"]), tfrecord._find_offsets

    def find_while_it_is_written(path, size):
        found = find(path, size)
        write(path, [b"1", b"2"])
        return found

    monkeypatch.setattr(tfrecord, "_find_offsets", find_while_it_is_written)
    with pytest.raises(DataError, match="t was written to while its records were looked for"):
        TFRecordDataSource(path)


# -------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-1], "record 2, offset 42: it has 1000 bytes, and the file ends 1 bytes too early"),
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


def test_a_file_that_has_become_shorter_is_an_error(tmp_path):
    path = Path(write(tmp_path / "t", some_records(30)))
    source = TFRecordDataSource(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="t is not the file that it was"):
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


# --------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_compressed_files_that_tensorflow_wrote_are_streams(copied, kind):
    path = copied(f"examples-{kind}")
    ds = TFRecordIterDataset(path, verify_data=True)
    assert list(ds) == list(TFRecordIterDataset(FIXTURES / "examples.tfrecord"))
    assert_resumable(ds)
    with pytest.raises(
        PipelineError, match="is compressed, so its records cannot be read at random.*TFRecordIterDataset"
    ):
        TFRecordDataSource(path)


PACKERS = {"gzip": gzip.compress, "zlib": zlib.compress}


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("read_bytes", [50, 1 << 18])
def test_compressed_streams_are_what_was_compressed(tmp_path, monkeypatch, pack, read_bytes):
    monkeypatch.setattr(tfrecord, "READ_BYTES", read_bytes)
    records = [b"", *some_records(60), bytes(100_000), np.random.default_rng(0).bytes(30_000)]
    path = Path(write(tmp_path / "t", records))
    whole = path.read_bytes()
    path.write_bytes(PACKERS[pack](whole))
    ds = TFRecordIterDataset(path)
    assert list(ds) == records
    assert list(ds.mp_prefetch(TWO)) == records
    path.write_bytes(PACKERS[pack](whole[:1000]) + PACKERS[pack](whole[1000:]) + b"\0" * 9)  # in two pieces, and padded
    assert list(ds) == records
    iterator = iter(ds)
    iterator.set_state({"reader_offset": len(whole) + 1})
    with pytest.raises(StateError, match="not the file that the state was saved with"):
        next(iterator)


@pytest.mark.parametrize("pack", PACKERS)
def test_damaged_compressed_files_are_errors_after_the_records_before(tmp_path, pack):
    records = [np.random.default_rng(i).bytes(1000) for i in range(100)]
    path = Path(write(tmp_path / "t", records))
    packed = PACKERS[pack](path.read_bytes())
    for damaged, least in ((packed[:60_000], 58), (packed[:60_000] + b"\xff" * 50_000, 58), (packed[:-3], 100)):
        path.write_bytes(damaged)
        iterator = iter(TFRecordIterDataset(path, verify_data=True))
        got = list(_until_an_error(iterator))
        assert got == records[: len(got)]
        assert len(got) >= least
        what = "(its compressed bytes cannot be read|the checksum of its bytes is wrong)"
        with pytest.raises(DataError, match=f"t is damaged at record {len(got)}, offset {1016 * len(got)}: {what}"):
            next(iterator)


def _until_an_error(iterator):
    with contextlib.suppress(DataError):
        yield from iterator


# ------------------------------------------------------------------------------------------------ examples


def test_examples_that_tensorflow_wrote_are_parsed(copied):
    source = TFRecordDataSource(copied("examples"))
    for i in range(NUM_FIXTURES):
        assert_equal(
            dict(sorted(parse_example(source[i]).items())), {k: as_parsed(v) for k, v in sorted(features_of(i).items())}
        )
        assert_equal(ExampleParser(FEATURES).map(source[i]), expected_of(i))


def test_sequence_examples_that_tensorflow_wrote_are_parsed(copied):
    for i, record in enumerate(TFRecordDataSource(copied("sequences"))):
        context, lists = parse_sequence_example(record)
        expected_context, expected_lists = sequence_of(i)
        assert_equal(dict(sorted(context.items())), {k: as_parsed(v) for k, v in sorted(expected_context.items())})
        expected = {k: [as_parsed(v) for v in steps] for k, steps in sorted(expected_lists.items())}
        assert_equal(dict(sorted(lists.items())), expected)


def test_a_batch_of_examples_has_the_rows_of_each(copied):
    records, parser = list(TFRecordDataSource(copied("examples"))), ExampleParser(FEATURES)
    for chosen in (range(NUM_FIXTURES), [*range(NUM_FIXTURES)] * 20, [3], [], [5] * 100):
        batch = parser.batch([records[i] for i in chosen])
        assert_is_batch_of(batch, [expected_of(i) for i in chosen])


def assert_is_batch_of(batch, elements):
    assert all(len(column) == len(elements) for column in batch.values())
    for i, element in enumerate(elements):
        assert_equal({name: column[i] for name, column in batch.items()}, element)


def test_an_example_source_obeys_the_laws(copied):
    source = ExampleDataSource(TFRecordDataSource(copied("examples")), FEATURES)
    ds = MapDataset.source(source).shuffle(seed=1)
    assert_block_law(ds)
    assert_resumable(ds.to_iter_dataset().map(lambda e: {**e, "n": len(e["tags"])}))
    batches = MapDataset.source(source).batch(16)
    assert_is_batch_of(batches[1], [expected_of(i) for i in range(16, 32)])
    inline, workers = iter(batches.to_iter_dataset()), iter(batches.to_iter_dataset().mp_prefetch(TWO))
    for a, b in zip(inline, workers, strict=True):
        assert_equal(_as_rows(a), _as_rows(b))
    workers.close()
    assert repr(source) == repr(pickle.loads(pickle.dumps(source)))
    assert "id: int64[], x: float32[2, 2], name: bytes[], tags: int64['...']" in repr(source)
    assert source.element_spec["x"].shape == (2, 2)


def _as_rows(batch):
    return {name: list(column) for name, column in batch.items()}


@pytest.mark.parametrize("wrap", [list, TFRecordDataSource])
def test_examples_come_from_any_source_of_records(copied, wrap):
    records = TFRecordDataSource(copied("examples"))
    source = ExampleDataSource(list(records) if wrap is list else records, {"id": np.int64})
    columns = source.__getcolumns__(np.array([3, 1, 3, *range(20)]))
    assert_equal(columns, {"id": np.array([features_of(i)["id"][0] for i in [3, 1, 3, *range(20)]])})


# ---------------------------------------------------------------------- examples of all kinds, made by hand


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def encode_list(values, *, packed=True):
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    number, tag = (2, b"\x0d") if values and isinstance(values[0], float) else (3, b"\x08")
    pieces = [struct.pack("<f", value) if number == 2 else varint(value) for value in values]
    if packed:
        return field(number, field(1, b"".join(pieces)) if pieces else b"")
    return field(number, b"".join(tag + piece for piece in pieces))


def encode(named, *, packed=True, extra=b""):
    entries = [
        field(1, field(1, name.encode()) + field(2, encode_list(values, packed=packed)))
        for name, values in named.items()
    ]
    return field(1, b"".join(entries) + extra)


INTS = st.one_of(st.integers(0, 200), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.floats(width=32, allow_nan=False).map(float)


@st.composite
def blocks(draw):
    """Features, and records that have them, in a few orders and in all spellings."""
    k, m = draw(st.integers(0, 3)), draw(st.integers(1, 40))
    features = {
        "i": Feature(np.int64),
        "ii": Feature(np.int64, (k,)),
        "f": Feature(np.float32, (m,)),
        "b": Feature(bytes),
        "bb": Feature(bytes, (1 + k,)),
        "ri": Feature(np.int64, None),
        "rf": Feature(np.float32, None),
        "rb": Feature(bytes, None),
        "d": Feature(np.int64, (2,), default=[7, 8]),
    }
    features = {name: features[name] for name in draw(st.lists(st.sampled_from([*features]), min_size=1, unique=True))}
    records = []
    for _ in range(draw(st.integers(1, 40))):
        named = {
            "i": [draw(INTS)],
            "ii": draw(st.lists(INTS, min_size=k, max_size=k)),
            "f": draw(st.lists(FLOATS, min_size=1, max_size=1)) * m,
            "b": [draw(st.binary(max_size=3)) * draw(st.sampled_from([1, 1, 60, 6000]))],
            "bb": draw(st.lists(st.binary(max_size=5), min_size=1 + k, max_size=1 + k)),
            "ri": draw(st.lists(INTS, min_size=1, max_size=5)),
            "rf": draw(st.lists(FLOATS, min_size=1, max_size=3)),
            "rb": draw(st.lists(st.binary(max_size=3), min_size=1, max_size=3)),
            "unused": [b"zz"],
        }
        if draw(st.booleans()):
            named["d"] = [1, 2]
        if draw(st.integers(0, 3)) == 0:
            named = dict(sorted(named.items()))
        records.append((named, draw(st.integers(0, 5)) > 0))
    return features, records


@settings(max_examples=60)
@given(blocks())
def test_records_parsed_together_are_those_parsed_alone(block):
    features, named = block
    parser = ExampleParser(features)
    records = [encode(values, packed=packed) for values, packed in named]
    alone = [parser.map(record) for record in records]
    assert_is_batch_of(parser.batch(records), alone)
    assert_is_batch_of(parser.batch(records * 5), alone * 5)
    for (values, _), element in zip(named, alone, strict=True):
        for name, feature in features.items():
            expected = np.array(values.get(name, [7, 8]), feature.dtype)
            if feature.shape is not None:
                expected = expected.reshape(feature.shape)[()]
            assert_equal(element[name], expected)


@settings(max_examples=60)
@given(st.data())
def test_damaged_records_are_the_same_error_together_and_alone(data):
    whole = encode({"i": [300, 5], "f": [1.0, 2.0], "b": [b"xyz"], "u": [b"abc"]})
    parser = ExampleParser({"i": Feature(np.int64, (2,)), "f": Feature(np.float32, (2,)), "b": bytes})
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(changed)[: data.draw(st.integers(0, len(whole))) if data.draw(st.booleans()) else None]
    before, after = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    block = [whole] * before + [changed] + [whole] * after
    error = _error_of(lambda: parser.map(changed))
    if error:
        what = error.removeprefix("A record")
        assert _error_of(lambda: parser.batch(block)) == f"Record {before}{what}"
    else:
        elements = [parser.map(record) for record in block]
        assert_is_batch_of(parser.batch(block), elements)


def _error_of(parse):
    try:
        parse()
    except DataError as e:
        return str(e)
    return ""


def test_what_protocol_buffers_allow_is_parsed():
    entry = field(1, field(1, b"x") + field(2, encode_list([5])))
    split = field(1, field(1, b"m") + field(2, encode_list([1])) + field(2, encode_list([2])))  # is merged
    twice = field(1, field(1, b"o") + field(2, encode_list([1.0]) + encode_list([3, 4])))  # the last kind counts
    unknown = (
        varint(9 << 3) + varint(7) + varint(9 << 3 | 5) + b"1234" + varint(9 << 3 | 1) + b"12345678" + field(9, b"?")
    )
    record = unknown + encode({"x": [1]}) + field(1, entry + unknown + split) + field(1, twice)
    expected = {"x": np.array([5]), "m": np.array([1, 2]), "o": np.array([3, 4])}
    assert_equal(parse_example(record), expected)
    parser = ExampleParser({name: Feature(np.int64, None) for name in expected})
    for element in (parser.map(record), {k: v[7] for k, v in parser.batch([record] * 20).items()}):
        assert_equal(element, expected)
    assert_equal(parse_example(b""), {})
    assert_equal(parse_example(field(1, field(1, field(1, b"nothing")))), {"nothing": []})


@pytest.mark.parametrize(
    ("record", "features", "message"),
    [
        (encode({"y": [1]}), {"x": np.int64}, "it has no feature 'x'. Give it a default"),
        (encode({"x": [1.5]}), {"x": np.int64}, "feature 'x' is of floats, and not of ints"),
        (encode({"x": [1, 2]}), {"x": np.int64}, r"feature 'x' has 2 values, and not the 1 of \(\)"),
        (encode({"x": [1, 2]}), {"x": Feature(np.int64, (3,))}, r"has 2 values, and not the 3 of \(3,\)"),
        (encode({"x": [1.0]})[:-1], {"x": np.float32}, "the field at offset 2 ends 1 bytes after what it is part of"),
        (b"\x0a", {"x": np.int64}, "a number ends too early"),
        (b"\xff" * 20, {"x": np.int64}, "the number at offset 0 has more than 10 bytes"),
        (bytes(9), {"x": np.int64}, "is not the beginning of a field"),
        (
            field(1, field(1, field(1, b"x") + field(2, field(2, field(1, b"123"))))),
            {"x": np.float32},
            "4 does not divide",
        ),
        (field(1, field(1, field(1, b"x") + field(2, field(3, field(1, b"\xff"))))), {"x": np.int64}, "in the middle"),
        (field(1, field(1, field(1, b"\xff"))), {"x": np.int64}, "is not UTF-8"),
        (encode({"x": [1]}, extra=field(1, field(1, b"\xff") + field(2, b""))), {"x": np.int64}, "is not UTF-8"),
    ],
)
def test_records_that_are_not_as_expected_are_errors(record, features, message):
    parser = ExampleParser(features)
    with pytest.raises(DataError, match=rf"A record \({len(record)} bytes\) is not the `Example` expected:.*{message}"):
        parser.map(record)
    for count in (1, 30):
        with pytest.raises(DataError, match=rf"Record 0 \({len(record)} bytes\).*{message}"):
            parser.batch([record] * count)
    source = ExampleDataSource([encode({"x": [1]}), record], parser)
    with pytest.raises(DataError, match=rf"Record 1 \({len(record)} bytes\).*{message}"):
        source[1]


def test_wrong_arguments_are_errors():
    with pytest.raises(PipelineError, match=r"np.float32, np.int64 or bytes; got.*int32"):
        Feature(np.int32)
    with pytest.raises(PipelineError, match=r"sizes of 0 or more; got \(-1,\)"):
        Feature(np.int64, (-1,))
    for features in ({}, [1]):
        with pytest.raises(PipelineError, match="`features` must be a dict"):
            ExampleParser(features)  # type: ignore[arg-type]
    for parse in (parse_example, parse_sequence_example):
        with pytest.raises(DataError, match="A record of 1 bytes is no `.*Example`"):
            parse(b"\x0a")


# ---------------------------------------------------------------------------------------------- TensorFlow

TENSORFLOW_PARSES = """
import pickle, sys
import tensorflow as tf
records, k = pickle.load(sys.stdin.buffer)
features = {
    "i": tf.io.FixedLenFeature([], tf.int64),
    "ii": tf.io.FixedLenFeature([k], tf.int64),
    "f": tf.io.FixedLenFeature([2, k], tf.float32),
    "b": tf.io.FixedLenFeature([], tf.string),
    "d": tf.io.FixedLenFeature([2], tf.int64, [7, 8]),
}
parsed = tf.io.parse_example(records, features)
sys.stdout.buffer.write(pickle.dumps({name: value.numpy() for name, value in parsed.items()}))
"""


@needs_tensorflow
def test_examples_are_what_tensorflow_makes_of_them():
    rng, k = np.random.default_rng(0), 5
    records = []
    for i in range(300):
        named = {
            "i": [int(rng.integers(-(2**63), 2**63 - 1)) >> int(rng.integers(0, 63))],
            "ii": (rng.integers(0, 2**62, k) >> rng.integers(0, 62, k)).tolist(),
            "f": rng.standard_normal(2 * k).tolist(),
            "b": [rng.bytes(int(rng.integers(0, 400)))],
            **({"d": [i, -i]} if i % 3 else {}),
        }
        names = rng.permutation([*named]).tolist() if i % 4 == 0 else [*named]
        records.append(encode({name: named[name] for name in names}, packed=i % 10 > 0))
    given = pickle.dumps((records, k))
    done = subprocess.run(
        [sys.executable, "-c", TENSORFLOW_PARSES], input=given, check=True, capture_output=True, timeout=100
    )
    features = {
        "i": np.int64,
        "ii": Feature(np.int64, (k,)),
        "f": Feature(np.float32, (2, k)),
        "b": bytes,
        "d": Feature(np.int64, (2,), default=[7, 8]),
    }
    ours, theirs = ExampleParser(features).batch(records), pickle.loads(done.stdout)
    for name in features:
        assert_equal(ours[name], theirs[name])
