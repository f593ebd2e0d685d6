"""Reads elements that a folder keeps, by index."""

import contextlib
import functools
import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.errors import DataError
from headrace.sources import files
from headrace.sources.base import BlockSource
from headrace.sources.indices import place_of, places_of
from headrace.sources.kept_elements.layout import Decode, Layout, columns, decoder
from headrace.sources.kept_elements.writing import MANIFEST, OFFSETS, OWN_LAYOUT, RECORDS, VERSION

MAPPED_BYTES = 1 << 20  # offsets of at least this size are mapped, so processes share them
_Q = struct.Struct("<q")


class KeptElements(BlockSource[Any]):
    """The elements in a folder, each as it was written."""

    def __init__(self, folder: str):
        self.folder = folder
        manifest = self._manifest()
        self._length, self._num_bytes = manifest["num_elements"], manifest["num_bytes"]
        self._layouts = [_as_layout(layout) for layout in manifest["layouts"]]
        self._shapes = None if manifest["shapes"] is None else [tuple(shape) for shape in manifest["shapes"]]
        self._records = os.path.join(folder, RECORDS)
        self._open()

    def _manifest(self) -> dict[str, Any]:
        try:
            with open(os.path.join(self.folder, MANIFEST), encoding="utf-8") as file:
                manifest = json.load(file)
            if manifest["version"] != VERSION:
                raise ValueError(f"its version is {manifest['version']}, and this one of Headrace reads {VERSION}")
        except (ValueError, KeyError, TypeError) as e:
            raise self._damaged(str(e)) from e
        with contextlib.suppress(OSError):
            os.utime(self.folder)  # so that one sees which were used last
        return manifest

    def _open(self) -> None:
        version = files.fingerprint(self._records)
        if version.size != self._num_bytes:
            raise self._damaged(f"{RECORDS} has {version.size} bytes, not {self._num_bytes}")
        self._pool = files.Pool(versions={self._records: version}, maps=True)
        self._decoders: list[Decode] = [decoder(layout) for layout in self._layouts]
        self._mapped: files.MappedFile | None = None  # the file that columns are taken from, by `_takes`
        self._takes: Any = None

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self.folder} cannot be read as a cache of elements: {what}. Remove it: it is made again.")

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        path = os.path.join(self.folder, OFFSETS)
        found = np.memmap(path, "<i8", "r") if 8 * self._length >= MAPPED_BYTES else np.fromfile(path, "<i8")
        if len(found) != self._length + 1 or found[0] != 0 or found[-1] != self._num_bytes:
            raise self._damaged(f"{OFFSETS} does not fit {RECORDS}")
        return np.asarray(found)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([place_of(index, self._length, "elements")])[0]

    def __getitems__(self, indices: Sequence[int] | np.ndarray) -> list[Any]:
        """The elements at these indices, each a new object."""
        places = places_of(indices, self._length, "elements")
        file = self._pool.get(self._records) if self._num_bytes else None
        begins = self._offsets[places].tolist()
        if isinstance(file, files.MappedFile):
            return [self._element(file.buffer, begin) for begin in begins]
        ends = self._offsets[places + 1].tolist()
        pieces = file.read_many([(a, b - a) for a, b in zip(begins, ends, strict=True)]) if file else []
        return [self._element(piece, 0) for piece in pieces]

    def _element(self, buffer: Any, at: int) -> Any:
        try:
            number = _Q.unpack_from(buffer, at)[0]
            if number != OWN_LAYOUT:
                return self._decoders[number](buffer, at + 8)[0]
            length = _Q.unpack_from(buffer, at + 8)[0]
            layout = _as_layout(json.loads(buffer[at + 16 : at + 16 + length]))
            return decoder(layout)(buffer, at + 16 + (length + 7 & ~7))[0]
        except (struct.error, ValueError, IndexError, KeyError, TypeError) as e:
            raise self._damaged(f"an element at offset {at} is damaged ({e})") from e

    @functools.cached_property
    def _columns(self) -> tuple[Any, int] | None:
        """Where columns are, if there are any, in a file that is mapped."""
        if self._shapes is None or not isinstance(self._pool.get(self._records), files.MappedFile):
            return None
        return columns(self._layouts[0], self._shapes)

    @property
    def __getcolumns__(self) -> Any:
        if self._columns is None:
            raise AttributeError("__getcolumns__")
        return self._gather

    def _gather(self, indices: np.ndarray) -> Any:
        """The elements at `indices`, all in `0..len - 1`, as new columns."""
        if self._mapped is None:
            file = self._pool.get(self._records)
            assert isinstance(file, files.MappedFile)
            assert self._columns is not None
            tree, record_bytes = self._columns
            self._takes = _each_column(lambda column: column.taker(file.buffer, self._length, record_bytes), tree)
            self._mapped = file
        else:
            self._mapped.check_unchanged(self._records)
        return _each_column(lambda take: take(indices), self._takes)

    def close(self) -> None:
        self._mapped = self._takes = None
        self._pool.close()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("folder", "_length", "_num_bytes", "_layouts", "_shapes", "_records")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"KeptElements({self.folder!r}, num_elements={self._length})"


def _each_column(function: Callable[[Any], Any], tree: Any) -> Any:
    """A tree of what a function makes of each column."""
    if isinstance(tree, dict):
        return {key: _each_column(function, inner) for key, inner in tree.items()}
    if isinstance(tree, tuple):
        return tuple([_each_column(function, inner) for inner in tree])
    return function(tree)


def _as_layout(found: Any) -> Layout:
    """A layout that was stored as JSON, which has lists instead of tuples."""
    if isinstance(found, list):
        return tuple(map(_as_layout, found))
    return found
