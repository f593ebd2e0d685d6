"""Random access to stored elements: indices in range, the file of each element, and sources that read many at once."""

import bisect
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

T = TypeVar("T")


def checked_index(index: int, length: int, what: str) -> int:
    """The place of an index, which may be negative; `what` is the name of elements in messages."""
    place = operator.index(index)
    if not -length <= place < length:
        raise IndexError(f"Index {index} is out of range for {length} {what}.")
    return place if place >= 0 else place + length


def checked_indices(indices: Sequence[int] | np.ndarray, length: int, what: str) -> np.ndarray:
    """The same for many."""
    if not len(indices):
        return np.empty(0, np.int64)
    places = np.asarray(indices)
    if places.dtype.kind == "O":  # ints that are too large for a dtype
        return np.array([checked_index(index, length, what) for index in indices], np.int64)
    if places.dtype.kind not in "iu":
        raise TypeError(f"Indices must be ints; got {places.dtype}: {indices!r}.")
    lowest = places.min()
    if lowest < -length or places.max() >= length:
        checked_index(places[(places < -length) | (places >= length)][0], length, what)
    places = places.astype(np.int64)
    return places % length if lowest < 0 else places


class Parts:
    """Elements in several parts, such as files, one part after the other."""

    def __init__(self, lengths: Iterable[int]):
        self.ends = np.cumsum(np.fromiter(lengths, np.int64))
        self._starts = np.append(0, self.ends)
        self._ends_as_list: list[int] = self.ends.tolist()
        self.length = int(self._starts[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return Parts, (np.diff(self._starts).tolist(),)

    def find(self, place: int) -> tuple[int, int]:
        """The part with the element at a place, and its place there."""
        number = bisect.bisect_right(self._ends_as_list, place)
        return number, place - self._ends_as_list[number - 1] if number else place

    def find_all(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for many."""
        numbers = np.searchsorted(self.ends, places, side="right")
        return numbers, places - self._starts[numbers]

    def runs(self, places: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
        """For each part with some of these ascending places: its number, which of the places, and where in it."""
        numbers = np.searchsorted(self.ends, places, side="right")
        cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
        for a, b in itertools.pairwise([0, *cuts, len(places)] if len(places) else ()):
            number = int(numbers[a])
            yield number, slice(a, b), places[a:b] - self._starts[number]


class BlockSource(Generic[T]):
    """A source that reads many elements at once, and can be closed."""

    _at_once: ClassVar[int] = 1024  # elements that iteration reads together
    _most_shown: ClassVar[int] = 300  # characters of its repr in a pipeline's: paths are long

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> T:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        length = len(self)
        for start in range(0, length, self._at_once):
            yield from self.__getitems__(range(start, min(start + self._at_once, length)))

    def close(self) -> None:
        """Closes the files; reading from the source opens them again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
