"""Arrays in memory as a source: element `i` is row `i` of every array."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace._utils import trees
from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import PipelineError


class ArrayDataSource:
    """Rows of an array, or of a tree of arrays with the same length.

    >>> source = ArrayDataSource({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)})
    >>> len(source), source[1]
    (3, {'x': array([2, 3]), 'y': np.int64(1)})
    """

    def __init__(self, arrays: Any):
        named = trees.named_leaves(arrays)
        if not named:
            raise PipelineError("An array source needs at least one array; got none.")
        for name, array in named:
            if np.ndim(array) == 0:
                raise PipelineError(f"Array {name or 'given'} has no axis to take elements from: it is 0-d.")
        lengths = {name: len(array) for name, array in named}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise PipelineError(
                f"Arrays of one source must have the same length; got {listed}. "
                "Cut them to one length, or make them separate datasets and zip them."
            )
        self._arrays = trees.tree_map(np.asarray, arrays)
        self._length = next(iter(lengths.values()))
        self._plain = _plain_takes(self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_plain": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._plain = _plain_takes(self._arrays)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return trees.tree_map(lambda array: trees.copy_tree(array[index]), self._arrays)

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, all in `0..len - 1`, as new columns."""
        if self._plain is not None:
            return {key: take(indices, 0, None, "clip") for key, take in self._plain}
        return _take(self._arrays, indices)

    def columns_in(self, indices: np.ndarray, empty: trees.Empty) -> Any:
        """The rows at `indices`, as columns in arrays that `empty` makes; for arrays without objects."""

        def column(array: np.ndarray) -> np.ndarray:
            rows = empty((len(indices), *array.shape[1:]), array.dtype)
            array.take(indices, 0, rows, "clip")
            return rows

        return trees.tree_map(column, self._arrays)

    @property
    def element_spec(self) -> Any:
        return trees.tree_map(lambda a: ShapeDtypeStruct(a.shape[1:], a.dtype), self._arrays)

    def __repr__(self) -> str:
        specs = ", ".join(
            f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in trees.named_leaves(self.element_spec)
        )
        return f"ArrayDataSource(length={self._length}, {specs.removeprefix(': ')})"


def _plain_takes(arrays: Any) -> list[tuple[Any, Any]] | None:
    """The `take` of each array, for the simplest case: a flat dict of numbers."""
    if type(arrays) is not dict or not all(type(a) is np.ndarray and not a.dtype.hasobject for a in arrays.values()):
        return None
    return [(key, array.take) for key, array in arrays.items()]


def _take(arrays: Any, indices: np.ndarray) -> Any:
    if type(arrays) is np.ndarray:
        # The indices are in range, and clipping is cheaper than checking.
        rows = arrays.take(indices, 0, None, "clip")
        return trees.copy_tree(rows) if rows.dtype.hasobject else rows
    if type(arrays) is dict:
        return {key: _take(array, indices) for key, array in arrays.items()}
    return trees.tree_map(lambda array: _take(array, indices), arrays)


def is_array_like(value: Any) -> bool:
    """Whether `MapDataset.source` reads `value` as arrays: an array, or a mapping with only arrays as leaves."""
    if not isinstance(value, Mapping):
        return isinstance(value, np.ndarray)
    return bool(value) and all(isinstance(leaf, np.ndarray) for leaf in trees.leaves(value))
