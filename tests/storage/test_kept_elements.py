"""Elements in a folder come back as they were: values, types, dtypes and shapes."""

import json
import os
import pickle
from collections import OrderedDict, UserDict
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from headrace.errors import DataError, PipelineError
from headrace.storage import files
from headrace.storage.elements import Folder, KeptElements
from headrace.testing import assert_equal

DTYPES = st.one_of(
    arrays.scalar_dtypes().filter(lambda dtype: dtype.itemsize),
    arrays.nested_dtypes(arrays.scalar_dtypes(), max_itemsize=40).filter(lambda dtype: dtype.itemsize),
)
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
TEXTS = st.text(st.characters(codec=None, exclude_categories=()))  # half surrogate pairs, too
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), TEXTS, st.binary(max_size=20)
)
NUMPY = ARRAYS.filter(lambda array: array.size).map(lambda array: array.reshape(-1)[0])
MANY = st.one_of(*(st.lists(kind) for kind in (st.integers(), st.floats(), st.booleans(), TEXTS, st.binary())))
TREES = st.recursive(
    SCALARS | ARRAYS | NUMPY | MANY,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(TEXTS | st.integers(-(2**53), 2**53), inner, max_size=4),
    ),
    max_leaves=8,
)


def keep(path, elements, key="key"):
    folder = Folder(str(path), key)
    with folder.locked(), folder.filling() as filling:
        for element in elements:
            filling.write(element)
    return KeptElements(folder.name)


def exactly(value):
    """A value with all of its types, to be compared."""
    if isinstance(value, dict):
        return dict, [(exactly(key), exactly(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return type(value), np.asarray(value).dtype, np.shape(value), np.asarray(value).tobytes()
    return type(value), repr(value)


@given(st.lists(TREES, max_size=5))
def test_any_element_comes_back_as_it_was(tmp_path_factory, elements):
    kept = keep(tmp_path_factory.mktemp("kept"), elements)
    assert len(kept) == len(elements)
    assert list(map(exactly, kept)) == list(map(exactly, elements))
    assert list(map(exactly, pickle.loads(pickle.dumps(kept)))) == list(map(exactly, elements))
    assert [exactly(kept[i - len(elements)]) for i in range(len(elements))] == list(map(exactly, elements))


def test_dtypes_of_other_libraries_come_back(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    elements = [np.arange(3).astype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4)]
    elements += [
        np.array(["2026-01-01"], "M8[D]"),
        np.array([3], ">i4"),
        np.arange(6).reshape(2, 3).T,
        np.arange(9)[::2],
    ]
    for mine, theirs in zip(keep(tmp_path, elements), elements, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", [UserDict, OrderedDict, MappingProxyType])
def test_mappings_come_back_as_dicts(tmp_path, kind):
    inner = {"x": np.arange(3), "text": "a", "none": None, "pair": (1, [2.5])}
    (found,) = keep(tmp_path, [kind({"inner": kind(inner), **inner})])
    assert exactly(found) == exactly({"inner": inner, **inner})


@pytest.mark.parametrize(
    ("file", "elements"),
    [
        ("records", [{"x": np.arange(i), "y": "z" * i} for i in range(50)]),
        ("column-1", [{"x": np.arange(i, i + 3), "y": np.float32(i)} for i in range(50)]),
    ],
)
def test_large_files_are_not_mapped_and_read_the_same(tmp_path, monkeypatch, file, elements):
    kept = keep(tmp_path, elements)
    path = os.path.join(kept.folder, file)
    assert isinstance(kept._reader._pool.get(path), files.MappedFile)
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    again = KeptElements(kept.folder)
    assert isinstance(again._reader._pool.get(path), files.LocalFile)
    assert_equal(list(again), elements)
    assert exactly(again[3]) == exactly(elements[3])


def test_elements_of_one_layout_are_columns_and_others_are_not(tmp_path):
    alike = [{"a": np.arange(i, i + 3), "b": (np.float32(i), np.full((2, 2), i))} for i in range(10)]
    kept = keep(tmp_path, alike)
    indices = np.array([3, 3, 9, 0])
    found = kept.__getcolumns__(indices)
    assert_equal(found["a"], np.stack([alike[i]["a"] for i in indices]))
    assert_equal(found["b"], (np.array([3, 3, 9, 0], np.float32), np.stack([alike[i]["b"][1] for i in indices])))
    found["a"][:] = 0
    assert_equal(list(kept), alike)
    for i, others in enumerate(
        (
            [np.zeros(2), np.zeros(3)],
            [np.zeros(2), np.zeros(2, "f4")],
            [1, 2],
            [{"a": np.zeros(2), "b": "x"}],
            [np.array(1)],
            [{str(i): np.zeros(1) for i in range(65)}],
            [],
        )
    ):
        assert not hasattr(keep(tmp_path, others, str(i)), "__getcolumns__")


@pytest.mark.parametrize("other", [None, np.zeros(4), np.zeros(3, np.float32), {"a": np.zeros(3)}])
def test_columns_become_records_when_an_element_is_not_alike(tmp_path, other):
    elements = [*(np.arange(i, i + 3.0) for i in range(1500)), other, np.zeros(3)]
    kept = keep(tmp_path, elements)
    assert sorted(os.listdir(kept.folder)) == ["manifest.json", "offsets", "records"]
    assert list(map(exactly, kept)) == list(map(exactly, elements))


def test_very_many_layouts_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.storage.elements.MOST_LAYOUTS", 3)
    elements = [{f"é{i}": i, "x": (i, np.zeros(i))} for i in range(10)]
    kept = keep(tmp_path, elements)
    assert len(kept._reader._decoders) == 3
    assert_equal(list(kept), elements)


class Own:
    pass


@pytest.mark.parametrize(
    ("element", "said"),
    [
        (Own(), "cannot store <.*Own object at .*: it stores dicts"),
        ({"a": [1, {"b": Own}]}, r"cannot store <class '.*Own'> at \['a'\]\[1\]\['b'\]: "),
        ({"a": np.array([None, 1])}, r"cannot store an array of object at \['a'\]: "),
        ({(1, 2): 3}, r"cannot store the key \(1, 2\): "),
        ({1, 2}, "cannot store {1, 2}: .* or cache them in memory with `cache\\(\\)`"),
    ],
)
def test_what_cannot_be_kept_is_an_error_that_says_where(tmp_path, element, said):
    with pytest.raises(PipelineError, match=said):
        keep(tmp_path, [1, element])
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == []


@pytest.mark.parametrize("name", ["manifest.json", "records", "offsets", "column-0", "column-1"])
@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_a_damaged_folder_is_an_error_that_says_what_to_do(tmp_path, name, how):
    value = (lambda i: np.full(3, i)) if name.startswith("column") else int
    kept = keep(tmp_path, [{"x": value(i), "y": value(i)} for i in range(9)])
    path = os.path.join(kept.folder, name)
    if how == "gone":
        os.unlink(path)
    else:
        os.truncate(path, 0 if how == "empty" else os.path.getsize(path) // 2)
    with pytest.raises(
        (DataError, FileNotFoundError), match="cannot be read as a cache of elements: .*Remove it|No such file"
    ):
        list(KeptElements(kept.folder))


def test_numbers_that_make_no_sense_are_errors(tmp_path):
    kept = keep(tmp_path, [{"x": np.zeros(3 + i)} for i in range(4)])
    path = Path(kept.folder) / "records"
    content = path.read_bytes()
    for at, number in ((0, 99), (8, 1 << 50), (8, -1)):
        path.write_bytes(content[:at] + number.to_bytes(8, "little", signed=True) + content[at + 8 :])
        with pytest.raises(DataError, match=f"{kept.folder} cannot be read as a cache of elements"):
            KeptElements(kept.folder)[0]


def test_a_folder_of_another_version_is_an_error(tmp_path):
    kept = keep(tmp_path, [1])
    path = os.path.join(kept.folder, "manifest.json")
    with open(path) as file:
        manifest = json.load(file)
    with open(path, "w") as file:
        json.dump(manifest | {"version": 99}, file)
    with pytest.raises(DataError, match="its version is 99"):
        KeptElements(kept.folder)
