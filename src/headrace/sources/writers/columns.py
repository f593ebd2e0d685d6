"""Values as columns of a table."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def arrow_array(arrow: Any, values: list[Any]) -> Any:
    """Values as a pyarrow array: arrays as lists of their dtype, dicts as structs."""
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return arrow.StructArray.from_arrays([arrow_array(arrow, [v[k] for v in values]) for k in first], list(first))
    if isinstance(first, np.generic) and all(type(v) is type(first) for v in values):
        return arrow.array(np.array(values, first.dtype if first.dtype.kind not in "SU" else object))
    arrays = [v for v in values if v is not None]
    if not arrays or not all(_is_like(v, arrays[0]) for v in arrays):
        return arrow.array([v.tolist() if isinstance(v, np.ndarray) else v for v in values])
    if len(arrays) == len(values):
        return _lists(arrow, arrays, arrays[0].dtype, arrays[0].ndim)
    kind = arrow.from_numpy_dtype(arrays[0].dtype)
    for _ in range(arrays[0].ndim):
        kind = arrow.list_(kind)
    return arrow.array([None if v is None else v.tolist() for v in values], kind)


def _is_like(value: Any, first: Any) -> bool:
    """Whether values are arrays of numbers that go into one column of lists."""
    if not isinstance(first, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    return first.dtype.kind in "iufb" and first.ndim > 0 and (value.dtype, value.ndim) == (first.dtype, first.ndim)


def _lists(arrow: Any, arrays: list[np.ndarray], dtype: np.dtype, ndim: int) -> Any:
    """Arrays of one dtype and number of axes as lists, lists of lists, and so on."""
    if ndim == 1:
        inner = arrow.array(np.concatenate([np.empty(0, dtype), *arrays]))
    elif len({array.shape for array in arrays}) == 1:
        stacked = np.concatenate(arrays)
        inner = _lists(arrow, [stacked.reshape(-1, *stacked.shape[2:])], dtype, ndim - 1).flatten()
        inner = arrow.ListArray.from_arrays(_offsets(arrow, [stacked.shape[1]] * len(stacked)), inner)
    else:
        inner = _lists(arrow, [part for array in arrays for part in array], dtype, ndim - 1)
    return arrow.ListArray.from_arrays(_offsets(arrow, [len(array) for array in arrays]), inner)


def _offsets(arrow: Any, lengths: list[int]) -> Any:
    return arrow.array(np.cumsum([0, *lengths], dtype=np.int32))
