"""DataFrames of pandas and polars and tables of pyarrow as sources: the rows of the same table in a Parquet file."""

import datetime
import decimal
import pickle

import numpy as np
import pytest

from headrace import DataLoader, MapDataset
from headrace.errors import PipelineError, StructureError
from headrace.ops.adapters import as_source
from headrace.samplers import IndexSampler
from headrace.sources import ParquetDataSource
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.trees import ShapeDtypeStruct

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

LENGTH = 12
DAY = datetime.datetime(2024, 2, 29, 12)


def every(values):
    return [values[i % len(values)] for i in range(LENGTH)]


NUMBERS = {
    "int": every([1, 2, -3]),
    "float": every([0.5, float("nan"), 2.0]),
    "gaps": every([1, None, 3]),  # floats, since ints have no missing value
    "bool": every([True, False, True]),
    "time": every([DAY, None, DAY]),
    "even": every([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
}
OTHERS = {
    "deep": every([[[1, 2]], [[3, 4]], [[5, 6]]]),
    "text": every(["a", "", "längere"]),
    "missing": every(["a", None, "b"]),
    "bytes": every([b"\0x", b"", b"y"]),
    "maybe": every([True, None, False]),
    "lists": every([[1, 2], [], [3]]),
    "list_gaps": every([[1, None], [2, 3], None]),
    "words": every([["a", "b"], [], ["c"]]),
    "day": every([DAY.date(), DAY.date(), None]),
    "price": every([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")]),
    "clock": every([DAY.time(), None, DAY.time()]),
    "struct": every([{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 3, "y": "c"}]),
}
TABLE = pa.table(NUMBERS | OTHERS)
LIBRARIES = {
    "pyarrow": lambda table: table,
    "record batch": lambda table: table.combine_chunks().to_batches()[0],
    "chunks": lambda table: pa.concat_tables([table[:5], table[5:]]),
    "polars": pl.from_arrow,
    "pandas": lambda table: table.to_pandas(),
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
}


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    def written(table):
        path = tmp_path_factory.mktemp("parquet") / "table.parquet"
        pa.parquet.write_table(table, path)
        return ParquetDataSource(path)

    pytest.importorskip("pyarrow.parquet")
    return written


def assert_same_rows(ds, expected):
    rows, others = list(ds), list(expected)
    assert len(rows) == len(others)
    for row, other in zip(rows, others, strict=True):
        assert list(row) == list(other)
        for name in row:
            assert_equal(_time_in_us(row[name]), _time_in_us(other[name]))


def _time_in_us(value):
    """Libraries differ in the unit of times."""
    is_time = isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] != "D"
    return value.astype("datetime64[us]") if is_time else value


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("names", [list(NUMBERS), [*NUMBERS, *OTHERS]], ids=["numbers", "all"])
def test_rows_are_those_of_a_parquet_file(library, names, parquet):
    table = TABLE.select(names)
    if library == "pandas":  # it makes objects of lists, in which ints with gaps are floats anyway
        table = table.drop_columns([name for name in ("list_gaps", "deep") if name in names])
    ds = MapDataset.source(LIBRARIES[library](table))
    assert_same_rows(ds, MapDataset.source(parquet(table)))
    assert_block_law(ds)
    assert_equal(ds[-1], ds[LENGTH - 1])


@pytest.mark.parametrize("library", LIBRARIES)
def test_batches_are_stacks_of_rows_and_gathered(library):
    for names in (["int", "float", "even"], ["int", "even", "text", "bytes"], ["text"]):
        ds = MapDataset.source(LIBRARIES[library](TABLE.select(names))).shuffle(seed=1)
        assert "one gather per batch" in str(ds.batch(5).explain())
        assert_equal(list(ds.batch(5)), list(ds.map(lambda row: row).batch(5)))
        assert_resumable(ds.batch(5).to_iter_dataset())


def test_numbers_are_read_as_arrays_with_specs():
    for frame in (pd.DataFrame({"x": [1, 2], "y": [0.5, 1]}), pl.DataFrame({"x": [1, 2], "y": [0.5, 1]})):
        ds = MapDataset.source(frame)
        assert ds.element_spec == {"x": ShapeDtypeStruct((), np.int64), "y": ShapeDtypeStruct((), np.float64)}
        assert_equal(ds.batch(2)[0], {"x": np.array([1, 2]), "y": np.array([0.5, 1.0])})
    vectors = pd.DataFrame({"v": list(np.arange(6.0).reshape(3, 2))})
    assert MapDataset.source(vectors).element_spec == {"v": ShapeDtypeStruct((2,), np.float64)}


def test_a_batch_with_missing_text_is_an_error_that_says_where():
    ds = MapDataset.source(TABLE.select(["int", "missing"]).to_pandas()).batch(4)
    with pytest.raises(StructureError, match=r"at leaf \['missing'\]: element 0 has str, element 1 has NoneType") as e:
        ds[0]
    assert "in batch(4)" in e.value.__notes__[0]
    filled = MapDataset.source(TABLE.select(["missing"])).map(lambda row: row["missing"] or "")
    assert filled.batch(3)[0].tolist() == ["a", "", "b"]


def test_types_that_only_pandas_has():
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["u", "v", None]),
            "number": pd.Categorical([3, 4, 3]),
            "nullable": pd.array([1, None, 3], dtype="Int64"),
            "whole": pd.array([1, 2, 3], dtype="Int16"),
            "zone": pd.to_datetime(["2024-01-01"] * 3).tz_localize("Europe/Berlin"),
            "month": pd.period_range("2024-01", periods=3, freq="M"),
            "sparse": pd.arrays.SparseArray([0, 0, 1]),
            "span": pd.to_timedelta([1, 2, None], unit="s"),
            "complex": [1j, 2j, 3j],
            "half": np.ones(3, np.float16),
            "image": [np.full((2, 2), i) for i in range(3)],
            "mixed": [1, "a", float("nan")],
            7: ["a column", "named", "by a number"],
        },
        index=[10, 20, 30],
    )
    rows = list(MapDataset.source(frame))
    assert [row["category"] for row in rows] == ["u", "v", None]
    assert_equal([row["number"] for row in rows], [np.int64(3), np.int64(4), np.int64(3)])
    assert_equal([row["nullable"] for row in rows], [np.float64(1), np.float64("nan"), np.float64(3)])
    assert_equal(rows[0]["whole"], np.int16(1))
    assert rows[0]["zone"] == np.datetime64("2023-12-31T23:00")
    assert rows[1]["month"] == np.datetime64("2024-02-01")
    assert_equal([row["sparse"] for row in rows], [np.int64(0), np.int64(0), np.int64(1)])
    assert rows[1]["span"] == np.timedelta64(2, "s")
    assert np.isnat(rows[2]["span"])
    assert_equal(rows[0]["complex"], np.complex128(1j))
    assert_equal(rows[0]["half"], np.float16(1))
    assert_equal(rows[1]["image"], np.full((2, 2), 1))
    assert [row["mixed"] for row in rows] == [1, "a", None]
    assert rows[2][7] == "by a number"
    assert_equal(MapDataset.source(frame[["image"]]).batch(3)[0]["image"][2], np.full((2, 2), 2))


def test_types_that_only_polars_has():
    thing = object()
    frame = pl.DataFrame(
        {
            "category": pl.Series(["u", "v", None], dtype=pl.Categorical),
            "kind": pl.Series(["x", "y", "x"], dtype=pl.Enum(["x", "y"])),
            "fixed": pl.Series([[1.0, 2.0]] * 3, dtype=pl.Array(pl.Float64, 2)),
            "object": pl.Series([thing, None, "a"], dtype=pl.Object),
        }
    )
    rows = list(MapDataset.source(frame))
    assert [row["category"] for row in rows] == ["u", "v", None]
    assert [row["kind"] for row in rows] == ["x", "y", "x"]
    assert_equal(rows[0]["fixed"], np.array([1.0, 2.0]))
    assert [type(row["object"]) for row in rows] == [object, type(None), str]


@pytest.mark.parametrize("column", ["int", "even", "text", "missing"])
def test_single_columns_are_sources_of_their_values(column):
    expected = [row[column] for row in MapDataset.source(TABLE)]
    values = TABLE.column(column)
    frame = TABLE.to_pandas()
    for given in (values, values.chunk(0), pl.from_arrow(values), frame[column]):
        ds = MapDataset.source(given)
        assert_equal([ds[i] for i in range(LENGTH)], expected)
        if column != "missing":
            assert_equal(list(ds.batch(5)), list(ds.map(lambda x: x).batch(5)))
    picked = frame[frame["int"] == -3][column]  # whose labels are not 0, 1, 2, …
    assert_equal(list(MapDataset.source(picked)), expected[2::3])  # not its missing values


def test_what_a_function_changes_does_not_change_the_table():
    frame = pd.DataFrame({"v": [[1, 2], [3]], "image": [np.zeros((1, 1)), np.zeros((1, 1))], "n": [1.0, 2.0]})

    def change(row):
        row["v"][:] = 0
        row["image"][:] = 1
        row["n"] += 1
        return row

    for source in (frame, frame[["n"]].assign(v=[[1, 2], [3]], image=list(np.zeros((2, 1, 1))))):
        for _ in range(2):
            rows = list(MapDataset.source(source).map(change))
            assert [row["n"] for row in rows] == [2.0, 3.0]
        assert [list(v) for v in source["v"]] == [[1, 2], [3]]
        assert not source["image"][0].any()
        batch = MapDataset.source(source[["n", "image"]]).batch(2)[0]
        batch["image"][:] = 5
        assert not source["image"][0].any()


def test_workers_and_pickles():
    for frame in (TABLE.to_pandas(), pl.from_arrow(TABLE), TABLE):
        ds = MapDataset.source(frame)
        source = as_source(frame)
        assert_equal(pickle.loads(pickle.dumps(source))[3], ds[3])
    assert_equal(list(ds.mp_prefetch(1)), list(ds))


def test_loaders_take_frames():
    frame = pd.DataFrame({"x": [1, 2, 3], "text": ["a", "b", "c"]})
    loader = DataLoader(data_source=frame, sampler=IndexSampler(3, shuffle=True, seed=1, num_epochs=1))
    assert sorted(row["text"] for row in loader) == ["a", "b", "c"]
    assert "FrameRows(length=3, columns=['x', 'text'])" in iter(loader).get_state().decode()


def test_errors():
    with pytest.raises(PipelineError, match="columns of the table have the same name: x. Rename"):
        MapDataset.source(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    with pytest.raises(PipelineError, match="columns of the table have the same name: x. Rename"):
        MapDataset.source(pa.table([[1], [2]], names=["x", "x"]))
    with pytest.raises(PipelineError, match="at least one"):
        MapDataset.source(pd.DataFrame())
    with pytest.raises(PipelineError, match="LazyFrame lacks `__len__`"):
        MapDataset.source(pl.DataFrame({"x": [1]}).lazy())
    with pytest.raises(IndexError, match="out of range for 12 rows"):
        as_source(TABLE)[12]
    assert len(MapDataset.source(TABLE[:0])) == 0
