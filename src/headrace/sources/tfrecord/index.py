"""The index of a TFRecord file: the offset of every record.

It is made once and kept in a file, and holds for the size and modification time that stand in it.
"""

import contextlib
import json
import os
import zlib

import numpy as np

from headrace.errors import DataError, PipelineError
from headrace.sources import files
from headrace.sources.crc32c import masked_crcs_of_lengths
from headrace.sources.private import Place
from headrace.sources.tfrecord.compressed import is_compressed
from headrace.sources.tfrecord.framing import FOOTER, FRAME_BYTES, HEADER, READ_BYTES, damaged

MAGIC = b"headrace index of a TFRecord file, 1\n"
LONGEST = np.uint64(1 << 60)  # bytes of a record, so that offsets can be added up
LARGE_BYTES = 1 << 15  # records of this size are jumped over when offsets are looked for, and not read


def index_of(path: str, folder: str | None) -> tuple[files.Fingerprint, np.ndarray]:
    """Where each record of a file begins, and the last one ends; read from the file's index, or written to it."""
    fingerprint = files.fingerprint(path)
    places = _places(path, folder, fingerprint)
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


def _places(path: str, folder: str | None, fingerprint: files.Fingerprint) -> list[Place]:
    """Where the index of a file may be, the best place first."""
    name = f"{files.digest_of(path, fingerprint)}.index"
    if folder is not None:
        return [Place(os.path.join(folder, name))]
    cached = Place(os.path.join(files.cache_folder(), "tfrecord", name))
    if files.is_remote(path):
        return [cached]
    # A name that begins with a dot is one that no pattern for the files themselves finds.
    near, own_name = os.path.split(os.path.abspath(path))
    return [Place(os.path.join(near, f".{own_name}.index"), beside=path), cached]


def _read_index(place: Place, fingerprint: files.Fingerprint) -> np.ndarray | None:
    """The offsets in an index; None where there is none, or one of another version of the file."""
    try:
        with place.open() as file:
            if file.readline(len(MAGIC)) != MAGIC or json.loads(file.readline()) != list(fingerprint):
                return None
            checksum, offsets = file.read(4), file.read()
    except (OSError, ValueError):
        return None
    if FOOTER.pack(zlib.crc32(offsets)) != checksum:
        return None
    return np.frombuffer(offsets, "<i8")


def _write_index(place: Place, fingerprint: files.Fingerprint, offsets: np.ndarray) -> None:
    data = offsets.astype("<i8").tobytes()
    place.write([MAGIC, json.dumps(fingerprint).encode() + b"\n", FOOTER.pack(zlib.crc32(data)), data])


def _find_offsets(path: str, size: int) -> np.ndarray:
    """Goes from record to record of a file, and checks the checksums of their lengths."""
    found, at, number, mean = [np.zeros(1, np.int64)], 0, 0, 0
    with contextlib.closing(files.open_file(path)) as file:
        while at < size:
            block = file.read(at, HEADER.size if mean > LARGE_BYTES and not files.is_remote(path) else READ_BYTES)
            if at == 0 and is_compressed(block[: HEADER.size]):
                raise PipelineError(
                    f"{path} is compressed, so its records cannot be read at random. Read it as a stream, with "
                    "`TFRecordIterDataset`, or write it without compression."
                )
            lengths = _lengths_in(path, block, number, at)
            ends = at + np.cumsum(lengths + FRAME_BYTES)
            if ends[-1] > size:
                what = f"it has {lengths[-1]} bytes, and the file ends {ends[-1] - size} bytes too early"
                raise damaged(path, number + len(lengths) - 1, int(ends[-1] - lengths[-1] - FRAME_BYTES), what)
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
        raise damaged(path, number, offset, f"the file ends {len(block)} bytes into it, before its length")
    lengths, crcs = (np.array(column, np.uint64) for column in zip(*headers, strict=True))
    wrong = np.flatnonzero(masked_crcs_of_lengths(lengths) != crcs)
    if len(wrong):
        before = int(lengths[: wrong[0]].sum()) + FRAME_BYTES * int(wrong[0])
        raise damaged(path, number + int(wrong[0]), offset + before, "the checksum of its length is wrong")
    if lengths.max() > LONGEST:
        first = int(np.argmax(lengths > LONGEST))
        before = int(lengths[:first].sum()) + FRAME_BYTES * first
        raise damaged(path, number + first, offset + before, f"it says that it has {lengths[first]} bytes")
    return lengths.astype(np.int64)
