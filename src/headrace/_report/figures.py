"""The plots of a page, each with its title and what there is to read beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace._report import plots
from headrace._report.lengths import Lengths
from headrace._report.mixtures import Shares
from headrace._report.words import percent, short


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        title: What it shows.
        line: The line of code that it belongs to.
        svg: The plot.
        legend: Names and values of the colours in it.
        text: What it says, in words.
    """

    title: str
    svg: str
    line: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""


def rate_figure(rates: Sequence[float], span_s: float) -> Figure:
    """Elements a second over the last seconds."""
    title = "Elements per second"
    svg = plots.line_plot(rates, title=title, first=f"{span_s:.0f} s ago", last="now")
    return Figure(title, svg, text=f"{short(rates[-1])} now" if rates else "")


def mixture_figure(shares: Shares) -> Figure:
    """The shares of a mix over its elements."""
    title = f"Shares of {shares.label}"
    svg = plots.stacked_plot(shares.over_time, title=title, first="0", last=f"{shares.count:,} elements")
    legend = [(name, percent(share)) for name, share in zip(shares.names, shares.whole.tolist(), strict=True)]
    return Figure(title, svg, shares.line, legend)


def length_figure(lengths: Lengths) -> Figure:
    """A histogram of lengths."""
    title = f"Lengths of {lengths.feature} before {lengths.label}"
    counts, top = lengths.histogram()
    mark = None if lengths.row_length is None else lengths.row_length / top
    text = lengths.summary + (f"; rows of {lengths.row_length:,}" if lengths.row_length is not None else "")
    text += "" if lengths.padding is None else f"; {lengths.padding:.1%} of them padding"
    svg = plots.bar_plot(counts, title=title, first="0", last=f"{top:,}", mark=mark)
    return Figure(title, svg, lengths.line, text=text)
