"""Pipelines as text, as the user wrote them."""

from dataclasses import dataclass

from headrace._ops.base import Op
from headrace._ops.combine import Interleave, Nary
from headrace._ops.source import Source, UserDataset
from headrace.sources import RangeDataSource


@dataclass(frozen=True, eq=False)
class Line:
    """One operation as text, and the line of the operation that reads its elements."""

    label: str
    op: Op
    reader: "Line | None"


def show(op: Op) -> str:
    """A pipeline, one operation per line."""
    return "\n".join(line.label for line in lines(op))


def lines(op: Op, indent: str = "", reader: Line | None = None) -> list[Line]:
    """The operations of a pipeline, each on a line of its own."""
    chain: list[Line] = []  # the last operation first
    while len(op.parents) == 1 and not isinstance(op, Nary | Interleave):
        reader = Line(f"{indent}  .{op.label()}", op, reader)
        chain.append(reader)
        op = op.parents[0]
    if not op.parents:
        return [Line(indent + _source_label(op), op, reader), *reversed(chain)]
    kind = "IterDataset" if op.is_stream else "MapDataset"
    label = op.label() if isinstance(op, UserDataset) else f"{kind}.{op.label()}"
    several = Line(f"{indent}{label} of", op, reader)
    inner = [line for parent in op.parents for line in lines(parent, indent + "    ", several)]
    return [several, *inner, *reversed(chain)]


def _source_label(op: Op) -> str:
    if isinstance(op, Source) and isinstance(op.source, RangeDataSource):
        r = op.source.range
        inner = f"{r.stop}" if (r.start, r.step) == (0, 1) else f"{r.start}, {r.stop}, {r.step}"
        return f"MapDataset.range({inner})"
    if isinstance(op, UserDataset):
        return f"{op.label()}()"
    return f"MapDataset.{op.label()}"
