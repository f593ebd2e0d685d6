"""Files of tables: several, odd ones, damaged ones."""

import pickle

import pytest

from headrace.dataset import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import ArrowDataSource, ParquetDataSource
from headrace.sources.parquet import TableBatches
from headrace.testing import assert_block_law, assert_resumable
from tests.sources.tables.formats import (
    WRITERS,
    damage,
    every_format,
    numbers,
    objects,
    pa,
    pq,
    write_parquet,
    written,
)


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
def test_a_schema_that_differs_is_named(tmp_path, format):
    write, kind = WRITERS[format]
    write(tmp_path / "a", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b", pa.table({"x": [1.5], "y": [2]}))
    write(tmp_path / "c", pa.table({"y": [3]}))
    with pytest.raises(DataError, match=r"Column 'x' has type double in .*/b but type int64 in .*/a"):
        kind([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(PipelineError, match=r"/c has no column 'x', which .*/a has"):
        kind([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(PipelineError, match=r"/c has no column 'x', which .*/a has"):
        kind([tmp_path / "c", tmp_path / "a"])
    assert [row["y"] for row in kind(sorted(tmp_path.iterdir()), columns=["y"])] == [1, 2, 3]


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


@every_format
def test_another_version_of_a_file_is_an_error(tmp_path, format):
    source = written(format, tmp_path / "t", numbers(11))
    sent = pickle.dumps(source)
    source.close()
    written(format, tmp_path / "t", numbers(10))
    for one in (source, pickle.loads(sent)):
        with pytest.raises(DataError, match=r"/t has changed since its source was created"):
            one[10]


def test_the_first_version_of_feather_is_an_error(tmp_path):
    (tmp_path / "t").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with pytest.raises(DataError, match="/t uses version 1 of Feather"):
        ArrowDataSource(tmp_path / "t")
