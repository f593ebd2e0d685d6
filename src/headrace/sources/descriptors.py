"""The file descriptors of this process: all sources share them, and idle files are closed when they run out."""

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace._utils.addresses import redacted

T = TypeVar("T")


class Kept:
    """The files that all sources of this process keep open: at most half of its descriptors.

    The least recently used file of all holders is dropped first. Holders are called without holding the lock here.
    """

    def __init__(self):
        self._used: OrderedDict[tuple[int, str], weakref.ref[Holder]] = OrderedDict()
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._new_lock)

    def _new_lock(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held the old one

    def use(self, holder: "Holder", path: str) -> None:
        """Records that a holder keeps a file and has just used it."""
        key, dropped = (id(holder), path), []
        with self._lock:
            found = self._used.get(key)
            if found is not None and found() is holder:
                self._used.move_to_end(key)
                return
            self._used[key] = weakref.ref(holder)
            self._used.move_to_end(key)
            most = most_descriptors() // 2
            while len(self._used) > most:
                dropped.append(self._used.popitem(last=False))
        self._drop(dropped)

    def forget(self, holder: "Holder", paths: Sequence[str]) -> None:
        """Records that a holder no longer keeps these files."""
        with self._lock:
            for path in paths:
                self._used.pop((id(holder), path), None)

    def drop_all(self) -> None:
        """Closes all idle files."""
        with self._lock:
            dropped = list(self._used.items())
            self._used.clear()
        self._drop(dropped)

    def _drop(self, dropped: list[tuple[tuple[int, str], "weakref.ref[Holder]"]]) -> None:
        for (_, path), holder in dropped:
            found = holder()
            if found is not None:
                found.drop(path)

    def opened(self, path: str, call: Callable[[str], T]) -> T:
        """Calls a function that opens a file; if no descriptor is left, closes all idle files and tries again."""
        try:
            return call(path)
        except Exception as e:
            if not is_out_of_descriptors(e):
                raise
        self.drop_all()
        try:
            return call(path)
        except Exception as e:
            if not is_out_of_descriptors(e):
                raise
            raise out_of_descriptors(path) from e


def is_out_of_descriptors(error: Exception) -> bool:
    """Whether an error, maybe one of a library without `errno`, means that too many files are open."""
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in str(error)


def out_of_descriptors(path: str) -> OSError:
    """The error for a file that cannot be opened because too many others are."""
    return OSError(
        errno.EMFILE,
        f"Too many open files: this process may have {most_descriptors()}, and other code uses them. Close files, or "
        "raise the limit with `ulimit -n`",
        redacted(path),
    )


def most_descriptors() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 512
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 20


KEPT = Kept()


class Holder:
    """Keeps idle files open; the least recently used is closed first."""

    is_volatile = True  # no part of what a source is

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[str, Any] = {}

    def _hold(self, path: str, file: Any) -> Any:
        """Keeps a file as the most recently used; if two threads opened it, the first one counts."""
        with self._lock:
            file = self._held.setdefault(path, file)
            oldest = next(iter(self._held)) if len(self._held) > self._most else None
        if oldest is not None:
            self.drop(oldest)
            KEPT.forget(self, [oldest])
        return file

    def drop(self, path: str) -> None:
        """Closes a file, if it is kept here."""
        with self._lock:
            file = self._held.pop(path, None)
        if file is not None:
            self._close(file)

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        with self._lock:
            held, self._held = self._held, {}
        KEPT.forget(self, list(held))
        for file in held.values():
            self._close(file)

    def _close(self, file: Any) -> None:
        """Closes a file; by default, this is left to the last reader that drops it."""
