"""Fills a folder with elements: one process at a time, and completely or not at all."""

import contextlib
import fcntl
import io
import json
import logging
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from typing import Any, Self

from headrace.sources.kept_elements.layout import Element, Layout, columns

MANIFEST, RECORDS, OFFSETS = "manifest.json", "records", "offsets"
VERSION = 1
UNFINISHED = ".unfinished"
MOST_LAYOUTS = 1000  # more are stored with their elements
OWN_LAYOUT = -1
WRITE_BYTES = 1 << 20
_Q = struct.Struct("<q")


class Folder:
    """A folder for elements: `path/key`, which appears when it is complete.

    Whoever fills it holds a lock, which ends with the process. What a killed process has left is removed by the next
    one that fills it.
    """

    def __init__(self, path: str, key: str):
        self.path, self.key = path, key

    @property
    def name(self) -> str:
        return os.path.join(self.path, self.key)

    def is_complete(self) -> bool:
        """Whether its elements can be read."""
        return os.path.exists(os.path.join(self.name, MANIFEST))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Waits until no other process fills the folder."""
        os.makedirs(self.path, exist_ok=True)
        fd = os.open(os.path.join(self.path, f".{self.key}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.getLogger("headrace").info("Another process fills %s; waiting for it.", self.name)
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: whoever is done first wins, and the others drop what they have
            return
        for name in os.listdir(self.path):
            if name.startswith(f".{self.key}.") and name.endswith(UNFINISHED):
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    def filling(self) -> "Filling":
        """Opens it to be filled."""
        return Filling(self)


class Filling:
    """Writes elements; the folder appears at the end of the context, unless that is an error."""

    def __init__(self, folder: Folder):
        self._folder = folder
        self._partial = os.path.join(folder.path, f".{folder.key}.{secrets.token_hex(8)}{UNFINISHED}")
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
            shutil.rmtree(self._partial, ignore_errors=True)

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
        with contextlib.suppress(FileExistsError, OSError) if self._folder.is_complete() else contextlib.nullcontext():
            os.rename(self._partial, self._folder.name)
        _sync_folder(self._folder.path)

    def _shapes(self) -> list[tuple[int, ...]] | None:
        """The shapes of arrays, if each element has the same, and nothing but arrays."""
        if self._first is None or not self._are_alike or columns(*self._first) is None:
            return None
        return self._first[1]


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
