"""Pads elements of different lengths to one shape, and stacks them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import PipelineError, StructureError
from headrace.trees import ShapeDtypeStruct


def pad(elements: Sequence[Any], pad_value: Any = 0, length: int | None = None) -> Any:
    """Elements padded at the end of every axis to the longest, the first axis to `length`, and stacked.

    >>> pad([np.array([1, 2]), np.array([3])])
    array([[1, 2],
           [3, 0]])
    """
    if all(element is None for element in elements):
        raise PipelineError(
            f"A batch received {len(elements)} elements that are all None: is a `return` missing in the function of an "
            "earlier `map`?"
        )
    leaves, spec = trees.flatten(elements[0])
    try:
        columns = zip(*(trees.flatten_up_to(spec, element) for element in elements), strict=True)
    except ValueError as e:
        fix = " Convert lists of numbers to arrays in a `map` before the batch." if "list arity" in str(e) else ""
        raise StructureError(f"A batch needs elements of the same structure: {e}{fix}") from e
    values = trees.broadcast(_by_feature(pad_value, elements[0]), elements[0]) if leaves else []
    return spec.unflatten([_pad_leaf(column, value, length) for column, value in zip(columns, values, strict=True)])


def _by_feature(values: Any, element: Any) -> Any:
    """The padding as a prefix of the element's tree; features without a value have 0."""
    if not isinstance(values, Mapping):
        return values
    is_mapping = isinstance(element, Mapping)
    if not is_mapping or not values.keys() <= element.keys():
        found = f"the features {sorted(map(str, element))}" if is_mapping else type(element).__name__
        raise PipelineError(
            f"pad_value has values for {sorted(map(str, values))}, but elements have {found}. "
            "Name features that elements have, or give one value for all."
        )
    return {key: values.get(key, 0) for key in element}


def _pad_leaf(column: Sequence[Any], value: Any, length: int | None) -> np.ndarray:
    """Arrays of one rank, each padded at the end of every axis to the longest (the first axis to `length`)."""
    arrays = [np.asarray(leaf) for leaf in column]
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise StructureError(f"Cannot pad arrays of different rank into one batch; got ranks {sorted(ranks)}.")
    shape = [max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True)]
    if length is not None and shape:
        if shape[0] > length:
            raise StructureError(
                f"An element of length {shape[0]} is longer than its bucket's boundary {length}. Raise the "
                "boundary, or shorten the element in a `map`."
            )
        shape[0] = length
    if not shape:
        return np.stack(arrays)
    out = np.full((len(arrays), *shape), value, np.result_type(*arrays))
    for row, array in zip(out, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return out


def padded_spec(spec: Any, num_rows: int | None) -> Any:
    """The spec of padded batches, whose lengths are not known."""
    return trees.tree_map(lambda leaf: stacked_leaf((num_rows, *(None for _ in leaf.shape)), leaf), spec)


def stacked_leaf(shape: tuple[int | None, ...], leaf: Any) -> ShapeDtypeStruct:
    """A leaf of this shape, with the dtype that stacking gives it."""
    dtype = trees.stacked_dtype(leaf.dtype) if isinstance(leaf.dtype, np.dtype) else leaf.dtype
    return ShapeDtypeStruct(shape, dtype)
