"""What the processes of `cluster.run` do: each function runs in every process, and returns JSON."""

import time
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import headrace
import headrace.python as hp
from headrace import checkpoint
from headrace.device import global_arrays
from headrace.errors import HeadraceError
from headrace.sharding import ShardByJaxProcess, ShardBySharding
from tests.device.hosts import pipelines


def several(calls: list[list[Any]]) -> list[Any]:
    """Calls some of the functions here, one after the other: programs that share their processes."""
    return [globals()[name](*args) for name, *args in calls]


def data_sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), P("data"))


def rows_of(array: jax.Array) -> dict[int, int]:
    """A digest of each row of a global array that this process's devices hold."""
    found: dict[int, int] = {}
    for shard in array.addressable_shards:
        first = (shard.index[0].start or 0) if shard.index else 0
        for i, row in enumerate(np.atleast_1d(np.asarray(shard.data))):
            digest = zlib.crc32(np.ascontiguousarray(row).tobytes())
            assert found.setdefault(first + i, digest) == digest, "copies of a row differ"
    return found


def described(batch: Any) -> list[Any]:
    """Shape, dtype and rows of each leaf."""
    return [[list(leaf.shape), str(leaf.dtype), rows_of(leaf)] for leaf in jax.tree.leaves(batch)]


def steps(names: list[str], folder: str, num_steps: int, start: Any = None, save_to: str | None = None) -> Any:
    """Some steps of each pipeline; they start at states by name, or at those in a folder of Orbax's.

    Afterwards Orbax saves the iterators.
    """
    sharding = data_sharding()
    iterators = {}
    for name in names:
        batches = pipelines.global_batches(name, folder, ShardBySharding(sharding))
        iterators[name] = iter(headrace.device_put(batches, sharding))
    if isinstance(start, dict):
        for name, state in start.items():
            iterators[name].set_state(state)
    elif start is not None:
        _restore(start, iterators)
    found = {name: [described(next(iterator)) for _ in range(num_steps)] for name, iterator in iterators.items()}
    if save_to is not None:
        _save(save_to, iterators)
    states = {name: iterator.get_state() for name, iterator in iterators.items()}
    for iterator in iterators.values():
        iterator.close()
    return {"steps": found, "states": states}


def _save(folder: str, iterators: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    args = {_item(name): checkpoint.CheckpointSave(iterator) for name, iterator in iterators.items()}
    with ocp.CheckpointManager(folder) as manager:
        manager.save(0, args=ocp.args.Composite(**args))


def _restore(folder: str, iterators: dict[str, Any]) -> None:
    import orbax.checkpoint as ocp

    args = {_item(name): checkpoint.CheckpointRestore(iterator) for name, iterator in iterators.items()}
    with ocp.CheckpointManager(folder) as manager:
        manager.restore(0, args=ocp.args.Composite(**args))


def _item(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


def meshes(shape: list[int]) -> Any:
    """Batches with every kind of leaf, on a mesh of data and model."""
    mesh = jax.make_mesh(tuple(shape), ("data", "model"))
    specs = {
        "rows": P("data"),
        "columns": P("data", "model"),
        "copies": P(),
        "both": P(("data", "model")),
        "scalar": P(),
    }
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    ds = headrace.MapDataset.range(40).map(leaves_of).global_batch(8, ShardBySharding(shardings))
    batches = headrace.device_put(ds.map(lambda batch: {**batch, "scalar": 7}).to_iter_dataset(), shardings)
    return [
        {
            name: [
                [
                    list(leaf.shape),
                    [s.indices(n)[:2] for s, n in zip(shard.index, leaf.shape, strict=True)],
                    np.asarray(shard.data).tolist(),
                ]
                for shard in leaf.addressable_shards
            ]
            for name, leaf in batch.items()
        }
        for batch in batches
    ]


def leaves_of(x: int) -> dict[str, Any]:
    return {"rows": x, "columns": np.arange(4) + 4 * x, "copies": x, "both": x}


@jax.jit
def train_step(batch: Any) -> jax.Array:
    """Something that no process can compute without all others."""
    return jnp.sum(batch.astype(jnp.float32))


def num_steps(kind: str) -> Any:
    """How many steps this process makes, with a collective in each."""
    sharding = data_sharding()
    return [float(train_step(batch)) for batch in headrace.device_put(ENDINGS[kind](), sharding)]


def own_shard() -> headrace.MapDataset:
    return headrace.MapDataset.range(603).shard(jax.process_count(), jax.process_index())


def loader(lib: Any = hp) -> Any:
    return lib.DataLoader(
        data_source=lib.RangeDataSource(0, 603, 1),
        sampler=lib.IndexSampler(603, lib.ShardByJaxProcess(), shuffle=True, num_epochs=1, seed=1),
        operations=[lib.Batch(3, drop_remainder=True)],
    )


def finite_lanes() -> headrace.IterDataset:
    return headrace.MapDataset.range(603).to_iter_dataset(num_lanes=4).filter(lambda x: x % 4 or x % 3)


def elastic() -> headrace.IterDataset:
    return headrace.ElasticIterator(headrace.MapDataset.range(603), 12, ShardByJaxProcess())


def of_one_lane() -> headrace.IterDataset:
    ds = headrace.MapDataset.range(603).to_iter_dataset().filter(pipelines.is_kept)
    return ds.global_batch(12, ShardByJaxProcess())


ENDINGS = {
    "elastic": elastic,
    "skip and window": lambda: of_one_lane().skip(2).window_shuffle(3, seed=1),
    "mix": lambda: headrace.IterDataset.mix([of_one_lane(), of_one_lane()]),
    "loader": lambda: loader().dataset,
    "map": lambda: headrace.MapDataset.range(603).global_batch(12, ShardByJaxProcess()).to_iter_dataset(),
    "one lane": lambda: (
        headrace.MapDataset.range(603).to_iter_dataset().filter(pipelines.is_kept).global_batch(12, ShardByJaxProcess())
    ),
    "in_step": lambda: headrace.stop_together(
        own_shard().to_iter_dataset().filter(lambda x: x % 4 or x % 3).batch(3, drop_remainder=True)
    ),
    "lanes in_step": lambda: headrace.stop_together(finite_lanes().global_batch(12, ShardByJaxProcess())),
    "num_batches": lambda: finite_lanes().global_batch(12, ShardByJaxProcess(), num_batches=30),
}


def rows_per_process() -> Any:
    """A mesh on which processes hold different numbers of rows; every device's values, checked."""
    sharding = NamedSharding(jax.make_mesh((2, 3), ("data", "model")), P("data"))
    ds = headrace.MapDataset.range(80).global_batch(8, ShardBySharding(sharding)).to_iter_dataset()
    found = []
    for step, batch in enumerate(headrace.device_put(ds, sharding)):
        for shard in batch.addressable_shards:
            np.testing.assert_array_equal(shard.data, np.arange(8 * step, 8 * step + 8)[shard.index])
        found.append(float(train_step(batch)))
    return found


def some_processes() -> Any:
    """A mesh over the first two processes of three."""
    devices = [device for device in jax.devices() if device.process_index < 2]
    sharding = NamedSharding(jax.sharding.Mesh(np.array(devices), ("data",)), P("data"))
    if jax.process_index() == 2:
        return 0
    ds = headrace.MapDataset.range(80).global_batch(8, ShardBySharding(sharding)).to_iter_dataset()
    return len(list(headrace.device_put(ds, sharding)))


def scalars() -> Any:
    """Scalars have a sharding of their own; rows follow that of the others."""
    by_row, everywhere = data_sharding(), NamedSharding(data_sharding().mesh, P())
    read: list[int] = []
    ds = headrace.MapDataset.range(16).map(lambda x: read.append(x) or x).global_batch(4, ShardBySharding(by_row))
    tree = {"x": by_row, "temperature": everywhere}
    batches = headrace.device_put(ds.map(lambda x: {"x": x, "temperature": 3}).to_iter_dataset(), tree)
    return [float(train_step(batch["x"])) for batch in batches], sorted(set(read))


def error_after_in_step() -> str:
    """An error of one process alone, behind what was computed ahead, is its own."""
    global_arrays.CHANGED_S = 2.0
    ds = headrace.MapDataset.range(4000).global_batch(4, ShardByJaxProcess())
    ds = ds.map(lambda b: b.astype(str) if b[0] >= 120 and jax.process_index() else b).to_iter_dataset()
    iterator, count = iter(headrace.device_put(headrace.stop_together(ds, every=1), data_sharding())), 0
    try:
        for _ in range(40 if jax.process_index() else 30):
            next(iterator)
            count += 1
    except HeadraceError as e:
        return f"{count}: {e}"
    finally:
        iterator.close()
    return f"{count}"


def stand_still() -> None:
    """Waits for nobody."""
    time.sleep(600 if jax.process_index() else 0)


def grains_batches() -> int:
    """How many batches Grain's loader has in this process."""
    import grain.python

    return len(list(loader(grain.python)))


def refused(kind: str) -> str:
    """The error that a wrong program gets."""
    try:
        for batch in REFUSED[kind]():
            train_step(jax.tree.leaves(batch)[0])
    except (HeadraceError, ValueError) as e:
        return f"{type(e).__name__}: {e}"
    return "nothing"


def sizes_that_change() -> str:
    """What happens if batches have different sizes from the third on: one process notices, and no array is made."""
    global_arrays.CHANGED_S = 2.0
    ds = headrace.MapDataset.range(4).map(lambda i: np.zeros(2 + (i > 1) * jax.process_index()))
    made: list[Any] = []
    try:
        made.extend(batch.shape for batch in headrace.device_put(ds.to_iter_dataset(), data_sharding()))
    except HeadraceError as e:
        made.append(str(e))
    return str(made)


def across() -> NamedSharding:
    """A mesh whose model axis crosses all processes: every process has all rows."""
    return NamedSharding(jax.make_mesh((1, jax.device_count()), ("data", "model")), P("data"))


def different_sizes() -> Any:
    ds = headrace.MapDataset.range(100).batch(2 + jax.process_index()).repeat().to_iter_dataset()
    return headrace.device_put(ds, data_sharding())


def copies_that_differ() -> Any:
    ds = own_shard().repeat().batch(4).to_iter_dataset()
    return headrace.device_put(ds, across())


def rows_then(after: Any) -> Any:
    ds = headrace.MapDataset.range(96).repeat().global_batch(4, ShardByJaxProcess())
    return headrace.device_put(after(ds), data_sharding())


def skipping(x: int) -> int:
    if x % 10 == 4:
        raise ValueError
    return x


REFUSED = {
    "different dtypes": lambda: headrace.device_put(
        headrace.MapDataset.source([1, 2, 3, 0.5]).repeat().global_batch(4, ShardByJaxProcess()).to_iter_dataset(),
        data_sharding(),
    ),
    "a filter after rows": lambda: rows_then(lambda ds: ds.to_iter_dataset().filter(lambda b: 5 not in b)),
    "a filter of random access after rows": lambda: rows_then(
        lambda ds: ds.filter(lambda b: 5 not in b).to_iter_dataset()
    ),
    "batches of rows": lambda: rows_then(lambda ds: ds.to_iter_dataset().batch(2)),
    "errors after rows": lambda: rows_then(lambda ds: ds.to_iter_dataset().map(skipping).on_error("skip")),
    "errors in a shard": lambda: headrace.device_put(
        own_shard().map(skipping).to_iter_dataset().batch(3, drop_remainder=True).on_error("skip"), data_sharding()
    ),
    "different sizes": different_sizes,
    "copies that differ": copies_that_differ,
    "rows of others": lambda: headrace.device_put(
        headrace.MapDataset.range(100).global_batch(4, ShardByJaxProcess()).to_iter_dataset(), across()
    ),
    "different numbers": lambda: headrace.device_put(
        own_shard().batch(2, drop_remainder=True).to_iter_dataset(), data_sharding()
    ),
    "a filter in a shard": lambda: headrace.device_put(
        own_shard().filter(pipelines.is_kept).to_iter_dataset().batch(3, drop_remainder=True), data_sharding()
    ),
    "finite lanes": lambda: finite_lanes().global_batch(12, ShardByJaxProcess()),
    "a scalar along an axis": lambda: headrace.device_put(
        headrace.MapDataset.range(100).repeat().batch(2).map(lambda b: {"x": b, "n": 3}).to_iter_dataset(),
        data_sharding(),
    ),
}


def restored_by_fewer(folder: str, save: bool) -> str:
    """Saves a shard of its own, or restores it with another number of processes."""
    iterators = {"shard": iter(own_shard().shuffle(seed=1).to_iter_dataset().batch(3))}
    next(iterators["shard"])
    try:
        (_save if save else _restore)(folder, iterators)
    except HeadraceError as e:
        return f"{type(e).__name__}: {e}"
    return "done"


def what_differs(kind: str, folder: str) -> str:
    """What a process says whose data may differ from that of process 0."""
    index, count = jax.process_index(), jax.process_count()
    sharding = data_sharding()
    numbers = headrace.MapDataset.range(1000 - 100 * index).shuffle(seed=1)
    names = ["a", "b", "c"] if index == 0 else ["a", "c"]
    lines = headrace.sources.TextLinesDataSource([f"{folder}/{name}" for name in names])
    make = {
        "global_batch": lambda: numbers.global_batch(8, ShardByJaxProcess()).to_iter_dataset(),
        "stream": lambda: numbers.to_iter_dataset().global_batch(8, ShardByJaxProcess()),
        "device_put": lambda: headrace.device_put(
            numbers.global_batch(8, ShardBySharding(sharding)).to_iter_dataset(), sharding
        ),
        "in_step": lambda: headrace.stop_together(numbers.shard(count, index).batch(4).to_iter_dataset()),
        "files": lambda: headrace.MapDataset.source(lines).global_batch(2, ShardByJaxProcess()).to_iter_dataset(),
        "same": lambda: headrace.MapDataset.range(64).global_batch(8, ShardByJaxProcess()).to_iter_dataset(),
        "own data": lambda: headrace.stop_together(numbers.batch(4).to_iter_dataset()),
    }[kind]
    with iter(make()) as iterator:
        try:
            next(iterator)
            return "goes on"
        except HeadraceError as e:
            return str(e)
