"""What travels from workers to the consumer, and how long it stays valid."""

import collections
import dataclasses
import gc
import os

import numpy as np
import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.engine.workers.slots import Slot, Slots, Writer, anonymous_file, read
from headrace.testing import assert_equal
from tests.support.proc import held_bytes, nothing_left

Pair = collections.namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Thing:
    name: str
    array: np.ndarray

    def __eq__(self, other):
        return self.name == other.name and np.array_equal(self.array, other.array)


def workers(count=2, buffer_size=1):
    return MultiprocessingOptions(count, buffer_size)


def kept_objects(i):
    objects = np.empty(3, object)
    objects[:] = [i, "text", [1, 2]]
    return objects


KINDS = {
    "int": lambda i: i,
    "str": lambda i: "é" * i,
    "bytes": lambda i: b"x" * i,
    "none in a dict": lambda i: {"a": None, "b": i},
    "array": lambda i: np.full((2, 3), i, np.float32),
    "batch": lambda i: np.full((300, 40), i),
    "large": lambda i: np.full(3 << 20, i, np.uint8),
    "0-d": lambda i: np.array(i),
    "numpy scalar": lambda i: np.float32(i),
    "zero size": lambda i: {"x": np.empty((0, 3)), "y": np.empty((2, 0, 4), np.int8)},
    "changing shape": lambda i: np.arange(i * 7),
    "changing structure": lambda i: {"a": i} if i % 2 else [np.ones(i), "x"],
    "changing dtype": lambda i: np.ones(3, [np.int8, np.float64, np.complex64][i % 3]),
    "changing keys": lambda i: {f"k{i % 2}": np.ones(2)},
    "key order": lambda i: {"b": i, "a": np.ones(2)} if i % 2 else {"a": np.ones(2), "b": i},
    "nested": lambda i: {"a": (i, [np.full(3, i), {"b": "s"}]), "c": Pair(np.ones(2), i)},
    "empty trees": lambda i: {"a": {}, "b": (), "c": []},
    "empty": lambda i: (),
    "empty dict": lambda i: {},
    "fortran": lambda i: np.asfortranarray(np.arange(12.0).reshape(3, 4) + i),
    "strided": lambda i: np.arange(100)[i::3],
    "reversed": lambda i: np.arange(20).reshape(4, 5)[::-1, ::-2],
    "broadcast": lambda i: np.broadcast_to(np.float32(i), (4, 5)),
    "read-only": lambda i: np.frombuffer(bytes([i] * 8), np.uint8),
    "objects": kept_objects,
    "strings": lambda i: np.array(["a", "bcd" * i]),
    "fixed bytes": lambda i: np.array([b"a", b"bcd"]),
    "empty strings": lambda i: np.array(["", ""]),
    "structured": lambda i: np.array([(i, 2.0)], [("a", "i4"), ("b", "f8")]),
    "dates": lambda i: np.array(["2020-01-01", "2021-02-03"], "M8[D]") + np.timedelta64(i, "D"),
    "big-endian": lambda i: np.arange(5, dtype=">i4") + i,
    "number keys": lambda i: {1: i} if i % 2 else {True: i},
    "long long": lambda i: np.arange(3, dtype="q"),
    "bool": lambda i: np.arange(5) > i,
    "a class of the user's": lambda i: Thing("x", np.full(5000, i)),
    "masked": lambda i: np.ma.masked_array(np.arange(3), [True, False, True]),
    "a long list": lambda i: list(range(10_000)),
    "long text": lambda i: "word " * 100_000,
}


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_element_arrives_as_it_was(kind, batched):
    ds = MapDataset.range(12).map(KINDS[kind]).to_iter_dataset()
    ds = ds.batch(5, batch_fn=list) if batched else ds
    with nothing_left():
        found, expected = list(ds.mp_prefetch(workers(1, 3))), list(ds)
        assert len(found) == len(expected)
        for x, y in zip(found, expected, strict=True):
            assert type(x) is type(y)
            assert_equal(x, y)
            if type(x) is np.ndarray:
                assert x.dtype == y.dtype
                assert x.dtype.char == y.dtype.char
                assert x.flags.writeable
                assert x.flags.f_contiguous == (
                    y.flags.f_contiguous or y.size <= 1 or (x.flags.c_contiguous and x.ndim < 2)
                )
            if type(x) is dict:
                assert list(map(repr, x)) == list(map(repr, y))
        del ds, found, x


def test_custom_dtypes_arrive():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    ds = MapDataset.range(5).map(lambda i: np.full(3, i, ml_dtypes.bfloat16)).to_iter_dataset()
    found = list(ds.mp_prefetch(workers(1)))
    assert all(x.dtype == ml_dtypes.bfloat16 for x in found)
    assert [float(x[0]) for x in found] == [0, 1, 2, 3, 4]


def test_more_batches_are_kept_than_there_are_slots():
    ds = MapDataset.range(400).map(lambda i: np.full(5000, i)).batch(2).to_iter_dataset()
    with nothing_left():
        batches = list(ds.mp_prefetch(workers()))
        assert len(batches) == 200
        for i, batch in enumerate(batches):
            assert (batch == [[2 * i], [2 * i + 1]]).all()
            assert batch.flags.writeable
            batch += 1
        assert all((batch[0] == 2 * i + 1).all() for i, batch in enumerate(batches))
        del batches, batch, ds


def test_an_edit_reaches_nothing_else():
    shared = np.zeros(100)
    ds = MapDataset.range(50).map(lambda i: {"x": shared, "y": [shared, shared[:5]]}).to_iter_dataset()
    for element in ds.mp_prefetch(workers()):
        assert not element["x"].any()
        element["x"] += 1
        element["y"][0] += 1


@pytest.mark.slow
def test_an_element_of_500_mb():
    size = 500 << 20
    ds = MapDataset.range(3).map(lambda i: {"x": np.full(size, i, np.uint8), "i": i}).to_iter_dataset()
    with nothing_left():
        count = 0
        for element in ds.mp_prefetch(workers(1)):
            assert element["x"].nbytes == size
            assert element["x"][0] == element["x"][-1] == element["i"]
            count += 1
        assert count == 3
        del element, ds


def test_a_slot_that_was_needed_large_once_gives_its_memory_back():
    ds = MapDataset.range(300).map(lambda i: np.full(200 << 20 if i == 5 else 1 << 20, 7, np.uint8)).to_iter_dataset()
    with iter(ds.mp_prefetch(workers(1))) as iterator:
        for element in iterator:
            assert element[-1] == 7
            del element
        assert held_bytes() < 50 << 20
        iterator.close()


def batches(count=60):
    """Distinct batches of a kind that is handed over in place."""
    ds = MapDataset.range(count * 4).map(lambda i: np.full(20_000, i, np.float32)).batch(4).to_iter_dataset()
    return iter(ds.mp_prefetch(workers()))


VIEWS = {
    "a slice": lambda batch: batch[1:3, ::2],
    "a row": lambda batch: batch[0],
    "a transposed view": lambda batch: batch.T,
    "a memoryview": memoryview,
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_stays_valid_after_its_batch_is_gone(view):
    kept, expected = [], []
    with batches() as iterator:
        for i, batch in enumerate(iterator):
            if i % 20 == 3:
                kept.append(VIEWS[view](batch))
                expected.append(np.array(kept[-1]))
            del batch
        for a, b in zip(kept, expected, strict=True):
            assert np.array_equal(a, b)
    for a, b in zip(kept, expected, strict=True):  # also after the workers are gone
        assert np.array_equal(a, b)
    assert len(kept) == 3


def test_a_torch_tensor_stays_valid_after_its_batch_is_gone():
    torch = pytest.importorskip("torch")
    kept, expected = [], []
    with batches() as iterator:
        for i, batch in enumerate(iterator):
            if i % 20 == 3:
                tensor = torch.from_numpy(batch)
                assert tensor.data_ptr() == batch.ctypes.data
                kept.append(tensor[1:])
                expected.append(np.array(batch[1:]))
            del batch
        gc.collect()
        assert all(np.array_equal(a.numpy(), b) for a, b in zip(kept, expected, strict=True))
    assert all(np.array_equal(a.numpy(), b) for a, b in zip(kept, expected, strict=True))


def test_a_jax_array_stays_valid_after_its_batch_is_gone():
    jax = pytest.importorskip("jax")
    kept, expected, aliased = [], [], 0
    with batches() as iterator:
        for i, batch in enumerate(iterator):
            if i % 20 == 3:
                array = jax.device_put(batch)
                aliased += array.unsafe_buffer_pointer() == batch.ctypes.data
                kept.append(array)
                expected.append(np.array(batch))
            del batch
        gc.collect()
        assert all(np.array_equal(a, b) for a, b in zip(kept, expected, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(kept, expected, strict=True))
    assert aliased == 3  # aligned, so that JAX on the CPU need not copy


def test_a_batch_is_stacked_where_it_is_handed_over():
    """The batch that the consumer gets is the memory that the worker stacked into: nothing was copied."""
    fd = anonymous_file(1)
    slot = Slot(fd)
    writer = Writer(slot)
    stacked = writer.empty((4, 1000), np.dtype(np.int64))
    stacked[:] = 3
    extent = writer.dump({"x": stacked, "y": np.arange(5)})
    stacked[:] = 4
    found = read(Slot(fd).bytes(extent.total), extent)
    assert (found["x"] == 4).all()
    assert found["y"].tolist() == [0, 1, 2, 3, 4]
    assert found["x"].ctypes.data % 64 == 0
    del found, stacked, writer, slot
    os.close(fd)


def test_a_slot_is_free_when_the_last_view_of_it_dies():
    slots = Slots(max_leased=2)

    def put(value):
        slot = slots.take()
        extent = Writer(slot).dump(value)
        return slot.number, slots.read(slot, extent)

    one, first = put(np.zeros(10_000))
    two, second = put(np.zeros(10_000))
    part = first[5:10]
    del first
    three, third = put(np.zeros(10_000))  # past the slots it is given: a copy
    assert len({one, two, three}) == 3
    assert put(np.zeros(10_000))[0] == three
    del part
    assert slots.take().number == one
    del second, third
    slots.close()


def test_jax_node_types_travel_with_the_plan():
    jax = pytest.importorskip("jax")

    class Node:
        def __init__(self, x, y):
            self.x, self.y = x, y

    jax.tree_util.register_pytree_node(Node, lambda n: ((n.x, n.y), None), lambda _, xy: Node(*xy))
    ds = MapDataset.range(8).map(lambda i: Node(np.full(3, i), i)).batch(4).to_iter_dataset()
    first, second = ds.mp_prefetch(workers(1))
    assert type(first) is Node
    assert first.x.shape == (4, 3)
    assert second.y.tolist() == [4, 5, 6, 7]


def test_a_transform_that_touches_jax_stays_on_the_cpu():
    pytest.importorskip("jax")

    def look(x):
        import jax

        return jax.devices()[0].platform, np.asarray(jax.numpy.full(3, x))

    ((platform, array),) = MapDataset.range(1).map(look).to_iter_dataset().mp_prefetch(workers(1))
    assert platform == "cpu"
    assert array.tolist() == [0, 0, 0]
