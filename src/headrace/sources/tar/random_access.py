"""The samples of tar files by index, and the index that says where they are."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.base import IndexedFiles
from headrace.sources.indices import place_of, places_of
from headrace.sources.sidecar import Index
from headrace.sources.tar.members import Member, Read, members
from headrace.sources.tar.samples import Sample, Window, samples

READ_BYTES = 1 << 18
LARGE_BYTES = 1 << 15  # the search for samples skips files of this size instead of reading them
TOGETHER_BYTES = 1 << 23  # samples that follow one another are read together, up to this much


class SampleIndex(Index):
    """Where each sample of a file begins and the last one ends."""

    SUFFIX, FOLDER = ".headrace-tar", "tar"

    def _find(self, file: files.File) -> np.ndarray:
        head = file.read(0, 4)
        if head.startswith((files.GZIP, files.ZSTD)):
            raise PipelineError(
                f"{self.path} is compressed, so its samples cannot be read at random. Read it in order, with "
                "`TarIterDataset`, or decompress it (`gunzip`): images and sound in it hardly become larger."
            )
        window = _Skipping(self.path, file, 0, READ_BYTES)
        found = samples(self.path, members(self.path, window.read, 0), window.pass_by)
        return np.array([0, *(end for _, end in found)], np.int64)


class _Skipping(Window):
    """Reads headers, and passes by the content of large files."""

    def pass_by(self, member: Member) -> None:
        self.check(member)
        is_large = member.size > LARGE_BYTES and not files.is_remote(self._path)
        self._ahead_bytes = 512 if is_large else READ_BYTES


class TarDataSource(IndexedFiles[Sample]):
    """The samples of tar files by index, as dicts of bytes: `{"__key__": "a/1", "jpg": b"…", "cls": b"7"}`.

    Files that follow one another and have the same name up to its first dot are one sample; what follows the dot is the
    name of the value, in lower case. Names without a dot, and those that begin with `__name__`, are left out, as
    WebDataset does. `DecodeSample` and the operations of `headrace.images` decode values.

    >>> from headrace.sources import write_tar
    >>> paths = write_tar([{"__key__": "dog", "txt": "a dog", "cls": 3}], folder / "a.tar")
    >>> TarDataSource(paths)[0]
    {'__key__': 'dog', 'txt': b'a dog', 'cls': b'3'}

    Args:
        paths: A path, a pattern (`*`, `?`, `{000..009}`), an address, or a sequence of these. The files must not be
            compressed.
        index_dir: A folder for the indexes. By default the index of a file is a hidden file beside it or, where that
            cannot be written, one in `~/.cache/headrace/tar`.
    """

    _what = "samples"
    _at_once = 64

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._open_files(paths, SampleIndex, index_dir, what="tar files", maps=False)

    def _num_elements(self, index: SampleIndex) -> int:
        return len(index.numbers) - 1

    def __getitem__(self, index: int) -> Sample:
        number, place = self._parts.find(place_of(index, len(self), self._what))
        return self._read(number, np.array([place]))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """The samples at these indices: each file is read once, in its own order."""
        places, order = np.unique(places_of(indices, len(self), self._what), return_inverse=True)
        found: list[Sample] = []
        for number, _, inside in self._parts.runs(places):
            found += self._read(number, inside)
        return [dict(found[i]) for i in order.tolist()] if len(order) > len(places) else [found[i] for i in order]

    def _read(self, number: int, places: np.ndarray) -> list[Sample]:
        """The samples of one file at ascending places."""
        path, bounds = self._paths[number], self._indexes[number].numbers
        spans = _together(bounds[places].tolist(), bounds[places + 1].tolist())
        file = self._pool.get(path)
        pieces = file.read_many([(begin, stop - begin) for begin, stop in spans])
        found: list[Sample] = []
        for (begin, stop), piece in zip(spans, pieces, strict=True):
            found += _parsed(path, _whole(file, piece, begin, stop), begin, stop)
        if len(found) != len(places):
            raise files.changed(path)
        return found


def _together(begins: list[int], stops: list[int]) -> list[tuple[int, int]]:
    """What to read for samples from and to these offsets: those that follow one another together."""
    spans = [(begins[0], stops[0])]
    for begin, stop in zip(begins[1:], stops[1:], strict=True):
        first, last = spans[-1]
        if begin == last and stop - first <= TOGETHER_BYTES:
            spans[-1] = first, stop
        else:
            spans.append((begin, stop))
    return spans


def _whole(file: files.File, piece: bytes, begin: int, stop: int) -> bytes:
    """A piece of a file, with the rest of it: the system reads at most 2 GiB at a time."""
    pieces, at = [piece], begin + len(piece)
    while at < stop and (more := file.read(at, stop - at)):
        pieces.append(more)
        at += len(more)
    return piece if len(pieces) == 1 else b"".join(pieces)


def _parsed(path: str, piece: bytes, begin: int, stop: int) -> list[Sample]:
    read: Read = lambda at, length: piece[at - begin : at - begin + length]  # noqa: E731
    found = samples(path, members(path, read, begin, stop), lambda member: read(member.begin, member.size))
    return [sample for sample, _ in found]
