"""`get_next_index` and `set_next_index`: the number of the next output, where it alone determines the position.

It does for a random-access chain, after operations that map, count, batch or limit its elements, and for an
interleave of one such dataset. Where only maps come after a filter, it is the index in the source instead.
"""

from typing import Any

from headrace.errors import NextIndexError, NoNextIndexError
from headrace.ops.buffer import Limit, ToStream
from headrace.ops.combine import Interleave
from headrace.ops.group import BatchOp
from headrace.ops.op import Op
from headrace.ops.streams.combined_streams import interleaved_part
from headrace.ops.streams.stream import Position


def index_at(op: Op, position: Position) -> int:
    """The number of the next output at a position."""
    chain, base = _chain(op)
    for each in chain:
        if isinstance(each, Interleave):
            opened = position[-1][0]
            if opened is None and position[1]:  # it has ended
                return _up(chain, base, base.parent.length())[0]
            position = opened[1] if opened is not None else None
            if position is None:
                return 0
        elif each.state_fields is not None:
            position = position[-1]
    return _up(chain, base, position)[0]


def position_at(op: Op, index: int) -> Position:
    """The position at which an output is the next one."""
    chain, base = _chain(op)
    if isinstance(index, bool) or not hasattr(index, "__index__") or index < 0:
        raise NextIndexError(f"A next index must be an int of 0 or more; got {index!r}.")
    below = index.__index__()
    for each in chain:
        if isinstance(each, BatchOp):
            below *= each.batch_size
        elif isinstance(each, Limit):
            below = min(below, each.count)
    found, position = _up(chain, base, min(below, base.parent.length()))
    if found != index:
        raise NextIndexError(f"The next index cannot be {index}: {op.label()} has {found} outputs.")
    return position


def _up(chain: list[Op], base: ToStream, count: int) -> tuple[int, Position]:
    """The number of outputs that `count` elements make, and the position after them."""
    position: Position = count
    for each in reversed(chain):
        if isinstance(each, BatchOp):
            count = count // each.batch_size if each.drop_remainder else -(-count // each.batch_size)
        elif isinstance(each, Interleave):
            position = (1 % each.cycle_length, 1, ((0, position), *(None,) * (each.cycle_length - 1)))
        elif each.state_fields is not None:
            position = (count, position)
    return count, position


def _chain(op: Op) -> tuple[list[Op], ToStream]:
    """The operations from the last one back to the one where the stream begins, and that one."""
    chain: list[Op] = []
    last = op
    while not isinstance(op, ToStream):
        is_one = isinstance(op, Interleave) and op.num_datasets == 1 and not op.is_sparse
        if not (
            is_one or op.is_transparent or (op.is_elementwise and op.keeps_count) or isinstance(op, BatchOp | Limit)
        ):
            raise _no_next_index_error(last, op)
        chain.append(op)
        op = interleaved_part(op, 0) if isinstance(op, Interleave) else op.parents[0]
    skips_missing = op.parent.is_sparse and not op.allow_nones
    if skips_missing and any(each.state_fields is not None or each.group_size is not None for each in chain):
        raise _no_next_index_error(last, op)
    return chain, op


def _no_next_index_error(last: Op, op: Any) -> NoNextIndexError:
    return NoNextIndexError(
        f"The iterator of {last.label()} has no next index: after {op.label()} (pipeline at {op.site}), the number of "
        "outputs does not determine which elements they come from. Use `get_state()` and `set_state()`."
    )
