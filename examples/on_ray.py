"""Computes a pipeline on Ray actors: the same batches, also if an actor is killed, and if the run goes on without Ray.

python examples/on_ray.py                        # Ray starts on this machine, and ends with the program
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
    """Something costly: many noisy copies of an image, averaged."""
    noisy = example["image"] + rng.normal(0, 1, (500, 8, 8))
    return {**example, "image": noisy.mean(axis=0).astype(np.float32), "process": os.getpid()}


def make_batches() -> headrace.IterDataset:
    """Shuffled, augmented batches of some of the digits."""
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
    """The digest of all batches so far; which process computed them does not count."""
    content = hashlib.sha256(digest.encode())
    for name in ("image", "label"):
        content.update(np.ascontiguousarray(batch[name]).data)
    return content.hexdigest()


def take(iterator, count: int, digest: str) -> tuple[str, set[int]]:
    """The digest after some more batches, and the processes that computed them."""
    processes: set[int] = set()
    for _ in range(count):
        batch = next(iterator)
        digest = extend(digest, batch)
        processes.update(batch["process"].tolist())
    return digest, processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="a Ray cluster; by default, one that starts on this machine")
    address = parser.parse_args().address
    expected, _ = take(iter(make_batches()), NUM_BATCHES, "")

    on_ray = make_batches().mp_prefetch(headrace.RayOptions(num_workers=2, address=address))
    with iter(on_ray) as batches:
        digest, actors = take(batches, NUM_BATCHES // 3, "")
        print(
            f"{NUM_BATCHES // 3} batches came from {len(actors)} actors; this process is none of them: "
            f"{os.getpid() not in actors}"
        )
        if address is None:  # on a cluster, it may be on another machine
            os.kill(min(actors), signal.SIGKILL)
            print("an actor was killed")
        digest, _ = take(batches, NUM_BATCHES // 3, digest)
        state = batches.get_state()

    with iter(make_batches().mp_prefetch(1)) as batches:  # a worker process goes on where Ray has stopped
        batches.set_state(state)
        digest, _ = take(batches, NUM_BATCHES - 2 * (NUM_BATCHES // 3), digest)
    print(f"the same batches as without workers: {digest == expected}")


if __name__ == "__main__":
    main()
