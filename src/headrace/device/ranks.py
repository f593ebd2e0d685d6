"""Warns if PyTorch's ranks would train on the same elements."""

import os
import sys
import warnings
from typing import Any

from headrace.dataset.base import Dataset
from headrace.loader import DataLoader
from headrace.ops.combine import Select
from headrace.ops.global_batch import makes_rows
from headrace.ops.op import Op, parents_first
from headrace.ops.order import IndexOp, Slice
from headrace.ops.source import UserDataset

_warned = False
_warned_of_jax = False


def warn_of_unsharded(ds: Any, *, stacklevel: int) -> None:
    """Warns, once in a process, if PyTorch has several ranks and a pipeline gives all of them the same elements."""
    global _warned
    if _warned:
        return
    num_ranks, who, rank = _ranks()
    if num_ranks < 2 or _may_be_sharded(ds, num_ranks):
        return
    _warned = True
    if isinstance(ds, DataLoader):
        line = f"`shard_options=ShardOptions({rank}, {num_ranks}, drop_remainder=True)` to the DataLoader"
    else:
        line = f"`ds = ds.shard({num_ranks}, {rank}, drop_remainder=True)` before `batch` and `to_iter_dataset`"
    warnings.warn(
        f"{who} reports {num_ranks} ranks, but this pipeline is not sharded, so each rank trains on the same "
        f"elements. Add {line}. If this is intended, or if each rank reads its own files, pass "
        "`warn_unsharded=False`.",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


def warn_of_ranks_without_jax(*, stacklevel: int) -> None:
    """Warns, once in a process, if PyTorch has several ranks and JAX, over which `stop_together` agrees, has one."""
    global _warned_of_jax
    num_ranks, who, _ = _ranks()
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    if _warned_of_jax or num_ranks < 2 or (distributed is not None and distributed.is_initialized()):
        return
    _warned_of_jax = True
    warnings.warn(
        f"{who} says that there are {num_ranks} ranks, but `stop_together` only coordinates the processes of a "
        "distributed JAX program: here, each rank stops on its own. Make the ranks equally long: "
        "`ds.shard(num_ranks, rank, drop_remainder=True)`, or end after a fixed number of steps with `take`.",
        RuntimeWarning,
        stacklevel=stacklevel,
    )


def _ranks() -> tuple[int, str, str]:
    """How many ranks there are, who says so, and how to write the rank of this process."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), "The process group", "torch.distributed.get_rank()"
    declared = os.environ.get("WORLD_SIZE", "")
    return int(declared) if declared.isdecimal() else 1, "WORLD_SIZE", 'int(os.environ["RANK"])'


def _may_be_sharded(ds: Any, num_ranks: int) -> bool:
    """Whether a rank reads a part of the data, or code that is not ours decides what it reads."""
    if isinstance(ds, DataLoader):
        return ds.order.shard.shard_count > 1 or not ds.order.is_known or _may_be_sharded(ds.dataset, num_ranks)
    if not isinstance(ds, Dataset):
        return True
    return any(_leaves_to_others(op, num_ranks) for op in parents_first(ds._op, lambda _: True))


def _leaves_to_others(op: Op, num_ranks: int) -> bool:
    if isinstance(op, UserDataset | Select):
        return True
    if makes_rows(op):
        return not op.rows.is_all  # type: ignore[attr-defined]
    if isinstance(op, Slice) and abs(op.step) >= num_ranks:
        return True
    return isinstance(op, IndexOp) and not op.endless and op.length() <= -(-op.parent.length() // num_ranks)
