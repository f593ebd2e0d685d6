"""The expected type and shape of a feature of an `Example`."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources.tf_example.alone import BYTES, FLOATS, INTS, Values
from headrace.sources.tf_example.wire import Malformed


@dataclass(frozen=True)
class Feature:
    """The expected type and shape of a feature.

    >>> Feature(np.float32, shape=(28, 28), default=0.0).shape
    (28, 28)

    Args:
        dtype: `np.float32`, `np.int64` or `bytes`.
        shape: Its shape; None means one dimension of any length, and a batch then has an array of objects.
        default: The value for records without the feature; without a default, they are an error.
    """

    dtype: Any
    shape: Sequence[int] | None = ()
    default: Any = None

    def __post_init__(self):
        dtype = np.dtype(object if self.dtype is bytes else self.dtype)
        if dtype not in (np.float32, np.int64, object):
            raise PipelineError(
                f"The dtype of a feature is np.float32, np.int64 or bytes; got {self.dtype!r}. Convert it afterwards."
            )
        shape = None if self.shape is None else tuple(operator.index(size) for size in self.shape)
        if shape is not None and min(shape, default=1) < 0:
            raise PipelineError(f"The shape of a feature has sizes of 0 or more; got {self.shape!r}.")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)

    @property
    def kind(self) -> int:
        """The tag of its lists."""
        return {"f": FLOATS, "i": INTS, "O": BYTES}[self.dtype.kind]

    @property
    def size(self) -> int | None:
        """How many values it has, if known."""
        return None if self.shape is None else math.prod(self.shape)

    def missing(self, name: str) -> Any:
        """The value for a record that lacks the feature."""
        if self.default is None and self.shape is not None:
            raise Malformed(f"it has no feature {name!r}. Give that a default if it may be missing")
        if self.default is None:
            return np.empty(0, self.dtype)
        return self.shaped(np.asarray(self.default, self.dtype).reshape(-1), name)

    def shaped(self, values: Values, name: str) -> Any:
        """The values of one record, in their shape."""
        if self.size is not None and len(values) != self.size:
            raise Malformed(f"feature {name!r} has {len(values)} values, not the {self.size} of {self.shape}")
        return as_array(values).reshape(-1 if self.shape is None else self.shape)[()]

    def absent(self, name: str, num_rows: int) -> np.ndarray:
        """The column for records that lack the feature."""
        if self.shape is None:
            return self.column([self.missing(name) for _ in range(num_rows)])
        return np.tile(np.asarray(self.missing(name), self.dtype), (num_rows, *(1 for _ in self.shape)))

    def column(self, values: Sequence[Any]) -> np.ndarray:
        """The values of several elements as one array."""
        if self.shape is None:
            return objects(values)
        return np.array(values, self.dtype).reshape(len(values), *self.shape)


def as_array(values: Values) -> np.ndarray:
    """Values as a one-dimensional array."""
    return values if isinstance(values, np.ndarray) else objects(values)


def objects(values: Sequence[Any]) -> np.ndarray:
    """A one-dimensional array of objects, even if the objects are sequences."""
    return np.fromiter(values, object, len(values))
