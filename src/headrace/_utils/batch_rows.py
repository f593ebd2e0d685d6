"""Rows of the batch that is being made: what is written there need not be copied when the elements are stacked.

Whoever makes large arrays, one for each element, asks `new_row` for memory. If the elements of one batch are computed
together, that is a row of the batch itself.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_making = threading.local()


class BatchRows:
    """The rows of one array of a batch, given out in order."""

    def __init__(self, count: int, empty: Callable[[tuple[int, ...], np.dtype], np.ndarray]):
        self._count, self._empty = count, empty
        self._array: np.ndarray | None = None
        self._given: list[np.ndarray] = []

    def next(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The next row, or other memory if there is none like it."""
        if self._array is None:
            self._array = self._empty((self._count, *shape), dtype)
        if len(self._given) == self._count or (self._array.shape[1:], self._array.dtype) != (shape, dtype):
            return np.empty(shape, dtype)
        self._given.append(self._array[len(self._given)])
        return self._given[-1]

    def look_at(self, elements: Sequence[Any]) -> None:
        """Gives up rows that somebody may have who has an element, and those in containers of containers."""
        if not self._given or type(elements[0]) is np.ndarray:
            return
        if not _is_flat(elements[0]) or _most_references(elements) > _REFERENCES:
            self._given = []

    def whole(self, rows: Sequence[Any], holders: int) -> np.ndarray | None:
        """The array, if `rows` are its rows and nobody has them but this object and so many others."""
        if len(rows) != self._count or len(self._given) != self._count or self._given[0] is not rows[0]:
            return None
        if any(row is not given for row, given in zip(rows, self._given, strict=True)):
            return None
        return self._array if _most_references(rows) <= _REFERENCES + holders else None


def _is_flat(element: Any) -> bool:
    kind = type(element)
    children = element.values() if kind is dict else element if kind in (tuple, list) else [()]
    return not any(isinstance(child, list | tuple | Mapping) for child in children)


def _most_references(rows: Sequence[Any]) -> int:
    most = 0
    for i in range(len(rows)):
        row = rows[i]
        most = max(most, sys.getrefcount(row))
    return most


_REFERENCES = _most_references([np.empty(1)])
"""Those to a row that only a list holds, which is here that of `BatchRows`."""


@contextlib.contextmanager
def making_batch(count: int, empty: Any) -> Iterator[None]:
    """Inside, `new_row` gives out rows of a batch of `count`, in an array that `empty` makes."""
    before = getattr(_making, "rows", None)
    _making.rows = BatchRows(count, empty or np.empty)
    try:
        yield
    finally:
        _making.rows = before


def new_row(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Memory for the array of one element; its contents are undefined."""
    rows = getattr(_making, "rows", None)
    return np.empty(shape, dtype) if rows is None else rows.next(tuple(shape), np.dtype(dtype))


def look_at(elements: Sequence[Any]) -> None:
    """To be called with the elements of a batch before they are stacked."""
    found = getattr(_making, "rows", None)
    if found is not None:
        found.look_at(elements)


def stacked(rows: Sequence[Any], holders: int) -> np.ndarray | None:
    """The batch that is being made, if these are its rows and only `holders` objects have them."""
    found = getattr(_making, "rows", None)
    return None if found is None else found.whole(rows, holders)
