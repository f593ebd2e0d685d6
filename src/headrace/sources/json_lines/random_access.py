"""Lines by index."""

import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from headrace._threads import map_in_threads
from headrace.errors import DataError
from headrace.sources import files
from headrace.sources.json_lines.index import LINES_AT_ONCE, index_of, near_ranges
from headrace.sources.json_lines.lines import JSON, TEXT, Format

T = TypeVar("T")

SCANNING_THREADS = 8


class LinesDataSource(Generic[T]):
    """The lines of files, by index."""

    _format: ClassVar[Format]

    def __init__(self, paths: Any, *, index_dir: str | os.PathLike | None = None):
        self._paths = files.expand(paths, what=f"{self._format.name} files")
        folder = None if index_dir is None else os.fsdecode(index_dir)
        find = partial(index_of, index_dir=folder)
        self._indexes = map_in_threads(find, self._paths, SCANNING_THREADS, "headrace-index")
        lengths = [index.num_elements(skips_blank=self._format.skips_blank) for index in self._indexes]
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._pool = files.Pool(versions={index.path: index.version for index in self._indexes}, maps=True)

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their lines."""
        return list(self._paths)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> T:
        (element,) = self.__getitems__([operator.index(index)])
        return element

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices: each file is read once, in its own order."""
        if not len(indices):
            return []
        places, order = np.unique(self._checked(indices), return_inverse=True)
        lines = self._read(places)
        # A line that is asked for twice is parsed twice, as each of its elements may be changed.
        feed = iter(order.tolist())
        try:
            return list(map(self._format.parser(), map(lines.__getitem__, feed)))
        except (ValueError, RecursionError) as e:
            i = order[len(order) - operator.length_hint(feed) - 1]
            raise self._unreadable(places[i], lines[i], e) from e

    def _checked(self, indices: Sequence[int]) -> np.ndarray:
        places = np.asarray(indices)
        if places.dtype.kind not in "iu":
            raise TypeError(f"Indices must be ints; got {places.dtype}: {indices!r}.")
        places, length = places.astype(np.int64), len(self)
        outside = places[(places < -length) | (places >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} lines.")
        return places % length

    def _line_numbers(self, number: int, places: np.ndarray) -> np.ndarray:
        """Which lines of a file these elements are."""
        inside = places - (self._ends[number - 1] if number else 0)
        return self._indexes[number].line_numbers(inside, skips_blank=self._format.skips_blank)

    def _read(self, places: np.ndarray) -> list[bytes]:
        """The lines of these elements, which ascend; those of several files far away at once."""
        numbers = np.searchsorted(self._ends, places, side="right")
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        wanted, cuts, num_bytes = [], [], []
        for begin, end in itertools.pairwise([*firsts, len(places)]):
            number = int(numbers[begin])
            index, lines = self._indexes[number], self._line_numbers(number, places[begin:end])
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

    def _unreadable(self, place: np.ndarray, line: bytes, error: Exception) -> DataError:
        number = int(np.searchsorted(self._ends, place, side="right"))
        index, i = self._indexes[number], int(self._line_numbers(number, place))
        return self._format.unreadable(index.path, i + 1, int(index.bounds[i]), line, error)

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), LINES_AT_ONCE):
            yield from self.__getitems__(range(start, min(start + LINES_AT_ONCE, len(self))))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        self._pool.close()

    def __repr__(self) -> str:
        counts = f"num_files={len(self._paths)}, num_lines={len(self)}"
        return f"{type(self).__name__}({counts}, hash_of_paths={files.hash_of_paths(self._paths, 'sha256')})"


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
