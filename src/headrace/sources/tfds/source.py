"""The examples of a folder that TensorFlow Datasets prepared.

`dataset_info.json` lists the files of each split and their numbers of records; `features.json` describes a record,
which is an `Example` in which the names of nested features are joined by `/`.
"""

import functools
import glob
import operator
import os
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from headrace._utils.addresses import redacted
from headrace.errors import DataError, PipelineError
from headrace.sources import files, metadata
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.indices import Parts, place_of, places_of
from headrace.sources.metadata import Node
from headrace.sources.tf_example import ExampleParser
from headrace.sources.tfds.features import Leaf, features_of, leaves, mapped, supervised
from headrace.sources.tfds.names import folder_of
from headrace.sources.tfds.splits import Piece, pieces_of
from headrace.sources.tfrecord import TFRecordDataSource

FILE_NAME = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class TfdsDataSource:
    """The examples of a split, as dicts of NumPy numbers and arrays; texts are bytes, and images are decoded.

    Sequences of sequences, or of images whose sizes may differ, are lists of arrays.

    >>> source = TfdsDataSource(tfds_folder, "train[:50%]")  # a folder with dataset_info.json
    >>> len(source), sorted(source[0])[:3]
    (6, ['deep_ragged', 'depth', 'flag'])

    Args:
        folder: The folder that has `dataset_info.json`, as in `~/tensorflow_datasets/mnist/3.0.1`; or the name of a
            dataset that was prepared in `data_dir`: `mnist`, `mnist:3.0.1`, `glue/cola`.
        split: A split, a part of it, or a sum of these: `train`, `train[:80%]`, `train[10:20]+test`, `train[-1shard:]`,
            `all`.
        data_dir: Where TFDS keeps datasets. By default, it is TFDS_DATA_DIR, or `~/tensorflow_datasets`.
        as_supervised: Whether elements are pairs of input and target, as the dataset defines them.
        decode: Whether to decode images; with False, they stay bytes.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        split: str = "train",
        *,
        data_dir: str | os.PathLike | None = None,
        as_supervised: bool = False,
        decode: bool = True,
    ):
        self._folder = folder_of(folder, data_dir)
        described = _described(self._folder)
        features = _features(files.below(self._folder, "features.json"), decode=decode)
        self._labels = [leaf.name for leaf in leaves(features) if leaf.is_label]
        self._tree = supervised(features, described) if as_supervised else features
        self._parser = ExampleParser({name: feature for leaf in leaves(self._tree) for name, feature in leaf.parts()})
        told = [described.at("name"), described.get("configName"), described.get("version")]
        named = "/".join(node.text() for node in told if node is not None and node.value)
        pieces = pieces_of(split, _splits(self._folder, described), named)
        self._paths = [piece.path for piece in pieces]
        self._parts = Parts(piece.stop - piece.start for piece in pieces)
        self._starts = np.array([piece.start for piece in pieces], np.int64)
        self._firsts, self._records = _records(_file_format(described), pieces)
        options = f"{', as_supervised=True' if as_supervised else ''}{'' if decode else ', decode=False'}"
        self._named = f"TfdsDataSource({named!r}, split={split!r}{options}, length={len(self)})"

    @functools.cached_property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of each feature that has some; nested names look like `objects/label`."""
        found = {}
        for name in self._labels:
            path = files.below(self._folder, f"{name.replace('/', '-')}.labels.txt")
            try:
                with files.open_stream(path) as stream:
                    found[name] = stream.read().decode().splitlines()
            except FileNotFoundError:  # classes may have only numbers
                continue
            except ValueError as e:
                raise DataError(f"{path} does not have the names of classes, in UTF-8: {e}.") from e
        return found

    @property
    def element_spec(self) -> Any:
        return None if any(leaf.is_list for leaf in leaves(self._tree)) else mapped(Leaf.spec, self._tree)

    def __len__(self) -> int:
        return self._parts.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([place_of(index, len(self), "examples")])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        pieces, places = self._parts.find_all(places_of(indices, len(self), "examples"))
        in_files = places + self._starts[pieces]
        records = self._records.__getitems__((self._firsts[pieces] + in_files).tolist())
        try:
            return self._elements(records)
        except DataError:  # which one is it?
            for piece, place, record in zip(pieces, in_files, records, strict=True):
                try:
                    self._elements([record])
                except DataError as e:
                    raise DataError(f"{self._paths[piece]}, record {place}: {e}") from e
            raise

    def __where__(self, index: int) -> tuple[str, int]:
        """The file of an example, and its number in it."""
        piece, place = self._parts.find(index)
        return self._paths[piece], place + int(self._starts[piece])

    def _elements(self, records: Sequence[bytes]) -> list[Any]:
        columns = self._parser.batch(records)
        names, rows = list(columns), zip(*columns.values(), strict=True)
        examples = (dict(zip(names, row, strict=True)) for row in rows)
        return [mapped(operator.methodcaller("read", example), self._tree) for example in examples]

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        if self._records is not None:
            self._records.close()

    def __repr__(self) -> str:
        return self._named


def _described(folder: str) -> Node:
    """The content of `dataset_info.json`."""
    try:
        return metadata.read(files.below(folder, "dataset_info.json"))
    except FileNotFoundError:
        below_it = [glob.glob(f"{depth}/dataset_info.json", root_dir=folder) for depth in ("*", "*/*", "*/*/*")]
        others = ", ".join(sorted(os.path.dirname(path) for paths in below_it for path in paths)[:20])
        raise FileNotFoundError(
            f"{redacted(folder)} has no `dataset_info.json`, so TensorFlow Datasets did not prepare it. "
            f"Folders below it that have one: {others or 'none'}."
        ) from None


def _features(path: str, *, decode: bool) -> dict[str, Any]:
    """The features that `features.json` describes."""
    try:
        features = features_of(metadata.read(path), "", decode=decode)
    except RecursionError as e:
        raise DataError(f"{path} nests features too deeply to be genuine.") from e
    if not isinstance(features, dict):
        raise DataError(f"{path} has a single feature at its top, instead of a dict of features.")
    return features


def _file_format(described: Node) -> str:
    told = described.get("fileFormat")
    return "tfrecord" if told is None else told.text()


def _splits(folder: str, described: Node) -> dict[str, list[Piece]]:
    """The files of each split."""
    splits: dict[str, list[Piece]] = {}
    listed = described.get("splits")
    for split in [] if listed is None else listed.items():
        lengths, name, given = split.get("shardLengths"), split.at("name").text(), split.get("filepathTemplate")
        sizes = [] if lengths is None else [length.number() for length in lengths.items()]
        template = given if given is not None and given.value else split._replace(value=FILE_NAME)
        named = {"DATASET": described.at("name").text(), "SPLIT": name, "NUM_SHARDS": f"{len(sizes):05}"}
        named["FILEFORMAT"] = _file_format(described)
        shards = splits[name] = []
        for i, size in enumerate(sizes):
            place = {"SHARD_INDEX": f"{i:05}", "SHARD_X_OF_Y": f"{i:05}-of-{len(sizes):05}"}
            values = named | place  # nothing else is replaced in the template, which may contain anything
            file = re.sub(r"\{(\w+)\}", lambda found, v=values: v.get(found[1], found[0]), template.text())
            shards.append(Piece(template.name_below(folder, file), 0, size, size))
    return splits


def _records(file_format: str, pieces: list[Piece]) -> tuple[np.ndarray, Any]:
    """A source of the files' records, and the index in it of the first record of each piece's file."""
    sizes = {piece.path: piece.num_records for piece in pieces}
    ends = np.cumsum([0, *sizes.values()], dtype=np.int64)
    firsts = dict(zip(sizes, ends.tolist(), strict=False))
    records: Any = None
    if file_format not in ("array_record", "tfrecord"):
        raise PipelineError(f"Files of format {file_format!r} are not supported, only `array_record` and `tfrecord`.")
    if file_format == "array_record" and pieces:  # given the numbers of records, it opens no file to count them
        told = [SimpleNamespace(filename=p, skip=0, take=n, examples_in_shard=n) for p, n in sizes.items()]
        records = ArrayRecordDataSource(told)
    elif pieces:
        records = TFRecordDataSource(list(sizes))
    if pieces and len(records) != ends[-1]:
        found = {path: len(TFRecordDataSource(path)) for path in sizes}
        wrong = next(path for path in sizes if found[path] != sizes[path])
        raise DataError(f"{wrong} has {found[wrong]} records, but `dataset_info.json` says {sizes[wrong]}.")
    return np.array([firsts[piece.path] for piece in pieces], np.int64), records
