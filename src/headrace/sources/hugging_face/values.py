"""Single values converted to NumPy: by the features, or by their own type."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.sources import files

Convert = Callable[[Any], Any]


def conversion(feature: Any, *, encoded: bool = False) -> Convert:
    """The function that converts a decoded value of a feature to NumPy; images that are `encoded`, to bytes."""
    if encoded and type(feature).__name__ == "Image":
        return _content
    if isinstance(feature, dict):
        inner = {name: conversion(one, encoded=encoded) for name, one in feature.items()}
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
        convert = conversion(_inside(feature), encoded=encoded)
        return lambda value: value and list(map(convert, value))
    return by_value


def _content(image: dict[str, Any] | None) -> bytes | None:
    """The file of an image, which a dataset has or names."""
    if image is None:
        return None
    if image["bytes"] is not None:
        return image["bytes"]
    with files.open_stream(image["path"]) as stream:
        return stream.read()


def encoded(features: Any) -> Any:
    """Features that leave images, audio and other files as they are."""
    changed = copy.deepcopy(features)
    below = list(changed.values())
    while below:
        feature = below.pop()
        if isinstance(feature, dict):
            below += feature.values()
        elif _inside(feature) is not None:
            below.append(_inside(feature))
        elif hasattr(feature, "decode") and type(feature).__name__ != "Json":
            feature.decode = False
    return type(features)(changed)


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
