"""The shares of the parts of a mix so far: which part an element is from follows from its number alone."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import ToStream
from headrace._ops.combine import Interleave, Mix, Mixing, RouteOp
from headrace._ops.group import Batch
from headrace._ops.order import IndexOp
from headrace._ops.schedule import ScheduledMix
from headrace._ops.source import Source, UserDataset

MOST_PARTS = 6
MOST_READ = 1 << 16  # outputs whose parts are looked up
MOST_IN_STRETCH = 1024  # steps of changing weights that are looked at
BINS = 48


@dataclass(frozen=True)
class Shares:
    """How the parts of one mix took turns.

    Attributes:
        label: The mix.
        line: The line of code that built it.
        names: The names of its parts; the last one may stand for several.
        count: How many elements it has given.
        over_time: For each stretch of elements, the share of each part.
        whole: The share of each part in all of them.
    """

    label: str
    line: str
    names: tuple[str, ...]
    count: int
    over_time: np.ndarray
    whole: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """A mix, how many elements it has given, and what is known of them.

    Attributes:
        op: The mix.
        count: How many elements it has given.
        parts: The parts of these elements, or of some of them, in order; of changing weights the shares themselves,
            stretch by stretch.
    """

    op: Any
    count: int
    parts: np.ndarray


def shares_of(op: Op, position: Any) -> list[Shares]:
    """The shares of all mixes of a stream that has come to a position."""
    return [_shares(seen) for seen in _mixes(op, position) if seen.count and len(seen.parts)]


def _mixes(op: Op, position: Any) -> Iterator[_Seen]:
    """The mixes of a stream."""
    while op.is_stream and position is not None and not isinstance(op, UserDataset | Interleave):
        if isinstance(op, ToStream):
            yield from _mixes_at(op.parent, _some(int(position)), int(position))
            return
        if isinstance(op, Mixing):
            yield _Seen(op, int(position[0]), _parts_of(op, int(position[0])))
        if len(op.parents) != 1:
            inner = position[-1]
            if isinstance(inner, tuple) and len(inner) == len(op.parents):
                for part, at in zip(op.parents, inner, strict=True):
                    yield from _mixes(part, at)
            return
        position = position if op.state_fields is None else position[-1]
        op = op.parents[0]


def _mixes_at(op: Op, idx: np.ndarray, count: int) -> Iterator[_Seen]:
    """The mixes of a random-access chain of which `count` elements were read, those at some indices among them."""
    while len(idx) and not isinstance(op, Source | UserDataset):
        if isinstance(op, RouteOp):
            which, inner = op.route(idx)
            if isinstance(op, Mix):
                yield _Seen(op, count, which)
            for part, each in enumerate(op.parts[:MOST_PARTS]):
                here = which == part
                yield from _mixes_at(each, inner[here], round(count * float(here.mean())))
            return
        if isinstance(op, IndexOp):
            idx = op.indices(idx)
        elif isinstance(op, Batch):
            starts, stops = op.bounds(idx)
            idx = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])[:MOST_READ]
            count *= op.batch_size
        if len(op.parents) != 1:
            return
        op = op.parents[0]


def _some(count: int) -> np.ndarray:
    """Numbers below a count: all, or evenly spread ones."""
    return np.arange(count) if count <= MOST_READ else np.linspace(0, count - 1, MOST_READ).astype(np.int64)


def _parts_of(op: Mixing, count: int) -> np.ndarray:
    """What is known of the elements of a mix so far: see `_Seen`."""
    if isinstance(op, Mix) and count:
        return op.route(_some(count))[0]
    if isinstance(op, ScheduledMix) and count:
        bounds = np.unique(np.linspace(0, count, BINS + 1).astype(np.int64)).tolist()
        names = op.names or len(op.parts)
        stretches = itertools.pairwise(bounds)
        rows = [op.schedule.shares(a, min(b, a + MOST_IN_STRETCH), names, op.lane)[0] for a, b in stretches]
        return np.array([row.mean(axis=0) for row in rows if len(row)])
    return np.empty(0, np.int64)


def _shares(seen: _Seen) -> Shares:
    """The shares of a mix in stretches of its elements."""
    op, parts, num_parts = seen.op, seen.parts, len(seen.op.parts)
    if parts.ndim == 2:
        over_time, whole = parts, parts.mean(axis=0)
    else:
        whole = np.bincount(parts, minlength=num_parts) / len(parts)
        stretches = np.array_split(parts, min(BINS, max(1, len(parts) // (4 * num_parts))))
        over_time = np.array([np.bincount(each, minlength=num_parts) / len(each) for each in stretches])
    names = tuple(op.named_parts())
    if num_parts > MOST_PARTS:
        kept = MOST_PARTS - 1
        over_time = np.column_stack([over_time[:, :kept], over_time[:, kept:].sum(axis=1)])
        whole = np.append(whole[:kept], whole[kept:].sum())
        names = (*names[:kept], f"{num_parts - kept:,} others")
    return Shares(op.label(), op.site, names, seen.count, over_time, whole)
