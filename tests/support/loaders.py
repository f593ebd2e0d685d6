"""Loaders to try: the same chains of operations for Grain's `DataLoader` and for ours."""

import grain.experimental
import grain.python

import headrace.python


def _kinds(package, flat_map):
    class Draw(package.RandomMapTransform):
        def random_map(self, element, rng):
            return element, int(rng.integers(1000))

    class Drop(package.FilterTransform):
        def filter(self, element):
            return (element[0] if isinstance(element, tuple) else element) % 3 != 0

    class Pass(package.MapTransform):
        def map(self, element):
            return element

    class Split(flat_map):
        max_fan_out = 3

        def flat_map(self, element):
            return [element] * (element % 3)

    return {"draw": Draw, "drop": Drop, "pass": Pass, "split": Split}


GRAINS = _kinds(grain.python, grain.experimental.FlatMapTransform)
OURS = _kinds(headrace.python, headrace.python.FlatMapTransform)

CHAINS = [
    "",
    "draw",
    "draw draw",
    "drop",
    "drop draw",
    "draw drop",
    "draw drop draw",
    "draw pass draw",
    "pass draw pass",
    "batch3",
    "draw batch3",
    "batch3 draw",
    "draw batch3 draw",
    "drop batch2 draw batch2 draw",
    "batch2 batch2 draw",
    "split",
    "split batch3",
    "pass split",
    "drop pass draw batch3",
]
FEW_CHAINS = ["draw drop draw", "draw batch3 draw", "split batch3"]
SHARDS = [
    {},
    {"loader": (1, 3, True)},
    {"sampler": (1, 3, False)},
    {"sampler": (2, 3, True)},
    {"loader": (1, 3, True), "sampler": (1, 3, True)},
]
NUM_RECORDS = 24


def operations(chain, package, kinds):
    return [package.Batch(int(word[-1])) if word.startswith("batch") else kinds[word]() for word in chain.split()]


def make(
    package, chain, *, loader=None, sampler=None, shuffle=True, num_epochs=2, worker_count=0, num_records=NUM_RECORDS
):
    """A loader of this package over `range(num_records)`."""
    kinds = OURS if package is headrace.python else GRAINS
    shards = {} if sampler is None else {"shard_options": package.ShardOptions(*sampler)}
    return package.DataLoader(
        data_source=range(num_records),
        sampler=package.IndexSampler(num_records, shuffle=shuffle, num_epochs=num_epochs, seed=7, **shards),
        operations=operations(chain, package, kinds),
        shard_options=None if loader is None else package.ShardOptions(*loader),
        worker_count=worker_count,
    )


def walk(iterator):
    """Everything that comes, as text, and the state after each."""
    outputs, states = [], []
    for output in iterator:
        outputs.append(repr(output))
        states.append(iterator.get_state())
    return outputs, states
