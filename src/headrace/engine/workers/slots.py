"""Anonymous shared memory: slots that one process writes and another reads, and the layout of objects in them.

All slots of a pool lie in one anonymous file, so far apart that a slot can grow in place without reaching the next. An
object is pickled except for its arrays, which are copied once, to aligned places in front of the pickle; the reader
receives views of them. A `_Lease` is the base of all views of a slot: when the last view dies, so does the lease, and
the slot is free. Before a fork, leased memory is replaced by private copies at the same addresses.
"""

import ctypes
import fcntl
import functools
import io
import math
import mmap
import os
import pickle
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace.engine import page_locks
from headrace.engine.free_memory import check_memory, shared_memory_error
from headrace.engine.workers.pickling import ClassPickler
from headrace.errors import WorkerError
from headrace.errors.signals import let_through

ALIGNMENT = 64
STRIDE = 1 << 38  # bytes of the file for each slot; those never written take no memory
NUM_SLOTS = 1 << 16
SLACK = 1 / 8  # how much larger to make a slot than its block, since the next block may be a little larger
CLEANED_BYTES = 32 << 20  # a slot larger than this returns its memory if most blocks are much smaller
_NO_DESCRIPTOR: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # before 3.13, a mapping holds one
POPULATED_BYTES = 1 << 20
SMALL_BYTES = 4096  # smaller objects are copied out at once


def anonymous_file(num_slots: int) -> int:
    """The descriptor of a file in memory without a name; never 0, 1 or 2."""
    with _memory_file() as file:
        try:
            os.ftruncate(file.fileno(), STRIDE * num_slots)
        except OSError as e:
            let_through(e)
            raise WorkerError(
                f"Could not set up shared memory for workers: {e}. If file sizes are limited (`ulimit -f`), lift the "
                "limit."
            ) from e
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)


def _memory_file() -> Any:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("headrace", os.MFD_CLOEXEC), "r+b", buffering=0)
    return tempfile.TemporaryFile()


class Extent(NamedTuple):
    """Where in a slot an object is: its bytes end at `total`; a table of buffers and the pickle begin at `start`."""

    total: int
    start: int


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if hasattr(libc, "mremap"):
        libc.mremap.restype = ctypes.c_void_p
        libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    return libc


class Slot:
    """A part of an anonymous file, mapped as far as it is used."""

    def __init__(self, fd: int, number: int = 0, *, private: bool = False):
        self.number = number
        self._fd = fd
        self._private = private
        self._reserved = 0
        self.whole = np.empty(0, np.uint8)

    def bytes(self, size: int) -> np.ndarray:
        """The first `size` bytes, which must have been written."""
        if size > len(self.whole):
            self._map(size)
        return self.whole[:size]

    def reserve(self, size: int) -> None:
        """Makes room for `size` bytes."""
        if size > self._reserved:
            size = _whole_pages(size + int(size * SLACK))
            check_memory(size - self._reserved)
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(self._fd, self.number * STRIDE, size)
                except OSError as e:
                    let_through(e)
                    raise shared_memory_error(size - self._reserved, str(e)) from e
            self._reserved = size
            self._map(size, populate=True)
        elif size > len(self.whole):
            self._map(self._reserved, populate=True)

    def _map(self, size: int, *, populate: bool = False) -> None:
        flags = mmap.MAP_PRIVATE if self._private else mmap.MAP_SHARED
        if populate and size >= POPULATED_BYTES:  # all pages at once, since all will be written
            flags |= getattr(mmap, "MAP_POPULATE", 0)
        # A C object, whose destructor runs no Python: Ctrl-C in a Python destructor would leave the memory mapped.
        mapped = mmap.mmap(self._fd, _whole_pages(size), flags=flags, offset=self.number * STRIDE, **_NO_DESCRIPTOR)
        self.whole = np.frombuffer(mapped, np.uint8)

    def unmap(self) -> None:
        """Drops the mapping."""
        self.whole = np.empty(0, np.uint8)

    def clean(self) -> None:
        """Returns the memory to the system; the slot can be used again."""
        if len(self.whole) and hasattr(mmap, "MADV_REMOVE"):
            page_locks.unlock(self.whole)  # a device would read the pages that it had
            _libc().madvise(self.whole.ctypes.data, len(self.whole), mmap.MADV_REMOVE)


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# ----------------------------------------------------------------------------------------------- writing


class Writer:
    """Lays one object out in a slot, from `start` on."""

    def __init__(self, slot: Slot, start: int = 0):
        self._slot = slot
        self._used = start
        self._mine: dict[int, tuple[np.ndarray, int]] = {}  # arrays made in the slot, and their offsets
        self._to_copy: list[tuple[int, Any]] = []
        self._buffers: list[int] = []  # start and length of each

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array in the slot, for the caller to fill."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        offset = self._take(size)
        self._slot.reserve(offset + size)
        array = _array(self._slot.whole, offset, dtype, shape, "C")
        self._mine[id(array)] = array, offset
        return array

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array was made in the slot."""
        return id(array) in self._mine

    def dump(self, value: Any, pickler: "Callable[[Writer, io.BytesIO], Pickler] | None" = None) -> Extent:
        """Writes an object to the slot."""
        laid_out = self._lay_out(value, pickler)
        laid_out.write_to(self._slot)
        return laid_out.extent

    def pieces(self, value: Any) -> "Pieces":
        """An object as pieces, for another process to assemble."""
        extent, pieces = self._lay_out(value, None)
        return Pieces(extent, [*((offset, array) for array, offset in self._mine.values()), *pieces])

    def _lay_out(self, value: Any, pickler: "Callable[[Writer, io.BytesIO], Pickler] | None") -> "Pieces":
        """Where everything of an object goes that is not in the slot yet."""
        stream = io.BytesIO()
        (pickler or Pickler)(self, stream).dump(value)
        pickled = np.frombuffer(stream.getbuffer(), np.uint8)
        buffers = np.array([len(self._buffers) // 2, *self._buffers], np.int64).view(np.uint8)
        start = _align(self._used)
        middle = start + len(buffers)
        end = start + len(buffers) + len(pickled)
        return Pieces(Extent(end, start), [*self._to_copy, (start, buffers), (middle, pickled)])

    def place(self, array: np.ndarray) -> int:
        """The offset of an array in the slot."""
        if id(array) in self._mine:
            return self._mine[id(array)][1]
        offset = self._take(array.nbytes)
        if array.nbytes:
            self._to_copy.append((offset, array))
        return offset

    def place_buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Adds the buffer of an object that is not an array, such as an Arrow table."""
        data = buffer.raw()
        offset = self._take(len(data))
        self._buffers += (offset, len(data))
        if len(data):
            self._to_copy.append((offset, np.frombuffer(data, np.uint8)))

    def _take(self, size: int) -> int:
        offset = _align(self._used)
        self._used = offset + size
        return offset


class Pieces(NamedTuple):
    """An object in pieces, each with its offset in a slot."""

    extent: Extent
    pieces: list[tuple[int, np.ndarray]]

    def write_to(self, slot: Slot) -> None:
        """Assembles the object in a slot."""
        slot.reserve(self.extent.total)
        self._put(slot.whole)

    def read(self) -> Any:
        """A copy of the object."""
        memory = np.empty(self.extent.total, np.uint8)
        self._put(memory)
        return read(memory, self.extent)

    def _put(self, whole: np.ndarray) -> None:
        for offset, data in self.pieces:
            _array(whole, offset, data.dtype, data.shape, _order(data))[...] = data


class Pickler(ClassPickler):
    """Pickles all but arrays, which it copies to a slot."""

    def __init__(self, writer: Writer, stream: io.BytesIO):
        super().__init__(stream, protocol=5, buffer_callback=writer.place_buffer)
        self._writer = writer

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not obj.dtype.hasobject:
            is_plain = obj.dtype.isbuiltin == 1 and obj.dtype.kind in "biufc"
            dtype = obj.dtype.char if is_plain else obj.dtype
            return _view, (self._writer.place(obj), dtype, obj.shape, _order(obj))
        by_value = getattr(type(obj), "reduce_by_value", None)
        if by_value is not None:  # an array whose memory has a name
            return by_value(obj)
        return super().reducer_override(obj)


def _order(array: np.ndarray) -> str:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


# ----------------------------------------------------------------------------------------------- reading

_reading = threading.local()


def read(memory: np.ndarray, extent: Extent) -> Any:
    """Reads an object; its arrays are views of `memory`."""
    _reading.memory = memory
    head = memory[extent.start : extent.total]
    end = 8 + 16 * int(head[:8].view(np.int64)[0])
    try:
        if end == 8:
            return pickle.loads(head[8:].data)
        buffers = [memory[a : a + n] for a, n in head[8:end].view(np.int64).reshape(-1, 2).tolist()]
        return pickle.loads(head[end:].data, buffers=buffers)
    finally:
        _reading.memory = None


def pickled_part(memory: np.ndarray, extent: Extent) -> memoryview:
    """The pickle of an object that was laid out in memory, without its arrays."""
    head = memory[extent.start : extent.total]
    return head[8 + 16 * int(head[:8].view(np.int64)[0]) :].data


def _view(offset: int, dtype: Any, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return _array(_reading.memory, offset, np.dtype(dtype), shape, order)


def _array(memory: np.ndarray, offset: int, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype, order)
    return memory[offset : offset + size].view(dtype).reshape(shape, order=order)


class _Lease:
    """The base of all arrays that are views of a slot."""

    def __init__(self, slot: Slot, size: int):
        self.number = slot.number
        self.size = size
        self._whole = slot.bytes(size)
        self.mapping = slot.whole
        self.__array_interface__ = self._whole.__array_interface__

    def copy_out(self) -> None:
        """Replaces the slot's memory with private memory, with the same bytes at the same address."""
        page_locks.unlock(self.mapping)
        address = self._whole.ctypes.data
        size = _whole_pages(len(self._whole))
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if not hasattr(_libc(), "mremap"):  # not Linux: no thread may read it meanwhile
            copied = self._whole.copy()
            _libc().mmap(address, size, access, flags | MAP_FIXED, -1, 0)
            self._whole[:] = copied
            return
        copy = _libc().mmap(None, size, access, flags, -1, 0)
        ctypes.memmove(copy, address, len(self._whole))
        # In one atomic step: other threads may be reading it.
        if _libc().mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) != address:
            raise OSError(ctypes.get_errno(), "mremap")


class _LeaseEnd(weakref.ref):
    """Adds itself to `ended` when a lease ends. That may be in any thread at any time: no lock, no Python code."""

    __slots__ = ("number", "size")

    def __new__(cls, lease: _Lease, ended: "deque[_LeaseEnd]"):
        return super().__new__(cls, lease, ended.append)

    def __init__(self, lease: _Lease, ended: "deque[_LeaseEnd]"):
        self.number = lease.number
        self.size = lease.size


def mapping_of(array: np.ndarray) -> np.ndarray | None:
    """The mapping of the slot that an array lies in; `None` if it lies in no slot."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base.mapping if isinstance(base, _Lease) else None


MAP_FIXED = 0x10
MREMAP_MAYMOVE = 1
MREMAP_FIXED = 2


class Slots:
    """The slots of a pool, as the consumer sees them: free, in use, or leased to arrays."""

    def __init__(self, max_leased: int):
        self._max_leased = max_leased
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._leases: dict[int, _LeaseEnd] = {}
        self._ended: deque[_LeaseEnd] = deque()
        self._high: dict[int, int] = {}  # by slot, the most bytes used since it was cleaned
        self._typical_bytes = 0.0
        self.fd = -1
        _all_slots.add(self)
        self.fd = anonymous_file(NUM_SLOTS)  # last: an exception after it would leave the file open

    def lease_up_to(self, max_leased: int) -> None:
        """Allows so many leases."""
        self._max_leased = max_leased

    def take(self) -> Slot:
        """A free slot: the one used last, whose memory is likely still in the cache."""
        self._collect()
        if self._free:
            return self._free.pop()
        self._slots.append(Slot(self.fd, len(self._slots)))
        return self._slots[-1]

    def give_back(self, slot: Slot, size: int = 0) -> None:
        """Marks a slot as free, of which `size` bytes were used."""
        if self.fd < 0:
            return
        high = max(self._high.get(slot.number, 0), size)
        self._typical_bytes = max(self._typical_bytes * 0.9, size)
        if high > CLEANED_BYTES and high > 4 * self._typical_bytes:
            slot.bytes(high)
            slot.clean()
            high = 0
        self._high[slot.number] = high
        self._free.append(slot)

    def read(self, slot: Slot, extent: Extent) -> Any:
        """Reads a slot; the arrays lease it, or are copies if too many slots are leased already."""
        self._collect()
        if extent.total <= SMALL_BYTES or len(self._leases) >= self._max_leased:
            return self.read_copy(slot, extent)
        return read(self._leased(slot, extent.total), extent)

    def lease(self, size: int) -> np.ndarray | None:
        """The memory of a free slot, for the caller to fill; `None` if too many slots are leased already."""
        self._collect()
        if len(self._leases) >= self._max_leased:
            return None
        slot = self.take()
        slot.reserve(size)
        return self._leased(slot, size)

    def _leased(self, slot: Slot, size: int) -> np.ndarray:
        lease = _Lease(slot, size)
        self._leases[slot.number] = _LeaseEnd(lease, self._ended)
        return np.asarray(lease)

    def read_copy(self, slot: Slot, extent: Extent) -> Any:
        """Reads a copy of a slot, and frees the slot."""
        memory = slot.bytes(extent.total).copy()
        self.give_back(slot, extent.total)
        return read(memory, extent)

    def _collect(self) -> None:
        """Frees the slots whose leases have ended."""
        while self._ended:
            end = self._ended.popleft()
            if self._leases.get(end.number) is end:  # else it was copied out, and the slot has another use now
                self._take_back(end)

    def _take_back(self, end: _LeaseEnd) -> None:
        del self._leases[end.number]
        self.give_back(self._slots[end.number], end.size)

    def copy_out(self) -> None:
        """Before a fork: copies leased arrays out of their slots, and frees the slots.

        Otherwise the arrays in the fork would change when a worker writes to the slot again.
        """
        for end in list(self._leases.values()):
            lease = end()
            if lease is not None:
                lease.copy_out()
                if self.fd >= 0:
                    self._slots[end.number].unmap()  # its next use maps it again
                    self._take_back(end)

    def close(self) -> None:
        """Releases the memory; leased arrays keep theirs until they die."""
        for slot in self._slots:
            slot.unmap()
        self._slots.clear()
        self._free.clear()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


_all_slots: "weakref.WeakSet[Slots]" = weakref.WeakSet()


def _before_fork() -> None:
    for slots in list(_all_slots):
        slots.copy_out()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
