"""Recognizes errors of a worker that cannot see a file which the consumer has."""

import os
import re
from collections.abc import Iterator

from headrace.errors import DataError

_PATHS = re.compile(r"(?:^|[\s'\"`(])(/[^\s'\"`(),;]+)")


def only_here(error: BaseException, address: str) -> BaseException:
    """The error, or one that says that a file is on this machine and not on a node."""
    for each in _chain(error):
        if not _says_missing(each):
            continue
        path = next((path for path in _paths(each) if os.path.exists(path)), None)
        if path is not None:
            found = DataError(
                f"{path} is on this machine, and not on {address}, a node of the Ray cluster. Put the data on storage "
                "that all nodes reach under this path, or at an address (s3://, gs://, https://)."
            )
            found.__cause__ = error
            return found
    return error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _says_missing(error: BaseException) -> bool:
    words = ("no such file", "not found", "does not exist", "there is no", "no file", "missing")
    return isinstance(error, FileNotFoundError | NotADirectoryError) or any(
        word in str(error).lower() for word in words
    )


def _paths(error: BaseException) -> Iterator[str]:
    """The paths that an error names."""
    for name in (getattr(error, "filename", None), getattr(error, "filename2", None)):
        if isinstance(name, str | bytes):
            yield os.fsdecode(name)
    for path in _PATHS.findall(str(error)):
        yield path.rstrip(".:")
