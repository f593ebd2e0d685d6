"""Computes a pipeline on Ray actors: the batches stay the same if an actor is killed, or the run resumes without Ray.

python examples/on_ray.py                        # starts Ray on this machine for the duration of the program
python examples/on_ray.py --address auto         # on a cluster, from one of its nodes
"""

import argparse
import hashlib
import os
import signal

import numpy as np

import headrace
from headrace.data import digits

NUM_BATCHES = 60


def augment(example: dict, rng: np.random.Generator) -> dict:
    """An expensive operation: averages many noisy copies of an image."""
    noisy = example["image"] + rng.normal(0, 1, (500, 8, 8))
    return {**example, "image": noisy.mean(axis=0).astype(np.float32), "process": os.getpid()}


def make_batches() -> headrace.IterDataset:
    """Shuffled, augmented batches of all digits but 8."""
    return (
        headrace.MapDataset.source(digits())
        .shuffle(seed=1)
        .repeat()
        .random_map(augment, seed=2)
        .to_iter_dataset()
        .filter(lambda example: example["label"] != 8)
        .batch(32)
    )


def extend(digest: str, batch: dict) -> str:
    """Adds a batch to the digest of all batches before it, ignoring which process computed it."""
    content = hashlib.sha256(digest.encode())
    for name in ("image", "label"):
        content.update(np.ascontiguousarray(batch[name]).data)
    return content.hexdigest()


def take(iterator, count: int, digest: str) -> tuple[str, set[int]]:
    """Reads `count` batches; returns the digest and the processes that computed them."""
    processes: set[int] = set()
    for _ in range(count):
        batch = next(iterator)
        digest = extend(digest, batch)
        processes.update(batch["process"].tolist())
    return digest, processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="the address of a Ray cluster (by default, Ray starts on this machine)")
    address = parser.parse_args().address
    expected, _ = take(iter(make_batches()), NUM_BATCHES, "")

    on_ray = make_batches().mp_prefetch(headrace.RayOptions(num_workers=2, address=address))
    with iter(on_ray) as batches:
        digest, actors = take(batches, NUM_BATCHES // 3, "")
        print(
            f"{NUM_BATCHES // 3} batches came from {len(actors)} actors, none of them in this process: "
            f"{os.getpid() not in actors}"
        )
        if address is None:  # on a cluster, the actor may be on another machine
            os.kill(min(actors), signal.SIGKILL)
            print("an actor was killed")
        digest, _ = take(batches, NUM_BATCHES // 3, digest)
        state = batches.get_state()

    with iter(make_batches().mp_prefetch(1)) as batches:  # a worker process continues where Ray stopped
        batches.set_state(state)
        digest, _ = take(batches, NUM_BATCHES - 2 * (NUM_BATCHES // 3), digest)
    print(f"the same batches as without workers: {digest == expected}")


if __name__ == "__main__":
    main()
