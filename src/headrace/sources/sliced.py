"""Some elements of a source, as a source that is read as fast as the whole."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace.storage.indices import BlockSource, Parts, checked_index, checked_indices

_DESCRIBING = ("class_names", "element_spec", "features", "paths")
_OF_ONE = ("__where__", "describe_place")  # methods that take an index
_OF_MANY = ("__getcolumns__", "__getbatch__", "read_block")  # methods that take many


class SlicedSource(BlockSource[Any]):
    """The elements of a source in some ranges of its indices, one range after the other.

    It has what the source has: columns, the spec, the names of classes, the places of elements in files.

    Args:
        source: A source.
        ranges: The first index of each range, and the one after the last.
        split: What the ranges mean, which identifies them beside the source.
    """

    def __init__(self, source: Any, ranges: Sequence[tuple[int, int]], split: str):
        self._source = source
        self._split = split
        self._parts = Parts(stop - start for start, stop in ranges)
        self._starts = np.array([start for start, _ in ranges], np.int64)

    def __len__(self) -> int:
        return self._parts.length

    def __getitem__(self, index: int) -> Any:
        return self._source[self._row(checked_index(index, len(self), "elements"))]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The elements at these indices."""
        rows = self._rows(checked_indices(indices, len(self), "elements")).tolist()
        if not hasattr(self._source, "__getitems__"):
            return [self._source[row] for row in rows]
        return self._source.__getitems__(rows)

    def __getattr__(self, name: str) -> Any:
        if name in _DESCRIBING:
            return getattr(self._source, name)
        if name in _OF_ONE:
            return partial(self._call, getattr(self._source, name), self._row)
        if name in _OF_MANY:
            return partial(self._call, getattr(self._source, name), self._rows)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}", name=name, obj=self)

    @staticmethod
    def _call(method: Any, rows: Any, indices: Any) -> Any:
        return method(rows(indices))

    def _row(self, index: int) -> int:
        """The index in the source."""
        number, place = self._parts.find(index)
        return place + int(self._starts[number])

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        numbers, places = self._parts.find_all(indices)
        return places + self._starts[numbers]

    def close(self) -> None:
        if hasattr(self._source, "close"):
            self._source.close()

    def __repr__(self) -> str:
        return f"SlicedSource({self._source!r}, split={self._split!r}, length={len(self)})"

    def name_in_states(self) -> str:
        """What identifies the source in states of a `DataLoader`."""
        named = getattr(self._source, "name_in_states", self._source.__repr__)()
        return f"SlicedSource({named}, split={self._split!r}, length={len(self)})"
