"""The descriptors of this process: all sources share them, and what is idle gives way."""

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
    """The files that this process keeps open, for all sources: half of its descriptors at most.

    Of those of all holders, the least recently used is dropped first. No lock of a holder is taken under its own.
    """

    def __init__(self):
        self._used: OrderedDict[tuple[int, str], weakref.ref[Holder]] = OrderedDict()
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._new_lock)

    def _new_lock(self) -> None:
        self._lock = threading.Lock()  # a thread that is not in this process may have had the other one

    def use(self, holder: "Holder", path: str) -> None:
        """Tells that a holder keeps a file, which was used just now."""
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
        """Tells that a holder keeps these no longer."""
        with self._lock:
            for path in paths:
                self._used.pop((id(holder), path), None)

    def drop_all(self) -> None:
        """Closes all that nobody reads."""
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
        """What a call opens; when it finds no descriptor left, once more after all that is idle was closed."""
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
    """Whether an error, also of a library that only has words for it, says that too many files are open."""
    number = error.errno if isinstance(error, OSError) else None
    return number in (errno.EMFILE, errno.ENFILE) or os.strerror(errno.EMFILE) in str(error)


def out_of_descriptors(path: str) -> OSError:
    """The error for a file that is well, and cannot be opened since others are."""
    return OSError(
        errno.EMFILE,
        f"Too many open files: this process may have {most_descriptors()}, and other code has them. Close files, or "
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
    """Keeps files open that nobody reads at the moment; the least recently used is closed first."""

    def __init__(self, most: int):
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[str, Any] = {}

    def _hold(self, path: str, file: Any) -> Any:
        """Keeps a file, as the one that was used last; of two that were opened at once, the first."""
        with self._lock:
            file = self._held.setdefault(path, file)
            oldest = next(iter(self._held)) if len(self._held) > self._most else None
        if oldest is not None:
            self.drop(oldest)
            KEPT.forget(self, [oldest])
        return file

    def drop(self, path: str) -> None:
        """Closes a file, if it is kept."""
        with self._lock:
            file = self._held.pop(path, None)
        if file is not None:
            self._close(file)

    def close(self) -> None:
        """Closes all; reading opens them again."""
        with self._lock:
            held, self._held = self._held, {}
        KEPT.forget(self, list(held))
        for file in held.values():
            self._close(file)

    def _close(self, file: Any) -> None:
        """Closes a file; by default, it is closed when the last one who reads it lets go."""
