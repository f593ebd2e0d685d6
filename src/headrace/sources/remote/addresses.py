"""Addresses: which files they mean, which driver reads them, and what the server says about a file.

Options for a server come from `Address`, or from the environment variables of fsspec and its drivers
(`AWS_ENDPOINT_URL`, `FSSPEC_S3_KEY`, …).
"""

import secrets
from typing import Any, NamedTuple, Self

from headrace._utils.addresses import digest, identity, place_of, redacted, without_login
from headrace.errors import MissingDependency, PipelineError, available, install_command, optional, without_secrets
from headrace.sources.files import like
from headrace.sources.retries import patiently

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 30.0, 60.0
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
        return [like(path, f"{head}::{match}") for match in matches(like(path, rest))]
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

    return [like(path, match) for match in patiently(find, path, "Listing")]


def is_folder(path: str) -> bool:
    """Whether an address is a folder, or the prefix that stands for one in object stores."""
    try:
        return _info(path).get("type") == "directory"
    except FileNotFoundError:
        return False


def listed(folder: str) -> list[str]:
    """The addresses of what is in a folder, sorted by name."""
    head, chained, rest = folder.partition("::")
    if chained and "://" not in head:
        return [like(folder, f"{head}::{path}") for path in listed(like(folder, rest))]
    return matches(like(folder, f"{head.rstrip('/')}/*{chained}{rest}"))


def file_name(path: str) -> str:
    """The name of the file at an address, without folders and query.

    >>> file_name("https://host/a/b.csv?token=c"), file_name("zip://a/b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    return place_of(path.partition("::")[0]).rstrip("/").rsplit("/", 1)[-1]


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


def look(path: str) -> Seen:
    """What the server says about a file now."""
    info = _info(path)
    version = next((f"{name}={info[name]}" for name in VERSIONS if info.get(name)), "")
    return Seen(None if info.get("size") is None else int(info["size"]), version)


def _info(path: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        fs, name = file_system(path)
        fs.invalidate_cache()  # of listings, which may be older than the file
        return fs.info(name)

    return patiently(ask, path, "Looking at")


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
            f"{path} is not an address that fsspec can open: {e}. Is its protocol spelt right?"
        ) from without_secrets(e)


def _missing_driver(path: str, error: ImportError) -> MissingDependency:
    for protocol in (part.partition("://")[0] for part in path.split("::")):
        package, extra = DRIVERS.get(protocol, ("", ""))
        if package and available(package) is None:
            return MissingDependency(f"{path} needs a driver, `{package}`. Install it with: {install_command(extra)}")
    return MissingDependency(f"{path} needs a driver: {str(error).rstrip('.')}.")  # fsspec says which one


def _driver_options(path: str, fsspec: Any) -> dict[str, Any]:
    """The options of the driver: by default, with timeouts and without its own retries."""
    options, protocol = _options_of(path), path.partition("://")[0]
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
