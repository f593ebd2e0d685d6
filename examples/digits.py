"""Trains a network on handwritten digits, stops halfway through an epoch, and resumes at that batch in a new process.

    python examples/digits.py

The first process trains with two worker processes, saves the model, optimizer and loader with Orbax, and ends. The
second restores them, continues with one worker, and tests the model. Both hash every batch; at the end, the hash is
compared with that of an uninterrupted pass over the loader, without workers.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import headrace
from headrace.data import digits
from headrace.transforms import Batch, RandomMap

SEED = 42
BATCH_SIZE = 64
BATCHES_PER_EPOCH = 22
NUM_TRAIN = BATCHES_PER_EPOCH * BATCH_SIZE  # of 1,797; the other 389 are for testing

Arrays = dict[str, np.ndarray]

# --------------------------------------------------------------------------------------------- the data


def split() -> tuple[Arrays, Arrays]:
    """Splits the digits into training and test data, always in the same way."""
    arrays = digits()
    order = np.random.default_rng(SEED).permutation(len(arrays["label"]))
    train, test = ({name: array[part] for name, array in arrays.items()} for part in np.split(order, [NUM_TRAIN]))
    return train, test


def scale(example: Arrays) -> Arrays:
    """Scales pixels to the range from 0 to 1 and adds a channel axis, for one image or a batch."""
    return {**example, "image": example["image"].astype(np.float32)[..., None] / 16}


class Augment(RandomMap):
    """Shifts an image by up to one pixel in each direction and adds noise."""

    def random_map(self, element: Arrays, rng: np.random.Generator) -> Arrays:
        down, right = rng.integers(0, 3, size=2)
        image = np.pad(element["image"], ((1, 1), (1, 1), (0, 0)))[down : down + 8, right : right + 8]
        return {**element, "image": image + rng.normal(0, 0.05, image.shape).astype(np.float32)}


def make_loader(num_epochs: int, worker_count: int) -> headrace.DataLoader:
    """Shuffled, augmented batches; they are the same with any number of workers."""
    return headrace.DataLoader(
        data_source=split()[0],
        sampler=headrace.samplers.IndexSampler(NUM_TRAIN, shuffle=True, num_epochs=num_epochs, seed=SEED),
        operations=[scale, Augment(), Batch(BATCH_SIZE)],
        worker_count=worker_count,
        worker_buffer_size=4,
    )


def extend(digest: str, batch: Arrays) -> str:
    """Adds a batch to the digest of all batches before it."""
    content = hashlib.sha256(digest.encode())
    for name in sorted(batch):
        content.update(np.ascontiguousarray(batch[name]).data)
    return content.hexdigest()


# ------------------------------------------------------------------------------------------- the network


class Network(nnx.Module):
    """Two convolutions and two dense layers: about 150,000 parameters."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 32, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 64, 128, rngs=rngs)
        self.output = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(image))))
        x = nnx.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
        return self.output(nnx.relu(self.hidden(x)))


@nnx.jit
def learn(model: Network, optimizer: nnx.Optimizer, batch: Arrays) -> jax.Array:
    """One step of training; returns the loss."""

    def loss_of(model: Network) -> jax.Array:
        guesses = model(jnp.asarray(batch["image"]))
        return optax.softmax_cross_entropy_with_integer_labels(guesses, batch["label"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def accuracy(model: Network) -> float:
    """The share of the test digits that the model classifies correctly."""
    _, test = split()
    guesses = np.asarray(model(jnp.asarray(scale(test)["image"]))).argmax(axis=1)
    return float((guesses == test["label"]).mean())


# ------------------------------------------------------------------------------------------- the training


@dataclass
class Progress:
    """The progress of the run; it is saved in each checkpoint."""

    num_batches: int = 0
    digest: str = ""
    timed_batches: int = 0  # without the first batch of each process, which includes compilation
    timed_s: float = 0.0
    waited_s: float = 0.0  # the part of timed_s spent in next(batches)


class Training:
    """Everything that a checkpoint holds: the model, its optimizer, the batch iterator and the progress."""

    def __init__(self, num_epochs: int, worker_count: int):
        self.num_batches = num_epochs * BATCHES_PER_EPOCH
        learning_rate = optax.cosine_decay_schedule(3e-3, self.num_batches)
        self.model = Network(nnx.Rngs(SEED))
        self.optimizer = nnx.Optimizer(self.model, optax.adam(learning_rate), wrt=nnx.Param)
        self.batches: Iterator[Arrays] = iter(make_loader(num_epochs, worker_count))
        self.progress = Progress()

    def run(self, until: int) -> None:
        """Trains until the run has used `until` batches."""
        first = self.progress.num_batches
        for number in range(first, until):
            asked = time.perf_counter()
            batch = next(self.batches)
            waited_s = time.perf_counter() - asked
            loss = float(learn(self.model, self.optimizer, batch))  # float() waits for the device, so next() never does
            self.progress.digest = extend(self.progress.digest, batch)
            self.progress.num_batches += 1
            if number > first:
                self.progress.timed_batches += 1
                self.progress.timed_s += time.perf_counter() - asked
                self.progress.waited_s += waited_s
            show_bar(number + 1, self.num_batches, loss)

    def save(self, manager: ocp.CheckpointManager) -> None:
        """Writes a checkpoint."""
        items = ocp.args.Composite(
            model=ocp.args.StandardSave(nnx.state((self.model, self.optimizer))),
            loader=headrace.checkpoint.CheckpointSave(self.batches),
            progress=ocp.args.JsonSave(asdict(self.progress)),
        )
        manager.save(self.progress.num_batches, args=items)

    def restore(self, manager: ocp.CheckpointManager) -> None:
        """Restores the last checkpoint."""
        items = ocp.args.Composite(
            model=ocp.args.StandardRestore(nnx.state((self.model, self.optimizer))),
            loader=headrace.checkpoint.CheckpointRestore(self.batches),
            progress=ocp.args.JsonRestore(),
        )
        restored = manager.restore(manager.latest_step(), args=items)
        nnx.update((self.model, self.optimizer), restored["model"])
        self.progress = Progress(**restored["progress"])


def show_bar(done: int, of: int, loss: float) -> None:
    """Shows progress: one line that is updated in a terminal, or else one line per epoch."""
    is_terminal = sys.stdout.isatty()
    if is_terminal or done % BATCHES_PER_EPOCH == 0:
        bar, epoch = "█" * (30 * done // of), (done - 1) // BATCHES_PER_EPOCH + 1
        text = f"  {bar:·<30}  epoch {epoch:2} of {of // BATCHES_PER_EPOCH}, batch {done:3} of {of}, loss {loss:.4f}"
        print(text, end="\r" if is_terminal else "\n", flush=True)


# ----------------------------------------------------------------------------------------- the processes


def run_phase(phase: str, folder: Path, num_epochs: int) -> None:
    """The first process trains up to the middle of an epoch and saves; the second restores and trains to the end."""
    worker_count = {"first": 2, "second": 1}[phase]
    training = Training(num_epochs, worker_count)
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        if phase == "second":
            training.restore(manager)
        epoch, batch = divmod(training.progress.num_batches, BATCHES_PER_EPOCH)
        where = f"{worker_count} worker(s), {jax.default_backend()}"
        print(f"process {os.getpid()} starts at batch {batch + 1} of epoch {epoch + 1} ({where})", flush=True)
        if phase == "first":
            training.run(until=num_epochs // 2 * BATCHES_PER_EPOCH + BATCHES_PER_EPOCH // 2)
            training.save(manager)
        else:
            training.run(until=training.num_batches)
    print(f"\nprocess {os.getpid()} stops after {training.progress.num_batches} batches of {training.num_batches}")
    if phase == "second":
        report(training, num_epochs)


def report(training: Training, num_epochs: int) -> None:
    """Prints the results, and fails if the batches differ from those of an uninterrupted pass."""
    result = training.progress
    digest, num_batches = "", 0
    for batch in make_loader(num_epochs, worker_count=0):
        digest, num_batches = extend(digest, batch), num_batches + 1
    print(f"the two processes:      {result.num_batches} batches, digest {result.digest[:16]}")
    print(f"an uninterrupted pass:  {num_batches} batches, digest {digest[:16]}")
    if result.digest != digest:
        raise SystemExit("The batches DIFFER from those of an uninterrupted pass.")
    print("The stream resumed exactly where it stopped.")
    print(f"test accuracy:          {accuracy(training.model):.2%}")
    print(f"examples per second:    {result.timed_batches * BATCH_SIZE / result.timed_s:,.0f}")
    print(f"waiting for the loader: {result.waited_s / result.timed_s:.1%} of the time")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on digits, stops halfway through an epoch, and resumes.")
    parser.add_argument("--epochs", type=int, default=20, help="how many epochs to train for (20)")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        run_phase(options.phase, options.folder, options.epochs)
        return
    with tempfile.TemporaryDirectory() as folder:
        for phase in ("first", "second"):
            command = [sys.executable, __file__, f"--epochs={options.epochs}", f"--phase={phase}", f"--folder={folder}"]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
