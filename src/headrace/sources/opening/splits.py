"""Splits of files that have none of their own: slices, and names that are those of files and folders."""

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
    return _sliced(source, [(part, 0, _length(source, what)) for part in parse(split)], split)


def open_named(splits: Mapping[str, list[str]], split: str, what: str, open_files: Open) -> Any:
    """Slices of files that are given by name; `open_files` opens one or several as a source."""
    hint = " The names are those of files and folders; without a name, a slice is of all files, as in `split='[:80%]'`."
    parts = parts_of(split, splits, what, hint)
    names = list(dict.fromkeys(part.name for part in parts))
    if len(names) > 1:
        firsts, lengths, num_before = {}, {}, 0
        for name in names:
            firsts[name], lengths[name] = num_before, _length_alone(open_files(_one_or_all(splits[name])), what)
            num_before += lengths[name]
        source = open_files([file for name in names for path in splits[name] for file in _files_of(path)])
        return _sliced(source, [(part, firsts[part.name], lengths[part.name]) for part in parts], split)
    source = open_files(_one_or_all(splits[names[0]]))
    if len(parts) == 1 and parts[0].is_whole:
        return source
    return _sliced(source, [(part, 0, _length(source, what)) for part in parts], split)


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


def _length(source: Any, what: str) -> int:
    if not hasattr(source, "__getitem__"):
        raise PipelineError(
            f"{what} can only be read in order, since it is compressed: its length is not known, so it cannot be "
            "sliced or added to others. Cut the stream with `take` and `skip`."
        )
    return len(source)


def _length_alone(source: Any, what: str) -> int:
    """The length of a source that is not needed any more."""
    length = _length(source, what)
    if hasattr(source, "close"):
        source.close()
    return length


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
