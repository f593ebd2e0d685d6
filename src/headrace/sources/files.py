"""Files, wherever they are: which ones a path or pattern means, and bytes of them by offset.

A path with a protocol (`s3://`, `gs://`, `http://`, `memory://`, `zip://`) is read through fsspec, see `remote.py`; any
other is a local file. Nothing is opened before it is read, and a pool keeps no more files open than it is told.
"""

import concurrent.futures
import glob
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

from headrace.errors import PipelineError

LOOKING_THREADS = 16
_ADDRESS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*(::[a-zA-Z0-9+.:-]*)?://")


class Fingerprint(NamedTuple):
    """What tells one version of a file from another."""

    size: int
    version: str  # its modification time, or what a server says of it


class File(Protocol):
    """Bytes by offset; several threads may read at once."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, or fewer at the end."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several pieces, each an offset and a length; from far away they come at once."""
        ...

    def close(self) -> None: ...


def is_remote(path: str) -> bool:
    """Whether a path is an address that fsspec understands."""
    return _ADDRESS.match(path) is not None


def expand(paths: Any, *, what: str) -> list[str]:
    """The files that a path, a pattern (`*`, `?`, `[…]`), or a sequence of these means, in a fixed order.

    What a pattern matches is sorted by name, whatever the file system says. Raises `FileNotFoundError` with all that
    is missing, before anything is read. `what` names the kind of files in messages.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not all(isinstance(path, str | os.PathLike) for path in given):
        raise PipelineError(f"{what} are given by a path, a pattern, or a sequence of these; got {paths!r}.")
    if not given:
        raise PipelineError(f"{what} need at least one path; got an empty sequence.")
    found, missing = [], []
    with concurrent.futures.ThreadPoolExecutor(min(LOOKING_THREADS, len(given))) as pool:
        for path, matches in zip(given, pool.map(_matches, map(os.fsdecode, given)), strict=True):
            found += matches
            missing += [] if matches else [os.fsdecode(path)]
    if missing:
        shown = ", ".join(missing[:20]) + (", …" if len(missing) > 20 else "")
        raise FileNotFoundError(f"{len(missing)} of {len(given)} paths of {what} match no file: {shown}.")
    return found


def _matches(path: str) -> list[str]:
    if is_remote(path):
        from headrace.sources import remote

        return remote.matches(path)
    if os.path.exists(path):  # also one whose name looks like a pattern
        return [path]
    return sorted(glob.glob(path)) if glob.has_magic(path) else []


def open_file(path: str) -> File:
    """A file to be read by offset."""
    if is_remote(path):
        from headrace.sources import remote

        return remote.RemoteFile(path)
    return LocalFile(path)


def open_stream(path: str) -> BinaryIO:
    """A file to be read from its start, buffered, as its bytes are; the caller closes it."""
    if is_remote(path):
        from headrace.sources import remote

        return remote.open_stream(path)
    return io.open(path, "rb")  # noqa: UP020  (`open` is also the name of a function of this package)


def fingerprint(path: str) -> Fingerprint:
    """What tells this version of the file from another."""
    if is_remote(path):
        from headrace.sources import remote

        return remote.fingerprint(path)
    status = os.stat(path)
    return Fingerprint(status.st_size, str(status.st_mtime_ns))


class LocalFile:
    """A file on this machine."""

    _fd = -1

    def __init__(self, path: str):
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.size = os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        fd, pread = self._fd, os.pread
        return [pread(fd, length, offset) for offset, length in ranges]

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, close=os.close):
        if self._fd >= 0:
            close(self._fd)


class Pool:
    """Files that are open, the least recently used closed first; it travels to other processes without them."""

    def __init__(self, most_open: int = 256):
        self._most_open = most_open
        self._open: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> File:
        """The file at a path; it stays usable for whoever got it, also after it has left the pool."""
        with self._lock:
            file = self._open.get(path)
            if file is None:
                file = self._open[path] = open_file(path)
                if len(self._open) > self._most_open:
                    self._open.popitem(last=False)  # closed when the last one who reads it lets go
            else:
                self._open.move_to_end(path)
            return file

    def close(self) -> None:
        """Closes all; reading opens them again."""
        with self._lock:
            self._open.clear()

    def __getstate__(self) -> int:
        return self._most_open

    def __setstate__(self, most_open: int) -> None:
        self.__init__(most_open)
