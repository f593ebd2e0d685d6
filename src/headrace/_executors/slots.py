"""Shared memory without a name: slots that one process writes and another reads, and objects laid out in them.

All slots of a pool lie in one anonymous file, so far apart that none ever reaches the next: a slot grows where it
is. An object is pickled, but for its arrays, which are copied once, to aligned places in front of the pickle;
whoever reads gets views of them. A `_Lease` is the base of all views of a slot: when the last one dies, so does the
lease, and the slot is free. Before a fork, what is leased is copied out of its slot to where it stands.
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

import cloudpickle
import numpy as np

from headrace._executors.memory import check_memory, too_little
from headrace.errors import WorkerError

ALIGNMENT = 64
STRIDE = 1 << 38  # bytes of the file that belong to one slot; what is not written takes no memory
NUM_SLOTS = 1 << 16
SLACK = 1 / 8  # a slot is made larger than the block it is needed for, since the next may be a little larger
CLEANED_BYTES = 32 << 20  # a slot this large that was needed once gives its memory back
_NO_DESCRIPTOR: Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}  # before, a mapping holds one
SMALL_BYTES = 4096  # what is smaller is copied out at once


def anonymous_file(num_slots: int) -> int:
    """A file in memory that no name leads to; its descriptor is none of the three that a program starts with."""
    with _memory_file() as file:
        try:
            os.ftruncate(file.fileno(), STRIDE * num_slots)
        except OSError as e:
            raise WorkerError(
                f"Shared memory for workers could not be set up: {e}. Where the size of files is limited "
                "(`ulimit -f`), lift the limit."
            ) from e
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)


def _memory_file() -> Any:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("headrace", os.MFD_CLOEXEC), "r+b", buffering=0)
    return tempfile.TemporaryFile()


class Extent(NamedTuple):
    """Where in a slot an object is: how far its bytes go, and the pickle at their end."""

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
        self._fd, self._private = fd, private
        self._reserved = 0
        self.whole = np.empty(0, np.uint8)

    def bytes(self, size: int) -> np.ndarray:
        """The first bytes, which have been written."""
        if size > len(self.whole):
            self._map(size)
        return self.whole[:size]

    def reserve(self, size: int) -> None:
        """Makes room for so many bytes."""
        if size > self._reserved:
            size = _whole_pages(size + int(size * SLACK))
            check_memory(size - self._reserved)
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(self._fd, self.number * STRIDE, size)
                except OSError as e:
                    raise too_little(size - self._reserved, str(e)) from e
            self._reserved = size
            self._map(size)
        elif size > len(self.whole):
            self._map(self._reserved)

    def _map(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE if self._private else mmap.MAP_SHARED
        # An object of C's, whose end runs no line of Python: Ctrl-C in one would leave the memory mapped.
        mapped = mmap.mmap(self._fd, _whole_pages(size), flags=flags, offset=self.number * STRIDE, **_NO_DESCRIPTOR)
        self.whole = np.frombuffer(mapped, np.uint8)

    def unmap(self) -> None:
        """Lets go of the memory."""
        self.whole = np.empty(0, np.uint8)

    def clean(self) -> None:
        """Gives the memory back; the slot can be used again."""
        if len(self.whole) and hasattr(mmap, "MADV_REMOVE"):
            _libc().madvise(self.whole.ctypes.data, len(self.whole), mmap.MADV_REMOVE)


def _whole_pages(size: int) -> int:
    return -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# ----------------------------------------------------------------------------------------------- writing


class Writer:
    """Lays one object out in a slot, from `start` on."""

    def __init__(self, slot: Slot, start: int = 0):
        self._slot = slot
        self._used = start
        self._mine: dict[int, tuple[np.ndarray, int]] = {}  # arrays that are in the slot already
        self._to_copy: list[tuple[int, Any]] = []
        self._buffers: list[int] = []  # start and length of each

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array in the slot, to be filled by the caller."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        offset = self._take(size)
        self._slot.reserve(offset + size)
        array = _array(self._slot.whole, offset, dtype, shape, "C")
        self._mine[id(array)] = array, offset
        return array

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array is one of the slot's."""
        return id(array) in self._mine

    def dump(self, value: Any, pickler: "Callable[[Writer, io.BytesIO], Pickler] | None" = None) -> Extent:
        """Puts an object into the slot."""
        stream = io.BytesIO()
        (pickler or Pickler)(self, stream).dump(value)
        pickled = np.frombuffer(stream.getbuffer(), np.uint8)
        buffers = np.array([len(self._buffers) // 2, *self._buffers], np.int64).view(np.uint8)
        start = _aligned(self._used)
        middle, end = start + len(buffers), start + len(buffers) + len(pickled)
        self._slot.reserve(end)
        whole = self._slot.whole
        for offset, data in self._to_copy:
            if isinstance(data, np.ndarray):
                _array(whole, offset, data.dtype, data.shape, _order(data))[...] = data
            else:
                whole[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        whole[start:middle], whole[middle:end] = buffers, pickled
        return Extent(end, start)

    def place(self, array: np.ndarray) -> int:
        """Where an array is going to be."""
        if id(array) in self._mine:
            return self._mine[id(array)][1]
        offset = self._take(array.nbytes)
        if array.nbytes:
            self._to_copy.append((offset, array))
        return offset

    def place_buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Takes the buffer of an object that is no array, such as Arrow's."""
        data = buffer.raw()
        offset = self._take(len(data))
        self._buffers += (offset, len(data))
        if len(data):
            self._to_copy.append((offset, data))

    def _take(self, size: int) -> int:
        offset = _aligned(self._used)
        self._used = offset + size
        return offset


received_classes: dict[type, str] = {}
"""In a worker: the classes that came with its plan, by the names that cloudpickle has given them in both processes."""


class ClassPickler(cloudpickle.Pickler):
    """Pickles functions and classes that only this process knows by value, but a class that was received by its name.

    By value, the consumer's own class would be overwritten with the worker's copy of it.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in received_classes:
            return _class_of_consumer, (received_classes[obj],)
        return super().reducer_override(obj)


def _class_of_consumer(name: str) -> type:
    return cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name]


class Pickler(ClassPickler):
    """Pickles all but arrays, which are put into a slot."""

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
    """An object, its arrays being views of the memory that it was laid out in."""
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


def _view(offset: int, dtype: Any, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return _array(_reading.memory, offset, np.dtype(dtype), shape, order)


def _array(memory: np.ndarray, offset: int, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype, order)
    return memory[offset : offset + size].view(dtype).reshape(shape, order=order)


class _Lease:
    """Is kept by all that looks at a slot."""

    def __init__(self, slot: Slot, size: int):
        self.number, self._whole = slot.number, slot.bytes(size)
        self.__array_interface__ = self._whole.__array_interface__

    def copy_out(self) -> None:
        """Puts memory of this process's own in the place of the slot's, with the same bytes at the same address."""
        address, size = self._whole.ctypes.data, _whole_pages(len(self._whole))
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if not hasattr(_libc(), "mremap"):  # not Linux: nobody may look at it meanwhile
            copied = self._whole.copy()
            _libc().mmap(address, size, access, flags | MAP_FIXED, -1, 0)
            self._whole[:] = copied
            return
        elsewhere = _libc().mmap(None, size, access, flags, -1, 0)
        ctypes.memmove(elsewhere, address, len(self._whole))
        # In one step: other threads, and computations under way, may be reading it.
        if _libc().mremap(elsewhere, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) != address:
            raise OSError(ctypes.get_errno(), "mremap")


class _LeaseEnd(weakref.ref):
    """Tells when a lease ends: at any moment and in any thread, so no lock is taken and no line of Python run."""

    __slots__ = ("number",)

    def __new__(cls, lease: _Lease, ended: "deque[_LeaseEnd]"):
        return super().__new__(cls, lease, ended.append)

    def __init__(self, lease: _Lease, ended: "deque[_LeaseEnd]"):
        self.number = lease.number


MAP_FIXED = 0x10
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2


class Slots:
    """The slots of a pool, as the consumer sees them: which are free, and which somebody looks at."""

    def __init__(self, max_leased: int):
        self.fd = anonymous_file(NUM_SLOTS)
        self._max_leased = max_leased
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._leases: dict[int, _LeaseEnd] = {}
        self._ended: deque[_LeaseEnd] = deque()
        self._high: dict[int, int] = {}  # by slot, the most bytes that were in use since it was cleaned
        self._in_use: dict[int, int] = {}
        self._typical_bytes = 0.0
        _all_slots.add(self)

    def take(self) -> Slot:
        """A free slot; the one used last, whose memory is likely to be at hand."""
        self._collect()
        if self._free:
            return self._free.pop()
        self._slots.append(Slot(self.fd, len(self._slots)))
        return self._slots[-1]

    def give_back(self, slot: Slot, size: int = 0) -> None:
        """A slot is free; `size` bytes of it have been in use."""
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
        """What is in a slot; its arrays keep the slot, or are copies where too many slots are kept already."""
        self._collect()
        if extent.total <= SMALL_BYTES or len(self._leases) >= self._max_leased:
            return self.read_copy(slot, extent)
        self._in_use[slot.number] = extent.total
        lease = _Lease(slot, extent.total)
        self._leases[slot.number] = _LeaseEnd(lease, self._ended)
        return read(np.asarray(lease), extent)

    def read_copy(self, slot: Slot, extent: Extent) -> Any:
        """What is in a slot, in memory of its own; the slot is free."""
        memory = slot.bytes(extent.total).copy()
        self.give_back(slot, extent.total)
        return read(memory, extent)

    def _collect(self) -> None:
        """Takes back the slots that nobody looks at any more."""
        while self._ended:
            end = self._ended.popleft()
            if self._leases.get(end.number) is end:  # or it was copied out, and the slot is somebody else's now
                self._take_back(end.number)

    def _take_back(self, number: int) -> None:
        del self._leases[number]
        self.give_back(self._slots[number], self._in_use.pop(number))

    def copy_out(self) -> None:
        """Before a fork: copies what is looked at out of its slots, which are free then.

        In a fork it would change with its slot, whenever a worker writes there again.
        """
        for number, end in list(self._leases.items()):
            lease = end()
            if lease is not None:
                lease.copy_out()
                if self.fd >= 0:
                    self._slots[number].unmap()  # it is mapped anew when it is used again
                    self._take_back(number)

    def close(self) -> None:
        """Lets go of the memory; what is still looked at stays until it is not."""
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
