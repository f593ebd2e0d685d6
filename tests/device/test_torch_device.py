"""Tensors that are copied to a device ahead: on the CPU, on a stand-in for CUDA, and on a GPU where there is one."""

import contextlib
import gc
import random
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace import MapDataset  # noqa: E402
from headrace.device import torch as device_torch  # noqa: E402
from headrace.device.torch import TorchDataset, prefetch_to_device  # noqa: E402
from headrace.engine import page_locks  # noqa: E402
from headrace.engine.page_locks import CudaDriver, PageLocks  # noqa: E402
from headrace.errors import PipelineError, WorkerError  # noqa: E402
from headrace.testing import assert_resumable  # noqa: E402
from tests.support.fake_cuda import FakeCuda  # noqa: E402
from tests.support.proc import nothing_left  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
SIZE = 1 << 18


def elements(count=40, size=SIZE):
    return MapDataset.range(count).map(lambda i: {"x": np.full(size, i), "name": f"{i}"}).to_iter_dataset()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("buffer_size", [0, 1, 2, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_on_the_device_in_order(device, buffer_size, workers):
    ds = elements().mp_prefetch(workers) if workers else elements()
    with nothing_left(), iter(prefetch_to_device(ds, device, buffer_size=buffer_size)) as iterator:
        for i, element in enumerate(iterator):
            assert element["x"].device.type == device
            assert element["name"] == f"{i}"
            assert bool((element["x"] == i).all())
        assert i == 39
        del element


@pytest.mark.parametrize("device", DEVICES)
def test_states_are_those_of_the_dataset(device):
    ds = MapDataset.range(30).shuffle(seed=3).map(lambda i: np.full(4, i)).batch(4).to_iter_dataset()
    assert_resumable(prefetch_to_device(ds, device).map(lambda tensor: tensor.cpu().numpy()))
    with iter(ds) as plain, iter(prefetch_to_device(ds, device)) as ahead:
        for _ in range(3):
            next(plain), next(ahead)
        assert plain.get_state() == ahead.get_state()


@pytest.mark.parametrize("device", DEVICES)
def test_it_works_in_a_torch_dataset(device):
    dataset = TorchDataset(prefetch_to_device(MapDataset.range(6).batch(2).to_iter_dataset(), device))
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert [each.tolist() for each in loader] == [[0, 1], [2, 3], [4, 5]]
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    rest = [each.tolist() for each in iterator]
    dataset.load_state_dict(state)
    assert [each.tolist() for each in dataset] == rest


def test_errors_say_what_to_do():
    ds = MapDataset.range(6).batch(2)
    with pytest.raises(PipelineError, match="to_iter_dataset"):
        prefetch_to_device(ds, "cpu")
    with pytest.raises(PipelineError, match="a torch.device or its name; got 'gpu0'"):
        prefetch_to_device(ds.to_iter_dataset(), "gpu0")
    with pytest.raises(WorkerError, match="Put `mp_prefetch` before it"):
        list(prefetch_to_device(ds.to_iter_dataset(), "cpu").mp_prefetch(2))
    if not torch.cuda.is_available():
        with pytest.raises(PipelineError, match="is_available"):
            prefetch_to_device(ds.to_iter_dataset(), "cuda")


def test_an_error_comes_at_its_place():
    ds = MapDataset.range(9).map(lambda i: np.full(3, 6 // (5 - i))).to_iter_dataset()
    iterator = iter(prefetch_to_device(ds, "cpu"))
    assert [next(iterator)[0] for _ in range(5)] == [1, 1, 2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(iterator)


# ---- a stand-in for CUDA


class Event:
    def __init__(self, cuda):
        self._cuda = cuda

    def record(self, stream):
        self._before = list(stream.copies)

    def synchronize(self):
        for copy in self._before:
            copy.join(60)


class Stream:
    def __init__(self, *_):
        self.copies = []


class TorchCuda:
    """What `CudaDevice` uses of `torch.cuda`: copies take some time, in the order in which they were begun."""

    Stream = Stream

    def __init__(self, seed):
        self._random, self._thread = random.Random(seed), threading.local()
        self.consumer, self.handed_over = Stream(), []

    def Event(self, blocking):
        return Event(self)

    def current_device(self):
        return 0

    def current_stream(self, device):
        return self.consumer

    def device(self, device):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def stream(self, stream):
        self._thread.stream = stream
        yield
        del self._thread.stream

    def begin_copy(self, tensor):
        there, delay = torch.full_like(tensor, -1), self._random.random() * 0.005
        earlier = self._thread.stream.copies[-1:]

        def copy():
            for each in earlier:
                each.join(60)
            time.sleep(delay)
            there.copy_(tensor)

        thread = threading.Thread(target=copy)
        thread.start()
        self._thread.stream.copies.append(thread)
        return there


@pytest.fixture(params=range(3))
def cuda(monkeypatch, request):
    driver, fake = FakeCuda(), TorchCuda(request.param)
    monkeypatch.setattr(page_locks, "_locks", PageLocks(CudaDriver(0, driver)))
    monkeypatch.setattr(device_torch.torch, "cuda", fake)
    monkeypatch.setattr(device_torch.CudaDevice, "_begin_copy", lambda _, tensor: fake.begin_copy(tensor))
    monkeypatch.setattr(
        device_torch.ToTorchDevice, "__post_init__", lambda op: object.__setattr__(op, "device", torch.device("cuda"))
    )
    return driver


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("buffer_size", [0, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_is_not_written_before_its_copy_has_ended(cuda, workers, buffer_size):
    ds = elements().mp_prefetch(workers) if workers else elements()
    with nothing_left():
        with iter(prefetch_to_device(ds, "cuda", buffer_size=buffer_size)) as iterator:
            for i, element in enumerate(iterator):
                assert bool((element["x"] == i).all())
        assert i == 39
        assert 0 < cuda.num_locks < 20
        del iterator, element
        gc.collect()
        assert not cuda.locked


# ---- a GPU


@needs_gpu
def test_device_memory_is_not_reused_while_a_kernel_reads_it():
    """The consumer's stream is kept busy, so that it reads tensors long after they were dropped."""
    totals = []
    busy = torch.randn(4096, 4096, device="cuda")
    with iter(prefetch_to_device(elements(100), "cuda")) as iterator:
        for element in iterator:
            for _ in range(5):
                busy = (busy @ busy).clamp_(-1, 1)
            totals.append(element["x"].sum())
            del element
    assert [int(total) for total in totals] == [i * SIZE for i in range(100)]
