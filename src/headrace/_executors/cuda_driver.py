"""The few calls of NVIDIA's driver that page-lock memory; through ctypes, so nothing needs to be installed."""

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from headrace.errors import HeadraceError

SUCCESS, ALREADY_LOCKED = 0, 712
IN_ALL_CONTEXTS = 1  # the flag CU_MEMHOSTREGISTER_PORTABLE


class CudaError(HeadraceError):
    """A call of the driver failed."""


class CudaDriver:
    """Locks memory for the devices of this process.

    Args:
        device: The number of a device that the process uses already: it gets no context on any other.
        library: What has the driver's functions; by default, libcuda.
    """

    def __init__(self, device: int, library: Any = None):
        self._cuda = library or ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)

    def lock(self, address: int, size: int) -> None:
        """Page-locks memory, which devices can then read by themselves."""
        register = "cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size), IN_ALL_CONTEXTS
        with self._in_context():
            if self._call(*register, accepts=ALREADY_LOCKED) == ALREADY_LOCKED:  # what was there is gone
                self._call("cuMemHostUnregister", ctypes.c_void_p(address))
                self._call(*register)

    def unlock(self, address: int) -> None:
        """Undoes `lock`."""
        with self._in_context():
            self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def finish_transfers(self) -> None:
        """Waits until the device has done all that was asked of it."""
        with self._in_context():
            self._call("cuCtxSynchronize")

    @contextlib.contextmanager
    def _in_context(self) -> Iterator[None]:
        """The driver knows which context is meant by the thread."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any, accepts: int = SUCCESS) -> int:
        status = getattr(self._cuda, name)(*arguments)
        if status not in (SUCCESS, accepts):
            found = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(found))
            raise CudaError(f"{name}: {(found.value or b'unknown error').decode()} ({status})")
        return status
