"""Random pipelines for property tests."""

import random
import tempfile
from typing import Any

import numpy as np
from hypothesis import strategies as st

from headrace import DatasetIterator, DatasetOptions, IterDataset, MapDataset, WeightSchedule
from headrace.packing import BestFitPackIterDataset, ConcatThenSplitIterDataset, FirstFitPackIterDataset
from headrace.testing import FakeSource
from headrace.transforms import Map, SeedGlobals

_disk = tempfile.TemporaryDirectory(prefix="headrace-chains-")
DISK = _disk.name  # one folder for all: their keys must tell pipelines apart


def number_of(x: Any) -> int:
    """Some int that depends on the whole element."""
    if isinstance(x, dict):
        return sum(number_of(x[key]) for key in sorted(x))
    if isinstance(x, tuple):
        return sum(map(number_of, x))
    return 0 if x is None else int(np.sum(x))  # a zip of missing elements has them


def size_of(x: Any) -> int:
    return number_of(x) % 7


class AddOne(Map):
    """A transform on elements and on columns."""

    def map(self, x: Any) -> Any:
        return _tree_add(x, 1)

    def map_batch(self, x: Any) -> Any:
        return _tree_add(x, 1)


def _tree_add(x: Any, n: int) -> Any:
    if isinstance(x, dict):
        return {key: _tree_add(value, n) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(_tree_add(value, n) for value in x)
    return None if x is None else x + n


def add_in_place(x: Any) -> Any:
    """Changes an element in place, as users' functions may."""
    if isinstance(x, np.ndarray) and x.ndim:
        x += 1
        return x
    if isinstance(x, dict):
        for key in x:
            x[key] = add_in_place(x[key])
        return x
    return _tree_add(x, 1)


def add_random(x: Any, rng: np.random.Generator) -> Any:
    return _tree_add(x, int(rng.integers(100)))


def add_dice(x: Any) -> Any:
    return _tree_add(x, random.randrange(100) + np.random.randint(100))


def with_index(i: int, x: Any) -> Any:
    return _tree_add(x, i)


def is_kept(x: Any) -> bool:
    return number_of(x) % 3 != 0


def split(x: Any) -> list[Any]:
    return [_tree_add(x, j) for j in range(number_of(x) % 4)]


def tokens(x: Any) -> dict[str, np.ndarray]:
    """Sequences whose lengths depend on the element."""
    n = number_of(x) % 1000
    return {"x": np.arange(n, n + n % 6), "y": np.full(n % 4 or int(n % 6 == 0), n / 2)}


def has_x(element: dict[str, np.ndarray]) -> bool:
    return len(element["x"]) > 0


def only_x(element: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"x": element["x"]}


FIT = ("split", "truncate", "drop")
EMPTY = ("drop", "keep")


class BlockSource:
    """A source that answers many indices at once."""

    def __init__(self, length: int):
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        assert type(i) is int
        return np.array([i, i + 1])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class Dice:
    """A source that draws from the generators of the process, as existing datasets do."""

    def __init__(self, length: int):
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        assert 0 <= i < self._length
        return np.array([i, random.randrange(100), np.random.randint(100)])


class Doubled(MapDataset):
    """A dataset of a user's own."""

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, i: Any) -> Any:
        if not isinstance(i, int):
            return super().__getitem__(i)
        assert type(i) is int
        x = self._parent[i]
        return None if x is None else _tree_add(x, 2)


class Alternate:
    """A selection map that takes from two datasets in turn."""

    def __init__(self, length: int):
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> tuple[int, int]:
        return i % 2, i // 2


class TailIterator(DatasetIterator):
    """All but the first of each three elements, with a count in its state."""

    def __init__(self, parent: DatasetIterator):
        super().__init__(parent)
        self._count = 0

    def __next__(self) -> Any:
        while True:
            x = next(self._parent)
            self._count += 1
            if self._count % 3 != 1:
                return x

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._parent.get_state(), "count": self._count}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self._count = state["count"]


class Tail(IterDataset):
    """A stream of a user's own."""

    def __iter__(self) -> TailIterator:
        return TailIterator(iter(self._parent))


LISTED = [np.arange(i, i + 3) for i in range(9)]


def sources() -> st.SearchStrategy[MapDataset]:
    return st.one_of(
        st.integers(1, 30).map(MapDataset.range),
        st.integers(1, 20).map(lambda n: MapDataset.range(3, 3 + 2 * n, 2)),
        st.integers(1, 20).map(lambda n: MapDataset.source(FakeSource(n))),
        st.integers(1, 20).map(lambda n: MapDataset.source(np.arange(2 * n).reshape(n, 2))),
        st.integers(1, 20).map(lambda n: MapDataset.source({"b": np.arange(n), "a": np.ones((n, 2), np.float32)})),
        st.integers(1, 20).map(lambda n: MapDataset.source(BlockSource(n))),
        st.just(MapDataset.source(LISTED)),
        st.integers(1, 20).map(lambda n: MapDataset.source(Dice(n), seed_globals=True, seed=n)),
    )


SPLITS = ("[:75%]", "[40%:]", "[-1:]", "[50%:]+[:50%]", "[:1]+[:100%]")  # with an element in any dataset that has one


ORDER = {
    "shuffle": lambda ds, k: ds.shuffle(seed=k),
    "window_shuffle": lambda ds, k: ds.window_shuffle(k % 5 + 1, seed=k),
    "slice": lambda ds, k: ds[k % len(ds) :: k % 3 + 1],
    "reverse": lambda ds, k: ds[::-1],
    "pick": lambda ds, k: ds[[k, 0, -1, k + 1]],
    "shard": lambda ds, k: ds.shard(k % 3 + 1, 0),
    "repeat": lambda ds, k: ds.repeat(k % 3 + 1),
    "repeat the same": lambda ds, k: ds.repeat(k % 3 + 1, reseed_each_epoch=False),
    "concatenate": lambda ds, k: MapDataset.concatenate([ds, ds.shuffle(seed=k), ds]),
    "mix": lambda ds, k: MapDataset.mix([ds, ds[::-1], ds], weights=[1, k % 4 + 1, 0.7]),
    "cache": lambda ds, k: ds.cache(),
    "cache on disk": lambda ds, k: ds.cache(DISK),
    "seed": lambda ds, k: ds.seed(k),
    "take": lambda ds, k: ds.take(k % 7 + 1),
    "skip": lambda ds, k: ds.skip(k % len(ds)),
    "split": lambda ds, k: ds.repeat(1, reseed_each_epoch=False).split(SPLITS[k % len(SPLITS)]),
    "select": lambda ds, k: MapDataset.select_from_datasets([ds, ds[::-1]], Alternate(len(ds))),
    "options": lambda ds, k: ds.with_options(DatasetOptions(min_shm_size=k)),
}

ELEMENT = {
    "map": lambda ds, k: ds.map(lambda x: _tree_add(x, k)),
    "map in place": lambda ds, k: ds.map(add_in_place),
    "map with columns": lambda ds, k: ds.map(AddOne()),
    "map_with_index": lambda ds, k: ds.map_with_index(with_index),
    "random_map": lambda ds, k: ds.random_map(add_random, seed=k),
    "random_map of globals": lambda ds, k: ds.random_map(SeedGlobals(add_dice), seed=k),
    "map of columns": lambda ds, k: ds.map(lambda x: _tree_add(x, k), batched=True),
}

MAP_OPS = ORDER | ELEMENT | {"user": lambda ds, k: Doubled(ds), "zip": lambda ds, k: MapDataset.zip([ds, ds[::-1]])}
HOLE_OPS = {
    "filter": lambda ds, k: ds.filter(is_kept),
    "flat_map": lambda ds, k: ds.flat_map(split, max_fan_out=4),
}


def may_be_sparse(op: Any) -> bool:
    """Whether a filter stands anywhere before, a user's own dataset between them or not."""
    return op.is_sparse or any(map(may_be_sparse, op.parents))


@st.composite
def map_datasets(draw: Any, max_ops: int = 4, *, holes: bool = True) -> MapDataset:
    """A random random-access chain."""
    ds = draw(sources())
    for name in draw(st.lists(st.sampled_from(sorted(MAP_OPS | (HOLE_OPS if holes else {}))), max_size=max_ops)):
        ds = (MAP_OPS | HOLE_OPS)[name](ds, draw(st.integers(0, 20)))
        if len(ds) == 0 or len(ds) > 300:
            ds = MapDataset.range(7)
    if draw(st.booleans()) and not may_be_sparse(ds._op):
        ds = ds.batch(draw(st.integers(1, 5)), drop_remainder=draw(st.booleans()))
    return ds


STREAM_OPS = ELEMENT | {
    "filter": lambda ds, k: ds.filter(is_kept),
    "flat_map": lambda ds, k: ds.flat_map(split),
    "window_shuffle": lambda ds, k: ds.window_shuffle(k % 6 + 1, seed=k),
    "shuffle": lambda ds, k: ds.shuffle(k % 6 + 1, seed=k),
    "repeat": lambda ds, k: ds.repeat(k % 3 + 1),
    "take": lambda ds, k: ds.take(k * 2),
    "skip": lambda ds, k: ds.skip(k % 5),
    "cache": lambda ds, k: ds.cache(),
    "cache on disk": lambda ds, k: ds.cache(DISK),
    "cache and repeat": lambda ds, k: ds.cache().repeat(2),
    "mix": lambda ds, k: IterDataset.mix([ds, ds.skip(1)], weights=[1, k % 3 + 1]),
    "mix by name": lambda ds, k: IterDataset.mix({"a": ds, "b": ds.skip(1)}, {"a": 2, "b": 1}),
    "mix by schedule": lambda ds, k: IterDataset.mix(
        [ds, ds.skip(1), ds.skip(2)], WeightSchedule({0: [1, 2, 0], k + 1: [3, 1, k % 3]}, elements_per_step=k % 3 + 1)
    ),
    "mix by size": lambda ds, k: IterDataset.mix([ds, ds.skip(1)], [1, k % 3 + 1], weigh_by=size_of),
    "mix by size and name": lambda ds, k: IterDataset.mix(
        {"a": ds.map(tokens), "b": ds.skip(1).map(tokens), "c": ds.skip(2).map(tokens)},
        WeightSchedule({0: {"a": 1, "b": 2, "c": 0}, k + 1: {"a": 3, "b": 1, "c": k % 3}}, size_per_step=k % 3 + 1),
        weigh_by="x",
    ),
    "zip": lambda ds, k: IterDataset.zip([ds, ds.skip(k % 3)], strict=False),
    "interleave": lambda ds, k: IterDataset.interleave([ds, ds.skip(2), ds.take(k), ds], cycle_length=k % 4 + 1),
    "interleave lazily": lambda ds, k: IterDataset.interleave(
        MapDataset.range(3).map(lambda i: ds.skip(i)), cycle_length=k % 3 + 1
    ),
    "user": lambda ds, k: Tail(ds).map(lambda x: x),
    "options": lambda ds, k: ds.with_options(DatasetOptions(min_shm_size=k)),
    "seed": lambda ds, k: ds.seed(k),
    "prefetch": lambda ds, k: ds.prefetch(k % 4),
    "batch and rebatch": lambda ds, k: ds.map(number_of).batch(k % 4 + 1).rebatch(k % 3 + 1, drop_remainder=k % 2 == 0),
    "padded": lambda ds, k: ds.map(lambda x: np.ones(number_of(x) % 5)).padded_batch(
        k % 3 + 1, boundaries=(2, 4), length_fn=len, window_size=7, drop_remainder=k % 2 == 0
    ),
    "by size": lambda ds, k: ds.map(lambda x: np.ones(number_of(x) % 5)).batch_by_size(
        k % 4 + 2, window_size=k % 8 + 1, oversized="drop", seed=k
    ),
    "by size of a feature": lambda ds, k: (
        ds.map(tokens).seed(k).batch_by_size(k % 9 + 5, "x", window_size=7, max_rows=k % 3 + 2, pad_value={"y": 1})
    ),
    "by size, not padded": lambda ds, k: ds.map(lambda x: np.ones(number_of(x) % 5)).batch_by_size(
        k % 7 + 4, window_size=9, padded=False, batch_fn=np.concatenate, shuffle_batches=k % 2 == 0, seed=k
    ),
    "first fit": lambda ds, k: FirstFitPackIterDataset(
        ds.map(tokens).filter(has_x), length_struct={"x": 6}, num_packing_bins=k % 4 + 1, seed=k, shuffle_bins=k % 3 > 0
    ),
    "best fit": lambda ds, k: BestFitPackIterDataset(
        ds.map(tokens),
        length_struct={"x": 7, "y": 5},
        num_packing_bins=k % 5 + 1,
        seed=k,
        max_sequences_per_bin=k % 3 + 1 if k % 2 else None,
    ),
    "pieces that fit": lambda ds, k: (
        ds.map(tokens)
        .filter(has_x)
        .map(only_x)
        .pack({"x": 4}, strategy="best_fit", num_packing_bins=k % 4 + 1, long_sequences=FIT[k % 3])
    ),
    "concat evenly": lambda ds, k: ds.map(tokens).filter(has_x).map(only_x).pack({"x": k + 2}, strategy="concat_split"),
    "empty sequences": lambda ds, k: (
        ds.map(tokens)
        .map(only_x)
        .pack({"x": 5}, strategy=("first_fit", "best_fit", "concat_split")[k % 3], empty_sequences=EMPTY[k % 2])
    ),
    "global_batch": lambda ds, k: ds.map(number_of).global_batch(k % 3 + 1),
    "global_batch of lanes": lambda ds, k: (
        IterDataset.mix(
            [MapDataset.range(60).to_iter_dataset(num_lanes=2), MapDataset.range(99).to_iter_dataset(num_lanes=2)]
        )
        .filter(is_kept)
        .window_shuffle(k % 5 + 1, seed=k)
        .global_batch(2 * (k % 3 + 1))
    ),
    "concat then split": lambda ds, k: ConcatThenSplitIterDataset(
        ds.map(tokens), length_struct={"x": k % 4 + 2, "y": 3}, split_full_length_features=k % 2 == 0
    ),
}


@st.composite
def stream_datasets(draw: Any, max_ops: int = 4) -> IterDataset:
    """A random stream."""
    ds = draw(map_datasets(max_ops=2))
    if len(ds) > 60:
        ds = ds.take(60)
    ds = ds.to_iter_dataset()
    for name in draw(st.lists(st.sampled_from(sorted(STREAM_OPS)), max_size=max_ops)):
        ds = STREAM_OPS[name](ds, draw(st.integers(0, 20)))
    if draw(st.booleans()):
        ds = ds.batch(draw(st.integers(1, 5)), drop_remainder=draw(st.booleans()), batch_fn=list)
    return ds.take(150)
