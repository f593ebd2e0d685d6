"""Where the lines of a file begin: found once by a scan, and kept in a hidden file.

An index that was kept is used for as long as its file has the size and the time of change that it was made for.
"""

import contextlib
import hashlib
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.json_lines.lines import BOM, WHITE
from headrace.sources.json_lines.plain import GZIP, ZSTD
from headrace.sources.private import Place

SCAN_BYTES = 4 << 20
REMOTE_SCAN_BYTES = 32 << 20  # which come in several requests at once
LINES_AT_ONCE = 1024
# Lines that are nearer than this are read together: a call costs as much as that many bytes more.
GAP_BYTES = 2 << 10
MAPPED_BYTES = 1 << 20  # an index of this size on is mapped into memory, and so shared by processes

# What it is, a digest of the version of the file, and how many bounds and numbers of blank lines follow.
_HEADER = struct.Struct("<8s32sqq")
_MAGIC = b"HRLINES1"


class Index:
    """Where the lines of a file are: line `i` is `bounds[i]:bounds[i + 1]`, its line end with it.

    It travels to other processes as the path of its file, if it has one.
    """

    def __init__(self, path: str, version: files.Fingerprint, found: tuple[np.ndarray, np.ndarray], kept: Place | None):
        self.path, self.version, self._kept = path, version, kept
        self.bounds, self._blank = found
        self._not_blank_before = self._blank - np.arange(len(self._blank))

    def num_elements(self, *, skips_blank: bool) -> int:
        """How many elements the file has."""
        return len(self.bounds) - 1 - (len(self._blank) if skips_blank else 0)

    def line_numbers(self, places: np.ndarray, *, skips_blank: bool) -> np.ndarray:
        """The numbers of the lines of these elements."""
        if not skips_blank or not len(self._blank):
            return places
        return places + np.searchsorted(self._not_blank_before, places, side="right")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._kept is not None:
            return _found_again, (self.path, self.version, self._kept)
        return Index, (self.path, self.version, (self.bounds, self._blank), None)


def index_of(path: str, index_dir: str | None) -> Index:
    """The index of a file: the one that was kept, or a new one."""
    version = files.fingerprint(path)
    places = _places(path, index_dir, version) if version.version else []  # some servers tell no version
    for kept in places:
        found = _load(kept, version)
        if found is not None:
            return Index(path, version, found, kept)
    found = scan(path, version)
    return Index(path, version, found, next((place for place in places if _store(place, version, found)), None))


def _found_again(path: str, version: files.Fingerprint, kept: Place) -> Index:
    """An index in another process."""
    found = _load(kept, version)
    return Index(path, version, found, kept) if found is not None else Index(path, version, scan(path, version), None)


# ------------------------------------------------------------------------------------------ kept in a file


def _places(path: str, index_dir: str | None, version: files.Fingerprint) -> list[Place]:
    """Where the index of a file may be, the best place first; patterns do not match names with a dot in front."""
    folder = os.path.join(files.cache_folder(), "lines") if index_dir is None else index_dir
    place = Place(os.path.join(folder, f".{files.digest_of(path, version)}.headrace-lines"))
    if index_dir is not None or files.is_remote(path):
        return [place]
    near, name = os.path.split(path)
    return [Place(os.path.join(near, f".{name}.headrace-lines"), beside=path), place]


def _digest(version: files.Fingerprint) -> bytes:
    return hashlib.sha256(str(tuple(version)).encode(errors="surrogateescape")).digest()


def _load(kept: Place, version: files.Fingerprint) -> tuple[np.ndarray, np.ndarray] | None:
    """What an index file says, if it is whole and of this version of its file."""
    try:
        with kept.open() as file:
            magic, made_for, num_bounds, num_blank = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _MAGIC or made_for != _digest(version):
                return None
            if num_bounds * 8 < MAPPED_BYTES:
                numbers = np.fromfile(file, "<i8")
            else:
                numbers = np.asarray(np.memmap(file, "<i8", "r", _HEADER.size))
    except (OSError, struct.error, ValueError):
        return None
    bounds, blank = numbers[:num_bounds], numbers[num_bounds:]
    whole = len(bounds) == num_bounds > 0 and len(blank) == num_blank and bounds[-1] == version.size
    return (bounds, blank) if whole else None


def _store(kept: Place, version: files.Fingerprint, found: tuple[np.ndarray, np.ndarray]) -> bool:
    """Writes an index file, whole or not at all; whether it could."""
    bounds, blank = found
    header = _HEADER.pack(_MAGIC, _digest(version), len(bounds), len(blank))
    try:
        kept.write([header, *(np.ascontiguousarray(numbers, "<i8").data for numbers in (bounds, blank))])
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------------------ found by a scan


def scan(path: str, version: files.Fingerprint) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the lines of a file, and which lines are blank."""
    with contextlib.closing(files.open_file(path)) as file:
        if file.version != version:
            raise files.changed(path)
        head = file.read(0, 4)
        if head.startswith((GZIP, ZSTD)):
            raise PipelineError(
                f"{path} is compressed, and its lines cannot be read at random. Read it in order, with "
                "`JsonLinesIterDataset` or `TextLinesIterDataset`, or decompress it."
            )
        found = _scan(file, path, len(BOM) if head.startswith(BOM) else 0)
    if files.fingerprint(path) != version:
        raise files.changed(path)
    return found


def _scan(file: files.File, path: str, first: int) -> tuple[np.ndarray, np.ndarray]:
    begin, step = np.array([first]), REMOTE_SCAN_BYTES if files.is_remote(path) else SCAN_BYTES
    found, dubious, at = [begin], [begin], 0
    while at < file.size:
        block = file.read(at, min(step, file.size - at))
        if not block:
            raise files.changed(path)
        view = np.frombuffer(block, np.uint8)
        begins = np.flatnonzero(view == ord("\n")) + 1
        found.append(begins + at)
        dubious.append(begins[np.take(view, begins, mode="clip") <= ord(" ")] + at)
        at += len(block)
        dubious.append(np.array([at]))  # a line that begins with the next block
    bounds = np.concatenate(found)
    if bounds[-1] != file.size:
        bounds = np.append(bounds, file.size)
    return bounds, _blank_ones(file, bounds, np.unique(np.searchsorted(bounds[:-1], np.concatenate(dubious))))


def _blank_ones(file: files.File, bounds: np.ndarray, dubious: np.ndarray) -> np.ndarray:
    """Which of these lines have nothing but white space."""
    dubious = dubious[dubious < len(bounds) - 1]
    blank = []
    for start in range(0, len(dubious), LINES_AT_ONCE):
        some = dubious[start : start + LINES_AT_ONCE]
        ranges, cut = near_ranges(bounds[some], bounds[some + 1])
        lines = cut(file.read_many(ranges))
        blank += [number for number, line in zip(some.tolist(), lines, strict=True) if not line.strip(WHITE)]
    return np.array(blank, np.int64)


Cut = Callable[[list[bytes]], list[bytes]]


def near_ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[list[tuple[int, int]], Cut]:
    """Offsets and lengths to read for lines in ascending order, near ones at once; and what cuts the lines out."""
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES) + 1
    if 2 * len(cuts) > len(starts):  # cutting costs more than the few calls that would be saved
        return list(zip(starts.tolist(), (stops - starts).tolist(), strict=True)), lambda read: read
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(starts)) - 1
    begins = starts[firsts]
    which = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)

    def cut(read: list[bytes]) -> list[bytes]:
        from_begin = begins[which]
        places = zip(which.tolist(), (starts - from_begin).tolist(), (stops - from_begin).tolist(), strict=True)
        return [read[i][start:stop] for i, start, stop in places]

    return list(zip(begins.tolist(), (stops[lasts] - begins).tolist(), strict=True)), cut
