"""Lines by index."""

import operator
import os
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from headrace.errors import DataError
from headrace.sources import files
from headrace.sources.base import IndexedFiles
from headrace.sources.indices import place_of, places_of
from headrace.sources.json_lines.index import LineIndex, near_ranges
from headrace.sources.json_lines.lines import JSON, TEXT, Format

T = TypeVar("T")


class LinesDataSource(IndexedFiles[T]):
    """The lines of files, by index."""

    _what, _digest, _indexing_threads = "lines", "sha256", 8
    _format: ClassVar[Format]

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._open_files(paths, LineIndex, index_dir, what=f"{self._format.name} files", maps=True)

    def _num_elements(self, index: LineIndex) -> int:
        return index.num_elements(skips_blank=self._format.skips_blank)

    def __getitem__(self, index: int) -> T:
        return self._elements(np.array([place_of(index, len(self), self._what)]), [0])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices: each file is read once, in its own order."""
        places, order = np.unique(places_of(indices, len(self), self._what), return_inverse=True)
        return self._elements(places, order.tolist())

    def _elements(self, places: np.ndarray, order: list[int]) -> list[T]:
        """The elements at ascending places, in the given order."""
        lines = self._read(places)
        # A line that is requested twice is parsed twice: users may modify either element.
        feed = iter(order)
        try:
            return list(map(self._format.parser(), map(lines.__getitem__, feed)))
        except (ValueError, RecursionError) as e:
            i = order[len(order) - operator.length_hint(feed) - 1]
            raise self._unreadable(int(places[i]), lines[i], e) from e

    def _read(self, places: np.ndarray) -> list[bytes]:
        """The lines of elements at ascending places; several remote files are read concurrently."""
        wanted, cuts, num_bytes = [], [], []
        for number, _, inside in self._parts.runs(places):
            index = self._indexes[number]
            lines = index.line_numbers(inside, skips_blank=self._format.skips_blank)
            starts, stops = index.bounds[lines], index.bounds[lines + 1]
            ranges, cut = near_ranges(starts, stops)
            wanted.append((index.path, ranges))
            cuts.append(cut)
            num_bytes.append(int((stops - starts).sum()))
        found: list[bytes] = []
        for (path, _), cut, length, pieces in zip(wanted, cuts, num_bytes, self._pool.read(wanted), strict=True):
            lines = cut(pieces)
            if sum(map(len, lines)) != length:  # it was truncated since it was opened
                raise files.changed(path)
            found += lines
        return found

    def _unreadable(self, place: int, line: bytes, error: Exception) -> DataError:
        number, inside = self._parts.find(place)
        index = self._indexes[number]
        i = int(index.line_numbers(np.array(inside), skips_blank=self._format.skips_blank))
        return self._format.unreadable(index.path, i + 1, int(index.bounds[i]), line, error)


class JsonLinesDataSource(LinesDataSource[Any]):
    """The values of JSON lines files, by index: one for every line that is not blank.

    >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\\n{"x": 2}\\n')
    >>> JsonLinesDataSource(folder / "a.jsonl")[1]
    {'x': 2}

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes of where lines begin, created if missing. By default the index of a file is
            a hidden file beside it or, for addresses and where that cannot be written, in `~/.cache/headrace/lines`.
    """

    _format = JSON


class TextLinesDataSource(LinesDataSource[str]):
    """The lines of text files, by index, as `str` without line ends; including blank lines.

    >>> _ = (folder / "a.txt").write_text("one\\ntwo\\n")
    >>> TextLinesDataSource(folder / "a.txt")[1]
    'two'

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: As in `JsonLinesDataSource`, and the same indexes serve both.
    """

    _format = TEXT
