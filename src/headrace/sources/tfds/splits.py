"""Which parts of which files a split means."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headrace._utils.splits import parts_of


class Piece(NamedTuple):
    """Records `start` to `stop` of a file with `num_records`."""

    path: str
    start: int
    stop: int
    num_records: int


def pieces_of(split: Any, splits: Mapping[str, list[Piece]], what: str = "The folder") -> list[Piece]:
    """The parts of files that a split means, one after the other; `what` is the dataset, for messages.

    >>> pieces_of("train[1:4]", {"train": [Piece("a", 0, 2, 2), Piece("b", 0, 9, 9)]})
    [Piece(path='a', start=1, stop=2, num_records=2), Piece(path='b', start=0, stop=2, num_records=9)]
    """
    pieces = []
    for part in parts_of(split, splits, what):
        sizes = [piece.stop for piece in splits[part.name]]
        pieces += _cut(splits[part.name], *part.bounds(sum(sizes), sizes))
    return [piece for piece in pieces if piece.start < piece.stop]


def _cut(whole: list[Piece], start: int, stop: int) -> list[Piece]:
    ends = np.cumsum([piece.stop for piece in whole]).tolist()
    return [
        piece._replace(start=max(start - end + piece.stop, 0), stop=min(stop - end + piece.stop, piece.stop))
        for piece, end in zip(whole, ends, strict=True)
    ]
