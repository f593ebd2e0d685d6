"""Local and remote files: which ones a path or pattern means, and their bytes by offset.

A path with a protocol (`s3://`, `gs://`, `http://`, `memory://`, `zip://`) is read through fsspec, see
`headrace.storage.remote`; any other is a local file. Files are opened when they are first read. A pool limits how many
are open, and insists on one version of each file for as long as it exists, in all processes.
"""

import contextlib
import errno
import glob
import hashlib
import io
import itertools
import math
import mmap
import os
import re
import stat
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from headrace.errors import DataError, PipelineError
from headrace.errors.addresses import digest, identity, redacted, with_identity_digest
from headrace.threads import map_in_threads

# ----------------------------------------------------------------------------------------------------- descriptors
# The file descriptors of this process: all sources share them, and idle files are closed when they run out.


T = TypeVar("T")


class OpenFiles:
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
        key = (id(holder), path)
        dropped = []
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

    def open(self, path: str, call: Callable[[str], T]) -> T:
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
        f"Too many open files: this process is limited to {most_descriptors()}, and other code holds them. "
        "Close files, or raise the limit with `ulimit -n`",
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


KEPT = OpenFiles()


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
            held = self._held
            self._held = {}
        KEPT.forget(self, list(held))
        for file in held.values():
            self._close(file)

    def _close(self, file: Any) -> None:
        """Closes a file; by default, this is left to the last reader that drops it."""


LOOKING_THREADS = 16
READING_THREADS = 16
GZIP = b"\x1f\x8b\x08"  # the first bytes of compressed files
ZSTD = b"\x28\xb5\x2f\xfd"
MOST_IN_BRACES = 100_000
_BRACES = re.compile(r"\{([^{},]*(?:,[^{},]*)+|\d+\.\.\d+)\}", re.ASCII)
_ADDRESS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*(::[a-zA-Z0-9+.:-]*)?://")


class Fingerprint(NamedTuple):
    """The version of a file."""

    size: int
    version: str  # its modification time, or what the server reports


class File(Protocol):
    """Bytes by offset; several threads may read at once."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> Fingerprint: ...

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, or fewer at the end of the file."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several pieces, each given by offset and length; remote ones are fetched concurrently."""
        ...

    def close(self) -> None: ...


def is_remote(path: str) -> bool:
    """Whether a path is an address that fsspec understands."""
    return _ADDRESS.match(path) is not None


def _remote() -> Any:
    """The module that reads addresses, imported when it is first needed."""
    from headrace.storage import remote

    return remote


def local_copy(path: str) -> str:
    """A local path to the bytes, for libraries that open files themselves."""
    return _remote().local_copy(path) if is_remote(path) else path


def absolute(path: str | os.PathLike) -> str:
    """An absolute path, or the address as it is."""
    return path if isinstance(path, str) and is_remote(path) else os.path.abspath(os.fsdecode(path))


def is_folder(path: str) -> bool:
    """Whether a path is a folder."""
    return _remote().is_folder(path) if is_remote(path) else os.path.isdir(path)


def list_folder(folder: str) -> list[str]:
    """The sorted paths of what is in a folder."""
    if is_remote(folder):
        return _remote().list_folder(folder)
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def base_name(path: str) -> str:
    """The last part of a path or address."""
    return _remote().file_name(path) if is_remote(path) else os.path.basename(path)


def expand(paths: Any, *, what: str, folders: bool = False) -> list[str]:
    """The files that a path, a pattern (`*`, `?`, `[…]`, `{000..009}`), or a sequence of these means, in a fixed order.

    The matches of a pattern are sorted by name; those of names in braces keep the order in the braces. Raises
    `FileNotFoundError` that names all missing paths, before anything is read, and an error for a folder unless
    `folders`. `what` is the kind of files, for messages.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    if not isinstance(given, Sequence) or not all(isinstance(path, str | os.PathLike) for path in given):
        raise PipelineError(f"{what} need a path, a pattern, or a sequence of these; got {paths!r}.")
    if not given:
        raise PipelineError(f"{what} need at least one path; got an empty sequence.")
    given = [one for path in given for one in expand_braces(os.fsdecode(path))]
    found = []
    missing = []
    size = max(1, len(given) // (4 * LOOKING_THREADS))  # of a share: a task for each of many paths would take longer
    shares = [given[i : i + size] for i in range(0, len(given), size)]
    every = map_in_threads(lambda share: list(map(_matches, share)), shares, LOOKING_THREADS, "headrace-look")
    for path, matches in zip(given, itertools.chain.from_iterable(every), strict=True):
        found += matches
        missing += [] if matches else [path]
    if missing:
        raise not_found(missing, len(given), what=what)
    if len(found) == 1 and not folders:
        check_no_folder(found[0], what=what)
    return found


def check_no_folder(path: str, *, what: str) -> None:
    """Raises if a path is that of a local folder."""
    if not is_remote(path) and os.path.isdir(path):
        raise DataError(
            f"{path} is a folder, not a file. Pass a pattern for its {what}, such as {os.path.join(path, '*')!r}, "
            f"or let `headrace.open({path!r})` detect its contents."
        )


def expand_braces(path: str) -> list[str]:
    """The paths that one with braces means: `{000..009}` stands for numbers, `{a,b}` for names; not braces in braces.

    >>> expand_braces("data/{train,test}-{08..10}.tar")[:4]
    ['data/train-08.tar', 'data/train-09.tar', 'data/train-10.tar', 'data/test-08.tar']
    """
    parts = _BRACES.split(path)  # plain text and what is in braces, in turn
    if len(parts) == 1 or any(sign in text for text in parts[::2] for sign in "{}") or os.path.exists(path):
        return [path]
    choices = [_choices(text) if i % 2 else [text] for i, text in enumerate(parts)]
    if math.prod(map(len, choices)) > MOST_IN_BRACES:
        raise PipelineError(f"{path} expands to {math.prod(map(len, choices))} files; the limit is {MOST_IN_BRACES}.")
    return [with_options_of(path, "".join(chosen)) for chosen in itertools.product(*choices)]


def _choices(text: str) -> Sequence[str]:
    """What stands for the text in braces."""
    if "," in text:
        return text.split(",")
    first, _, last = text.partition("..")
    width = max(len(first), len(last)) if first.startswith("0") or last.startswith("0") else 0
    step = 1 if int(last) >= int(first) else -1
    numbers = range(int(first), int(last) + step, step)
    return [f"{number:0{width}}" for number in numbers[: MOST_IN_BRACES + 1]]


def not_found(missing: Sequence[str], num_paths: int, *, what: str) -> FileNotFoundError:
    """The error for those of `num_paths` paths that match no file."""
    shown = ", ".join(map(redacted, missing[:20])) + (", …" if len(missing) > 20 else "")
    if num_paths == 1:
        return FileNotFoundError(f"No file matches {shown}.")
    return FileNotFoundError(f"{len(missing)} of {num_paths} paths of {what} match no file: {shown}.")


def _matches(path: str) -> list[str]:
    if is_remote(path):
        return _remote().matches(path)
    if os.path.exists(path):  # even if its name looks like a pattern
        return [path]
    return sorted(glob.glob(path)) if glob.has_magic(path) else []


def open_file(path: str, *, maps: bool = False) -> File:
    """Opens a file to read by offset; with `maps`, local files are mapped if possible."""
    if is_remote(path):
        return _remote().RemoteFile(path)
    if maps:
        with contextlib.suppress(OSError, ValueError):  # an empty file, no support, no descriptor left
            return MappedFile(path)
    return LocalFile(path)


def open_stream(path: str) -> BinaryIO:
    """Opens a file to read from its start, buffered and undecoded; the caller closes it."""
    if is_remote(path):
        return _remote().open_stream(path)
    return io.open(path, "rb")  # noqa: UP020  (`open` is also the name of a function of this package)


def fingerprint(path: str) -> Fingerprint:
    """The version of a file."""
    return _remote().fingerprint(path) if is_remote(path) else _fingerprint(os.stat(path))


def _fingerprint(status: os.stat_result) -> Fingerprint:
    return Fingerprint(status.st_size, str(status.st_mtime_ns))


def version_of(status: os.stat_result) -> tuple[int, int]:
    """The version of a local file, cheaper to compare than its fingerprint."""
    return status.st_size, status.st_mtime_ns


def shown_paths(paths: Sequence[str]) -> str:
    """The first of some files for reprs, without secrets, and how many there are."""
    first = repr(with_identity_digest(paths[0])) if paths else ""
    return first if len(paths) == 1 else f"{first}{', ' if first else ''}num_files={len(paths)}"


def hash_of_paths(paths: Sequence[str], algorithm: str = "sha1") -> str:
    """A hash for states that identifies files, whoever reads them and however their addresses are signed."""
    named = "\n".join(map(identity, paths)).encode(errors="surrogateescape")
    return hashlib.new(algorithm, named, usedforsecurity=False).hexdigest()[:40]


def digest_of(path: str, version: Fingerprint) -> str:
    """A name for stored data about a file that does not reveal the file's name or location."""
    return _remote().object_name(path, version.version) if is_remote(path) else digest(os.path.abspath(path))


def cache_folder() -> str:
    """The folder for data that may be removed at any time; `HEADRACE_CACHE` sets another."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("HEADRACE_CACHE") or os.path.join(home, "headrace")


def changed_error(path: str) -> DataError:
    """The error for a file that changed after its source was made."""
    return DataError(f"{path} has changed since its source was created. Recreate the source.")


class LocalFile:
    """A local file."""

    _fd = -1

    def __init__(self, path: str):
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # or a FIFO waits for a writer
        kind = os.fstat(self._fd).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
            os.close(self._fd)
            self._fd = -1
            raise PipelineError(f"{path} is a FIFO or a device, not a file. Write its content to a file first.")
        status = os.fstat(self._fd)
        self.version = _fingerprint(status)
        self._found = version_of(status)
        self.size = self.version.size

    def check_unchanged(self, path: str) -> None:
        """Raises if the file was truncated or written to since it was opened."""
        if version_of(os.fstat(self._fd)) != self._found:
            raise changed_error(path)

    def read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, length, offset)
        except OSError as e:
            return self._read_again(offset, length, e)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        fd = self._fd
        pread = os.pread
        try:
            return [pread(fd, length, offset) for offset, length in ranges]
        except OSError:
            return [self.read(offset, length) for offset, length in ranges]

    def _read_again(self, offset: int, length: int, fault: OSError) -> bytes:
        """Tries again after a fault that may pass, as those of network file systems do."""
        from headrace.storage.remote import RetryPolicy, may_pass

        if not may_pass(fault):
            raise fault
        patience = RetryPolicy(self._path, f"Reading bytes {offset} to {offset + length} of")
        while True:
            patience.after(fault)
            try:
                if fault.errno == errno.ESTALE:  # the server has forgotten the descriptor
                    self._reopen()
                return os.pread(self._fd, length, offset)
            except OSError as e:
                fault = e

    def _reopen(self) -> None:
        again = LocalFile(self._path)
        if again.version != self.version:
            raise changed_error(self._path)
        os.dup2(again._fd, self._fd, inheritable=False)  # other threads may be reading
        again.close()

    def close(self) -> None:
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, close=os.close):
        if self._fd >= 0:
            close(self._fd)


class MappedFile:
    """A local, nonempty file mapped into memory: reading many small pieces takes no system calls.

    All threads wait while a page is read from disk, so this is for files that fit into the page cache.
    """

    def __init__(self, path: str):
        with io.open(path, "rb") as file:  # noqa: UP020
            status = os.fstat(file.fileno())
            self.version = _fingerprint(status)
            self._found = version_of(status)
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.size = self.version.size

    @property
    def buffer(self) -> mmap.mmap:
        """All bytes of the file, where they are."""
        return self._bytes

    def check_unchanged(self, path: str) -> None:
        """Raises if the file was truncated, written to or replaced since it was opened."""
        with contextlib.suppress(FileNotFoundError):  # a mapped file stays readable
            if version_of(os.stat(path)) != self._found:
                raise changed_error(path)

    def read(self, offset: int, length: int) -> bytes:
        return self.read_many([(offset, length)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        mapped = self._bytes
        end = self._bytes.size()
        if end < self.size:  # truncated: touching the pages after its end would kill the process
            return [mapped[offset : min(offset + length, end)] for offset, length in ranges]
        return [mapped[offset : offset + length] for offset, length in ranges]

    def close(self) -> None:
        self._bytes.close()


class Pool(Holder):
    """Open files, of which the least recently used is closed first; pickling leaves them out.

    A file that is opened again must have the same version as before.

    Args:
        most_open: How many files may be open at a time.
        versions: The expected versions by path; for other files, the version when first opened.
        maps: Whether to map local files, if memory has room for all of them.
    """

    def __init__(self, most_open: int = 256, *, versions: Mapping[str, Fingerprint] | None = None, maps: bool = False):
        super().__init__(most_open)
        self._versions = dict(versions or {})
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if maps else 0
        self._maps = maps and sum(version.size for version in self._versions.values()) <= memory_bytes // 2

    def get(self, path: str) -> File:
        """The file at a path; it stays usable for the caller after the pool drops it."""
        with self._lock:
            file = self._held.pop(path, None)
            if file is not None:
                self._held[path] = file  # most recently used
        if file is None:
            file = self._opened(path)
        elif isinstance(file, LocalFile | MappedFile):
            file.check_unchanged(path)
        if not is_remote(path):
            KEPT.use(self, path)
        return file

    def _opened(self, path: str) -> File:
        file = KEPT.open(path, lambda path: open_file(path, maps=self._maps))  # may take long, so without the lock
        if file.version != self._versions.setdefault(path, file.version):
            raise changed_error(path)
        return self._hold(path, file)

    def read(self, wanted: Sequence[tuple[str, Sequence[tuple[int, int]]]]) -> list[list[bytes]]:
        """Pieces of several files, each a path and the ranges to read; remote files are read concurrently."""
        if len(wanted) == 1 or not any(is_remote(path) for path, _ in wanted):
            return [self.get(path).read_many(ranges) for path, ranges in wanted]
        read = lambda file: self.get(file[0]).read_many(file[1])  # noqa: E731
        return map_in_threads(read, wanted, READING_THREADS, "headrace-read")

    def __getstate__(self) -> dict[str, Any]:
        return {"versions": dict(self._versions), "most_open": self._most, "maps": self._maps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)


def path_below(folder: str, name: str) -> str:
    """The path or address of a name in a folder."""
    if not is_remote(folder):
        return os.path.join(folder, name)
    # In `zip://a::s3://b/c.zip` the folder is `a`; in `simplecache::s3://b/c` it is the last one.
    head, tail = re.fullmatch(r"((?:\w+::)*.*?://.*?)(::.*)?", folder, re.DOTALL).groups()  # type: ignore[union-attr]
    return with_options_of(folder, f"{head.rstrip('/')}/{name}{tail or ''}")


def with_options_of(path: str, other: str) -> str:
    """Another path, with the options of this one if it is an `Address`."""
    return type(path)(other, **path.options) if hasattr(path, "options") else other  # type: ignore


class Seekable(io.RawIOBase):
    """A `File` with a current position, for libraries that need one."""

    def __init__(self, file: File):
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._file.size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        piece = self._file.read(self._at, len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


# ---------------------------------------------------------------------------------------------------------- mapped
# Checks that local files which libraries have mapped did not change.
#
# Reading a mapped file that was truncated kills the process, and reading one that was overwritten mixes two versions. A
# file can still change between check and read, so this guards against accidents, such as copying over a file in use.


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
        if not is_remote(path):
            found = version_of(os.stat(path))
            if found != self._versions.setdefault(path, found):
                raise changed_error(path)

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
                if version is not None and version_of(os.stat(path)) != version:
                    raise changed_error(path)

    def check_all(self) -> None:
        """The same for all files."""
        self.check(list(self._versions))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_looked_at_s": 0.0}  # another process may have another clock
