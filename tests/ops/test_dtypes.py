"""What dtypes come out: batches have what `np.stack` gives, and elements have their own wherever they travel."""

import os

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace import MapDataset, MultiprocessingOptions, ReadOptions, trees
from headrace.engine.workers.slots import Slot, Writer, anonymous_file, read
from headrace.engine.workers.tasks import decode, encode
from headrace.ops.blocks import Columns, Rows, concat
from headrace.packing import FirstFitPackIterDataset

GAPS = {"names": ["a", "b"], "formats": ["<i2", ">f8"], "offsets": [2, 8], "itemsize": 24}
OVERLAP = {"names": ["a", "b"], "formats": ["<i4", "<i2"], "offsets": [0, 0]}
NAMED = [
    *("<f4", ">f4", ">i2", ">u8", ">c8", "f2", "?", "g", "S3", "<U3", ">U3", "V5", "O"),
    *("<M8[s]", ">M8[s]", "<M8[ms]", ">m8[us]", "m8[D]", "m8"),
    [("a", ">f4"), ("b", "i1")],
    np.dtype([("a", "i1"), ("b", "<f8")], align=True),
    np.dtype([("a", "i1"), ("b", ">f8", (2,))], align=True),
    [("a", [("b", ">i4"), ("c", "S2")])],
    GAPS,
    OVERLAP,
    np.dtypes.StringDType(),
]
DTYPES = st.sampled_from(list(map(np.dtype, NAMED))) | hnp.array_dtypes(
    hnp.scalar_dtypes() | hnp.datetime64_dtypes() | hnp.timedelta64_dtypes(), max_size=3
)
SHAPES = st.sampled_from([(), (1,), (2,), (0,), (2, 3), (2, 0)])


def array_of(dtype, shape, start=0):
    """Some array of a dtype, with other values for another start."""
    numbers = np.arange(start, start + int(np.prod(shape, dtype=int))).reshape(shape)
    out = np.zeros(shape, dtype)
    if dtype.names is None:
        out[...] = (numbers % 7).astype("S1" if dtype.kind == "V" else dtype)
    for name in dtype.names or ():
        out[name] = array_of(dtype[name].base, shape + dtype[name].shape, start)
    return out


def assert_same(found, expected):
    """Type, dtype with its byte order and gaps, shape, and values."""
    assert type(found) is type(expected)
    if not hasattr(expected, "dtype"):
        assert found == expected
        return
    a, b = found.dtype, expected.dtype
    assert (a, a.str, a.itemsize, repr(a)) == (b, b.str, b.itemsize, repr(b))
    assert found.shape == expected.shape
    if a.names is not None:
        for name in a.names:
            assert_same(np.asarray(found[name]), np.asarray(expected[name]))
        return
    assert found.tolist() == expected.tolist()
    if not a.hasobject and a.char not in "gG":  # which have bytes that mean nothing
        assert found.tobytes() == expected.tobytes()


def assert_all_same(found, expected):
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert_same(x, y)


@pytest.fixture(scope="module")
def slot():
    fd = anonymous_file(1)
    yield Slot(fd)
    os.close(fd)


def carried(block, slot):
    """A block after its way through a slot."""
    slot.reserve(1 << 16)
    slot.whole[:] = 0xAB  # as somebody else left it
    writer = Writer(slot)
    extent = writer.dump(encode(block, writer))
    return decode(read(slot.bytes(extent.total).copy(), extent))


@st.composite
def rows(draw, shapes=SHAPES, max_dtypes=2):
    """Elements of one shape: arrays, or with the shape `()` the scalars of an array; of one dtype or of several."""
    dtypes = draw(st.lists(DTYPES, min_size=1, max_size=max_dtypes))
    shape, as_scalars, count = draw(shapes), draw(st.booleans()), draw(st.integers(1, 4))
    arrays = [array_of(dtypes[i % len(dtypes)], shape, i) for i in range(count)]
    return [a[()] if as_scalars and not shape else a for a in arrays]


def np_stack(elements):
    try:
        return np.stack(elements)
    except TypeError:  # dtypes that nothing holds both of
        assume(False)


# ---- elements


@given(rows())
def test_elements_keep_their_dtype_on_their_way_between_processes(slot, elements):
    assert_all_same(carried(Rows(list(elements), owned=True), slot).rows(), elements)
    pairs = [{"x": element, "y": (element,)} for element in elements]
    found = carried(Rows(pairs, owned=True), slot).rows()
    assert_all_same([row["x"] for row in found], elements)
    assert_all_same([row["y"][0] for row in found], elements)


@given(DTYPES, SHAPES)
def test_elements_keep_their_dtype_wherever_blocks_of_columns_are_cut(slot, dtype, shape):
    whole = Columns(array_of(dtype, (6, *shape)), 6)
    expected = whole.rows()
    assert_all_same(carried(whole, slot).rows(), expected)
    assert_all_same(concat([whole.cut(0, 2), whole.cut(2, 6)]).rows(), expected)


def test_time_differences_of_several_units_keep_their_units_on_their_way(slot):
    elements = [np.timedelta64(1, "s"), np.timedelta64(2, "ms")]
    assert_all_same(carried(Rows(list(elements), owned=True), slot).rows(), elements)


def test_a_function_of_columns_gets_time_differences_of_one_unit_at_a_time():
    elements = [np.timedelta64(1, "s"), np.timedelta64(2, "ms"), np.timedelta64(3, "s")]
    ds = MapDataset.source(elements).map(lambda column: column + column, batched=True)
    assert_all_same(ds._fetch(range(3)).rows(), [ds[i] for i in range(3)])


# ---- batches


@given(rows())
def test_a_batch_is_what_numpy_stacks_in_whatever_memory(slot, elements):
    expected = np_stack(elements)
    writer = Writer(slot)
    if type(elements[0]) is not str:  # a StringDType has these
        assert_same(trees.stack(elements, empty=writer.empty), expected)
        assert_same(trees.stack(elements), expected)
    ds = MapDataset.source(list(elements))
    n = len(elements)
    made = [ds.batch(n)[0], *ds.to_iter_dataset(ReadOptions(num_threads=1)).batch(n)]
    for batch in made:
        assert_same(batch, trees.stack(elements))


@given(DTYPES, SHAPES, st.integers(1, 4))
def test_a_batch_of_columns_is_that_of_their_rows(dtype, shape, batch_size):
    array = array_of(dtype, (6, *shape))
    assume(shape or not dtype.hasobject)  # a column of objects stays one, rows of numbers do not
    expected = [trees.stack(list(array[i : i + batch_size])) for i in range(0, 6, batch_size)]
    ds = MapDataset.source({"x": array})
    for batched in (
        ds.batch(batch_size),
        ds.map(dict).batch(batch_size),
        ds.to_iter_dataset().batch(batch_size),
        ds.to_iter_dataset().filter(lambda x: True).batch(batch_size),
        MapDataset.concatenate([ds[:2], ds[2:]]).to_iter_dataset().batch(batch_size),
    ):
        assert_all_same([batch["x"] for batch in batched], expected)
    spec = ds.batch(batch_size).element_spec["x"]
    if dtype.kind not in "SU":
        assert repr(spec.dtype) == repr(expected[0].dtype)


@given(DTYPES, st.sampled_from([(), (2,), (2, 3)]), st.integers(1, 7), st.integers(1, 7))
def test_rebatching_gives_what_numpy_concatenates(dtype, shape, before, after):
    array = array_of(dtype, (6, *shape))
    batches = [array[i : i + before] for i in range(0, 6, before)]
    expected = np.concatenate(batches)
    ds = MapDataset.source(batches).to_iter_dataset().rebatch(after)
    assert_all_same(list(ds), [expected[i : i + after] for i in range(0, 6, after)])


@given(st.sampled_from([">f4", ">i8", ">M8[s]", "m8[ms]", ">U3", "S3"]))
def test_padding_and_packing_give_what_numpy_stacks(dtype):
    array = array_of(np.dtype(dtype), (4, 2))
    ds = MapDataset.source(list(array)).to_iter_dataset()
    (padded,) = ds.padded_batch(4)
    assert_same(padded, np.stack(list(array)))
    (row,) = FirstFitPackIterDataset(ds.map(lambda x: {"x": x}), length_struct={"x": 8}, num_packing_bins=1)
    assert_same(row["x"], np.concatenate(list(array)))


# ---- and the same from worker processes


def test_elements_and_batches_do_not_depend_on_the_number_of_workers():
    dtypes = list(map(np.dtype, NAMED[:-1]))

    def element(i):
        return {f"{k}, {shape}": array_of(dtype, shape, i) for k, dtype in enumerate(dtypes) for shape in [(), (2, 3)]}

    rows = MapDataset.range(20).map(element)
    columns = MapDataset.source({str(k): array_of(dtype, (20, 2)) for k, dtype in enumerate(dtypes)})
    for built in (
        rows.to_iter_dataset().window_shuffle(5, seed=1).map(dict),
        rows.batch(3).to_iter_dataset(),
        rows.to_iter_dataset().batch(4).batch(2),
        columns.to_iter_dataset(),
        columns.to_iter_dataset().batch(3),
        columns.to_iter_dataset().window_shuffle(5, seed=1).batch(4).batch(2).map(dict),
    ):
        here, there = list(built), list(built.mp_prefetch(MultiprocessingOptions(num_workers=2)))
        assert len(here) == len(there)
        for x, y in zip(here, there, strict=True):
            assert list(x) == list(y)
            assert_all_same(list(y.values()), list(x.values()))
