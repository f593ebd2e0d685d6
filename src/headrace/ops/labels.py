"""Pipelines as text, as the user wrote them."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.ops.combine import Interleave, Nary
from headrace.ops.op import Op
from headrace.ops.source import Source, UserDataset
from headrace.storage.memory import RangeDataSource


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
    """The operations of a pipeline, one on each line."""
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
    inner = [
        _named(lines(parent, indent + "    ", several), name)
        for parent, name in zip(op.parents, _names(op), strict=True)
    ]
    return [several, *itertools.chain.from_iterable(inner), *reversed(chain)]


def _names(op: Op) -> Iterable[str | None]:
    """The names of the parts of an operation."""
    return getattr(op, "names", None) or [None] * len(op.parents)


def _named(part: list[Line], name: str | None) -> list[Line]:
    """The lines of a part, which begin with its name."""
    if name is None:
        return part
    text = part[0].label.lstrip()
    begin = part[0].label[: -len(text)]
    return [replace(part[0], label=f"{begin}{name!r}: {text}"), *part[1:]]


def _source_label(op: Op) -> str:
    if isinstance(op, Source) and isinstance(op.source, RangeDataSource):
        r = op.source.range
        inner = f"{r.stop}" if (r.start, r.step) == (0, 1) else f"{r.start}, {r.stop}, {r.step}"
        return f"MapDataset.range({inner})"
    if isinstance(op, UserDataset):
        label = op.label()
        return label if label.endswith(")") else f"{label}()"
    return f"MapDataset.{op.label()}"
