"""Data that is stored on disk for later runs: private to this user, and used only if nobody else can have written it.

Whoever can write to a cache decides which elements a source has, and an index says where in a file to look.
"""

import contextlib
import io
import os
import secrets
import stat
import warnings
from collections.abc import Iterable
from typing import Any, BinaryIO, NamedTuple

from headrace.errors import CacheWarning

WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(OSError):
    """Others may have written what was stored, so it must be ignored."""


class Place(NamedTuple):
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
        folder, mode = os.path.dirname(self.path) or ".", 0o600
        if self.beside is None:
            check_folder(folder)
            make_folder(folder)
        else:  # readable for those who may read the file; another user's is not replaced
            mode |= os.stat(self.beside).st_mode & 0o044
            with contextlib.suppress(FileNotFoundError):
                _check(self.path, os.stat(self.path), beside=self.beside)
        new = os.path.join(folder, f".{secrets.token_hex(16)}.unfinished")
        try:
            with io.open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: UP020
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


def check_folder(folder: str, *, within: str | None = None) -> None:
    """Warns and raises `Untrusted` for a folder that others may write to or replace."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if within is not None:
            above = os.stat(within)
            owners = {0}  # for folders like `/tmp`, where the sticky bit protects our files
            _check(within, above, owners=owners, allowed=WRITABLE_BY_OTHERS if above.st_mode & stat.S_ISVTX else 0)
        _check(folder, os.stat(folder or "."))


def open_trusted(path: str, *, beside: str | None = None) -> BinaryIO:
    """Opens a file to read; warns and raises `Untrusted` for one that others may have written.

    Those who may write to the file that it is `beside` are trusted.
    """
    file = io.open(path, "rb")  # noqa: SIM115, UP020
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


def _check(
    path: str, status: os.stat_result, *, beside: str | None = None, owners: Iterable[int] = (), allowed: int = 0
) -> None:
    if not hasattr(os, "geteuid"):  # on Windows, folders are private by default
        return
    trusted = {os.geteuid(), *owners}
    if beside is not None:
        there = os.stat(beside)
        trusted |= {0, there.st_uid}
        allowed |= there.st_mode
    why = ""
    if status.st_uid not in trusted:
        why = f"it belongs to the user {status.st_uid}, and this process runs as {os.geteuid()}"
    elif status.st_mode & WRITABLE_BY_OTHERS & ~allowed:
        why = f"other users may write to it (its mode is {stat.S_IMODE(status.st_mode):o})"
    if why:
        message = f"{path} is not used to store data: {why}. Remove it, or set HEADRACE_CACHE to another folder."
        if beside is not None or not stat.S_ISDIR(status.st_mode):
            message = f"{path} is ignored, and its content is computed again: {why}. Remove it if you do not need it."
        elif status.st_uid in trusted:
            message = (
                f"{path} is not used to store data: {why}. Remove its content and their permission (`chmod go-w`), or "
                "set HEADRACE_CACHE to another folder."
            )
        warnings.warn(message, CacheWarning, stacklevel=2)
        raise Untrusted(message)
