"""Data that is stored on disk for later runs: private to this user, and used only if nobody else can have written it.

Whoever can write to a cache decides which elements a source has, and an index says where in a file to look. So every
file that Headrace writes and reads back is opened here: created with the mode 0600, and refused if another user owns it
or may have changed it. What is changed or locked in place is never opened through a link, which others may have made.
"""

import contextlib
import io
import os
import secrets
import stat
import warnings
from collections.abc import Collection, Iterable
from typing import Any, BinaryIO, NamedTuple, NoReturn

from headrace.errors import CacheWarning, PipelineError

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_BINARY = getattr(os, "O_BINARY", 0)  # on Windows only
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for a FIFO of that name, which has no writer


class Untrusted(OSError):
    """Others may have written what was stored, so it must be ignored."""


class StoragePlace(NamedTuple):
    """Where something may be stored: in a folder of this user, or beside the file that it describes."""

    path: str
    beside: str | None = None

    def open(self) -> BinaryIO:
        """Opens the stored file; raises `OSError` if there is none that can be trusted."""
        if self.beside is None:
            check_folder(os.path.dirname(self.path))
        return open_trusted(self.path, beside=self.beside)

    def write(self, pieces: Iterable[Any]) -> None:
        """Stores a file, completely or not at all; raises `OSError` if it cannot."""
        folder = os.path.dirname(self.path) or "."
        mode = 0o600
        if self.beside is None:
            check_folder(folder)
            make_folder(folder)
        else:  # readable for those who may read the file; another user's is not replaced
            mode |= os.stat(self.beside).st_mode & 0o044
            with contextlib.suppress(FileNotFoundError):
                _check(self.path, os.stat(self.path), beside=self.beside)
        new = os.path.join(folder, f".{secrets.token_hex(16)}.unfinished")
        try:
            with create(new, mode=mode) as file:
                file.writelines(pieces)
            os.replace(new, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise


def make_folder(folder: str) -> None:
    """Creates a folder and missing ones above it, private to this user."""
    if os.path.isdir(folder):
        return
    if os.path.dirname(folder) not in ("", folder):
        make_folder(os.path.dirname(folder))
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def create(path: str, *, mode: int = 0o600, buffering: int = -1) -> BinaryIO:
    """Makes a new file to write to, for this user alone; raises `FileExistsError` if there is anything of that name."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode)
    return io.open(fd, "wb", buffering)  # noqa: UP020


def open_own(path: str, flags: int = 0) -> int:
    """Opens a file to read, write and lock, with the mode 0600 if it is new; raises `Untrusted` if it is not ours.

    In a folder like `/tmp`, others may have made a file of that name, or a link to one of ours.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK | _NO_WAIT | _BINARY | flags, 0o600)
    except OSError as e:
        if os.path.islink(path):
            raise _not_ours(path, "it is a link") from e
        raise
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _not_ours(path, "it is not a file")
        if status.st_nlink > 1:
            raise _not_ours(path, "it is a link to a file with another name")
        if why := _why_untrusted(status):
            raise _not_ours(path, why)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_lock(path: str) -> int:
    """Opens a file of this user to lock it; whoever can open it can hold it, so nobody else can."""
    fd = open_own(path)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, 0o600)  # older versions made it readable for all
    return fd


def _not_ours(path: str, why: str) -> Untrusted:
    return Untrusted(f"Refusing to use {path}, which others may have created or changed: {why}. Remove it.")


def check_kept(folder: str) -> None:
    """Raises `PipelineError` if others may have written to the folder of a `cache(path)`, or to a file in it."""
    found = _untrusted_folder(folder, os.path.dirname(folder) or ".")
    if found is None and os.path.isdir(folder):
        for path in (os.path.join(folder, name) for name in os.listdir(folder)):
            status = os.stat(path)
            if why := _why_untrusted(status):
                found = path, status, why
    if found is not None:
        path, status, why = found
        raise PipelineError(
            f"`cache({os.path.dirname(folder)!r})` does not use {path}: {why}, so others may have written its "
            f"elements. {_how_to_mend(status)}, or pass another folder to `cache`."
        )


def check_folder(folder: str, *, within: str | None = None) -> None:
    """Warns and raises `Untrusted` for a folder that others may write to or replace."""
    found = _untrusted_folder(folder, within)
    if found is not None:
        path, status, why = found
        _refuse(
            f"Refusing to store data in {path}: {why}. {_how_to_mend(status)}, or set HEADRACE_CACHE to another folder."
        )


def _untrusted_folder(folder: str, within: str | None) -> tuple[str, os.stat_result, str] | None:
    """Which of a folder and the one above it others may write to, and why; what does not exist is fine."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if within is not None:
            above = os.stat(within)
            allowed = WRITABLE_BY_OTHERS if above.st_mode & stat.S_ISVTX else 0  # as in `/tmp`, where ours are safe
            if why := _why_untrusted(above, owners={0}, allowed=allowed):
                return within, above, why
        status = os.stat(folder or ".")
        if why := _why_untrusted(status):
            return folder, status, why
    return None


def open_trusted(path: str, *, beside: str | None = None) -> BinaryIO:
    """Opens a file to read; warns and raises `Untrusted` for one that others may have written.

    Those who may write to the file that it is `beside` are trusted.
    """
    file = io.open(os.open(path, os.O_RDONLY | _NO_WAIT | _BINARY), "rb")  # noqa: SIM115, UP020
    try:
        _check(path, os.fstat(file.fileno()), beside=beside)
    except BaseException:
        file.close()
        raise
    return file


def check_file(path: str) -> os.stat_result:
    """The status of a file; warns and raises `Untrusted` if others may have written it."""
    status = os.stat(path)
    _check(path, status)
    return status


def _check(path: str, status: os.stat_result, *, beside: str | None = None) -> None:
    owners = ()
    allowed = 0
    if beside is not None:
        there = os.stat(beside)
        owners = (0, there.st_uid)
        allowed = there.st_mode
    why = _why_untrusted(status, owners=owners, allowed=allowed)
    if not why and not stat.S_ISREG(status.st_mode):
        why = "it is not a file"
    if why:
        _refuse(f"Ignoring {path} and recomputing its contents: {why}. Remove it if you do not need it.")


def _why_untrusted(status: os.stat_result, *, owners: Collection[int] = (), allowed: int = 0) -> str:
    """Why others than this user and some owners may have written something; empty if they cannot have."""
    if not hasattr(os, "geteuid"):  # on Windows, folders are private by default
        return ""
    if status.st_uid != os.geteuid() and status.st_uid not in owners:
        return f"it belongs to user {status.st_uid}, but this process runs as user {os.geteuid()}"
    if status.st_mode & WRITABLE_BY_OTHERS & ~allowed:
        return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _how_to_mend(status: os.stat_result) -> str:
    if status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode):
        return "Delete its contents and revoke their permission (`chmod go-w`)"
    return "Remove it"


def _refuse(message: str) -> NoReturn:
    warnings.warn(message, CacheWarning, stacklevel=3)
    raise Untrusted(message)
