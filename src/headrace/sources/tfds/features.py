"""The features that `features.json` describes, and their values in an example.

Values have the dtypes and shapes that it says, as from `tfds.as_numpy`.
"""

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import DataError, HeadraceError, PipelineError
from headrace.sources.images import decode_image
from headrace.sources.metadata import Node
from headrace.sources.tf_example import Feature

Example = dict[str, np.ndarray]  # the values of each feature, in one dimension
ENCODINGS = ("none", "bytes", "zlib")


@dataclass(frozen=True)
class Leaf:
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
            raise DataError(f"feature {self.name!r} is not what `features.json` says: {e}") from e

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


def mapped(function: Callable[[Leaf], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: mapped(function, child) for key, child in tree.items()}
    return tuple(mapped(function, child) for child in tree) if isinstance(tree, tuple) else function(tree)


def leaves(tree: Any) -> list[Leaf]:
    found: list[Leaf] = []
    mapped(found.append, tree)
    return found


def features_of(feature: Node, name: str, *, decode: bool) -> Any:
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
            around, items = (_size(content.get("length")),), inside(content.at("feature"), name)
            return mapped(lambda leaf: replace(leaf, lengths=around + leaf.lengths), items)
        case "classLabel":
            return Leaf(name, np.dtype(np.int64), is_label=True)
        case "text":
            return Leaf(name, np.dtype(object))
        case "translation":
            told, lengths = content.get("languages"), ()
            keys = [] if told is None else [language.text() for language in told.items()]
            variable = content.get("variableLanguagesPerExample")
            if variable is not None and variable.value:
                keys, lengths = ("language", "translation"), (None,)
            return {key: Leaf(f"{name}/{key}", np.dtype(object), lengths=lengths) for key in keys}
        case "image" | "video" if not decode:
            return Leaf(name, np.dtype(object), lengths=() if kind == "image" else (None,))
        case "image":
            return Leaf(name, _dtype(name, content), _shape(content, num_axes=3), "image")
        case "video":
            length, *shape = _shape(content, num_axes=4)
            return Leaf(name, _dtype(name, content), tuple(shape), "image", (length,), is_video=True)
        case "tensor" | "boundingBox" | "audio" if _encoding(content) in ENCODINGS:
            return Leaf(name, _dtype(name, content), _shape(content), _encoding(content))
    shown = members["pythonClassName"].value if "pythonClassName" in members else "feature"
    raise PipelineError(
        f"Feature {name!r} is a {shown} ({kind}), which is not supported. Read the folder with `tfds.data_source`, "
        "which is a source as well."
    )


def _encoding(content: Node) -> str:
    told = content.get("encoding")
    return "none" if told is None else told.text().lower()


def _dtype(name: str, content: Node) -> np.dtype:
    node = content.get("dtype")
    told = "uint8" if node is None else node.text()
    try:
        dtype = np.dtype(object if told in ("string", "object", "str") else told)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(np.void)
    if dtype.kind not in "biufcO" and dtype.type.__module__ != "ml_dtypes":
        raise PipelineError(f"Feature {name!r} has the dtype {told!r}, which NumPy does not have.")
    return dtype


def _size(node: Node | None) -> int | None:
    """A size, which is -1 if unknown."""
    size = -1 if node is None else node.number(least=-1)
    return None if size < 0 else size


def _shape(content: Node, *, num_axes: int | None = None) -> tuple[int | None, ...]:
    told = content.get("shape")
    sizes = None if told is None else told.get("dimensions")
    shape = () if sizes is None else tuple(map(_size, sizes.items()))
    if num_axes not in (None, len(shape)):
        raise (sizes or content).wrong(f"a shape of {num_axes} sizes")
    return shape


def supervised(features: dict[str, Any], described: Node) -> Any:
    """The features that `dataset_info.json` names as input and target."""

    def named(key: Node) -> Any:
        if key.text() not in features:
            raise key.wrong(f"a feature ({', '.join(features)})")
        return features[key.text()]

    def chosen(keys: Node) -> Any:
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
        raise PipelineError(f"{name} does not say which features are input and target: leave out `as_supervised`.")
    return chosen(keys)
