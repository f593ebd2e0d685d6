"""Data by its path: opened as a pipeline would, with what is known of it."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import DataError, SpecError
from headrace.sources import opening
from headrace.sources.opening import is_hidden
from headrace.sources.tf_example import parse_example
from headrace.storage import files
from headrace.threads import map_in_threads
from headrace.trees import ShapeDtypeStructProtocol

SIZE_THREADS = 16
_NESTED = (Mapping, list, tuple, ShapeDtypeStructProtocol)


@dataclass(frozen=True)
class Data:
    """Data that is open.

    Attributes:
        dataset: Its records.
        format: The name of its format.
        checksums: What the checksums of the format cover.
        files: Its files; for a folder that is read as a whole, all in it that are on this machine.
        splits: The splits of a folder, with their numbers of records.
        split: The split that is open, if there are any.
    """

    dataset: Any
    format: str
    checksums: str
    files: list[str]
    splits: dict[str, int]
    split: str | None

    @property
    def num_records(self) -> int | None:
        """How many records there are; `None` for a stream, which does not know."""
        return None if isinstance(self.dataset, IterDataset) else len(self.dataset)

    def sizes(self) -> list[int]:
        """The sizes of the files in bytes."""
        return map_in_threads(lambda path: files.fingerprint(path).size, self.files, SIZE_THREADS, "headrace-look")

    def records(self, count: int) -> list[Any]:
        """The first records."""
        with contextlib.closing(iter(self.dataset)) as iterator:
            return list(islice(iterator, count))

    def spec(self) -> dict[str, str] | None:
        """The dtypes and shapes of a record's values, by name; `None` if the source does not know them."""
        try:
            return spec_of(self.dataset.element_spec)
        except SpecError:
            return None


def open_data(given: argparse.Namespace) -> Data:
    """The data that `add_data` has arguments for."""
    form, parts, checksums = opening.identify_parts(given.path, format=given.format)
    splits = opening.splits_of(parts[0], form.name)
    split = given.split or ("train" if "train" in splits else next(iter(splits), None))
    options: dict[str, Any] = {} if split is None else {"split": split}
    source = opening.open(given.path, format=given.format, **options)
    dataset = source if isinstance(source, IterDataset) else MapDataset.source(source)
    found = [file for part in parts for file in _files_of(part)]
    return Data(dataset, form.name, checksums, found, splits, split)


def _files_of(part: str) -> Iterator[str]:
    if files.is_remote(part) and files.is_folder(part):
        return
    if not files.is_remote(part) and os.path.isdir(part):
        for folder, _, names in os.walk(part):
            yield from (os.path.join(folder, name) for name in sorted(names) if not is_hidden(name))
        return
    yield from opening.paths_of(part)


def as_example(record: Any) -> dict[str, Any] | None:
    """The features of a record that is a `tf.train.Example`; `None` if it is none."""
    try:
        return parse_example(record) or None if isinstance(record, bytes) else None
    except DataError:
        return None


def spec_of(tree: Any) -> dict[str, str]:
    """The dtypes and shapes of all values, or of a spec's leaves.

    >>> spec_of({"x": np.zeros((2, 3), np.uint8), "name": "a", "more": [1.5], "pair": ({"y": 1}, b"")})
    {'x': 'uint8[2, 3]', 'name': 'str', 'more': 'list[1]', 'pair[0].y': 'int', 'pair[1]': 'bytes'}
    >>> spec_of(b"")
    {'record': 'bytes'}
    """
    return {name or "record": kind for name, kind in _named("", tree)}


def _named(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list | tuple) and any(isinstance(each, _NESTED) for each in value):
        for i, each in enumerate(value):
            yield from _named(f"{name}[{i}]", each)
    else:
        yield name, _kind(value)


def _kind(leaf: Any) -> str:
    if isinstance(leaf, ShapeDtypeStructProtocol):
        shape = ", ".join("?" if size is None else str(size) for size in leaf.shape)
        name = leaf.dtype.__name__ if isinstance(leaf.dtype, type) else str(leaf.dtype)
        return f"{name}[{shape}]" if shape else name
    return f"{type(leaf).__name__}[{len(leaf)}]" if isinstance(leaf, list | tuple) else type(leaf).__name__
