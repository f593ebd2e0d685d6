"""Page-locked memory: a CUDA device fetches it by itself, many times as fast as other memory.

A lock holds for one mapping, until that is unmapped or its pages become others. It costs time for each page, so a
mapping is locked once, when it is first used for a device.
"""

import contextlib
import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import HeadraceError
from headrace.errors.signals import let_through

# ----------------------------------------------------------------------------------------------------- cuda driver
# The few calls of NVIDIA's driver that page-lock memory; through ctypes, so nothing needs to be installed.


SUCCESS = 0
ALREADY_LOCKED = 712
IN_ALL_CONTEXTS = 1  # the flag CU_MEMHOSTREGISTER_PORTABLE


class CudaError(HeadraceError):
    """A call of the driver failed."""


class CudaDriver:
    """Locks memory for the devices of this process.

    Args:
        device: The number of a device that the process uses already: no context is created on any other.
        library: What has the driver's functions; by default, libcuda.
    """

    def __init__(self, device: int, library: Any = None):
        self._cuda = library or ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        handle = ctypes.c_int()
        self._context = ctypes.c_void_p()
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


class PageLocks:
    """The locks of this process."""

    def __init__(self, driver: CudaDriver):
        self._driver = driver
        self.pid = os.getpid()
        self._changing = threading.RLock()  # a mapping may die at any time, even while this thread locks another
        self._locked: dict[int, weakref.ref[np.ndarray]] = {}  # mappings by their addresses
        self._is_at_limit = False

    def lock(self, mapping: np.ndarray) -> bool:
        """Locks a whole mapping unless it is locked; returns whether it is. It is unlocked when the array dies."""
        address = _address(mapping)
        with self._changing:
            found = self._locked.get(address)
            if found is not None and found() is mapping:
                return True
            if self._is_at_limit:
                return False
            try:
                self._driver.lock(address, mapping.nbytes)
            except HeadraceError as e:
                self._is_at_limit = True
                logging.getLogger("headrace").warning(
                    "Could not page-lock %.0f MB (%s; RLIMIT_MEMLOCK is %s), so transfers to the GPU are several "
                    "times slower. Raise the limit (`ulimit -l unlimited`), or use smaller batches.",
                    mapping.nbytes / 1e6,
                    e,
                    _memory_limit(),
                )
                return False
            self._locked[address] = weakref.ref(mapping, partial(self._unlock, address))
            return True

    def unlock(self, mapping: np.ndarray) -> None:
        """Unlocks a mapping whose pages are to become others, after the transfers that read it."""
        address = _address(mapping)
        with self._changing:
            found = self._locked.get(address)
            if found is not None and found() is mapping and os.getpid() == self.pid:
                self._driver.finish_transfers()
                self._unlock(address, found)

    def _unlock(self, address: int, lock: Any) -> None:
        """Also called when a mapping dies: in any thread, before the memory is unmapped."""
        with self._changing:
            if os.getpid() != self.pid or self._locked.get(address) is not lock:
                return
            del self._locked[address]
            try:
                self._driver.unlock(address)
            except HeadraceError as e:  # at exit, CUDA may be gone already
                logging.getLogger("headrace").debug("Could not release a page lock: %s", e)


_locks: PageLocks | None = None
_opening = threading.Lock()


def page_locks(device: int) -> PageLocks | None:
    """The locks of this process; `None` where NVIDIA's driver is missing. `device` is one that the process uses."""
    global _locks
    with _opening:
        if _locks is None or _locks.pid != os.getpid():
            try:
                _locks = PageLocks(CudaDriver(device))
            except (OSError, AttributeError, HeadraceError) as e:
                let_through(e)
                logging.getLogger("headrace").info("Memory is not page-locked: %s", e)
                return None
        return _locks


def unlock(mapping: np.ndarray) -> None:
    """Unlocks a mapping, if it is locked."""
    if _locks is not None:
        _locks.unlock(mapping)


def _address(mapping: np.ndarray) -> int:
    return mapping.__array_interface__["data"][0]


def _memory_limit() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return "unknown"
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "none" if limit == resource.RLIM_INFINITY else f"{limit / 1e6:.1f} MB"
