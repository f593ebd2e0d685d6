"""Splits of files that have none of their own: slices, and names that are those of files and folders."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from headrace._utils.splits import Part, parse, parts_of
from headrace.errors import PipelineError
from headrace.sources.files import is_folder, listed, name_of
from headrace.sources.opening.formats import is_hidden, kind_of_folder, stem_of
from headrace.sources.sliced import SlicedSource

Open = Callable[[Any], Any]


def by_name(paths: list[str]) -> dict[str, list[str]]:
    """The files of each split: `train` has `train.csv`, `train-00000-of-00002.csv`, or the folder `train`."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name = name_of(path) if is_folder(path) else stem_of(path)
        if name:
            found.setdefault(name, []).append(path)
    return found


def open_slices(source: Any, split: str, what: str) -> Any:
    """Slices without names of all elements of a source."""
    return _sliced(source, [(part, 0, _length(source, part, what)) for part in parse(split)], split)


def open_named(splits: Mapping[str, list[str]], split: str, what: str, open_files: Open) -> Any:
    """Slices of files that are given by name; `open_files` opens one or several as a source."""
    hint = " The names are those of files and folders; without a name, a slice is of all files, as in `split='[:80%]'`."
    parts = parts_of(split, splits, what, hint)
    names = list(dict.fromkeys(part.name for part in parts))
    source = open_files(_one_or_all(splits[names[0]]))
    if len(parts) == 1 and parts[0].is_whole:
        return source
    firsts, lengths = {names[0]: 0}, {names[0]: _length(source, parts[0], what)}
    for name in names[1:]:
        firsts[name] = sum(lengths.values())
        lengths[name] = _length(open_files(_one_or_all(splits[name])), parts[0], what)
    if len(names) > 1:
        with contextlib.suppress(AttributeError):
            source.close()
        source = open_files([file for name in names for path in splits[name] for file in _files_of(path)])
    return _sliced(source, [(part, firsts[part.name], lengths[part.name]) for part in parts], split)


def _files_of(path: str) -> list[str]:
    """The files in a folder; of a file, itself."""
    if not is_folder(path):
        return [path]
    if (kind := kind_of_folder(path)) is not None:
        raise PipelineError(
            f"{path} is a folder of the kind {kind}, which is opened on its own. Open each split, and add them with "
            "`MapDataset.concatenate`."
        )
    return [file for file in listed(path) if not is_hidden(file)]


def _one_or_all(paths: list[str]) -> Any:
    return paths[0] if len(paths) == 1 else paths


def _length(source: Any, part: Part, what: str) -> int:
    if not hasattr(source, "__getitem__"):
        raise PipelineError(
            f"{part.text!r}: {what} can only be read in order, since it is compressed, so its length is not known. "
            "Cut the stream with `take` and `skip`."
        )
    return len(source)


def _sliced(source: Any, parts: list[tuple[Part, int, int]], split: str) -> SlicedSource:
    """Parts of a source, each of a split that has a first index there and a length."""
    ranges = []
    for part, first, length in parts:
        start, stop = part.bounds(length)
        ranges.append((first + start, first + stop))
    return SlicedSource(source, ranges, split)


def shown(path: Any) -> str:
    """A path, or the first of several, for messages."""
    return os.fsdecode(path if isinstance(path, str | os.PathLike) else next(iter(path), ""))
