"""Files behind addresses: `s3://`, `gs://`, `http://`, `memory://`, `zip://` and whatever else fsspec knows.

Reads are cut into blocks; those that the cache folder has are not fetched again, and what is fetched comes in several
requests at once. A fault that may pass (a dropped connection, a busy server, a timeout) is tried again with longer and
longer waits, a bounded number of times; any other is an error at once. The cache never holds more bytes than it is
told, several processes may share it, and where it cannot be written, reads go on without it.

Environment: `HEADRACE_CACHE` is the folder (`~/.cache/headrace` by default), `HEADRACE_CACHE_BYTES` how much it may
hold (10 GiB by default, 0 for no cache). How a server is reached is told by `Address`, or for all addresses by the
environment as fsspec and its drivers read it (`AWS_ENDPOINT_URL`, `FSSPEC_S3_KEY`, …).
"""

import contextlib
import errno
import functools
import hashlib
import io
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from headrace.errors import HeadraceError, MissingDependency, PipelineError, optional
from headrace.sources.files import Fingerprint, LocalFile

ATTEMPTS = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 30.0, 60.0

BLOCK_BYTES = 256 << 10  # on the way from a cloud store, about as long as the answer takes to begin
REQUEST_BLOCKS = 8  # neighbours that one request asks for
REQUESTS_AT_ONCE = 32
GROUP_BLOCKS = 256  # that are in memory at a time, whatever a read asks for
STREAM_BYTES = 8 << 20  # that a stream reads ahead
CACHE_BYTES = 10 << 30

ARCHIVES = ("zip", "tar", "libarchive")  # what is inside is read from its start: there is no going to an offset
VERSIONS = ("ETag", "etag", "version_id", "md5Hash", "Content-MD5", "CRC", "mtime", "Last-Modified", "LastModified")
VERSIONS += ("last_modified", "updated", "created", "date_time")

T = TypeVar("T")
_jitter = random.Random()  # of its own: users seed the module's


class RemoteError(HeadraceError, OSError):
    """A file behind an address could not be read; the message has the address and what failed."""


class Address(str):
    """An address with what its driver must be told, which travels with it to worker processes.

    Args:
        address: As fsspec writes it; patterns (`*`, `?`, `[…]`) are allowed.
        options: Arguments of fsspec's file system: `key`, `secret`, `endpoint_url`, `anon`, `headers`, …; those of a
            chain (`zip://a.csv::s3://b/c.zip`) by protocol, as in `s3={"anon": True}`.

    >>> Address("s3://bucket/train-*.tfrecord", endpoint_url="http://127.0.0.1:9000")
    's3://bucket/train-*.tfrecord'
    """

    options: dict[str, Any]

    def __new__(cls, address: str, **options: Any) -> Self:
        self = super().__new__(cls, address)
        self.options = options
        return self


def matches(path: str) -> list[str]:
    """The addresses that an address or a pattern means, in order of their names; none where there is nothing."""
    head, _, rest = path.partition("::")
    if rest and "://" not in head:  # a wrapper, as in `simplecache::s3://…`
        return [_like(path, f"{head}::{match}") for match in matches(_like(path, rest))]
    try:
        _info(path)
        return [path]
    except FileNotFoundError:
        if not any(sign in head for sign in "*?["):
            return []

    def find() -> list[str]:
        fs, pattern = _file_system(path)
        fs.invalidate_cache()
        names = sorted(str(name) for name in fs.glob(pattern))
        return [f"{head.split('://')[0]}://{name}::{rest}" if rest else fs.unstrip_protocol(name) for name in names]

    return [_like(path, match) for match in _patiently(find, path, "Listing")]


def _like(path: str, other: str) -> str:
    return Address(other, **path.options) if isinstance(path, Address) else other


def is_folder(path: str) -> bool:
    """Whether there is a folder behind an address, or what stands for one where there are none."""
    try:
        return _info(path).get("type") == "directory"
    except FileNotFoundError:
        return False


def listed(folder: str) -> list[str]:
    """The addresses of what is in a folder, in order of their names."""
    head, chained, rest = folder.partition("::")
    if chained and "://" not in head:
        return [_like(folder, f"{head}::{path}") for path in listed(_like(folder, rest))]
    return matches(_like(folder, f"{head.rstrip('/')}/*{chained}{rest}"))


def file_name(path: str) -> str:
    """The name of the file behind an address, without folders and what a web server is asked besides.

    >>> file_name("https://host/a/b.csv?token=c"), file_name("zip://a/b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    head = path.partition("::")[0]
    if head.startswith(("http://", "https://")):
        head = head.partition("?")[0].partition("#")[0]
    return head.rstrip("/").rsplit("/", 1)[-1]


def _in_archive(path: str) -> bool:
    return path.partition("://")[0] in ARCHIVES


def fingerprint(path: str) -> Fingerprint:
    """The size and what the server says of the version: a checksum, or when it was written."""
    seen = _look(path)
    return Fingerprint(RemoteFile(path).size if seen.size is None else seen.size, seen.version)


class _Seen(NamedTuple):
    size: int | None  # some servers do not say
    version: str

    def key(self, path: str) -> str:
        """A name for this version of the file: what a folder of the cache is called."""
        options = sorted(path.options.items()) if isinstance(path, Address) else []
        text = f"{path}\n{options}\n{self.size}\n{self.version}"
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:40]


def _look(path: str) -> _Seen:
    info = _info(path)
    version = next((f"{name}={info[name]}" for name in VERSIONS if info.get(name)), "")
    return _Seen(None if info.get("size") is None else int(info["size"]), version)


def _info(path: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        fs, name = _file_system(path)
        return fs.info(name)

    return _patiently(ask, path, "Looking at")


def _file_system(path: str) -> tuple[Any, str]:
    """The file system of an address, and its name there; file systems are made once and kept by fsspec."""
    fsspec = optional("fsspec", extra="cloud")
    try:
        return fsspec.core.url_to_fs(str(path), **_options(path, fsspec))
    except MissingDependency:
        raise
    except ImportError as e:
        raise MissingDependency(f"{path} needs a driver ({e}). Install it with: pip install 'headrace[cloud]'") from e
    except ValueError as e:
        raise PipelineError(f"{path} is not an address that fsspec can open: {e}. Is its protocol spelt right?") from e


def _options(path: str, fsspec: Any) -> dict[str, Any]:
    """What the driver is told: timeouts, and that trying again is done here, unless the user says otherwise."""
    options = dict(path.options) if isinstance(path, Address) else {}
    protocol = path.partition("://")[0]
    if protocol in ("http", "https"):
        timeouts = {"total": None, "sock_connect": CONNECT_TIMEOUT_S, "sock_read": READ_TIMEOUT_S}
        name, own = "client_kwargs", {"timeout": optional("aiohttp", extra="cloud").ClientTimeout(**timeouts)}
    elif protocol in ("s3", "s3a"):
        timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S}
        name, own = "config_kwargs", {"retries": {"total_max_attempts": 1}, **timeouts}
    else:
        return options
    from_environment = fsspec.config.conf.get(protocol, {}).get(name, {})
    return options | {name: own | from_environment | options.get(name, {})}


# ------------------------------------------------------------------------------------------------ faults

_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_PASSING_ERRNO = {errno.EBUSY, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH}
_PASSING_ERRNO |= {getattr(errno, "EREMOTEIO", errno.EIO)}
# By name, since the libraries that they belong to may not be installed.
_PASSING_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "IncompleteReadError"}
_PASSING_NAMES |= {"ConnectionError", "ResponseStreamingError", "IncompleteRead", "ProtocolError", "ShortRead"}


class ShortRead(Exception):
    """Fewer bytes came than were asked for, without an error."""


class _NoRanges(Exception):
    """The server sends all of a file, whatever part of it is asked for."""


def may_pass(fault: BaseException) -> bool:
    """Whether a fault may be gone at the next try."""
    link: BaseException | None = fault
    while link is not None:  # drivers hide a busy server behind a FileNotFoundError
        status = getattr(link, "status", None) or getattr(link, "code", None)
        if isinstance(status, int):
            return status in _PASSING_STATUS
        if isinstance(link, ConnectionError | TimeoutError):
            return True
        if isinstance(link, OSError) and link.errno in _PASSING_ERRNO:
            return True
        if any(kind.__name__ in _PASSING_NAMES for kind in type(link).__mro__):
            return True
        link = link.__cause__
    return False


class _Patience:
    """Counts the faults of one thing that is tried, and waits between tries."""

    def __init__(self, path: str, doing: str):
        self._path, self._doing, self._num_faults = path, doing, 0

    def after(self, fault: BaseException) -> None:
        """Waits before the next try; raises where none makes sense, or after the last one."""
        if isinstance(fault, HeadraceError):
            raise fault
        self._num_faults += 1
        what = f"{type(fault).__name__}: {fault}".rstrip(": ")
        if not may_pass(fault):
            if isinstance(fault, FileNotFoundError):
                raise FileNotFoundError(f"{self._path} does not exist.") from fault
            raise RemoteError(
                f"{self._doing} {self._path} failed with {what}. Check the address, and what the server must be told "
                "of you (see `headrace.sources.Address`)."
            ) from fault
        if self._num_faults >= ATTEMPTS:
            raise RemoteError(
                f"{self._doing} {self._path} failed {self._num_faults} times, at last with {what}. Is the server up, "
                "and does it let you read this much at once?"
            ) from fault
        time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_faults - 1)) * _jitter.uniform(0.5, 1))


def _patiently(call: Callable[[], T], path: str, doing: str) -> T:
    patience = _Patience(path, doing)
    while True:
        try:
            return call()
        except Exception as fault:
            patience.after(fault)


def _fetch(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes from a begin to an end, for each range, all at once; those that failed are asked for again."""
    pieces: dict[int, bytes] = {}
    patience = _Patience(path, f"Reading bytes {ranges[0][0]} to {ranges[-1][1]} of")
    while True:
        left = [i for i in range(len(ranges)) if i not in pieces]
        try:
            answers = _ask(path, [ranges[i] for i in left])
        except Exception as fault:
            patience.after(fault)
            continue
        fault = None
        for i, answer in zip(left, answers, strict=True):
            length = ranges[i][1] - ranges[i][0]
            if isinstance(answer, Exception):
                fault = answer
            elif len(answer) > length:
                raise _NoRanges
            elif len(answer) < length:
                fault = ShortRead(f"{length} bytes were asked for and {len(answer)} came")
            else:
                pieces[i] = answer
        if fault is None:
            return [pieces[i] for i in range(len(ranges))]
        patience.after(fault)


def _ask(path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    """One try: the bytes of each range, or the error."""
    fs, name = _file_system(path)
    limit = {"batch_size": REQUESTS_AT_ONCE} if fs.async_impl else {}
    begins, ends = [list(side) for side in zip(*ranges, strict=True)]
    return fs.cat_ranges([name] * len(ranges), begins, ends, on_error="return", **limit)


# ------------------------------------------------------------------------------------------------- files


class RemoteFile:
    """A file behind an address, read by offset."""

    def __init__(self, path: str):
        self._path = path
        self._seen = seen = _look(path)
        self._cache = _cache()
        self._key = seen.key(path)
        self._lock = threading.Lock()
        self._whole: LocalFile | None = None  # where there is no reading by offset
        if seen.size is None or _in_archive(path):
            self._whole = self._all_of_it()
            self.size: int = self._whole.size
        else:
            self.size = seen.size

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, or fewer at the end."""
        return self.read_many([(offset, length)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several pieces, each an offset and a length: neighbours in one request, and several requests at once."""
        if self._whole is None:
            try:
                return self._read_blocks(ranges)
            except _NoRanges:
                with self._lock:
                    self._whole = self._whole or self._all_of_it()
        return self._whole.read_many(ranges)

    def _read_blocks(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        size = self.size
        bounds = [(min(offset, size), min(offset + length, size)) for offset, length in ranges]
        pieces = [b""] * len(bounds)
        blocks: dict[int, bytes] = {}
        for group in _groups(bounds):
            numbers = sorted({n for i in group for n in _numbers(bounds[i])})
            have = {n: blocks[n] for n in numbers if n in blocks}
            blocks = have | self._blocks([n for n in numbers if n not in have])
            for i in group:
                pieces[i] = _cut(blocks, *bounds[i])
        return pieces

    def _blocks(self, numbers: list[int]) -> dict[int, bytes]:
        """Blocks by their numbers, which ascend: from the cache, or from far away."""
        blocks: dict[int, bytes] = {}
        requests: list[range] = []
        for n in numbers:
            block = self._cache.get(f"{self._key}/{n}", self._bound(n + 1) - self._bound(n))
            if block is not None:
                blocks[n] = block
            elif requests and requests[-1].stop == n and len(requests[-1]) < REQUEST_BLOCKS:
                requests[-1] = range(requests[-1].start, n + 1)
            else:
                requests.append(range(n, n + 1))
        if requests:
            fetched = _fetch(self._path, [(self._bound(r.start), self._bound(r.stop)) for r in requests])
            for request, piece in zip(requests, fetched, strict=True):
                for k, n in enumerate(request):
                    blocks[n] = piece[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES]
                    self._cache.put(f"{self._key}/{n}", blocks[n])
        return blocks

    def _bound(self, number: int) -> int:
        return min(number * BLOCK_BYTES, self.size)

    def _all_of_it(self) -> LocalFile:
        """The file as a local one: kept in the cache if it fits there, otherwise without a name."""
        if self._seen.size is not None and self._cache.fits(self._seen.size):
            with contextlib.suppress(OSError):  # the disk is full, or others need the room
                return LocalFile(local_copy(self._path))
        fd, name = tempfile.mkstemp(prefix="headrace-")
        os.close(fd)
        try:
            _download(self._path, name, None)
            return LocalFile(name)
        finally:
            os.unlink(name)

    def close(self) -> None:
        if self._whole is not None:
            self._whole.close()


def _groups(bounds: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The numbers of ranges in the order of their begins, cut so that no group needs too many blocks at once."""
    group: list[int] = []
    num_blocks = 0
    for i in sorted(range(len(bounds)), key=bounds.__getitem__):
        needed = len(_numbers(bounds[i]))
        if group and num_blocks + needed > GROUP_BLOCKS:
            yield group
            group, num_blocks = [], 0
        group.append(i)
        num_blocks += needed
    if group:
        yield group


def _numbers(bounds: tuple[int, int]) -> range:
    """The blocks that a range touches."""
    begin, end = bounds
    return range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)) if end > begin else range(0)


def _cut(blocks: dict[int, bytes], begin: int, end: int) -> bytes:
    numbers = _numbers((begin, end))
    if not numbers:
        return b""
    base = numbers[0] * BLOCK_BYTES
    joined = blocks[numbers[0]] if len(numbers) == 1 else b"".join([blocks[n] for n in numbers])
    return joined[begin - base : end - base]


def local_copy(path: str) -> str:
    """The path of a copy of the whole file in the cache, for libraries that only read local files.

    The cache may remove it to make room: call this before each opening. A copy that is open stays readable.
    """
    seen, cache = _look(path), _cache()
    if seen.size is None or not cache.fits(seen.size):
        raise RemoteError(
            f"{path} has {seen.size or 'an unknown number of'} bytes and must be copied to the cache as a whole, which "
            f"holds {cache.most_bytes}: set HEADRACE_CACHE_BYTES, or copy the file to this machine."
        )
    return cache.keep(
        f"{seen.key(path)}/{file_name(path)}", seen.size, lambda partial: _download(path, partial, seen.size)
    )


def _download(path: str, target: str, size: int | None) -> None:
    """Writes a far-away file to a local one; in pieces where it can be, so that a fault costs little."""
    if size is not None and not _in_archive(path):
        with contextlib.suppress(_NoRanges), io.open(target, "wb") as file:  # noqa: UP020
            step = BLOCK_BYTES * REQUEST_BLOCKS
            for group in range(0, size, step * REQUESTS_AT_ONCE):
                end = min(group + step * REQUESTS_AT_ONCE, size)
                for piece in _fetch(path, [(at, min(at + step, size)) for at in range(group, end, step)]):
                    file.write(piece)
            return

    def get() -> None:
        fs, name = _file_system(path)
        fs.get_file(name, target)
        if size is not None and os.path.getsize(target) != size:
            raise ShortRead(f"{size} bytes were expected and {os.path.getsize(target)} came")

    _patiently(get, path, "Copying")


def open_stream(path: str) -> BinaryIO:
    """The file from its start, buffered; the caller closes it."""
    return io.BufferedReader(_Stream(RemoteFile(path)), STREAM_BYTES)


class _Stream(io.RawIOBase):
    """A file as a stream: it reads little at first, and more and more as it is read on."""

    def __init__(self, file: RemoteFile):
        self._file, self._at, self._ahead = file, 0, BLOCK_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + (0, self._at, self._file.size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        piece = self._file.read(self._at, min(len(buffer), self._ahead))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        self._ahead = min(2 * self._ahead, STREAM_BYTES)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


# ------------------------------------------------------------------------------------------------- cache


def _cache() -> "Cache":
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.environ.get("HEADRACE_CACHE") or os.path.join(home, "headrace")
    most_bytes = os.environ.get("HEADRACE_CACHE_BYTES") or str(CACHE_BYTES)
    if not most_bytes.isdecimal():
        raise PipelineError(f"HEADRACE_CACHE_BYTES must be a number of bytes; got {most_bytes!r}.")
    return _cache_at(os.path.join(folder, "remote"), int(most_bytes))


@functools.cache
def _cache_at(folder: str, most_bytes: int) -> "Cache":
    return Cache(folder, most_bytes)


class Cache:
    """Pieces of far-away files in a folder, the least recently used removed first.

    A piece appears under its name when it is complete. Other processes may add and remove pieces at any time; each
    looks at the whole folder again when it has added a sixteenth of what the folder may hold.
    """

    def __init__(self, folder: str, most_bytes: int):
        self.folder, self.most_bytes = folder, most_bytes
        self._bytes = self._added = most_bytes + 1  # unknown: looked at before the first piece is added
        self._lock = threading.Lock()

    def fits(self, num_bytes: int) -> bool:
        """Whether so much may be kept at all."""
        return num_bytes <= self.most_bytes

    def get(self, name: str, length: int) -> bytes | None:
        """A piece, if it is there and complete."""
        try:
            with io.open(os.path.join(self.folder, name), "rb") as file:  # noqa: UP020
                piece = file.read()
                os.utime(file.fileno())
        except OSError:
            return None
        return piece if len(piece) == length else None

    def put(self, name: str, piece: bytes) -> None:
        """Keeps a piece, if it can."""
        if self.fits(len(piece)):
            with contextlib.suppress(OSError):  # a full disk, a folder of somebody else's: reading goes on
                self.keep(name, len(piece), lambda partial: _write(partial, piece))

    def keep(self, name: str, size: int, make: Callable[[str], None]) -> str:
        """The path of a piece, which is made if it is not there: `make` writes it to the path it is given."""
        path = os.path.join(self.folder, name)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size == size:
                os.utime(path)
                return path
        os.makedirs(self.folder, exist_ok=True)
        self._make_room(size)
        fd, partial = tempfile.mkstemp(prefix=".partial-", dir=self.folder)
        os.close(fd)
        try:
            make(partial)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if not os.path.exists(partial):
                raise RemoteError(
                    f"The cache {self.folder} holds {self.most_bytes} bytes, too few for what is copied to it at once: "
                    "set HEADRACE_CACHE_BYTES."
                )
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise
        return path

    def _make_room(self, size: int) -> None:
        with self._lock:
            if self._bytes + size > self.most_bytes or self._added > self.most_bytes // 16:
                self._bytes, self._added = self._shrink(size), 0
            self._bytes += size
            self._added += size

    def _shrink(self, size: int) -> int:
        """Removes the least recently used, so that there is room for `size` bytes; returns how many are left."""
        found = sorted(self._files())
        total = sum(num_bytes for _, num_bytes, _ in found)
        if total + size <= self.most_bytes:
            return total
        enough = max(0, self.most_bytes - max(size, self.most_bytes // 10))  # some room, not to look again at once
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
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    yield status.st_mtime, status.st_size, path


def _write(path: str, piece: bytes) -> None:
    with io.open(path, "wb") as file:  # noqa: UP020
        file.write(piece)
