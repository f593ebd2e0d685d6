"""Paths of files of arrays, names of arrays in them, and their errors."""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace._utils.addresses import redacted, secrets_in
from headrace.errors import (
    DataError,
    DataMemoryError,
    HeadraceError,
    PipelineError,
    RemoteError,
    in_words,
    without_secrets,
)
from headrace.sources import files

Path = str | os.PathLike


def existing(paths: Path | Mapping[str, Path], *, what: str) -> Any:
    """The absolute paths as strings; raises with all that are missing."""
    if isinstance(paths, str | os.PathLike):
        return existing({"": paths}, what=what)[""]
    if not isinstance(paths, Mapping) or not paths:
        raise PipelineError(f"{what} are given by a path, or by a dict of paths; got {paths!r}.")
    wrong = [path for path in paths.values() if not isinstance(path, str | os.PathLike)]
    if wrong:
        raise PipelineError(f"A path must be a string or a path object; got {type(wrong[0]).__name__}: {wrong[0]!r}.")
    found = {name: files.absolute(path) for name, path in paths.items()}
    missing = [path for path in found.values() if not files.is_remote(path) and not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of {len(found)} {what} do not exist: {redacted(', '.join(missing))}.")
    return found


def each(function: Callable[[str], Any], paths: Any) -> Any:
    """Applies a function to a path, or to each in a dict of paths."""
    return {name: function(path) for name, path in paths.items()} if isinstance(paths, dict) else function(paths)


def checked_keys(keys: Sequence[str] | None) -> list[str] | None:
    """The names of the arrays to read; None for all."""
    if isinstance(keys, str) or (keys is not None and not keys):
        raise PipelineError(f"`keys` must be a sequence of names, at least one; got {keys!r}.")
    return None if keys is None else list(keys)


def chosen_keys(path: str, found: Sequence[str], keys: list[str] | None) -> list[str]:
    """The names of the arrays to read, of those found in a file."""
    missing = [key for key in keys or () if key not in found]
    if missing:
        raise PipelineError(f"{path} has no {', '.join(map(repr, missing))}; it has {', '.join(map(repr, found))}.")
    return list(found) if keys is None else keys


def check_size(what: str, num_bytes: int) -> None:
    """Raises for data that cannot fit into memory: a small compressed file may hold very much, or say so."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory_bytes:
        raise ValueError(f"{what}, which takes {num_bytes} bytes, but the memory of this machine is {memory_bytes}")


_OF_DAMAGE = (ValueError, EOFError, KeyError, OSError, RuntimeError, zlib.error, zipfile.BadZipFile)


@contextlib.contextmanager
def damage_named(path: str, what: str) -> Iterator[None]:
    """Turns errors of a reader into one that names the file, without the secrets in errors of drivers."""
    hidden = secrets_in(getattr(path, "options", None))
    try:
        yield
    except (HeadraceError, ImportError):
        raise
    except MemoryError as e:
        error = DataMemoryError(f"{redacted(path)} cannot be read as {what}: there is too little memory. {e}")
        error.add_note(f"reading {redacted(path)} as {what}")
        raise error from e
    except (FileNotFoundError, PermissionError) as e:
        if without_secrets(e, hidden) is e:
            raise
        raise type(e)(redacted(str(e), hidden)) from None
    except Exception as e:  # libraries raise anything for a damaged file
        cause = without_secrets(e, hidden)
        if files.is_remote(path) and not isinstance(e, _OF_DAMAGE):
            raise RemoteError(f"{path} could not be read: {redacted(in_words(e), hidden)}.") from cause
        found = redacted(" ".join(str(e).split()).rstrip("."), hidden) or type(e).__name__
        raise DataError(f"{path} cannot be read as {what}: {found}. Was it written or copied to its end?") from cause
