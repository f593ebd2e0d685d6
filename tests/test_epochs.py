"""`TorchDataset.set_epoch`: each epoch in an order of its own, the same each time."""

import gc
import json
import os
import pickle

import numpy as np
import pytest

from headrace import DataLoader, IterDataset, MapDataset, MultiprocessingOptions
from headrace.errors import PipelineError, StateError
from headrace.samplers import IndexSampler
from headrace.testing import assert_equal
from tests.chains import Dice, Tail
from tests.proc import nothing_left, until, workers_of
from tests.test_torch import run_script

torch = pytest.importorskip("torch")

from headrace.device.torch import TorchDataset  # noqa: E402


def numbers():
    return MapDataset.range(20).shuffle(seed=1)


def stream():
    return numbers().to_iter_dataset()


def epochs(ds, *wanted):
    """The elements of some epochs."""
    dataset = TorchDataset(ds)
    found = []
    for epoch in wanted:
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        found.append([x.tolist() if isinstance(x, torch.Tensor) else x for x in dataset])
    return found


RANDOM_ACCESS = {
    "shuffle": numbers,
    "random_map": lambda: numbers().random_map(lambda x, rng: x + rng.random(), seed=2),
    "batch": lambda: numbers().batch(3),
    "mix": lambda: MapDataset.mix([numbers(), numbers()[:7].shuffle(seed=4)]),
    "globals": lambda: MapDataset.source(Dice(9), seed_globals=True, seed=2).shuffle(seed=3),
    "slice": lambda: numbers()[3:15:2],
}


@pytest.mark.parametrize("name", RANDOM_ACCESS)
def test_an_epoch_of_random_access_is_that_of_repeat(name):
    ds = RANDOM_ACCESS[name]()
    whole = [x.tolist() if isinstance(x, np.ndarray) else x for x in ds.repeat(4)]
    size = len(ds)
    for epoch in (3, 0, 1):
        assert epochs(ds, epoch) == [whole[epoch * size : (epoch + 1) * size]]


STREAMS = {
    "filter": lambda: stream().filter(lambda x: x % 3 > 0).batch(4),
    "window_shuffle": lambda: MapDataset.range(20).to_iter_dataset().window_shuffle(6, seed=3),
    "shuffle": lambda: MapDataset.range(20).to_iter_dataset().shuffle(6, seed=3),
    "random_map": lambda: MapDataset.range(20).to_iter_dataset().random_map(lambda x, rng: rng.random(), seed=3),
    "mix": lambda: IterDataset.mix({"a": stream(), "b": stream().map(lambda x: -x)}),
    "interleave": lambda: IterDataset.interleave([stream(), stream().map(lambda x: -x)], cycle_length=2),
    "interleave lazily": lambda: IterDataset.interleave(MapDataset.range(3).map(lambda i: numbers()), cycle_length=2),
    "pack": lambda: (
        stream().map(lambda x: {"x": np.full(x % 5 + 1, x)}).pack({"x": 6}, num_packing_bins=3).map(lambda x: x["x"])
    ),
    "batch_by_size": lambda: stream().map(lambda x: np.full(x % 5 + 1, x)).batch_by_size(12, window_size=9, seed=1),
    "global_batch": lambda: numbers().to_iter_dataset(num_lanes=2).window_shuffle(4, seed=1).global_batch(4),
    "prefetch": lambda: stream().prefetch(3),
}


@pytest.mark.parametrize("name", STREAMS)
def test_epochs_of_a_stream_have_orders_of_their_own(name):
    zero, one, two, again = epochs(STREAMS[name](), 0, 1, 2, 1)
    assert one == again
    assert zero == [x.tolist() if isinstance(x, np.ndarray) else x for x in STREAMS[name]()]
    assert len({repr(each) for each in (zero, one, two)}) == 3
    if name not in ("random_map", "pack", "batch_by_size"):
        assert sorted(np.concatenate(list(map(np.ravel, one)))) == sorted(np.concatenate(list(map(np.ravel, zero))))


def test_a_cache_keeps_the_first_epoch():
    zero, one = epochs(stream().cache(), 0, 1)
    assert zero == one


def test_workers_give_the_same_epochs_and_end_with_them():
    ds = stream().filter(lambda x: x % 3 > 0).window_shuffle(5, seed=1)
    expected = epochs(ds, 0, 1, 2)
    with nothing_left():
        dataset = TorchDataset(ds.mp_prefetch(MultiprocessingOptions(num_workers=1)))
        for epoch, elements in enumerate(expected):
            dataset.set_epoch(epoch)
            assert list(dataset) == elements
            before = workers_of(os.getpid())
            assert list(dataset) == elements
            assert before <= workers_of(os.getpid()), "workers stay while the epoch does"
        gc.collect()
        # Those of the first epoch, which is the dataset itself, stay as well.
        until(lambda: len(workers_of(os.getpid())) <= 2, "workers of earlier epochs have ended")
        del dataset


# ---- with PyTorch's loaders


def test_workers_of_torch_learn_of_the_epoch_even_if_they_stay():
    found = run_script("""
        import warnings
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        from torch.utils.data import DataLoader
        from headrace import MapDataset
        from headrace.device.torch import TorchDataset

        def build():
            return TorchDataset(MapDataset.range(20).shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 3 > 0))

        def epochs(dataset, loader):
            found = []
            for epoch in range(3):
                if epoch:
                    dataset.set_epoch(epoch)
                found.append([int(x) for x in loader])
            return found

        if __name__ == "__main__":
            dataset = build()
            expected = epochs(dataset, DataLoader(dataset, batch_size=None))
            assert len({tuple(each) for each in expected}) == 3
            stay = {"persistent_workers": True}
            for options in ({}, stay, stay | {"multiprocessing_context": "spawn"}):
                dataset = build()
                loader = DataLoader(dataset, batch_size=None, num_workers=2, **options)
                assert epochs(dataset, loader) == expected, options
            print("fine")
    """)
    assert found == "fine"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_loader_resumes_in_its_epoch():
    StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    (expected,) = epochs(stream().filter(lambda x: x % 3 > 0), 2)
    dataset = TorchDataset(stream().filter(lambda x: x % 3 > 0))
    dataset.set_epoch(2)
    loader = StatefulDataLoader(dataset, batch_size=None)
    iterator = iter(loader)
    assert [next(iterator) for _ in range(4)] == expected[:4]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    again = TorchDataset(stream().filter(lambda x: x % 3 > 0))
    other = StatefulDataLoader(again, batch_size=None)
    other.load_state_dict(state)
    assert list(other) == expected[4:]
    assert again.epoch == 2


def test_states_know_their_epoch():
    dataset = TorchDataset(numbers())
    assert "epoch" not in dataset.state_dict()
    (expected,) = epochs(numbers(), 3)
    dataset.set_epoch(3)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    state = json.loads(json.dumps(dataset.state_dict()))
    assert state["epoch"] == 3
    other = TorchDataset(numbers())
    other.load_state_dict(state)
    assert (other.epoch, list(other)) == (3, expected[5:])
    other.load_state_dict(state)
    other.set_epoch(4)
    with pytest.raises(StateError, match=r"The state is of epoch 3, and `set_epoch\(4\)` was called since"):
        iter(other)
    other.set_epoch(3)
    assert list(other) == expected[5:]


def test_a_state_of_another_epoch_is_refused_by_the_pipeline_as_well():
    dataset = TorchDataset(numbers())
    dataset.set_epoch(1)
    next(iter(dataset))
    state = {**dataset.state_dict(), "epoch": 2}
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="slice start"):
        iter(dataset)


def test_it_can_be_pickled():
    dataset = TorchDataset(numbers())
    dataset.set_epoch(2)
    assert_equal(list(pickle.loads(pickle.dumps(dataset))), list(dataset))


@pytest.mark.parametrize(
    ("build", "epoch", "text"),
    [
        (numbers, -1, "The epoch must be an int of at least 0; got -1"),
        (lambda: numbers().repeat(), 1, r"has no epoch 1, since it never ends: leave out `repeat\(\)`"),
        (lambda: Tail(stream()), 1, "Tail .*cannot go to epoch 1: it is a stream of its own"),
        (lambda: MapDataset.range(2**40), 2**30, "beyond 2"),
        (
            lambda: DataLoader(data_source=range(4), sampler=IndexSampler(4, num_epochs=2)),
            1,
            "has a DataLoader. Let its sampler read several epochs",
        ),
    ],
)
def test_what_has_no_such_epoch(build, epoch, text):
    dataset = TorchDataset(build())
    dataset.set_epoch(0)
    with pytest.raises(PipelineError, match=text):
        dataset.set_epoch(epoch)
    assert dataset.epoch == 0
