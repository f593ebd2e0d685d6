"""Single values as NumPy's: what the features have decoded, or what a value says of itself."""

from collections.abc import Callable
from typing import Any

import numpy as np

Convert = Callable[[Any], Any]


def conversion(feature: Any) -> Convert:
    """How a value that the features have decoded becomes one of NumPy's."""
    if isinstance(feature, dict):
        inner = {name: conversion(one) for name, one in feature.items()}
        return lambda value: value and {name: inner.get(name, by_value)(one) for name, one in value.items()}
    dtype = _number_dtype(_innermost(feature))
    if dtype is not None and (hasattr(feature, "shape") or _inside(feature) is not None):  # Array2D, or a list
        return lambda value: value if value is None else _as_array(value, dtype)
    if dtype is not None:
        return lambda value: value if value is None else dtype.type(value)
    if _inside(feature) is not None:
        convert = conversion(_inside(feature))
        return lambda value: value and list(map(convert, value))
    return by_value


def _inside(feature: Any) -> Any:
    """The feature of a list's items; `None` where it is no list."""
    return feature[0] if isinstance(feature, list | tuple) else getattr(feature, "feature", None)


def _innermost(feature: Any) -> Any:
    while _inside(feature) is not None:
        feature = _inside(feature)
    return feature


def _number_dtype(feature: Any) -> np.dtype | None:
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or object)
    except (TypeError, ValueError):  # a type that only Arrow has
        return None
    return dtype if dtype.kind in "biuf" else None


def _as_array(value: Any, dtype: np.dtype | None) -> Any:
    """Nested lists as an array; as lists of arrays where they differ in length, and as they are where one has nulls."""
    if isinstance(value, list) and None in value:
        return value
    if isinstance(value, list) and value and isinstance(value[0], list):
        items = [_as_array(item, dtype) for item in value]
        same = all(isinstance(item, np.ndarray) for item in items) and len({item.shape for item in items}) == 1
        return np.stack(items) if same else items
    return np.asarray(value, dtype)


def by_value(value: Any) -> Any:
    """What a value says of itself, where no feature does."""
    if isinstance(value, dict):
        return {name: by_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        leaf = value
        while isinstance(leaf, list) and leaf:
            leaf = leaf[0]
        return _as_array(value, None) if type(leaf) in (bool, int, float) else list(map(by_value, value))
    return np.asarray(value) if type(value).__module__.startswith("PIL.") else value
