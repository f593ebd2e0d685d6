"""The records of TFRecord files by index."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.sources import files
from headrace.sources.base import IndexedFiles
from headrace.sources.crc32c import checksum, masked
from headrace.sources.indices import place_of, places_of
from headrace.sources.tfrecord.framing import FRAME_BYTES, HEADER, damaged
from headrace.sources.tfrecord.index import RecordIndex

NEAR_BYTES = 1 << 12  # records with at most this much between them are read together


class TFRecordDataSource(IndexedFiles[bytes]):
    """The records of TFRecord files by index, as bytes, one file after the other.

    Args:
        paths: A path, a pattern (`*`, `?`), or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes. By default the index of a file is a hidden file beside it or, where that
            cannot be written, one in `~/.cache/headrace/tfrecord`.
        verify: Whether to check the checksum of every record that is read.
    """

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None, verify: bool = True):
        self._verify = verify
        self._open_files(paths, RecordIndex, index_dir, what="TFRecord files", maps=False)

    def _num_elements(self, index: RecordIndex) -> int:
        return len(index.numbers) - 1

    def __getitem__(self, index: int) -> bytes:
        number, place = self._parts.find(place_of(index, len(self), self._what))
        return _cut(*self._read(number, np.array([place])))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """The records at these indices: each file is read once, in its own order."""
        return _cut(*self.read_block(indices))

    def read_block(self, indices: Sequence[int] | np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Bytes that hold the records at these indices, and the offset and length of each record in them."""
        places, order = places_of(indices, len(self), self._what), slice(None)
        if (places[1:] <= places[:-1]).any():
            places, order = np.unique(places, return_inverse=True)
        pieces: list[bytes] = []
        starts, lengths = np.empty((2, len(places)), np.int64)
        base = 0
        for number, run, inside in self._parts.runs(places):
            piece, starts[run], lengths[run] = self._read(number, inside)
            starts[run] += base
            base += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), starts[order], lengths[order]

    def place_of(self, index: int) -> str:
        """Where a record is, for messages."""
        number, place = self._parts.find(index % len(self))
        return f"record {place} of {self._paths[number]}, at offset {self._indexes[number].numbers[place]}"

    def _read(self, number: int, places: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The same for records of one file, by their places in it, in ascending order."""
        path, offsets = self._paths[number], self._indexes[number].numbers
        begins, ends = offsets[places], offsets[places + 1]
        first = np.flatnonzero(np.append(True, begins[1:] - ends[:-1] > NEAR_BYTES))  # of those read together
        sizes = ends[np.append(first[1:], len(places)) - 1] - begins[first]
        pieces = self._pool.get(path).read_many(list(zip(begins[first].tolist(), sizes.tolist(), strict=True)))
        if any(len(piece) != size for piece, size in zip(pieces, sizes.tolist(), strict=True)):
            raise files.changed(path)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        moved = np.repeat(np.cumsum(sizes) - sizes - begins[first], np.diff(first, append=len(places)))
        starts, lengths = begins + moved + HEADER.size, ends - begins - FRAME_BYTES
        if self._verify:
            found = np.array(list(map(checksum(), _cut(data, starts, lengths))), np.uint32)
            wrong = np.flatnonzero(masked(found) != _numbers_at(data, starts + lengths, "<u4"))
            if len(wrong):
                what = "the checksum of its bytes is wrong"
                raise damaged(path, int(places[wrong[0]]), int(begins[wrong[0]]), what)
        return data, starts, lengths


def _cut(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _numbers_at(data: bytes, offsets: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers at these offsets, which need not be aligned."""
    size = np.dtype(dtype).itemsize
    windows = np.ndarray(max(0, len(data) - size + 1), f"V{size}", data, strides=(1,))  # one begins at each byte
    return windows[offsets].view(dtype)
