"""PyTorch's datasets, with PyTorch's own classes and the states that `torchdata` asks for."""

import itertools
import json
import pickle
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import MapDataset, MultiprocessingOptions
from headrace.errors import ClosedError, MissingDependency, PipelineError, StateError, StructureError, install_command
from headrace.sources.torch_data import TorchDataSource, TorchIterDataset, _from_json, _to_json, as_arrays
from headrace.testing import assert_block_law, assert_equal, assert_resumable

torch = pytest.importorskip("torch")
data = torch.utils.data

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)


# ----------------------------------------------------------------------------------------------- tensors


def test_tensors_become_arrays_in_the_same_memory():
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    element = as_arrays({"x": tensor, "rest": (tensor[1], "text", 3, None, [tensor.T])})
    assert type(element["x"]) is np.ndarray
    tensor[1, 0] = 99
    assert element["x"][1, 0] == element["rest"][0][0] == element["rest"][4][0][0, 1] == 99
    assert element["rest"][1:4] == ("text", 3, None)


@pytest.mark.parametrize(
    "name", ["bool", "uint8", "int64", "float16", "float64", "complex64", "bfloat16", "float8_e4m3fn"]
)
def test_dtypes_stay_as_they_are(name):
    array = as_arrays(torch.tensor([0, 1, 2]).to(getattr(torch, name)))
    assert array.dtype.name == name
    assert array.astype(np.float32 if name != "complex64" else np.complex64).tolist() == [
        0,
        1,
        min(2, 1 + (name != "bool")),
    ]


def test_tensors_with_gradients_conjugates_and_scalars():
    assert_equal(as_arrays(torch.ones(2, requires_grad=True)), np.ones(2, np.float32))
    assert_equal(as_arrays(torch.tensor([1 + 2j]).conj()), np.array([1 - 2j], np.complex64))
    assert_equal(as_arrays(torch.tensor(7)), np.array(7))


def test_sparse_tensors_stay_tensors():
    sparse = torch.eye(3).to_sparse()
    assert as_arrays([sparse])[0] is sparse


# ---------------------------------------------------------------------------------------- random access


class Plain(data.Dataset):
    """Reads one element at a time."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if not 0 <= index < 40:
            raise IndexError(index)
        return {"x": torch.full((2,), index), "i": index}


class Blocks(Plain):
    """Reads many at once."""

    def __init__(self):
        self.asked = []

    def __getitems__(self, indices):
        assert all(type(index) is int for index in indices)
        self.asked.append(len(indices))
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Plain, Blocks])
def test_a_map_style_dataset_gives_arrays(kind):
    source = TorchDataSource(kind())
    assert len(source) == 40
    assert_equal(source[-1], {"x": np.full(2, 39), "i": 39})
    assert_block_law(MapDataset.source(source).shuffle(seed=1))
    batch = next(iter(MapDataset.source(source).shuffle(seed=1).batch(8)))
    assert_equal(batch["x"][:, 0], batch["i"])
    assert_resumable(MapDataset.source(source).shuffle(seed=2).to_iter_dataset())


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("make", [lambda i: torch.arange(i, i + 6).reshape(2, 3).T, lambda i: torch.tensor(i > 3)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_tensors_are_those_of_their_arrays(make, num_workers):
    ds = MapDataset.range(10).map(make).batch(4)
    expected = [np.stack([make(i).numpy() for i in part]) for part in (range(4), range(4, 8), range(8, 10))]
    found = list(ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=num_workers)))
    assert_equal(found, expected)
    assert all(type(batch) is np.ndarray and batch.flags.writeable for batch in found)


def test_rows_of_a_tensor_are_copied_alone():
    every = torch.zeros(1000, 7)

    def add(row):
        assert row.untyped_storage().nbytes() == 28  # not all 1,000 rows
        return row.add_(1)

    assert MapDataset.source(every).map(add).batch(1000)[0].sum() == 7000
    assert MapDataset.source(data.StackDataset(every)).map(lambda row: add(row[0])).batch(1000)[0].sum() == 7000
    assert every.sum() == 0


def test_tensors_that_cannot_be_batched_are_errors():
    unlike = MapDataset.source([0, 1]).map(lambda i: torch.zeros(2 + i)).batch(2)
    with pytest.raises(StructureError, match=r"element 0 of the batch has shape \(2,\), element 1 has \(3,\)"):
        unlike[0]
    with pytest.raises(RuntimeError, match="requires grad"):
        MapDataset.range(2).map(lambda i: torch.zeros(2, requires_grad=True)).batch(2)[0]
    promoted = MapDataset.range(2).map(lambda i: torch.zeros(2, dtype=(torch.int32, torch.float64)[i])).batch(2)
    assert promoted[0].dtype == np.float64


def test_getitems_of_the_dataset_is_used():
    dataset = Blocks()
    list(MapDataset.source(TorchDataSource(dataset)).batch(20))
    assert max(dataset.asked) >= 20
    assert not hasattr(TorchDataSource(Plain()), "__getitems__")
    source = TorchDataSource(dataset)
    assert [row["i"] for row in source.__getitems__(np.array([-1, 3, -40]))] == [39, 3, 0]
    for outside in (40, -41):
        with pytest.raises(IndexError, match=f"Index {outside} is out of range for 40 elements"):
            source.__getitems__([0, outside])


@pytest.mark.parametrize("kind", [Plain, Blocks])
def test_a_dataset_is_a_source_without_wrapping_too(kind):
    ds = MapDataset.source(kind()).shuffle(seed=1)
    ours, wrapped = list(ds.batch(8)), list(MapDataset.source(TorchDataSource(kind())).shuffle(seed=1).batch(8))
    assert_equal(ours, wrapped)
    assert isinstance(ds[0]["x"], torch.Tensor)


def test_datasets_that_torch_makes_of_others():
    tensors = data.TensorDataset(torch.eye(4), torch.arange(4))
    both = data.ConcatDataset([tensors, data.Subset(tensors, [3, 1])])
    source = TorchDataSource(both)
    assert [int(label) for _, label in map(source.__getitem__, range(6))] == [0, 1, 2, 3, 3, 1]
    subset = TorchDataSource(data.Subset(Blocks(), [5, 7, 5]))
    assert [row["i"] for row in subset.__getitems__([2, 1])] == [5, 7]


def test_map_style_elements_are_the_same_with_workers():
    ds = MapDataset.source(TorchDataSource(Blocks())).shuffle(seed=1).to_iter_dataset().batch(7)
    with iter(ds.mp_prefetch(TWO)) as workers:
        for ours, other in zip(ds, workers, strict=True):
            assert_equal(ours, other)


def test_the_failing_element_is_named():
    class Broken(Plain):
        def __getitem__(self, index):
            if index == 13:
                raise OSError("unreadable")
            return super().__getitem__(index)

    iterator = iter(MapDataset.source(TorchDataSource(Broken())))
    assert len(list(itertools.islice(iterator, 13))) == 13
    with pytest.raises(OSError, match="unreadable") as caught:
        next(iterator)
    assert any("element 13" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("index", [40, -41])
def test_an_index_out_of_range_is_an_error(index):
    with pytest.raises(IndexError, match=f"Index {index} is out of range for 40 elements"):
        TorchDataSource(Plain())[index]


def test_an_empty_dataset_is_an_empty_source():
    source = TorchDataSource(data.TensorDataset(torch.empty(0, 3)))
    assert len(source) == 0
    assert list(MapDataset.source(source)) == []


def test_sources_travel_and_have_a_short_name():
    source = pickle.loads(pickle.dumps(TorchDataSource(Plain())))
    assert source[3]["i"] == 3
    assert repr(source) == "TorchDataSource(Plain, length=40)"


def test_datasets_of_another_kind_are_errors_that_say_what_to_do():
    with pytest.raises(PipelineError, match="Counting is an IterableDataset, .* use `TorchIterDataset`"):
        TorchDataSource(Counting(3))
    with pytest.raises(PipelineError, match="int lacks `__len__`"):
        TorchDataSource(3)
    with pytest.raises(PipelineError, match="got Plain. It has random access: use `TorchDataSource`"):
        TorchIterDataset(Plain())


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    with pytest.raises(MissingDependency, match=re.escape(install_command("torch"))):
        TorchDataSource(Plain())


# ------------------------------------------------------------------------------------------------ streams


class Counting(data.IterableDataset):
    """Without states."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for i in range(self.count):
            yield {"x": torch.full((2,), i)}


class Remembering(Counting):
    """The dataset has the state."""

    opened = 0

    def __init__(self, count):
        super().__init__(count)
        self.next = 0
        self.rng = torch.Generator().manual_seed(3)

    def __iter__(self):
        type(self).opened += 1
        while self.next < self.count:
            self.next += 1
            yield {"x": torch.full((2,), self.next - 1), "random": torch.randint(1000, (), generator=self.rng)}
        self.next = 0

    def state_dict(self):
        return {"next": self.next, "rng": self.rng.get_state()}

    def load_state_dict(self, state):
        self.next = state["next"]
        self.rng.set_state(state["rng"])

    def __deepcopy__(self, memo):
        other = type(self)(self.count)
        other.load_state_dict(self.state_dict())
        return other


class Cursor:
    """An iterator that has the state."""

    def __init__(self, count):
        self.count, self.next = count, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= self.count:
            raise StopIteration
        self.next += 1
        return {"x": torch.full((2,), self.next - 1)}

    def state_dict(self):
        return {"next": self.next, 3: ("a", b"\x00\xff", np.arange(2), np.float32(0.5))}

    def load_state_dict(self, state):
        assert state[3][:2] == ("a", b"\x00\xff")
        assert_equal(state[3][2:], (np.arange(2), np.float32(0.5)))
        self.next = state["next"]


class Pointing(Counting):
    """The iterator has the state."""

    def __iter__(self):
        return Cursor(self.count)


@pytest.mark.parametrize("kind", [Counting, Remembering, Pointing])
def test_streams_have_the_order_of_the_dataset_and_resume_at_every_element(kind):
    dataset = kind(40)
    ds = TorchIterDataset(dataset)
    values = [int(row["x"][0]) for row in ds]
    assert values == [int(row["x"][0]) for row in ds] == list(range(40))
    assert all(type(row["x"]) is np.ndarray for row in ds)
    assert_resumable(ds, max_outputs=40)
    assert_resumable(ds.filter(lambda row: row["x"][0] % 5 != 1).batch(3))


@pytest.mark.parametrize("kind", [Remembering, Pointing])
def test_restoring_does_not_walk_from_the_start(kind):
    iterator = iter(TorchIterDataset(kind(10**9)))
    next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    state["state_dict"] = _to_json({**_from_json(state["state_dict"]), "next": 10**9 - 2}, "state")
    iterator.set_state(state)
    assert [int(row["x"][0]) for row in iterator] == [10**9 - 2, 10**9 - 1]


def test_iterations_of_one_dataset_do_not_move_each_other_or_the_dataset():
    dataset = Remembering(10)
    first, second = iter(TorchIterDataset(dataset)), iter(TorchIterDataset(dataset))
    assert [int(next(i)["x"][0]) for i in (first, first, second, first)] == [0, 1, 0, 2]
    assert dataset.next == 0


def test_a_stream_is_the_same_with_workers():
    ds = TorchIterDataset(Remembering(40)).batch(7)
    with iter(ds.mp_prefetch(TWO)) as workers:
        for ours, other in zip(ds, workers, strict=True):
            assert_equal(ours, other)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
def test_the_states_are_those_of_the_stateful_loader():
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    loader = loaders.StatefulDataLoader(Remembering(10), batch_size=None)
    iterator = iter(loader)
    rows = [next(iterator) for _ in range(4)]
    ours = iter(TorchIterDataset(Remembering(10)))
    for row in rows:
        assert_equal(next(ours), as_arrays(row))
    theirs = loader.state_dict()
    state = _from_json(ours.get_state()["state_dict"])
    fetched = theirs["fetcher_state"]["dataset_iter_state"] or theirs["dataset_state"]
    assert fetched["next"] == state["next"] == 4
    assert torch.equal(fetched["rng"], state["rng"])


def test_a_closed_stream_says_so():
    iterator = iter(TorchIterDataset(Remembering(5)))
    next(iterator)
    iterator.close()
    assert _from_json(iterator.get_state()["state_dict"])["next"] == 1
    with pytest.raises(ClosedError):
        next(iterator)


def test_an_empty_stream():
    for kind in (Counting, Remembering, Pointing):
        assert list(TorchIterDataset(kind(0))) == []


def test_a_dataset_that_cannot_be_copied_is_an_error(tmp_path):
    class Holding(Counting):
        def __init__(self, file):
            super().__init__(3)
            self.file = file

    with (
        open(tmp_path / "x", "w") as file,
        pytest.raises(PipelineError, match="Holding cannot be copied: .*open files"),
    ):
        next(iter(TorchIterDataset(Holding(file))))


def test_states_that_cannot_be_json_and_states_of_others_are_errors():
    class Odd(Remembering):
        def state_dict(self):
            return {"thing": [1, object()]}

        def __deepcopy__(self, memo):
            return Odd(self.count)

    iterator = iter(TorchIterDataset(Odd(5)))
    next(iterator)
    with pytest.raises(StateError, match=r"state_dict\(\)\['thing'\]\[1\] is object, which a state cannot hold"):
        iterator.get_state()
    with pytest.raises(StateError, match="has the field `state_dict`; got {'next_index': 3}"):
        iterator.set_state({"next_index": 3})


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.tuples(st.integers())


@settings(max_examples=40)
@given(st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner, inner)))
def test_any_state_comes_back_from_json(state):
    assert_equal(_from_json(json.loads(json.dumps(_to_json(state, "state")))), state)
