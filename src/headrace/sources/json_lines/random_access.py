"""Lines by index."""

import operator
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from headrace._utils.threads import map_in_threads
from headrace.errors import DataError
from headrace.sources import files
from headrace.sources.base import FileSource
from headrace.sources.indices import Parts, place_of, places_of
from headrace.sources.json_lines.index import LineIndex, near_ranges
from headrace.sources.json_lines.lines import JSON, TEXT, Format

T = TypeVar("T")

SCANNING_THREADS = 8


class LinesDataSource(FileSource[T]):
    """The lines of files, by index."""

    _what, _digest = "lines", "sha256"
    _format: ClassVar[Format]

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._paths = files.expand(paths, what=f"{self._format.name} files")
        find = partial(LineIndex, index_dir=None if index_dir is None else os.fsdecode(index_dir))
        self._indexes = map_in_threads(find, self._paths, SCANNING_THREADS, "headrace-index")
        self._parts = Parts(index.num_elements(skips_blank=self._format.skips_blank) for index in self._indexes)
        self._pool = files.Pool(versions={index.path: index.version for index in self._indexes}, maps=True)

    def __getitem__(self, index: int) -> T:
        return self._elements(np.array([place_of(index, len(self), self._what)]), [0])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices: each file is read once, in its own order."""
        places, order = np.unique(places_of(indices, len(self), self._what), return_inverse=True)
        return self._elements(places, order.tolist())

    def _elements(self, places: np.ndarray, order: list[int]) -> list[T]:
        """The elements at places that ascend, in an order."""
        lines = self._read(places)
        # A line that is asked for twice is parsed twice, as each of its elements may be changed.
        feed = iter(order)
        try:
            return list(map(self._format.parser(), map(lines.__getitem__, feed)))
        except (ValueError, RecursionError) as e:
            i = order[len(order) - operator.length_hint(feed) - 1]
            raise self._unreadable(int(places[i]), lines[i], e) from e

    def _read(self, places: np.ndarray) -> list[bytes]:
        """The lines of these elements, which ascend; those of several files far away at once."""
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
            if sum(map(len, lines)) != length:  # it has become shorter since it was opened
                raise files.changed(path)
            found += lines
        return found

    def _unreadable(self, place: int, line: bytes, error: Exception) -> DataError:
        number, inside = self._parts.find(place)
        index = self._indexes[number]
        i = int(index.line_numbers(np.array(inside), skips_blank=self._format.skips_blank))
        return self._format.unreadable(index.path, i + 1, int(index.bounds[i]), line, error)

    def close(self) -> None:
        self._pool.close()


class JsonLinesDataSource(LinesDataSource[Any]):
    """The values of JSON lines files, by index: one for every line that is not blank.

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: A folder for the indexes of where lines begin, made if it is not there. By default each is a hidden
            file beside its own, or where that cannot be written, and for addresses, one in `~/.cache/headrace/lines`.
    """

    _format = JSON


class TextLinesDataSource(LinesDataSource[str]):
    """The lines of text files, by index, as `str` without line ends; blank ones too.

    Args:
        paths: A path, a pattern, an address, or a sequence of these. The files must not be compressed.
        index_dir: As in `JsonLinesDataSource`, and the same indexes serve both.
    """

    _format = TEXT
