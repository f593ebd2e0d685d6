"""TFRecord files: streams of bytes, and random access through an index of offsets.

A record is its length (8 bytes), the length's masked CRC-32C, the bytes, and their masked CRC-32C; numbers are
little-endian. The position of a stream is an offset in the file, or in what a compressed file holds. An index has the
offset of every record; it is written once, and holds for the size and modification time that stand in it.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import operator
import os
import struct
import sys
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, DataError, PipelineError, StateError
from headrace.iterator import DatasetIterator
from headrace.sources import files
from headrace.sources.crc32c import checksum, masked, masked_crc_of_length, masked_crcs_of_lengths

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
READ_BYTES = 1 << 18
LARGE_BYTES = 1 << 15  # records of this size are jumped over when offsets are looked for, and not read
NEAR_BYTES = 1 << 12  # records with no more than this between them are read at once
INDEXING_THREADS = 16
ITERATED_AT_ONCE = 1024


class DamagedFile(DataError, PipelineError):
    """A TFRecord file cannot be read at some record."""


def _damaged(path: str, number: int, offset: int, what: str) -> DamagedFile:
    return DamagedFile(
        f"{path} is damaged at record {number}, offset {offset}: {what}. Was it written or copied to its end, and is "
        "it a TFRecord file?"
    )


class TFRecordIterDataset(IterDataset[bytes]):
    """The records of a TFRecord file, in order, as bytes; GZIP and ZLIB files are known by their first bytes.

    To go to a state in a compressed file, it is decompressed up to there.

    Args:
        path: The file. Several are read by `IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset),
            cycle_length=...)`.
        verify_data: Checks the checksum of every record's bytes, and not of the lengths alone.
    """

    def __init__(self, path: str | os.PathLike, *, verify_data: bool = False):
        super().__init__()
        if not isinstance(path, str | os.PathLike):
            raise PipelineError(
                f"`path` must be one path; got {type(path).__name__}: {path!r}. For several files, use "
                "`IterDataset.interleave(MapDataset.source(paths).map(TFRecordIterDataset), cycle_length=...)`."
            )
        self._path, self._verify_data = os.fsdecode(path), verify_data

    def __iter__(self) -> "TFRecordIterator":
        return TFRecordIterator(self._path, verify_data=self._verify_data)


class TFRecordIterator(DatasetIterator[bytes]):
    """Hands over the records of one file; the file is opened for the first of them."""

    def __init__(self, path: str, *, verify_data: bool):
        super().__init__()
        self._path, self._verify_data = path, verify_data
        self._file: files.File | _Inflated | None = None
        self._closed = False
        self._block, self._at = b"", 0  # what has been read ahead, and how far it is used
        self._offset = 0  # of the block in the file

    def __next__(self) -> bytes:
        block, at = self._block, self._at
        if at + HEADER.size > len(block):
            block, at = self._read_on(HEADER.size), 0
            if not block:
                self._close_file()
                raise StopIteration
            if len(block) < HEADER.size:
                raise self._broken(f"the file ends {len(block)} bytes into it, before its length")
        length, length_crc = HEADER.unpack_from(block, at)
        if length_crc != masked_crc_of_length(length):
            raise self._broken("the checksum of its length is wrong")
        begin = at + HEADER.size
        end = begin + length
        if end + FOOTER.size > len(block):
            needed = FRAME_BYTES + length
            block, begin, end = self._read_on(needed), HEADER.size, HEADER.size + length
            if len(block) < needed:
                raise self._broken(f"it has {length} bytes, and the file ends {needed - len(block)} bytes too early")
        record = block[begin:end]
        if self._verify_data and masked(checksum()(record)) != FOOTER.unpack_from(block, end)[0]:
            raise self._broken("the checksum of its bytes is wrong")
        self._at = end + FOOTER.size
        return record

    def get_state(self) -> dict[str, Any]:
        return {"reader_offset": self._offset + self._at}

    def set_state(self, state: dict[str, Any]) -> None:
        offset = state.get("reader_offset") if isinstance(state, dict) else None
        if not isinstance(offset, int) or offset < 0:
            raise StateError(
                f"The state of a TFRecord file has the field `reader_offset`, an offset in it; got {state!r}. It is "
                "the state of another pipeline."
            )
        self._close_file()
        self._block, self._at, self._offset = b"", 0, offset

    def close(self) -> None:
        self._offset, self._block, self._at = self._offset + self._at, b"", 0
        self._closed = True
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read_on(self, needed: int) -> bytes:
        """The next bytes from where the reader is: at least as many as needed, unless the file ends before."""
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        self._file = file = self._file or _open(self._path)
        if self._offset > file.size:
            raise _another_file(self._path, self._offset)
        pieces, end = [self._block[self._at :]], self._offset + len(self._block)
        missing = needed - len(pieces[0])
        try:
            while missing > 0 and (piece := file.read(end, max(missing, READ_BYTES))):
                pieces.append(piece)
                missing, end = missing - len(piece), end + len(piece)
        except zlib.error as e:
            raise self._broken(f"its compressed bytes cannot be read ({e})") from e
        self._offset, self._at = self._offset + self._at, 0
        self._block = b"".join(pieces)
        return self._block

    def _broken(self, what: str) -> DamagedFile | StateError:
        offset = self._offset + self._at
        number = _number_of_record(self._path, offset)
        return _another_file(self._path, offset) if number is None else _damaged(self._path, number, offset, what)


def _another_file(path: str, offset: int) -> StateError:
    return StateError(
        f"No record of {path} begins at offset {offset}, which the state says. It is not the file that the state was "
        "saved with."
    )


def _number_of_record(path: str, offset: int) -> int | None:
    """The number of the record at an offset: an iterator that began in the middle does not know it."""
    place = number = 0
    with contextlib.closing(_open(path)) as file:
        while place < offset:
            header = file.read(place, HEADER.size)
            if len(header) < HEADER.size:
                return None
            place += HEADER.unpack(header)[0] + FRAME_BYTES
            number += 1
    return number if place == offset else None


# --------------------------------------------------------------------------------------------- compressed files


def _open(path: str) -> "files.File | _Inflated":
    if not files.is_remote(path):
        os.stat(path)  # raises where there is none: a file whose opening failed cannot be collected without a warning
    file = files.open_file(path)
    if not _is_compressed(file.read(0, HEADER.size)):
        return file
    file.close()
    return _Inflated(path)


def _is_compressed(start: bytes) -> bool:
    """Whether a file that begins like this is a GZIP or ZLIB file, and not one of records as they are."""
    if len(start) == HEADER.size:
        length, crc = HEADER.unpack(start)
        if crc == masked_crc_of_length(length):
            return False
    return start[:2] == b"\x1f\x8b" or (start[:1] == b"\x78" and int.from_bytes(start[:2], "big") % 31 == 0)


class _Inflated:
    """What a compressed file holds, by offset; to go back is to begin again."""

    size = sys.maxsize  # nobody knows it before the end

    def __init__(self, path: str):
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._file = files.open_stream(self._path)
        self._zlib, self._rest, self._at = zlib.decompressobj(47), b"", 0  # 47: either header

    def read(self, offset: int, length: int) -> bytes:
        """Some bytes from `offset` on, at most `length`; none at the end."""
        if offset < self._at:
            self.close()
            self._begin()
        while self._at < offset:
            if not self._next(min(offset - self._at, READ_BYTES)):
                raise _another_file(self._path, offset)
        return self._next(length)

    def _next(self, length: int) -> bytes:
        while True:
            given = self._rest or self._file.read(READ_BYTES)
            if self._zlib.eof:
                if not given.strip(b"\0"):
                    return b""
                self._zlib = zlib.decompressobj(47)  # another one follows, as in files put together by `cat`
            ended = not given
            found, self._rest = self._inflate(given, length)
            if found:
                self._at += len(found)
                return found
            if ended and not self._zlib.eof:
                raise zlib.error("they end too early")

    def _inflate(self, given: bytes, length: int) -> tuple[bytes, bytes]:
        """Up to `length` bytes, and what is left of those given: before damage, all that can be had."""
        while True:
            before = self._zlib.copy()
            try:
                found = self._zlib.decompress(given, length)
                return found, self._zlib.unconsumed_tail or self._zlib.unused_data
            except zlib.error:
                if length == 1:
                    raise
                self._zlib, length = before, length // 2

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------ random access


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
        threads = min(INDEXING_THREADS, len(self._paths))
        with concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="headrace-index") as pool:
            found = list(pool.map(lambda path: index_of(path, self._index_dir), self._paths))
        self._fingerprints = [fingerprint for fingerprint, _ in found]
        self._ends: list[int] = np.cumsum([len(offsets) - 1 for _, offsets in found], dtype=np.int64).tolist()
        self._offsets: list[np.ndarray | None] = [offsets for _, offsets in found]
        self._files = files.Pool()

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

    def _read(self, number: int, places: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """The same for records of one file, by their places in it, which ascend."""
        path, offsets = self._paths[number], self._offsets_of(number)
        begins, ends = offsets[places], offsets[places + 1]
        first = np.flatnonzero(np.append(True, begins[1:] - ends[:-1] > NEAR_BYTES))  # of those that are read at once
        sizes = ends[np.append(first[1:], len(places)) - 1] - begins[first]
        pieces = self._files.get(path).read_many(list(zip(begins[first].tolist(), sizes.tolist(), strict=True)))
        if any(len(piece) != size for piece, size in zip(pieces, sizes.tolist(), strict=True)):
            raise self._changed(path)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        moved = np.repeat(np.cumsum(sizes) - sizes - begins[first], np.diff(first, append=len(places)))
        starts, lengths = begins + moved + HEADER.size, ends - begins - FRAME_BYTES
        if self._verify:
            found = np.array(list(map(checksum(), _cut(data, starts, lengths))), np.uint32)
            wrong = np.flatnonzero(masked(found) != _numbers_at(data, starts + lengths, "<u4"))
            if len(wrong):
                what = "the checksum of its bytes is wrong"
                raise _damaged(path, int(places[wrong[0]]), int(begins[wrong[0]]), what)
        return data, starts, lengths

    def _offsets_of(self, number: int) -> np.ndarray:
        """The index of a file, which is not sent to other processes with the source."""
        offsets = self._offsets[number]
        if offsets is None:
            fingerprint, offsets = index_of(self._paths[number], self._index_dir)
            if fingerprint != self._fingerprints[number]:
                raise self._changed(self._paths[number])
            self._offsets[number] = offsets
        return offsets

    def _changed(self, path: str) -> DataError:
        return DataError(
            f"{path} is not the file that it was when the source was made: it was written since. Make a new one."
        )

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
        named = "\n".join(self._paths).encode(errors="surrogateescape")
        digest = hashlib.sha1(named, usedforsecurity=False).hexdigest()
        return f"TFRecordDataSource(num_files={len(self._paths)}, num_records={len(self)}, hash_of_paths={digest})"


def _cut(data: bytes, starts: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    return [data[a:b] for a, b in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)]


def _numbers_at(data: bytes, offsets: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers at any offsets."""
    size = np.dtype(dtype).itemsize
    windows = np.ndarray(max(0, len(data) - size + 1), f"V{size}", data, strides=(1,))  # one begins at each byte
    return windows[offsets].view(dtype)


# ------------------------------------------------------------------------------------------------------- index

MAGIC = b"headrace index of a TFRecord file, 1\n"


def index_of(path: str, folder: str | None) -> tuple[files.Fingerprint, np.ndarray]:
    """Where each record of a file begins, and the last one ends; read from the file's index, or written to it."""
    fingerprint = files.fingerprint(path)
    places = _index_paths(path, folder)
    for place in places:
        offsets = _read_index(place, fingerprint)
        if offsets is not None:
            return fingerprint, offsets
    offsets = _find_offsets(path, fingerprint.size)
    if files.fingerprint(path) != fingerprint:
        raise DataError(f"{path} was written to while its records were looked for. Make the source when it is done.")
    for place in places:
        with contextlib.suppress(OSError):  # an index that cannot be kept is made again next time
            _write_index(place, fingerprint, offsets)
            break
    return fingerprint, offsets


def _index_paths(path: str, folder: str | None) -> list[str]:
    """Where the index of a file may be, the best place first."""
    where = path if files.is_remote(path) else os.path.abspath(path)
    name = hashlib.sha1(where.encode(errors="surrogateescape"), usedforsecurity=False).hexdigest() + ".index"
    if folder is not None:
        return [os.path.join(folder, name)]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cached = os.path.join(cache, "headrace", "tfrecord", name)
    if files.is_remote(path):
        return [cached]
    # A name that begins with a dot is one that no pattern for the files themselves finds.
    return [os.path.join(os.path.dirname(where), f".{os.path.basename(where)}.index"), cached]


def _read_index(place: str, fingerprint: files.Fingerprint) -> np.ndarray | None:
    """The offsets in an index; None where there is none, or one of another version of the file."""
    try:
        with open(place, "rb") as file:
            if file.readline(len(MAGIC)) != MAGIC or json.loads(file.readline()) != list(fingerprint):
                return None
            checksum, offsets = file.read(4), file.read()
    except (OSError, ValueError):
        return None
    if FOOTER.pack(zlib.crc32(offsets)) != checksum:
        return None
    return np.frombuffer(offsets, "<i8")


def _write_index(place: str, fingerprint: files.Fingerprint, offsets: np.ndarray) -> None:
    data = offsets.astype("<i8").tobytes()
    os.makedirs(os.path.dirname(place), exist_ok=True)
    unfinished = os.path.join(os.path.dirname(place), f".{uuid.uuid4().hex}.unfinished")
    try:
        with open(unfinished, "xb") as file:
            file.write(MAGIC + json.dumps(fingerprint).encode() + b"\n" + FOOTER.pack(zlib.crc32(data)) + data)
        os.replace(unfinished, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _find_offsets(path: str, size: int) -> np.ndarray:
    """Goes from record to record of a file, and checks the checksums of their lengths."""
    found, at, number, mean = [np.zeros(1, np.int64)], 0, 0, 0
    with contextlib.closing(files.open_file(path)) as file:
        while at < size:
            block = file.read(at, HEADER.size if mean > LARGE_BYTES and not files.is_remote(path) else READ_BYTES)
            if at == 0 and _is_compressed(block[: HEADER.size]):
                raise PipelineError(
                    f"{path} is compressed, so its records cannot be read at random. Read it as a stream, with "
                    "`TFRecordIterDataset`, or write it without compression."
                )
            lengths = _lengths_in(path, block, number, at)
            ends = at + np.cumsum(lengths + FRAME_BYTES)
            if ends[-1] > size:
                what = f"it has {lengths[-1]} bytes, and the file ends {ends[-1] - size} bytes too early"
                raise _damaged(path, number + len(lengths) - 1, int(ends[-1] - lengths[-1] - FRAME_BYTES), what)
            found.append(ends)
            number, at, mean = number + len(lengths), int(ends[-1]), int(lengths.mean())
    return np.concatenate(found)


def _lengths_in(path: str, block: bytes, number: int, offset: int) -> np.ndarray:
    """The lengths of the records whose headers are in a block; the first begins with it."""
    unpack, last, at, headers = HEADER.unpack_from, len(block) - HEADER.size, 0, []
    while at <= last:
        header = unpack(block, at)
        headers.append(header)
        at += header[0] + FRAME_BYTES
    if not headers:
        raise _damaged(path, number, offset, f"the file ends {len(block)} bytes into it, before its length")
    lengths, crcs = (np.array(column, np.uint64) for column in zip(*headers, strict=True))
    wrong = np.flatnonzero(masked_crcs_of_lengths(lengths) != crcs)
    if len(wrong):
        before = int(lengths[: wrong[0]].sum()) + FRAME_BYTES * int(wrong[0])
        raise _damaged(path, number + int(wrong[0]), offset + before, "the checksum of its length is wrong")
    return lengths.astype(np.int64)
