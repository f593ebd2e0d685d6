"""Splits by name, their slices and sums, in the syntax of TensorFlow Datasets: `train[:80%]+test`."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import PipelineError

_PART = re.compile(r"\s*([^\s\[\]+]+)(?:\[([^\]]*)\])?\s*")
_BOUND = r"(-?\d+(?:_\d+)*(?:\.\d+)?)(%|shard)?"
_SLICE = re.compile(rf"(?:{_BOUND})?:(?:{_BOUND})?")
_ONE_SHARD = re.compile(r"(-?\d+)shard")


class Piece(NamedTuple):
    """Records `start` to `stop` of a file with `num_records`."""

    path: str
    start: int
    stop: int
    num_records: int


def pieces_of(spec: str, splits: Mapping[str, list[Piece]]) -> list[Piece]:
    """The parts of files that a split means, one after the other.

    >>> pieces_of("train[1:4]", {"train": [Piece("a", 0, 2, 2), Piece("b", 0, 9, 9)]})
    [Piece(path='a', start=1, stop=2, num_records=2), Piece(path='b', start=0, stop=2, num_records=9)]
    """
    pieces = []
    for part in spec.split("+") if isinstance(spec, str) else [""]:
        found = _PART.fullmatch(part)
        if found is None:
            raise _not_a_split(spec)
        name, sliced = found.groups()
        if name == "all" and "all" not in splits:
            if sliced is not None:
                raise PipelineError(
                    f"{spec!r} slices `all`, which is only taken as a whole. Slice its splits and add them: "
                    f"{'+'.join(f'{split}[{sliced}]' for split in splits)!r}."
                )
            pieces += [piece for whole in splits.values() for piece in whole]
        elif name in splits:
            pieces += _cut(splits[name], *_bounds(spec, sliced, [piece.stop for piece in splits[name]]))
        else:
            raise PipelineError(f"There is no split {name!r}; there are {', '.join(splits)}, and `all`.")
    return [piece for piece in pieces if piece.start < piece.stop]


def _not_a_split(spec: Any) -> PipelineError:
    return PipelineError(
        f"{spec!r} is not a split. Write it as in `train`, `train[:80%]`, `train[10:20]`, `train[-1shard:]`, or a sum "
        "of these, as in `train[:50]+test`; both ends of a slice are in the same unit."
    )


def _cut(whole: list[Piece], start: int, stop: int) -> list[Piece]:
    ends = np.cumsum([piece.stop for piece in whole]).tolist()
    return [
        piece._replace(start=max(start - end + piece.stop, 0), stop=min(stop - end + piece.stop, piece.stop))
        for piece, end in zip(whole, ends, strict=True)
    ]


def _bounds(spec: str, sliced: str | None, sizes: list[int]) -> tuple[int, int]:
    """Where a slice of a split begins and ends, in examples."""
    length = sum(sizes)
    if sliced is None:
        return 0, length
    if one := _ONE_SHARD.fullmatch(sliced):
        if not -len(sizes) <= int(one[1]) < len(sizes):
            raise PipelineError(f"{spec!r} asks for shard {one[1]}, but there are {len(sizes)}.")
        number = int(one[1]) % len(sizes)
        return sum(sizes[:number]), sum(sizes[: number + 1])
    found = _SLICE.fullmatch(sliced)
    if found is None:
        raise _not_a_split(spec)
    start, unit, stop, other = found.groups()
    if start is not None and stop is not None and unit != other:
        raise _not_a_split(spec)
    places = [_place(spec, bound, unit or other, sizes) for bound in (start, stop)]
    return 0 if places[0] is None else places[0], length if places[1] is None else places[1]


def _place(spec: str, bound: str | None, unit: str | None, sizes: list[int]) -> int | None:
    if bound is None:
        return None
    length = sum(sizes)
    if unit == "%":
        if abs(float(bound)) > 100:
            raise PipelineError(f"{spec!r} asks for {bound}%: a percentage is at most 100.")
        place = round(float(bound) * length / 100)
    elif "." in bound:
        raise _not_a_split(spec)
    elif unit == "shard":
        return sum(sizes[: int(bound)])
    else:
        place = int(bound)
    if not -length <= place <= length:
        raise PipelineError(f"{spec!r} asks for example {bound}, but the split has {length}.")
    return place + length if bound.startswith("-") else place
