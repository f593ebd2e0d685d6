"""How a stream ends: after how many outputs, and whether that is the same in all processes."""

import math

from headrace.ops.buffer import Cache, Limit, Skip, ToStream
from headrace.ops.combine import Interleave, Mix, Mixing, Zip
from headrace.ops.disk_cache import FromDisk
from headrace.ops.global_batch import BatchOfRows, GlobalBatch, OwnRows, has_rows, makes_rows
from headrace.ops.group import BatchOp, BufferShuffle, PaddedBatch
from headrace.ops.op import Op, Unary, parents_first
from headrace.ops.order import IndexOp, Repeat, Slice, WindowShuffle, gather_options
from headrace.ops.source import Source, UserDataset
from headrace.ops.weighed_mix import WeighedMix


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


def num_outputs(op: Op, *, surely: bool = False) -> float | None:
    """How many outputs a stream has, infinity if it is endless; `None` if only reading it shows that.

    An endless stream has none if a filter drops everything. With `surely`, that counts as well.
    """
    if not op.endless and not gather_options(op).on_error.raises:
        return None
    counts: dict[Op, float | None] = {}
    for each in parents_first(op, lambda each: each.is_stream):
        count = _num_outputs(each, counts)
        counts[each] = math.inf if count is None and each.endless and not surely else count
    return math.inf if op.endless and counts[op] is None else counts[op]


def _num_outputs(op: Op, counts: dict[Op, float | None]) -> float | None:
    """The number of outputs of an operation, given those of its parents."""
    if op.lanes > 1:  # a template of several streams
        return None
    if isinstance(op, FromDisk) and not op.cache.length_is_known:
        return None
    if isinstance(op, ToStream):
        skips = op.parent.is_sparse and not op.allow_nones
        return None if skips or reads_in_order(op) else math.inf if op.endless else op.parent.length()
    if isinstance(op, GlobalBatch):
        return _num_global_batches(op, counts)
    inputs = [counts.get(parent) for parent in op.parents]
    if isinstance(op, Mix) and len(op.due_parts) < len(inputs):
        due = set(op.due_parts)
        inputs = [count if i in due else math.inf for i, count in enumerate(inputs)]  # it never reads the others
    known = [count for count in inputs if count is not None]
    if not inputs or len(known) < len(inputs) or isinstance(op, UserDataset):
        return None
    return _from_inputs(op, known)


def _from_inputs(op: Op, counts: list[float]) -> float | None:
    """The number of outputs of an operation on streams that have this many elements."""
    count = counts[0]
    match op:
        case Limit():
            return min(count, op.count)
        case Skip():
            return max(count - op.count, 0)
        case Repeat():
            return count and count * (op.num_epochs or math.inf)
        case BatchOp():
            return _groups(count, op.batch_size, drop_remainder=op.drop_remainder)
        case PaddedBatch(boundaries=()):
            assert op.window_size is not None
            whole, rest = divmod(count, op.window_size) if count < math.inf else (math.inf, 0)
            full, last = (_groups(n, op.batch_size, drop_remainder=op.drop_remainder) for n in (op.window_size, rest))
            return whole * full + last if full else 0
        case Mix():
            return op.shares.num_outputs(counts)
        case Zip():
            return min(counts) if not op.strict or len(set(counts)) == 1 else None
        case Interleave():
            return None if isinstance(op.datasets, Op) else sum(counts)
        case WindowShuffle() | BufferShuffle() | Cache():
            return count
        case _:
            return count if _keeps_ends(op) and not op.ends_together else None


def _groups(count: float, size: int, *, drop_remainder: bool) -> float:
    if count == math.inf:
        return count
    return count // size if drop_remainder else -(-count // size)


def _num_global_batches(op: GlobalBatch, counts: dict[Op, float | None]) -> float | None:
    if op.num_batches is not None:
        return op.num_batches
    lanes = [counts[op.parent]] if op.num_lanes == 1 else [num_outputs(op.lane(i), surely=True) for i in op.own_rows]
    if any(count is None for count in lanes):
        return None
    return min(_groups(count, op.rows_per_lane, drop_remainder=True) for count in lanes if count is not None)


def reads_in_order(op: ToStream) -> bool:
    """Whether it reads a source that gives its next element whatever the index, and may end earlier than it says."""
    sources = (each for each in parents_first(op.parent, lambda _: True) if isinstance(each, Source))
    return any(getattr(each.source, "reads_in_order", False) for each in sources)


def _keeps_ends(op: Op) -> bool:
    """Whether the number of an operation's outputs follows from the number of its inputs."""
    is_plain = op.is_transparent or op.runs_in_consumer or (op.is_elementwise and op.keeps_count)
    return is_plain or isinstance(op, Limit | BatchOp)


def must_come_before_rows(op: Op) -> Op | None:
    """An operation after a `global_batch` that cannot be there: from this process's rows it makes something else, or
    drops batches that other processes do not.
    """
    ahead = [op] if has_rows(op) else []
    while ahead:
        op = ahead.pop()
        if makes_rows(op):
            continue
        keeps = (_keeps_ends(op) and not isinstance(op, BatchOp)) or op.only_reorders
        joins = isinstance(op, Mixing | Zip) and not isinstance(op, WeighedMix)  # sizes differ among processes
        if not (keeps or joins or isinstance(op, IndexOp | Skip | ToStream)):
            return op
        ahead += op.parents
    return None


def may_drop_rows(op: Op) -> bool:
    """Whether an error may drop a row, or a batch, of this process alone."""
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


# ------------------------------------------------------------------------------------------------- warnings

_warned: set[tuple[str, str]] = set()  # what, and where in the user's code: each once


def _warn(op: Op, text: str) -> None:
    if (text, op.site) not in _warned:
        _warned.add((text, op.site))
        import logging  # slow to import, and hardly ever needed

        logging.getLogger("headrace").warning("%s (pipeline at %s) %s", op.label(), op.site, text)


_SHARDED = "_known_sharded"


def mark_shard(op: Op, total: int) -> None:
    """Marks a slice as one of several shards of `total` elements."""
    op.__dict__[_SHARDED] = total


def warn_of_uneven_shards(batch: BatchOp) -> None:
    """Warns if the shards of a dataset have different numbers of batches: hosts that take steps together would hang."""
    op = batch.parent
    epochs = 1
    while isinstance(op, Unary) and _SHARDED not in op.__dict__:
        if isinstance(op, Repeat):
            epochs *= op.num_epochs or 0  # an endless one has no number of batches
        elif not (_keeps_ends(op) or op.only_reorders or isinstance(op, ToStream)) or isinstance(op, Limit | BatchOp):
            return
        op = op.parent
    if not isinstance(op, Slice) or op.step == 1 or op.endless:
        return
    lengths = [len(range(i, op.__dict__[_SHARDED], op.step)) for i in (0, op.step - 1)]  # the longest and the shortest
    counts = [_groups(epochs * n, batch.batch_size, drop_remainder=batch.drop_remainder) for n in lengths]
    if len(set(counts)) > 1:
        _warn(
            batch,
            f"has {counts[0]:.0f} batches in some of the {op.step} shards and {counts[1]:.0f} in others, so hosts "
            "that take steps together would wait indefinitely for others that have ended. Use `global_batch`, "
            "`shard(..., drop_remainder=True)`, or `headrace.stop_together(batches)`.",
        )


def warn_of_dropped_rows(op: Op) -> None:
    """Warns if a global batch drops the last rows of its dataset."""
    if isinstance(op, BatchOfRows):
        parent = op.parent.parent if isinstance(op.parent, OwnRows) else op.parent
        size = op.rows.batch_size
        count: float | None = None if parent.endless else parent.length()
    elif isinstance(op, GlobalBatch) and op.num_lanes == 1 and op.num_batches is None:
        parent = op.parent
        size = op.batch_size
        count = num_outputs(parent)
    else:
        return
    if count is not None and count < math.inf and count % size:
        _warn(
            op,
            f"drops the last {count % size:.0f} of {count:.0f} elements, which do not fill a batch of {size}. To use "
            "them all, choose a batch size that divides their number, or call `repeat()` before it.",
        )
