"""Parquet files as streams of rows, against pyarrow's own writer and against Grain."""

import datetime
import decimal
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import DataError, MissingDependency, PipelineError, StateError
from headrace.sources.parquet import ParquetIterDataset
from headrace.sources.remote import Address
from headrace.testing import assert_resumable
from tests.sources.test_array_record import (
    assert_files_are_given_back,
    assert_same,
    assert_same_with_workers,
    interleaved,
)

grain = pytest.importorskip("grain")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.fs")


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
    with pytest.raises(DataError, match=r"t.parquet, row group 0, cannot be read: "):
        next(iter(ParquetIterDataset(path)))
    iterator = iter(ParquetIterDataset(path))
    iterator.set_state({"row_group": 8, "index_within_row_group": 50})
    assert [row["i"] for row in iterator] == list(range(850, 1000))


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


def test_empty_parquet_files_have_no_rows(parquet_files):
    for path in (parquet_files[0], parquet_files[4]):
        assert list(ParquetIterDataset(path)) == []
        assert_resumable(ParquetIterDataset(path))


@pytest.mark.parametrize("path", [[], 3])
def test_wrong_parquet_paths_are_errors(path):
    with pytest.raises(PipelineError, match="Parquet files (are given by a path, a pattern|need at least one path)"):
        ParquetIterDataset(path)


def test_a_missing_or_broken_parquet_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nope.parquet"):
        next(iter(ParquetIterDataset(tmp_path / "nope.parquet").map(len)))
    write_parquet(tmp_path / "there", every_type())
    with pytest.raises(FileNotFoundError, match="2 of 3 paths of Parquet files match no file: .*/a, .*/b"):
        ParquetIterDataset([tmp_path / "a", tmp_path / "there", tmp_path / "b"])
    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "short").write_bytes((tmp_path / "there").read_bytes()[:-100])
    for name in ("text", "short"):
        with pytest.raises(DataError, match=f"/{name} cannot be read: .*not one of Parquet files"):
            next(iter(ParquetIterDataset(tmp_path / name)))


def test_parquet_patterns_are_expanded(tmp_path):
    for i in range(3):
        write_parquet(tmp_path / f"{i}.parquet", pa.table({"i": [i, 10 + i]}))
    assert [row["i"] for row in ParquetIterDataset(tmp_path / "*.parquet")] == [0, 1, 2, 10, 11, 12]
    assert [row["i"] for row in ParquetIterDataset([f"{tmp_path}/2*", f"{tmp_path}/[01].*"])] == [2, 0, 1, 12, 10, 11]


def test_parquet_files_behind_addresses_are_read(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    paths = [write_parquet(tmp_path / f"{i}.parquet", pa.table({"i": [i, 10 + i]})) for i in range(2)]
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as packed:
        packed.write(paths[1], "1.parquet")
    for path in paths:
        memory.pipe(f"/headrace-rows/{os.path.basename(path)}", Path(path).read_bytes())
    try:
        ds = ParquetIterDataset("memory://headrace-rows/*.parquet")
        assert [row["i"] for row in ds] == [0, 1, 10, 11]
        assert_resumable(ds)
        address = Address("memory://headrace-rows/0.parquet")
        assert [row["i"] for row in ParquetIterDataset(address)] == [0, 10]
        assert [row["i"] for row in ParquetIterDataset(f"zip://1.parquet::{tmp_path}/z.zip")] == [1, 11]
    finally:
        memory.rm("/headrace-rows", recursive=True)


def test_parquet_files_on_a_filesystem_of_pyarrow_are_read(tmp_path):
    write_parquet(tmp_path / "t.parquet", pa.table({"i": range(4)}))
    there = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    for path in ("t.parquet", ["t.parquet"]):
        assert [row["i"] for row in ParquetIterDataset(path, filesystem=there)] == [0, 1, 2, 3]
    with pytest.raises(PipelineError, match="need at least one path"):
        ParquetIterDataset([], filesystem=there)


def test_parquet_files_of_different_columns_are_errors(tmp_path):
    first = write_parquet(tmp_path / "a", pa.table({"x": [1], "y": [{"z": 1, "w": 1}]}))
    other = write_parquet(tmp_path / "b", pa.table({"x": [1.5], "y": [{"z": 1, "w": "1"}]}))
    fewer = write_parquet(tmp_path / "c", pa.table({"x": [1]}))
    nulls = write_parquet(tmp_path / "d", pa.table({"x": [None], "y": [None]}))
    for paths in ([first, other], [other, first]):
        with pytest.raises(DataError, match=r"Column 'x' is of type \w+ in .* and of type \w+ in "):
            list(ParquetIterDataset(paths))
    with pytest.raises(PipelineError, match=r"/c has no column 'y', which .*/a has"):
        list(ParquetIterDataset([first, fewer]))
    assert [row["y"] for row in ParquetIterDataset([first, other], columns=["y.z"])] == [{"z": 1}, {"z": 1}]
    assert [row["x"] for row in ParquetIterDataset([nulls, first])] == [None, 1]


def test_parquet_streams_have_views_of_strings(tmp_path):
    lists = pa.ListArray.from_arrays([0, 1, 2], pa.array(["u", "v"]).cast(pa.string_view()))
    path = write_parquet(tmp_path / "t.parquet", pa.table({"s": lists.values, "l": lists}))
    assert [(row["s"], list(row["l"])) for row in ParquetIterDataset(path)] == [("u", ["u"]), ("v", ["v"])]


@pytest.mark.parametrize("place", [(9, 1), (0, 4), (99, 0), (4, 0), (-1, 0), (0, -1)])
def test_a_parquet_state_of_another_file_is_an_error(tmp_path, place):
    iterator = iter(ParquetIterDataset(write_parquet(tmp_path / "t.parquet", every_type())))
    iterator.set_state({"row_group": place[0], "index_within_row_group": place[1]})
    for _ in range(2):
        with pytest.raises(StateError, match="t.parquet has 4 row groups.*not the file that the state was saved with"):
            next(iterator)


def test_a_parquet_iterator_does_not_take_states_of_other_pipelines(tmp_path):
    iterator = iter(ParquetIterDataset(write_parquet(tmp_path / "t.parquet", every_type())))
    for state in ({"next_index": 3}, 3):
        with pytest.raises(StateError, match="state of another pipeline"):
            iterator.set_state(state)
    with pytest.raises(StateError, match="are ints; got .*'0'"):
        iterator.set_state({"row_group": "0", "index_within_row_group": 0})


def test_without_pyarrow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependency, match=r"`pyarrow.parquet` is not installed.*headrace\[parquet\]"):
        next(iter(ParquetIterDataset(__file__)))


def test_parquet_iterators_give_their_files_back(tmp_path):
    assert_files_are_given_back(ParquetIterDataset, write_parquet(tmp_path / "t.parquet", pa.table({"i": range(10)})))
