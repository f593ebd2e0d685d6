"""Pipelines for people to read: as they were written, and as they will be computed."""

import dataclasses
from typing import Any

from headrace._ops.base import Op, Unary
from headrace._ops.buffer import MpPrefetch, ToStream
from headrace._ops.combine import Interleave, Nary
from headrace._ops.source import Source, UserDataset
from headrace._plan.stages import all_operations, is_one_worker_stream, ready_for_workers, stages_up_to
from headrace.options import AUTOTUNE
from headrace.sources import RangeDataSource


def show(op: Op) -> str:
    """A pipeline as it was written, one operation a line."""
    return "\n".join(f"{indent}{label}" for indent, label, _ in _lines(op, ""))


def explain(op: Op) -> str:
    """A pipeline with what is done for each operation, and where; before an `mp_prefetch`, in the order of doing."""
    places: dict[Op, str] = {}
    lines = list(_lines(_as_computed(op, places), ""))
    width = max(len(indent) + len(label) for indent, label, _ in lines)
    return "\n".join(
        f"{indent + label:<{width}}  | {_how_and_where(op, places.get(op, ''))}".rstrip() for indent, label, op in lines
    )


def _how_and_where(op: Op, place: str) -> str:
    if isinstance(op, ToStream) and place and not (op.read_options and op.read_options.num_threads is not AUTOTUNE):
        return f"{place}in index order, no threads"
    return place + op.how()


def _as_computed(op: Op, places: dict[Op, str]) -> Op:
    """A pipeline with what comes before an `mp_prefetch` as its workers get it; notes who computes each operation."""
    chain: list[Any] = []
    while isinstance(op, Unary) and not (isinstance(op, MpPrefetch) and op.options.num_workers):
        chain.append(op)
        op = op.parent
    if isinstance(op, MpPrefetch):
        op = dataclasses.replace(op, parent=ready_for_workers(op.parent, as_written=False))
        _note_places(op.parent, places)
    elif isinstance(op, Nary):
        op = dataclasses.replace(op, parts=tuple(_as_computed(part, places) for part in op.parts))
    for each in reversed(chain):
        op = dataclasses.replace(each, parent=op)
    return op


def _note_places(op: Op, places: dict[Op, str]) -> None:
    """Notes who computes the operations before an `mp_prefetch`."""
    inner = all_operations(op)
    stages: dict[Op, Any] = {}
    for each in inner:
        if each.is_stream and each not in stages:
            stages.update(stages_up_to(each, gaps=False))
        is_remote = not each.is_stream or stages[each] is not None
        places.setdefault(each, "worker: " if is_remote else "consumer: ")
    for several in inner:
        if isinstance(several, Nary | Interleave):
            for part in filter(is_one_worker_stream, several.parents):
                places.update(dict.fromkeys(all_operations(part), "worker: "))


def _lines(op: Op, indent: str) -> list[tuple[str, str, Op]]:
    lines: list[tuple[str, str, Op]] = []  # the last one first
    while len(op.parents) == 1 and not isinstance(op, Nary | Interleave):
        lines.append((indent + "  ", f".{op.label()}", op))
        op = op.parents[0]
    if not op.parents:
        return [(indent, _source_label(op), op), *reversed(lines)]
    inner = [line for parent in op.parents for line in _lines(parent, indent + "    ")]
    kind = "IterDataset" if op.is_stream else "MapDataset"
    label = op.label() if isinstance(op, UserDataset) else f"{kind}.{op.label()}"
    return [(indent, f"{label} of", op), *inner, *reversed(lines)]


def _source_label(op: Op) -> str:
    if isinstance(op, Source) and isinstance(op.source, RangeDataSource):
        r = op.source.range
        inner = f"{r.stop}" if (r.start, r.step) == (0, 1) else f"{r.start}, {r.stop}, {r.step}"
        return f"MapDataset.range({inner})"
    if isinstance(op, UserDataset):
        return f"{op.label()}()"
    return f"MapDataset.{op.label()}"
