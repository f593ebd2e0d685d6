"""Statistics as text and as HTML."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.stats import OperationStats, Stats

WIDEST = 48  # characters of a name
Row = Sequence[str]
STAGE_HEAD = ("stage", "by", "elements", "MB", "busy s", "cpu s", "waited s", "buffer")
OPERATION_HEAD = ("operation", "by", "elements", "seconds", "µs each")


def as_text(stats: "Stats") -> str:
    """Statistics as tables, for a terminal."""
    parts = [_summary(stats), in_columns(OPERATION_HEAD, operations(stats.operations))]
    if stats.stages:
        parts.append(in_columns(STAGE_HEAD, _stages(stats)))
    return "\n\n".join([*parts, stats.verdict])


def as_html(stats: "Stats") -> str:
    """Statistics as tables, for a notebook."""
    tables = html_table(OPERATION_HEAD, operations(stats.operations)), html_table(STAGE_HEAD, _stages(stats))
    return f"{html_paragraph(stats.verdict)}{html_paragraph(_summary(stats))}{''.join(tables)}"


def _summary(stats: "Stats") -> str:
    lines = [
        f"{stats.elements:,} elements, {stats.bytes / 1e6:,.1f} MB, {stats.wall_s:.2f} s: {stats.rate:,.1f} elements/s",
        f"in next(): {stats.next_s:.2f} s, {stats.waited_s:.2f} s of it waiting; between calls: "
        f"{stats.consumer_s:.2f} s",
    ]
    if stats.recent is not None and stats.recent.elements:
        lines.append(f"in the last {stats.recent.wall_s:.1f} s: {stats.recent.rate:,.1f} elements/s")
    if stats.bad_records.get("count"):
        lines.append(f"bad records: {stats.bad_records['count']:,}")
    return "\n".join(lines)


def operations(given: "Iterable[OperationStats]") -> list[Row]:
    """The rows of a table of operations."""
    return [
        (
            shorten(each.operation),
            each.where,
            f"{each.elements:,}",
            f"{each.seconds:.3f}",
            f"{1e6 * each.seconds / max(each.elements, 1):,.1f}",
        )
        for each in given
    ]


def _stages(stats: "Stats") -> list[Row]:
    return [
        (
            shorten(each.stage),
            each.where if each.where == "consumer" else f"{each.computed_by} {each.where}",
            f"{each.elements:,}",
            f"{each.bytes / 1e6:,.1f}",
            f"{each.busy_s:.2f}",
            "" if each.where == "consumer" else f"{each.cpu_s:.2f}",
            f"{each.waited_s:.2f}",
            "" if each.buffered is None else f"{each.buffered:.0%}",
        )
        for each in stats.stages
    ]


def shorten(text: str) -> str:
    """A name that leaves room for numbers."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def in_columns(head: Row, rows: Iterable[Row]) -> str:
    """A table as text: the first column to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def line(cells: Row) -> str:
        first, *others = (
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *others]).rstrip()

    return "\n".join([line(head), line(["─" * width for width in widths]), *map(line, lines[1:])])


def html_table(head: Row, rows: Iterable[Row]) -> str:
    """A table as HTML; everything in it is escaped."""

    def line(cells: Row, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def html_paragraph(text: str) -> str:
    """A paragraph as HTML."""
    return f"<p>{escape(text)}</p>"
