"""Arrays in named shared memory, for processes that users start."""

import contextlib
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace._utils.shared_memory import NamedMemory, remove
from headrace.errors import PipelineError
from headrace.options import MultiprocessingOptions as MultiprocessingOptions

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory


@dataclass(frozen=True)
class SharedMemoryArrayMetadata:
    """What another process needs to find an array: `SharedMemoryArray.from_metadata(metadata)`.

    >>> array = SharedMemoryArray((2, 3), np.float32)
    >>> array.unlink_on_del()
    >>> array.metadata.shape, array.metadata.dtype
    ((2, 3), dtype('float32'))
    """

    name: str
    shape: Iterable[int]
    dtype: npt.DTypeLike

    def close_and_unlink_shm(self) -> None:
        """Removes the name, if it is still there; the memory goes with the last array on it."""
        remove(self.name)


class SharedMemoryArray(np.ndarray):
    """A NumPy array in shared memory: only its name travels to another process.

    The memory goes with the last array on it. After somebody has asked for its `metadata`, the name stays until an
    array with `unlink_on_del` is deleted, or until the process that made it ends.

    >>> array = SharedMemoryArray((2, 3), np.float32)
    >>> array[:] = 1
    >>> SharedMemoryArray.from_metadata(array.metadata).sum()
    SharedMemoryArray(6., dtype=float32)

    Differs from Grain: the memory goes with its last array; in Grain it stays until somebody calls `unlink_on_del()`.
    """

    _memory: NamedMemory | None = None
    _unlinks: "_Unlinks | None" = None

    def __new__(cls, shape: Iterable[int] | int, dtype: npt.DTypeLike = float) -> "SharedMemoryArray":
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in shape):
            raise PipelineError(f"The shape of a SharedMemoryArray must be of ints of 0 or more; got {shape!r}.")
        if np.dtype(dtype).hasobject:
            raise PipelineError("A SharedMemoryArray cannot hold Python objects: another process could not read them.")
        size = math.prod(map(int, shape)) * np.dtype(dtype).itemsize
        return cls._on(NamedMemory(size=size), shape, dtype)

    @classmethod
    def _on(cls, memory: NamedMemory, shape: Iterable[int], dtype: npt.DTypeLike) -> "SharedMemoryArray":
        array = super().__new__(cls, tuple(shape), dtype, memory.buffer)
        array._memory = memory
        return array

    def __array_finalize__(self, of: Any) -> None:
        self._unlinks = getattr(of, "_unlinks", None)
        if self._memory is None and isinstance(of, SharedMemoryArray):
            self._memory = of._memory if np.may_share_memory(self, of) else None

    @classmethod
    def from_metadata(cls, metadata: SharedMemoryArrayMetadata) -> "SharedMemoryArray":
        """The array of this process, or of another one of this user."""
        if np.dtype(metadata.dtype).hasobject:
            raise PipelineError(
                "A SharedMemoryArray cannot hold Python objects, but the metadata has a dtype of objects."
            )
        return cls._on(NamedMemory(metadata.name), metadata.shape, metadata.dtype)

    @classmethod
    def from_shared_memory(cls, shm: "SharedMemory", shape: Any, dtype: npt.DTypeLike) -> "SharedMemoryArray":
        """An array on a `SharedMemory` of the standard library, which the caller must close and unlink."""
        if isinstance(shape, int):
            shape = (shape,)
        return cls.from_metadata(SharedMemoryArrayMetadata(shm.name, shape, dtype))

    @property
    def metadata(self) -> SharedMemoryArrayMetadata:
        """What another process needs to find the array."""
        if not self._is_whole:
            raise ValueError("Only a whole SharedMemoryArray has metadata; this is a view or a copy of one.")
        assert self._memory is not None
        self._memory.keep()
        return SharedMemoryArrayMetadata(self._memory.name, self.shape, self.dtype)

    @property
    def _is_whole(self) -> bool:
        return self._memory is not None and self.base is self._memory.buffer

    def unlink_on_del(self) -> None:
        """Removes the name when this array and its views are gone."""
        if self._memory is not None and self._unlinks is None:
            self._unlinks = _Unlinks(self._memory)

    @classmethod
    def enable_async_del(cls, num_threads: int = 1, max_outstanding_requests: int = 50) -> None:
        """Has no effect; kept for compatibility."""

    @classmethod
    def close_shm_async(cls, shm: "SharedMemory", unlink: bool) -> None:
        """Closes a `SharedMemory` of the standard library in a thread; with `unlink`, removes its name too."""
        threading.Thread(target=_close, args=(shm, unlink), name="headrace-close-shm").start()

    def reduce_by_value(self) -> Any:
        """How a worker hands the array over: as a copy, since its memory ends with it."""
        return _copied, (np.asarray(self),)

    def __reduce__(self) -> Any:
        if not self._is_whole:
            return np.asarray(self).__reduce__()
        assert self._memory is not None
        metadata = SharedMemoryArrayMetadata(self._memory.name, self.shape, self.dtype)
        return SharedMemoryArray.from_metadata, (metadata,)


def _close(shm: "SharedMemory", unlink: bool) -> None:
    try:
        shm.close()
    finally:
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                shm.unlink()


def _copied(values: np.ndarray) -> SharedMemoryArray:
    array = SharedMemoryArray(values.shape, values.dtype)
    array[...] = values
    return array


class _Unlinks:
    """Removes a name when this object is deleted."""

    def __init__(self, memory: NamedMemory):
        self._memory = memory

    def __del__(self):
        self._memory.unlink()
