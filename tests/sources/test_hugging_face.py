"""Hugging Face's datasets: rows and columns against what `datasets` itself gives."""

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import MissingDependency, PipelineError, install_command
from headrace.sources.hugging_face import HuggingFaceDataSource, HuggingFaceIterDataset
from headrace.testing import assert_block_law, assert_equal, assert_resumable

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
datasets.disable_progress_bars()

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
RNG = np.random.default_rng(0)
NUMBERS = {
    "x": datasets.List(datasets.Value("float32"), length=5),
    "tokens": datasets.List(datasets.Value("int16")),
    "image": datasets.Array3D((2, 3, 2), "uint8"),
    "flags": datasets.List(datasets.Value("bool"), length=3),
    "ok": datasets.Value("bool"),
    "half": datasets.Value("float16"),
    "label": datasets.ClassLabel(names=["cat", "dog", "eel"]),
}


def number_arrays(count):
    return {
        "x": RNG.random((count, 5), np.float32),
        "tokens": RNG.integers(-9, 9, (count, 4)).astype(np.int16),
        "image": RNG.integers(0, 255, (count, 2, 3, 2)).astype(np.uint8),
        "flags": RNG.random((count, 3)) < 0.5,
        "ok": RNG.random(count) < 0.5,
        "half": RNG.random(count).astype(np.float16),
        "label": RNG.integers(0, 3, count),
    }


def dataset_of(arrays, features=NUMBERS):
    columns = {name: array.tolist() for name, array in arrays.items()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def on_disk(dataset, folder, **kwargs):
    dataset.save_to_disk(folder, **kwargs)
    return datasets.load_from_disk(folder)


@pytest.fixture(scope="module")
def arrays():
    return number_arrays(2500)


@pytest.fixture(scope="module", params=["memory", "one file", "three files", "forty chunks"])
def numbers(request, arrays, tmp_path_factory):
    """The same numbers in memory, in mapped files of several record batches, and in many buffers."""
    dataset = dataset_of(arrays)
    if request.param == "memory":
        return dataset
    if request.param == "forty chunks":
        parts = [dataset_of({name: a[i * 63 : (i + 1) * 63] for name, a in arrays.items()}) for i in range(40)]
        return datasets.concatenate_datasets(parts)
    folder = tmp_path_factory.mktemp("ünï 字 ") / request.param
    return on_disk(dataset, str(folder), num_shards=1 if request.param == "one file" else 3)


# ------------------------------------------------------------------------------------ columns of numbers


def test_columns_of_numbers_are_those_that_were_written(numbers, arrays):
    source = HuggingFaceDataSource(numbers)
    indices = np.random.default_rng(1).integers(0, 2500, 300)
    columns = source.__getcolumns__(indices)
    assert list(columns) == list(NUMBERS)
    for name, array in arrays.items():
        assert_equal(columns[name], array[indices])
        assert columns[name].flags.writeable


def test_batches_of_numbers_are_shuffled_without_rows(numbers, arrays):
    ds = MapDataset.source(HuggingFaceDataSource(numbers)).shuffle(seed=3)
    order = list(MapDataset.range(2500).shuffle(seed=3))
    (batch,) = list(ds.batch(64))[5:6]
    for name, array in arrays.items():
        assert_equal(batch[name], array[order[320:384]])


def test_single_rows_have_numpy_values(numbers, arrays):
    source = HuggingFaceDataSource(numbers)
    for index in (0, 999, 1000, 2499, -1, -2500, np.int64(7)):
        assert_equal(source[index], {name: array[index] for name, array in arrays.items()})


def test_shuffled_selected_and_sorted_datasets_keep_their_order(numbers, arrays):
    mixed = numbers.shuffle(seed=5).select(range(100, 400))
    source = HuggingFaceDataSource(mixed)
    assert len(source) == 300
    assert_equal(source.__getcolumns__(np.arange(300))["x"], np.array(mixed.with_format("numpy")["x"][:]))
    picked = HuggingFaceDataSource(numbers.select([2400, 3, 3]))
    assert_equal(picked.__getcolumns__(np.arange(3))["tokens"], arrays["tokens"][[2400, 3, 3]])
    tail = HuggingFaceDataSource(numbers.select(range(1500, 2500)).select_columns(["ok", "flags", "image"]))
    for name, column in tail.__getcolumns__(np.arange(1000)).items():
        assert_equal(column, arrays[name][1500:])


def test_the_spec_of_numbers_is_known_without_reading(numbers):
    spec = MapDataset.source(HuggingFaceDataSource(numbers)).element_spec
    assert {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in spec.items()} == {
        "x": ((5,), np.dtype("float32")),
        "tokens": ((4,), np.dtype("int16")),
        "image": ((2, 3, 2), np.dtype("uint8")),
        "flags": ((3,), np.dtype("bool")),
        "ok": ((), np.dtype("bool")),
        "half": ((), np.dtype("float16")),
        "label": ((), np.dtype("int64")),
    }


@settings(max_examples=25)
@given(
    st.sampled_from(["int8", "uint16", "int32", "uint64", "float32", "float64", "bool"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.lists(st.integers(1, 9), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_random_arrays_come_back(dtype, shape, lengths, seed):
    rng = np.random.default_rng(seed)
    arrays = [(rng.random((n, *shape)) * 100).astype(dtype) for n in lengths]
    feature = datasets.Value(dtype)
    for size in reversed(shape):
        feature = datasets.List(feature, length=size if size and seed % 2 else -1)
    parts = [datasets.Dataset.from_dict({"a": a.tolist()}, features=datasets.Features({"a": feature})) for a in arrays]
    dataset = datasets.concatenate_datasets(parts).select(range(lengths[0] // 2, sum(lengths)))
    expected = np.concatenate(arrays)[lengths[0] // 2 :]
    source = HuggingFaceDataSource(dataset)
    rows = rng.integers(0, len(expected), 20)
    if 0 in shape[:-1]:  # lists without items do not say what the next ones would be
        assert [np.size(row["a"]) for row in source.__getitems__(rows)] == [0] * 20
    else:
        assert_equal(source.__getcolumns__(rows)["a"], expected[rows])
        assert_equal(source.__getitems__(rows), [{"a": row} for row in expected[rows]])


# ------------------------------------------------------------------------------------------ other values


def mixed_dataset():
    from PIL import Image

    pictures = [Image.fromarray(np.full((2, 3, 3), i, np.uint8)) for i in range(4)]
    return datasets.Dataset.from_dict(
        {
            "text": ["", "ünï 字", "c" * 1000, "d"],
            "tokens": [[1, 2, 3], [], [4], [5, 6]],
            "maybe": [1.5, None, 2.5, None],
            "gaps": [[1, None], None, [2], []],
            "nested": [[[1], [2, 3]], [], [[4, 5], [6, 7]], [[8]]],
            "inner": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, None, {"a": 4, "b": "z"}],
            "pairs": [[{"n": 1}], [], [{"n": 2}, {"n": 3}], [{"n": 4}]],
            "image": pictures,
            "pictures": [[], pictures[:2], pictures[2:3], []],
            "label": [0, 1, 1, 0],
        },
        features=datasets.Features(
            {
                "text": datasets.Value("string"),
                "tokens": datasets.List(datasets.Value("int32")),
                "maybe": datasets.Value("float32"),
                "gaps": datasets.List(datasets.Value("int32")),
                "nested": datasets.List(datasets.List(datasets.Value("int8"))),
                "inner": {"a": datasets.Value("int8"), "b": datasets.Value("string")},
                "pairs": datasets.List({"n": datasets.Value("uint8")}),
                "image": datasets.Image(),
                "pictures": datasets.List(datasets.Image()),
                "label": datasets.ClassLabel(names=["no", "yes"]),
            }
        ),
    )


def int32s(*values):
    return np.array(values, np.int32)


EXPECTED = {
    "text": ["", "ünï 字", "c" * 1000, "d"],
    "tokens": [int32s(1, 2, 3), int32s(), int32s(4), int32s(5, 6)],
    "maybe": [np.float32(1.5), None, np.float32(2.5), None],
    "gaps": [[1, None], None, int32s(2), int32s()],
    "nested": [
        [np.array([1], np.int8), np.array([2, 3], np.int8)],
        np.array([], np.int8),
        np.array([[4, 5], [6, 7]], np.int8),
        np.array([[8]], np.int8),
    ],
    "pairs": [[{"n": np.uint8(1)}], [], [{"n": np.uint8(2)}, {"n": np.uint8(3)}], [{"n": np.uint8(4)}]],
    "image": [np.full((2, 3, 3), i, np.uint8) for i in range(4)],
    "pictures": [[], [np.full((2, 3, 3), i, np.uint8) for i in range(2)], [np.full((2, 3, 3), 2, np.uint8)], []],
    "label": [np.int64(0), np.int64(1), np.int64(1), np.int64(0)],
}


@pytest.mark.parametrize("kind", ["random access", "stream"])
def test_values_of_any_feature(kind):
    dataset = mixed_dataset()
    rows = (
        HuggingFaceDataSource(dataset).__getitems__(range(4))
        if kind == "random access"
        else list(HuggingFaceIterDataset(dataset.to_iterable_dataset()))
    )
    for name, values in EXPECTED.items():
        assert_equal([row[name] for row in rows], values)
    assert_equal(rows[1]["inner"], {"a": np.int8(2), "b": "y"})


def test_the_block_law_holds_for_rows():
    source = HuggingFaceDataSource(mixed_dataset().shuffle(seed=1))
    assert not hasattr(source, "__getcolumns__")
    assert_block_law(MapDataset.source(source))
    assert_resumable(MapDataset.source(source).to_iter_dataset())


def test_labels_have_names():
    source = HuggingFaceDataSource(mixed_dataset())
    assert source.class_names == {"label": ["no", "yes"]}
    assert source.features["label"].int2str(1) == "yes"


def test_ragged_lists_across_files_and_chunks(tmp_path):
    lists = [list(range(i % 7)) for i in range(2300)]
    features = datasets.Features({"tokens": datasets.List(datasets.Value("int32"))})
    dataset = on_disk(
        datasets.Dataset.from_dict({"tokens": lists}, features=features), str(tmp_path / "d"), num_shards=2
    )
    source = HuggingFaceDataSource(dataset.shuffle(seed=2))
    rows = source.__getitems__(range(2300))
    assert_equal([row["tokens"].tolist() for row in rows], list(dataset.shuffle(seed=2)["tokens"]))
    assert {row["tokens"].dtype for row in rows} == {np.dtype("int32")}
    rows[0]["tokens"][:] = 99  # is the caller's own
    assert_equal(source[0]["tokens"].tolist(), dataset.shuffle(seed=2)[0]["tokens"])


def test_a_long_value_comes_back(tmp_path):
    big = "x" * (11 << 20)
    dataset = on_disk(datasets.Dataset.from_dict({"text": ["a", big]}), str(tmp_path / "d"))
    assert HuggingFaceDataSource(dataset)[1] == {"text": big}


def test_a_format_or_transform_of_the_dataset_is_kept():
    dataset = datasets.Dataset.from_dict({"x": [1, 2, 3], "y": ["a", "b", "c"]})
    doubled = dataset.with_transform(lambda rows: {"x2": [2 * x for x in rows["x"]]})
    assert HuggingFaceDataSource(doubled).__getitems__([2, 0]) == [{"x2": 6}, {"x2": 2}]
    assert_equal(HuggingFaceDataSource(dataset.with_format("numpy", columns=["x"]))[1], {"x": np.int64(2)})
    assert HuggingFaceDataSource(dataset.with_format(None, columns=["y"]))[1] == {"y": "b"}


@pytest.mark.parametrize("dataset", [datasets.Dataset.from_dict({}), datasets.Dataset.from_dict({"x": []})])
def test_an_empty_dataset_is_an_empty_source(dataset):
    source = HuggingFaceDataSource(dataset)
    assert len(source) == 0
    assert source.__getitems__([]) == []
    assert list(MapDataset.source(source).to_iter_dataset()) == []
    with pytest.raises(IndexError, match="Index 0 is out of range for 0 rows"):
        source[0]


def test_an_empty_selection_and_one_row(numbers):
    assert len(HuggingFaceDataSource(numbers.select([]))) == 0
    assert_equal(HuggingFaceDataSource(numbers.select([8]))[0], HuggingFaceDataSource(numbers)[8])


def test_a_dataset_on_disk_travels_as_its_paths(arrays, tmp_path):
    dataset = on_disk(dataset_of(arrays), str(tmp_path / "d"))
    source = HuggingFaceDataSource(dataset)
    source[0]
    sent = pickle.dumps(source)
    assert len(sent) < 10_000
    assert_equal(pickle.loads(sent)[7], source[7])


def test_the_repr_is_the_same_in_another_process():
    code = (
        "import datasets; from headrace.sources.hugging_face import HuggingFaceDataSource as H;"
        "print(H(datasets.Dataset.from_dict({'x': [1, 2]}).shuffle(seed=1)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = HuggingFaceDataSource(datasets.Dataset.from_dict({"x": [1, 2]}).shuffle(seed=1))
    assert done.stdout.strip() == repr(ours)
    assert repr(ours) != repr(HuggingFaceDataSource(datasets.Dataset.from_dict({"x": [1, 2]}).shuffle(seed=2)))


def test_datasets_of_another_kind_are_errors_that_say_what_to_do():
    dataset = datasets.Dataset.from_dict({"x": [1]})
    splits = datasets.DatasetDict({"train": dataset, "test": dataset})
    with pytest.raises(PipelineError, match=r"splits \['train', 'test'\]: choose one, as in `split='train'`; got None"):
        HuggingFaceDataSource(splits)
    with pytest.raises(PipelineError, match="no named splits, but 'test' names"):
        HuggingFaceDataSource(dataset, split="test")
    assert_equal(HuggingFaceDataSource(splits, split="test")[0], {"x": np.int64(1)})
    streams = datasets.IterableDatasetDict({"test": dataset.to_iterable_dataset()})
    assert_equal(list(HuggingFaceIterDataset(streams, split="test")), [{"x": np.int64(1)}])
    with pytest.raises(PipelineError, match="It is a stream: use `HuggingFaceIterDataset"):
        HuggingFaceDataSource(dataset.to_iterable_dataset())
    with pytest.raises(PipelineError, match="It has random access: use `MapDataset.source"):
        HuggingFaceIterDataset(dataset)
    with pytest.raises(PipelineError, match="Expected a `datasets.Dataset`; got builtins.list"):
        HuggingFaceDataSource([1, 2])
    with pytest.raises(PipelineError, match=r"got builtins.str. Load it first: `datasets.load_dataset\('squad'"):
        HuggingFaceDataSource("squad")


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match=re.escape(install_command("hf"))):
        HuggingFaceDataSource(None)


def test_nothing_is_imported_before_it_is_used():
    code = "import headrace.sources.hugging_face, sys; print({'datasets', 'torch', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
