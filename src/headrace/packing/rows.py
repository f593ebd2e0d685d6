"""Writes packed rows, many at once: values, segment ids and positions."""

import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError, StructureError
from headrace.packing.layout import Layout, Leaf

Column = list[np.ndarray]


class Written(NamedTuple):
    """One leaf of some rows: arrays with a leading axis of rows."""

    values: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray


def columns_of(layout: Layout, elements: Sequence[Any]) -> list[Column]:
    """The leaves of elements, each as a list of arrays with a length."""
    if layout.is_flat:
        with contextlib.suppress(KeyError, TypeError, IndexError):  # `take_apart` tells which element fails
            return [_as_arrays([element[key] for element in elements]) for key in layout.keys]
    return [_as_arrays(column) for column in zip(*map(layout.take_apart, elements), strict=True)]


def _as_arrays(column: Sequence[Any]) -> Column:
    if set(map(type, column)) == {np.ndarray} and min(map(attrgetter("ndim"), column)):
        return list(column)
    return [np.atleast_1d(np.asarray(value)) for value in column]


def write(leaf: Leaf, segments: Column, sizes: np.ndarray) -> Written:
    """Rows of one leaf from the arrays of their segments; row `k` has `sizes[k]` segments."""
    lengths = np.fromiter(map(len, segments), np.int64, len(segments))
    gaps = _gaps(leaf, lengths, sizes)
    return Written(_values(leaf, segments, gaps, len(sizes)), *marks(leaf, lengths, sizes, gaps))


def write_end_to_end(leaf: Leaf, sequences: Column, lengths: np.ndarray, sizes: np.ndarray) -> Written:
    """Rows of concatenated sequences, which the ends of rows cut into segments of these lengths."""
    gaps = np.zeros(len(lengths), np.int64)
    gaps[-1] = len(sizes) * leaf.length - lengths.sum()
    values = _values(leaf, sequences, np.append(np.zeros(len(sequences) - 1, np.int64), gaps[-1]), len(sizes))
    return Written(values, *marks(leaf, lengths, sizes, gaps))


def _gaps(leaf: Leaf, lengths: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How much padding follows each segment; none comes before the first, since the first row is not empty."""
    steps = lengths if leaf.alignment == 1 else -(-lengths // leaf.alignment) * leaf.alignment
    before = np.cumsum(steps) - steps
    rows = np.flatnonzero(sizes)
    first = (np.cumsum(sizes) - sizes)[rows]  # segments
    starts = before + np.repeat(rows * leaf.length - before[first], sizes[rows])
    return np.append(starts[1:], len(sizes) * leaf.length) - (starts + lengths)


def marks(leaf: Leaf, lengths: np.ndarray, sizes: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The segment ids and positions of rows."""
    shape = (len(sizes), leaf.length)
    spans = np.stack([lengths, gaps], axis=1).ravel()
    ids = np.zeros(len(spans), np.int32)
    ids[::2] = np.arange(1, len(lengths) + 1) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    segment_ids = np.repeat(ids, spans).reshape(shape)
    count, zeros = np.arange(lengths.max(initial=0), dtype=np.int32), np.zeros(gaps.max(initial=0), np.int32)
    positions = np.empty(shape, np.int32)
    np.concatenate(_in_turn([count[:n] for n in lengths.tolist()], zeros, gaps), out=positions.reshape(-1))
    return segment_ids, positions


def _in_turn(segments: Column, padding: np.ndarray, gaps: np.ndarray) -> Column:
    """Arrays, each followed by its padding."""
    found: list[np.ndarray] = []
    done = 0
    for i in np.flatnonzero(gaps).tolist():
        found += segments[done : i + 1]
        found.append(padding[: gaps[i]])
        done = i + 1
    return found + segments[done:]


def _values(leaf: Leaf, segments: Column, gaps: np.ndarray, num_rows: int) -> np.ndarray:
    dtype, tail = kind_of(leaf, segments)
    padding = np.zeros((gaps.max(), *tail), dtype)
    if leaf.padding is not None:
        _pad_with(leaf, padding)
    values = np.empty((num_rows, leaf.length, *tail), dtype)
    parts = _in_turn(segments, padding, gaps)
    np.concatenate(parts, out=values.reshape(num_rows * leaf.length, *tail), casting="same_kind")
    return values


def _pad_with(leaf: Leaf, padding: np.ndarray) -> None:
    try:
        padding[...] = leaf.padding
        lost = padding.dtype.kind in "biu" and not (padding == leaf.padding).all()
    except (OverflowError, TypeError, ValueError):
        lost = True
    if lost:
        raise PipelineError(
            f"padding_struct has {leaf.padding!r} for the feature {leaf.name!r}, but {padding.dtype} with further axes "
            f"{padding.shape[1:]} cannot hold it. Choose another value."
        )


def kind_of(leaf: Leaf, segments: Column) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and further axes of a leaf's rows; the dtype holds all segments, and is of the first one's kind."""
    first, kinds = segments[0], kinds_of(segments)
    for dtype, tail in kinds:
        if tail != first.shape[1:] or not np.can_cast(dtype, first.dtype, "same_kind"):
            raise StructureError(
                f"Cannot pack sequences of different kinds into one set of rows: the feature {leaf.name!r} has "
                f"{first.dtype} with further axes {first.shape[1:]} in one, and {dtype} with {tail} in another. "
                "Give them one dtype and shape in a `map` before."
            )
    return np.result_type(*(dtype for dtype, _ in kinds)), first.shape[1:]


def kinds_of(column: Column) -> set[tuple[np.dtype, tuple[int, ...]]]:
    """The dtypes and further axes of arrays."""
    dtypes = set(map(attrgetter("dtype"), column))
    if len(dtypes) == 1 and set(map(attrgetter("ndim"), column)) == {1}:
        return {(dtypes.pop(), ())}
    return {(array.dtype, array.shape[1:]) for array in column}
