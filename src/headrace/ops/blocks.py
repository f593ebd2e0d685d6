"""Blocks hold several elements at once: as a list of rows, as columns, or as plain ints.

Whatever the kind, `block.rows()[j]` is the same element bit for bit. Users never receive columns or ints
themselves, only rows and stacks made from them, so they cannot edit anything cached.
"""

from collections.abc import Sequence
from itertools import chain, compress, repeat
from typing import Any

import numpy as np

from headrace import trees
from headrace import trees as batch_rows

Indices = range | np.ndarray
"""Element indices: a consecutive run stays a `range` until an operation needs an array."""


def as_array(indices: Indices) -> np.ndarray:
    """Indices as an int64 array."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    return indices


class Block:
    """`len(block)` elements."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self) -> list[Any]:
        """The elements, which the caller must not change."""
        raise NotImplementedError

    def own_rows(self) -> list[Any]:
        """The elements, which the caller may change."""
        return self.rows()

    def cut(self, start: int, stop: int) -> "Block":
        """The elements from `start` to `stop`."""
        raise NotImplementedError

    def keep(self, mask: Sequence[Any]) -> "Block":
        """The elements whose entry in `mask` is true."""
        return self.take(np.flatnonzero(np.fromiter(map(bool, mask), bool, len(mask))))

    def take(self, positions: np.ndarray) -> "Block":
        """The elements at these positions."""
        raise NotImplementedError

    def stack(self, empty: trees.Empty | None = None) -> Any:
        """The elements as one batch in new memory, or in arrays from `empty` where that saves a copy."""
        raise NotImplementedError

    def num_bytes(self) -> int:
        """Roughly how much memory the elements take."""
        raise NotImplementedError


class Rows(Block):
    """A list of elements; `owned` if nothing else refers to them."""

    __slots__ = ("items", "owned")

    def __init__(self, items: list[Any], *, owned: bool):
        self.items = items
        self.owned = owned

    def __len__(self) -> int:
        return len(self.items)

    def rows(self) -> list[Any]:
        return self.items

    def own_rows(self) -> list[Any]:
        if not self.owned:
            self.items = trees.make_private(self.items)
            self.owned = True
        return self.items

    def cut(self, start: int, stop: int) -> Block:
        return Rows(self.items[start:stop], owned=self.owned)

    def keep(self, mask: Sequence[Any]) -> Block:
        return Rows(list(compress(self.items, mask)), owned=self.owned)

    def take(self, positions: np.ndarray) -> Block:
        items = self.items
        return Rows([items[i] for i in positions.tolist()], owned=self.owned)

    def stack(self, empty: trees.Empty | None = None) -> Any:
        batch_rows.release_shared_rows(self.items)
        return trees.stack(self.items, empty=empty)

    def num_bytes(self) -> int:
        sample = self.items[:: max(1, len(self.items) // 4)][:4]
        return sum(map(trees.num_bytes, sample)) * len(self.items) // max(1, len(sample))


def _dicts(keys: tuple[Any, ...], columns: tuple[np.ndarray, ...]) -> list[dict[Any, Any]]:
    """A dict for each row; those of few keys are written out, which takes two thirds of the time."""
    match keys:
        case (a,):
            return [{a: x} for x in columns[0]]
        case (a, b):
            return [{a: x, b: y} for x, y in zip(*columns, strict=True)]
        case (a, b, c):
            return [{a: x, b: y, c: z} for x, y, z in zip(*columns, strict=True)]
    return list(map(dict, map(zip, repeat(keys), zip(*columns, strict=True))))


class Columns(Block):
    """One tree whose leaves are arrays with a leading axis of `length`, in memory that only this block uses."""

    __slots__ = ("length", "tree")

    def __init__(self, tree: Any, length: int):
        self.tree = tree
        self.length = length

    def __len__(self) -> int:
        return self.length

    def rows(self) -> list[Any]:
        tree = self.tree
        if type(tree) is np.ndarray:
            return list(tree)
        if type(tree) is dict and all(type(leaf) is np.ndarray for leaf in tree.values()):
            return _dicts(tuple(tree), tuple(tree.values()))
        arrays, spec = trees.flatten(tree)
        return [spec.unflatten(values) for values in zip(*arrays, strict=True)]

    def cut(self, start: int, stop: int) -> Block:
        return Columns(self._map(lambda leaf: leaf[start:stop]), min(stop, self.length) - start)

    def take(self, positions: np.ndarray) -> Block:
        return Columns(self._map(lambda leaf: leaf.take(positions, axis=0)), len(positions))

    def stack(self, empty: trees.Empty | None = None) -> Any:
        return trees.stack_columns(self.tree)

    def as_batch(self) -> Any:
        """The columns with the dtypes that stacking gives them; objects and strings stay as they are."""
        return self._map(trees.with_stacked_dtype)

    def num_bytes(self) -> int:
        return trees.num_bytes(self.tree)

    def _map(self, fn: Any) -> Any:
        tree = self.tree
        if type(tree) is np.ndarray:
            return fn(tree)
        return trees.tree_map(fn, tree)


class Ints(Block):
    """Plain ints, as a range or an int64 array; the array may be shared, so users never receive it."""

    __slots__ = ("values",)

    def __init__(self, values: Indices):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> list[Any]:
        values = self.values
        return list(values) if isinstance(values, range) else values.tolist()

    def cut(self, start: int, stop: int) -> Block:
        return Ints(self.values[start:stop])

    def take(self, positions: np.ndarray) -> Block:
        return Ints(as_array(self.values)[positions])

    def stack(self, empty: trees.Empty | None = None) -> Any:
        return np.array(as_array(self.values))

    def num_bytes(self) -> int:
        return 32 * len(self.values)


def concat(blocks: Sequence[Block]) -> Block:
    """Blocks one after the other."""
    blocks = [block for block in blocks if len(block)] or list(blocks[:1])
    if len(blocks) == 1:
        return blocks[0]
    if all(type(block) is Ints for block in blocks):
        return Ints(np.concatenate([as_array(block.values) for block in blocks]))  # type: ignore[attr-defined]
    if _same_columns(blocks):
        tree = trees.tree_map(lambda *leaves: trees.join(leaves), *(block.tree for block in blocks))  # type: ignore[attr-defined]
        return Columns(tree, sum(map(len, blocks)))
    return Rows(list(chain.from_iterable(block.rows() for block in blocks)), owned=_all_owned(blocks))


def by_part(which: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """For each part that occurs, in order, the places where it does."""
    if len(which) == 1:
        return [(int(which[0]), np.zeros(1, np.intp))]
    if not len(which):
        return []
    order = np.argsort(which, kind="stable")
    found = which[order]
    cuts = (np.flatnonzero(found[1:] != found[:-1]) + 1).tolist()
    starts = [0, *cuts]
    return [(i, order[a:b]) for i, a, b in zip(found[starts].tolist(), starts, [*cuts, len(found)], strict=True)]


def interleave(blocks: Sequence[Block], places: Sequence[np.ndarray]) -> Block:
    """Merges blocks: the elements of `blocks[i]` go to `places[i]`, in order."""
    order = np.concatenate(places)
    if all(type(block) is Ints for block in blocks):
        out = np.empty(len(order), np.int64)
        out[order] = np.concatenate([as_array(block.values) for block in blocks])  # type: ignore[attr-defined]
        return Ints(out)
    gather = np.empty(len(order), np.int64)
    gather[order] = np.arange(len(order))
    return concat(blocks).take(gather)


def _all_owned(blocks: Sequence[Block]) -> bool:
    return all(not isinstance(block, Rows) or block.owned for block in blocks)


def _same_columns(blocks: Sequence[Block]) -> bool:
    """Whether all blocks are columns of one structure, with one dtype and shape for each leaf."""
    if not all(type(block) is Columns for block in blocks):
        return False
    kinds = []
    for block in blocks:
        leaves, spec = trees.flatten(block.tree)  # type: ignore[attr-defined]
        kinds.append((spec, [(leaf.dtype, leaf.shape[1:]) for leaf in leaves]))
    return all(kind == kinds[0] for kind in kinds)
