"""How a stream ends: after how many outputs, and whether that is the same in all processes."""

import math

from headrace._ops.base import Op
from headrace._ops.buffer import Cache, Limit, Skip, ToStream
from headrace._ops.combine import Mixing, Zip
from headrace._ops.disk_cache import FromDisk
from headrace._ops.global_batch import GlobalBatch, has_rows, makes_rows
from headrace._ops.group import Batch
from headrace._ops.order import IndexOp, Repeat, gather_options
from headrace._ops.source import UserDataset


def ends_together(op: Op) -> bool:
    """Whether all processes are known to end at the same step, or not to end."""
    ahead = [op]
    while ahead:
        op = ahead.pop()
        if op.ends_together or (isinstance(op, GlobalBatch) and op.ends_with_others):
            continue
        if isinstance(op, ToStream | UserDataset):
            if not op.endless and not (has_rows(op) and not op.is_sparse and gather_options(op).on_error.raises):
                return False
        elif _keeps_ends(op) or op.only_reorders or isinstance(op, Skip | Cache | Repeat | Mixing | Zip):
            ahead += op.parents
        elif not op.endless or isinstance(op, GlobalBatch):
            return False
    return True


def num_outputs(op: Op) -> float | None:
    """How many outputs a stream has, infinity if it is endless; `None` if only reading it tells."""
    if not op.endless and not gather_options(op).on_error.raises:
        return None
    after: list[Op] = []
    while not (op.endless or isinstance(op, ToStream)):
        if op.before is None or not _keeps_ends(op):
            return None
        after.append(op)
        op = op.before
    if isinstance(op, ToStream) and op.parent.is_sparse and not op.allow_nones:
        return None
    if isinstance(op, FromDisk) and not op.cache.length_is_known:
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


def must_come_before_rows(op: Op) -> Op | None:
    """An operation after a `global_batch` that cannot be there: from this process's rows it makes something else, or
    leaves out batches that other processes do not.
    """
    ahead = [op] if has_rows(op) else []
    while ahead:
        op = ahead.pop()
        if makes_rows(op):
            continue
        keeps = (_keeps_ends(op) and not isinstance(op, Batch)) or op.only_reorders
        if not (keeps or isinstance(op, IndexOp | Skip | Mixing | Zip | ToStream)):
            return op
        ahead += op.parents
    return None


def may_leave_out_rows(op: Op) -> bool:
    """Whether an error may leave out a row, or a batch, of this process alone."""
    ahead = [op]
    while ahead:
        op = ahead.pop()
        if makes_rows(op):
            if not isinstance(op, GlobalBatch):
                return True
            continue
        if op.is_guarded:
            return True
        ahead += op.parents
    return False
