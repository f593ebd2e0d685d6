"""Files of this machine that libraries have mapped: whether they still are what they were.

To read what is mapped of a file that was cut short ends the process, and to read one that was written to gives a mix
of two files. Nothing can be done between a look and the read after it, so this is for accidents: a copy that goes over
a file in use, a program that writes it again.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.sources import files

FEW = 8
LOOKING_S = 5e-3  # how often more files than a few are looked at: to look at one takes two microseconds


class MappedFiles:
    """The versions of files; those that nobody can find any more are still there for whoever has mapped them."""

    def __init__(self, paths: Iterable[str] = ()):
        self._versions: dict[str, tuple[int, int]] = {}
        self._looked_at_s = 0.0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.add(path)

    def add(self, path: str) -> None:
        """Takes the version that a file of this machine has now; raises if it had another one before."""
        if not files.is_remote(path):
            found = _version(path)
            if found != self._versions.setdefault(path, found):
                raise files.changed(path)

    def size_of(self, path: str) -> int | None:
        """The bytes that a file has, if it is there."""
        return self._versions[path][0] if path in self._versions else None

    def check(self, paths: Sequence[str]) -> None:
        """Raises if one of these was cut short or written to, or is another one: for each block, before it is read."""
        if len(paths) > FEW and not self._is_time():
            return
        for path in paths:
            version = self._versions.get(path)
            with contextlib.suppress(FileNotFoundError):
                if version is not None and _version(path) != version:
                    raise files.changed(path)

    def check_all(self) -> None:
        """The same for all files, for blocks from many of them."""
        self.check(list(self._versions))

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at_s < LOOKING_S:
            return False
        self._looked_at_s = now
        return True

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_looked_at_s": 0.0}  # the clock of another machine is another


def _version(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
