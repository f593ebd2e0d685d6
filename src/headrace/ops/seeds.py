"""Seeds of operations: given, or derived from the `ds.seed(...)` before them."""

from typing import Any

import numpy as np

from headrace.errors import PipelineError, SeedError
from headrace.ops.op import Op
from headrace.rng import derive_seed


def default_seed(parents: tuple[Op, ...]) -> int | None:
    """The seed that an operation on `parents` derives from the `seed` calls before it, or None.

    Seeds before an `interleave`, which Grain ignores, count only if there are no others.
    """
    pairs = _seeds_before(parents, hidden=False) or _seeds_before(parents, hidden=True)
    return derive_seed(pairs) if pairs else None


def _seeds_before(parents: tuple[Op, ...], *, hidden: bool) -> list[tuple[int, int]]:
    """Seeds and their distances, breadth first."""
    pairs = []
    level = list(parents)
    distance = 1
    while level:
        above: list[Op] = []
        for op in level:
            while not op.is_seed_step:
                (op,) = op.parents
            seed = getattr(op, "seeds_what_follows", None)
            if seed is not None:
                pairs.append((seed, distance))
            elif hidden or not op.hides_seeds:
                above.extend(op.parents)
        level = above
        distance += 1
    return pairs


def set_seed(op: Any, *, bits: int | None = 32) -> None:
    """Checks an operation's seed, or sets the one that it derives from `ds.seed(...)`."""
    seed = default_seed(op.parents) if op.seed is None else op.seed
    if seed is None:
        raise PipelineError(
            f"`{op.name}` needs a seed. Give it one, `{op.name}(..., seed=42)`, or seed the dataset before it: "
            f"`ds.seed(42).{op.name}(...)`."
        )
    object.__setattr__(op, "seed", check_seed(seed, op=op.name, bits=bits))


def check_seed(seed: Any, *, op: str, bits: int | None = 32) -> int:
    """An int seed within its range."""
    if isinstance(seed, np.integer):
        seed = int(seed)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise SeedError(f"The seed of `{op}` must be an int; got {seed!r}.")
    if seed < 0 or (bits and seed >> bits):
        limit = f"between 0 and 2**{bits} - 1" if bits else "0 or more"
        raise PipelineError(f"The seed of `{op}` must be {limit}; got {seed}.")
    return seed
