"""Named shared memory, which users share between their processes.

Memory goes when the last object on it does. If a user has given its name or asked for it, it stays until the process
that made it ends, or until somebody unlinks it.

A process that is killed removes nothing. So the maker of a name holds a lock on its memory, which the system releases
however the process dies: memory of ours that nobody locks is abandoned, and the next process that makes memory removes
it. Memory belongs to one user: what another user owns, or may write to, is not read.
"""

import atexit
import errno
import mmap
import os
import re
import secrets
import stat
from typing import Any, NamedTuple

from headrace._utils.signals import let_through, suppress
from headrace.errors import HeadraceError, PipelineError

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
        mark: The first bytes of the memory. They tell memory of this library from that of others if a name that the
            user gives is taken.
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
                f"There is no shared memory of the name {self.name!r}: it was removed, or its maker has ended."
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
                        f"There is shared memory of the name {self.name!r} already: choose another, or attach to it by "
                        "giving the name alone."
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
                f"There is no room for {size / 2**20:,.0f} MiB of shared memory: {free / 2**20:,.0f} MiB are free in "
                "/dev/shm. Make it larger, or share less."
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
        return f"it belongs to the user {status.st_uid}, and this process runs as {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to it (its mode is {stat.S_IMODE(status.st_mode):o})"
    return ""


def _untrusted(name: str, why: str) -> PipelineError:
    return PipelineError(
        f"Will not read the shared memory {name!r}: {why}, and objects that others put there could run their code "
        "here. Only processes of one user can share memory; choose another name, or remove it."
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
