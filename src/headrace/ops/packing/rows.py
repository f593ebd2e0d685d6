"""Writes packed rows, many at once: values, segment ids and positions."""

import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError, StructureError
from headrace.ops.packing.layout import Layout, RowArray

Column = list[np.ndarray]
Kind = tuple[np.dtype, tuple[int, ...]]
"""The dtype and further axes of an array."""
_NDIM = attrgetter("ndim")
_DTYPE = attrgetter("dtype")


class Written(NamedTuple):
    """One leaf of some rows: arrays with a leading axis of rows."""

    values: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray


def columns_of(layout: Layout, elements: Sequence[Any]) -> list[tuple[Column, set[Kind]]]:
    """The leaves of elements, each as a list of arrays with a length, and their kinds."""
    if layout.is_flat:
        with contextlib.suppress(KeyError, TypeError, IndexError):  # `split_leaves` names the element that fails
            return [_as_arrays([element[key] for element in elements]) for key in layout.keys]
    return [_as_arrays(list(column)) for column in zip(*map(layout.split_leaves, elements), strict=True)]


def _as_arrays(column: list[Any]) -> tuple[Column, set[Kind]]:
    if set(map(type, column)) == {np.ndarray}:
        kinds = kinds_of(column)
        if kinds is not None:
            return column, kinds
    arrays = [np.atleast_1d(np.asarray(value)) for value in column]
    return arrays, kinds_of(arrays) or set()


def write(leaf: RowArray, segments: Column, sizes: np.ndarray, kinds: set[Kind] | None = None) -> Written:
    """Rows of one leaf from the arrays of their segments; row `k` has `sizes[k]` segments.

    `kinds` are those of the segments, if they are known.
    """
    lengths = np.fromiter(map(len, segments), np.int64, len(segments))
    gaps = _gaps(leaf, lengths, sizes)
    return Written(_values(leaf, segments, gaps, len(sizes), kinds), *marks(leaf, lengths, sizes, gaps))


def write_end_to_end(
    leaf: RowArray, sequences: Column, lengths: np.ndarray, sizes: np.ndarray, kinds: set[Kind]
) -> Written:
    """Rows of concatenated sequences, which the ends of rows cut into segments of these lengths."""
    gaps = np.zeros(len(lengths), np.int64)
    gaps[-1] = len(sizes) * leaf.length - lengths.sum()
    ends = np.append(np.zeros(len(sequences) - 1, np.int64), gaps[-1])
    return Written(_values(leaf, sequences, ends, len(sizes), kinds), *marks(leaf, lengths, sizes, gaps))


def _gaps(leaf: RowArray, lengths: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How much padding follows each segment; none comes before the first, since the first row is not empty."""
    steps = lengths if leaf.alignment == 1 else -(-lengths // leaf.alignment) * leaf.alignment
    before = np.cumsum(steps) - steps
    rows = np.flatnonzero(sizes)
    first = (np.cumsum(sizes) - sizes)[rows]  # segments
    starts = before + np.repeat(rows * leaf.length - before[first], sizes[rows])
    return np.append(starts[1:], len(sizes) * leaf.length) - (starts + lengths)


def marks(leaf: RowArray, lengths: np.ndarray, sizes: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The segment ids and positions of rows."""
    shape = (len(sizes), leaf.length)
    starts = np.cumsum(lengths) - lengths
    has_gaps = bool(gaps.any())
    if has_gaps:
        starts += np.cumsum(gaps) - gaps
    ids = np.arange(1, len(lengths) + 1, dtype=np.int32)
    ids -= np.repeat((np.cumsum(sizes) - sizes).astype(np.int32), sizes)
    offsets = (starts % leaf.length).astype(np.int32)  # in their rows
    if has_gaps:
        ids, offsets, lengths = (_with_gaps(each, other) for each, other in ((ids, 0), (offsets, 0), (lengths, gaps)))
    segment_ids = np.repeat(ids, lengths).reshape(shape)
    positions = np.repeat(offsets, lengths).reshape(shape)
    np.subtract(np.arange(leaf.length, dtype=np.int32), positions, out=positions)
    if has_gaps:
        positions *= segment_ids != 0
    return segment_ids, positions


def _with_gaps(of_segments: np.ndarray, of_gaps: Any) -> np.ndarray:
    """Numbers of segments, each followed by that of the gap after it."""
    both = np.empty(2 * len(of_segments), of_segments.dtype)
    both[::2], both[1::2] = of_segments, of_gaps
    return both


def _in_turn(segments: Column, padding: np.ndarray, gaps: np.ndarray) -> Column:
    """Arrays, each followed by its padding."""
    found: list[np.ndarray] = []
    done = 0
    for i in np.flatnonzero(gaps).tolist():
        found += segments[done : i + 1]
        found.append(padding[: gaps[i]])
        done = i + 1
    return found + segments[done:]


def _values(
    leaf: RowArray, segments: Column, gaps: np.ndarray, num_rows: int, kinds: set[Kind] | None = None
) -> np.ndarray:
    dtype, tail = kind_of(leaf, segments, kinds or kinds_of(segments) or set())
    padding = np.zeros((gaps.max(), *tail), dtype)
    if leaf.padding is not None:
        _pad_with(leaf, padding)
    values = np.empty((num_rows, leaf.length, *tail), dtype)
    parts = _in_turn(segments, padding, gaps)
    np.concatenate(parts, out=values.reshape(num_rows * leaf.length, *tail), casting="same_kind")
    return values


def _pad_with(leaf: RowArray, padding: np.ndarray) -> None:
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


def kind_of(leaf: RowArray, segments: Column, kinds: set[Kind]) -> Kind:
    """The dtype and further axes of a leaf's rows; the dtype holds all segments, and is of the first one's kind."""
    first = segments[0]
    for dtype, tail in kinds:
        if tail != first.shape[1:] or not np.can_cast(dtype, first.dtype, "same_kind"):
            raise StructureError(
                f"Cannot pack sequences of different kinds into one set of rows: the feature {leaf.name!r} has "
                f"{first.dtype} with further axes {first.shape[1:]} in one, and {dtype} with {tail} in another. Give "
                "them one dtype and shape in an earlier `map`."
            )
    return np.result_type(*(dtype for dtype, _ in kinds)), first.shape[1:]


def kinds_of(column: Column) -> set[Kind] | None:
    """The dtypes and further axes of arrays; `None` if some have no axes at all."""
    axes = set(map(_NDIM, column))
    dtypes = list(map(_DTYPE, column))
    if 0 in axes:
        return None
    if axes == {1} and dtypes.count(dtypes[0]) == len(dtypes):
        return {(dtypes[0], ())}
    return {(array.dtype, array.shape[1:]) for array in column}
