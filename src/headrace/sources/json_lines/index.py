"""Where the lines of a file begin, and which are blank."""

import functools
from collections.abc import Callable

import numpy as np

from headrace.errors import PipelineError
from headrace.sources import files
from headrace.sources.json_lines.lines import BOM, WHITE
from headrace.sources.sidecar import Index

SCAN_BYTES = 4 << 20
REMOTE_SCAN_BYTES = 32 << 20  # fetched by several requests at once
LINES_AT_ONCE = 1024
# Lines with at most this much between them are read together: a call costs as much as reading that many bytes.
GAP_BYTES = 2 << 10


class LineIndex(Index):
    """Where the lines of a file are: line `i` is `bounds[i]:bounds[i + 1]`, including its line end.

    Its numbers are the number of bounds, the bounds, and the numbers of the blank lines.
    """

    SUFFIX, FOLDER = ".headrace-lines", "lines"

    def _find(self, file: files.File) -> np.ndarray:
        bounds, blank = scan(file, self.path, self.advance)
        return np.concatenate([[len(bounds)], bounds, blank])

    @functools.cached_property
    def bounds(self) -> np.ndarray:
        return self.numbers[1 : 1 + self.numbers[0]]

    @functools.cached_property
    def _not_blank_before(self) -> np.ndarray:
        """For each blank line, how many lines before it are not blank."""
        blank = self.numbers[1 + self.numbers[0] :]
        return blank - np.arange(len(blank))

    def num_elements(self, *, skips_blank: bool) -> int:
        """How many elements the file has."""
        return len(self.bounds) - 1 - (len(self._not_blank_before) if skips_blank else 0)

    def line_numbers(self, places: np.ndarray, *, skips_blank: bool) -> np.ndarray:
        """The numbers of the lines of these elements."""
        if not skips_blank or not len(self._not_blank_before):
            return places
        return places + np.searchsorted(self._not_blank_before, places, side="right")


def scan(
    file: files.File, path: str, advance: Callable[[int], None] = lambda num_bytes: None
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of the lines of a file, and the numbers of the blank ones."""
    head = file.read(0, 4)
    if head.startswith((files.GZIP, files.ZSTD)):
        raise PipelineError(
            f"{path} is compressed, so its lines cannot be read at random. Read it in order, with "
            "`JsonLinesIterDataset` or `TextLinesIterDataset`, or decompress it."
        )
    begin = np.array([len(BOM) if head.startswith(BOM) else 0])
    found, dubious, at = [begin], [begin], 0
    step = REMOTE_SCAN_BYTES if files.is_remote(path) else SCAN_BYTES
    while at < file.size:
        block = file.read(at, min(step, file.size - at))
        if not block:
            raise files.changed(path)
        view = np.frombuffer(block, np.uint8)
        begins = np.flatnonzero(view == ord("\n")) + 1
        found.append(begins + at)
        dubious.append(begins[np.take(view, begins, mode="clip") <= ord(" ")] + at)
        at += len(block)
        advance(len(block))
        dubious.append(np.array([at]))  # a line that begins at the next block
    bounds = np.concatenate(found)
    if bounds[-1] != file.size:
        bounds = np.append(bounds, file.size)
    return bounds, _blank_ones(file, bounds, np.unique(np.searchsorted(bounds[:-1], np.concatenate(dubious))))


def _blank_ones(file: files.File, bounds: np.ndarray, dubious: np.ndarray) -> np.ndarray:
    """Which of these lines have only white space."""
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
    """Offsets and lengths to read for lines in ascending order, near ones together; and a function to cut them out."""
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > GAP_BYTES) + 1
    if 2 * len(cuts) > len(starts):  # cutting costs more than the few calls saved
        return list(zip(starts.tolist(), (stops - starts).tolist(), strict=True)), lambda read: read
    firsts, lasts = np.append(0, cuts), np.append(cuts, len(starts)) - 1
    begins = starts[firsts]
    which = np.repeat(np.arange(len(firsts)), lasts - firsts + 1)

    def cut(read: list[bytes]) -> list[bytes]:
        from_begin = begins[which]
        places = zip(which.tolist(), (starts - from_begin).tolist(), (stops - from_begin).tolist(), strict=True)
        return [read[i][start:stop] for i, start, stop in places]

    return list(zip(begins.tolist(), (stops[lasts] - begins).tolist(), strict=True)), cut
