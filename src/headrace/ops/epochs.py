"""A pipeline in one of its later epochs, as a separate pipeline."""

from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import PipelineError
from headrace.ops.buffer import Cache, ToStream
from headrace.ops.combine import Interleave, Nary
from headrace.ops.element import MapOp
from headrace.ops.op import ENDLESS, Op, ProcessLocal, parents_first
from headrace.ops.order import Seed, Slice
from headrace.ops.source import UserDataset
from headrace.rng import derive_seed


def in_epoch(op: Op, epoch: int) -> Op:
    """A stream in an epoch: random access continues where the epoch before ended, and streams have their own seeds."""
    if not epoch:
        return op
    made: dict[Op, Op] = {}
    for each in parents_first(op, lambda op: op.is_stream, lambda op: () if op.hides_parents else op.parents):
        made[each] = _in_epoch(each, epoch, tuple(made.get(parent, parent) for parent in each.parents))
    return made[op]


def _in_epoch(op: Op, epoch: int, parents: tuple[Op, ...]) -> Op:
    if isinstance(op, UserDataset):
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) cannot start at epoch {epoch}: it is a user-defined stream, which "
            "only its own code can reorder. Read a `MapDataset`, or create a dataset for each epoch."
        )
    if isinstance(op, ToStream):
        return replace(op, parent=_later(op.parent, epoch))
    if isinstance(op, Interleave) and isinstance(op.datasets, Op):
        datasets = MapOp(_later(op.datasets, epoch), _InEpoch(epoch), site=op.site)
        return replace(op, datasets=datasets, kept=ProcessLocal())
    if isinstance(op, Nary | Interleave):
        return op.with_parts(parents)
    # Workers and lanes that were made are those of another epoch; a cache is meant to keep its elements.
    own: dict[str, Any] = {"kept": ProcessLocal()} if hasattr(op, "kept") and not isinstance(op, Cache) else {}
    seed = None if isinstance(op, Seed) else getattr(op, "seed", None)
    if seed is not None:
        own["seed"] = derive_seed([(seed, epoch)])
    return replace(op, parent=parents[0], **own)  # type: ignore[call-arg]


def _later(op: Op, epoch: int) -> Op:
    """A random-access chain from an epoch on, for as many elements as an epoch has."""
    length = op.length()
    if op.endless or length >= ENDLESS:
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) has no epoch {epoch}, because it never ends. Remove `repeat()`."
        )
    if length * (epoch + 1) > ENDLESS:
        raise PipelineError(f"Epoch {epoch} of {length} elements each is beyond 2**63 elements.")
    return Slice(op, epoch * length, 1, length, site=op.site)


@dataclass(frozen=True)
class _InEpoch:
    """Takes the datasets of an interleave to an epoch."""

    epoch: int

    def map(self, dataset: Any) -> Any:
        return type(dataset)._kinds[True]._of(in_epoch(dataset._stream_op, self.epoch))
