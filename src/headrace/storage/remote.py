"""Remote files: `s3://`, `gs://`, `http://`, `memory://`, `zip://` and all other protocols of fsspec.

Reads are cut into blocks. Blocks in the cache folder are not fetched again, and the others are fetched by several
concurrent requests. Transient faults (a dropped connection, a busy server, a timeout) are retried a bounded number of
times, with increasing waits; other faults raise at once. So does a file that is replaced while it is open: all bytes
that are read or cached belong to one version.

From top to bottom: retries, addresses and patterns, the cache folder (of limited size, which several processes may
share), requests for bytes, and files by offset, as streams and as local copies.
"""

import contextlib
import errno
import io
import logging
import os
import pathlib
import random
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from headrace.errors import (
    DataError,
    HeadraceError,
    MissingDependency,
    PipelineError,
    RemoteError,
    available,
    format_error,
    install_command,
    optional,
    without_secrets,
)
from headrace.errors.addresses import bare_address, digest, identity, redacted, secrets_in, without_login
from headrace.progress import Bar
from headrace.storage.files import Fingerprint, LocalFile, Seekable, cache_folder, with_options_of
from headrace.storage.private import Untrusted, check_file, check_folder, make_folder, open_lock, open_trusted

# --------------------------------------------------------------------------------------------------------- retries
# Faults of servers, networks and network file systems: which are transient, and how long to wait between tries.
#
# Environment: `HEADRACE_READ_ATTEMPTS` is how often something is tried (8 by default), and `HEADRACE_READ_SECONDS` for
# how long at most (120 by default).


ATTEMPTS = 8
SECONDS = 120.0
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
SILENT_S = 1.0  # tries after this are logged

PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
MISSING = {None, 404, 410}
PASSING_ERRNO = {errno.EBUSY, errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENETUNREACH, errno.EHOSTUNREACH}
PASSING_ERRNO |= {getattr(errno, name, errno.EIO) for name in ("EREMOTEIO", "ESTALE")}
# By name, since their libraries may not be installed.
PASSING_NAMES = {"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "IncompleteReadError"}
PASSING_NAMES |= {"ConnectionError", "ResponseStreamingError", "IncompleteRead", "ProtocolError", "ShortRead"}

T = TypeVar("T")
_jitter = random.Random()  # users seed the module's generator


class ShortRead(Exception):
    """Fewer bytes came than were requested, without an error."""


def may_pass(fault: BaseException) -> bool:
    """Whether the next try may succeed."""
    for link in _with_causes(fault):
        status = _status(link)
        if status is not None:
            return status in PASSING_STATUS
        if isinstance(link, ConnectionError | TimeoutError):
            return True
        if isinstance(link, OSError) and link.errno in PASSING_ERRNO:
            return True
        if any(kind.__name__ in PASSING_NAMES for kind in type(link).__mro__):
            return True
    return False


def _with_causes(fault: BaseException) -> Iterator[BaseException]:
    """A fault and its causes: drivers hide a busy server behind a FileNotFoundError."""
    link: BaseException | None = fault
    while link is not None:
        yield link
        link = link.__cause__


def _status(fault: BaseException) -> int | None:
    """The status that a web server answered, if the fault has one."""
    status = getattr(fault, "status", None) or getattr(fault, "code", None)
    return status if isinstance(status, int) else None


class RetryPolicy:
    """Counts the faults of an operation, and waits between tries."""

    def __init__(self, path: str, doing: str):
        self._path = redacted(path)
        self._doing = doing
        self._num_faults = 0
        self._began = time.monotonic()
        self._attempts = int(_setting("HEADRACE_READ_ATTEMPTS", ATTEMPTS))
        self._seconds = _setting("HEADRACE_READ_SECONDS", SECONDS)
        self._secrets = secrets_in(getattr(path, "options", None))

    def after(self, fault: BaseException) -> None:
        """Waits before the next try; raises if another is pointless, or after the last one."""
        if isinstance(fault, HeadraceError):
            raise fault
        self._num_faults += 1
        if isinstance(fault, FileNotFoundError):
            if not may_pass(fault) and all(_status(link) in MISSING for link in _with_causes(fault)):
                raise FileNotFoundError(f"{self._path} does not exist.") from self._without_secrets(fault)
            fault = fault.__cause__ or fault  # the cause says more
        what = redacted(format_error(fault), self._secrets)
        if not may_pass(fault):
            raise RemoteError(
                f"{self._doing} {self._path} failed with {what}. Check the address and your credentials (see "
                "`headrace.sources.Address`)."
            ) from self._without_secrets(fault)
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._num_faults - 1)) * _jitter.uniform(0.5, 1)
        passed_s = time.monotonic() - self._began
        if self._num_faults >= self._attempts or passed_s + wait_s > self._seconds:
            raise RemoteError(
                f"{self._doing} {self._path} failed {self._num_faults} times in {passed_s:.0f} s, most recently "
                f"with {what}. Is the server up, and does it let you read this much at once? To retry for longer, "
                "raise HEADRACE_READ_ATTEMPTS and HEADRACE_READ_SECONDS."
            ) from self._without_secrets(fault)
        if passed_s + wait_s > SILENT_S:
            logging.getLogger("headrace").warning(
                "%s %s failed %d times in %.0f s, most recently with %s. Retrying.",
                self._doing,
                self._path,
                self._num_faults,
                passed_s,
                what,
            )
        time.sleep(wait_s)

    def _without_secrets(self, fault: BaseException) -> BaseException:
        """A fault without secrets, for tracebacks: libraries write whole addresses into their errors."""
        return without_secrets(fault, self._secrets)


def _setting(name: str, default: float) -> float:
    """A number from the environment."""
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise PipelineError(f"{name} must be a number of at least 0; got {text!r}.")
    return value


def with_retries(call: Callable[[], T], path: str, doing: str) -> T:
    """The result of a call, which is tried again while its faults are transient."""
    patience = RetryPolicy(path, doing)
    while True:
        try:
            return call()
        except Exception as fault:
            patience.after(fault)


# ------------------------------------------------------------------------------------------------------- addresses
# Addresses: which files they mean, which driver reads them, and what the server says about a file.
#
# Options for a server come from `Address`, or from the environment variables of fsspec and its drivers
# (`AWS_ENDPOINT_URL`, `FSSPEC_S3_KEY`, …).


CONNECT_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0
DRIVERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("http", "https"), ("aiohttp", "cloud")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "cloud")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "cloud")),
    "hf": ("huggingface_hub", "hf"),
}
"""The packages of fsspec's protocols, and the extras that have them."""
ARCHIVES = ("zip", "tar", "libarchive")  # their members can only be read from the start
CHECKSUMS = ("ETag", "etag", "version_id", "md5Hash", "Content-MD5", "CRC")
VERSIONS = (*CHECKSUMS, "mtime", "Last-Modified", "LastModified", "last_modified", "updated", "created", "date_time")

_this_process = secrets.token_hex(8)


class Address(str):
    """An address with options for its driver, which are pickled with it.

    Its login, query and options are never shown, and states identify an object without them.

    Args:
        address: As fsspec writes it; patterns (`*`, `?`, `[…]`) are allowed.
        options: Arguments of fsspec's file system: `key`, `secret`, `endpoint_url`, `anon`, `headers`, …; for a chain
            (`zip://a.csv::s3://b/c.zip`), by protocol, as in `s3={"anon": True}`.

    >>> Address("s3://bucket/train-*.tfrecord", endpoint_url="http://127.0.0.1:9000")
    's3://bucket/train-*.tfrecord'
    """

    options: dict[str, Any]

    def __new__(cls, address: str, **options: Any) -> Self:
        self = super().__new__(cls, address)
        self.options = options
        return self

    def __repr__(self) -> str:
        return repr(redacted(self))


def _options_of(path: str) -> dict[str, Any]:
    return dict(path.options) if isinstance(path, Address) else {}


def matches(path: str) -> list[str]:
    """The addresses that an address or a pattern means, sorted by name; none if nothing exists."""
    head, _, rest = path.partition("::")
    if rest and "://" not in head:  # a wrapper, as in `simplecache::s3://…`
        return [with_options_of(path, f"{head}::{match}") for match in matches(with_options_of(path, rest))]
    try:
        _info(path)
        return [path]
    except FileNotFoundError:
        if not any(sign in head for sign in "*?["):
            return []

    def find() -> list[str]:
        fs, pattern = file_system(path)
        fs.invalidate_cache()
        names = sorted(str(name) for name in fs.glob(pattern))
        return [f"{head.split('://')[0]}://{name}::{rest}" if rest else fs.unstrip_protocol(name) for name in names]

    return [with_options_of(path, match) for match in with_retries(find, path, "Listing")]


def is_folder(path: str) -> bool:
    """Whether an address is a folder, or the prefix that stands for one in object stores."""
    try:
        return _info(path).get("type") == "directory"
    except FileNotFoundError:
        return False


def list_folder(folder: str) -> list[str]:
    """The addresses of what is in a folder, sorted by name."""
    head, chained, rest = folder.partition("::")
    if chained and "://" not in head:
        return [with_options_of(folder, f"{head}::{path}") for path in list_folder(with_options_of(folder, rest))]
    return matches(with_options_of(folder, f"{head.rstrip('/')}/*{chained}{rest}"))


def file_name(path: str) -> str:
    """The name of the file at an address, without folders and query.

    >>> file_name("https://host/a/b.csv?token=c"), file_name("zip://a/b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    return bare_address(path.partition("::")[0]).rstrip("/").rsplit("/", 1)[-1]


def in_archive(path: str) -> bool:
    """Whether a file is inside an archive, as in `zip://a.csv::s3://b/c.zip`."""
    return path.partition("://")[0] in ARCHIVES


class Seen(NamedTuple):
    """What a server says about a file: its version."""

    size: int | None  # unknown for some servers
    version: str  # a checksum, or the modification time; empty if unknown

    def key(self, path: str) -> str:
        """A name for this version of the file, for a folder of the cache.

        If the version is unknown, the name is valid only in this process.
        """
        version = self.version or f"in process {_this_process}"
        return digest(f"{object_name(path, self.version)}\n{self.size}\n{version}")[:40]


def object_name(path: str, version: str) -> str:
    """A name for the object at an address, the same for all users and signatures.

    A query parameter such as `key` may name the user or the object. Unless the version is a checksum of the content,
    two objects that differ only in it might be confused, so the name includes it.
    """
    is_checksum = version.partition("=")[0] in CHECKSUMS
    return digest(f"{identity(path, unsure=not is_checksum)}\n{without_login(_options_of(path))}")


def inspect_object(path: str) -> Seen:
    """What the server says about a file now."""
    info = _info(path)
    version = next((f"{name}={info[name]}" for name in VERSIONS if info.get(name)), "")
    return Seen(None if info.get("size") is None else int(info["size"]), version)


def _info(path: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        fs, name = file_system(path)
        fs.invalidate_cache()  # of listings, which may be older than the file
        return fs.info(name)

    return with_retries(ask, path, "Looking at")


def file_system(path: str) -> tuple[Any, str]:
    """The file system of an address, and its name there; fsspec caches file systems."""
    fsspec = optional("fsspec", extra="hf" if path.startswith("hf://") else "cloud")
    try:
        return fsspec.core.url_to_fs(str(path), **_driver_options(path, fsspec))
    except MissingDependency:
        raise
    except ImportError as e:
        raise _missing_driver(path, e) from without_secrets(e)
    except ValueError as e:
        raise PipelineError(
            f"{path} is not an address that fsspec can open: {e}. Is its protocol spelled correctly?"
        ) from without_secrets(e)


def _missing_driver(path: str, error: ImportError) -> MissingDependency:
    for protocol in (part.partition("://")[0] for part in path.split("::")):
        package, extra = DRIVERS.get(protocol, ("", ""))
        if package and available(package) is None:
            return MissingDependency(f"{path} needs a driver, `{package}`. Install it with: {install_command(extra)}")
    return MissingDependency(f"{path} needs a driver: {str(error).rstrip('.')}.")  # fsspec says which one


def _driver_options(path: str, fsspec: Any) -> dict[str, Any]:
    """The options of the driver: by default, with timeouts and without its own retries."""
    options = _options_of(path)
    protocol = path.partition("://")[0]
    if protocol in ("http", "https"):
        timeouts = {"total": None, "sock_connect": CONNECT_TIMEOUT_S, "sock_read": READ_TIMEOUT_S}
        name = "client_kwargs"
        own = {"timeout": optional("aiohttp", extra="cloud").ClientTimeout(**timeouts)}
    elif protocol in ("s3", "s3a"):
        timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": READ_TIMEOUT_S}
        name = "config_kwargs"
        own = {"retries": {"total_max_attempts": 1}, **timeouts}
    else:
        return options
    from_environment = fsspec.config.conf.get(protocol, {}).get(name, {})
    return options | {name: own | from_environment | options.get(name, {})}


# ----------------------------------------------------------------------------------------------------------- cache
# A folder of pieces of remote files, of limited size and private to this user.
#
# Environment: `HEADRACE_CACHE` is the folder (`~/.cache/headrace` by default), `HEADRACE_CACHE_BYTES` its size limit
# (10 GiB by default, 0 for no cache).


CACHE_BYTES = 10 << 30
LOCK = ".lock"
_PARTIAL = re.compile(r"\.partial-(\d+)-")


def the_cache() -> "BlockCache":
    """The cache that the environment configures; unused if others may write to its folder."""
    most_bytes = os.environ.get("HEADRACE_CACHE_BYTES") or str(CACHE_BYTES)
    if not most_bytes.isdecimal():
        raise PipelineError(f"HEADRACE_CACHE_BYTES must be a number of bytes; got {most_bytes!r}.")
    folder = os.path.join(cache_folder(), "remote")
    try:
        check_folder(folder, within=cache_folder())
    except Untrusted as e:
        return BlockCache(folder, 0, why_not=str(e))
    return BlockCache(folder, int(most_bytes))


class BlockCache:
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
        self.folder = folder
        self.most_bytes = most_bytes
        self.why_not = why_not

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
                    f"The cache {self.folder} holds at most {self.most_bytes} bytes, too few for what is being "
                    "copied to it: raise HEADRACE_CACHE_BYTES."
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


# -------------------------------------------------------------------------------------------------------- fetching
# Bytes of remote files: concurrent requests, each retried on its own, for one version of the file.


REQUESTS_AT_ONCE = 32
REQUEST_BYTES = 2 << 20  # of each request when a whole file is copied


class NoRanges(Exception):
    """The server sends the whole file, whatever part is requested."""


def fetch(path: str, seen: Seen, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each range, from its begin to its end, fetched concurrently; failed ranges are tried again.

    Afterwards the file must still have the version `seen`, so no byte is of another one.
    """
    pieces: dict[int, bytes] = {}
    patience = RetryPolicy(path, f"Reading bytes {ranges[0][0]} to {ranges[-1][1]} of")
    while True:
        left = [i for i in range(len(ranges)) if i not in pieces]
        answers = _ask(path, [ranges[i] for i in left])
        if not all(isinstance(answer, Exception) and may_pass(answer) for answer in answers):
            check_unchanged(path, seen)
        fault = None
        for i, answer in zip(left, answers, strict=True):
            length = ranges[i][1] - ranges[i][0]
            if isinstance(answer, Exception):
                fault = answer
            elif len(answer) > length:
                raise NoRanges
            elif len(answer) < length:
                fault = ShortRead(f"{length} bytes were requested but {len(answer)} arrived")
            else:
                pieces[i] = answer
        if fault is None:
            return [pieces[i] for i in range(len(ranges))]
        patience.after(fault)


def _ask(path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
    """One try: the bytes of each range, or its error."""
    begins, ends = [list(side) for side in zip(*ranges, strict=True)]
    try:
        fs, name = file_system(path)
        limit = {"batch_size": REQUESTS_AT_ONCE} if fs.async_impl else {}
        return fs.cat_ranges([name] * len(ranges), begins, ends, on_error="return", **limit)
    except Exception as fault:
        return [fault] * len(ranges)


def check_unchanged(path: str, seen: Seen) -> None:
    """Raises if a file no longer has the version `seen`."""
    now = inspect_object(path)
    if now != seen:
        raise DataError(
            f"{path} was replaced while it was open: its server reported {_in_words(seen)}, and now reports "
            f"{_in_words(now)}. Recreate the source."
        )


def _in_words(seen: Seen) -> str:
    size = "an unknown size" if seen.size is None else f"{seen.size} bytes"
    return f"{size} and {seen.version}" if seen.version else size


def download(path: str, seen: Seen, target: str) -> None:
    """Copies a remote file to a local one, if possible in pieces, so that faults cost little."""
    size = seen.size
    if size is not None and not in_archive(path):
        bar = Bar(f"Copying {file_name(path)}", unit="B", total=size)
        with contextlib.suppress(NoRanges), io.open(target, "wb") as file, bar:  # noqa: UP020
            for group in range(0, size, REQUEST_BYTES * REQUESTS_AT_ONCE):
                end = min(group + REQUEST_BYTES * REQUESTS_AT_ONCE, size)
                begins = range(group, end, REQUEST_BYTES)
                file.writelines(fetch(path, seen, [(at, min(at + REQUEST_BYTES, size)) for at in begins]))
                bar.report(end, size)
            return

    def get() -> None:
        fs, name = file_system(path)
        fs.get_file(name, target)
        check_unchanged(path, seen)
        if size is not None and os.path.getsize(target) != size:
            raise ShortRead(f"{size} bytes were expected but {os.path.getsize(target)} arrived")

    with_retries(get, path, "Copying")


# --------------------------------------------------------------------------------------------------------- reading
# Remote files, read by offset, as streams, and as local copies.


BLOCK_BYTES = 256 << 10  # from a cloud store, transfer takes about as long as the latency
REQUEST_BLOCKS = 8  # neighbours in one request
GROUP_BLOCKS = 256  # in memory at a time, whatever the size of a read
STREAM_BYTES = 8 << 20  # the most that a stream reads ahead


def fingerprint(path: str) -> Fingerprint:
    """The size and version: a checksum, or the modification time."""
    seen = inspect_object(path)
    return RemoteFile(path).version if seen.size is None else Fingerprint(seen.size, seen.version)


class RemoteFile:
    """A remote file, read by offset, with all bytes of one version."""

    def __init__(self, path: str):
        self._path = path
        self._seen = seen = inspect_object(path)
        self._cache = the_cache()
        self._key = seen.key(path)
        self._lock = threading.Lock()
        self._whole: LocalFile | None = None  # if the server cannot read by offset
        if seen.size is None or in_archive(path):
            self._whole = self._all_of_it()
            self.size: int = self._whole.size
        else:
            self.size = seen.size
        self.version = Fingerprint(self.size, seen.version)

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset` on, or fewer at the end of the file."""
        return self.read_many([(offset, length)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several pieces, each an offset and a length: neighbours in one request, and requests concurrently."""
        if self._whole is None:
            try:
                return self._read_blocks(ranges)
            except NoRanges:
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
        """Blocks by their ascending numbers, from the cache or from the server."""
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
            bounds = [(self._bound(request.start), self._bound(request.stop)) for request in requests]
            for request, piece in zip(requests, fetch(self._path, self._seen, bounds), strict=True):
                for k, n in enumerate(request):
                    blocks[n] = piece[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES]
                    self._cache.put(f"{self._key}/{n}", blocks[n])
        return blocks

    def _bound(self, number: int) -> int:
        return min(number * BLOCK_BYTES, self.size)

    def _all_of_it(self) -> LocalFile:
        """The file as a local one: in the cache if it fits there, otherwise unnamed."""
        if self._seen.size is not None and self._cache.fits(self._seen.size):
            with contextlib.suppress(OSError):  # the disk is full, or others use the room
                return LocalFile(_copy(self._path, self._seen))
        fd, name = tempfile.mkstemp(prefix="headrace-")
        os.close(fd)
        try:
            download(self._path, self._seen, name)
            return LocalFile(name)
        finally:
            os.unlink(name)

    def close(self) -> None:
        """Closes the file."""
        if self._whole is not None:
            self._whole.close()


def _groups(bounds: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """The numbers of ranges by their begins, in groups that do not need too many blocks at once."""
    group: list[int] = []
    num_blocks = 0
    for i in sorted(range(len(bounds)), key=bounds.__getitem__):
        needed = len(_numbers(bounds[i]))
        if group and num_blocks + needed > GROUP_BLOCKS:
            yield group
            group = []
            num_blocks = 0
        group.append(i)
        num_blocks += needed
    if group:
        yield group


def _numbers(bounds: tuple[int, int]) -> range:
    """The numbers of the blocks that a range touches."""
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
    """The path of a copy of the whole file in the cache, for libraries that read only local files.

    The cache may remove it to make room, so call this whenever you open it. An open copy stays readable.
    """
    seen = inspect_object(path)
    cache = the_cache()
    if cache.why_not:
        raise RemoteError(f"{path} must be copied whole to the cache. {cache.why_not}")
    if seen.size is None or not cache.fits(seen.size):
        raise RemoteError(
            f"{path} has {seen.size or 'an unknown number of'} bytes and must be copied whole to the cache, which "
            f"holds {cache.most_bytes}: raise HEADRACE_CACHE_BYTES, or copy the file to this machine."
        )
    return _copy(path, seen)


def _copy(path: str, seen: Seen) -> str:
    """The path of a copy of this version of a file, of known size, in the cache."""
    name = f"{seen.key(path)}/{file_name(path)}"
    return the_cache().keep(name, seen.size or 0, lambda partial: download(path, seen, partial))


def open_stream(path: str) -> BinaryIO:
    """Opens the file at its start, buffered; the caller closes it."""
    return io.BufferedReader(_Stream(RemoteFile(path)), STREAM_BYTES)


class _Stream(Seekable):
    """A file as a stream, which reads more and more ahead."""

    _ahead = BLOCK_BYTES

    def readinto(self, buffer: Any, /) -> int:
        length = super().readinto(memoryview(buffer)[: self._ahead])
        self._ahead = min(2 * self._ahead, STREAM_BYTES)
        return length

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
