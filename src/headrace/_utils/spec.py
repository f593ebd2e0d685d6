"""Shapes and dtypes of elements, without reading any."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype.

    >>> isinstance(np.zeros(3), ShapeDtypeStructProtocol), isinstance([0, 0], ShapeDtypeStructProtocol)
    (True, False)
    """

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True)
class ShapeDtypeStruct:
    """The shape and dtype of one leaf; a dimension that varies is `None`.

    >>> ShapeDtypeStruct((None, 3), np.float32)
    ShapeDtypeStruct(shape=(None, 3), dtype=<class 'numpy.float32'>)
    """

    shape: tuple[int | None, ...] = ()
    dtype: Any = np.float64

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStructProtocol):
            return NotImplemented
        return self.shape == tuple(other.shape) and np.dtype(self.dtype) == np.dtype(other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, np.dtype(self.dtype)))
