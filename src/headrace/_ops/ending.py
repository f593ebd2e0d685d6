"""How a stream ends: after how many outputs, and whether that is the same in all processes."""

import math

from headrace._ops.base import Op
from headrace._ops.buffer import Limit, ToStream
from headrace._ops.global_batch import GlobalBatch, global_rows
from headrace._ops.group import Batch


def ends_together(op: Op) -> bool:
    """Whether all processes are known to end at the same step, or not to end."""
    while not op.ends_together:
        if op.endless or (isinstance(op, GlobalBatch) and op.ends_with_others):
            return True
        if op.before is None:
            return isinstance(op, ToStream) and global_rows(op) is not None
        if not _keeps_ends(op):
            return False
        op = op.before
    return True


def num_outputs(op: Op) -> float | None:
    """How many outputs a stream has, infinity if it is endless; `None` if only reading it tells."""
    after: list[Op] = []
    while not (op.endless or isinstance(op, ToStream)):
        if op.before is None or not _keeps_ends(op):
            return None
        after.append(op)
        op = op.before
    if isinstance(op, ToStream) and op.parent.is_sparse and not op.allow_nones:
        return None
    count: float = math.inf if op.endless else op.parents[0].length()
    for each in reversed(after):
        if isinstance(each, Limit):
            count = min(count, each.count)
        elif isinstance(each, Batch) and count < math.inf:
            count = count // each.batch_size if each.drop_remainder else -(-count // each.batch_size)
    return count


def _keeps_ends(op: Op) -> bool:
    """Whether the number of an operation's outputs follows from the number of its inputs."""
    is_plain = op.is_transparent or op.stays_here or (op.is_elementwise and op.keeps_count)
    return is_plain or isinstance(op, Limit | Batch)
