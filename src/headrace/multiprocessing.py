"""Arrays in named shared memory, for processes that users start.

Memory that a killed process leaves behind is removed by the next process that makes some, and memory that another user
could have written is never read.
"""

import atexit
import contextlib
import errno
import math
import mmap
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError, PipelineError
from headrace.errors.signals import let_through, suppress
from headrace.options import MultiprocessingOptions as MultiprocessingOptions

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory


# --------------------------------------------------------------------------------------------------- shared memory
# Named shared memory, which users share between their processes.
#
# Memory goes when the last object on it does. If a user has given its name or asked for it, it stays until the process
# that made it ends, or until somebody unlinks it.
#
# A process that is killed removes nothing. So the maker of a name holds a lock on its memory, which the system releases
# however the process dies: memory of ours that nobody locks is abandoned, and the next process that makes memory
# removes it. Memory belongs to one user: what another user owns, or may write to, is not read.


try:
    import _posixshmem
except ImportError:  # Windows
    _posixshmem: Any = None
try:
    import fcntl
except ImportError:
    fcntl: Any = None

FOLDER = "/dev/shm"
LOCKS = fcntl is not None and os.path.isdir(FOLDER)  # not on macOS
MARK_BYTES = 8
# The `k` says that a lock keeps the memory: names without it may be from an older version, which had no locks.
_FRESH = re.compile(r"headrace_\d+_k[0-9a-f]{11}")


class NamedMemory:
    """Bytes that other processes find by name; `created` says whether this process made them.

    Args:
        name: The name; by default one that is free.
        size: How many bytes to make; without it, the memory must exist.
        mark: The first bytes of the memory. They distinguish memory of this library from that of others, if a name that
            the user chose is taken.
    """

    def __init__(self, name: str | None = None, *, size: int | None = None, mark: bytes = b""):
        if _posixshmem is None:
            raise HeadraceError("Named shared memory needs a POSIX system.")
        self.created = False
        self._kept = False
        self._pid = os.getpid()
        self.name = name or _fresh_name()
        fd = self._found() if size is None else self._new(mark, given=name is not None)
        try:
            if size is not None:
                self._allocate(fd, max(size, 1))
            self.buffer = mmap.mmap(fd, 0)
        except BaseException:
            if self.created:
                self.unlink()
            raise
        finally:
            os.close(fd)

    def _found(self) -> int:
        """The descriptor of existing memory, which only this user may write to."""
        try:
            fd = _open(self.name, os.O_RDWR)
        except FileNotFoundError:
            raise PipelineError(
                f"There is no shared memory named {self.name!r}: it was removed, or its creator has ended."
            ) from None
        except PermissionError:
            raise _untrusted(self.name, "it belongs to another user") from None
        why = _others_hand(os.fstat(fd))
        if why:
            os.close(fd)
            raise _untrusted(self.name, why)
        return fd

    def _new(self, mark: bytes, *, given: bool) -> int:
        """The descriptor of new memory, which this process locks."""
        _sweep_once()
        while True:
            try:
                fd = _open(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                if not given:
                    self.name = _fresh_name()
                elif not mark or not _remove_abandoned(self.name, mark[:MARK_BYTES]):
                    raise PipelineError(
                        f"Shared memory named {self.name!r} already exists: choose another name, or attach to it "
                        "by passing only the name."
                    ) from None
                continue
            # A name that the user gave has its own lock: the mapping lives on in children that outlive its maker.
            lock = _hold_apart(self.name, fd) if given else None
            if not LOCKS or lock is not None or (not given and _hold(fd)):
                break
            os.close(fd)  # somebody removed it as abandoned before it was locked
        self.created = True
        _made[self.name] = _Made(self._pid, lock)
        if LOCKS:
            os.pwrite(fd, mark, 0)
        return fd

    def _allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            there = os.fstatvfs(fd)
            free = there.f_bavail * there.f_frsize
            raise MemoryError(
                f"Not enough room for {size / 2**20:,.0f} MiB of shared memory: {free / 2**20:,.0f} MiB are free "
                "in /dev/shm. Enlarge it, or share less."
            ) from e

    def keep(self) -> None:
        """Lets the name outlive this object."""
        self._kept = True
        made = _made.get(self.name)
        if made is not None and made.lock is None:  # so far the mapping holds it, and goes with the object
            _made[self.name] = made._replace(lock=_hold_apart(self.name))

    def unlink(self) -> None:
        """Removes the name; the memory goes with the last object on it."""
        remove(self.name)

    def __del__(self, getpid=os.getpid):
        if getattr(self, "created", False) and not self._kept and self._pid == getpid() and self.name in _made:
            self.unlink()


class _Made(NamedTuple):
    """A name to remove at exit: the process that made it, and its own lock, if it has one."""

    pid: int
    lock: int | None

    def remove(self, name: str) -> None:
        if self.lock is None or os.fstat(self.lock).st_nlink:  # otherwise it is gone, or belongs to others
            _unlink(name)
        if self.lock is not None:
            os.close(self.lock)


_made: dict[str, _Made] = {}


def remove(name: str) -> None:
    """Removes a name, if it is there."""
    made = _made.pop(name, None)
    if made is not None:
        made.remove(name)
    else:
        _unlink(name)


_swept_by = 0  # the process that has looked for abandoned memory


def _fresh_name() -> str:
    return f"headrace_{os.getpid()}_k{secrets.token_hex(6)[:11]}"


def _open(name: str, flags: int) -> int:
    return _posixshmem.shm_open(f"/{name}", flags, 0o600)


def _unlink(name: str) -> None:
    with suppress(FileNotFoundError):
        _posixshmem.shm_unlink(f"/{name}")


# ------------------------------------------------------------------------------------- who may have written


def _others_hand(status: os.stat_result) -> str:
    """Why other users may have written to memory; empty if they cannot have."""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _untrusted(name: str, why: str) -> PipelineError:
    return PipelineError(
        f"Refusing to read the shared memory {name!r}: {why}, and objects that others stored there could run "
        "their code here. Only processes of the same user can share memory; choose another name, or remove "
        "it."
    )


# ---------------------------------------------------------------------------------------- what nobody holds


def _hold(fd: int) -> bool:
    """Locks memory until this descriptor and its copies are closed; false if somebody was removing it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0


def _hold_apart(name: str, fd: int | None = None) -> int | None:
    """A separate descriptor that locks the memory of `fd`; `None` if the name has other memory, or without locks."""
    if not LOCKS:
        return None
    try:
        lock = _open(name, os.O_RDWR)
    except FileNotFoundError:
        return None
    if _hold(lock) and (fd is None or os.path.samestat(os.fstat(lock), os.fstat(fd))):
        return lock
    os.close(lock)
    return None


def _remove_abandoned(name: str, mark: bytes = b"") -> bool:
    """Removes memory of ours that nobody locks; returns whether the name may be free now."""
    if not LOCKS:
        return False
    try:
        fd = _open(name, os.O_RDWR)
    except OSError as e:
        let_through(e)
        return isinstance(e, FileNotFoundError)
    try:
        if _others_hand(os.fstat(fd)) or os.pread(fd, len(mark), 0) != mark:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink:
            _unlink(name)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def _sweep_once() -> None:
    """Removes what killed processes have left, the first time that this process makes memory."""
    global _swept_by
    if _swept_by == os.getpid() or not LOCKS:
        return
    _swept_by = os.getpid()
    for name in os.listdir(FOLDER):
        if _FRESH.fullmatch(name):
            _remove_abandoned(name)


def _let_go_in_child() -> None:
    """Closes the locks of the parent in a child: a child that lives on must not hold them."""
    for made in _made.values():
        if made.lock is not None:
            os.close(made.lock)
    _made.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


@atexit.register
def _unlink_all() -> None:
    for name, made in list(_made.items()):
        if made.pid == os.getpid():
            _made.pop(name)
            made.remove(name)


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
            raise PipelineError(f"The shape of a SharedMemoryArray must consist of nonnegative ints; got {shape!r}.")
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
            raise PipelineError("A SharedMemoryArray cannot hold Python objects, but the metadata has an object dtype.")
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
        """Pickles the array as a copy when a worker sends it, since the memory ends with the worker."""
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
