"""States as arrays of one size, which hosts can gather even if their states differ in structure.

An array has a length in its first 8 bytes, then the state's compressed JSON of that length, and then zeros.
"""

import zlib
from typing import Any

import numpy as np

from headrace.errors import StateError

HEADER = np.dtype("<u8")
MOST_BYTES = 1 << 28  # of an unpacked state


def packed(text: bytes, size: int) -> np.ndarray:
    """A state as `size` bytes."""
    data = zlib.compress(text)
    if len(data) + HEADER.itemsize > size:
        raise StateError(
            f"The state takes {len(data) + HEADER.itemsize} bytes, and size={size}. Give a larger size, the same on "
            "all hosts."
        )
    array = np.zeros(size, np.uint8)
    array[: HEADER.itemsize] = np.array([len(data)], HEADER).view(np.uint8)
    array[HEADER.itemsize : HEADER.itemsize + len(data)] = np.frombuffer(data, np.uint8)
    return array


def is_array(state: Any) -> bool:
    """Whether this is an array of NumPy or JAX."""
    return hasattr(state, "dtype") and hasattr(state, "shape")


def unpacked(array: Any) -> bytes:
    """The state in an array."""
    if array.dtype != np.uint8 or len(array.shape) != 1 or array.shape[0] < HEADER.itemsize:
        raise StateError(
            f"A state as an array is a row of uint8, as `state_as_array()` returns it; got {array.dtype} of shape "
            f"{tuple(array.shape)}. If these are gathered states, give each host its row."
        )
    array = np.ascontiguousarray(array)
    length = int(array[: HEADER.itemsize].view(HEADER)[0])
    data = array[HEADER.itemsize :].tobytes()
    try:
        if length > len(data):
            raise zlib.error(f"it has {len(data)} bytes of {length}")
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data[:length], MOST_BYTES)
        if not unpacker.eof:
            raise zlib.error("it has no end")
    except zlib.error as e:
        raise StateError(f"This array has no state in it ({e}).") from e
    return text
