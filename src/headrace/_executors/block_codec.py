"""How a block travels from one process to another: rows of one kind travel as columns and arrive as rows again."""

from typing import Any, Protocol

import numpy as np

from headrace._plan.blocks import Block, Rows
from headrace._utils import trees

STACKED_BYTES = 1 << 14  # larger arrays are copied one by one, each to an aligned place
LONGEST_TUPLE = 16  # longer lists and tuples are not split into columns
_PLAIN = {int, float, bool, complex, str, bytes, type(None)}


class Memory(Protocol):
    """Makes the arrays of an encoded block."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array for the caller to fill."""
        ...

    def holds(self, array: np.ndarray) -> bool:
        """Whether `empty` made this array."""
        ...


class Heap:
    """Memory of this process, for results that are pickled whole."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def holds(self, array: np.ndarray) -> bool:
        return False


def encode(block: Block, memory: Memory) -> Any:
    """A block in a form to pickle; rows are split into columns where possible."""
    return _encode(block.items, memory, owned=block.owned) if isinstance(block, Rows) else block


def decode(encoded: Any) -> Block:
    """The block again; only the caller refers to its elements."""
    return encoded if isinstance(encoded, Block) else Rows(_decode(encoded), owned=True)


def _encode(rows: list[Any], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is np.ndarray:
        return _encode_arrays(rows, memory, owned=owned)
    if kind is dict:
        keys = tuple(rows[0])
        if keys and set(map(type, keys)) == {str} and all(tuple(row) == keys for row in rows):
            columns = [[row[key] for row in rows] for key in keys]
            if not _has_twice(columns):
                return dict, keys, [_encode(column, memory, owned=owned) for column in columns]
    elif kind in (tuple, list) and 0 < len(rows[0]) <= LONGEST_TUPLE and len(set(map(len, rows))) == 1:
        columns = [list(column) for column in zip(*rows, strict=True)]
        if not _has_twice(columns):
            return kind, None, [_encode(column, memory, owned=owned) for column in columns]
    elif kind is not None and trees.is_plain_number(kind) and len(rows) > 1:
        stacked = np.array(rows)
        if stacked.dtype.type is kind:
            return np.ndarray, None, stacked
    return None, None, rows if owned else [trees.copy_tree(row) for row in rows]


def _has_twice(columns: list[list[Any]]) -> bool:
    """Whether a row contains one object twice; it must arrive as one object, so the row is not split."""
    whole = [column for column in columns if type(column[0]) not in _PLAIN]
    return len(whole) > 1 and any(len(set(map(id, row))) < len(row) for row in zip(*whole, strict=True))


def _encode_arrays(rows: list[np.ndarray], memory: Memory, *, owned: bool) -> tuple[Any, ...]:
    first = rows[0]
    if first.dtype.hasobject:
        return None, None, rows if owned else [trees.copy_tree(row) for row in rows]
    is_small = 0 < first.nbytes < STACKED_BYTES and not memory.holds(first)
    if len(rows) > 1 and is_small and all(_like(row, first) for row in rows):
        stacked = memory.empty((len(rows), *first.shape), first.dtype)
        np.concatenate(rows, out=stacked.reshape(-1, *first.shape[1:]))
        return np.ndarray, None, stacked
    # A view is a new object: an array that occurs twice arrives as two.
    return None, None, [row if memory.holds(row) else row.view() for row in rows]


def _like(row: np.ndarray, first: np.ndarray) -> bool:
    return row.ndim > 0 and row.shape == first.shape and row.dtype == first.dtype and row.flags.c_contiguous


def _decode(encoded: tuple[Any, ...]) -> list[Any]:
    kind, keys, content = encoded
    if kind is None:
        return content
    if kind is np.ndarray:
        return list(content)
    columns = zip(*map(_decode, content), strict=True)
    if kind is dict:
        return [dict(zip(keys, values, strict=True)) for values in columns]
    return [kind(values) for values in columns]
