"""Parquet files as streams of rows, against pyarrow's own writer and against Grain."""

import datetime
import decimal
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from headrace import experimental
from headrace.errors import DataError, MissingDependency, PipelineError, StateError
from headrace.ops.streams.source_streams import UserStream
from headrace.sources import ParquetDataSource
from headrace.sources.parquet import ParquetIterDataset
from headrace.storage.remote import Address
from headrace.testing import assert_resumable
from headrace.transforms import Map
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
    """Columns of many types; where they have nulls, their type does not depend on them."""
    n = 10
    return pa.table(
        {
            "int64": pa.array(range(n)),
            "uint8": pa.array(range(n), pa.uint8()),
            "float": pa.array([None if i == 7 else i / 2 for i in range(n)], pa.float32()),
            "bool": pa.array([i % 2 == 0 for i in range(n)]),
            "text": [None if i == 0 else f"text {i}" for i in range(n)],
            "bytes": [bytes([i]) * i for i in range(n)],
            "list": pa.array([None if i == 5 else list(range(i)) for i in range(n)], pa.list_(pa.int16())),
            "fixed": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.float32(), 2)),
            "struct": [{"x": i, "y": {"z": str(i)}} for i in range(n)],
            "numbers": pa.array([{"x": i} for i in range(n)], pa.struct([("x", pa.int32())])),
            "time": pa.array([datetime.datetime(2020, 1, 1 + i) for i in range(n)]),
            "dictionary": pa.array(["u" if i % 2 else "v" for i in range(n)]).dictionary_encode(),
            "decimal": [decimal.Decimal(i) / 4 for i in range(n)],
            "null": pa.nulls(n),
        }
    )


def with_gaps():
    """Columns of which nulls change the type; they fall into some row groups only."""
    n = 10
    pairs = [None if i == 4 else [i, i + 1] for i in range(n)]
    return pa.table(
        {
            "int32": pa.array([None if i == 4 else i for i in range(n)], pa.int32()),
            "bool": pa.array([None if i == 9 else i % 2 == 0 for i in range(n)]),
            "list": pa.array([[i, None if i == 2 else 1] for i in range(n)], pa.list_(pa.int32())),
            "fixed": pa.array(pairs, pa.list_(pa.float32(), 2)),
            "struct": [None if i == 1 else {"x": None if i == 2 else i} for i in range(n)],
        }
    )


def numbers(n=1000):
    """Columns of numbers, which no value of is an object."""
    i = np.arange(n)
    columns = {"when": i.astype("datetime64[us]"), "id": i, "half": (i / 2).astype(np.float32), "even": i % 2 == 0}
    return pa.table(columns | {"pair": pa.FixedSizeListArray.from_arrays(np.repeat(i, 2).astype(np.int16), 2)})


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


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_make_one_type_of_a_column_as_in_the_source(tmp_path, statistics):
    path = str(tmp_path / "t.parquet")
    pq.write_table(with_gaps(), path, row_group_size=3, write_statistics=statistics)
    assert_same(ParquetIterDataset(path), ParquetDataSource(path))
    assert_same(ParquetIterDataset(path).map(lambda row: row), ParquetDataSource(path))
    assert {type(row["int32"]) for row in ParquetIterDataset(path)} == {np.float64}
    for batch in ParquetIterDataset(path, columns=["int32"]).batch(2):
        assert batch["int32"].dtype == np.float64
    for mine, theirs in zip(ParquetIterDataset(path), grain.experimental.ParquetIterDataset(path), strict=True):
        np.testing.assert_equal(mine, theirs)  # the values, whatever their types


def window_batches(module, path, window, size):
    return module.WindowShuffleIterDataset(module.ParquetIterDataset(path), window_size=window, seed=1).batch(size)


@pytest.mark.parametrize(("window", "size"), [(100, 32), (7, 3), (2000, 64)])
def test_parquet_window_shuffles_and_batches_are_those_of_grain(tmp_path, window, size):
    path = write_parquet(tmp_path / "t.parquet", numbers(300), row_group_size=90)
    ours, theirs = (list(window_batches(one, path, window, size)) for one in (experimental, grain.experimental))
    assert_same(ours, theirs)
    assert list(ours[0]) == list(theirs[0])  # the keys in their order as well
    assert_same(ParquetIterDataset(path).batch(size), grain.experimental.ParquetIterDataset(path).batch(size))
    assert_same(ParquetIterDataset(path).map(dict), grain.experimental.ParquetIterDataset(path))


def test_columns_of_numbers_stay_columns(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", numbers(300), row_group_size=90)
    rows, blocks = [], []

    class Seen(Map):
        def map(self, row):
            rows.append(row)
            return row

        def map_batch(self, columns):
            blocks.append(len(columns["id"]))
            return columns

    for ds in (ParquetIterDataset(path), ParquetIterDataset([path, path])):
        shuffled = experimental.WindowShuffleIterDataset(ds, window_size=50, seed=1)
        assert len(list(shuffled.map(Seen()).batch(10))) in (30, 60)
    assert not rows
    assert max(blocks) > 10


def test_files_with_and_without_nulls_are_read_in_turn(tmp_path):
    paths = [write_parquet(tmp_path / name, pa.table({"i": [0, one, 2, 3]})) for name, one in (("a", 1), ("b", None))]
    both = ParquetIterDataset(paths)
    expected = [row for pair in zip(*map(ParquetDataSource, paths), strict=True) for row in pair]
    assert_same(both, expected)
    assert [batch["i"].dtype for batch in both.batch(4)] == [np.float64] * 2
    assert_same(both.map(lambda row: row), expected)


def test_an_iterator_around_that_of_parquet_is_asked_for_its_own_rows(tmp_path):
    class Doubled(ParquetIterDataset):
        def __iter__(self):
            return Around(super().__iter__())

    class Around:
        def __init__(self, iterator):
            self.iterator = iterator

        def __iter__(self):
            return self

        def __next__(self):
            return 2 * next(self.iterator)["i"]

        def __getattr__(self, name):
            return getattr(self.iterator, name)

    path = write_parquet(tmp_path / "t.parquet", pa.table({"i": range(40)}))
    assert list(Doubled(path).map(lambda i: i)) == list(range(0, 80, 2))
    assert [batch.tolist() for batch in Doubled(path).batch(20)] == [list(range(0, 40, 2)), list(range(40, 80, 2))]
    assert_resumable(Doubled(path).batch(3))


def test_batches_of_columns_can_be_changed_and_share_nothing(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", numbers(90), row_group_size=45)
    iterator = iter(ParquetIterDataset(path).batch(10))
    state = iterator.get_state()
    expected = list(ParquetIterDataset(path).map(lambda row: {k: np.array(v) for k, v in row.items()}).batch(10))
    for _ in range(2):
        iterator.set_state(state)
        for batch, other in zip(iterator, expected, strict=True):
            assert_same([batch], [other])
            for column in batch.values():
                column[:] = np.zeros((), column.dtype)
    for row in ParquetIterDataset(path).map(lambda row: row):
        row["pair"][:] = 0


@pytest.mark.parametrize("table", [numbers, every_type])
def test_parquet_streams_resume_after_every_output(tmp_path, table):
    path = write_parquet(tmp_path / "t.parquet", table().slice(0, 80), row_group_size=37 if table is numbers else 3)
    assert_resumable(ParquetIterDataset(path).map(lambda row: row))
    rows = experimental.WindowShuffleIterDataset(ParquetIterDataset(path), window_size=20, seed=1)
    assert_resumable(rows)
    assert_resumable(rows.map(lambda row: row["uint8" if table is every_type else "id"]).batch(7))
    assert_same_with_workers(rows)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_positions_in_blocks_are_those_in_rows(tmp_path, n):
    """They name the row group and the row at every 16th output, and how many came since; however runs are cut."""
    path = write_parquet(tmp_path / "t.parquet", numbers(100), row_group_size=30)
    rows, stream, positions = iter(ParquetIterDataset(path)), UserStream(ParquetIterDataset(path)._op, None), []
    while (run := stream.pull(n)) is not None:
        positions += [run.at(j + 1) for j in range(len(run.block))]
    states = [None, *(rows.get_state() for _ in rows)]
    assert positions == [(states[i - i % 16], i % 16) for i in range(1, 101)]
    stream.close()


def test_rows_before_a_damaged_row_group_come_first(tmp_path):
    path = tmp_path / "t.parquet"
    write_parquet(path, numbers(1000), row_group_size=100)
    start = pq.ParquetFile(path).metadata.row_group(5).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 200] = bytes(200)
    path.write_bytes(content)
    for ds, each in ((ParquetIterDataset(path).map(lambda row: row["id"]), 1), (ParquetIterDataset(path).batch(7), 7)):
        seen = []
        iterator = iter(ds)
        with pytest.raises(DataError, match=r"t.parquet, row group 5, cannot be read: "):
            seen.extend(iterator)
        assert len(seen) == 500 // each
        with pytest.raises(DataError, match=r"row group 5"):
            next(iterator)


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
    assert_resumable(ParquetIterDataset(parquet_files[:6]).batch(3))
    assert_same_with_workers(ParquetIterDataset(parquet_files[3]).batch(4))


def test_parquet_columns_are_chosen_by_name(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", every_type())
    rows = list(ParquetIterDataset(path, columns=["text", "struct.x"]))
    assert rows[3] == {"text": "text 3", "struct": {"x": 3}}
    with pytest.raises(PipelineError, match=r"t.parquet has no column 'nope', only \['int64',"):
        list(ParquetIterDataset(path, columns=["text", "nope"]))
    for columns in ([], "text"):
        with pytest.raises(
            PipelineError, match=r"`columns` must be a sequence of at least one name.*got (\[\]|'text')"
        ):
            ParquetIterDataset(path, columns=columns)


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
    with pytest.raises(PipelineError, match="Parquet files (need a path, a pattern|need at least one path)"):
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
        with pytest.raises(DataError, match=r"Column 'x' has type \w+ in .* but type \w+ in "):
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
        with pytest.raises(StateError, match="t.parquet has 4 row groups.*The state was saved with a different file"):
            next(iterator)


def test_a_parquet_iterator_does_not_take_states_of_other_pipelines(tmp_path):
    iterator = iter(ParquetIterDataset(write_parquet(tmp_path / "t.parquet", every_type())))
    for state in ({"next_index": 3}, 3):
        with pytest.raises(StateError, match="state of another pipeline"):
            iterator.set_state(state)
    with pytest.raises(StateError, match="must be ints; got .*'0'"):
        iterator.set_state({"row_group": "0", "index_within_row_group": 0})


def test_without_pyarrow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependency, match=r"`pyarrow.parquet` is not installed.*\[parquet\]"):
        next(iter(ParquetIterDataset(__file__)))


def test_parquet_iterators_give_their_files_back(tmp_path):
    assert_files_are_given_back(ParquetIterDataset, write_parquet(tmp_path / "t.parquet", pa.table({"i": range(10)})))
