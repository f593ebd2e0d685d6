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
from tests.device.test_torch import run_script
from tests.support.chains import Dice, Tail
from tests.support.proc import nothing_left, until, workers_of

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
        dataset = TorchDataset(ds.mp_prefetch(MultiprocessingOptions(num_workers=1)), advance_epochs=False)
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


# ---- passes


def passes(dataset, count):
    return [[int(x) for x in dataset] for _ in range(count)]


def test_each_pass_is_the_next_epoch():
    ds = numbers().seed(3).random_map(lambda x, rng: 100 * x + int(rng.integers(100)))
    dataset = TorchDataset(ds)
    whole = list(ds.repeat(3))
    assert passes(dataset, 3) == [whole[:20], whole[20:40], whole[40:]]
    assert dataset.epoch == 3
    dataset.set_epoch(1)
    assert passes(dataset, 2) == [whole[20:40], whole[40:]]


def test_an_option_fixes_the_epoch():
    dataset = TorchDataset(numbers(), advance_epochs=False)
    zero, two = epochs(numbers(), 0, 2)
    assert passes(dataset, 2) == [zero, zero]
    dataset.set_epoch(2)
    assert passes(dataset, 2) == [two, two]


def test_a_pass_begins_with_its_first_element():
    """Frameworks make iterators that they do not use, and say which epoch it is after that."""
    dataset = TorchDataset(numbers())
    zero, one, two = epochs(numbers(), 0, 1, 2)
    iter(dataset), dataset.state_dict(), iter(dataset)
    assert passes(dataset, 1) == [zero]
    iterator = iter(dataset)
    assert dataset.state_dict()["epoch"] == 1
    dataset.set_epoch(2)
    assert dataset.state_dict()["epoch"] == 2
    assert list(iterator) == two
    dataset.set_epoch(1)
    assert passes(dataset, 1) == [one]


def test_a_pass_that_is_left_early_counts():
    dataset = TorchDataset(numbers())
    zero, one = epochs(numbers(), 0, 1)
    first = iter(dataset)
    assert next(first) == zero[0]
    second = iter(dataset)
    assert [next(second), next(first), next(second)] == [one[0], zero[1], one[1]]


@pytest.mark.parametrize("k", [0, 1, 19, 20, 21, 39, 40, 45])
def test_states_go_on_in_their_epoch_and_then_with_the_next(k):
    dataset = TorchDataset(numbers())
    found, state = [], dataset.state_dict()
    while len(found) < k:
        for x in dataset:
            found.append(x)
            state = json.loads(json.dumps(dataset.state_dict()))
            if len(found) == k:
                break
    other = TorchDataset(numbers())
    other.load_state_dict(state)
    first, second = passes(other, 2)
    whole = list(numbers().repeat(5))
    assert found == whole[:k]
    assert first + second == whole[k : k + len(first) + 20]
    assert len(first) == (-k) % 20 + 20 * (k == 0)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: numbers().repeat(), "because it never ends"),
        (lambda: Tail(stream()), "only its own code can reorder"),
        (lambda: DataLoader(data_source=range(4), sampler=IndexSampler(4, num_epochs=1)), "not of a DataLoader"),
    ],
)
def test_passes_that_cannot_differ_are_told(build, why):
    dataset = TorchDataset(build())
    first = next(iter(dataset))
    with pytest.warns(
        RuntimeWarning, match=rf"A second pass .* the same elements as the first\. .*{why}.*advance_epochs"
    ):
        assert next(iter(dataset)) == first
    assert next(iter(dataset)) == first, "it is told once"
    assert "epoch" not in dataset.state_dict()
    fixed = TorchDataset(build(), advance_epochs=False)
    assert next(iter(fixed)) == next(iter(fixed)) == first


# ---- with PyTorch's loaders


def test_passes_with_workers_of_torch_are_those_without():
    found = run_script("""
        import copy, warnings
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        import torch
        from torch.utils.data import DataLoader
        from torchdata.stateful_dataloader import StatefulDataLoader
        from headrace import MapDataset
        from headrace.device.torch import TorchDataset

        def build(**options):
            ds = MapDataset.range(20).shuffle(seed=1).to_iter_dataset().filter(lambda x: x % 3 > 0)
            return TorchDataset(ds, **options)

        def passes(loader, count=3):
            return [[int(x) for x in loader] for _ in range(count)]

        def with_seed(loader):
            for _ in range(3):
                torch.manual_seed(0)  # so that workers of all passes have the same seeds
                yield [int(x) for x in loader]

        if __name__ == "__main__":
            expected = passes(build())
            assert len({tuple(each) for each in expected}) == 3
            stay = {"persistent_workers": True}
            for kind in (DataLoader, StatefulDataLoader):
                for options in ({}, stay):
                    loader = kind(build(), batch_size=None, num_workers=3, **options)
                    assert passes(loader) == expected, (kind, options)
                    assert loader.dataset.epoch == 3
            loader = DataLoader(build(), batch_size=None, num_workers=2, **stay, multiprocessing_context="spawn")
            assert passes(loader) == expected
            assert list(with_seed(DataLoader(build(), batch_size=None, num_workers=3))) == expected
            fixed = DataLoader(build(advance_epochs=False), batch_size=None, num_workers=2)
            assert passes(fixed) == 3 * expected[:1]
            copied = DataLoader(copy.deepcopy(build()), batch_size=None, num_workers=2, **stay)
            assert passes(copied) == expected
            for options in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2} | stay):
                for k in (0, 1, 2, 12, 13, 14, 26):
                    loader = StatefulDataLoader(build(), batch_size=None, **options)
                    state, count = loader.state_dict(), 0
                    while count < k:
                        for _ in loader:
                            count += 1
                            state = copy.deepcopy(loader.state_dict())
                            if count == k:
                                break
                    other = StatefulDataLoader(build(), batch_size=None, **options)
                    other.load_state_dict(state)
                    epoch = max(k - 1, 0) // 13
                    rest = expected[epoch][k - 13 * epoch :]
                    assert passes(other, 2) == [rest, expected[epoch + 1]], (options, k)
            for options in ({"num_workers": 0}, {"num_workers": 2}):
                loader = StatefulDataLoader(build(), batch_size=None, **options)
                list(loader)
                state = copy.deepcopy(loader.state_dict())  # it has seen the end
                other = StatefulDataLoader(build(), batch_size=None, **options)
                other.load_state_dict(state)
                assert passes(other, 2) == expected[1:], options
            print("fine")
    """)
    assert found == "fine"


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
    assert again.epoch == 3, "the next pass is the next epoch"


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
    with pytest.raises(StateError, match=r"The state is of epoch 3, but `set_epoch\(4\)` was called after"):
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
        (lambda: numbers().repeat(), 1, r"has no epoch 1, because it never ends. Remove `repeat\(\)`"),
        (lambda: Tail(stream()), 1, "Tail .*cannot start at epoch 1: it is a user-defined stream"),
        (lambda: MapDataset.range(2**40), 2**30, "beyond 2"),
        (
            lambda: DataLoader(data_source=range(4), sampler=IndexSampler(4, num_epochs=2)),
            1,
            "not of a DataLoader. Let its sampler read several epochs",
        ),
    ],
)
def test_what_has_no_such_epoch(build, epoch, text):
    dataset = TorchDataset(build())
    dataset.set_epoch(0)
    with pytest.raises(PipelineError, match=text):
        dataset.set_epoch(epoch)
    assert dataset.epoch == 0
