"""Elements on devices: the same stream, moved ahead of its consumer and within bounds."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import jax
import numpy as np
import pytest

from headrace import DatasetOptions, MapDataset, MultiprocessingOptions
from headrace.device import device_put
from headrace.errors import PipelineError, WorkerError
from headrace.testing import assert_resumable
from tests.support.proc import LIMIT_S, WAIT_S, free_port, nothing_left, until

CPU = jax.devices("cpu")[0]


class Counter:
    """A function of the pipeline that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, element):
        self.calls += 1
        return element


def batches(length=32, batch_size=4):
    source = {"x": np.arange(length * 3, dtype=np.float32).reshape(length, 3), "y": np.arange(length, dtype=np.int32)}
    return MapDataset.source(source).shuffle(seed=1).batch(batch_size).to_iter_dataset()


def assert_settles(counter, calls):
    """A function is called so often, and no more."""
    until(lambda: counter.calls >= calls, f"too few calls: {counter.calls}")
    time.sleep(0.3)
    assert counter.calls == calls


def run_script(code, *arguments, devices=4):
    """A program of its own, since JAX counts its devices once."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(process):
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


# ---- one stream


@pytest.mark.parametrize("cpu_buffer_size", [0, 1, 4])
@pytest.mark.parametrize("device_buffer_size", [0, 1, 2])
def test_the_elements_and_their_order_are_those_of_the_dataset(cpu_buffer_size, device_buffer_size):
    sizes = {"cpu_buffer_size": cpu_buffer_size, "device_buffer_size": device_buffer_size}
    found = list(device_put(batches(), CPU, **sizes))
    expected = list(batches())
    assert len(found) == len(expected) == 8
    for moved, batch in zip(found, expected, strict=True):
        assert moved.keys() == batch.keys()
        for key in batch:
            assert isinstance(moved[key], jax.Array)
            assert moved[key].devices() == {CPU}
            assert moved[key].dtype == batch[key].dtype
            np.testing.assert_array_equal(moved[key], batch[key])


def test_states_are_those_of_the_dataset():
    ds = batches().filter(lambda batch: batch["y"].sum() % 2 == 0).window_shuffle(3, seed=2)
    moved = device_put(ds, CPU)
    with iter(ds) as plain, iter(moved) as ahead:
        for _ in range(3):
            next(plain), next(ahead)
            assert json.dumps(ahead.get_state()) == json.dumps(plain.get_state())
        state = ahead.get_state()
        rest = [batch["y"].tolist() for batch in plain]
    with iter(moved) as iterator:
        iterator.set_state(state)
        assert [batch["y"].tolist() for batch in iterator] == rest
    assert_resumable(device_put(batches(), CPU).map(lambda batch: jax.tree.map(np.asarray, batch)))


def test_scalars_nested_trees_and_none_are_moved_as_jax_moves_them():
    element = {"a": (1, 2.5), "b": [np.float32(3), None], "c": np.bool_(True)}
    (moved,) = device_put(MapDataset.source([element]).to_iter_dataset(), CPU)
    assert jax.tree.structure(moved) == jax.tree.structure(element)
    assert [leaf.item() for leaf in jax.tree.leaves(moved)] == [1, 2.5, 3.0, True]


def test_operations_may_follow():
    ds = device_put(MapDataset.range(6).batch(2).to_iter_dataset(), CPU).map(jax.jit(lambda x: x * 2))
    assert [batch.tolist() for batch in ds] == [[0, 2], [4, 6], [8, 10]]


# ---- ahead, and within bounds


@pytest.mark.parametrize(("cpu_buffer_size", "device_buffer_size"), [(0, 2), (4, 2), (3, 1), (0, 0)])
def test_no_more_is_computed_or_moved_than_the_buffers_hold(cpu_buffer_size, device_buffer_size):
    counter = Counter()
    ds = MapDataset.range(1000).map(lambda i: np.full(4, i)).to_iter_dataset().map(counter)
    moved = device_put(ds, CPU, cpu_buffer_size=cpu_buffer_size, device_buffer_size=device_buffer_size)
    with iter(moved) as iterator:
        for taken in range(1, 41):
            next(iterator)
            assert counter.calls <= taken + cpu_buffer_size + device_buffer_size
        assert_settles(counter, 40 + cpu_buffer_size + device_buffer_size)


@pytest.mark.parametrize("device_buffer_size", [1, 2])
def test_elements_that_come_together_are_moved_one_at_a_time(device_buffer_size):
    """Workers hand over whole chunks; on the device there are never more than the buffer holds."""
    ds = MapDataset.source(np.ones((1024, 8), np.float32)).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1, 64))
    with iter(device_put(ds, CPU, device_buffer_size=device_buffer_size)) as iterator:
        most, on_device = 0, arrays_made()
        for i, element in enumerate(iterator):
            if i % 250 == 0:  # the one that is looked at, and those in the buffer
                until(lambda: on_device() > device_buffer_size, "the buffer is not filled")
            most = max(most, on_device())
            del element
        assert i == 1023
    assert most <= device_buffer_size + 2  # and one that is being handed over


def test_runs_are_cut_into_single_elements_at_the_right_positions():
    ds = MapDataset.range(300).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1, 100))
    with iter(device_put(ds, CPU)) as iterator:
        for i, element in enumerate(iterator):
            assert element == i
            assert iterator.get_state()["next_index"] == i + 1


def arrays_made():
    """Makes a function that counts the arrays on devices that were not there before."""
    gc.collect()  # or those of other tests might go meanwhile
    before = len(jax.live_arrays())
    return lambda: len(jax.live_arrays()) - before


def test_elements_are_moved_while_the_consumer_computes():
    ds = MapDataset.range(12).map(lambda i: np.full(4, i)).to_iter_dataset()
    with iter(device_put(ds, CPU)) as iterator:
        on_device = arrays_made()
        for _ in range(8):
            element = next(iterator)
            until(lambda: on_device() > 1, "the next element is not moved")  # in a step of training
        assert element.tolist() == [7] * 4


def test_large_elements_fill_the_device_buffer_as_well():
    """The bytes that buffers on the host are bounded by are not those of the device."""
    counter = Counter()
    ds = MapDataset.range(8).map(lambda i: np.zeros(300 << 20, np.uint8)).to_iter_dataset().map(counter)
    with iter(device_put(ds, CPU, cpu_buffer_size=0, device_buffer_size=2)) as iterator:
        next(iterator)
        assert_settles(counter, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_that_arrays_share_is_not_used_again(num_workers):
    """Arrays of all steps are held, some of them views of the workers' slots, and compared at the end."""
    ds = MapDataset.source(np.arange(400 * 8192, dtype=np.int32).reshape(400, 8192)).shuffle(seed=3).batch(4)
    stream = ds.to_iter_dataset().map(lambda x: x + 1).mp_prefetch(MultiprocessingOptions(num_workers, 2))
    held = list(device_put(stream, CPU))
    assert len(held) == 100
    for array, batch in zip(held, ds, strict=True):
        np.testing.assert_array_equal(array, batch + 1)


def test_slots_are_used_again_while_arrays_of_some_steps_are_held():
    ds = MapDataset.range(600).map(lambda i: np.full(32768, i, np.int32)).to_iter_dataset()
    with iter(device_put(ds.mp_prefetch(MultiprocessingOptions(2, 2)), CPU)) as iterator:
        held = {i: array for i, array in enumerate(iterator) if i % 7 == 0}
    assert len(held) == 86
    for i, array in held.items():
        np.testing.assert_array_equal(array, np.full(32768, i, np.int32))


# ---- ends


def test_closing_leaves_no_thread_and_no_process():
    ds = batches(4000).mp_prefetch(MultiprocessingOptions(2))
    with nothing_left():
        iterator = iter(device_put(ds, CPU))
        next(iterator)
        iterator.close()
        with pytest.raises(Exception, match="closed"):
            next(iterator)
        dropped = iter(device_put(ds, CPU))
        next(dropped)
        del dropped, iterator


def test_closing_does_not_wait_for_an_element_that_never_comes():
    ds = MapDataset.range(10).repeat().to_iter_dataset().filter(lambda x: False)
    ds = ds.with_options(DatasetOptions(filter_warn_threshold_ratio=None))
    iterator = iter(device_put(ds, CPU))
    iterator.start_prefetch()
    time.sleep(0.1)
    closing = threading.Thread(target=iterator.close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_errors_come_after_the_elements_before_them_and_again():
    def fail_at_five(x):
        if x == 5:
            raise KeyError("five")
        return x

    with iter(device_put(MapDataset.range(10).to_iter_dataset().map(fail_at_five), CPU)) as iterator:
        assert [int(next(iterator)) for _ in range(5)] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(KeyError, match="five") as caught:
                next(iterator)
        assert "fail_at_five" in caught.value.__notes__[0]
        assert iterator.get_state()["next_index"] == 5


# ---- errors


@pytest.mark.parametrize(
    ("leaf", "kind"),
    [
        ("text", "str"),
        (b"bytes", "bytes"),
        (np.array(["a", "b"]), "<U1[2]"),
        (np.array([1, None], object), "object[2]"),
        (object(), "object"),
        (np.array([1], "M8[s]"), "datetime64[s][1]"),
    ],
)
def test_a_leaf_that_jax_cannot_take_is_named(leaf, kind):
    ds = MapDataset.range(4).map(lambda i: {"x": np.ones(2), "meta": [i, leaf if i == 2 else 0]}).to_iter_dataset()
    with iter(device_put(ds, CPU)) as iterator:
        next(iterator), next(iterator)
        with pytest.raises(PipelineError) as caught:
            next(iterator)
    message = str(caught.value)
    assert "leaf ['meta'][1]" in message
    assert f"it is {kind}, which a JAX array cannot hold" in message
    assert "In a `map` before `device_put`, drop the key" in message
    assert "keep outside the element" in message
    assert "device_put" in caught.value.__notes__[0]
    assert "element 2 (pipeline at test_device.py" in caught.value.__notes__[0]


def test_an_element_that_is_no_number_is_named():
    with pytest.raises(PipelineError, match="cannot move an element: it is str"):
        list(device_put(MapDataset.source(["a"]).to_iter_dataset(), CPU))
    with pytest.raises(PipelineError, match=r"an element, int, to cpu:0: Python int .* Convert it to a dtype"):
        list(device_put(MapDataset.source([2**40]).to_iter_dataset(), CPU))


def test_a_tree_of_devices_must_fit_the_elements():
    ds = MapDataset.source([{"x": 1, "y": (2, 3)}]).to_iter_dataset()
    (moved,) = device_put(ds, {"x": CPU, "y": CPU})
    assert jax.tree.map(int, moved) == {"x": 1, "y": (2, 3)}
    with pytest.raises(PipelineError, match="tree of devices of `device_put` does not fit the elements"):
        list(device_put(ds, {"z": CPU}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, r"takes a jax.Device, .* got str: 'gpu'"),
        ({"device": None}, "needs a jax.Device or a jax.sharding.Sharding; got None"),
        ({"cpu_buffer_size": -1}, "cpu_buffer_size must be an int of at least 0; got -1"),
        ({"device_buffer_size": 1.5}, "device_buffer_size must be an int of at least 0; got 1.5"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(PipelineError, match=message):
        device_put(batches(), **({"device": CPU} | arguments))


def test_it_takes_streams():
    with pytest.raises(PipelineError, match=r"takes an IterDataset; got MapDataset. Call `to_iter_dataset\(\)` first"):
        device_put(MapDataset.range(3), CPU)  # type: ignore[arg-type]


def test_workers_belong_before_it():
    ds = device_put(batches(), CPU).mp_prefetch(MultiprocessingOptions(1))
    with pytest.raises(WorkerError, match="Put `mp_prefetch` before it"):
        next(iter(ds))


# ---- several devices


def test_a_sharding_gives_global_arrays():
    process = run_script("""
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from headrace import MapDataset, MultiprocessingOptions
        from headrace.device import device_put
        from headrace.errors import PipelineError

        mesh = jax.make_mesh((4,), ("data",))
        split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
        source = {"x": np.arange(96, dtype=np.float32).reshape(32, 3), "y": np.arange(32, dtype=np.int32)}
        plain = MapDataset.source(source).shuffle(seed=1).batch(8)
        ds = plain.to_iter_dataset().mp_prefetch(MultiprocessingOptions(1))
        found = list(device_put(ds, split))
        assert len(found) == 4
        for moved, batch in zip(found, plain, strict=True):
            for key in batch:
                assert moved[key].sharding == split, moved[key].sharding
                assert len(moved[key].addressable_shards) == 4
                for i, shard in enumerate(moved[key].addressable_shards):
                    np.testing.assert_array_equal(shard.data, batch[key][2 * i : 2 * i + 2])
        for moved, batch in zip(device_put(ds, {"x": split, "y": whole}), plain, strict=True):
            assert moved["x"].sharding == split and moved["y"].sharding == whole
            np.testing.assert_array_equal(moved["y"], batch["y"])
        second = jax.devices()[1]
        assert next(iter(device_put(ds, second)))["x"].devices() == {second}
        try:
            list(device_put(plain.to_iter_dataset().rebatch(6), split))
        except PipelineError as e:
            assert "leaf ['x'], float32[6, 3]" in str(e) and "drop_remainder=True" in str(e), e
        else:
            raise AssertionError("6 rows were split among 4 devices")
        print("fine")
    """)
    assert output_of(process).strip() == "fine"


PART = """
    import sys, jax, numpy as np
    process, port = int(sys.argv[1]), sys.argv[2]
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=process, initialization_timeout=300)
    from jax.sharding import NamedSharding, PartitionSpec as P
    from headrace import MapDataset
    from headrace.device import device_put

    assert jax.device_count() == 4 and jax.local_device_count() == 2
    sharding = NamedSharding(jax.make_mesh((4,), ("data",)), P("data"))
    assert not sharding.is_fully_addressable
    rows = np.arange(32, dtype=np.int32)
    own = MapDataset.source(rows).batch(8).map(lambda batch: {"x": batch[4 * process : 4 * process + 4]})
    for i, moved in enumerate(device_put(own.to_iter_dataset(), sharding)):
        assert moved["x"].shape == (8,), moved["x"].shape
        assert moved["x"].sharding == sharding
        for j, shard in enumerate(moved["x"].addressable_shards):
            first = 8 * i + 4 * process + 2 * j
            np.testing.assert_array_equal(shard.data, rows[first : first + 2])
    assert i == 3
    print("fine")
"""


def test_each_of_several_processes_gives_its_part():
    port = str(free_port())
    parts = [run_script(PART, str(i), port, devices=2) for i in range(2)]
    try:
        outputs = [output_of(part) for part in parts]
    finally:
        for part in parts:
            part.kill()
    assert [output.strip().splitlines()[-1] for output in outputs] == ["fine", "fine"]


def test_jax_is_imported_by_those_who_use_it():
    process = run_script("""
        import sys
        import headrace, headrace.device, headrace.device.jax
        assert not {"jax", "torch"} & set(sys.modules)
        print("fine")
    """)
    assert output_of(process).strip() == "fine"
