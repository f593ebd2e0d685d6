"""Page-locked memory, with a stand-in for NVIDIA's driver: what is locked, until when, and who reads it meanwhile."""

import gc
import logging
import os
import random
import signal
import threading
import time

import jax
import numpy as np
import pytest

from headrace import MapDataset
from headrace.device import device_put, locked_memory
from headrace.device import jax as device_jax
from headrace.device.locked_memory import NUM_STAGED, LockedMemory
from headrace.engine import page_locks
from headrace.engine.page_locks import CudaDriver, PageLocks
from headrace.engine.workers.slots import Slot, Slots, anonymous_file, mapping_of
from tests.support.fake_cuda import FakeCuda
from tests.support.proc import nothing_left, until, workers_of

CPU = jax.devices("cpu")[0]
SIZE = 1 << 18


@pytest.fixture
def cuda(monkeypatch):
    found = FakeCuda()
    monkeypatch.setattr(page_locks, "_locks", PageLocks(CudaDriver(0, found)))
    return found


class Device:
    """Reads elements as a device does: some time after it was asked to, from the memory where they were then."""

    def __init__(self, cuda, seed):
        self._cuda, self._random, self._threads, self.faults = cuda, random.Random(seed), [], []
        self.num_locked = self.num_moved = 0

    def __call__(self, _, element):
        delay, arrays = self._random.random() * 0.01, jax.tree.leaves(element)
        self.num_moved += 1
        self.num_locked += all(map(self._cuda.holds, arrays))
        thread = threading.Thread(target=self._read, args=(delay, arrays, int(arrays[0].flat[0])))
        thread.start()
        self._threads.append(thread)
        return int(arrays[0].flat[0])

    def _read(self, delay, arrays, value):
        was_locked = [*map(self._cuda.holds, arrays)]
        time.sleep(delay)
        if was_locked != [*map(self._cuda.holds, arrays)]:
            self.faults.append(f"{value} was unlocked meanwhile")
        self.faults += [f"{value} was {array[array != value][:3]}" for array in arrays if not (array == value).all()]

    def wait(self):
        while self._threads:
            self._threads.pop().join(60)


@pytest.fixture(params=range(3))
def device(cuda, monkeypatch, request):
    made = Device(cuda, request.param)
    monkeypatch.setattr(device_jax, "_locked_memory", lambda _: locked_memory.locked_memory(0))
    monkeypatch.setattr(device_jax, "_move_all", made)
    yield made
    made.wait()


def elements(count=60):
    return MapDataset.range(count).map(lambda i: {"x": np.full(SIZE, i), "y": np.full(3, i)}).to_iter_dataset()


PIPELINES = {
    "inline": lambda: elements(),
    "batches": lambda: MapDataset.range(960).map(lambda i: np.full(SIZE // 16, i // 16)).batch(16).to_iter_dataset(),
    "workers": lambda: elements().mp_prefetch(2),
    "sizes": lambda: (
        MapDataset.range(60).map(lambda i: np.full(SIZE * (1 + i % 5), i)).to_iter_dataset().mp_prefetch(2)
    ),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_memory_is_not_written_before_its_transfer_has_ended(cuda, device, pipeline):
    with nothing_left():
        with iter(device_put(PIPELINES[pipeline](), CPU)) as iterator:
            assert list(iterator) == list(range(60))
        device.wait()
        assert not device.faults
        assert device.num_locked >= 10  # the others came too fast for the few slots
        assert cuda.num_locks < 30  # once for a slot, and again when it grows
        gc.collect()
        assert not cuda.locked


@pytest.mark.sampled(every=3)
def test_slots_are_locked_once(cuda, device):
    with iter(device_put(elements(200).mp_prefetch(2), CPU)) as iterator:
        for _ in range(100):
            next(iterator)
        device.wait()
        before = cuda.num_locks
        for _ in range(100):
            next(iterator)
    assert cuda.num_locks <= before + 4


@pytest.mark.sampled(every=3)
def test_locks_are_undone_after_an_error(cuda, device):
    def fails(i):
        if i == 40:
            raise ValueError("forty")
        return np.full(SIZE, i)

    iterator = iter(device_put(MapDataset.range(60).map(fails).to_iter_dataset().mp_prefetch(2), CPU))
    with pytest.raises(ValueError, match="forty"):
        list(iterator)
    iterator.close()
    device.wait()
    gc.collect()
    assert not cuda.locked
    assert not device.faults


@pytest.mark.sampled(every=3)
def test_locks_are_undone_after_workers_were_killed(cuda, device):
    chance = random.Random(1)
    with iter(device_put(elements(180).mp_prefetch(2), CPU)) as iterator:
        for i in range(180):
            assert next(iterator) == i
            if i % 60 == 30:
                os.kill(chance.choice(sorted(workers_of(os.getpid()))), signal.SIGKILL)
    device.wait()
    gc.collect()
    assert not cuda.locked
    assert not device.faults


def test_arrays_that_outlive_the_pool_stay_locked_until_they_die(cuda):
    memory = locked_memory.locked_memory(0)
    with iter(elements().mp_prefetch(2)) as iterator:
        kept = memory(next(iterator))
    assert cuda.holds(kept["x"])
    assert (kept["x"] == 0).all()
    del kept
    until(lambda: not cuda.locked, "still locked")


def test_small_elements_and_other_leaves_stay_where_they_are(cuda):
    memory = locked_memory.locked_memory(0)
    small = {"x": np.ones(10), "name": "a"}
    assert memory(small) is small
    large = {"x": np.ones(SIZE), "names": np.array(["a", None], object), "n": 3, "jax": jax.numpy.ones(3)}
    found = memory(large)
    assert cuda.holds(found["x"])
    assert (found["x"] == 1).all()
    assert found["names"] is large["names"]
    assert found["jax"] is large["jax"]


@pytest.mark.parametrize(
    "array", [np.ones((64, 64, 64)).T, np.ones(SIZE)[::2], np.ones(SIZE, ">f4"), np.ones(SIZE, "M8[s]")]
)
def test_copies_are_equal(cuda, array):
    (copy,) = locked_memory.locked_memory(0)([array])
    assert cuda.holds(copy)
    assert copy.dtype == array.dtype
    assert np.array_equal(copy, array)


def test_more_copies_than_the_ring_holds_take_the_ordinary_path(cuda):
    memory = locked_memory.locked_memory(0)
    found = [memory(np.full(SIZE, i)) for i in range(NUM_STAGED + 2)]
    assert [cuda.holds(each) for each in found] == [True] * NUM_STAGED + [False] * 2
    found = found[1:]
    assert cuda.holds(memory(np.zeros(SIZE)))
    assert [int(each[0]) for each in found] == list(range(1, NUM_STAGED + 2))
    memory.close()
    assert len(cuda.locked) == NUM_STAGED - 1
    del found
    assert not cuda.locked


@pytest.mark.sampled(every=3)
def test_a_limit_is_a_warning_and_the_ordinary_path(cuda, device, caplog):
    cuda.limit = 5 * SIZE * 8
    with iter(device_put(elements().mp_prefetch(2), CPU)) as iterator, caplog.at_level(logging.WARNING, "headrace"):
        assert list(iterator) == list(range(60))
    (said,) = [each.getMessage() for each in caplog.records if "page-lock" in each.getMessage()]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in said
    assert "ulimit -l" in said


def test_nothing_is_locked_without_a_gpu(cuda):
    with iter(device_put(elements().mp_prefetch(2), CPU)) as iterator:
        assert [int(each["x"][0]) for each in iterator] == list(range(60))
    assert not cuda.num_locks


def test_memory_that_gets_other_pages_is_unlocked_first(cuda):
    slot = Slot(anonymous_file(1))
    slot.reserve(SIZE)
    page_locks._locks.lock(slot.whole)
    assert cuda.holds(slot.whole)
    slot.clean()
    assert not cuda.locked
    assert cuda.num_waits == 1
    os.close(slot._fd)


def test_before_a_fork_memory_is_unlocked_and_becomes_private(cuda):
    slots = Slots(4)
    memory = slots.lease(SIZE)
    assert memory is not None
    memory[:] = 7
    page_locks._locks.lock(mapping_of(memory))
    slots.copy_out()
    assert not cuda.locked
    assert cuda.num_waits == 1
    assert (memory == 7).all()
    slots.close()


def test_what_was_locked_at_an_address_before_is_replaced(cuda):
    mapping = np.zeros(SIZE)
    cuda.locked[mapping.__array_interface__["data"][0]] = 4096
    assert page_locks._locks.lock(mapping)
    assert cuda.holds(mapping)


def test_without_the_driver_nothing_is_locked(monkeypatch):
    monkeypatch.setattr(page_locks, "_locks", None)
    monkeypatch.setattr(page_locks, "CudaDriver", lambda device: (_ for _ in ()).throw(OSError("no libcuda")))
    assert locked_memory.locked_memory(0) is None


def test_locked_memory_that_is_dropped_leaves_nothing(cuda):
    with nothing_left():
        memory = LockedMemory(page_locks._locks)
        memory(np.ones(SIZE))
        del memory
        gc.collect()
        assert not cuda.locked


GPUS = [each for each in jax.devices() if each.platform == "gpu"]


@pytest.mark.skipif(not GPUS, reason="needs a CUDA device")
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_gpu_gets_what_was_made(pipeline):
    with nothing_left(), iter(device_put(PIPELINES[pipeline](), GPUS[0])) as iterator:
        for i, element in enumerate(iterator):
            assert all(leaf.devices() == {GPUS[0]} and bool((leaf == i).all()) for leaf in jax.tree.leaves(element))
        assert i == 59
    assert not page_locks._locks._locked
