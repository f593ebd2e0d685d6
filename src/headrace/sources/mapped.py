"""Checks that local files which libraries have mapped did not change.

Reading a mapped file that was truncated kills the process, and reading one that was overwritten mixes two versions. A
file can still change between check and read, so this guards against accidents, such as copying over a file in use.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.sources import files

FEW = 8
LOOKING_S = 5e-3  # how often more than a few files are checked: each takes two microseconds


class MappedFiles:
    """The versions of files; deleted files are fine, since they stay readable while mapped."""

    def __init__(self, paths: Iterable[str] = ()):
        self._versions: dict[str, tuple[int, int]] = {}
        self._looked_at_s = 0.0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self.add(path)

    def add(self, path: str) -> None:
        """Records the current version of a local file; raises if it had another one before."""
        if not files.is_remote(path):
            found = files.version_of(os.stat(path))
            if found != self._versions.setdefault(path, found):
                raise files.changed(path)

    def size_of(self, path: str) -> int | None:
        """The size of a file, if it existed."""
        return self._versions[path][0] if path in self._versions else None

    def check(self, paths: Sequence[str]) -> None:
        """Raises if one of these was truncated, written to or replaced; to be called before each block is read."""
        if len(paths) > FEW:
            now = time.monotonic()
            if now - self._looked_at_s < LOOKING_S:
                return
            self._looked_at_s = now
        for path in paths:
            version = self._versions.get(path)
            with contextlib.suppress(FileNotFoundError):
                if version is not None and files.version_of(os.stat(path)) != version:
                    raise files.changed(path)

    def check_all(self) -> None:
        """The same for all files."""
        self.check(list(self._versions))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_looked_at_s": 0.0}  # another process may have another clock
