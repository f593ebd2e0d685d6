"""Single values converted to NumPy: by the features, or by their own type."""

from collections.abc import Callable
from typing import Any

import numpy as np

Convert = Callable[[Any], Any]


def conversion(feature: Any) -> Convert:
    """The function that converts a decoded value of a feature to NumPy."""
    if isinstance(feature, dict):
        inner = {name: conversion(one) for name, one in feature.items()}
        return lambda value: value and {name: inner.get(name, by_value)(one) for name, one in value.items()}
    innermost = feature
    while _inside(innermost) is not None:
        innermost = _inside(innermost)
    dtype = _number_dtype(innermost)
    if dtype is not None and (hasattr(feature, "shape") or _inside(feature) is not None):  # Array2D, or a list
        return lambda value: value if value is None else _as_array(value, dtype)
    if dtype is not None:
        return lambda value: value if value is None else dtype.type(value)
    if _inside(feature) is not None:
        convert = conversion(_inside(feature))
        return lambda value: value and list(map(convert, value))
    return by_value


def _inside(feature: Any) -> Any:
    """The feature of a list's items; `None` if it is not a list."""
    return feature[0] if isinstance(feature, list | tuple) else getattr(feature, "feature", None)


def _number_dtype(feature: Any) -> np.dtype | None:
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or object)
    except (TypeError, ValueError):  # a type that NumPy does not have
        return None
    return dtype if dtype.kind in "biuf" else None


def _as_array(value: Any, dtype: np.dtype | None) -> Any:
    """Nested lists as an array; as lists of arrays if their lengths differ, and unchanged if they have nulls."""
    if isinstance(value, list) and None in value:
        return value
    if isinstance(value, list) and value and isinstance(value[0], list):
        items = [_as_array(item, dtype) for item in value]
        same = all(isinstance(item, np.ndarray) for item in items) and len({item.shape for item in items}) == 1
        return np.stack(items) if same else items
    return np.asarray(value, dtype)


def by_value(value: Any) -> Any:
    """Converts a value by its own type, if there is no feature."""
    if isinstance(value, dict):
        return {name: by_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        leaf = value
        while isinstance(leaf, list) and leaf:
            leaf = leaf[0]
        return _as_array(value, None) if type(leaf) in (bool, int, float) else list(map(by_value, value))
    return np.asarray(value) if type(value).__module__.startswith("PIL.") else value
