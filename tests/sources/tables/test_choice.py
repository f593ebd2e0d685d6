"""Columns and rows of tables that are chosen."""

import pickle

import numpy as np
import pytest

from headrace.dataset import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import ParquetDataSource
from headrace.testing import assert_block_law, assert_equal
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
    with pytest.raises(PipelineError, match=r"nope.*do not match the columns of .*'id: int64'"):
        written(format, tmp_path / "t", numbers(), filters=[("nope", ">", 1)])
    with pytest.raises(PipelineError, match="must be a pyarrow expression, or tuples"):
        written(format, tmp_path / "t", numbers(), filters="id > 3")


def test_nulls_are_found_without_statistics(tmp_path):
    table = pa.table({"a": [1, 2, 3, 4, 5, None], "b": range(6)})
    write_parquet(tmp_path / "t", table, 2, write_statistics=False)
    source = ParquetDataSource(tmp_path / "t")
    assert_equal(source[0], {"a": np.float64(1), "b": np.int64(0)})
    assert np.isnan(source[5]["a"])


def nested():
    inner = [{"x": i, "y": {"z": i / 2, "text": str(i)}} for i in range(11)]
    return pa.table({"id": range(11), "s": inner, "gap": [None, *inner[1:]], "s.x": [-i for i in range(11)]})


@every_format
def test_fields_of_structs_are_chosen_by_their_path(tmp_path, format):
    source = written(format, tmp_path / "t", nested(), columns=["s.y.z", "id"])
    assert list(source[3]) == ["s", "id"]
    columns = source.__getcolumns__(np.array([3, 10]))
    assert_equal(columns, {"s": {"y": {"z": np.array([1.5, 5.0])}}, "id": np.array([3, 10])})
    source = written(format, tmp_path / "t", nested(), columns=["gap.y.text", "gap.x"], filters=[("id", "<", 2)])
    assert list(source) == [{"gap": None}, {"gap": {"x": 1, "y": {"text": "1"}}}]
    assert_block_law(MapDataset.source(source))
    literal = written(format, tmp_path / "t", nested(), columns=["s.x"])  # the name of a column, too
    assert literal[4] == {"s.x": -4}
    whole = written(format, tmp_path / "t", nested(), columns=["s", "s.y"])
    assert whole[4]["s"] == {"x": 4, "y": {"z": 2.0, "text": "4"}}
    for wrong in ("s.nope", "s.y.z.w", "id.x", "nope.x", "s."):
        with pytest.raises(PipelineError, match=f"has no column '{wrong}', only"):
            written(format, tmp_path / "t", nested(), columns=[wrong])


@every_format
def test_nulls_in_fields_that_are_not_chosen_change_nothing(tmp_path, format):
    table = pa.table({"s": [{"x": i, "y": None, "z": {"a": i, "b": None}} for i in range(11)]})
    source = written(format, tmp_path / "t", table, columns=["s.x", "s.z.a"])
    assert_equal(source.__getcolumns__(np.array([7]))["s"], {"x": np.array([7]), "z": {"a": np.array([7])}})
    write_parquet(tmp_path / "t", table, write_statistics=False)
    assert_equal(ParquetDataSource(tmp_path / "t", columns=["s.z.a"])[7], {"s": {"z": {"a": np.int64(7)}}})
    assert not hasattr(written(format, tmp_path / "t", table, columns=["s.z"]), "__getcolumns__")


@every_format
def test_nested_fields_that_differ_are_named(tmp_path, format):
    write, kind = WRITERS[format]
    write(tmp_path / "a", pa.table({"s": [{"x": 1, "y": 1}]}))
    write(tmp_path / "b", pa.table({"s": [{"x": 1, "y": 1.5}]}))
    with pytest.raises(DataError, match=r"Column 's' has type struct<y: double> in .*/b but type struct<y: int64>"):
        kind([tmp_path / "a", tmp_path / "b"], columns=["s.y"])
    assert len(kind([tmp_path / "a", tmp_path / "b"], columns=["s.x"])) == 2


@every_format
def test_filters_are_checked_for_every_file(tmp_path, format):
    write, kind = WRITERS[format]
    write(tmp_path / "a", pa.table({"x": [1], "y": [1]}))
    write(tmp_path / "b", pa.table({"x": [1], "y": ["one"]}))
    with pytest.raises(PipelineError, match=r"do not match the columns of .*/b"):
        kind([tmp_path / "a", tmp_path / "b"], columns=["x"], filters=[("y", ">", 0)])


@pytest.mark.parametrize("name", ["plain", "a b", "q\"uote's", "ünï 字", "new\nline", "back\\slash", "a.b"])
@every_format
def test_filters_may_look_at_columns_of_any_name(tmp_path, format, name):
    table = pa.table({"id": range(11), name: range(11), "other": range(11)})
    source = written(format, tmp_path / "t", table, columns=["id"], filters=[(name, ">", 8)])
    assert [row["id"] for row in source] == [9, 10]
    expression = pa.compute.field(name) > 8
    assert len(written(format, tmp_path / "t", table, columns=["id"], filters=expression)) == 2


@pytest.mark.parametrize("operation", ["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
def test_filters_find_nan(tmp_path, operation):
    x = [1.0, 1.0, np.nan, 1.0, 3.0, 3.0, np.nan, 4.0]
    table = pa.table({"id": range(8), "x": x, "s": [{"x": value} for value in x]})
    field = pa.compute.field
    for value in (1.0, 3.5):
        given = [value] if operation.endswith("in") else value
        for filters in ([("x", operation, given)], ~(field("x") == value), field("s", "x") != value):
            source = written("parquet", tmp_path / "t", table, columns=["id"], filters=filters)
            expected = table.filter(pq.filters_to_expression(filters)).column("id").to_pylist()
            assert [row["id"] for row in source] == expected


def test_row_groups_without_nan_that_passes_are_left_out_by_their_statistics(tmp_path):
    write_parquet(tmp_path / "t", numbers(), compression="none", use_dictionary=False)
    damage(tmp_path / "t", pq.ParquetFile(tmp_path / "t").metadata.row_group(0).column(2).data_page_offset)
    source = ParquetDataSource(tmp_path / "t", columns=["id"], filters=[("half", ">=", 2.5)])
    assert [row["id"] for row in source] == list(range(5, 11))
    with pytest.raises(DataError, match="/t, row group 0 at offset"):
        ParquetDataSource(tmp_path / "t", columns=["id"], filters=[("half", "!=", 2.5)])
