"""What an output was made of: for each operation, the inputs that became some of its outputs.

In a random-access chain indices determine it. In a stream positions do: the inputs of an output are what the parent
gives between the position before and the position after it. Where a group of inputs becomes a group of outputs, the
inputs get numbers, and the operation shows where those end up.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from headrace.insight.view.outputs import Output, Streams
from headrace.ops.buffer import Skip, ToStream
from headrace.ops.combine import Interleave, Mixing, RouteOp, Zip
from headrace.ops.element import FilterOp, FlatMapOp, MapWithIndexOp
from headrace.ops.global_batch import GlobalBatch
from headrace.ops.group import BatchOp, PaddedBatch, Rebatch
from headrace.ops.op import Op
from headrace.ops.order import IndexOp, Repeat
from headrace.ops.packing.packers import ConcatThenSplit, FirstFitPack
from headrace.ops.source import Source, UserDataset
from headrace.ops.streams import Position
from headrace.ops.streams.combined_streams import interleaved_part

MOST = 4  # inputs of one output
_NUMBER = "__headrace_number__"


@dataclass(frozen=True)
class Inputs:
    """Some outputs of an operation that became an output of the next one.

    Attributes:
        op: The operation that made them.
        outputs: At most `MOST` of them; of a random-access chain, its indices.
        note: What there is to know of them.
    """

    op: Op
    outputs: list[Any]
    note: str = ""


# ------------------------------------------------------------------------------------------ streams


def inputs_of(op: Op, output: Output, streams: Streams, *, alone: bool = True) -> list[Inputs]:
    """What an output of a stream was made of, from each parent that gave something.

    If it is the only output that is asked about (`alone`), this includes how many elements a filter dropped before it.
    """
    if isinstance(op, UserDataset | GlobalBatch):
        return []
    if isinstance(op, ToStream):
        missing = output.after - 1 - output.before
        return [Inputs(op.parent, [output.after - 1], f"{missing:,} dropped before it" if missing > 0 else "")]
    if isinstance(op, Mixing | Zip):
        return _of_parts(op, output, streams)
    if isinstance(op, Interleave):
        return _of_interleave(op, output, streams)
    if isinstance(op, FilterOp):
        return [_of_filter(op, output, streams, alone=alone)]
    return [_of_parent(op, output, streams)]


def _of_parent(op: Any, output: Output, streams: Streams) -> Inputs:
    first = _below(op, output.before)
    last = _below(op, output.after)
    if op.is_transparent:
        return Inputs(op.parent, [Output(output.element, first, last)])
    if isinstance(op, Repeat | Skip):
        start = None if isinstance(op, Repeat) and output.before[0] != output.after[0] else first
        return Inputs(op.parent, streams.between(op.parent, start, last)[-1:])
    if isinstance(op, FlatMapOp):
        if output.after[0]:  # there are more children of the element
            return Inputs(op.parent, list(islice(streams.outputs(op.parent, last), 1)))
        return Inputs(op.parent, streams.between(op.parent, first, last)[-1:])
    if isinstance(op, PaddedBatch):
        window = list(islice(streams.outputs(op.parent, first), op.window_size))
        return _members(op, window, op.groups([each.element for each in window])[output.before[1]][0])
    if isinstance(op, FirstFitPack):
        numbers = _numbers_in_row(op, output.before, streams)
        return _members(op, list(islice(streams.outputs(op.parent, first), max(numbers, default=-1) + 1)), numbers)
    if op.only_reorders and op.state_fields is not None:
        number = _number_of(op, output.before, streams)
        return Inputs(op.parent, list(islice(streams.outputs(op.parent, first), number, number + 1)))
    return _in_order(op, output, streams)


def _of_filter(op: FilterOp, output: Output, streams: Streams, *, alone: bool) -> Inputs:
    found = streams.between(op.parent, _below(op, output.before), _below(op, output.after))
    if not alone:
        return Inputs(op.parent, found[-1:])
    return Inputs(op.parent, found[-MOST:], f"{len(found) - 1:,} dropped before the last" * (len(found) > 1))


def _in_order(op: Any, output: Output, streams: Streams) -> Inputs:
    """Of operations that use up their inputs in order; the last one may be used in part, by outputs that follow."""
    first = _below(op, output.before)
    last = _below(op, output.after)
    found = [] if first == last else streams.between(op.parent, first, last, MOST + 1)
    used_in_part = isinstance(op, Rebatch | ConcatThenSplit) and np.any(output.after[0])
    if (used_in_part or not found) and len(found) <= MOST:
        found += islice(streams.outputs(op.parent, last), 1)
    return Inputs(op.parent, found[:MOST], f"the first {MOST}" if len(found) > MOST else "")


def _members(op: Any, group: list[Output], numbers: list[int]) -> Inputs:
    """Some inputs of a group."""
    return Inputs(op.parent, [group[i] for i in numbers[:MOST]], f"{MOST} of {len(numbers):,}" * (len(numbers) > MOST))


def _below(op: Op, position: Position) -> Position:
    """The parent's position at a position of an operation."""
    return position if op.state_fields is None else position[-1]


def _of_parts(op: Mixing | Zip, output: Output, streams: Streams) -> list[Inputs]:
    """The parts of a mix or a zip that have moved."""
    moved = zip(op.parts, output.before[-1], output.after[-1], strict=True)
    return [Inputs(part, streams.between(part, before, after)[-1:]) for part, before, after in moved if before != after]


def _of_interleave(op: Interleave, output: Output, streams: Streams) -> list[Inputs]:
    before = op.part_positions(output.before[-1])
    after = op.part_positions(output.after[-1])
    for name, position in after.items():
        if position != before.get(name):
            part = interleaved_part(op, int(name))
            return [Inputs(part, streams.between(part, before.get(name), position)[-1:], f"of dataset {name}")]
    return []


def _number_of(op: Any, position: Position, streams: Streams) -> int:
    """Which input of its group the next output is: the inputs travel as pairs with their numbers."""
    tagged = dataclasses.replace(op, parent=MapWithIndexOp(op.parent, lambda number, element: (number, element)))
    return next(streams.outputs(tagged, (*position[:-1], (0, position[-1])))).element[0]


def _numbers_in_row(op: Any, position: Position, streams: Streams) -> list[int]:
    """Which inputs of its group a packed row has: they travel with their numbers, as a feature that rows list."""
    numbered = MapWithIndexOp(op.parent, lambda number, element: {**element, _NUMBER: number})
    tagged = dataclasses.replace(op, parent=numbered, meta_features=(*op.meta_features, _NUMBER))
    row = next(streams.outputs(tagged, (*position[:-1], (0, position[-1])))).element
    return sorted({int(number) for number in np.ravel(row[_NUMBER])})


# ------------------------------------------------------------------------------------------ random access


def inputs_at(op: Op, indices: list[int]) -> list[Inputs]:
    """What elements of a random-access chain are made of: the operations before it, and indices there."""
    idx = np.array(indices, np.int64)
    if isinstance(op, Source | UserDataset):
        return []
    if isinstance(op, RouteOp):
        which, inner = op.route(idx)
        return [Inputs(op.parts[part], inner[which == part].tolist()) for part in dict.fromkeys(which.tolist())]
    if isinstance(op, Zip):
        return [Inputs(part, indices) for part in op.parts]
    (parent,) = op.parents
    if isinstance(op, BatchOp):
        bounds = zip(*(each.tolist() for each in op.bounds(idx)), strict=True)
        rows = [i for start, stop in bounds for i in range(start, stop)]
        return [Inputs(parent, rows[:MOST], f"{MOST} of {len(rows):,}" * (len(rows) > MOST))]
    if isinstance(op, IndexOp):
        return [Inputs(parent, op.indices(idx).tolist())]
    if isinstance(op, FlatMapOp) and op.max_fan_out:
        return [Inputs(parent, list(dict.fromkeys((idx // op.max_fan_out).tolist())))]
    return [Inputs(parent, indices)]


def merged(several: Iterator[Inputs]) -> list[Inputs]:
    """Inputs of several outputs, one entry for each operation, with no more than `MOST` outputs."""
    found: dict[Op, Inputs] = {}
    for each in several:
        known = found.get(each.op)
        if known is None:
            found[each.op] = each
        elif len(known.outputs) < MOST:
            found[each.op] = dataclasses.replace(known, outputs=(known.outputs + each.outputs)[:MOST])
    return list(found.values())
