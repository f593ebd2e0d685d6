"""One of two JAX processes: a packed run whose states are gathered and given back, as MaxText's handler does.

python -m tests.compat.jax_process INDEX PORT
"""

import sys

import jax

import headrace

headrace.as_grain()

import grain.python as grain  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402


def pipeline(index: int):
    ds = grain.MapDataset.range(200).shuffle(seed=3)[index::2]
    ds = ds.map(lambda i: {"x": np.arange(i % 7 + 2, dtype=np.int32) + i}).to_iter_dataset()
    ds = grain.experimental.FirstFitPackIterDataset(ds, length_struct={"x": 16}, num_packing_bins=4)
    return iter(ds.batch(2))


def main() -> None:
    index, port = map(int, sys.argv[1:])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index, initialization_timeout=300)
    iterator = pipeline(index)
    for _ in range(3 + index):  # the processes are at different places
        next(iterator)
    gathered = multihost_utils.process_allgather(iterator.get_state())
    own = jax.tree.map(lambda leaf: np.asarray(leaf)[index].item(), gathered)
    again = pipeline(index)
    again.set_state(own)
    for _ in range(5):
        for left, right in zip(jax.tree.leaves(next(iterator)), jax.tree.leaves(next(again)), strict=True):
            np.testing.assert_array_equal(left, right)
    print("same")


if __name__ == "__main__":
    main()
