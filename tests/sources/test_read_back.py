"""Every writer is read back equal by its own reader, or writes nothing."""

import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import MapDataset
from headrace.errors import DataError, PipelineError
from headrace.sources import ParquetIterDataset, opening
from headrace.sources.writers import table_writers, writer_of
from headrace.trees import ShapeDtypeStruct
from tests.sources.elements import INTS, NAMES, TEXT, anything, assert_same, rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("array_record")

RECORDS, LINES, TABLES = ["tfrecord", "array_record"], ["jsonl"], ["parquet", "arrow"]
HOLD_TREES = [*RECORDS, *LINES, *TABLES]


def write(elements, path, **options):
    return writer_of(str(path))(elements, path, **options)


def read(paths):
    """The elements of files, by the call that the documentation gives."""
    return opening.open(paths, parse_examples=str(paths[0]).endswith(tuple(RECORDS)))


@pytest.mark.parametrize("suffix", HOLD_TREES)
@given(data=st.data())
def test_elements_of_one_kind_come_back_equal(suffix, data):
    elements = data.draw(rows(binary=suffix != "jsonl", nan=suffix != "jsonl"))
    with tempfile.TemporaryDirectory() as folder:
        assert_same(elements, read(write(elements, f"{folder}/a.{suffix}")))


@pytest.mark.parametrize("suffix", [*HOLD_TREES, "csv"])
@given(
    elements=st.lists(anything().filter(lambda value: value is not None), max_size=3) | rows(),
    num_shards=st.integers(1, 2),
)
def test_any_elements_come_back_equal_or_no_file_is_left(suffix, elements, num_shards):
    with tempfile.TemporaryDirectory() as folder:
        try:
            paths = write(elements, f"{folder}/a.{suffix}", num_shards=num_shards)
        except PipelineError:
            assert os.listdir(folder) == []
            return
        are_records = suffix in RECORDS and elements and all(isinstance(element, bytes) for element in elements)
        assert_same(elements, opening.open(paths) if are_records else read(paths))


TEXT_COLUMN = TEXT.map(lambda text: "x" + text.replace("\0", ""))
SIMPLE = st.sampled_from([INTS, st.floats(allow_nan=False), st.booleans(), TEXT_COLUMN])


@given(data=st.data(), num_shards=st.integers(1, 2))
def test_rows_of_numbers_and_text_come_back_equal_from_csv(data, num_shards):
    columns = data.draw(st.dictionaries(NAMES, SIMPLE, min_size=1, max_size=4))
    elements = data.draw(st.lists(st.fixed_dictionaries(columns), min_size=num_shards, max_size=20))
    with tempfile.TemporaryDirectory() as folder:
        paths = write(elements, f"{folder}/a.csv", num_shards=num_shards)
        assert_same(elements, read(paths))
        assert_same(elements, [row for path in paths for row in read([path])])


def rich(i):
    """An element with what users have: an image, boxes, text, numbers, parts that may be missing."""
    return {
        "image": np.full((4, 5 + i % 2, 3), i, np.uint8),
        "boxes": np.arange(4 * (i % 3), dtype=np.float32).reshape(-1, 4),
        "label": i,
        "weight": i / 3,
        "half": np.float16(i / 4),
        "text": f"ünï {i}",
        "raw": b"bytes %d" % i,
        "maybe": None if i % 2 else i,
        "tokens": np.arange(i),
        "words": [f"w{j}" for j in range(i)],
        "nested": {"pair": (i, "a"), "ratio": np.float32(0.1), "flags": np.array([True, False])},
    }


RICH = [rich(i) for i in range(6)]


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("suffix", HOLD_TREES)
def test_elements_that_users_have_come_back_equal(tmp_path, suffix, num_shards):
    paths = write(MapDataset.source(RICH), tmp_path / f"a.{suffix}", num_shards=num_shards)
    assert_same(RICH, read(paths))
    if suffix == "parquet":
        assert_same([RICH[0], RICH[1]], itertools.islice(ParquetIterDataset(paths[:1]), 2))
        (path,) = write(RICH, tmp_path / "groups.parquet", row_group_rows=2)
        assert_same(RICH, read([path]))
        assert_same(RICH, MapDataset.source(read([path]))[::-1][::-1])


@pytest.mark.parametrize("suffix", HOLD_TREES)
def test_no_elements_come_back(tmp_path, suffix):
    assert list(read(write([], tmp_path / f"a.{suffix}"))) == []


@pytest.mark.parametrize("suffix", TABLES)
def test_numbers_of_rows_are_read_as_columns(tmp_path, suffix):
    rows = [{"x": i, "y": {"z": np.float32(i)}} for i in range(9)]
    source = read(write(rows, tmp_path / f"a.{suffix}"))
    assert_same(
        [{"x": np.arange(9), "y": {"z": np.arange(9, dtype=np.float32)}}], [source.__getcolumns__(np.arange(9))]
    )
    bare = read(write(range(9), tmp_path / f"b.{suffix}"))
    assert_same([np.arange(9)], MapDataset.source(bare).batch(9))
    assert_same([{"record": i} for i in range(9)], opening.open(tmp_path / f"b.{suffix}", columns=["record"]))


@pytest.mark.parametrize("suffix", TABLES)
def test_arrays_without_values_keep_their_shape_or_are_an_error(tmp_path, suffix):
    rows = [{"x": np.zeros(shape, np.int16)} for shape in ((0, 4), (2, 4), (0, 4))]
    assert_same(rows, read(write(rows, tmp_path / f"a.{suffix}")))
    with pytest.raises(PipelineError, match=r"an array of the shape \(0, [45]\) has no values"):
        write([*rows, {"x": np.zeros((0, 5), np.int16)}, {"x": np.zeros((1, 6), np.int16)}], tmp_path / f"b.{suffix}")


@pytest.mark.parametrize("suffix", TABLES)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, "a"], "it has values of the kinds int, str"),
        ([np.int16(1), np.int32(1)], "it has values of int16 and int32"),
        ([np.float32(1), 0.1], "values that float32 does not hold exactly"),
        ([True, 1], "it has bools and other numbers"),
        ([[1], (1,)], "it has values of the kinds list, tuple"),
        ([np.zeros(2), np.zeros((2, 2))], "it has arrays of float64, of 1 and 2 axes"),
        ([np.zeros(2), np.zeros(2, np.int8)], "it has arrays of float64 and int8"),
        ([np.zeros(2, np.complex64)], "values of complex64, for which Arrow has no type"),
        ([{"a": 1}, {"b": 1}], r"dicts with the keys \['b'\] and with \['a'\]"),
        ([{1, 2}], "values of the class set would come back as something else"),
        ([np.ma.array([1], mask=[True])], "a masked array"),
    ],
)
def test_a_column_of_several_kinds_is_an_error_unless_plain_values_will_do(tmp_path, suffix, values, message):
    with pytest.raises(PipelineError, match=message):
        write([{"x": value} for value in values], tmp_path / f"a.{suffix}")
    assert os.listdir(tmp_path) == []


def test_plain_tables_have_no_note(tmp_path):
    (path,) = write([{"x": np.int16(1)}, {"x": 2}, {"x": None}], tmp_path / "a.parquet", plain=True)
    assert pq.read_schema(path).metadata is None
    assert_same([{"x": 1.0}, {"x": 2.0}, {"x": np.nan}], read([path]))


def test_nested_arrays_end_a_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(table_writers, "ROW_GROUP_BYTES", 1 << 20)  # instead of 64 MiB
    (path,) = write([{"x": {"y": [np.zeros(160_000, np.uint8)]}}] * 10, tmp_path / "a.parquet")
    assert pq.ParquetFile(path).num_row_groups == 2


def test_tensors_of_a_schema_are_read_in_their_shape(tmp_path):
    schema = pa.schema([("x", pa.fixed_shape_tensor(pa.float32(), [2, 3]))])
    rows = [{"x": np.arange(6, dtype=np.float32).reshape(2, 3) + i} for i in range(4)]
    (path,) = write(rows, tmp_path / "a.parquet", schema=schema)
    assert_same(rows, read([path]))
    assert read([path]).element_spec == {"x": ShapeDtypeStruct((2, 3), np.float32)}
    with pytest.raises(PipelineError, match=r"it has arrays of the shape \(3, 2\)"):
        write([{"x": np.zeros((3, 2))}], tmp_path / "b.parquet", schema=schema)


def test_files_of_different_elements_are_not_read_as_one(tmp_path):
    (lists,) = write([{"x": [1, 2]}], tmp_path / "a.parquet")
    (arrays,) = write([{"x": np.array([1, 2])}], tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b.parquet and .*a.parquet were written from different column 'x'"):
        opening.open([lists, arrays])
    (bare,) = write([1], tmp_path / "c.parquet")
    (row,) = write([{"record": 1}], tmp_path / "d.parquet")
    with pytest.raises(DataError, match="different elements"):
        opening.open([bare, row])
    pq.write_table(pa.table({"record": [2]}), tmp_path / "e.parquet")  # no note, and nothing of importance in the other
    assert_same([{"record": 1}, {"record": 2}], opening.open([row, str(tmp_path / "e.parquet")]))


def test_files_that_others_wrote_again_are_read(tmp_path):
    (path,) = write(RICH, tmp_path / "a.parquet")
    table = pq.read_table(path).select(["image", "label"])
    changed = table.append_column("more", pa.array([1.5] * 6)).set_column(0, "image", pa.array(["no image"] * 6))
    pq.write_table(changed, tmp_path / "b.parquet")
    expected = [{"image": "no image", "label": i, "more": 1.5} for i in range(6)]
    assert_same(expected, opening.open(tmp_path / "b.parquet"))
    broken = table.replace_schema_metadata({"headrace": "{"})
    pq.write_table(broken, tmp_path / "c.parquet")
    with pytest.raises(DataError, match="has metadata 'headrace' that Headrace did not write"):
        opening.open(tmp_path / "c.parquet")


BEFORE = Path(__file__).parent / "fixtures" / "written_before"  # by the writers before there were notes


def test_files_that_were_written_without_notes_are_read_as_ever(tmp_path):
    folder = shutil.copytree(BEFORE, tmp_path / "before")
    for suffix in TABLES:
        row = opening.open(folder / f"rows.{suffix}")[2]
        assert row["x"].dtype == object
        x = np.array([[2, 3], [4, 5]], np.float32)
        assert_same(
            [row | {"x": np.stack(row["x"])}],
            [{"id": 2, "x": x, "text": "t2", "raw": b"\2", "tokens": np.arange(2), "maybe": 2.0}],
        )
    row = opening.open(folder / "rows.tfrecord", parse_examples=True)[2]
    flat = {"id": [2], "maybe": [2], "tokens": [0, 1]}
    assert_same(
        [
            {name: np.array(values) for name, values in flat.items()}
            | {"raw": [b"\2"], "text": [b"t2"], "x": np.arange(2, 6, dtype=np.float32)}
        ],
        [row],
    )
    assert opening.open(folder / "rows.jsonl")[1] == {
        "id": 1,
        "x": [[1.0, 2.0], [3.0, 4.0]],
        "text": "t1",
        "tokens": [0],
        "maybe": None,
    }
    assert_same([{"record": b"a"}, {"record": b"b"}], opening.open(folder / "records.parquet"))


@pytest.mark.parametrize("note", [1, "{", '["list",[]]', '{"x":["uint8",[3]]}', '{"x":"bytes"}', '{"y":"bytes"}'])
def test_a_note_in_json_that_does_not_fit_is_damage(tmp_path, note):
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": [1], "__headrace__": note}) + "\n")
    with pytest.raises(DataError, match="Line 1 of .*the note '__headrace__' does not fit the values"):
        list(opening.open(tmp_path / "a.jsonl"))
