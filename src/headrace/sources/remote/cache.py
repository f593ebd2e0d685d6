"""A folder of pieces of remote files, of limited size and private to this user.

Environment: `HEADRACE_CACHE` is the folder (`~/.cache/headrace` by default), `HEADRACE_CACHE_BYTES` its size limit (10
GiB by default, 0 for no cache).
"""

import contextlib
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator

from headrace.errors import PipelineError, RemoteError
from headrace.sources.files import cache_folder
from headrace.sources.private import Untrusted, check_file, check_folder, make_folder, open_lock, open_trusted

CACHE_BYTES = 10 << 30
LOCK = ".lock"
_PARTIAL = re.compile(r"\.partial-(\d+)-")


def the_cache() -> "Cache":
    """The cache that the environment configures; unused if others may write to its folder."""
    most_bytes = os.environ.get("HEADRACE_CACHE_BYTES") or str(CACHE_BYTES)
    if not most_bytes.isdecimal():
        raise PipelineError(f"HEADRACE_CACHE_BYTES must be a number of bytes; got {most_bytes!r}.")
    folder = os.path.join(cache_folder(), "remote")
    try:
        check_folder(folder, within=cache_folder())
    except Untrusted as e:
        return Cache(folder, 0, why_not=str(e))
    return Cache(folder, int(most_bytes))


class Cache:
    """Pieces in a folder, of which the least recently used is removed first; threads and processes may share it.

    A piece appears under its name when it is complete; until then, the name of its file states its final size. The lock
    file has the total, which may be too large (a writer was killed, somebody removed pieces) but never too small: if it
    leaves no room, the folder is searched and the total corrected.

    Args:
        folder: The folder, created private to this user.
        most_bytes: Its size limit.
        why_not: Why the cache is not used, if so.
    """

    def __init__(self, folder: str, most_bytes: int, *, why_not: str = ""):
        self.folder, self.most_bytes, self.why_not = folder, most_bytes, why_not

    def fits(self, num_bytes: int) -> bool:
        """Whether this many bytes may be kept at all."""
        return num_bytes <= self.most_bytes and not self.why_not

    def get(self, name: str, length: int) -> bytes | None:
        """A piece, if it exists and is complete."""
        if self.why_not:
            return None
        try:
            with open_trusted(os.path.join(self.folder, name)) as file:
                piece = file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        return piece if len(piece) == length else None

    def put(self, name: str, piece: bytes) -> None:
        """Keeps a piece, if it can."""
        if self.fits(len(piece)):
            with contextlib.suppress(OSError):  # a full disk, another user's folder: reading continues
                self.keep(name, len(piece), lambda partial: pathlib.Path(partial).write_bytes(piece))

    def keep(self, name: str, size: int, make: Callable[[str], object]) -> str:
        """The path of a piece; if it does not exist, `make` writes it to a given path."""
        path = os.path.join(self.folder, name)
        with contextlib.suppress(FileNotFoundError, Untrusted):
            if check_file(path).st_size == size:
                os.utime(path)
                return path
        partial = self._reserve(size)
        try:
            make(partial)
            self._name(partial, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise
        return path

    def _reserve(self, size: int) -> str:
        """The path of a new file for this many bytes."""
        make_folder(self.folder)
        with self._locked() as lock:
            text = os.pread(lock, 20, 0)
            total = int(text) if text.isdigit() else self.most_bytes
            if total + size > self.most_bytes:
                total = self._make_room(size)
            os.pwrite(lock, b"%020d" % (total + size), 0)
            fd, partial = tempfile.mkstemp(prefix=f".partial-{size}-", dir=self.folder)
        os.close(fd)
        return partial

    def _name(self, partial: str, path: str) -> None:
        """Renames a complete piece."""
        with self._locked():  # otherwise somebody who makes room may remove the folder
            if not os.path.exists(partial):
                raise RemoteError(
                    f"The cache {self.folder} holds {self.most_bytes} bytes, too few for what is copied to it at once: "
                    "raise HEADRACE_CACHE_BYTES."
                )
            make_folder(os.path.dirname(path))
            os.replace(partial, path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Locks out all other threads and processes that make room or rename; yields the lock file."""
        fd = open_lock(os.path.join(self.folder, LOCK))
        try:
            with contextlib.suppress(ImportError, OSError):  # Windows, and some network file systems, have no locks
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            os.close(fd)

    def _make_room(self, size: int) -> int:
        """Removes the least recently used pieces to make room for `size` bytes; returns the bytes left."""
        found = sorted(self._files())
        total = sum(num_bytes for _, num_bytes, _ in found)
        if total + size <= self.most_bytes:
            return total
        enough = max(
            0, self.most_bytes - max(size, self.most_bytes // 10)
        )  # with spare room, to avoid another search soon
        for _, num_bytes, path in found:
            if total <= enough:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= num_bytes
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))
        return total

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """When each file was last used, its current or final size, and its path."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                promised = _PARTIAL.match(name)
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    if name != LOCK:
                        yield status.st_mtime, int(promised[1]) if promised else status.st_size, path
