"""Trains on 2 processes, resumes with 3 and then with 1: the global batches are the same as with one process.

    python examples/many_hosts.py

The processes of a run are real ones of `jax.distributed`, on this machine, with one CPU device each; on a cluster, each
would be a host. Every run restores the model and the data iterator from the Orbax checkpoint of the run before, and
hashes all global batches. At the end, the hash is compared with that of an uninterrupted pass.
"""

import argparse
import hashlib
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import NamedSharding, PartitionSpec

import headrace
from headrace.checkpoint import CheckpointRestore, CheckpointSave
from headrace.data import digits
from headrace.sharding import ShardBySharding

RUNS = (2, 3, 1)  # how many processes each run has
STEPS = 20  # of each run
BATCH_SIZE = 48  # over all processes: a multiple of NUM_LANES and of every number in RUNS
NUM_LANES = 12  # belongs to the data, like a seed: keep it when the number of processes changes

Arrays = dict[str, Any]

# --------------------------------------------------------------------------------------------- the data


def augment(example: Arrays, rng: np.random.Generator) -> Arrays:
    """Shifts an image sideways by up to one pixel."""
    return {**example, "image": np.roll(example["image"], rng.integers(-1, 2), axis=1)}


def make_batches(rows: ShardBySharding | None) -> headrace.IterDataset:
    """This process's rows of every global batch; without `rows`, all of them."""
    stream = (
        headrace.MapDataset.source(digits())
        .shuffle(seed=1)
        .repeat()
        .to_iter_dataset(num_lanes=NUM_LANES)
        .filter(lambda example: example["label"] != 8)  # so the length of a shard is known only after reading it
        .random_map(augment, seed=2)
        .window_shuffle(100, seed=3)
        .map(lambda example: {**example, "image": example["image"].astype(np.float32) / 16})
    )
    return stream.global_batch(BATCH_SIZE, rows)


def extend(digest: str, batch: Arrays) -> str:
    """Adds a global batch to the digest of all those before it."""
    content = hashlib.sha256(digest.encode())
    for name in sorted(batch):
        content.update(np.ascontiguousarray(batch[name]).data)
    return content.hexdigest()


# ------------------------------------------------------------------------------------------- the training

optimizer = optax.adam(1e-2)


def new_model(sharding: NamedSharding) -> Any:
    """Weights and the optimizer's state, with a copy on every device."""
    weights = {"matrix": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    return jax.jit(lambda: (weights, optimizer.init(weights)), out_shardings=sharding)()


@jax.jit
def learn(model: Any, batch: Arrays) -> tuple[Any, jax.Array]:
    """One step of training over the rows of all processes; also returns the loss."""

    def loss_of(weights: Any) -> jax.Array:
        guesses = batch["image"].reshape(BATCH_SIZE, 64) @ weights["matrix"] + weights["bias"]
        return optax.softmax_cross_entropy_with_integer_labels(guesses, batch["label"]).mean()

    weights, state = model
    loss, gradients = jax.value_and_grad(loss_of)(weights)
    updates, state = optimizer.update(gradients, state)
    return (optax.apply_updates(weights, updates), state), loss


def train(folder: Path, first: int) -> None:
    """One process of a run: restores the last checkpoint if there is one, trains for some steps, and saves."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    by_row, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    batches = iter(headrace.device_put(make_batches(ShardBySharding(by_row)), by_row))
    model, digest, loss = new_model(everywhere), "", 0.0
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        if first:
            args = ocp.args.Composite(
                model=ocp.args.StandardRestore(model), data=CheckpointRestore(batches), digest=ocp.args.JsonRestore()
            )
            restored = manager.restore(first, args=args)
            model, digest = restored["model"], restored["digest"]["sha256"]
        for _ in range(STEPS):
            batch = next(batches)
            digest = extend(digest, process_allgather(batch, tiled=True))
            model, loss = learn(model, batch)
        args = ocp.args.Composite(
            model=ocp.args.StandardSave(model),
            data=CheckpointSave(batches),
            digest=ocp.args.JsonSave({"sha256": digest}),
        )
        manager.save(first + STEPS, args=args)
    batches.close()
    if jax.process_index() == 0:
        (folder / "digest").write_text(digest)
        print(f"  on {jax.process_count()}: steps {first} to {first + STEPS}, loss {float(loss):.4f}", flush=True)


# ----------------------------------------------------------------------------------------- the processes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(folder: Path, num_processes: int, first: int) -> None:
    """Starts the processes of a run and waits for them."""
    address = f"127.0.0.1:{free_port()}"
    commands = [
        [sys.executable, __file__, "--process", str(i), str(num_processes), address, str(folder), str(first)]
        for i in range(num_processes)
    ]
    processes = [subprocess.Popen(command) for command in commands]
    try:
        if any(process.wait(timeout=300) for process in processes):
            sys.exit("A process failed; see its error above.")
    finally:
        for process in processes:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--process", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args().process
    if given is not None:
        index, count, address, folder, first = given
        jax.distributed.initialize(address, num_processes=int(count), process_id=int(index))
        train(Path(folder), int(first))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, num_processes in enumerate(RUNS):
            start(folder, num_processes, run * STEPS)
        digest = (folder / "digest").read_text()
    expected = ""
    for _, batch in zip(range(STEPS * len(RUNS)), make_batches(None), strict=False):
        expected = extend(expected, batch)
    print(f"  digest of the global batches: {digest[:16]}; of an uninterrupted pass: {expected[:16]}")
    if digest != expected:
        sys.exit("The global batches DIFFER from those of an uninterrupted pass.")
    print("No batch was lost, repeated or changed.")


if __name__ == "__main__":
    main()
