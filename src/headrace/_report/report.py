"""A report of a run: one file that needs nothing else."""

from collections.abc import Sequence
from typing import Any

from headrace._plan.plan import Plan
from headrace._report import figures, page
from headrace._report.figures import Figure
from headrace._report.graph import Graph
from headrace._report.lengths import Lengths
from headrace._report.mixtures import shares_of
from headrace._report.numbers import plain_numbers
from headrace._report.on_nodes import on_nodes


def report_html(
    stats: Any,
    plan: Plan | None = None,
    position: Any = None,
    *,
    title: str = "Pipeline",
    rates: Sequence[float] = (),
    span_s: float = 0.0,
    lengths: Sequence[Lengths] = (),
) -> str:
    """A page with the numbers of a run: HTML with its style in it, without scripts.

    Args:
        stats: The statistics, as an object with `as_dict()` or as that dict.
        plan: The plan of the pipeline, for the graph.
        position: The position that the iterator has come to, for the shares of mixes.
        title: The name of the pipeline.
        rates: Elements a second over the last `span_s` seconds.
        span_s: See `rates`.
        lengths: Lengths of sequences, and padding.
    """
    numbers = plain_numbers(stats)
    graph = None if plan is None else Graph(plan)
    shown: list[Figure] = [figures.rate_figure(rates, span_s)] if len(rates) > 1 else []
    if plan is not None and position is not None:
        shown += [figures.mixture_figure(shares) for shares in shares_of(plan.op, position)]
    shown += [figures.length_figure(each) for each in lengths]
    return page.render(
        "report.html",
        title=title,
        numbers=numbers,
        graph=graph,
        notes={} if graph is None else on_nodes(graph, numbers),
        figures=shown,
        style=page.asset("style.css"),
    )
