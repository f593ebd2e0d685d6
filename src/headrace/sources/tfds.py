"""Folders that TensorFlow Datasets prepared, read without it and without TensorFlow."""

import functools
import glob
import math
import operator
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import DataError, HeadraceError, PipelineError
from headrace.errors.addresses import redacted
from headrace.errors.suggestions import closest
from headrace.sources import metadata
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.image_folder import decode_image
from headrace.sources.metadata import JsonValue
from headrace.sources.tf_example import ExampleParser, Feature
from headrace.sources.tfrecord import TFRecordDataSource
from headrace.storage import files
from headrace.storage.indices import Parts, checked_index, checked_indices
from headrace.storage.splits import parse_split
from headrace.trees import ShapeDtypeStruct

# ----------------------------------------------------------------------------------------------------------- names
# Where TensorFlow Datasets keeps a dataset: `DATA_DIR/name/version`, or `DATA_DIR/name/config/version`.


DATA_DIR = "~/tensorflow_datasets"
_NAME = re.compile(r"([A-Za-z_]\w*)(?:/([\w.+-]*\w))?(?::((?:\d+|\*)(?:\.(?:\d+|\*)){2}))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def folder_of(given: str | os.PathLike, data_dir: str | os.PathLike | None) -> str:
    """The folder with the files of a dataset, from that folder itself or from the dataset's name in `data_dir`."""
    folder = files.absolute(os.path.expanduser(given))
    named = isinstance(given, str) and _NAME.fullmatch(given) is not None
    if data_dir is not None:
        return folder_by_name(os.fsdecode(given), data_dir)
    if not named or files.is_folder(folder):
        return folder
    try:
        return folder_by_name(os.fsdecode(given), None)
    except FileNotFoundError as e:
        raise FileNotFoundError(f"{given!r} is neither a folder nor the name of a TFDS dataset. {e}") from None


def folder_by_name(name: str, data_dir: str | os.PathLike | None) -> str:
    """The folder of a dataset with a name such as `mnist`, `glue/cola`, `mnist:3.0.1` or `mnist:3.*.*`.

    Without a version, it is the latest; without a config, the one that was prepared as the default.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise PipelineError(
            f"{name!r} is not the name of a TFDS dataset. Write it as in `mnist`, `mnist:3.0.1`, or, with a "
            "config, `glue/cola`."
        )
    dataset, config, version = found.groups()
    root = files.absolute(os.path.expanduser(data_dir or os.environ.get("TFDS_DATA_DIR") or DATA_DIR))
    hint = (
        "Set `data_dir` or TFDS_DATA_DIR to the folder with your datasets. Headrace downloads nothing: "
        "prepare a dataset with `tfds build` or `tfds.load`"
    )
    folder = _inside(root, dataset, f"There is no dataset {dataset!r}", hint)
    config = config or _default_config(folder)
    if config:
        folder = _inside(folder, config, f"{dataset} has no config {config!r}", f"Write it as in `{dataset}/config`")
    versions = _versions(folder)
    if not versions:
        configs = _folders(folder)
        hint = f" Is it one of its configs, as in '{dataset}/{configs[0]}'? There are {', '.join(configs)}."
        raise FileNotFoundError(f"{redacted(folder)} has no versions of a dataset.{hint if configs else ''}")
    matching = [one for one in versions if version is None or _matches(one, version)]
    if not matching:
        raise FileNotFoundError(f"{redacted(folder)} has no version {version}; there are {', '.join(versions)}.")
    return files.path_below(folder, matching[-1])


def _inside(folder: str, name: str, problem: str, hint: str) -> str:
    path = files.path_below(folder, name)
    if not files.is_folder(path):
        there = _folders(folder) if files.is_folder(folder) else []
        meant = closest(name, there)
        guess = f" Did you mean {meant!r}?" if meant else ""
        shown = f"there are {', '.join(there[:20])}" if there else "there are none"
        raise FileNotFoundError(f"{problem} in {redacted(folder)}; {shown}.{guess} {hint}.")
    return path


def _folders(folder: str) -> list[str]:
    names = (files.base_name(path) for path in files.list_folder(folder) if files.is_folder(path))
    return [name for name in names if not name.startswith(".")]


def _versions(folder: str) -> list[str]:
    """The versions in a folder, the latest last."""
    return sorted(filter(_VERSION.fullmatch, _folders(folder)), key=_numbers)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _matches(version: str, wanted: str) -> bool:
    pairs = zip(version.split("."), wanted.split("."), strict=True)
    return all(two == "*" or int(one) == int(two) for one, two in pairs)


def _default_config(folder: str) -> str | None:
    """The config that TFDS noted as the default; the only one, if there is no note; None without configs."""
    try:
        told = metadata.read(files.path_below(folder, ".config/metadata.json")).get("default_config_name")
    except FileNotFoundError:
        told = None
    if told is not None and told.value:
        told.name_below(folder)  # raises unless it is
        return told.text()
    names = _folders(folder)
    return names[0] if len(names) == 1 and not _VERSION.fullmatch(names[0]) else None


# -------------------------------------------------------------------------------------------------------- features
# The features that `features.json` describes, and their values in an example.
#
# Values have the dtypes and shapes that it says, as from `tfds.as_numpy`.


Example = dict[str, np.ndarray]  # the values of each feature, in one dimension
ENCODINGS = ("none", "bytes", "zlib")


@dataclass(frozen=True)
class TensorFeature:
    """A number, text, array or image, in as many nested sequences as there are `lengths`."""

    name: str
    dtype: np.dtype  # object for texts
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"  # or `bytes`, `zlib`, `image`: the example then has one text for each item
    lengths: tuple[int | None, ...] = ()
    is_label: bool = False
    is_video: bool = False  # its images have the same, unknown size

    @property
    def is_list(self) -> bool:
        """Whether a value is a list, since its parts may differ in size."""
        in_pieces = self.encoding != "none" and None in self.shape and not self.is_video
        return len(self.lengths) > 1 or (len(self.lengths) == 1 and in_pieces)

    def spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((*self.lengths, *self.shape), self.dtype)

    def parts(self) -> list[tuple[str, Feature]]:
        """The features of an example that it is read from; missing ones are empty."""
        stored = {"i": np.int64, "u": np.int64, "b": np.int64, "f": np.float32}.get(self.dtype.kind, bytes)
        sizes = (*self.lengths, *self.shape)
        if len(self.lengths) > 1:
            around = [f"{self.name}/ragged_row_lengths_{i}" for i in range(len(self.lengths) - 1)]
            flat = Feature(bytes if self.encoding != "none" else stored, None)
            return [(f"{self.name}/ragged_flat_values", flat), *((name, Feature(np.int64, None)) for name in around)]
        if self.encoding == "image":
            return [(self.name, Feature(bytes, None if self.lengths else (1,)))]
        if self.encoding != "none":
            shape = (f"{self.name}/shape", Feature(np.int64, None))
            return [(self.name, Feature(bytes, None)), (f"{self.name}/value", Feature(bytes, None)), shape]
        return [(self.name, Feature(stored, None if None in sizes else (math.prod(sizes),)))]  # type: ignore[arg-type]

    def read(self, example: Example) -> Any:
        """The value in an example."""
        try:
            return self._read(example)
        except (HeadraceError, MemoryError):
            raise
        except Exception as e:  # of NumPy, for values that do not match the dtype or sizes
            raise DataError(f"feature {self.name!r} does not match `features.json`: {e}") from e

    def _read(self, example: Example) -> Any:
        if len(self.lengths) < 2:
            return self._shaped(example, self.name, (*self.lengths, *self.shape))
        rows = self._shaped(example, f"{self.name}/ragged_flat_values", (None, *self.shape))
        for i in reversed(range(len(self.lengths) - 1)):
            stops = np.cumsum(example[f"{self.name}/ragged_row_lengths_{i}"]).tolist()
            rows = [rows[a:b] for a, b in zip([0, *stops], stops, strict=False)]
        return rows

    def _shaped(self, example: Example, name: str, shape: tuple[int | None, ...]) -> Any:
        if self.encoding != "none":
            return self._decoded(example, name, in_sequence=len(shape) > len(self.shape))
        try:
            return example[name].astype(self.dtype).reshape([-1 if size is None else size for size in shape])[()]
        except ValueError:
            found = len(example[name])
            raise DataError(f"feature {name!r} has {found} values, but its shape is {list(shape)}") from None

    def _decoded(self, example: Example, name: str, *, in_sequence: bool) -> Any:
        shapes = example.get(f"{name}/shape", ())
        if not len(shapes):
            items = [self._decode(value, self.shape) for value in example[name]]
        else:  # each item has its own shape
            each = np.reshape(shapes, (-1, len(self.shape))).tolist()
            items = [self._decode(value, shape) for value, shape in zip(example[f"{name}/value"], each, strict=True)]
        if not in_sequence and len(items) != 1:
            raise DataError(f"feature {name!r} has {len(items)} values instead of one")
        if not in_sequence:
            return items[0]
        if None in self.shape and not self.is_video:
            return items
        return np.stack(items) if items else np.empty((0, *(size or 0 for size in self.shape)), self.dtype)

    def _decode(self, value: Any, shape: Sequence[int | None]) -> np.ndarray:
        if self.encoding == "image":
            if self.dtype == np.float32:  # each number is stored as four channels
                rgba = decode_image(value, where=f"feature {self.name!r}", channels=4)
                return rgba.view("<f4").astype(np.float32)
            return decode_image(value, where=f"feature {self.name!r}", channels=self.shape[-1], dtype=self.dtype)
        try:
            content = self._inflated(value, shape) if self.encoding == "zlib" else value
            array = np.frombuffer(content, self.dtype.newbyteorder("<")).astype(self.dtype)
            return array.reshape([-1 if size is None else size for size in shape])
        except (ValueError, zlib.error) as e:
            raise DataError(f"feature {self.name!r} is not the expected array: {e}") from e

    def _inflated(self, value: bytes, shape: Sequence[int | None]) -> bytes:
        """The bytes of an array of this shape, and at most one more, however far the value expands."""
        if None in shape:
            return zlib.decompress(value)
        size = math.prod(shape) * self.dtype.itemsize  # type: ignore[arg-type]
        return zlib.decompressobj().decompress(value, size + 1)


def mapped(function: Callable[[TensorFeature], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: mapped(function, child) for key, child in tree.items()}
    return tuple(mapped(function, child) for child in tree) if isinstance(tree, tuple) else function(tree)


def leaves(tree: Any) -> list[TensorFeature]:
    found: list[TensorFeature] = []
    mapped(found.append, tree)
    return found


def features_of(feature: JsonValue, name: str, *, decode: bool) -> Any:
    """A feature of `features.json`, as a leaf or a tree of leaves."""
    members = feature.members()
    kind, content = next((item for item in members.items() if item[0] != "pythonClassName"), ("nothing", feature))
    inside = functools.partial(features_of, decode=decode)
    match kind:
        case "featuresDict":
            children = content.get("features")
            found = {} if children is None else children.members()
            return {key: inside(child, f"{name}/{key}" if name else key) for key, child in found.items()}
        case "sequence":
            around = (_size(content.get("length")),)
            items = inside(content.at("feature"), name)
            return mapped(lambda leaf: replace(leaf, lengths=around + leaf.lengths), items)
        case "classLabel":
            return TensorFeature(name, np.dtype(np.int64), is_label=True)
        case "text":
            return TensorFeature(name, np.dtype(object))
        case "translation":
            told = content.get("languages")
            lengths = ()
            keys = [] if told is None else [language.text() for language in told.items()]
            variable = content.get("variableLanguagesPerExample")
            if variable is not None and variable.value:
                keys = ("language", "translation")
                lengths = (None,)
            return {key: TensorFeature(f"{name}/{key}", np.dtype(object), lengths=lengths) for key in keys}
        case "image" | "video" if not decode:
            return TensorFeature(name, np.dtype(object), lengths=() if kind == "image" else (None,))
        case "image":
            return TensorFeature(name, _dtype(name, content), _shape(content, num_axes=3), "image")
        case "video":
            length, *shape = _shape(content, num_axes=4)
            return TensorFeature(name, _dtype(name, content), tuple(shape), "image", (length,), is_video=True)
        case "tensor" | "boundingBox" | "audio" if _encoding(content) in ENCODINGS:
            return TensorFeature(name, _dtype(name, content), _shape(content), _encoding(content))
    shown = members["pythonClassName"].value if "pythonClassName" in members else "feature"
    raise PipelineError(
        f"Feature {name!r} is a {shown} ({kind}), which is not supported. Read the folder with "
        "`tfds.data_source`, which is also a source."
    )


def _encoding(content: JsonValue) -> str:
    told = content.get("encoding")
    return "none" if told is None else told.text().lower()


def _dtype(name: str, content: JsonValue) -> np.dtype:
    node = content.get("dtype")
    told = "uint8" if node is None else node.text()
    try:
        dtype = np.dtype(object if told in ("string", "object", "str") else told)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(np.void)
    if dtype.kind not in "biufcO" and dtype.type.__module__ != "ml_dtypes":
        raise PipelineError(f"Feature {name!r} has the dtype {told!r}, which NumPy does not have.")
    return dtype


def _size(node: JsonValue | None) -> int | None:
    """A size, which is -1 if unknown."""
    size = -1 if node is None else node.number(least=-1)
    return None if size < 0 else size


def _shape(content: JsonValue, *, num_axes: int | None = None) -> tuple[int | None, ...]:
    told = content.get("shape")
    sizes = None if told is None else told.get("dimensions")
    shape = () if sizes is None else tuple(map(_size, sizes.items()))
    if num_axes not in (None, len(shape)):
        raise (sizes or content).wrong(f"a shape of {num_axes} sizes")
    return shape


def supervised(features: dict[str, Any], described: JsonValue) -> Any:
    """The features that `dataset_info.json` names as input and target."""

    def named(key: JsonValue) -> Any:
        if key.text() not in features:
            raise key.wrong(f"a feature ({', '.join(features)})")
        return features[key.text()]

    def chosen(keys: JsonValue) -> Any:
        if key := keys.get("featureKey"):
            return named(key)
        if together := keys.get("tuple"):
            return tuple(map(chosen, together.at("items").items()))
        if together := keys.get("dict"):
            return {key: chosen(item) for key, item in together.at("dict").members().items()}
        return named(keys.at("input")), named(keys.at("output"))  # as older versions wrote it

    keys = described.get("supervisedKeys")
    if keys is None or not keys.value:
        name = described.at("name").text()
        raise PipelineError(f"{name} does not say which features are input and target: remove `as_supervised`.")
    return chosen(keys)


# ---------------------------------------------------------------------------------------------------------- splits
# Which parts of which files a split means.


class Piece(NamedTuple):
    """Records `start` to `stop` of a file with `num_records`."""

    path: str
    start: int
    stop: int
    num_records: int


def pieces_of(split: Any, splits: Mapping[str, list[Piece]], what: str = "The folder") -> list[Piece]:
    """The parts of files that a split means, one after the other; `what` is the dataset, for messages.

    >>> pieces_of("train[1:4]", {"train": [Piece("a", 0, 2, 2), Piece("b", 0, 9, 9)]})
    [Piece(path='a', start=1, stop=2, num_records=2), Piece(path='b', start=0, stop=2, num_records=9)]
    """
    pieces = []
    for part in parse_split(split, splits, what):
        sizes = [piece.stop for piece in splits[part.name]]
        pieces += _cut(splits[part.name], *part.bounds(sum(sizes), sizes))
    return [piece for piece in pieces if piece.start < piece.stop]


def _cut(whole: list[Piece], start: int, stop: int) -> list[Piece]:
    ends = np.cumsum([piece.stop for piece in whole]).tolist()
    return [
        piece._replace(start=max(start - end + piece.stop, 0), stop=min(stop - end + piece.stop, piece.stop))
        for piece, end in zip(whole, ends, strict=True)
    ]


# ---------------------------------------------------------------------------------------------------------- source
# The examples of a folder that TensorFlow Datasets prepared.
#
# `dataset_info.json` lists the files of each split and their numbers of records; `features.json` describes a record,
# which is an `Example` in which the names of nested features are joined by `/`.


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
        features = _features(files.path_below(self._folder, "features.json"), decode=decode)
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
            path = files.path_below(self._folder, f"{name.replace('/', '-')}.labels.txt")
            try:
                with files.open_stream(path) as stream:
                    found[name] = stream.read().decode().splitlines()
            except FileNotFoundError:  # classes may have only numbers
                continue
            except ValueError as e:
                raise DataError(f"{path} does not hold class names in UTF-8: {e}.") from e
        return found

    @property
    def element_spec(self) -> Any:
        return None if any(leaf.is_list for leaf in leaves(self._tree)) else mapped(TensorFeature.spec, self._tree)

    def __len__(self) -> int:
        return self._parts.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([checked_index(index, len(self), "examples")])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        pieces, places = self._parts.find_all(checked_indices(indices, len(self), "examples"))
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
        names = list(columns)
        rows = zip(*columns.values(), strict=True)
        examples = (dict(zip(names, row, strict=True)) for row in rows)
        return [mapped(operator.methodcaller("read", example), self._tree) for example in examples]

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        if self._records is not None:
            self._records.close()

    def __repr__(self) -> str:
        return self._named


def _described(folder: str) -> JsonValue:
    """The content of `dataset_info.json`."""
    try:
        return metadata.read(files.path_below(folder, "dataset_info.json"))
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
        raise DataError(f"{path} has a single feature at its top level, instead of a dict of features.")
    return features


def _file_format(described: JsonValue) -> str:
    told = described.get("fileFormat")
    return "tfrecord" if told is None else told.text()


def _splits(folder: str, described: JsonValue) -> dict[str, list[Piece]]:
    """The files of each split."""
    splits: dict[str, list[Piece]] = {}
    listed = described.get("splits")
    for split in [] if listed is None else listed.items():
        lengths = split.get("shardLengths")
        name = split.at("name").text()
        given = split.get("filepathTemplate")
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
