"""Tables as sources and streams: Parquet, Arrow IPC and Feather, CSV."""

import csv
import datetime
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._ops.source import Source
from headrace.dataset import MapDataset
from headrace.errors import ClosedError, DataError, PipelineError, StateError
from headrace.options import MultiprocessingOptions, ReadOptions
from headrace.sources.parquet import GroupShuffle, ParquetIterDataset, TableBatches, shuffled_groups
from headrace.sources.tables import ArrowDataSource, CsvDataSource, ParquetDataSource
from headrace.sources.tables.kept import Recent
from headrace.testing import assert_block_law, assert_equal, assert_resumable

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.csv")
pytest.importorskip("pyarrow.dataset")


def write_parquet(path, table, size=4, **options):
    pq.write_table(table, os.fspath(path), row_group_size=size, **options)


def write_ipc_file(path, table, size=4):
    with pa.ipc.new_file(os.fspath(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def write_ipc_stream(path, table, size=4):
    with pa.ipc.new_stream(os.fspath(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=size)


def write_feather(path, table, size=4):
    feather.write_feather(table, os.fspath(path), compression="zstd", chunksize=size)


WRITERS = {
    "parquet": (write_parquet, ParquetDataSource),
    "ipc file": (write_ipc_file, ArrowDataSource),
    "ipc stream": (write_ipc_stream, ArrowDataSource),
    "feather": (write_feather, ArrowDataSource),
}
every_format = pytest.mark.parametrize("format", WRITERS)


def written(format, path, table, size=4, **options):
    """A source of a table that was just written."""
    write, kind = WRITERS[format]
    write(path, table, size)
    return kind(path, **options)


def numbers(n=11, start=0):
    i = np.arange(start, start + n)
    return pa.table(
        {
            "id": i,
            "small": pa.array(i % 100, pa.uint8()),
            "half": (i / 2).astype(np.float32),
            "even": i % 2 == 0,
            "when": i.astype("datetime64[us]"),
            "pair": pa.FixedSizeListArray.from_arrays(np.repeat(i, 2).astype(np.int16), 2),
            "point": pa.StructArray.from_arrays([pa.array(i), pa.array(i / 4)], ["x", "y"]),
            "code": pa.array(i % 3).dictionary_encode(),
        }
    )


def row_of_numbers(i):
    return {
        "id": np.int64(i),
        "small": np.uint8(i % 100),
        "half": np.float32(i / 2),
        "even": np.bool_(i % 2 == 0),
        "when": np.datetime64(int(i), "us"),
        "pair": np.array([i, i], np.int16),
        "point": {"x": np.int64(i), "y": np.float64(i / 4)},
        "code": np.int64(i % 3),
    }


def objects(n=11):
    def none(i, value, at):
        return None if i % 5 == at else value

    return pa.table(
        {
            "int": pa.array([none(i, i, 1) for i in range(n)], pa.int32()),
            "bool": [none(i, i % 2 == 0, 2) for i in range(n)],
            "text": [none(i, "ü" * i, 3) for i in range(n)],
            "bytes": [bytes([i]) * i for i in range(n)],
            "list": pa.array([none(i, list(range(i % 4)), 4) for i in range(n)], pa.list_(pa.int16())),
            "gaps": pa.array([[i, none(i, 1, 0)] for i in range(n)], pa.list_(pa.int32())),
            "fixed": pa.array([none(i, [i, i], 2) for i in range(n)], pa.list_(pa.int8(), 2)),
            "lists": pa.array([[[i], []] for i in range(n)], pa.list_(pa.list_(pa.int64()))),
            "struct": [none(i, {"x": i, "y": {"z": str(i)}}, 1) for i in range(n)],
            "word": pa.array(["u" if i % 2 else "v" for i in range(n)]).dictionary_encode(),
            "time": pa.array([none(i, datetime.datetime(2020, 1, 1 + i), 0) for i in range(n)], pa.timestamp("us")),
            "nothing": pa.nulls(n),
        }
    )


def row_of_objects(i):
    def none(value, at, instead=None):
        return instead if i % 5 == at else value

    gap = i % 5 == 0
    return {
        "int": none(np.float64(i), 1, np.float64("nan")),
        "bool": none(i % 2 == 0, 2),
        "text": none("ü" * i, 3),
        "bytes": bytes([i]) * i,
        "list": none(np.arange(i % 4, dtype=np.int16), 4),
        "gaps": np.array([i, np.nan]) if gap else np.array([i, 1], np.int32),
        "fixed": none(np.array([i, i], np.int8), 2),
        "struct": none({"x": i, "y": {"z": str(i)}}, 1),
        "word": "u" if i % 2 else "v",
        "time": none(np.datetime64(datetime.datetime(2020, 1, 1 + i), "us"), 0, np.datetime64("NaT", "us")),
        "nothing": None,
    }


# ------------------------------------------------------------------------------------- rows and columns


@every_format
def test_numbers_are_columns(tmp_path, format):
    source = written(format, tmp_path / "t", numbers())
    assert len(source) == 11
    for i in range(-11, 11):
        assert_equal(source[i], row_of_numbers(i % 11))
    indices = np.array([3, 10, 3, 0, 7])
    columns = source.__getcolumns__(indices)
    for name in ("id", "small", "half", "even", "when", "pair", "code"):
        assert_equal(columns[name], np.stack([row_of_numbers(i)[name] for i in indices]))
    assert_equal(columns["point"]["y"], indices / 4)
    assert source.element_spec["pair"].shape == (2,)
    assert source.__getcolumns__(np.array([], np.int64))["pair"].shape == (0, 2)
    assert_block_law(MapDataset.source(source))
    assert_block_law(MapDataset.source(source).shuffle(seed=1).batch(4))


@every_format
def test_other_columns_are_rows(tmp_path, format):
    source = written(format, tmp_path / "t", objects())
    assert not hasattr(source, "__getcolumns__")
    assert source.element_spec is None
    for i in range(11):
        row = source[i]
        lists = row.pop("lists")
        assert_equal(row, row_of_objects(i))
        assert [list(each) for each in lists] == [[i], []]
    flat = [name for name in objects().column_names if name != "lists"]
    assert_block_law(MapDataset.source(written(format, tmp_path / "t", objects(), columns=flat)))


@every_format
@pytest.mark.parametrize("index", [11, -12, 10**30])
def test_an_index_out_of_range_is_an_error(tmp_path, format, index):
    with pytest.raises(IndexError, match="out of range for 11 rows"):
        written(format, tmp_path / "t", numbers())[index]


def test_rows_are_those_that_parquet_streams_hand_over(tmp_path):
    source = written("parquet", tmp_path / "t", objects().drop_columns(["int", "bool", "gaps", "fixed", "struct"]))
    for mine, row in zip(source, ParquetIterDataset(tmp_path / "t"), strict=True):
        for name, value in row.items():
            if name != "lists":
                assert_equal(mine[name], value)


values = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31)), max_size=20).map(lambda v: pa.array(v, pa.int64())),
    st.lists(st.floats(width=32), max_size=20).map(lambda v: pa.array(v, pa.float32())),
    st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=20).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.booleans()), max_size=3)), max_size=20).map(
        lambda v: pa.array(v, pa.list_(pa.bool_()))
    ),
)


@settings(max_examples=25)
@given(column=values, size=st.integers(1, 6), format=st.sampled_from(sorted(WRITERS)))
def test_any_column_obeys_the_block_law(tmp_path_factory, column, size, format):
    table = pa.table({"v": column, "i": np.arange(len(column))})
    source = written(format, tmp_path_factory.mktemp("t") / "t", table, size)
    assert len(source) == len(column)
    assert_block_law(MapDataset.source(source), num_epochs=1)
    for i, expected in enumerate(column.to_pylist()):
        found = source[i]["v"]
        if isinstance(found, np.ndarray):
            assert list(found) == expected
        elif expected is None and column.type == pa.int64():
            assert np.isnan(found)
        else:
            assert_equal(found if expected is None else type(expected)(found), expected)


@every_format
def test_what_is_handed_over_can_be_changed(tmp_path, format):
    for table in (numbers(), objects().select(["list", "int"])):
        ds = MapDataset.source(written(format, tmp_path / "t", table))
        name = "pair" if "pair" in table.column_names else "list"
        for _ in range(2):
            element = ds[3]
            assert_equal(element[name], (row_of_numbers(3) | row_of_objects(3))[name])
            element[name][:] = 77
        batch = ds.batch(2)[1] if name == "pair" else {"pair": np.ones(1)}
        batch["pair"][:] = 77
        assert_equal(ds[2][name], (row_of_numbers(2) | row_of_objects(2))[name])


# ------------------------------------------------------------------------------- projection and filters


@every_format
def test_columns_are_chosen_by_name_in_the_order_given(tmp_path, format):
    source = written(format, tmp_path / "t", objects(), columns=["text", "int"])
    assert list(source[1]) == ["text", "int"]
    only = written(format, tmp_path / "t", objects(), columns=["time"])
    assert only.__getcolumns__(np.array([3]))["time"].dtype == "datetime64[us]"
    with pytest.raises(PipelineError, match=r"t has no column 'nope', only \['int', 'bool'"):
        written(format, tmp_path / "t", objects(), columns=["int", "nope"])
    for wrong in ("text", []):
        with pytest.raises(PipelineError, match="sequence of at least one name"):
            written(format, tmp_path / "t", objects(), columns=wrong)


def test_columns_that_are_not_chosen_are_not_read(tmp_path):
    write_parquet(tmp_path / "t", numbers(), compression="none", use_dictionary=False)
    chunk = pq.ParquetFile(tmp_path / "t").metadata.row_group(1).column(2)
    damage(tmp_path / "t", chunk.data_page_offset)
    assert ParquetDataSource(tmp_path / "t", columns=["id"])[5] == {"id": 5}
    with pytest.raises(DataError):
        ParquetDataSource(tmp_path / "t", columns=["half"])[5]


@every_format
def test_filters_keep_rows_in_order(tmp_path, format):
    source = written(
        format, tmp_path / "t", numbers(30), columns=["half"], filters=[("id", ">=", 9), ("small", "!=", 20)]
    )
    assert [2 * row["half"] for row in source] == [i for i in range(9, 30) if i != 20]
    assert_block_law(MapDataset.source(source))
    by_expression = written(format, tmp_path / "t", numbers(30), filters=pa.compute.field("id") > 27)
    assert [row["id"] for row in pickle.loads(pickle.dumps(by_expression))] == [28, 29]
    assert repr(source) != repr(by_expression)
    assert len(written(format, tmp_path / "t", numbers(30), filters=[("id", "<", 0)])) == 0
    either = written(format, tmp_path / "t", numbers(30), filters=[[("id", "==", 3)], [("id", "in", [8, 9])]])
    assert [row["id"] for row in either] == [3, 8, 9]


def test_row_groups_are_left_out_by_their_statistics(tmp_path):
    write_parquet(tmp_path / "t", numbers(), compression="none", use_dictionary=False)
    for group in (0, 2):
        damage(tmp_path / "t", pq.ParquetFile(tmp_path / "t").metadata.row_group(group).column(0).data_page_offset)
    source = ParquetDataSource(tmp_path / "t", columns=["id"], filters=[("id", ">", 4), ("id", "<", 8)])
    assert [row["id"] for row in source] == [5, 6, 7]
    source = ParquetDataSource(tmp_path / "t", columns=["id"], filters=[("id", ">", 4)])
    assert len(source) == 6
    with pytest.raises(DataError, match="row group 2"):
        source[5]


@every_format
def test_wrong_filters_are_errors(tmp_path, format):
    with pytest.raises(PipelineError, match=r"nope.*do not fit the columns of .*'id: int64'"):
        written(format, tmp_path / "t", numbers(), filters=[("nope", ">", 1)])
    with pytest.raises(PipelineError, match="must be a pyarrow expression, or tuples"):
        written(format, tmp_path / "t", numbers(), filters="id > 3")


def test_nulls_are_found_without_statistics(tmp_path):
    table = pa.table({"a": [1, 2, 3, 4, 5, None], "b": range(6)})
    write_parquet(tmp_path / "t", table, 2, write_statistics=False)
    source = ParquetDataSource(tmp_path / "t")
    assert_equal(source[0], {"a": np.float64(1), "b": np.int64(0)})
    assert np.isnan(source[5]["a"])


# ------------------------------------------------------------------------------------------------ files


@every_format
def test_several_files_are_one_table(tmp_path, format):
    write, kind = WRITERS[format]
    for i, n in enumerate([5, 0, 7, 1]):
        write(tmp_path / f"part {i}", numbers(n, start=10 * i))
    source = kind(str(tmp_path / "part ?"))
    assert [row["id"] for row in source] == [*range(5), *range(20, 27), 30]
    assert_block_law(MapDataset.source(source))
    assert kind([tmp_path / "part 3", tmp_path / "part 0"])[0]["id"] == 30


@every_format
def test_all_missing_files_are_named(tmp_path, format):
    write, kind = WRITERS[format]
    write(tmp_path / "a", numbers())
    with pytest.raises(FileNotFoundError, match=r"2 of 3 .*/b, .*/c"):
        kind([tmp_path / "b", tmp_path / "a", tmp_path / "c"])


@every_format
def test_a_schema_that_differs_is_named(tmp_path, format):
    write, kind = WRITERS[format]
    write(tmp_path / "a", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b", pa.table({"x": [1.5], "y": [2]}))
    write(tmp_path / "c", pa.table({"y": [3]}))
    with pytest.raises(DataError, match=r"Column 'x' is of type double in .*/b and of type int64 in .*/a"):
        kind([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(PipelineError, match=r"/c has no column 'x', which .*/a has"):
        kind([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(PipelineError, match=r"/c has no column 'x', which .*/a has"):
        kind([tmp_path / "c", tmp_path / "a"])
    assert [row["y"] for row in kind(sorted(tmp_path.iterdir()), columns=["y"])] == [1, 2, 3]


@every_format
@pytest.mark.parametrize("name", ["naïve 数据 🎉", "a [1] *?", "x\ny", "-"])
def test_files_may_have_any_name(tmp_path, format, name):
    assert written(format, tmp_path / name, numbers())[10]["id"] == 10


@every_format
def test_empty_tables_and_one_row(tmp_path, format):
    for table in (numbers(0), objects(0)):
        source = written(format, tmp_path / "t", table)
        assert len(source) == 0
        assert list(TableBatches(source)) == []
        assert_resumable(TableBatches(source))
    assert len(written(format, tmp_path / "t", objects(1))) == 1


@every_format
def test_values_may_be_large(tmp_path, format):
    large = "x" * 11_000_000
    source = written(format, tmp_path / "t", pa.table({"s": ["", large, "z"]}), 1)
    assert [len(source[i]["s"]) for i in (2, 1, 0)] == [1, 11_000_000, 0]


def damage(path, offset, length=8):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * length)


@every_format
def test_what_is_no_table_is_an_error(tmp_path, format):
    write, kind = WRITERS[format]
    for content in (b"", b"no table at all, but text"):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(DataError, match=r"/t cannot be read: .*damaged.*not one of"):
            kind(tmp_path / "t")
    write(tmp_path / "t", numbers(2000), 500)
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-200])
    if format == "ipc stream":
        (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"/t cannot be read"):
        kind(tmp_path / "t")


def test_a_damaged_row_group_is_named(tmp_path):
    write_parquet(tmp_path / "t", numbers(), compression="none", use_dictionary=False)
    offset = pq.ParquetFile(tmp_path / "t").metadata.row_group(2).column(0).data_page_offset
    damage(tmp_path / "t", offset)
    source = ParquetDataSource(tmp_path / "t")
    assert source[7]["id"] == 7
    with pytest.raises(DataError, match=rf"/t, row group 2 at offset {offset}, cannot be read"):
        source[8]


def test_checksums_of_pages_are_checked(tmp_path):
    write_parquet(tmp_path / "t", numbers(), compression="none", use_dictionary=False, write_page_checksum=True)
    chunk = pq.ParquetFile(tmp_path / "t").metadata.row_group(0).column(0)
    damage(tmp_path / "t", chunk.data_page_offset + chunk.total_compressed_size - 4, 2)
    for options in ({}, {"filters": [("id", ">=", 0)]}):
        with pytest.raises(DataError, match="(?i)checksum|crc"):
            ParquetDataSource(tmp_path / "t", columns=["id"], **options)[0]


def test_another_version_of_a_file_is_an_error(tmp_path):
    source = written("parquet", tmp_path / "t", numbers(11))
    source.close()
    write_parquet(tmp_path / "t", numbers(10))
    with pytest.raises(DataError, match=r"has 2 rows in row group 2 .*and had 3 when.*another version"):
        source[10]


def test_the_first_version_of_feather_is_an_error(tmp_path):
    (tmp_path / "t").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with pytest.raises(DataError, match="/t is in the first version of Feather"):
        ArrowDataSource(tmp_path / "t")


# -------------------------------------------------------------------------------------------------- CSV


def csv_file(path, text):
    path.write_bytes(text.encode())
    return str(path)


TEXT = 'id,x,name,"two\nlines"\n' + "".join(f'{i},{i / 2},"n, ""{i}""",{"" if i == 7 else i}\r\n' for i in range(20))


@pytest.mark.parametrize("block_bytes", [1, 30, 100, 1 << 20])
def test_csv_rows_do_not_depend_on_blocks(tmp_path, block_bytes):
    source = CsvDataSource(csv_file(tmp_path / "t.csv", TEXT), block_bytes=block_bytes)
    assert len(source) == 20
    for i in (0, 7, 19):
        last = np.float64("nan") if i == 7 else np.float64(i)
        assert_equal(source[i], {"id": np.int64(i), "x": np.float64(i / 2), "name": f'n, "{i}"', "two\nlines": last})
    assert_block_law(MapDataset.source(source))


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), st.integers(-9, 9)),
        max_size=12,
    ),
    block_bytes=st.integers(1, 40),
)
def test_csv_reads_what_python_writes(tmp_path_factory, rows, block_bytes):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "number"), *rows])
    source = CsvDataSource(path, block_bytes=block_bytes, column_types={"text": pa.string(), "number": pa.int64()})
    assert [(row["text"], int(row["number"])) for row in source] == rows


def test_csv_types_suit_all_blocks_and_files(tmp_path):
    a = csv_file(tmp_path / "a", "x,y,z\n1,1,\n2,2,\n3.5,q,1\n")
    source = CsvDataSource(a, block_bytes=5)
    assert [row["y"] for row in source] == ["1", "2", "q"]
    assert_equal(source[0]["x"], np.float64(1))
    b = csv_file(tmp_path / "b", "x,y,z\n7,r,\n")
    assert_equal(CsvDataSource([b, a])[0]["x"], np.float64(7))
    c = csv_file(tmp_path / "c", "x,y,z\nword,r,1\n")
    with pytest.raises(DataError, match=r"Column 'x' is of type string in .*/c and of type double in .*/a"):
        CsvDataSource([a, c])
    assert CsvDataSource([a, c], column_types={"x": pa.string()})[0]["x"] == "1"


def test_csv_options(tmp_path):
    path = csv_file(tmp_path / "t", "1;5\" pipe\n2;'x'\n\n")
    source = CsvDataSource(path, delimiter=";", quote_char=None, column_names=["n", "what"], filters=[("n", ">", 1)])
    assert list(source) == [{"n": 2, "what": "'x'"}]
    numbers = CsvDataSource(path, delimiter=";", quote_char=None, column_names=["n", "what"], columns=["n"])
    assert_equal(numbers.__getcolumns__(np.array([1, 0])), {"n": np.array([2, 1])})
    assert_equal(CsvDataSource(csv_file(tmp_path / "bom", "\ufeffa\n1\n"))[0], {"a": np.int64(1)})
    assert len(CsvDataSource(csv_file(tmp_path / "none", "a,b\n"))) == 0
    assert len(CsvDataSource(csv_file(tmp_path / "no newline", "a,b\n1,2"))) == 1


def test_wrong_csv_is_an_error_with_its_line(tmp_path):
    path = csv_file(tmp_path / "t", "a,b\n" + "1,2\n" * 10 + "3\n" + "1,2\n")
    with pytest.raises(
        DataError, match=r"/t, the lines from 9 on, at offset 32, cannot be read: .*Expected 2 columns, got 1"
    ):
        CsvDataSource(path, block_bytes=16)
    with pytest.raises(DataError, match=r"is empty: .*`column_names`"):
        CsvDataSource(csv_file(tmp_path / "e", ""))
    (tmp_path / "z").write_bytes(b"\x1f\x8b123")
    with pytest.raises(DataError, match="is compressed"):
        CsvDataSource(tmp_path / "z")
    with pytest.raises(DataError, match="invalid value 'x'"):
        CsvDataSource(csv_file(tmp_path / "x", "a\nx\n"), column_types={"a": pa.int64()})


# ----------------------------------------------------------------------------------- caches and threads


def counted(source):
    """The numbers of the groups that a source decodes, in order."""
    decoded, decode = [], source._decode

    def watched(number):
        decoded.append(number)
        return decode(number)

    source._decoded = Recent(source.cache_bytes, lambda columns: sum(c.nbytes for c in columns.values()), watched)
    return decoded


def test_the_cache_is_bounded(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100, cache_bytes=2 * 800)
    decoded = counted(source)
    for i in (0, 150, 50, 250, 60, 160):
        assert source[i]["i"] == i
    assert decoded == [0, 1, 2, 1]
    assert source._decoded._weight == 1600
    assert source.__getcolumns__(np.arange(0, 1000, 7))["i"].tolist() == list(range(0, 1000, 7))
    assert source._decoded._weight == 1600


def test_threads_decode_a_group_once(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(4000)}), 1000)
    decoded = counted(source)
    together = threading.Barrier(8)

    def read(seed):
        together.wait(10)
        indices = np.random.default_rng(seed).integers(0, 4000, 500)
        return np.array_equal(source.__getcolumns__(indices)["i"], indices)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))
    assert sorted(decoded) == [0, 1, 2, 3]


@every_format
def test_a_source_travels_without_its_rows(tmp_path, format):
    source = written(format, tmp_path / "t", pa.table({"i": np.arange(50_000)}), 10_000)
    source[0]
    pickled = pickle.dumps(source)
    assert len(pickled) < 5000
    again = pickle.loads(pickled)
    assert repr(again) == repr(source)
    assert again[49_999] == {"i": 49_999}


# ---------------------------------------------------------------------------------- order and streaming


def test_shuffled_groups_hold_every_row_and_read_each_group_once(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1030)}), 100, cache_bytes=300 * 8)
    decoded = counted(source)
    ds = shuffled_groups(source, window_size=150, seed=3)
    stream = ds.repeat(2).batch(32).to_iter_dataset(ReadOptions(num_threads=0))
    epochs = np.split(np.concatenate([batch["i"] for batch in stream]), 2)
    assert set(decoded) == set(range(11))
    assert max(map(decoded.count, decoded)) == 2  # a group of the end may still be there for the next epoch
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(1030))
        assert len(set((epoch[:150] // 100).tolist())) <= 3
    assert not np.array_equal(*epochs)
    assert np.array_equal(epochs[0], [row["i"] for row in shuffled_groups(source, window_size=150, seed=3)])
    assert not np.array_equal(epochs[0], [row["i"] for row in shuffled_groups(source, window_size=150, seed=4)])
    assert_block_law(ds)
    assert_resumable(ds.batch(100))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 25), st.integers(0, 2**32 - 1))
def test_every_window_keeps_to_groups(lengths, window_size, seed):
    ends = np.cumsum(lengths)
    op = GroupShuffle(Source(range(sum(lengths))), ends, window_size, seed)
    for epoch in range(2):
        order = op.indices(np.arange(op.length()) + epoch * op.length()) - epoch * op.length()
        assert np.array_equal(np.sort(order), np.arange(op.length()))
        groups = np.searchsorted(ends, order, side="right")
        left = dict(enumerate(lengths))
        under_way = set()
        for group in groups.tolist():
            under_way.add(group)
            left[group] -= 1
            under_way -= {group} if not left[group] else set()
            assert sum(lengths[g] for g in under_way) <= max(window_size, max(lengths))


def test_a_window_that_the_cache_cannot_hold_is_an_error(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100, cache_bytes=1000)
    with pytest.raises(PipelineError, match=r"up to 300 rows, of 2400 bytes.*`cache_bytes=2400`"):
        shuffled_groups(source, window_size=150, seed=3)


@every_format
def test_batches_are_those_of_the_source(tmp_path, format):
    source = written(format, tmp_path / "t", numbers(30), 7)
    for size in (1, 4, 7, 30, 100):
        batches = list(TableBatches(source, size))
        expected = list(MapDataset.source(source).batch(size))
        assert len(batches) == len(expected)
        for batch, other in zip(batches, expected, strict=True):
            assert_equal(batch, other)
    assert len(list(TableBatches(source, 8, drop_remainder=True))) == 3
    assert_resumable(TableBatches(source, 4))
    assert_resumable(TableBatches(source, 4).map(lambda batch: batch["id"]))
    batch = next(iter(TableBatches(source, 4)))
    batch["id"][:] = 7
    assert next(iter(TableBatches(source, 4)))["id"].tolist() == [0, 1, 2, 3]


def test_batches_of_objects(tmp_path):
    source = written("parquet", tmp_path / "t", objects(), columns=["text", "list", "int"])
    first, second = TableBatches(source, 6)
    assert second["text"].tolist() == [row_of_objects(i)["text"] for i in range(6, 11)]
    assert first["int"].dtype == np.float64
    assert_equal(first["list"][3], np.arange(3, dtype=np.int16))


def test_resuming_batches_reads_one_group(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100)
    iterator = iter(TableBatches(source, 10))
    iterator.set_state({"group": 8, "row_in_group": 50})
    read, read_group = [], source.read_group
    source.read_group = lambda number: read.append(number) or read_group(number)
    assert next(iterator)["i"].tolist() == list(range(850, 860))
    assert read == [8]
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)


@pytest.mark.parametrize("state", [{"group": 3, "row_in_group": 1}, {"group": 0, "row_in_group": 4}, {}, None])
def test_a_state_of_other_batches_is_an_error(tmp_path, state):
    iterator = iter(TableBatches(written("parquet", tmp_path / "t", numbers())))
    with pytest.raises(StateError, match="state"):
        iterator.set_state(state)


def test_only_tables_are_cut_into_batches(tmp_path):
    with pytest.raises(PipelineError, match="must be a source of tables"):
        TableBatches([1, 2, 3])
    with pytest.raises(PipelineError, match="batch_size must be a positive int"):
        TableBatches(written("parquet", tmp_path / "t", numbers()), 0)


def test_streams_are_the_same_with_workers(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(500), "s": [str(i) for i in range(500)]}), 60)
    only_numbers = written("parquet", tmp_path / "u", pa.table({"i": np.arange(500)}), 60)
    csv_source = CsvDataSource(csv_file(tmp_path / "c", "i\n" + "\n".join(map(str, range(500)))), block_bytes=200)
    shuffled = shuffled_groups(only_numbers, window_size=100, seed=1).batch(16).to_iter_dataset()
    rows = MapDataset.source(source).shuffle(seed=1).to_iter_dataset().filter(lambda row: row["i"] % 3).batch(8)
    for ds in (shuffled, rows, TableBatches(csv_source, 64)):
        inline, workers = list(ds), list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
        assert len(inline) == len(workers)
        for a, b in zip(inline, workers, strict=True):
            assert_equal(a, b)


@every_format
def test_addresses_are_read_like_files(tmp_path, format):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("headrace.sources.remote")
    write, kind = WRITERS[format]
    write(tmp_path / "t", numbers())
    memory = fsspec.filesystem("memory")
    memory.pipe("/tables/t", (tmp_path / "t").read_bytes())
    try:
        source = kind("memory://tables/t", filters=[("id", ">", 3)])
        assert [row["id"] for row in source] == list(range(4, 11))
    finally:
        memory.rm("/tables", recursive=True)
