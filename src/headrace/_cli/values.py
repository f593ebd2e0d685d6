"""Elements as JSON."""

import base64
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace._utils.one_line import short_repr

MOST_VALUES = 1000  # of an array
MOST_BYTES = 1 << 16
MOST_TEXT = 1000  # characters of other objects


def as_json(value: Any) -> Any:
    """An element as plain values; of large arrays and bytes, what they are and their beginning.

    >>> as_json({"x": np.arange(3), "y": b"ab"})
    {'x': {'dtype': 'int64', 'shape': [3], 'values': [0, 1, 2]}, 'y': {'num_bytes': 2, 'base64': 'YWI='}}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.number | np.bool_ | np.str_ | np.bytes_):
        plain = value.item()
        return str(plain) if isinstance(plain, np.generic | complex) else as_json(plain)
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
        return {"num_bytes": len(content), "base64": base64.b64encode(content[:MOST_BYTES]).decode()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return _array(np.asarray(value))
    return {"type": type(value).__name__, "repr": short_repr(value, MOST_TEXT)}


def _array(array: np.ndarray) -> Any:
    shown = array.ravel()[:MOST_VALUES].tolist() if array.size > MOST_VALUES else array.tolist()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": as_json(shown)}
