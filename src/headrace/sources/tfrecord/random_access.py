"""The records of TFRecord files by index."""

import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace._threads import map_in_threads
from headrace.sources import files
from headrace.sources.crc32c import checksum, masked
from headrace.sources.tfrecord.framing import FRAME_BYTES, HEADER, damaged
from headrace.sources.tfrecord.index import index_of

NEAR_BYTES = 1 << 12  # records with no more than this between them are read at once
INDEXING_THREADS = 16
ITERATED_AT_ONCE = 1024


class TFRecordDataSource:
    """The records of TFRecord files by index, as bytes, one file after the other.

    Args:
        paths: A path, a pattern (`*`, `?`), or a sequence of these. The files are not compressed.
        index_dir: A folder for the indices. By default an index is a hidden file beside its own, and where that
            cannot be written, one in `~/.cache/headrace/tfrecord`.
        verify: Checks the checksum of every record that is read.
    """

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None, verify: bool = True):
        self._paths = files.expand(paths, what="TFRecord files")
        self._index_dir = None if index_dir is None else os.fsdecode(index_dir)
        self._verify = verify
        find = partial(index_of, folder=self._index_dir)
        found = map_in_threads(find, self._paths, INDEXING_THREADS, "headrace-index")
        self._fingerprints = [fingerprint for fingerprint, _ in found]
        self._ends: list[int] = np.cumsum([len(offsets) - 1 for _, offsets in found], dtype=np.int64).tolist()
        self._offsets: list[np.ndarray | None] = [offsets for _, offsets in found]
        self._files = files.Pool(versions=dict(zip(self._paths, self._fingerprints, strict=True)))

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their records."""
        return list(self._paths)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> bytes:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[bytes]:
        """The records at these indices: each file is read once, in its own order."""
        data, starts, lengths = self.read_block(np.asarray(indices, np.int64 if len(indices) == 0 else None))
        return _cut(data, starts, lengths)

    def read_block(self, indices: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Bytes that hold the records at these indices, where each of them begins in them, and its length."""
        if indices.dtype.kind not in "iu":
            raise TypeError(f"Indices must be ints; got {indices.dtype}: {indices.tolist()!r}.")
        length = len(self)
        outside = indices[(indices < -length) | (indices >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} records.")
        places, order = indices.astype(np.int64) % max(length, 1), slice(None)
        if (places[1:] <= places[:-1]).any():
            places, order = np.unique(places, return_inverse=True)
        numbers = np.searchsorted(self._ends, places, side="right")
        cuts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        pieces: list[bytes] = []
        starts, lengths = np.empty((2, len(places)), np.int64)
        base = 0
        for a, b in itertools.pairwise([*cuts, len(places)]):
            number = int(numbers[a])
            piece, starts[a:b], lengths[a:b] = self._read(
                number, places[a:b] - (self._ends[number - 1] if number else 0)
            )
            starts[a:b] += base
            base += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), starts[order], lengths[order]

    def place_of(self, index: int) -> str:
        """Where a record is, for messages."""
        place = index % len(self)
        number = int(np.searchsorted(self._ends, place, side="right"))
        place -= self._ends[number - 1] if number else 0
        return f"record {place} of {self._paths[number]}, at offset {self._offsets_of(number)[place]}"

    def _read(self, number: int, places: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The same for records of one file, by their places in it, which ascend."""
        path, offsets = self._paths[number], self._offsets_of(number)
        begins, ends = offsets[places], offsets[places + 1]
        first = np.flatnonzero(np.append(True, begins[1:] - ends[:-1] > NEAR_BYTES))  # of those that are read at once
        sizes = ends[np.append(first[1:], len(places)) - 1] - begins[first]
        pieces = self._files.get(path).read_many(list(zip(begins[first].tolist(), sizes.tolist(), strict=True)))
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

    def _offsets_of(self, number: int) -> np.ndarray:
        """The index of a file, which is not sent to other processes with the source."""
        offsets = self._offsets[number]
        if offsets is None:
            fingerprint, offsets = index_of(self._paths[number], self._index_dir)
            if fingerprint != self._fingerprints[number]:
                raise files.changed(self._paths[number])
            self._offsets[number] = offsets
        return offsets

    def __iter__(self) -> Iterator[bytes]:
        length = len(self)
        for start in range(0, length, ITERATED_AT_ONCE):
            yield from self.__getitems__(range(start, min(start + ITERATED_AT_ONCE, length)))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        self._files.close()

    def __enter__(self) -> "TFRecordDataSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_offsets": [None] * len(self._paths)}

    def __repr__(self) -> str:
        digest = files.hash_of_paths(self._paths)
        return f"TFRecordDataSource(num_files={len(self._paths)}, num_records={len(self)}, hash_of_paths={digest})"


def _cut(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _numbers_at(data: bytes, offsets: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers at any offsets."""
    size = np.dtype(dtype).itemsize
    windows = np.ndarray(max(0, len(data) - size + 1), f"V{size}", data, strides=(1,))  # one begins at each byte
    return windows[offsets].view(dtype)
