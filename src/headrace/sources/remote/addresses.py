"""Addresses: which files they mean, which driver reads them, and what the server says of a file.

How a server is reached is told by `Address`, or for all addresses by the environment as fsspec and its drivers read it
(`AWS_ENDPOINT_URL`, `FSSPEC_S3_KEY`, …).
"""

import secrets
from typing import Any, NamedTuple, Self

from headrace._utils.addresses import digest, identity, place_of, redacted, without_login
from headrace.errors import MissingDependency, PipelineError, optional, without_secrets
from headrace.sources.files import like
from headrace.sources.remote.faults import patiently

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 30.0, 60.0
ARCHIVES = ("zip", "tar", "libarchive")  # what is inside is read from its start: there is no going to an offset
CHECKSUMS = ("ETag", "etag", "version_id", "md5Hash", "Content-MD5", "CRC")
VERSIONS = (*CHECKSUMS, "mtime", "Last-Modified", "LastModified", "last_modified", "updated", "created", "date_time")

_this_process = secrets.token_hex(8)


class Address(str):
    """An address with what its driver must be told, which travels with it to worker processes.

    Its login and its query are not shown, and neither are the options; a state knows an object without them.

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

    def __repr__(self) -> str:
        return repr(redacted(self))


def _options_of(path: str) -> dict[str, Any]:
    return dict(path.options) if isinstance(path, Address) else {}


# ------------------------------------------------------------------------------------ what an address means


def matches(path: str) -> list[str]:
    """The addresses that an address or a pattern means, in order of their names; none where there is nothing."""
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
    """Whether there is a folder behind an address, or what stands for one where there are none."""
    try:
        return _info(path).get("type") == "directory"
    except FileNotFoundError:
        return False


def listed(folder: str) -> list[str]:
    """The addresses of what is in a folder, in order of their names."""
    head, chained, rest = folder.partition("::")
    if chained and "://" not in head:
        return [like(folder, f"{head}::{path}") for path in listed(like(folder, rest))]
    return matches(like(folder, f"{head.rstrip('/')}/*{chained}{rest}"))


def file_name(path: str) -> str:
    """The name of the file behind an address, without folders and what a web server is asked besides.

    >>> file_name("https://host/a/b.csv?token=c"), file_name("zip://a/b.csv::s3://bucket/c.zip")
    ('b.csv', 'b.csv')
    """
    return place_of(path.partition("::")[0]).rstrip("/").rsplit("/", 1)[-1]


def in_archive(path: str) -> bool:
    """Whether a file is inside another one, as in `zip://a.csv::s3://b/c.zip`."""
    return path.partition("://")[0] in ARCHIVES


# ------------------------------------------------------------------------------------ what its server says


class Seen(NamedTuple):
    """What a server says of a file, which tells one version from another."""

    size: int | None  # some servers do not say
    version: str  # a checksum, or when it was written; nothing where the server does not say

    def key(self, path: str) -> str:
        """A name for this version of the file: what a folder of the cache is called.

        Where the server tells no version, the name is good for this process only.
        """
        version = self.version or f"in process {_this_process}"
        return digest(f"{object_name(path, self.version)}\n{self.size}\n{version}")[:40]


def object_name(path: str, version: str) -> str:
    """A name for the object behind an address, the same whoever asks for it and however that is signed.

    A word such as `key` says who asks, or what is asked for. Where the version is not of the content, two objects that
    differ in it might be taken for one, so the name has it.
    """
    is_checksum = version.partition("=")[0] in CHECKSUMS
    return digest(f"{identity(path, unsure=not is_checksum)}\n{without_login(_options_of(path))}")


def look(path: str) -> Seen:
    """What the server says of a file now."""
    info = _info(path)
    version = next((f"{name}={info[name]}" for name in VERSIONS if info.get(name)), "")
    return Seen(None if info.get("size") is None else int(info["size"]), version)


def _info(path: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        fs, name = file_system(path)
        fs.invalidate_cache()  # of listings: they may be older than the file
        return fs.info(name)

    return patiently(ask, path, "Looking at")


# ---------------------------------------------------------------------------------------------- the driver


def file_system(path: str) -> tuple[Any, str]:
    """The file system of an address, and its name there; file systems are made once and kept by fsspec."""
    fsspec = optional("fsspec", extra="cloud")
    try:
        return fsspec.core.url_to_fs(str(path), **_driver_options(path, fsspec))
    except MissingDependency:
        raise
    except ImportError as e:
        raise MissingDependency(
            f"{path} needs a driver ({e}). Install it with: pip install 'headrace[cloud]'"
        ) from without_secrets(e)
    except ValueError as e:
        raise PipelineError(
            f"{path} is not an address that fsspec can open: {e}. Is its protocol spelt right?"
        ) from without_secrets(e)


def _driver_options(path: str, fsspec: Any) -> dict[str, Any]:
    """What the driver is told: timeouts, and that trying again is done here, unless the user says otherwise."""
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
