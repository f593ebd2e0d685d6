"""The index of a TFRecord file: where each record begins and the last one ends."""

import numpy as np

from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.crc32c import masked_crcs_of_lengths
from headrace.sources.sidecar import Index
from headrace.sources.tfrecord.compressed import is_compressed
from headrace.sources.tfrecord.framing import FRAME_BYTES, HEADER, READ_BYTES, damaged

LONGEST = np.uint64(1 << 60)  # bytes of a record: sums of offsets must not overflow
LARGE_BYTES = 1 << 15  # the search for offsets skips records of this size instead of reading them


class RecordIndex(Index):
    """Where each record of a file begins and the last one ends."""

    SUFFIX, FOLDER = ".index", "tfrecord"

    def _find(self, file: files.File) -> np.ndarray:
        return find_offsets(file, self.path)


def find_offsets(file: files.File, path: str) -> np.ndarray:
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
