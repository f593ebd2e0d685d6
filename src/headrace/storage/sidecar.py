"""Indexes of files: numbers that say where the elements of a file are, found once and stored in a hidden file.

A stored index is valid as long as its file has the size and modification time that it was made for.
"""

import abc
import contextlib
import functools
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from headrace.errors import DataError
from headrace.progress import Bar
from headrace.storage import files
from headrace.storage.private import StoragePlace

MAPPED_BYTES = 1 << 20  # indexes of at least this size are mapped, so processes share them

# A magic number, a digest of the version of the file, and the checksum and count of the numbers that follow.
_HEADER = struct.Struct("<8s32sqq")
_MAGIC = b"HRINDEX1"


class Index(abc.ABC):
    """The index of a file; it is pickled as the path of the stored index, if there is one."""

    SUFFIX: ClassVar[str]
    FOLDER: ClassVar[str]  # in the cache, for indexes that cannot be written beside their files
    is_stored: ClassVar[bool] = True  # in a process that verifies files: False, so that it reads all of each

    def __init__(self, path: str, *, index_dir: str | None, bar: Bar | None = None):
        self.path = path
        self.version = files.fingerprint(path)
        self._bar = bar
        is_known = self.is_stored and self.version.version  # some servers report no version
        places = list(self._places(index_dir)) if is_known else []
        self._kept: StoragePlace | None = None
        for place in places:
            found = self._read(place)
            if found is not None:
                self._kept = place
                self.numbers = found
                return
        self.numbers = self._found()
        self._kept = next((place for place in places if self._write(place)), None)
        self._bar = None

    @abc.abstractmethod
    def _find(self, file: files.File) -> np.ndarray:
        """Finds the int64 numbers in the file itself; reports to `advance` how many bytes it has read."""

    def advance(self, num_bytes: int) -> None:
        """Shows how far the search in the file has come."""
        if self._bar is not None:
            self._bar.advance(num_bytes)

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """The numbers in another process, which does not verify the checksum again."""
        found = None if self._kept is None else self._read(self._kept, checked=False)
        return self._found() if found is None else found

    def _found(self) -> np.ndarray:
        with contextlib.closing(files.open_file(self.path)) as file:
            if file.version != self.version:
                raise files.changed_error(self.path)
            if self._bar is not None:
                self._bar.expect(file.size)
            numbers = self._find(file)
        if files.fingerprint(self.path) != self.version:
            raise DataError(
                f"{self.path} was modified while it was being indexed. Create the source after writing has finished."
            )
        return numbers

    def _places(self, index_dir: str | None) -> Iterator[StoragePlace]:
        """Where it may be stored, the best place first; patterns do not match names that begin with a dot."""
        if index_dir is None and not files.is_remote(self.path):
            near, name = os.path.split(os.path.abspath(self.path))
            yield StoragePlace(os.path.join(near, f".{name}{self.SUFFIX}"), beside=self.path)
        folder = os.path.join(files.cache_folder(), self.FOLDER) if index_dir is None else index_dir
        yield StoragePlace(os.path.join(folder, f".{files.digest_of(self.path, self.version)}{self.SUFFIX}"))

    def _digest(self) -> bytes:
        return hashlib.sha256(f"{self.SUFFIX} {tuple(self.version)}".encode(errors="surrogateescape")).digest()

    def _read(self, place: StoragePlace, *, checked: bool = True) -> np.ndarray | None:
        """The stored numbers, if they are complete and of this version of the file."""
        try:
            with place.open() as kept:
                magic, digest, checksum, count = _HEADER.unpack(kept.read(_HEADER.size))
                if (magic, digest) != (_MAGIC, self._digest()):
                    return None
                if count * 8 < MAPPED_BYTES:
                    numbers = np.fromfile(kept, "<i8")
                else:
                    numbers = np.asarray(np.memmap(kept, "<i8", "r", _HEADER.size))
        except (OSError, struct.error, ValueError):
            return None
        whole = len(numbers) == count and (not checked or zlib.crc32(numbers.data) == checksum)
        return numbers if whole else None

    def _write(self, place: StoragePlace) -> bool:
        """Stores the numbers, completely or not at all; returns whether it could."""
        numbers = np.ascontiguousarray(self.numbers, "<i8")
        try:
            place.write([_HEADER.pack(_MAGIC, self._digest(), zlib.crc32(numbers.data), len(numbers)), numbers.data])
        except OSError:
            return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        state = {"path": self.path, "_bar": None, "version": self.version, "_kept": self._kept}
        return state if self._kept is not None else state | {"numbers": self.numbers}
