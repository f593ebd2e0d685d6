"""Folders that TensorFlow Datasets prepared, read without it and without TensorFlow.

`dataset_info.json` says which files a split has and how many records each of them, `features.json` what is in a record:
an `Example`, in which the names of nested features are joined by `/`. Values have the dtypes and shapes that
`features.json` tells, as `tfds.as_numpy` gives them.
"""

import functools
import glob
import json
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

from headrace._spec import ShapeDtypeStruct
from headrace.errors import DataError, PipelineError
from headrace.sources import files
from headrace.sources.array_record import ArrayRecordDataSource
from headrace.sources.images import below, decode_image
from headrace.sources.tf_example import ExampleParser, Feature
from headrace.sources.tfrecord import TFRecordDataSource

Example = dict[str, np.ndarray]  # the values of each feature, in one dimension
ENCODINGS = ("none", "bytes", "zlib")
FILE_NAME = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class TfdsDataSource:
    """The examples of a split, as dicts: numbers and arrays are NumPy's, texts are bytes, images are decoded.

    A sequence of sequences is a list of arrays, and so is a sequence of images whose sizes may differ.

    Args:
        folder: The folder that has `dataset_info.json`, as in `~/tensorflow_datasets/mnist/3.0.1`.
        split: A split, some of it, or a sum of these: `train`, `train[:80%]`, `train[10:20]+test`, `train[-1shard:]`,
            `all`.
        as_supervised: Elements are pairs of input and target, as the data set defines them.
        decode: With False, images stay the bytes that they were encoded to.
    """

    def __init__(
        self, folder: str | os.PathLike, split: str = "train", *, as_supervised: bool = False, decode: bool = True
    ):
        if isinstance(folder, str) and files.is_remote(folder):
            self._folder = folder
        else:
            self._folder = os.path.abspath(os.path.expanduser(os.fsdecode(folder)))
        described = _described(self._folder)
        features = _features(_json(below(self._folder, "features.json")), "", decode=decode)
        self._labels = [leaf.name for leaf in _leaves(features) if leaf.is_label]
        self._tree = _supervised(features, described) if as_supervised else features
        self._parser = ExampleParser({name: feature for leaf in _leaves(self._tree) for name, feature in leaf.parts()})
        pieces = _pieces(split, _splits(self._folder, described))
        self._paths = [piece.path for piece in pieces]
        self._ends = np.cumsum([piece.stop - piece.start for piece in pieces], dtype=np.int64)
        self._starts = np.array([piece.start for piece in pieces], np.int64)
        self._firsts, self._records = _records(described.get("fileFormat", "tfrecord"), pieces)
        options = f"{', as_supervised=True' if as_supervised else ''}{'' if decode else ', decode=False'}"
        named = "/".join(filter(None, [described["name"], described.get("configName"), described.get("version")]))
        self._named = f"TfdsDataSource({named!r}, split={split!r}{options}, length={len(self)})"

    @functools.cached_property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of each feature that has some; a nested one is called as in `objects/label`."""
        found = {}
        for name in self._labels:
            try:
                with files.open_stream(below(self._folder, f"{name.replace('/', '-')}.labels.txt")) as stream:
                    found[name] = stream.read().decode().splitlines()
            except FileNotFoundError:  # classes may have numbers only
                continue
        return found

    @property
    def element_spec(self) -> Any:
        return None if any(leaf.is_list for leaf in _leaves(self._tree)) else _mapped(_Leaf.spec, self._tree)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The examples at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        places, length = np.asarray(indices, np.int64), len(self)
        outside = places[(places < -length) | (places >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} examples.")
        pieces = np.searchsorted(self._ends, places % length, side="right")
        in_files = places % length - np.append(0, self._ends)[pieces] + self._starts[pieces]
        records = self._records.__getitems__((self._firsts[pieces] + in_files).tolist())
        try:
            return self._elements(records)
        except DataError:  # which of them is it?
            for piece, place, record in zip(pieces, in_files, records, strict=True):
                try:
                    self._elements([record])
                except DataError as e:
                    raise DataError(f"{self._paths[piece]}, record {place}: {e}") from e
            raise

    def _elements(self, records: Sequence[bytes]) -> list[Any]:
        columns = self._parser.batch(records)
        names, rows = list(columns), zip(*columns.values(), strict=True)
        examples = (dict(zip(names, row, strict=True)) for row in rows)
        return [_mapped(operator.methodcaller("read", example), self._tree) for example in examples]

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        if self._records is not None:
            self._records.close()

    def __repr__(self) -> str:
        return self._named


# ------------------------------------------------------------------------------------------------- folders


def _described(folder: str) -> dict[str, Any]:
    """What `dataset_info.json` says."""
    try:
        return _json(below(folder, "dataset_info.json"))
    except FileNotFoundError:
        below_it = [glob.glob(f"{depth}/dataset_info.json", root_dir=folder) for depth in ("*", "*/*", "*/*/*")]
        others = ", ".join(sorted(os.path.dirname(path) for paths in below_it for path in paths)[:20])
        raise FileNotFoundError(
            f"{folder} has no `dataset_info.json`, as a folder that TensorFlow Datasets prepared has. Folders below it "
            f"that have one: {others or 'none'}."
        ) from None


def _json(path: str) -> dict[str, Any]:
    with files.open_stream(path) as stream:
        try:
            return json.load(stream)
        except ValueError as e:
            raise DataError(f"{path} is no JSON: {e}. Was it written or copied to its end?") from e


class _Piece(NamedTuple):
    """Records `start` to `stop` of a file that has so many."""

    path: str
    start: int
    stop: int
    num_records: int


def _splits(folder: str, described: dict[str, Any]) -> dict[str, list[_Piece]]:
    """The files of each split."""
    splits: dict[str, list[_Piece]] = {}
    for split in described.get("splits", ()):
        sizes, template = [*map(int, split.get("shardLengths", ()))], split.get("filepathTemplate") or FILE_NAME
        named = {"DATASET": described["name"], "SPLIT": split["name"], "NUM_SHARDS": f"{len(sizes):05}"}
        named["FILEFORMAT"] = described.get("fileFormat", "tfrecord")
        shards = splits[split["name"]] = []
        for i, size in enumerate(sizes):
            place = {"SHARD_INDEX": f"{i:05}", "SHARD_X_OF_Y": f"{i:05}-of-{len(sizes):05}"}
            shards.append(_Piece(below(folder, template.format(**named, **place)), 0, size, size))
    return splits


def _records(file_format: str, pieces: list[_Piece]) -> tuple[np.ndarray, Any]:
    """A source of the files' records, and the place of the first record of each piece's file in it."""
    sizes = {piece.path: piece.num_records for piece in pieces}
    ends = np.cumsum([0, *sizes.values()], dtype=np.int64)
    firsts = dict(zip(sizes, ends.tolist(), strict=False))
    records: Any = None
    if file_format not in ("array_record", "tfrecord"):
        raise PipelineError(f"Files of the format {file_format!r} are not read, only `array_record` and `tfrecord`.")
    if file_format == "array_record" and pieces:  # with the numbers of records, no file is opened to count them
        told = [SimpleNamespace(filename=p, skip=0, take=n, examples_in_shard=n) for p, n in sizes.items()]
        records = ArrayRecordDataSource(told)
    elif pieces:
        records = TFRecordDataSource(list(sizes))
    if pieces and len(records) != ends[-1]:
        found = {path: len(TFRecordDataSource(path)) for path in sizes}
        wrong = next(path for path in sizes if found[path] != sizes[path])
        raise DataError(f"{wrong} has {found[wrong]} records, and `dataset_info.json` says {sizes[wrong]}.")
    return np.array([firsts[piece.path] for piece in pieces], np.int64), records


# -------------------------------------------------------------------------------------------------- splits

_PART = re.compile(r"\s*([^\s\[\]+]+)(?:\[([^\]]*)\])?\s*")
_BOUND = r"(-?\d+(?:_\d+)*(?:\.\d+)?)(%|shard)?"
_SLICE = re.compile(rf"(?:{_BOUND})?:(?:{_BOUND})?")
_ONE_SHARD = re.compile(r"(-?\d+)shard")


def _pieces(spec: str, splits: Mapping[str, list[_Piece]]) -> list[_Piece]:
    """What a split means: parts of files, one after the other.

    >>> _pieces("train[1:4]", {"train": [_Piece("a", 0, 2, 2), _Piece("b", 0, 9, 9)]})
    [_Piece(path='a', start=1, stop=2, num_records=2), _Piece(path='b', start=0, stop=2, num_records=9)]
    """
    pieces = []
    for part in spec.split("+") if isinstance(spec, str) else [""]:
        found = _PART.fullmatch(part)
        if found is None:
            raise _not_a_split(spec)
        name, sliced = found.groups()
        if name == "all" and "all" not in splits and sliced is None:
            pieces += [piece for whole in splits.values() for piece in whole]
        elif name in splits:
            pieces += _cut(splits[name], *_bounds(spec, sliced, [piece.stop for piece in splits[name]]))
        else:
            raise PipelineError(f"There is no split {name!r}; there are {', '.join(splits)}, and `all`.")
    return [piece for piece in pieces if piece.start < piece.stop]


def _not_a_split(spec: Any) -> PipelineError:
    return PipelineError(
        f"{spec!r} is not a split. Write it as in `train`, `train[:80%]`, `train[10:20]`, `train[-1shard:]`, or a sum "
        "of these, as in `train[:50]+test`; both ends of a slice are in the same unit."
    )


def _cut(whole: list[_Piece], start: int, stop: int) -> list[_Piece]:
    ends = np.cumsum([piece.stop for piece in whole]).tolist()
    return [
        piece._replace(start=max(start - end + piece.stop, 0), stop=min(stop - end + piece.stop, piece.stop))
        for piece, end in zip(whole, ends, strict=True)
    ]


def _bounds(spec: str, sliced: str | None, sizes: list[int]) -> tuple[int, int]:
    """Where a slice of a split begins and ends, in examples."""
    length = sum(sizes)
    if sliced is None:
        return 0, length
    if one := _ONE_SHARD.fullmatch(sliced):
        if not -len(sizes) <= int(one[1]) < len(sizes):
            raise PipelineError(f"{spec!r} asks for shard {one[1]}, and there are {len(sizes)}.")
        number = int(one[1]) % len(sizes)
        return sum(sizes[:number]), sum(sizes[: number + 1])
    found = _SLICE.fullmatch(sliced)
    if found is None:
        raise _not_a_split(spec)
    start, unit, stop, other = found.groups()
    if start is not None and stop is not None and unit != other:
        raise _not_a_split(spec)
    places = [_place(spec, bound, unit or other, sizes) for bound in (start, stop)]
    return 0 if places[0] is None else places[0], length if places[1] is None else places[1]


def _place(spec: str, bound: str | None, unit: str | None, sizes: list[int]) -> int | None:
    if bound is None:
        return None
    length = sum(sizes)
    if unit == "%":
        if abs(float(bound)) > 100:
            raise PipelineError(f"{spec!r} asks for {bound}%: a percentage is at most 100.")
        place = round(float(bound) * length / 100)
    elif "." in bound:
        raise _not_a_split(spec)
    elif unit == "shard":
        return sum(sizes[: int(bound)])
    else:
        place = int(bound)
    if not -length <= place <= length:
        raise PipelineError(f"{spec!r} asks for example {bound}, and the split has {length}.")
    return place + length if bound.startswith("-") else place


# ------------------------------------------------------------------------------------------------ features


@dataclass(frozen=True)
class _Leaf:
    """A feature that is a number, a text, an array or an image, in as many sequences as there are `lengths`."""

    name: str
    dtype: np.dtype  # object for texts
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"  # or `bytes`, `zlib`, `image`: each item is then one text in the example
    lengths: tuple[int | None, ...] = ()
    is_label: bool = False
    is_video: bool = False  # its images have one size, whichever it is

    @property
    def is_list(self) -> bool:
        """Whether a value is a list, since its parts have sizes of their own."""
        in_pieces = self.encoding != "none" and None in self.shape and not self.is_video
        return len(self.lengths) > 1 or (len(self.lengths) == 1 and in_pieces)

    def spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((*self.lengths, *self.shape), self.dtype)

    def parts(self) -> list[tuple[str, Feature]]:
        """The features of an example that it is read from; those that are not there are empty."""
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
            raise DataError(f"feature {name!r} has {found} values, and its shape is {list(shape)}") from None

    def _decoded(self, example: Example, name: str, *, in_sequence: bool) -> Any:
        shapes = example.get(f"{name}/shape", ())
        if not len(shapes):
            items = [self._decode(value, self.shape) for value in example[name]]
        else:  # each item has its own
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
            if self.dtype == np.float32:  # the four bytes of each number, as channels
                rgba = decode_image(value, where=f"feature {self.name!r}", channels=4)
                return rgba.view("<f4").astype(np.float32)
            return decode_image(value, where=f"feature {self.name!r}", channels=self.shape[-1], dtype=self.dtype)
        try:
            content = zlib.decompress(value) if self.encoding == "zlib" else value
            array = np.frombuffer(content, self.dtype.newbyteorder("<")).astype(self.dtype)
            return array.reshape([-1 if size is None else size for size in shape])
        except (ValueError, zlib.error) as e:
            raise DataError(f"feature {self.name!r} is not the array that it should be: {e}") from e


def _mapped(function: Callable[[_Leaf], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(function, child) for key, child in tree.items()}
    return tuple(_mapped(function, child) for child in tree) if isinstance(tree, tuple) else function(tree)


def _leaves(tree: Any) -> list[_Leaf]:
    found: list[_Leaf] = []
    _mapped(found.append, tree)
    return found


def _features(feature: Mapping[str, Any], name: str, *, decode: bool) -> Any:
    """A feature of `features.json`, as a leaf or as a dict of them."""
    kind, content = next((item for item in feature.items() if item[0] != "pythonClassName"), ("nothing", {}))
    inside = functools.partial(_features, decode=decode)
    match kind:
        case "featuresDict":
            children = content.get("features", {})
            return {key: inside(child, f"{name}/{key}" if name else key) for key, child in children.items()}
        case "sequence":
            length = int(content.get("length", -1))
            around = (None if length < 0 else length,)
            return _mapped(lambda leaf: replace(leaf, lengths=around + leaf.lengths), inside(content["feature"], name))
        case "classLabel":
            return _Leaf(name, np.dtype(np.int64), is_label=True)
        case "text":
            return _Leaf(name, np.dtype(object))
        case "translation":
            keys, lengths = content.get("languages", ()), ()
            if content.get("variableLanguagesPerExample"):
                keys, lengths = ("language", "translation"), (None,)
            return {key: _Leaf(f"{name}/{key}", np.dtype(object), lengths=lengths) for key in keys}
        case "image" | "video" if not decode:
            return _Leaf(name, np.dtype(object), lengths=() if kind == "image" else (None,))
        case "image":
            return _Leaf(name, _dtype(name, content), _shape(content), "image")
        case "video":
            length, *shape = _shape(content)
            return _Leaf(name, _dtype(name, content), tuple(shape), "image", (length,), is_video=True)
        case "tensor" | "boundingBox" | "audio" if content.get("encoding", "none").lower() in ENCODINGS:
            encoding = content.get("encoding", "none").lower()
            return _Leaf(name, _dtype(name, content), _shape(content), encoding)
    raise PipelineError(
        f"Feature {name!r} is a {feature.get('pythonClassName', 'feature')} ({kind}), which is not read here. Read the "
        "folder with `tfds.data_source`, which is a source as well."
    )


def _dtype(name: str, content: Mapping[str, Any]) -> np.dtype:
    told = content.get("dtype", "uint8")
    try:
        return np.dtype(object if told in ("string", "object", "str") else told)
    except TypeError:
        raise PipelineError(f"Feature {name!r} has the dtype {told!r}, which NumPy does not have.") from None


def _shape(content: Mapping[str, Any]) -> tuple[int | None, ...]:
    sizes = map(int, content.get("shape", {}).get("dimensions", ()))
    return tuple(None if size < 0 else size for size in sizes)


def _supervised(features: dict[str, Any], described: dict[str, Any]) -> Any:
    """The features that `dataset_info.json` says input and target are."""

    def chosen(keys: Mapping[str, Any]) -> Any:
        if "featureKey" in keys:
            return features[keys["featureKey"]]
        if "tuple" in keys:
            return tuple(chosen(item) for item in keys["tuple"]["items"])
        if "dict" in keys:
            return {key: chosen(item) for key, item in keys["dict"]["dict"].items()}
        return features[keys["input"]], features[keys["output"]]  # as older versions wrote it

    if not described.get("supervisedKeys"):
        raise PipelineError(f"{described['name']} does not say what input and target are: leave `as_supervised` out.")
    return chosen(described["supervisedKeys"])
