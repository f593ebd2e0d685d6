"""Elements as tensors without a copy, and pipelines as PyTorch's datasets."""

import copy
import json
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from headrace import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, loader
from headrace.errors import PipelineError, StateError, install_command
from headrace.samplers import IndexSampler
from headrace.testing import assert_equal
from headrace.transforms import Batch
from tests.support.proc import LIMIT_S, nothing_left

ml_dtypes = pytest.importorskip("ml_dtypes")
torch = pytest.importorskip("torch")
StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

from torch.utils.data import DataLoader  # noqa: E402

from headrace.device.torch import TorchDataset, as_tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


def run_script(code):
    """A program of its own: torch forks its workers, which a process with JAX's threads should not."""
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def pipeline():
    ds = MapDataset.range(60).shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 4 != 1)
    return ds.map(lambda x: {"x": np.full(3, x), "name": f"n{x}"}).window_shuffle(5, seed=2)


def names(elements):
    return [element["name"] for element in elements]


def names_in_epoch(epoch):
    dataset = TorchDataset(pipeline())
    dataset.set_epoch(epoch)
    return names(dataset)


# ---- tensors


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    + ["float16", "float32", "float64", "complex64", "complex128"],
)
def test_arrays_become_tensors_that_share_their_memory(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = as_tensors(array)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
@pytest.mark.parametrize("shape", [(2, 2), (4,), ()])
def test_small_floats_share_their_memory(name, shape):
    array = np.array([1.0, 2.0, 0.5, 4.0][: int(np.prod(shape))], getattr(ml_dtypes, name)).reshape(shape)
    tensor = as_tensors(array)
    assert tensor.dtype == getattr(torch, name)
    assert tensor.shape == shape
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(tensor.to(torch.float32).numpy(), array.astype(np.float32))


def test_structure_is_kept_and_only_numpy_leaves_are_converted():
    text, masked = np.array(["a", "b"]), np.ma.masked_array([1, 2], [False, True])
    batch = {"z": [np.ones(2), (np.zeros(1), 5)], "a": "text", "n": None, "t": text, "m": masked, "f": 1.5}
    found = as_tensors(batch)
    assert found["z"][0].data_ptr() == batch["z"][0].ctypes.data
    assert isinstance(found["z"][1], tuple)
    assert isinstance(found["z"][1][0], torch.Tensor)
    assert found["t"] is text
    assert found["m"] is masked
    assert (found["z"][1][1], found["a"], found["n"], found["f"]) == (5, "text", None, 1.5)


@pytest.mark.parametrize(
    "leaf",
    [
        np.array([1, None], object),
        np.array([1], "M8[s]"),
        np.array([b"a"]),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, np.longdouble),
        np.zeros(2, ml_dtypes.int4),
        np.str_("a"),
        torch.ones(2),
    ],
    ids=lambda leaf: str(leaf.dtype),
)
def test_what_torch_has_no_dtype_for_stays_as_it_is(leaf):
    assert as_tensors({"x": leaf})["x"] is leaf


def test_numpy_scalars_become_tensors_without_axes():
    found = as_tensors([np.float32(1.5), np.int64(3), np.bool_(True), ml_dtypes.bfloat16(2)])
    assert [tensor.dtype for tensor in found] == [torch.float32, torch.int64, torch.bool, torch.bfloat16]
    assert [tensor.item() for tensor in found] == [1.5, 3, True, 2.0]
    assert all(tensor.shape == () for tensor in found)


def test_arrays_that_cannot_be_written_to_are_copied():
    data = bytes(range(8))
    array = np.frombuffer(data, np.uint8)
    tensor = as_tensors(array)
    assert tensor.data_ptr() != array.ctypes.data
    tensor[0] = 99
    assert data == bytes(range(8))
    assert as_tensors(np.broadcast_to(np.ones(2), (3, 2))).shape == (3, 2)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6, dtype=">f4"),
        np.arange(17, dtype=np.uint8)[1:].view(np.float64),
        np.zeros(3, [("a", "i1"), ("b", "i4")])["b"],
        np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::-1],
    ],
    ids=["backwards", "byte order", "unaligned", "packed", "columns backwards"],
)
def test_arrays_that_torch_cannot_look_at_are_copied(array):
    np.testing.assert_array_equal(as_tensors(array).numpy(), array)


def test_views_and_empty_arrays():
    array = np.arange(12.0).reshape(3, 4)
    tensor = as_tensors(array[:, ::2])
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.tolist() == [[0, 2], [4, 6], [8, 10]]
    assert as_tensors(np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_that_tensors_share_is_not_used_again(num_workers):
    ds = MapDataset.range(200).map(lambda i: np.full(8192, i)).batch(2).to_iter_dataset()
    held = list(TorchDataset(ds.mp_prefetch(MultiprocessingOptions(num_workers))))
    assert [int(tensor[0, 0]) for tensor in held] == list(range(0, 200, 2))
    assert all((tensor == torch.tensor([[2 * i], [2 * i + 1]])).all() for i, tensor in enumerate(held))


# ---- a dataset of torch's


def test_a_loader_gives_the_stream():
    assert names(DataLoader(TorchDataset(pipeline()), batch_size=None)) == names(pipeline())
    ds = MapDataset.source(np.arange(12).reshape(6, 2)).batch(3)
    found = list(DataLoader(TorchDataset(ds), batch_size=None))
    assert [tensor.tolist() for tensor in found] == [batch.tolist() for batch in ds]


def test_every_iterator_begins_at_the_start():
    dataset = TorchDataset(pipeline(), advance_epochs=False)
    assert names(dataset) == names(dataset) == names(pipeline())


def test_states_restore_the_rest():
    elements = names(pipeline())
    for k in (0, 1, 7, len(elements)):
        dataset = TorchDataset(pipeline())
        iterator = iter(dataset)
        for _ in range(k):
            next(iterator)
        state = json.loads(json.dumps(dataset.state_dict()))
        other = TorchDataset(pipeline())
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert names(other) == elements[k:]
        assert names(other) == names_in_epoch(1)


def test_a_state_before_the_first_element_is_the_start():
    dataset = TorchDataset(pipeline())
    state = dataset.state_dict()
    assert state["state"] == iter(pipeline()).get_state()
    dataset.load_state_dict(state)
    assert names(dataset) == names(pipeline())


@pytest.mark.parametrize("k", [0, 1, 5, 44, 45])
def test_a_stateful_loader_resumes(k):
    elements = names(pipeline())
    assert len(elements) == 45
    first = StatefulDataLoader(TorchDataset(pipeline()), batch_size=None)
    iterator = iter(first)
    assert names(next(iterator) for _ in range(k)) == elements[:k]
    state = copy.deepcopy(first.state_dict())
    other = StatefulDataLoader(TorchDataset(pipeline()), batch_size=None)
    other.load_state_dict(state)
    assert names(other) == elements[k:]
    assert names(other) == names_in_epoch(1)


def test_workers_of_torch_keep_the_order_and_resume():
    found = run_script("""
        import copy, warnings
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        warnings.filterwarnings("ignore", "This DataLoader will create 3 worker processes")
        import numpy as np
        from torch.utils.data import DataLoader
        from torchdata.stateful_dataloader import StatefulDataLoader
        from headrace.device.torch import TorchDataset
        from headrace.errors import StateError
        from headrace import MapDataset

        def pipeline():
            ds = MapDataset.range(60).shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 4 != 1)
            return ds.map(lambda x: {"x": np.full(3, x), "name": f"n{x}"}).window_shuffle(5, seed=2)

        def names(elements):
            return [element["name"] for element in elements]

        if __name__ == "__main__":
            elements = names(pipeline())
            for num_workers in (1, 3):
                loader = DataLoader(TorchDataset(pipeline()), batch_size=None, num_workers=num_workers)
                assert names(loader) == elements, num_workers
            for k in (0, 6, 45):
                loader = StatefulDataLoader(TorchDataset(pipeline()), batch_size=None, num_workers=2)
                iterator = iter(loader)
                assert names(next(iterator) for _ in range(k)) == elements[:k]
                state = copy.deepcopy(loader.state_dict())
                other = StatefulDataLoader(TorchDataset(pipeline()), batch_size=None, num_workers=2)
                other.load_state_dict(state)
                rest = names(other)
                assert rest == elements[k:], (k, rest, elements[k:])
                del iterator, loader
            dataset = TorchDataset(pipeline(), advance_epochs=False)
            next(iter(dataset))  # an iterator that the workers must not go on with
            assert names(DataLoader(dataset, batch_size=None, num_workers=2)) == elements
            spawned = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
            assert [next(iter(spawned))["name"]] == elements[:1]
            print("fine")
    """)
    assert found == "fine"


def test_a_dataset_can_be_pickled_with_its_lambdas():
    dataset = TorchDataset(pipeline())
    iterator = iter(dataset)
    next(iterator)
    again = pickle.loads(pickle.dumps(dataset))
    assert names(again) == names_in_epoch(1)
    dataset.load_state_dict(dataset.state_dict())
    assert names(pickle.loads(pickle.dumps(dataset))) == names(pipeline())[1:]


def test_states_may_be_bytes():
    """As those of a DataLoader are."""
    sampler = IndexSampler(10, num_epochs=1, shuffle=True, seed=1)
    batches = loader.DataLoader(data_source=np.arange(10), sampler=sampler, operations=[Batch(2)])
    dataset = TorchDataset(batches, advance_epochs=False)
    elements = [tensor.tolist() for tensor in dataset]
    assert sorted(x for batch in elements for x in batch) == list(range(10))
    iterator = iter(dataset)
    assert next(iterator).tolist() == elements[0]
    state = dataset.state_dict()
    assert isinstance(state["state"], bytes)
    dataset.load_state_dict(state)
    assert [tensor.tolist() for tensor in dataset] == elements[1:]


class Countdown(IterDataset):
    """A stream of the user's own whose state changes its keys."""

    def __iter__(self):
        return CountdownIterator()


class CountdownIterator(DatasetIterator):
    def __init__(self):
        super().__init__()
        self._left = 20

    def __next__(self):
        if not self._left:
            raise StopIteration
        self._left -= 1
        return np.array([self._left])

    def get_state(self):
        return {"even" if self._left % 2 == 0 else "odd": self._left}  # type: ignore[return-value]

    def set_state(self, state):
        (self._left,) = state.values()


def test_a_stream_of_the_users_own_resumes():
    first = StatefulDataLoader(TorchDataset(Countdown().map(lambda x: x)), batch_size=None)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    other = StatefulDataLoader(TorchDataset(Countdown().map(lambda x: x)), batch_size=None)
    other.load_state_dict(state)
    assert [int(tensor) for tensor in other] == list(range(16, -1, -1))


def test_closing_ends_what_runs():
    with nothing_left():
        dataset = TorchDataset(pipeline().mp_prefetch(MultiprocessingOptions(1)))
        next(iter(dataset))
        dataset.close()
        dataset.close()


# ---- lengths


def test_it_has_the_length_of_its_passes():
    ds = MapDataset.range(10).batch(3)
    for each in (ds, ds.to_iter_dataset(), ds.to_iter_dataset().map(lambda x: x)):
        dataset = TorchDataset(each)
        assert len(dataset) == len(DataLoader(dataset, batch_size=None)) == len(list(dataset)) == 4
    sampler = IndexSampler(10, num_epochs=1)
    assert len(TorchDataset(loader.DataLoader(data_source=range(10), sampler=sampler))) == 10


@pytest.mark.parametrize(
    "ds",
    [
        MapDataset.range(10).repeat(),
        MapDataset.range(10).filter(lambda x: x > 4),  # its length counts elements that are left out
        MapDataset.range(10).to_iter_dataset().filter(lambda x: x > 4),
    ],
)
def test_without_a_known_length_there_is_none(ds):
    dataset = TorchDataset(ds)
    assert dataset
    with pytest.raises(TypeError):
        len(dataset)


# ---- integers


def test_integers_become_those_that_losses_take():
    sizes = {name: np.array([0, 1], name) for name in ("uint8", "int16", "uint16", "int32", "uint32", "int64")}
    dtypes = {name: tensor.dtype for name, tensor in as_tensors(sizes, int64=True).items()}
    assert dtypes == dict.fromkeys(sizes, torch.int64) | {"uint8": torch.uint8}
    floats = as_tensors({"x": np.ones(2, ml_dtypes.bfloat16), "y": torch.ones(2, dtype=torch.int32)}, int64=True)
    assert (floats["x"].dtype, floats["y"].dtype) == (torch.bfloat16, torch.int64)


def test_packed_tokens_can_be_targets_of_a_loss():
    rows = MapDataset.range(8).map(lambda i: {"tokens": np.full(i + 1, i, np.int32)}).to_iter_dataset()
    batch = next(iter(TorchDataset(rows.pack({"tokens": 16}).batch(2), int64=True)))
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    torch.nn.functional.cross_entropy(torch.zeros(32, 8), batch["tokens"].flatten())


# ---- tensors as data and as indices


def test_a_dict_of_tensors_is_a_source_like_one_of_arrays():
    tensors = {"x": torch.arange(6), "y": torch.arange(12.0).reshape(6, 2), "z": np.arange(6, dtype=np.int8)}
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    ds, expected = (MapDataset.source(each).shuffle(seed=1).batch(4) for each in (tensors, arrays))
    assert_equal(list(ds), list(expected))
    assert ds.element_spec == expected.element_spec
    sampler = IndexSampler(6, num_epochs=1)
    assert_equal(list(loader.DataLoader(data_source=tensors, sampler=sampler)), list(MapDataset.source(arrays)))
    wide = MapDataset.source({"x": torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)})[0]["x"]
    assert wide.dtype == ml_dtypes.bfloat16


def test_elements_may_be_dicts_of_tensors():
    ds = MapDataset.range(6).map(lambda i: {"x": torch.full((2,), i), "y": i})
    expected = MapDataset.range(6).map(lambda i: {"x": np.full(2, i), "y": i})
    assert_equal(list(ds.batch(4)), list(expected.batch(4)))
    assert_equal(list(ds.to_iter_dataset().batch(4)), list(expected.to_iter_dataset().batch(4)))
    batch = next(iter(TorchDataset(ds)))
    assert isinstance(batch["x"], torch.Tensor)


def test_indices_may_be_tensors():
    ds = MapDataset.range(10, 20).map(lambda x: x)
    assert ds[torch.tensor(3)] == 13
    assert ds[np.array(3)] == 13
    assert list(ds[torch.tensor([1, -2])]) == list(ds[torch.tensor([1, -2], dtype=torch.int32)]) == [11, 18]
    order = torch.randperm(10)
    assert list(ds[order]) == [10 + int(i) for i in order]
    assert list(ds[torch.tensor(2) : torch.tensor(4)]) == [12, 13]
    with pytest.raises(TypeError, match=r"got bools. Use `filter`, or np.flatnonzero\(mask\)"):
        ds[torch.arange(10) > 4]
    with pytest.raises(TypeError, match="An index must be an int"):
        ds[torch.tensor([1.0])]


# ---- ranks


def warnings_of_a_rank(code, **environment):
    return run_script(
        f"""
        import os, warnings
        os.environ.update({environment!r})
        import torch
        import headrace
        from headrace import MapDataset, ShardOptions
        from headrace.device.torch import TorchDataset, prefetch_to_device
        from headrace.loader import DataLoader
        from headrace.samplers import IndexSampler
        def loader(*shard):
            return DataLoader(data_source=range(8), sampler=IndexSampler(8, num_epochs=1), shard_options=ShardOptions(*shard))
        ds = MapDataset.range(8)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            {code}
        for each in seen:
            print(each.category.__name__, each.filename, each.message)
        """
    )


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "TorchDataset(ds.batch(2))",
            '`ds = ds.shard(4, int(os.environ["RANK"]), drop_remainder=True)` before `batch`',
        ),
        ("TorchDataset(ds[2:]); TorchDataset(ds)", "`ds = ds.shard(4, "),
        ("prefetch_to_device(ds.batch(2).to_iter_dataset(), 'cpu')", "`ds = ds.shard(4, "),
        ("TorchDataset(loader(0, 1))", '`shard_options=ShardOptions(int(os.environ["RANK"]), 4, drop_remainder=True)`'),
    ],
)
def test_ranks_that_read_the_same_are_told_once(code, line):
    found = warnings_of_a_rank(code, WORLD_SIZE="4", RANK="1")
    assert found.startswith("RuntimeWarning <string> WORLD_SIZE reports 4 ranks, but this pipeline is not")
    assert line in found
    assert found.count("ranks, but") == 1


def test_a_process_group_says_so_too(tmp_path):
    found = warnings_of_a_rank(
        f"""
            dataset = TorchDataset(ds)
            store = torch.distributed.FileStore({str(tmp_path / "store")!r}, 1)
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            list(dataset)
            torch.distributed.get_world_size = lambda: 3
            list(dataset)
            torch.distributed.destroy_process_group()
        """.strip()
    )
    assert "The process group reports 3 ranks" in found
    assert "ds.shard(3, torch.distributed.get_rank(), drop_remainder=True)" in found


@pytest.mark.parametrize(
    "code",
    [
        "TorchDataset(ds.shard(4, 1))",
        "TorchDataset(ds.shuffle(seed=1)[1::4].batch(2).repeat())",
        "TorchDataset(ds[2:4])",
        "TorchDataset(ds.global_batch(4, ShardOptions(1, 4)))",
        "TorchDataset(ds.to_iter_dataset().global_batch(4, ShardOptions(1, 4)))",
        "TorchDataset(loader(1, 4))",
        "TorchDataset(ds, warn_unsharded=False)",
        "prefetch_to_device(ds.to_iter_dataset(), 'cpu', warn_unsharded=False)",
    ],
)
def test_ranks_that_read_their_shards_are_not_warned(code):
    assert warnings_of_a_rank(f"list(zip({code}, range(1)))", WORLD_SIZE="4", RANK="1") == ""


def test_one_rank_is_not_warned():
    assert warnings_of_a_rank("list(TorchDataset(ds))", WORLD_SIZE="1", RANK="0") == ""


def test_ranks_that_jax_does_not_know_are_told_that_each_stops_on_its_own():
    code = "headrace.stop_together(ds.to_iter_dataset()); headrace.stop_together(ds.to_iter_dataset())"
    found = warnings_of_a_rank(code, WORLD_SIZE="4", RANK="1")
    assert found.startswith("RuntimeWarning <string> WORLD_SIZE says that there are 4 ranks, but `stop_together` only")
    assert found.count("ranks, but") == 1
    assert warnings_of_a_rank(code, WORLD_SIZE="1", RANK="0") == ""


# ---- errors


def restored(dataset, state):
    dataset.load_state_dict(state)
    return iter(dataset)


@pytest.mark.parametrize(
    ("field", "value"),
    [("skip", -1), ("skip", "x"), ("skip", 5), ("skip", True), ("epoch", -3), ("epoch", "x"), ("epoch", None)]
    + [("worker", 9), ("worker", -1), ("worker", 0.0), ("num_workers", 0), ("num_workers", [1]), ("state", None)],
)
def test_a_damaged_field_of_a_state_is_an_error(field, value):
    dataset = TorchDataset(MapDataset.range(20))
    next(iter(dataset))
    state = dataset.state_dict() | {field: value}
    with pytest.raises(
        StateError, match="A state is a dict" if field == "state" else f"damaged: `{field}` must be an int"
    ):
        restored(TorchDataset(MapDataset.range(20)), state)


def test_only_what_can_be_iterated_again_is_taken():
    with pytest.raises(PipelineError, match="got int"):
        TorchDataset(3)
    with pytest.raises(PipelineError, match="more than once; got list_iterator"):
        TorchDataset(iter([1]))
    with pytest.raises(
        PipelineError, match=r"needs iterators with `get_state` and `set_state`; those of list have none"
    ):
        iter(TorchDataset([1]))


def test_states_of_something_else_are_named():
    dataset = TorchDataset(pipeline())
    with pytest.raises(StateError, match=r"not a state of a TorchDataset, .* got \['next_index'\]"):
        dataset.load_state_dict({"next_index": 3})
    with pytest.raises(StateError, match="got bytes"):
        dataset.load_state_dict(b"")  # type: ignore[arg-type]
    dataset.load_state_dict(dataset.state_dict() | {"worker": 1, "num_workers": 2})
    with pytest.raises(StateError, match="from worker 1 of 2, but this is worker 0 of 1"):
        iter(dataset)


def test_without_torch_the_error_says_what_to_install():
    found = run_script("""
        import sys
        sys.modules["torch"] = None
        try:
            import headrace.device.torch
        except ImportError as e:
            print(e)
    """)
    assert found == f"`torch` is not installed. Install it with: {install_command('torch')}"


class WithMore(TorchDataset):
    """A subclass with an argument of its own."""

    def __init__(self, ds, extra):
        super().__init__(ds)
        self.extra = extra


def test_a_subclass_keeps_its_attributes_when_it_is_pickled():
    again = pickle.loads(pickle.dumps(WithMore(MapDataset.range(3), extra=5)))
    assert again.extra == 5
    assert list(again) == [0, 1, 2]
