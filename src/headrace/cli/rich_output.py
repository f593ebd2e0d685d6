"""What commands print in a terminal, by `rich`."""

from collections.abc import Sequence

import rich.box
import rich.table
from rich.console import Console
from rich.text import Text

from headrace.cli.output import Fields, Lines, Part, Table, cell


def show(parts: Sequence[Part]) -> None:
    """Prints parts one after the other, with a line between them."""
    console = Console(highlight=False, markup=False, emoji=False)
    for i, part in enumerate(parts):
        if i:
            console.print()
        if part.title:
            console.print(Text(part.title, "bold cyan"))
        console.print(_drawn(part))


def _drawn(part: Part) -> Text | rich.table.Table:
    if isinstance(part, Lines):
        return Text("\n".join(cell(line, indented=True) for line in part.lines), "bold" if part.strong else "")
    return _fields(part) if isinstance(part, Fields) else _table(part)


def _fields(part: Fields) -> rich.table.Table:
    drawn = rich.table.Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in part.pairs:
        drawn.add_row(Text(cell(name)), Text(cell(value)))
    return drawn


def _table(part: Table) -> rich.table.Table:
    drawn = rich.table.Table(box=rich.box.SIMPLE_HEAD, header_style="dim", show_edge=False, pad_edge=False)
    for name in part.columns:
        drawn.add_column(name, justify="right" if name in part.right else "left", overflow="fold")
    for row in part.rows:
        drawn.add_row(*(Text(cell(value, indented=True)) for value in row))
    return drawn
