"""Writes elements to a folder, which appears under its name when it is complete."""

import contextlib
import io
import json
import os
import secrets
import struct
from typing import Any, Self

from headrace.sources.kept_elements.layout import Element, Layout, columns

MANIFEST, RECORDS, OFFSETS = "manifest.json", "records", "offsets"
VERSION = 1
UNFINISHED = ".unfinished"
MOST_LAYOUTS = 1000  # more are stored with their elements
OWN_LAYOUT = -1
WRITE_BYTES = 1 << 20
_Q = struct.Struct("<q")


class Filling:
    """Writes elements; the folder `path/key` appears at the end of the context, unless that is an error."""

    def __init__(self, path: str, key: str):
        self._path, self._folder = path, os.path.join(path, key)
        self._partial = os.path.join(path, f".{key}.{secrets.token_hex(8)}{UNFINISHED}")
        self.num_elements, self._at = 0, 0
        self._layouts: dict[Layout, int] = {}
        self._first: tuple[Layout, list[tuple[int, ...]]] | None = None
        self._are_alike = True  # whether all have one layout and shape

    def __enter__(self) -> Self:
        os.mkdir(self._partial)
        self._records = io.open(self._in(RECORDS), "wb", buffering=WRITE_BYTES)  # noqa: UP020
        self._offsets = io.open(self._in(OFFSETS), "wb", buffering=WRITE_BYTES)  # noqa: UP020
        self._offsets.write(_Q.pack(0))
        return self

    def _in(self, name: str) -> str:
        return os.path.join(self._partial, name)

    def write(self, value: Any) -> None:
        """Adds an element."""
        element = Element(value)
        if self._first is None:
            self._first = element.layout, element.shapes
        self._are_alike = self._are_alike and (element.layout, element.shapes) == self._first
        record = b"".join([self._head(element.layout), *element.pieces])
        self._records.write(record)
        self._at += len(record)
        self._offsets.write(_Q.pack(self._at))
        self.num_elements += 1

    def _head(self, layout: Layout) -> bytes:
        """The number of an element's layout, or the layout itself."""
        number = self._layouts.get(layout)
        if number is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                text = json.dumps(layout).encode()
                return _Q.pack(OWN_LAYOUT) + _Q.pack(len(text)) + text + bytes(-len(text) % 8)
            number = self._layouts[layout] = len(self._layouts)
        return _Q.pack(number)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            with contextlib.suppress(OSError, ValueError):  # a full disk; the first error is the one to raise
                self._records.close()
                self._offsets.close()
            remove(self._partial)

    def _finish(self) -> None:
        manifest = {
            "version": VERSION,
            "num_elements": self.num_elements,
            "num_bytes": self._at,
            "layouts": list(self._layouts),
            "shapes": self._shapes(),
        }
        with open(self._in(MANIFEST), "w") as file:
            json.dump(manifest, file)
            _sync(file)
        for file in (self._records, self._offsets):
            _sync(file)
            file.close()
        _sync_folder(self._partial)
        try:
            os.rename(self._partial, self._folder)
        except OSError:
            if not os.path.exists(os.path.join(self._folder, MANIFEST)):  # else another process was done before
                raise
        _sync_folder(self._path)

    def _shapes(self) -> list[tuple[int, ...]] | None:
        """The shapes of arrays, if each element has the same, and nothing but arrays."""
        if self._first is None or not self._are_alike or columns(*self._first) is None:
            return None
        return self._first[1]


def remove(folder: str) -> None:
    """Removes a folder as far as possible."""
    import shutil  # slow to import, and hardly ever needed

    shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
