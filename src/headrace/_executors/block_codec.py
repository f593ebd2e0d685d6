"""How a block travels from one process to another: rows of one kind go as columns, and come out as rows again."""

from typing import Any, Protocol

import numpy as np

from headrace._plan.blocks import Block, Rows
from headrace._utils import trees

STACKED_BYTES = 1 << 14  # larger arrays are laid out one by one, each aligned
LONGEST_TUPLE = 16  # longer lists and tuples are not taken apart
_PLAIN = {int, float, bool, complex, str, bytes, type(None)}


class Memory(Protocol):
    """Where the arrays of a packed block are made."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array to be filled by the caller."""
        ...

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array was made here."""
        ...


class Heap:
    """Memory of this process: for results that are pickled whole."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def holds(self, array: np.ndarray) -> bool:
        return False


def pack(block: Block, memory: Memory) -> Any:
    """A block as something to pickle; a block of rows is taken apart."""
    return _pack(block.items, memory, owned=block.owned) if isinstance(block, Rows) else block


def unpack(packed: Any) -> Block:
    """The block again, the caller's own."""
    return packed if isinstance(packed, Block) else Rows(_unpack(packed), owned=True)


def _pack(rows: list[Any], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is np.ndarray:
        return _pack_arrays(rows, memory, owned=owned)
    if kind is dict:
        keys = tuple(rows[0])
        if keys and set(map(type, keys)) == {str} and all(tuple(row) == keys for row in rows):
            columns = [[row[key] for row in rows] for key in keys]
            if not _has_twice(columns):
                return dict, keys, [_pack(column, memory, owned=owned) for column in columns]
    elif kind in (tuple, list) and 0 < len(rows[0]) <= LONGEST_TUPLE and len(set(map(len, rows))) == 1:
        columns = [list(column) for column in zip(*rows, strict=True)]
        if not _has_twice(columns):
            return kind, None, [_pack(column, memory, owned=owned) for column in columns]
    elif kind is not None and trees.is_plain_number(kind) and len(rows) > 1:
        stacked = np.array(rows)
        if stacked.dtype.type is kind:
            return np.ndarray, None, stacked
    return None, None, rows if owned else [trees.copy_tree(row) for row in rows]


def _has_twice(columns: list[list[Any]]) -> bool:
    """Whether a row has one object in two places: then it must come out as one, and is not taken apart."""
    whole = [column for column in columns if type(column[0]) not in _PLAIN]
    return len(whole) > 1 and any(len(set(map(id, row))) < len(row) for row in zip(*whole, strict=True))


def _pack_arrays(rows: list[np.ndarray], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    first = rows[0]
    if first.dtype.hasobject:
        return None, None, rows if owned else [trees.copy_tree(row) for row in rows]
    is_small = 0 < first.nbytes < STACKED_BYTES and not memory.holds(first)
    if len(rows) > 1 and is_small and all(_like(row, first) for row in rows):
        stacked = memory.empty((len(rows), *first.shape), first.dtype)
        np.concatenate(rows, out=stacked.reshape(-1, *first.shape[1:]))
        return np.ndarray, None, stacked
    # A view is an object of its own: an array that is there twice comes out as two.
    return None, None, [row if memory.holds(row) else row.view() for row in rows]


def _like(row: np.ndarray, first: np.ndarray) -> bool:
    return row.ndim > 0 and row.shape == first.shape and row.dtype == first.dtype and row.flags.c_contiguous


def _unpack(packed: tuple[Any, ...]) -> list[Any]:
    kind, keys, content = packed
    if kind is None:
        return content
    if kind is np.ndarray:
        return list(content)
    columns = zip(*map(_unpack, content), strict=True)
    if kind is dict:
        return [dict(zip(keys, values, strict=True)) for values in columns]
    return [kind(values) for values in columns]
