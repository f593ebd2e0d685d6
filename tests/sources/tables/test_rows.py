"""Rows and columns of tables: what values are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset import MapDataset
from headrace.sources.parquet import ParquetIterDataset
from headrace.testing import assert_block_law, assert_equal
from tests.sources.tables.formats import (
    WRITERS,
    every_format,
    numbers,
    objects,
    pa,
    row_of_numbers,
    row_of_objects,
    written,
)


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


def test_rows_are_those_that_parquet_streams_hand_over(tmp_path):
    source = written("parquet", tmp_path / "t", objects())
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


LARGE = 2**60 + 1  # no float is equal to it


def shown(value):
    """A value as one that can be compared, with the types of what is in it."""
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [type(value).__name__, getattr(value, "dtype", None), *map(shown, value)]
    return type(value).__name__, repr(value)


def assert_rows_do_not_depend_on_others(source, num_rows):
    assert len(source) == num_rows
    alone = [shown(source[i]) for i in range(num_rows)]
    assert [shown(row) for row in source.__getitems__(range(num_rows))] == alone


@every_format
def test_maps_are_lists_of_pairs(tmp_path, format):
    ints = pa.map_(pa.string(), pa.int64())
    values = [[("a", 1)], None, [("b", None)], [], [("a", LARGE), ("c", 2)]]
    table = pa.table(
        {
            "map": pa.array(values, ints),
            "in list": pa.array([[value, []] for value in values], pa.list_(ints)),
            "in struct": pa.array([{"m": value} for value in values], pa.struct([("m", ints)])),
            "of lists": pa.array([[("k", [i, i])] for i in range(5)], pa.map_(pa.string(), pa.list_(pa.int16()))),
        }
    )
    source = written(format, tmp_path / "t", table, 3)
    assert_rows_do_not_depend_on_others(source, 5)
    for row, value in zip(source, values, strict=True):
        assert row["map"] == row["in struct"]["m"] == row["in list"][0] == value
        assert shown(row["map"]) == shown(value)
    assert_equal(source[3]["of lists"][0][1], np.array([3, 3], np.int16))


@every_format
def test_views_of_lists_are_arrays(tmp_path, format):
    values = [[1], None, [LARGE], [], [2, None]]
    table = pa.table(
        {
            "view": pa.array(values, pa.list_view(pa.int64())),
            "large": pa.array(values, pa.large_list_view(pa.int64())),
            "in struct": pa.array([{"v": v} for v in values], pa.struct([("v", pa.list_view(pa.int64()))])),
        }
    )
    source = written(format, tmp_path / "t", table, 3)
    assert_rows_do_not_depend_on_others(source, 5)
    for row in (source[2], source.__getitems__([1, 2])[1]):
        for value in (row["view"], row["large"], row["in struct"]["v"]):
            assert_equal(value, np.array([LARGE]))
    assert source[1]["view"] is None


@every_format
def test_views_of_strings_and_bytes_are_strings_and_bytes(tmp_path, format):
    values = ["short", None, "a string that is too long to stand in a view", "ü"]
    text = pa.array(values).cast(pa.string_view())
    table = pa.table(
        {
            "id": range(4),
            "text": text,
            "bytes": pa.array([value and value.encode() for value in values]).cast(pa.binary_view()),
            "list": pa.ListArray.from_arrays([0, 1, 2, 3, 4], text),
            "view": pa.ListViewArray.from_arrays([0, 1, 2, 3], [1, 1, 1, 1], text),
            "fixed": pa.FixedSizeListArray.from_arrays(text, 1),
            "struct": pa.StructArray.from_arrays([text], ["s"]),
            "map": pa.MapArray.from_arrays([0, 1, 2, 3, 4], pa.array(["k"] * 4), text),
        }
    )
    source = written(format, tmp_path / "t", table)  # pyarrow cannot write parts of such to Parquet
    assert_rows_do_not_depend_on_others(source, 4)
    for row, value in zip(source, values, strict=True):
        assert row["text"] == row["struct"]["s"] == value
        assert row["bytes"] == (value and value.encode())
        assert list(row["list"]) == list(row["view"]) == list(row["fixed"]) == [value]
        assert row["map"] == [("k", value)]
    for filters in ([("text", "==", "short")], [("text", "in", ["short"])], [("id", "<", 1)]):
        assert [row["id"] for row in written(format, tmp_path / "t", table, filters=filters)] == [0]
