"""Sources that read files, against the formats' own writers and against Grain."""

import datetime
import decimal
import importlib.util
import os
import pickle
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import ClosedError, MissingDependency, PipelineError, StateError
from headrace.sources import array_record
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.parquet import ParquetIterDataset
from headrace.sources.tfrecord import TFRecordIterDataset, crc32c, masked
from headrace.testing import assert_block_law, assert_equal, assert_resumable

grain = pytest.importorskip("grain")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
writers = pytest.importorskip("array_record.python.array_record_module")

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
ODD_NAMES = ["with space", "ünï-字", "a[1]", "*?#%20", 'it\'s "so"', "new\nline", os.fsdecode(b"not-\xff-unicode")]


def assert_same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)


def assert_same_with_workers(ds):
    """The elements and the states are those of the dataset without workers, and so is what comes after a state."""
    inline, workers = iter(ds), iter(ds.mp_prefetch(TWO))
    elements, states = [], []
    for element, other in zip(inline, workers, strict=True):
        assert_equal(element, other)
        elements.append(element)
        states.append(inline.get_state())
        assert states[-1] == workers.get_state()
    middle = len(elements) // 2
    assert middle
    workers.set_state(states[middle - 1])
    assert_same(workers, elements[middle:])
    workers.close()


def descriptors_under(folder):
    links = Path("/proc/self/fd")
    return [link for fd in os.listdir(links) if (link := _target(links / fd)).startswith(str(folder))]


def _target(link):
    try:
        return os.readlink(link)
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------- ArrayRecord


def write_array_record(path, records, options="group_size:1"):
    writer = writers.ArrayRecordWriter(os.fsencode(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def named(name, count):
    return [f"{name}:{i}".encode() * (1 + i % 5) for i in range(count)]


SHARDS = {"a": 70, "b": 0, "c": 1, "d": 300}
RECORDS = [record for name, count in SHARDS.items() for record in named(name, count)]


@pytest.fixture(params=["group_size:1", "group_size:16"])
def shards(request, tmp_path):
    """Four files, an empty one among them."""
    return [write_array_record(tmp_path / f"{n}.ar", named(n, count), request.param) for n, count in SHARDS.items()]


def test_array_records_are_those_that_were_written_and_that_grain_reads(shards):
    ours, theirs = ArrayRecordDataSource(shards), grain.sources.ArrayRecordDataSource(shards)
    assert len(ours) == len(theirs) == len(RECORDS)
    assert list(ours) == [ours[i] for i in range(len(ours))] == [theirs[i] for i in range(len(theirs))] == RECORDS
    assert ours.paths == theirs.paths


@pytest.mark.parametrize("size", [1, 3, 40, 1000])
def test_array_records_come_in_the_order_asked_for(shards, size):
    source = ArrayRecordDataSource(shards)
    indices = np.random.default_rng(size).integers(-len(source), len(source), size).tolist()
    assert source.__getitems__(indices) == [RECORDS[i] for i in indices]
    assert source.__getitems__(range(60, 80)) == RECORDS[60:80]
    assert source.__getitems__([]) == []


def test_the_block_law_holds_for_array_records(shards):
    assert_block_law(MapDataset.source(ArrayRecordDataSource(shards)).shuffle(seed=1).map(len))


def test_array_record_pipelines_resume_at_every_element(shards):
    assert_resumable(MapDataset.source(ArrayRecordDataSource(shards)).shuffle(seed=1).to_iter_dataset(), max_outputs=60)


def test_array_records_are_the_same_with_workers(shards):
    ds = MapDataset.source(ArrayRecordDataSource(shards)).shuffle(seed=1).to_iter_dataset()
    assert_same_with_workers(ds.filter(lambda record: len(record) > 5).batch(8, batch_fn=list))


def test_array_record_instructions_choose_records(shards):
    a, _, _, d = shards
    instruction = SimpleNamespace(filename=d, skip=2, take=3, examples_in_shard=300)
    whole = SimpleNamespace(filename=d, skip=290, take=-1, examples_in_shard=300)
    given = [f"{a}[2:5]", instruction, Path(f"{a}[0:0]"), Path(a)]
    ours = ArrayRecordDataSource(given)
    assert list(ours) == list(grain.sources.ArrayRecordDataSource(given))
    assert list(ours)[:6] == named("a", 70)[2:5] + named("d", 300)[2:5]
    assert list(ArrayRecordDataSource(instruction)) == named("d", 300)[2:5]
    assert list(ArrayRecordDataSource(whole)) == named("d", 300)[290:]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_array_record_files_may_have_any_name(tmp_path, name):
    path = write_array_record(tmp_path / name, named("x", 5))
    assert list(ArrayRecordDataSource(path)) == named("x", 5)
    assert list(ArrayRecordDataSource(f"{path}[1:3]")) == named("x", 5)[1:3]
    assert len(repr(ArrayRecordDataSource(path))) < 150


def test_an_empty_array_record_file_is_an_empty_source(tmp_path):
    source = ArrayRecordDataSource(write_array_record(tmp_path / "e", []))
    assert len(source) == 0
    assert list(source) == []
    with pytest.raises(IndexError):
        source[0]


@pytest.mark.parametrize("index", [371, -372, 10**12])
def test_an_array_record_index_out_of_range_is_an_error(shards, index):
    source = ArrayRecordDataSource(shards)
    with pytest.raises(IndexError, match=f"Index {index} is out of range for 371 records"):
        source[index]
    with pytest.raises(IndexError, match=f"Index {index} is out of range for 371 records"):
        source.__getitems__([0, index])


def test_array_record_indices_are_ints(shards):
    source = ArrayRecordDataSource(shards)
    assert source[np.int64(3)] == source[-368] == RECORDS[3]
    with pytest.raises(TypeError):
        source[1.0]  # type: ignore[index]
    with pytest.raises(TypeError, match="Indices must be ints; got float64"):
        source.__getitems__([1.0])  # type: ignore[list-item]


def test_all_missing_array_record_files_are_named(shards, tmp_path):
    missing = [str(tmp_path / name) for name in ("x", "y")]
    with pytest.raises(FileNotFoundError, match="2 of 6 ArrayRecord files do not exist") as caught:
        ArrayRecordDataSource([*shards, missing[0], f"{missing[1]}[0:5]"])
    assert all(path in str(caught.value) for path in missing)
    assert not any(path in str(caught.value) for path in shards)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "at least one path"),
        (3, "`paths` must be a path.*got int: 3"),
        ([None], "`paths` must be a path.*got NoneType"),
        ("x[5:2]", "from 5 to 2: the end is before the start"),
    ],
)
def test_wrong_array_record_paths_are_errors(paths, message):
    with pytest.raises(PipelineError, match=message):
        ArrayRecordDataSource(paths)


@pytest.mark.parametrize("change", [lambda data: b"hello " * 100, lambda data: b"", lambda data: data[:-1000]])
def test_a_file_that_is_no_array_record_is_named(tmp_path, change):
    path = Path(write_array_record(tmp_path / "x", named("x", 100)))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(PipelineError, match="x cannot be read as an ArrayRecord file"):
        ArrayRecordDataSource(path)


def test_a_damaged_array_record_is_an_error_after_the_records_before(tmp_path):
    records = [bytes([i]) * 1000 for i in range(40)]
    path = Path(write_array_record(tmp_path / "x", records, "group_size:1,uncompressed"))
    data = path.read_bytes()
    path.write_bytes(data.replace(records[30], records[31]))
    iterator = iter(MapDataset.source(ArrayRecordDataSource(path)).to_iter_dataset())
    assert [next(iterator) for _ in range(30)] == records[:30]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="hash mismatch") as caught:
            next(iterator)
        assert f"reading {path}, records 30 to 30" in caught.value.__notes__


def test_records_past_the_end_of_an_array_record_file_are_an_error(shards):
    source = ArrayRecordDataSource(f"{shards[0]}[60:80]")
    assert source[9] == named("a", 70)[69]
    for _ in range(2):
        with pytest.raises(PipelineError, match="a.ar has 70 records, and those from 60 to 80 were asked for"):
            source[10]
    with pytest.raises(PipelineError, match="has 70 records, and 71 are to be skipped"):
        ArrayRecordDataSource(SimpleNamespace(filename=shards[0], skip=71, take=-1, examples_in_shard=0))


def test_array_record_reader_options_reach_the_reader(shards):
    options = {"readahead_buffer_size": "1M", "max_parallelism": "1"}
    assert ArrayRecordDataSource(shards, options).__getitems__([5, 3]) == [RECORDS[5], RECORDS[3]]
    with pytest.raises(PipelineError, match="with the reader options.*nonsense"):
        ArrayRecordDataSource(shards, {"nonsense": "1"})


def test_few_array_record_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(array_record, "MOST_OPEN", 3)
    paths = [write_array_record(tmp_path / f"{i}", named(i, 4)) for i in range(30)]
    with ArrayRecordDataSource(paths) as source:
        indices = np.random.default_rng(0).permutation(len(source)).tolist()
        expected = [record for i in range(30) for record in named(i, 4)]
        assert source.__getitems__(indices) == [expected[i] for i in indices]
        assert len(descriptors_under(tmp_path)) == 3
    assert descriptors_under(tmp_path) == []
    assert source[5] == expected[5]
    del source
    assert descriptors_under(tmp_path) == []


def test_an_array_record_source_is_pickled_as_paths_and_lengths(shards):
    source = ArrayRecordDataSource(shards)
    source[0]
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    copy = pickle.loads(pickled)
    assert list(copy) == RECORDS
    assert repr(copy) == repr(source)


def test_the_repr_of_an_array_record_source_tells_files_and_ranges_apart(shards):
    chosen = [shards, shards[:1], f"{shards[0]}[0:70]", f"{shards[0]}[0:69]", f"{shards[0]}[1:70]", shards[3]]
    reprs = [repr(ArrayRecordDataSource(paths)) for paths in chosen]
    assert reprs[1] == reprs[2]
    assert len(set(reprs)) == 5
    assert reprs[0].startswith("ArrayRecordDataSource(num_files=4, num_records=371, hash_of_paths=")


def test_threads_share_an_array_record_source(shards, monkeypatch):
    monkeypatch.setattr(array_record, "MOST_OPEN", 2)
    source = ArrayRecordDataSource(shards)
    start = threading.Barrier(8)

    def read(seed):
        start.wait(10)
        for i in range(30):
            indices = np.random.default_rng([seed, i]).integers(0, len(source), 20).tolist()
            assert source.__getitems__(indices) == [RECORDS[i] for i in indices]
            assert source[indices[0]] == RECORDS[indices[0]]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


# ----------------------------------------------------------------------------------------------- Parquet


def every_type():
    """Columns of many types, with and without nulls, which fall into some row groups only."""
    n = 10
    numbers = [None if i == 4 else i for i in range(n)]
    return pa.table(
        {
            "int32": pa.array(numbers, pa.int32()),
            "int64": pa.array(range(n)),
            "uint8": pa.array(range(n), pa.uint8()),
            "float": pa.array([None if i == 7 else i / 2 for i in range(n)], pa.float32()),
            "bool": pa.array([None if i == 9 else i % 2 == 0 for i in range(n)]),
            "text": [None if i == 0 else f"text {i}" for i in range(n)],
            "bytes": [bytes([i]) * i for i in range(n)],
            "list": pa.array([None if i == 5 else list(range(i)) for i in range(n)], pa.list_(pa.int16())),
            "gaps in lists": pa.array([[i, None if i == 2 else 1] for i in range(n)], pa.list_(pa.int32())),
            "fixed": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.float32(), 2)),
            "struct": [{"x": i, "y": {"z": str(i)}} for i in range(n)],
            "time": pa.array([datetime.datetime(2020, 1, 1 + i) for i in range(n)]),
            "dictionary": pa.array(["u" if i % 2 else "v" for i in range(n)]).dictionary_encode(),
            "decimal": [decimal.Decimal(i) / 4 for i in range(n)],
            "null": pa.nulls(n),
        }
    )


def write_parquet(path, table, row_group_size=3):
    pq.write_table(table, os.fspath(path), row_group_size=row_group_size)
    return str(path)


@pytest.fixture
def parquet_files(tmp_path):
    """Files of different lengths, more than are open at a time; two of them empty, one without any row group."""
    paths = []
    for i in range(20):
        rows = {"i": np.arange(100 * i, 100 * i + 7 * (i % 4)), "text": [f"{i} {j}" for j in range(7 * (i % 4))]}
        paths.append(write_parquet(tmp_path / f"{i}.parquet", pa.table(rows), row_group_size=5))
    schema = pa.schema([("i", pa.int64()), ("text", pa.string())])
    pq.ParquetWriter(paths[4], schema).close()
    return paths


def test_parquet_rows_are_those_that_grain_reads(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", every_type())
    assert_same(ParquetIterDataset(path), grain.experimental.ParquetIterDataset(path))
    assert_same(ParquetIterDataset(path).map(lambda row: row), grain.experimental.ParquetIterDataset(path))


def test_parquet_states_are_those_of_grain(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", pa.table({"i": range(10)}))
    ours, theirs = iter(ParquetIterDataset(path)), iter(grain.experimental.ParquetIterDataset(path))
    assert ours.get_state() == theirs.get_state()
    for _ in zip(ours, theirs, strict=True):
        assert ours.get_state() == theirs.get_state()


@pytest.mark.parametrize("count", [1, 3, 20])
def test_several_parquet_files_are_read_in_turn_as_in_grain(parquet_files, count):
    some = [path for i, path in enumerate(parquet_files) if i != 4][:count]
    assert_same(ParquetIterDataset(some), grain.experimental.ParquetIterDataset(some))


def test_parquet_resumes_at_every_row(tmp_path, parquet_files):
    assert_resumable(ParquetIterDataset(write_parquet(tmp_path / "t.parquet", every_type())))
    assert_resumable(ParquetIterDataset(parquet_files[:6]).batch(3))


def test_parquet_reads_one_row_group_to_resume(tmp_path):
    path = tmp_path / "t.parquet"
    write_parquet(path, pa.table({"i": np.arange(1000)}), row_group_size=100)
    start = pq.ParquetFile(path).metadata.row_group(8).column(0).dictionary_page_offset
    path.write_bytes(bytes(start) + path.read_bytes()[start:])
    with pytest.raises(OSError, match="."):
        next(iter(ParquetIterDataset(path)))
    iterator = iter(ParquetIterDataset(path))
    iterator.set_state({"row_group": 8, "index_within_row_group": 50})
    assert [row["i"] for row in iterator] == list(range(850, 1000))


def interleaved(paths, make):
    return IterDataset.interleave(MapDataset.source(paths).map(make), cycle_length=3)


def test_parquet_rows_are_the_same_with_workers(parquet_files):
    rows = interleaved(parquet_files, ParquetIterDataset)
    assert_same_with_workers(rows.map(lambda row: row | {"j": row["i"] + 1}))
    assert_same_with_workers(ParquetIterDataset(parquet_files).batch(4))
    assert_same_with_workers(ParquetIterDataset(parquet_files[3]).batch(4))


def test_parquet_columns_are_chosen_by_name(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", every_type())
    rows = list(ParquetIterDataset(path, columns=["text", "struct.x"]))
    assert rows[3] == {"text": "text 3", "struct": {"x": 3}}
    with pytest.raises(PipelineError, match=r"t.parquet has no columns \['nope'\]; it has \['int32',"):
        list(ParquetIterDataset(path, columns=["text", "nope"]))
    with pytest.raises(PipelineError, match="`columns` is empty"):
        list(ParquetIterDataset(path, columns=[]))
    with pytest.raises(PipelineError, match="got the string 'text'"):
        ParquetIterDataset(path, columns="text")


def test_parquet_arguments_go_to_pyarrow(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", every_type())
    assert len(list(ParquetIterDataset(path, memory_map=True))) == 10
    with pytest.raises(TypeError, match="nonsense"):
        next(iter(ParquetIterDataset(path, nonsense=1)))


@pytest.mark.parametrize("name", ODD_NAMES[:-1])  # pyarrow has no names that are not Unicode
def test_parquet_files_may_have_any_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(Path(write_parquet(tmp_path / "plain.parquet", pa.table({"i": range(4)}))).read_bytes())
    assert [row["i"] for row in ParquetIterDataset(path)] == [0, 1, 2, 3]


def test_empty_parquet_files_have_no_rows(parquet_files):
    for path in (parquet_files[0], parquet_files[4]):
        assert list(ParquetIterDataset(path)) == []
        assert_resumable(ParquetIterDataset(path))


@pytest.mark.parametrize("path", [[], 3])
def test_wrong_parquet_paths_are_errors(path):
    with pytest.raises(PipelineError, match="must be a path, or a sequence of at least one"):
        ParquetIterDataset(path)


def test_a_missing_or_broken_parquet_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nope.parquet"):
        next(iter(ParquetIterDataset(tmp_path / "nope.parquet").map(len)))
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(pa.ArrowInvalid) as caught:
        next(iter(ParquetIterDataset(tmp_path / "text")))
    assert "text" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    "state", [{"row_group": 9, "index_within_row_group": 1}, {"row_group": 0, "index_within_row_group": 4}]
)
def test_a_parquet_state_of_another_file_is_an_error(tmp_path, state):
    iterator = iter(ParquetIterDataset(write_parquet(tmp_path / "t.parquet", every_type())))
    iterator.set_state(state)
    for _ in range(2):
        with pytest.raises(StateError, match="t.parquet has 4 row groups.*not the file that the state was saved with"):
            next(iterator)


def test_file_iterators_do_not_take_states_of_other_pipelines(tmp_path):
    for ds in (ParquetIterDataset(tmp_path / "x"), TFRecordIterDataset(tmp_path / "x")):
        for state in ({"next_index": 3}, 3):
            with pytest.raises(StateError, match="state of another pipeline"):
                iter(ds).set_state(state)


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("array_record.python.array_record_module", "arrayrecord", lambda: ArrayRecordDataSource(__file__)),
        ("pyarrow.parquet", "parquet", lambda: next(iter(ParquetIterDataset(__file__)))),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, module, extra, use):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=rf"`{module}` is not installed.*headrace\[{extra}\]"):
        use()


def test_file_iterators_give_their_files_back(tmp_path):
    paths = {
        ParquetIterDataset: write_parquet(tmp_path / "t.parquet", pa.table({"i": range(10)})),
        TFRecordIterDataset: write_tfrecord(tmp_path / "t.tfrecord", named("x", 10)),
    }
    for make, path in paths.items():
        iterator = iter(make(path))
        next(iterator)
        assert descriptors_under(tmp_path) == [path]
        state = iterator.get_state()
        iterator.close()
        assert descriptors_under(tmp_path) == []
        assert iterator.get_state() == state
        with pytest.raises(ClosedError):
            next(iterator)
        iterator = iter(make(path))
        assert len(list(iterator)) == 10
        assert descriptors_under(tmp_path) == []
        assert next(iterator, None) is None
        iterator = iter(make(path))
        next(iterator)
        del iterator
        assert descriptors_under(tmp_path) == []


# ---------------------------------------------------------------------------------------------- TFRecord

TEXTS = [b"", b"x", *named("y", 30), bytes(range(256)) * 5000]


def write_tfrecord(path, records):
    """The format as it is defined; a test below compares it with TensorFlow's own writer."""
    with open(path, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            for piece in (length, record):
                file.write(piece + struct.pack("<I", masked(crc32c(piece))))
    return str(path)


def damaged(path, offset, byte=b"\xaa"):
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:offset] + byte + data[offset + 1 :])
    return path


TENSORFLOW_WRITES = """
import pickle, sys
import tensorflow as tf
path, records = pickle.load(sys.stdin.buffer)
with tf.io.TFRecordWriter(path) as writer:
    for record in records:
        writer.write(record)
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
def test_tfrecord_files_are_those_that_tensorflow_writes(tmp_path):
    given = pickle.dumps((str(tmp_path / "theirs"), TEXTS))
    subprocess.run([sys.executable, "-c", TENSORFLOW_WRITES], input=given, check=True, capture_output=True, timeout=100)
    assert Path(write_tfrecord(tmp_path / "ours", TEXTS)).read_bytes() == (tmp_path / "theirs").read_bytes()
    assert list(TFRecordIterDataset(tmp_path / "theirs", verify_data=True)) == TEXTS


def test_tfrecords_and_their_states_are_those_of_grain(tmp_path):
    path = write_tfrecord(tmp_path / "t", TEXTS)
    ours, theirs = iter(TFRecordIterDataset(path)), iter(grain.experimental.TFRecordIterDataset(path))
    assert ours.get_state() == theirs.get_state()
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)
        assert ours.get_state() == theirs.get_state()
    assert list(TFRecordIterDataset(path)) == TEXTS


@pytest.mark.parametrize("verify_data", [False, True])
def test_tfrecords_resume_at_every_record(tmp_path, verify_data):
    ds = TFRecordIterDataset(write_tfrecord(tmp_path / "t", TEXTS), verify_data=verify_data)
    assert_resumable(ds)
    assert_resumable(ds.map(len).batch(3))


def test_tfrecords_seek_to_resume(tmp_path):
    path = write_tfrecord(tmp_path / "t", TEXTS)
    iterator = iter(TFRecordIterDataset(path))
    before = [next(iterator) for _ in range(20)]
    state = iterator.get_state()
    damaged(path, 0)
    again = iter(TFRecordIterDataset(path))
    again.set_state(state)
    assert before + list(again) == TEXTS


def test_tfrecords_are_the_same_with_workers(tmp_path):
    paths = [write_tfrecord(tmp_path / f"{i}", named(i, 7 * (i % 4))) for i in range(9)]
    assert_same_with_workers(interleaved(paths, TFRecordIterDataset).map(bytes.upper))
    assert_same_with_workers(TFRecordIterDataset(paths[3]).map(bytes.upper))
    assert_resumable(interleaved(paths, TFRecordIterDataset))
    theirs = grain.MapDataset.source(paths).map(grain.experimental.TFRecordIterDataset)
    expected = list(grain.experimental.InterleaveIterDataset(theirs, cycle_length=3))
    assert list(interleaved(paths, TFRecordIterDataset)) == expected


@pytest.mark.parametrize(
    ("change", "before", "message"),
    [
        (lambda data: data[:-1], 2, "record 2, offset 42: it has 1000 bytes, and the file ends 1 bytes too early"),
        (lambda data: data[:100], 2, "record 2, offset 42: it has 1000 bytes, and the file ends 958 bytes too early"),
        (lambda data: data[:47], 2, "record 2, offset 42: the file ends 5 bytes into it, before its length"),
        (lambda data: data + b"\0\0\0", 3, "record 3, offset 1058: the file ends 3 bytes into it"),
        (lambda data: data[:43] + b"\xff" + data[44:], 2, "record 2, offset 42: the checksum of its length is wrong"),
        (lambda data: b"hello, this is a text", 0, "record 0, offset 0: the checksum of its length is wrong"),
    ],
)
def test_a_damaged_tfrecord_file_is_an_error_after_the_records_before(tmp_path, change, before, message):
    path = Path(write_tfrecord(tmp_path / "t", [b"12345", b"67890", b"z" * 1000]))
    path.write_bytes(change(path.read_bytes()))
    resumed = iter(TFRecordIterDataset(path))
    resumed.set_state({"reader_offset": 21 if before else 0})
    for iterator, count in (
        (iter(TFRecordIterDataset(path)), before),
        (iter(TFRecordIterDataset(path).map(len)), before),
        (resumed, max(0, before - 1)),
        (iter(TFRecordIterDataset(path).mp_prefetch(TWO)), before),
    ):
        for _ in range(count):
            next(iterator)
        for _ in range(2):
            with pytest.raises(PipelineError, match=f"t is damaged at {message}"):
                next(iterator)
        iterator.close()


def test_damaged_bytes_of_a_tfrecord_are_found_where_that_is_asked_for(tmp_path):
    path = damaged(write_tfrecord(tmp_path / "t", [b"12345", b"67890", b"z" * 1000]), 42 + 12 + 500)
    assert len(list(TFRecordIterDataset(path))) == 3
    iterator = iter(TFRecordIterDataset(path, verify_data=True))
    assert [next(iterator), next(iterator)] == [b"12345", b"67890"]
    with pytest.raises(PipelineError, match="record 2, offset 42: the checksum of its bytes is wrong"):
        next(iterator)


@pytest.mark.parametrize("offset", [20, 1059])
def test_a_tfrecord_state_of_another_file_is_an_error(tmp_path, offset):
    iterator = iter(TFRecordIterDataset(write_tfrecord(tmp_path / "t", [b"12345", b"67890", b"z" * 1000])))
    iterator.set_state({"reader_offset": offset})
    for _ in range(2):
        with pytest.raises(StateError, match="not the file that the state was saved with"):
            next(iterator)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_tfrecord_files_may_have_any_name(tmp_path, name):
    assert list(TFRecordIterDataset(write_tfrecord(tmp_path / name, TEXTS[:5]))) == TEXTS[:5]


def test_an_empty_tfrecord_file_has_no_records(tmp_path):
    ds = TFRecordIterDataset(write_tfrecord(tmp_path / "t", []))
    assert list(ds) == []
    assert_resumable(ds)


def test_a_tfrecord_dataset_is_of_one_file_that_is_there(tmp_path):
    with pytest.raises(PipelineError, match=r"must be one path; got list.*IterDataset\.interleave"):
        TFRecordIterDataset(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="nope"):
        next(iter(TFRecordIterDataset(tmp_path / "nope")))


@pytest.mark.parametrize("length", [*range(6), 64, 65, 511, 512, 513, 1024, 1027, 33_300])
def test_a_checksum_of_many_bytes_is_that_of_a_loop_over_them(length):
    data = np.random.default_rng(length).bytes(length)
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c(data) == crc ^ 0xFFFFFFFF
