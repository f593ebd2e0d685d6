"""Elements of any layout, one after the other in a file, and where each begins in another."""

import functools
import json
import os
import struct
from typing import Any

import numpy as np

from headrace.sources import files
from headrace.sources.kept_elements.layout import Decode, Element, Layout, decoder
from headrace.sources.kept_elements.names import OFFSETS, RECORDS, as_layout, damaged
from headrace.sources.private import create

MOST_LAYOUTS = 1000  # more are stored with their elements
OWN_LAYOUT = -1
WRITE_BYTES = 1 << 20
MAPPED_BYTES = 1 << 20  # offsets of at least this size are mapped, so processes share them
_Q = struct.Struct("<q")


class RecordWriter:
    """Writes elements as records: the number of a layout, then what is laid out."""

    def __init__(self, folder: str):
        paths = [os.path.join(folder, name) for name in (RECORDS, OFFSETS)]
        self.files = [create(path, buffering=WRITE_BYTES) for path in paths]
        self._records, self._offsets = self.files
        self._at = 0
        self._offsets.write(_Q.pack(0))
        self._layouts: dict[Layout, int] = {}

    def holds(self, element: Element) -> bool:
        """Whether an element can be added."""
        return True

    def write(self, element: Element) -> None:
        """Adds an element."""
        record = b"".join([self._head(element.layout), *element.pieces])
        self._records.write(record)
        self._at += len(record)
        self._offsets.write(_Q.pack(self._at))

    def _head(self, layout: Layout) -> bytes:
        """The number of an element's layout, or the layout itself."""
        number = self._layouts.get(layout)
        if number is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                text = json.dumps(layout).encode()
                return _Q.pack(OWN_LAYOUT) + _Q.pack(len(text)) + text + bytes(-len(text) % 8)
            number = self._layouts[layout] = len(self._layouts)
        return _Q.pack(number)

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"num_bytes": self._at, "layouts": list(self._layouts)}


class RecordReader:
    """Reads elements that a `RecordWriter` wrote."""

    def __init__(self, folder: str, length: int, manifest: dict[str, Any]):
        self._folder, self._length, self._num_bytes = folder, length, manifest["num_bytes"]
        self._path = os.path.join(folder, RECORDS)
        version = files.fingerprint(self._path)
        if version.size != self._num_bytes:
            raise damaged(folder, f"{RECORDS} has {version.size} bytes, not {self._num_bytes}")
        self._pool = files.Pool(versions={self._path: version}, maps=True)
        self._decoders: list[Decode] = [decoder(as_layout(layout)) for layout in manifest["layouts"]]

    @functools.cached_property
    def _offsets(self) -> np.ndarray:
        path = os.path.join(self._folder, OFFSETS)
        found = np.memmap(path, "<i8", "r") if 8 * self._length >= MAPPED_BYTES else np.fromfile(path, "<i8")
        if len(found) != self._length + 1 or found[0] != 0 or found[-1] != self._num_bytes:
            raise damaged(self._folder, f"{OFFSETS} does not fit {RECORDS}")
        return np.asarray(found)

    def read(self, places: np.ndarray) -> list[Any]:
        """The elements at some places, each a new object."""
        file = self._pool.get(self._path) if self._num_bytes else None
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
            layout = as_layout(json.loads(buffer[at + 16 : at + 16 + length]))
            return decoder(layout)(buffer, at + 16 + (length + 7 & ~7))[0]
        except (struct.error, ValueError, IndexError, KeyError, TypeError) as e:
            raise damaged(self._folder, f"an element at offset {at} is damaged ({e})") from e

    def close(self) -> None:
        self._pool.close()
