"""Concatenates sequences and cuts rows from the result, by lengths alone."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from headrace.ops.packing.layout import Lengths, RowArray

Segment = int | tuple[int, Lengths, Lengths]
"""What a row has of one sequence: the number of that, and if it is a part, where this begins and ends in each leaf."""


class TokenBuffer:
    """Concatenated sequences that rows are cut from: `ends[leaf][i]` is where sequence `i` ends.

    Sequences that are set aside take no room. A row begins in sequence `first`, after the `taken` tokens of it that
    earlier rows have.
    """

    def __init__(self, leaves: Sequence[RowArray], *, split_full: bool):
        self._lengths = tuple(leaf.length for leaf in leaves)
        self._split_full = split_full
        self._meta = [k for k, leaf in enumerate(leaves) if leaf.is_meta]
        self._ends: list[list[int]] = [[] for _ in leaves]
        self._aside: list[bool] = []
        self._sizes: list[Lengths] = []

    def __len__(self) -> int:
        return len(self._sizes)

    def append(self, sizes: Sequence[Lengths]) -> None:
        """Appends sequences of these sizes."""
        if not sizes:
            return
        aside = [not self._split_full and self._fills_a_row(size) for size in sizes]
        self._sizes += sizes
        self._aside += aside
        for leaf, ends in enumerate(self._ends):
            new = [0 if alone else size[leaf] for size, alone in zip(sizes, aside, strict=True)]
            new[0] += ends[-1] if ends else 0
            ends += accumulate(new)

    def drop(self, count: int) -> None:
        """Forgets the first sequences."""
        for values in (self._sizes, self._aside, *self._ends):
            del values[:count]

    def _fills_a_row(self, size: Lengths) -> bool:
        return all(map(int.__le__, size, self._lengths)) and any(map(int.__eq__, size, self._lengths))

    def closing(self, first: int, taken: Lengths | None) -> int:
        """The first sequence that does not fit whole into the row that begins in `first`, or their count."""
        row = zip(self._ends, self._begin(first, taken), self._lengths, strict=True)
        return min(bisect_right(ends, begin + length, first) for ends, begin, length in row)

    def _begin(self, first: int, taken: Lengths | None) -> list[int]:
        size = self._sizes[first] if not self._aside[first] else (0,) * len(self._lengths)
        begin = [ends[first] - n for ends, n in zip(self._ends, size, strict=True)]
        return begin if taken is None else [a + b for a, b in zip(begin, taken, strict=True)]

    def cut(self, first: int, stop: int, taken: Lengths | None) -> tuple[list[list[Segment]], Lengths | None]:
        """The row from `first` to `stop`, those of sequences set aside in it, and how much of `stop` it has."""
        aside = [] if self._split_full else [i for i in range(first, stop) if self._aside[i]]
        row: list[Segment] = [i for i in range(first, stop) if not self._aside[i]] if aside else [*range(first, stop)]
        if taken is not None and stop > first:
            row[0] = (first, taken, self._sizes[first])
        left = taken if stop == first else None
        if stop < len(self._sizes):
            used = [ends[stop] - size for ends, size in zip(self._ends, self._sizes[stop], strict=True)]
            begin = self._begin(first, taken)
            room = [n - max(0, a - b) for n, a, b in zip(self._lengths, used, begin, strict=True)]
            left = self._append_some(row, stop, room, left)
        return ([row] if row else []) + [[i] for i in aside], left

    def _append_some(self, row: list[Segment], i: int, room: list[int], taken: Lengths | None) -> Lengths | None:
        """Appends as much of a sequence as fits, or nothing if one of its meta features does not fit."""
        size = self._sizes[i]
        if any(size[k] > room[k] for k in self._meta):
            return taken
        begin = taken or (0,) * len(size)
        end = after = tuple(map(min, size, map(int.__add__, begin, room)))
        if self._meta:
            after = tuple(0 if k in self._meta else n for k, n in enumerate(end))
        if after == begin:
            return taken
        row.append((i, begin, end))
        return after
