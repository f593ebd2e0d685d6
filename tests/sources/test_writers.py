"""Writers: what they write is what the formats' own readers and the sources read, whole or not at all."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset
from headrace.errors import PipelineError
from headrace.sources import CsvDataSource, ParquetDataSource
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.tf_example import parse_example
from headrace.sources.tfrecord import TFRecordDataSource, TFRecordIterDataset
from headrace.sources.writers import (
    shard_names,
    write_array_record,
    write_arrow,
    write_csv,
    write_json_lines,
    write_parquet,
    write_tfrecord,
)
from tests.support.proc import LIMIT_S, until

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("array_record")

RECORDS = [b"", b"one", *(bytes([i]) * (i * 7) for i in range(2, 50))]
ODD_NAMES = ["with space", "ünï-字", "a[1]", "*?#%20", 'it\'s "so"']


def read_tfrecord(paths):
    return [record for path in paths for record in TFRecordIterDataset(path)]


def read_array_record(paths):
    return list(ArrayRecordDataSource(paths))


def read_parquet(paths):
    return [row["record"] for path in paths for row in pq.read_table(path).to_pylist()]


FORMATS = {
    "tfrecord": (write_tfrecord, read_tfrecord),
    "array_record": (write_array_record, read_array_record),
    "parquet": (write_parquet, read_parquet),
}
every_format = pytest.mark.parametrize(("suffix", "write", "read"), [(s, w, r) for s, (w, r) in FORMATS.items()])


def names_in(folder):
    return sorted(os.listdir(folder))


# ------------------------------------------------------------------------------------------------ records


@every_format
@pytest.mark.parametrize("num_shards", [1, 3, 60])
@pytest.mark.parametrize("kind", [list, tuple, MapDataset.source, "stream", "iterable"])
def test_shards_read_one_after_the_other_give_what_was_written(tmp_path, suffix, write, read, num_shards, kind):
    class Iterable:
        def __iter__(self):
            return iter(RECORDS)

    made = {"stream": MapDataset.source(RECORDS).to_iter_dataset(), "iterable": Iterable()}
    records = made[kind] if isinstance(kind, str) else kind(RECORDS)
    paths = write(records, tmp_path / f"a.{suffix}", num_shards=num_shards)
    assert paths == shard_names(str(tmp_path / f"a.{suffix}"), num_shards)
    assert names_in(tmp_path) == [os.path.basename(path) for path in paths]
    assert read(paths) == RECORDS


@every_format
def test_a_generator_is_written_to_one_file(tmp_path, suffix, write, read):
    assert read(write((record for record in RECORDS), tmp_path / f"a.{suffix}")) == RECORDS
    with pytest.raises(PipelineError, match="An iterator cannot be split into 2 shards"):
        write(iter(RECORDS), tmp_path / f"b.{suffix}", num_shards=2)


@every_format
def test_nothing_one_record_and_a_large_record(tmp_path, suffix, write, read):
    large = np.random.default_rng(0).bytes(11_000_000)
    for number, records in enumerate([[], [b""], [large, b"x", large]]):
        assert read(write(records, tmp_path / f"{number}.{suffix}")) == records
    assert read(write([b"x"], tmp_path / f"many.{suffix}", num_shards=3)) == [b"x"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names(tmp_path, name):
    for suffix, (write, read) in FORMATS.items():
        assert read(write(RECORDS, tmp_path / name / f"{name}.{suffix}", num_shards=2)) == RECORDS


@settings(max_examples=25)
@given(records=st.lists(st.binary(max_size=300), max_size=40), num_shards=st.integers(1, 5))
def test_any_records(tmp_path_factory, records, num_shards):
    folder = tmp_path_factory.mktemp("any")
    for suffix, (write, read) in FORMATS.items():
        assert read(write(records, folder / f"a.{suffix}", num_shards=num_shards)) == records


def test_gaps_of_a_filter_are_left_out(tmp_path):
    ds = MapDataset.range(100).filter(lambda x: x % 3 == 0).map(lambda x: {"x": x})
    paths = write_parquet(ds, tmp_path / "a.parquet", num_shards=4)
    assert [row["x"] for path in paths for row in pq.read_table(path).to_pylist()] == list(range(0, 100, 3))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([2.5j], "Feature 'record' is of the class complex; an Example holds numbers"),
        ([b"bytes", {"x": 1}], "A record is not bytes, but those before it are bytes"),
        ([{"x": 1}, b"bytes"], "A record is bytes, but those before it are not bytes"),
        (b"bytes", "Records must be an iterable of bytes or dicts; got bytes"),
        (7, "Records must be a dataset, a source or an iterable; got int"),
        (MapDataset.source(RECORDS).repeat(), "These records never end"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path, records, message):
    with pytest.raises(PipelineError, match=message):
        write_tfrecord(records, tmp_path / "a.tfrecord")
    assert names_in(tmp_path) == []


def test_bad_targets_are_named(tmp_path):
    with pytest.raises(PipelineError, match="Only local files can be written; got the address s3://b/a"):
        write_tfrecord(RECORDS, "s3://b/a.tfrecord")
    with pytest.raises(PipelineError, match="`num_shards` must be at least 1; got 0"):
        write_tfrecord(RECORDS, tmp_path / "a.tfrecord", num_shards=0)


def test_text_is_written_as_utf_8(tmp_path):
    paths = write_tfrecord(["ünï", ""], tmp_path / "a.tfrecord", plain=True)
    assert read_tfrecord(paths) == ["ünï".encode(), b""]
    paths = write_tfrecord(["ünï", ""], tmp_path / "b.tfrecord")
    assert list(map(parse_example, read_tfrecord(paths))) == ["ünï", ""]


def test_progress_is_told(tmp_path):
    told = []
    write_tfrecord([b"x"] * 1000, tmp_path / "a.tfrecord", num_shards=3, progress=lambda *p: told.append(p))
    assert told == [(256, 1000), (512, 1000), (768, 1000), (1000, 1000)]


# --------------------------------------------------------------------------------------------- atomicity


def failing(records, after):
    yield from itertools.islice(records, after)
    raise OSError("the disk is on fire")


@every_format
def test_an_error_leaves_no_file(tmp_path, suffix, write, read):
    with pytest.raises(OSError, match="on fire"):
        write(failing(RECORDS, 20), tmp_path / f"a.{suffix}")
    with pytest.raises(OSError, match="on fire"):
        write(Breaking(60), tmp_path / f"a.{suffix}", num_shards=4)
    assert names_in(tmp_path) == []


@every_format
@pytest.mark.parametrize("job", [None, "j"])
def test_a_record_that_cannot_be_written_leaves_no_shard(tmp_path, suffix, write, read, job):
    records = [*range(60), 2j]
    with pytest.raises(PipelineError, match="complex"):
        write(records, tmp_path / f"a.{suffix}", num_shards=4, job=job)
    assert names_in(tmp_path) == []


def test_files_that_are_there_are_kept_unless_told_otherwise(tmp_path):
    path = tmp_path / "a.tfrecord"
    write_tfrecord([b"old"], path)
    with pytest.raises(FileExistsError, match="1 files already exist: .*a.tfrecord. Set `overwrite`"):
        write_tfrecord([b"new"], path)
    with pytest.raises(OSError, match="on fire"):
        write_tfrecord(failing([b"new"], 1), path, overwrite=True)
    assert read_tfrecord([str(path)]) == [b"old"]
    write_tfrecord([b"new"], path, overwrite=True)
    assert read_tfrecord([str(path)]) == [b"new"]
    assert names_in(tmp_path) == ["a.tfrecord"]


class Breaking:
    """Records that cannot be read from some place on, and that remember what was."""

    def __init__(self, breaks_at):
        self.breaks_at, self.read = breaks_at, []

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= self.breaks_at:
            raise OSError("the disk is on fire")
        self.read.append(index)
        return b"%d" % index


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("suffix", ["tfrecord", "array_record", "parquet"])
def test_a_stopped_job_goes_on_after_its_finished_shards(tmp_path, stream, suffix):
    write, read = FORMATS[suffix]

    def records(source):
        ds = MapDataset.source(source)
        return ds.to_iter_dataset() if stream else ds

    kept = tmp_path / f"a-00001-of-00004.{suffix}"
    if not stream:  # counting a stream would read it all
        with pytest.raises(OSError, match="on fire"):
            write(records(Breaking(60)), tmp_path / f"a.{suffix}", num_shards=4, job="j")
    else:
        with pytest.raises(OSError, match="on fire"):
            write(Once(60), tmp_path / f"a.{suffix}", num_shards=4, job="j")
    assert names_in(tmp_path) == [f".a.{suffix}.job", f"a-00000-of-00004.{suffix}", kept.name]
    before = (kept.stat().st_ino, kept.stat().st_mtime_ns)
    whole = Breaking(100)
    paths = write(records(whole), tmp_path / f"a.{suffix}", num_shards=4, job="j")
    assert read(paths) == [b"%d" % i for i in range(100)]
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == before
    assert names_in(tmp_path) == [os.path.basename(path) for path in paths]
    if not stream:
        assert min(whole.read) == 50


class Once:
    """A stream that breaks when it is read for the second time."""

    def __init__(self, breaks_at):
        self._breaks_at = [101, breaks_at]

    def __iter__(self):
        breaks_at = self._breaks_at.pop(0)
        for i in range(100):
            if i >= breaks_at:
                raise OSError("the disk is on fire")
            yield b"%d" % i


def test_another_job_does_not_take_over_shards(tmp_path):
    with pytest.raises(OSError, match="on fire"):
        write_tfrecord(Breaking(60), tmp_path / "a.tfrecord", num_shards=4, job="j")
    for job, num_shards in (("k", 4), (None, 4), ("j", 5)):
        with pytest.raises(FileExistsError, match="left 2 shards of different data"):
            write_tfrecord(RECORDS, tmp_path / "a.tfrecord", num_shards=num_shards, job=job)
    paths = write_tfrecord(RECORDS, tmp_path / "a.tfrecord", num_shards=5, job="j", overwrite=True)
    assert read_tfrecord(paths) == RECORDS
    assert names_in(tmp_path) == [os.path.basename(path) for path in paths]


def test_two_calls_do_not_write_one_file_at_once(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        yield b"x"
        begun.set()
        assert go_on.wait(60)
        yield b"y"

    thread = threading.Thread(target=write_tfrecord, args=(slow(), tmp_path / "a.tfrecord"))
    thread.start()
    try:
        assert begun.wait(60)
        with pytest.raises(PipelineError, match="Another process is writing .*a.tfrecord"):
            write_tfrecord([b"z"], tmp_path / "a.tfrecord")
    finally:
        go_on.set()
        thread.join(60)
    assert read_tfrecord([str(tmp_path / "a.tfrecord")]) == [b"x", b"y"]


KILLED = """
import sys, time
from headrace.sources import writers
class Slow:
    def __len__(self): return 400
    def __getitem__(self, i):
        time.sleep(0.002 if i < 320 else 1000)
        return b"%d" % i
getattr(writers, sys.argv[1])(Slow(), sys.argv[2], num_shards=8, job="j")
"""


@every_format
def test_a_kill_leaves_no_half_file_and_the_next_call_goes_on(tmp_path, suffix, write, read):
    target = tmp_path / f"a.{suffix}"
    names = [Path(name) for name in shard_names(str(target), 8)]
    process = subprocess.Popen([sys.executable, "-c", KILLED, write.__name__, str(target)])
    try:
        until(lambda: names[1].exists() or process.poll() is not None, "no shard is written", LIMIT_S)
        time.sleep(0.02)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = {name: name.stat().st_ino for name in names if name.exists()}
    assert 2 <= len(finished) < 8
    for number, name in enumerate(finished):
        assert read([str(name)]) == [b"%d" % i for i in range(number * 50, number * 50 + 50)]
    assert read(write([b"%d" % i for i in range(400)], target, num_shards=8, job="j")) == [
        b"%d" % i for i in range(400)
    ]
    assert {name: name.stat().st_ino for name in finished} == finished
    assert names_in(tmp_path) == [name.name for name in names]


# ------------------------------------------------------------------------------------------------ tables


def test_rows_keep_their_types(tmp_path):
    rows = [
        {
            "int": np.int16(i),
            "float": np.float32(i / 2),
            "python": i,
            "text": f"t{i}",
            "maybe": None if i % 2 else b"bytes",
            "vector": np.arange(i, dtype=np.uint8),
            "image": np.full((2, 3, 4), i, np.float16),
            "ragged": np.zeros((i % 3, 2), np.int32),
            "holes": None if i % 2 else np.arange(3, dtype=np.float32),
            "nested": {"a": np.int8(i), "b": {"c": [1, 2]}},
            "flag": bool(i % 2),
        }
        for i in range(10)
    ]
    paths = write_parquet(rows, tmp_path / "a.parquet", num_shards=2, row_group_rows=3)
    table = pa.concat_tables([pq.read_table(path) for path in paths])
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "int": "int16",
        "float": "float",
        "python": "int64",
        "text": "string",
        "maybe": "binary",
        "vector": "list<element: uint8>",
        "image": "list<element: list<element: list<element: halffloat>>>",
        "ragged": "list<element: list<element: int32>>",
        "holes": "list<element: float>",
        "nested": "struct<a: int8, b: struct<c: list<element: int64>>>",
        "flag": "bool",
    }
    for row, found in zip(rows, table.to_pylist(), strict=True):
        assert json.dumps(found, default=str) == json.dumps(row, default=_plain)
    assert pq.ParquetFile(paths[0]).num_row_groups == 2


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def test_large_rows_end_a_row_group(tmp_path):
    (path,) = write_parquet([{"x": bytes(10_000_000)}] * 10, tmp_path / "a.parquet")
    assert pq.ParquetFile(path).num_row_groups == 2


def test_the_first_row_group_fixes_the_types(tmp_path):
    rows = [{"x": 1}, {"x": 2.5}]
    with pytest.raises(PipelineError, match="Column 'x' cannot be written as int64.*pass `schema`") as caught:
        write_parquet(rows, tmp_path / "a.parquet", row_group_rows=1)
    assert "writing record 1" in caught.value.__notes__
    schema = pa.schema([("x", pa.float32())])
    (path,) = write_parquet(rows, tmp_path / "a.parquet", row_group_rows=1, schema=schema)
    assert pq.read_table(path).to_pydict() == {"x": [1.0, 2.5]}
    with pytest.raises(PipelineError, match=r"has the columns \['y'\], but those before it have \['x'\]"):
        write_parquet([{"x": 1}, {"y": 1}], tmp_path / "b.parquet")
    with pytest.raises(PipelineError, match=r"has the columns \['y'\], but the schema has \['x'\]"):
        write_parquet([{"y": 1}], tmp_path / "b.parquet", schema=schema)


def test_shards_have_one_schema_also_after_a_stop(tmp_path):
    class Rows(Breaking):
        def __getitem__(self, index):
            super().__getitem__(index)
            return {"x": np.int32(index) if index < 25 else index}

    with pytest.raises(OSError, match="on fire"):
        write_parquet(Rows(60), tmp_path / "a.parquet", num_shards=4, job="j")
    paths = write_parquet(Rows(100), tmp_path / "a.parquet", num_shards=4, job="j")
    assert {str(pq.read_schema(path).field("x").type) for path in paths} == {"int32"}
    assert [x for path in paths for x in pq.read_table(path)["x"].to_pylist()] == list(range(100))


def test_arrow_files_have_the_rows_that_parquet_files_have(tmp_path):
    rows = [{"x": i, "y": np.arange(i, dtype=np.float32), "z": {"t": "ü" * i}} for i in range(20)]
    arrow = write_arrow(rows, tmp_path / "a.arrow", num_shards=3)
    parquet = write_parquet(rows, tmp_path / "a.parquet", num_shards=3)
    for ours, theirs in zip(arrow, parquet, strict=True):
        assert pa.ipc.open_file(ours).read_all().to_pylist() == pq.read_table(theirs).to_pylist()


def test_csv_files_have_a_header_each_and_hold_no_lists(tmp_path):
    first, second = write_csv([{"x": i, "y": "a,b"} for i in range(3)], tmp_path / "a.csv", num_shards=2)
    assert Path(first).read_text() == '"x","y"\n0,"a,b"\n1,"a,b"\n'
    assert Path(second).read_text() == '"x","y"\n2,"a,b"\n'
    with pytest.raises(PipelineError, match="Column 'x' is of type list<item: int64>, but CSV holds only int64"):
        write_csv([{"x": [1]}], tmp_path / "b.csv")
    with pytest.raises(PipelineError, match="This format cannot hold one of the columns x .list"):
        write_csv([{"x": [1]}], tmp_path / "b.csv", plain=True)
    assert names_in(tmp_path) == [os.path.basename(first), os.path.basename(second)]


def test_csv_shards_without_rows_have_the_names_of_the_first(tmp_path):
    rows = [{"x": 1, 'a "name",\n': "t"}]
    paths = write_csv(rows, tmp_path / "a.csv", num_shards=3)
    assert list(CsvDataSource(paths)) == rows
    assert list(CsvDataSource(paths[2])) == []
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "b.parquet")
    (path,) = write_csv(ParquetDataSource(tmp_path / "b.parquet"), tmp_path / "b.csv")
    assert Path(path).read_text() == '"x"\n'
    with pytest.raises(PipelineError, match="no records, so the column names for the header of the CSV"):
        write_csv([], tmp_path / "c.csv")
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_csv])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "A row must be a nonempty dict with text as keys; got {}"),
        ({1: 2}, "A row must be a nonempty dict with text as keys; got {1: 2}"),
        ({"x": 2**70}, "Column 'x' cannot be written as one type: Python int too large"),
    ],
)
def test_rows_that_are_none_are_named(tmp_path, write, row, message):
    with pytest.raises(PipelineError, match=message) as caught:
        write([row], tmp_path / "x")
    assert "`schema`" in str(caught.value) or "as keys; got" in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_column_that_begins_with_nulls_says_what_to_do(tmp_path):
    rows = [{"x": None}, {"x": 1}]
    with pytest.raises(PipelineError, match="all its values are null: to choose them, call `write_parquet` and pass"):
        write_parquet(rows, tmp_path / "a.parquet", row_group_rows=1)
    write_parquet(rows, tmp_path / "a.parquet", row_group_rows=1, schema=pa.schema([("x", pa.int64())]))


def test_overwriting_removes_shards_of_another_number(tmp_path):
    write_tfrecord([b"old"] * 6, tmp_path / "a.tfrecord", num_shards=3)
    for name in ("b-00000-of-00003.tfrecord", "a-00000-of-00003.txt", "a-x-of-00003.tfrecord"):
        (tmp_path / name).write_bytes(b"")
    kept = ["a-00000-of-00003.txt", "a-x-of-00003.tfrecord", "b-00000-of-00003.tfrecord"]
    with pytest.raises(OSError, match="on fire"):
        write_tfrecord(failing([b"new"], 1), tmp_path / "a.tfrecord", overwrite=True)
    assert len(names_in(tmp_path)) == 6
    paths = write_tfrecord([b"new"] * 6, tmp_path / "a.tfrecord", num_shards=2, overwrite=True)
    assert names_in(tmp_path) == sorted([*map(os.path.basename, paths), *kept])
    (path,) = write_tfrecord(TFRecordDataSource(paths), tmp_path / "a.tfrecord", overwrite=True)
    assert all(map(os.path.exists, [*paths, path]))  # they were what was read


def test_json_lines_hold_arrays_as_lists_and_bytes_as_text(tmp_path):
    rows = [{"x": np.int16(i), "y": np.eye(2), "z": {"t": b"\xc3\xbc"}, "n": None} for i in range(3)]
    paths = write_json_lines(rows, tmp_path / "a.jsonl", num_shards=2, plain=True)
    found = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    assert found == [{"x": i, "y": [[1.0, 0.0], [0.0, 1.0]], "z": {"t": "ü"}, "n": None} for i in range(3)]
    for value, message in (
        (b"\xff", "invalid start byte"),
        (1j, "complex is not text"),
        (float("nan"), "not JSON compliant"),
    ):
        with pytest.raises(PipelineError, match=f"JSON cannot hold this record: .*{message}.*Convert its values"):
            write_json_lines([{"x": value}], tmp_path / "b.jsonl")


def test_a_torn_line_of_a_job_file_is_left_out(tmp_path):
    for breaks_at in (60, 80, 100):
        with contextlib.suppress(OSError):
            write_tfrecord(Breaking(breaks_at), tmp_path / "a.tfrecord", num_shards=4, job="j")
        if breaks_at < 100:
            with (tmp_path / ".a.tfrecord.job").open("a") as file:
                file.write('["a-0000')  # as a crash of the machine may leave it
    assert read_tfrecord(shard_names(str(tmp_path / "a.tfrecord"), 4)) == [b"%d" % i for i in range(100)]
    assert len(names_in(tmp_path)) == 4


def test_a_written_stream_is_a_dataset_again(tmp_path):
    (path,) = write_tfrecord(RECORDS, tmp_path / "a.tfrecord")
    assert isinstance(TFRecordIterDataset(path), IterDataset)
    (again,) = write_array_record(TFRecordIterDataset(path), tmp_path / "a.array_record")
    assert read_array_record(again) == RECORDS
