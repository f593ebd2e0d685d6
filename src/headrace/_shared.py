"""Named shared memory: for what users share between processes of their own.

Memory without a name that somebody has asked for goes when the last object on it does. A name that was given or
asked for stays until the process that made it ends, or until somebody unlinks it.
"""

import atexit
import contextlib
import errno
import mmap
import os
import secrets
from typing import Any

from headrace.errors import HeadraceError, PipelineError

try:
    import _posixshmem
except ImportError:  # Windows
    _posixshmem: Any = None


class NamedMemory:
    """Bytes that other processes find by their name; `created` where this process made them."""

    def __init__(self, name: str | None = None, *, size: int | None = None):
        if _posixshmem is None:
            raise HeadraceError("Named shared memory needs a POSIX system.")
        self.created = False
        self._kept = False
        self._pid = os.getpid()
        self.name = name or f"headrace_{self._pid}_{secrets.token_hex(6)}"
        fd = self._open(os.O_RDWR | (0 if size is None else os.O_CREAT | os.O_EXCL))
        if size is not None:
            self.created = True
            _made[self.name] = self._pid
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

    def _open(self, flags: int) -> int:
        try:
            return _posixshmem.shm_open(f"/{self.name}", flags, 0o600)
        except FileExistsError:
            raise PipelineError(
                f"There is shared memory of the name {self.name!r} already: choose another, or attach to it by giving "
                "the name alone."
            ) from None
        except FileNotFoundError:
            raise PipelineError(
                f"There is no shared memory of the name {self.name!r}: it was removed, or its maker has ended."
            ) from None

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
                f"Shared memory of {size / 2**20:,.0f} MiB was asked for, and {free / 2**20:,.0f} MiB are free in "
                "/dev/shm. Make it larger, or share less."
            ) from e

    def keep(self) -> None:
        """Lets the name outlive this object."""
        self._kept = True

    def unlink(self) -> None:
        """Removes the name; the memory goes with the last object on it."""
        _made.pop(self.name, None)
        with contextlib.suppress(FileNotFoundError):
            _posixshmem.shm_unlink(f"/{self.name}")

    def __del__(self, getpid=os.getpid):
        if getattr(self, "created", False) and not self._kept and self._pid == getpid() and self.name in _made:
            self.unlink()


_made: dict[str, int] = {}  # names that are to be removed at exit, by the process that made them


@atexit.register
def _unlink_all() -> None:
    for name, pid in list(_made.items()):
        if pid == os.getpid():
            _made.pop(name)
            with contextlib.suppress(FileNotFoundError):
                _posixshmem.shm_unlink(f"/{name}")
