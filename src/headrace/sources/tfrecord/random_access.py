"""The records of TFRecord files by index, and the index that says where they are."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.base import IndexedFiles
from headrace.sources.crc32c import checksum, masked, masked_crcs_of_lengths
from headrace.sources.indices import place_of, places_of
from headrace.sources.sidecar import Index
from headrace.sources.tfrecord.compressed import is_compressed
from headrace.sources.tfrecord.framing import FRAME_BYTES, HEADER, READ_BYTES, damaged

NEAR_BYTES = 1 << 12  # records with at most this much between them are read together
LONGEST = np.uint64(1 << 60)  # bytes of a record: sums of offsets must not overflow
LARGE_BYTES = 1 << 15  # the search for offsets skips records of this size instead of reading them


class RecordIndex(Index):
    """Where each record of a file begins and the last one ends."""

    SUFFIX, FOLDER = ".index", "tfrecord"

    def _find(self, file: files.File) -> np.ndarray:
        return find_offsets(file, self.path, self.advance)


def find_offsets(file: files.File, path: str, advance: Callable[[int], None] = lambda num_bytes: None) -> np.ndarray:
    """Goes from record to record, and verifies the checksum of each length."""
    found, at, number, mean, size = [np.zeros(1, np.int64)], 0, 0, 0, file.size
    while at < size:
        block = file.read(at, HEADER.size if mean > LARGE_BYTES and not files.is_remote(path) else READ_BYTES)
        if at == 0 and is_compressed(block[: HEADER.size]):
            raise PipelineError(
                f"{path} is compressed, so its records cannot be read at random. Read it as a stream with "
                "`TFRecordIterDataset`, or write it without compression."
            )
        lengths = _lengths_in(path, block, number, at)
        ends = at + np.cumsum(lengths + FRAME_BYTES)
        if ends[-1] > size:
            what = f"it has {lengths[-1]} bytes, and the file ends {ends[-1] - size} bytes too early"
            raise damaged(path, number + len(lengths) - 1, int(ends[-1] - lengths[-1] - FRAME_BYTES), what)
        found.append(ends)
        advance(int(ends[-1]) - at)
        number, at, mean = number + len(lengths), int(ends[-1]), int(lengths.mean())
    return np.concatenate(found)


def _lengths_in(path: str, block: bytes, number: int, offset: int) -> np.ndarray:
    """The lengths of the records whose headers are in a block, which begins with a record."""
    unpack, last, at, headers = HEADER.unpack_from, len(block) - HEADER.size, 0, []
    while at <= last:
        header = unpack(block, at)
        headers.append(header)
        at += header[0] + FRAME_BYTES
    if not headers:
        raise damaged(path, number, offset, f"the file ends {len(block)} bytes into it, before its length")
    lengths, crcs = (np.array(column, np.uint64) for column in zip(*headers, strict=True))
    wrong = masked_crcs_of_lengths(lengths) != crcs
    if (wrong | (lengths > LONGEST)).any():
        first = int(np.argmax(wrong if wrong.any() else lengths > LONGEST))
        what = "the checksum of its length is wrong" if wrong.any() else f"it claims to have {lengths[first]} bytes"
        raise damaged(path, number + first, offset + int(lengths[:first].sum()) + FRAME_BYTES * first, what)
    return lengths.astype(np.int64)


class TFRecordDataSource(IndexedFiles[bytes]):
    """The records of TFRecord files by index, as bytes, one file after the other.

    >>> from headrace.sources import write_tfrecord
    >>> TFRecordDataSource(write_tfrecord([b"a", b"b"], folder / "a.tfrecord"))[1]
    b'b'

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
