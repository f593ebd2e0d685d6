"""Mappings that are no dicts are containers as dicts are: what a tokenizer of transformers returns, for example."""

import importlib.util
import os
import types
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from headrace import MapDataset, ReadOptions, trees
from headrace.errors import PipelineError, StructureError
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from headrace.transforms import Map
from headrace.trees import ShapeDtypeStruct


class Example(dict):
    """A dict of one's own."""


class Frozen(Mapping):
    """The least that a mapping is."""

    def __init__(self, *args, **kwargs):
        self._items = dict(*args, **kwargs)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


def proxy(**items):
    return types.MappingProxyType(items)


KINDS = [UserDict, Example, Frozen, proxy]


def in_dict(i):
    return {"x": np.full(2, i), "inner": {"y": i}, "name": f"n{i}"}


def in_mapping(kind, i):
    return kind(x=np.full(2, i), inner=kind(y=i), name=f"n{i}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["source", "map"])
def test_batches_are_those_of_dicts(kind, how):
    rows = [in_mapping(kind, i) for i in range(7)]
    ds = MapDataset.source(rows) if how == "source" else MapDataset.range(7).map(lambda i: in_mapping(kind, i))
    expected = MapDataset.range(7).map(in_dict)
    assert_equal(list(ds.batch(3)), list(expected.batch(3)))
    assert_equal(list(ds.to_iter_dataset().batch(3)), list(expected.batch(3)))
    assert_equal(ds.to_arrays(), expected.to_arrays())
    assert_block_law(ds.batch(3))


@pytest.mark.parametrize("num_threads", [0, 2])
def test_elements_are_what_the_function_returned_until_they_are_batched(num_threads):
    ds = MapDataset.range(6).map(lambda i: UserDict(x=np.full(2, i))).to_iter_dataset(ReadOptions(num_threads))
    assert all(type(element) is UserDict for element in ds)
    assert_equal(list(ds.batch(2)), list(MapDataset.range(6).map(lambda i: {"x": np.full(2, i)}).batch(2)))


def test_workers_hand_over_mappings_and_batches_of_them():
    ds = MapDataset.range(40).map(lambda i: in_mapping(UserDict, i)).to_iter_dataset()
    with_workers = ds.mp_prefetch(1)
    assert_equal(list(with_workers), list(ds))
    batches = ds.batch(4).mp_prefetch(1)
    assert_equal(list(batches), list(MapDataset.range(40).map(in_dict).batch(4)))
    assert_equal(list(with_workers.batch(4)), list(batches))


def test_a_batch_may_have_dicts_and_mappings():
    rows = [{"x": 1, "y": {"z": 1.0}}, UserDict(y=Frozen(z=2.0), x=2), Frozen(x=3, y={"z": 3.0})]
    (batch,) = MapDataset.source(rows).batch(3)
    assert_equal(batch, {"x": np.array([1, 2, 3]), "y": {"z": np.array([1.0, 2.0, 3.0])}})


def test_classes_that_optree_knows_stay():
    for make in (OrderedDict, lambda **items: defaultdict(int, items)):
        (batch,) = MapDataset.source([make(x=1), make(x=2)]).batch(2)
        assert type(batch) is type(make(x=1))
        assert_equal(batch["x"], np.array([1, 2]))


def test_errors_name_keys():
    missing = MapDataset.source([UserDict(x=1, y=2), UserDict(x=1)]).batch(2)
    with pytest.raises(StructureError, match=r"keys \['x', 'y'\], element 1 lacks \['y'\]"):
        missing[0]
    shapes = MapDataset.source([UserDict(x=np.ones(2)), UserDict(x=np.ones(3))]).batch(2)
    with pytest.raises(StructureError, match=r"leaf \['x'\]: element 0 of the batch has shape \(2,\)"):
        shapes[0]
    other = MapDataset.source([Frozen(x=1), 5]).batch(2)
    with pytest.raises(StructureError, match="element 0 has Frozen, element 1 has int"):
        other[0]


def test_padded_batches():
    def sequence(kind, i):
        return kind(tokens=np.arange(i + 1), meta=kind(weight=np.ones(i + 1)))

    for kind in (UserDict, Frozen):
        for pad_value in (-1, {"tokens": -1}, UserDict(meta=UserDict(weight=7.0))):
            made = [
                list(
                    MapDataset.range(5)
                    .map(lambda i, each=each: sequence(each, i))
                    .to_iter_dataset()
                    .padded_batch(2, pad_value=pad_value)
                )
                for each in (kind, dict)
            ]
            assert_equal(*made)
    ds = MapDataset.range(2).map(lambda i: sequence(UserDict, i)).to_iter_dataset()
    with pytest.raises(PipelineError, match=r"elements have the features \['meta', 'tokens'\]"):
        list(ds.padded_batch(2, pad_value={"token": 0}))
    padded = MapDataset.range(3).map(lambda i: UserDict(x=i)).batch_and_pad(2, pad_value=9)
    assert_equal(padded[1], {"x": np.array([2, 9])})


def test_functions_of_columns():
    """They get dicts of columns, and may return mappings."""
    seen = []

    def double(columns):
        seen.append((type(columns), len(columns["x"])))
        return UserDict(x=columns["x"] * 2)

    ds = MapDataset.range(40).map(lambda i: UserDict(x=i)).to_iter_dataset().map(double, batched=True)
    assert_equal(list(ds), [{"x": np.int64(2 * i)} for i in range(40)])
    assert {kind for kind, _ in seen} == {dict}
    assert max(count for _, count in seen) > 1


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit", "concat_split"])
@pytest.mark.parametrize("long_sequences", ["split", "truncate", "drop"])
def test_packing(strategy, long_sequences):
    def packed(kind):
        ds = MapDataset.range(20).map(lambda i: kind(tokens=np.arange(i % 9 + 1))).to_iter_dataset()
        return ds.pack({"tokens": 6}, strategy=strategy, long_sequences=long_sequences)

    assert_equal(list(packed(UserDict)), list(packed(dict)))
    assert_resumable(packed(UserDict))


def test_packing_with_nested_meta_features():
    def packed(kind):
        ds = MapDataset.range(20).map(lambda i: kind(tokens=np.arange(i % 5 + 1), meta=kind(n=np.array([i]))))
        return ds.to_iter_dataset().pack({"tokens": 6, "meta": {"n": 6}}, meta_features=("meta",))

    assert_equal(list(packed(UserDict)), list(packed(dict)))


def test_rebatch():
    ds = MapDataset.range(12).batch(4).map(lambda x: UserDict(x=x, inner=Frozen(y=x + 1))).to_iter_dataset()
    assert_equal(list(ds.rebatch(5))[1], {"x": np.arange(5, 10), "inner": {"y": np.arange(6, 11)}})


class Squared(Map):
    def map(self, x):
        return UserDict(x=x**2)

    def output_spec(self, spec):
        return UserDict(x=spec)


def test_specs():
    ds = MapDataset.range(6).map(Squared()).batch(2)
    assert ds.element_spec == {"x": ShapeDtypeStruct((2,), np.int64)}
    assert ds.to_iter_dataset().padded_batch(1).element_spec == {"x": ShapeDtypeStruct((None, None), np.int64)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_changes_does_not_change_the_source(kind):
    rows = [kind(x=np.zeros(2)) for _ in range(3)]

    def change(row):
        row["x"][:] += 1
        return row

    for _ in range(2):
        assert_equal(list(MapDataset.source(rows).map(change).batch(3)), [{"x": np.ones((3, 2))}])


def test_mappings_of_arrays_are_sources(tmp_path):
    arrays = {"x": np.arange(6), "inner": {"y": np.eye(6)}}
    expected = list(MapDataset.source(arrays))
    for given in (UserDict(arrays), OrderedDict(arrays), Frozen(x=arrays["x"], inner=UserDict(arrays["inner"]))):
        assert_equal([dict(row) for row in MapDataset.source(given)], expected)
    np.savez(tmp_path / "a.npz", x=np.arange(6))
    with np.load(tmp_path / "a.npz") as file:
        assert_equal(MapDataset.source(file).batch(6)[0], {"x": np.arange(6)})


def test_trees_know_leaves_after_jax_is_imported():
    """A type that is a leaf before JAX is imported may be a node of JAX later."""
    program = """
import sys
from headrace import trees
class Point:
    def __init__(self, x): self.x = x
assert len(trees.leaves([Point(1), 2])) == 2 and "jax" not in sys.modules
import jax
jax.tree_util.register_pytree_node(Point, lambda p: ((p.x,), None), lambda _, children: Point(*children))
assert trees.leaves([Point(1), 2]) == [1, 2]
"""
    pytest.importorskip("jax")
    run_python(program)


def test_classes_that_jax_knows_stay():
    jax = pytest.importorskip("jax")

    class Params(UserDict):
        pass

    jax.tree_util.register_pytree_node(
        Params, lambda p: (tuple(p.values()), tuple(p)), lambda keys, values: Params(zip(keys, values, strict=True))
    )
    (batch,) = MapDataset.source([Params(x=1), Params(x=2)]).batch(2)
    assert type(batch) is Params
    assert_equal(batch["x"], np.array([1, 2]))


def test_jax_gets_dicts_on_its_devices():
    jax = pytest.importorskip("jax")
    from headrace.experimental import device_put

    ds = MapDataset.range(8).batch(4).map(lambda x: UserDict(x=x, inner=Frozen(y=x))).to_iter_dataset()
    first = next(iter(device_put(ds, jax.devices()[0])))
    assert type(first) is type(first["inner"]) is dict
    assert isinstance(first["inner"]["y"], jax.Array)
    np.testing.assert_array_equal(first["x"], np.arange(4))
    by_key = {"x": jax.devices()[0], "inner": {"y": jax.devices()[0]}}
    np.testing.assert_array_equal(next(iter(device_put(ds, by_key)))["inner"]["y"], np.arange(4))


def test_torch_gets_tensors():
    torch = pytest.importorskip("torch")
    from headrace.device.torch import as_tensors, prefetch_to_device
    from headrace.sources import TorchDataSource

    made = as_tensors(UserDict(x=np.arange(3), inner=Frozen(y=np.ones(2), name="a")))
    assert type(made) is dict
    assert isinstance(made["inner"]["y"], torch.Tensor)
    assert made["inner"]["name"] == "a"
    ds = MapDataset.range(4).batch(2).map(lambda x: UserDict(x=x)).to_iter_dataset()
    assert [batch["x"].tolist() for batch in prefetch_to_device(ds, "cpu")] == [[0, 1], [2, 3]]
    source = TorchDataSource([UserDict(x=torch.ones(2))])
    assert_equal(source[0], {"x": np.ones(2, np.float32)})


def test_memory_is_counted():
    assert trees.num_bytes(UserDict(x=np.zeros(1000))) == 8000


def test_elements_that_hold_each_others_arrays():
    """Arrays that a worker's functions write right into their batch are copied if a mapping still holds them."""
    from headrace.trees import new_row

    kept = []

    def make(i):
        row = new_row((2,), np.int64)
        row[...] = i
        kept.append({"inner": UserDict(x=row)})
        return {"inner": kept[-1]["inner"], "y": i}

    (batch,) = MapDataset.range(40).map(make).batch(40)
    batch["inner"]["x"][:] = -1
    assert all(each["inner"]["x"][0] == i for i, each in enumerate(kept))


# --------------------------------------------------------------------------------------------- transformers


@pytest.fixture(scope="module")
def tokenizer():
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    import warnings

    from tokenizers import Tokenizer, models, pre_tokenizers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "the": 2, "cat": 3, "sat": 4}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


TEXTS = ["the cat", "the cat sat", "a dog sat", "the"]


def test_what_a_tokenizer_returns_can_be_batched(tokenizer):
    def encode(text):
        return tokenizer(text, padding="max_length", max_length=4, return_tensors="np")

    expected = [dict(encode(text)) for text in TEXTS]
    assert sorted(expected[0])[:2] == ["attention_mask", "input_ids"]
    ds = MapDataset.source(TEXTS).map(encode)
    assert type(ds[0]).__name__ == "BatchEncoding"
    for batches in (ds.batch(2), ds.to_iter_dataset().batch(2), ds.batch(2).mp_prefetch(1), ds.mp_prefetch(1).batch(2)):
        first, second = batches
        assert_equal(first, trees.stack(expected[:2]))
        assert_equal(second["input_ids"], np.array([[[1, 1, 4, 0]], [[2, 0, 0, 0]]]))
    whole = tokenizer(TEXTS, padding=True, return_tensors="np")
    assert_equal(MapDataset.source(whole)[1], {key: column[1] for key, column in whole.items()})


def test_what_a_tokenizer_returns_can_be_padded_packed_and_placed(tokenizer):
    ids = MapDataset.source(TEXTS).map(lambda text: tokenizer(text, return_tensors="np"))
    flat = MapDataset.source(TEXTS).map(lambda text: _arrays(tokenizer(text)))
    padded = next(iter(ids.to_iter_dataset().padded_batch(4)))
    assert padded["input_ids"].shape == (4, 1, 3)
    (row,) = flat.to_iter_dataset().pack({"input_ids": 9, "attention_mask": 9}, num_packing_bins=1)
    assert row["input_ids"].tolist() == [2, 3, 2, 3, 4, 1, 1, 4, 2]
    jax = pytest.importorskip("jax")
    from headrace.experimental import device_put

    placed = next(iter(device_put(ids.take(1).to_iter_dataset(), jax.devices()[0])))
    assert {key: value.tolist() for key, value in placed.items() if key == "input_ids"} == {"input_ids": [[2, 3]]}


def _arrays(encoding):
    for key in encoding:
        encoding[key] = np.array(encoding[key])
    return encoding


def run_python(program):
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=dict(os.environ))
