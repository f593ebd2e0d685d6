"""Files in folders: one folder for each class, or one without classes."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headrace.errors import PipelineError
from headrace.storage import files

Suffixes = tuple[str, ...]


class Found(NamedTuple):
    """Files in the order of their names, relative to the folder.

    Attributes:
        names: Of the files.
        is_flat: Whether there are no classes.
        class_names: Of the folders, in order.
        labels: For each file, the number of its class.
    """

    names: list[str]
    is_flat: bool
    class_names: list[str]
    labels: np.ndarray


def find_files(root: str, suffixes: Suffixes, what: str, *, flat: bool | None) -> Found:
    """The files under a folder that end in these; `what` is one of them, for messages."""
    found, folders = _listed(root, suffixes)
    names, is_flat = _chosen(root, found, flat, suffixes, what)
    class_names = [] if is_flat else sorted({_top(name) for name in names} | folders)
    number = {name: i for i, name in enumerate(class_names)}
    return Found(names, is_flat, class_names, np.array([] if is_flat else [number[_top(n)] for n in names], np.int64))


def _listed(root: str, suffixes: Suffixes) -> tuple[list[str], set[str]]:
    """The names of all files under a folder, relative to it, and of its subfolders."""
    if files.is_remote(root):
        return _listed_far_away(root, suffixes), set()
    if not os.path.isdir(root):
        raise FileNotFoundError(f"{root} is not a folder.")
    with os.scandir(root) as entries:
        folders = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
    return list(_files_below(root, suffixes, "", ())), folders


def _files_below(folder: str, suffixes: Suffixes, prefix: str, ancestors: tuple[tuple[int, int], ...]) -> Iterator[str]:
    status = os.stat(folder)
    if (status.st_dev, status.st_ino) in ancestors:  # a link back to it
        return
    ancestors = (*ancestors, (status.st_dev, status.st_ino))
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(suffixes) and entry.is_file():
                yield prefix + entry.name
            elif entry.is_dir():
                yield from _files_below(entry.path, suffixes, f"{prefix}{entry.name}/", ancestors)


def _listed_far_away(root: str, suffixes: Suffixes) -> list[str]:
    top = re.sub(r"^.*?://", "", files.path_below(root, "").partition("::")[0]).lstrip("/")
    try:
        found = files.expand(files.path_below(root, "**"), what="Files")
    except FileNotFoundError:
        found = []
    heads = [path.partition("::")[0] if "://" in path.partition("::")[0] else path for path in found]
    names = [head[head.index(top) + len(top) :] for head in heads if top in head]
    return [name for name in names if name.lower().endswith(suffixes) and not re.search(r"(^|/)\.", name)]


def _chosen(root: str, found: list[str], flat: bool | None, suffixes: Suffixes, what: str) -> tuple[list[str], bool]:
    """The names of the files to read, in order, and whether they have no classes."""
    loose = [name for name in found if "/" not in name]
    classed = [name for name in found if "/" in name]
    if not found:
        raise PipelineError(f"There is no {what} under {root}: none of its files ends in {', '.join(suffixes)}.")
    if flat is None and loose and classed:
        raise PipelineError(
            f"{root} has {len(loose)} {what}s directly in it, such as {min(loose)!r}, and {len(classed)} in "
            f"folders, such as {min(classed)!r}. Pass `flat=True` to read all of them without classes, or "
            "`flat=False` to use the folders as classes and ignore the others."
        )
    if flat or (flat is None and loose):
        return sorted(found, key=os.path.split), True
    if not classed:
        raise PipelineError(f"{root} has {what}s, but no folders for classes: pass `flat=True`.")
    return sorted(classed, key=lambda name: (_top(name), *os.path.split(name))), False


def _top(name: str) -> str:
    return name.partition("/")[0]
