"""A report of a run: one file that needs nothing else."""

import functools
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np

from headrace.engine.plan import CONSUMER, Plan, PlanStep
from headrace.errors import optional
from headrace.ops.buffer import ToStream
from headrace.ops.combine import Interleave, Mix, Mixing, Nary, RouteOp
from headrace.ops.group import BatchOp
from headrace.ops.labels import lines
from headrace.ops.op import Op
from headrace.ops.order import IndexOp
from headrace.ops.schedule import ScheduledMix
from headrace.ops.source import Source, UserDataset

# --------------------------------------------------------------------------------------------------------- lengths
# Lengths of sequences before an operation that pads or packs them, and how much of its rows is padding.


BINS = 40


@dataclass(frozen=True)
class Lengths:
    """The lengths of one feature.

    Attributes:
        label: The operation that they were measured before.
        line: The line of code that built it.
        feature: The feature.
        values: The lengths, in the order of the elements.
        row_length: The length of a row, where that is fixed.
        padding: The share of padding in the rows, where there is some.
    """

    label: str
    line: str
    feature: str
    values: np.ndarray
    row_length: int | None = None
    padding: float | None = None

    @property
    def summary(self) -> str:
        """The numbers in words."""
        low, middle, high = (f"{number:,.0f}" for number in np.percentile(self.values, [0, 50, 100]))
        return f"{len(self.values):,} elements: {low} to {high}, median {middle}"

    def histogram(self) -> tuple[np.ndarray, int]:
        """How many lengths there are in each of some ranges from 0 on, and where the last range ends."""
        top = max(int(self.values.max(initial=0)), self.row_length or 0, 1)
        width = -(-(top + 1) // min(BINS, top + 1))
        bounds = np.arange(0, top + width + 1, width)
        return np.histogram(self.values, bounds)[0], int(bounds[-1])


# -------------------------------------------------------------------------------------------------------- mixtures
# The shares of the parts of a mix so far: which part an element is from follows from its number alone.


MOST_MIXED_PARTS = 6
MOST_READ = 1 << 16  # outputs whose parts are looked up
MOST_IN_STRETCH = 1024  # steps of changing weights that are looked at
MIXTURE_BINS = 48


@dataclass(frozen=True)
class PartShares:
    """How the parts of one mix took turns.

    Attributes:
        label: The mix.
        line: The line of code that built it.
        names: The names of its parts; the last one may stand for several.
        count: How many elements it has given.
        over_time: For each stretch of elements, the share of each part.
        whole: The share of each part in all of them.
    """

    label: str
    line: str
    names: tuple[str, ...]
    count: int
    over_time: np.ndarray
    whole: np.ndarray


@dataclass(frozen=True)
class _Seen:
    """A mix, how many elements it has given, and what is known of them.

    Attributes:
        op: The mix.
        count: How many elements it has given.
        parts: The parts of these elements, or of some of them, in order; of changing weights the shares themselves,
            stretch by stretch.
    """

    op: Any
    count: int
    parts: np.ndarray


def shares_of(op: Op, position: Any) -> list[PartShares]:
    """The shares of all mixes of a stream that has come to a position."""
    return [_shares(seen) for seen in _mixes(op, position) if seen.count and len(seen.parts)]


def _mixes(op: Op, position: Any) -> Iterator[_Seen]:
    """The mixes of a stream."""
    while op.is_stream and position is not None and not isinstance(op, UserDataset | Interleave):
        if isinstance(op, ToStream):
            yield from _mixes_at(op.parent, _some(int(position)), int(position))
            return
        if isinstance(op, Mixing):
            yield _Seen(op, int(position[0]), _parts_of(op, int(position[0])))
        if len(op.parents) != 1:
            inner = position[-1]
            if isinstance(inner, tuple) and len(inner) == len(op.parents):
                for part, at in zip(op.parents, inner, strict=True):
                    yield from _mixes(part, at)
            return
        position = position if op.state_fields is None else position[-1]
        op = op.parents[0]


def _mixes_at(op: Op, idx: np.ndarray, count: int) -> Iterator[_Seen]:
    """The mixes of a random-access chain of which `count` elements were read, those at some indices among them."""
    while len(idx) and not isinstance(op, Source | UserDataset):
        if isinstance(op, RouteOp):
            which, inner = op.route(idx)
            if isinstance(op, Mix):
                yield _Seen(op, count, which)
            for part, each in enumerate(op.parts[:MOST_MIXED_PARTS]):
                here = which == part
                yield from _mixes_at(each, inner[here], round(count * float(here.mean())))
            return
        if isinstance(op, IndexOp):
            idx = op.indices(idx)
        elif isinstance(op, BatchOp):
            starts, stops = op.bounds(idx)
            idx = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])[:MOST_READ]
            count *= op.batch_size
        if len(op.parents) != 1:
            return
        op = op.parents[0]


def _some(count: int) -> np.ndarray:
    """Numbers below a count: all, or evenly spread ones."""
    return np.arange(count) if count <= MOST_READ else np.linspace(0, count - 1, MOST_READ).astype(np.int64)


def _parts_of(op: Mixing, count: int) -> np.ndarray:
    """What is known of the elements of a mix so far: see `_Seen`."""
    if isinstance(op, Mix) and count:
        return op.route(_some(count))[0]
    if isinstance(op, ScheduledMix) and count:
        bounds = np.unique(np.linspace(0, count, MIXTURE_BINS + 1).astype(np.int64)).tolist()
        names = op.names or len(op.parts)
        stretches = itertools.pairwise(bounds)
        rows = [op.schedule.shares(a, min(b, a + MOST_IN_STRETCH), names, op.lane)[0] for a, b in stretches]
        return np.array([row.mean(axis=0) for row in rows if len(row)])
    return np.empty(0, np.int64)


def _shares(seen: _Seen) -> PartShares:
    """The shares of a mix in stretches of its elements."""
    op = seen.op
    parts = seen.parts
    num_parts = len(seen.op.parts)
    if parts.ndim == 2:
        over_time = parts
        whole = parts.mean(axis=0)
    else:
        whole = np.bincount(parts, minlength=num_parts) / len(parts)
        stretches = np.array_split(parts, min(MIXTURE_BINS, max(1, len(parts) // (4 * num_parts))))
        over_time = np.array([np.bincount(each, minlength=num_parts) / len(each) for each in stretches])
    names = tuple(op.named_parts())
    if num_parts > MOST_MIXED_PARTS:
        kept = MOST_MIXED_PARTS - 1
        over_time = np.column_stack([over_time[:, :kept], over_time[:, kept:].sum(axis=1)])
        whole = np.append(whole[:kept], whole[kept:].sum())
        names = (*names[:kept], f"{num_parts - kept:,} others")
    return PartShares(op.label(), op.site, names, seen.count, over_time, whole)


# ----------------------------------------------------------------------------------------------------------- words
# Numbers in few characters, for people.


def short(number: float) -> str:
    """A number.

    >>> short(0.25), short(12), short(1234), short(56_789), short(1_500_000), short(2.5e9)
    ('0.25', '12', '1,234', '56.8k', '1.5M', '2.5G')
    """
    for unit, least, size in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e4, 1e3)):
        if abs(number) >= least:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"


def seconds(number: float) -> str:
    """A time.

    >>> seconds(0), seconds(35e-9), seconds(0.0000357), seconds(0.25), seconds(12.3), seconds(600)
    ('0 s', '35 ns', '35.7 µs', '250 ms', '12.3 s', '600 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return "0 s"


def percent(share: float) -> str:
    """A share of 1.

    >>> percent(0.123), percent(0.00123)
    ('12%', '0.1%')
    """
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"


# ----------------------------------------------------------------------------------------------------------- plots
# Small plots as SVG. Colours come from classes, which the page's style defines for light and dark.


WIDTH = 420
HEIGHT = 150
LEFT = 44
RIGHT = 8
TOP = 8
BOTTOM = 20
INNER_WIDTH = WIDTH - LEFT - RIGHT
INNER_HEIGHT = HEIGHT - TOP - BOTTOM


def line_plot(values: Sequence[float], *, title: str, first: str, last: str) -> str:
    """A line of values over time, with the largest one marked."""
    top = max(max(values, default=0.0), 1e-9)
    shown = np.asarray(values, np.float64)
    x = LEFT + np.linspace(0, INNER_WIDTH, max(len(shown), 2))[: len(shown)]
    y = TOP + INNER_HEIGHT * (1 - shown / top)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return _svg(title, f'<polyline class="line" points="{points}"/>', _axes(short(top), "0", first, last))


def stacked_plot(shares: np.ndarray, *, title: str, first: str, last: str) -> str:
    """Shares over time, one band above the other; `shares[i, k]` is that of part `k` in stretch `i`."""
    edges = np.concatenate([np.zeros((len(shares), 1)), np.cumsum(shares, axis=1)], axis=1).clip(0, 1)
    x = LEFT + INNER_WIDTH * np.arange(len(shares) + 1) / len(shares)
    bands = []
    for part in range(shares.shape[1]):
        top, bottom = (TOP + INNER_HEIGHT * (1 - edges[:, k]) for k in (part + 1, part))
        there = [f"{x[i]:.1f},{y:.1f} {x[i + 1]:.1f},{y:.1f}" for i, y in enumerate(top)]
        back = [f"{x[i + 1]:.1f},{y:.1f} {x[i]:.1f},{y:.1f}" for i, y in reversed(list(enumerate(bottom)))]
        bands.append(f'<polygon class="part{part}" points="{" ".join(there + back)}"/>')
    return _svg(title, "".join(bands), _axes("100%", "0%", first, last))


def bar_plot(counts: np.ndarray, *, title: str, first: str, last: str, mark: float | None = None) -> str:
    """Bars of a histogram; `mark` is where to draw a line, from 0 (left) to 1 (right)."""
    top = max(int(counts.max(initial=0)), 1)
    step = INNER_WIDTH / max(len(counts), 1)
    bars = "".join(
        f'<rect class="bar" x="{LEFT + i * step:.1f}" y="{TOP + INNER_HEIGHT - tall:.1f}" '
        f'width="{max(step - 1, 0.5):.1f}" height="{tall:.1f}"/>'
        for i, count in enumerate(counts.tolist())
        if (tall := INNER_HEIGHT * count / top)
    )
    if mark is not None:
        x = LEFT + INNER_WIDTH * mark
        bars += f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + INNER_HEIGHT}"/>'
    return _svg(title, bars, _axes(short(top), "0", first, last))


def _axes(top: str, bottom: str, first: str, last: str) -> str:
    texts = [
        (LEFT - 5, TOP + 8, "end", top),
        (LEFT - 5, TOP + INNER_HEIGHT, "end", bottom),
        (LEFT, HEIGHT - 5, "start", first),
        (WIDTH - RIGHT, HEIGHT - 5, "end", last),
    ]
    return f'<path class="axis" d="M{LEFT} {TOP}V{TOP + INNER_HEIGHT}H{WIDTH - RIGHT}"/>' + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>' for x, y, anchor, text in texts
    )


def _svg(title: str, *inner: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(inner)}</svg>"
    )


# --------------------------------------------------------------------------------------------------------- figures
# The plots of a page, each with its title and what there is to read beside it.


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        title: What it shows.
        line: The line of code that it belongs to.
        svg: The plot.
        legend: Names and values of the colours in it.
        text: What it shows, in words.
    """

    title: str
    svg: str
    line: str = ""
    legend: list[tuple[str, str]] = field(default_factory=list)
    text: str = ""


def rate_figure(rates: Sequence[float], span_s: float) -> Figure:
    """Elements per second over the last seconds."""
    title = "Elements per second"
    svg = line_plot(rates, title=title, first=f"{span_s:.0f} s ago", last="now")
    return Figure(title, svg, text=f"{short(rates[-1])} now" if rates else "")


def mixture_figure(shares: PartShares) -> Figure:
    """The shares of a mix over its elements."""
    title = f"Shares of {shares.label}"
    svg = stacked_plot(shares.over_time, title=title, first="0", last=f"{shares.count:,} elements")
    legend = [(name, percent(share)) for name, share in zip(shares.names, shares.whole.tolist(), strict=True)]
    return Figure(title, svg, shares.line, legend)


def length_figure(lengths: Lengths) -> Figure:
    """A histogram of lengths."""
    title = f"Lengths of {lengths.feature} before {lengths.label}"
    counts, top = lengths.histogram()
    mark = None if lengths.row_length is None else lengths.row_length / top
    text = lengths.summary + (f"; rows of {lengths.row_length:,}" if lengths.row_length is not None else "")
    text += "" if lengths.padding is None else f"; {lengths.padding:.1%} of them padding"
    svg = bar_plot(counts, title=title, first="0", last=f"{top:,}", mark=mark)
    return Figure(title, svg, lengths.line, text=text)


# ----------------------------------------------------------------------------------------------------------- graph
# A pipeline as a graph of nodes, as it was written, with who computes each of its operations.


MOST_PARTS = 8
MOST_NODES = 100  # of one chain


@dataclass(frozen=True, eq=False)
class GraphNode:
    """One operation.

    Attributes:
        number: Its number in the graph.
        op: The operation itself.
        label: The operation with its arguments.
        where: "consumer" or "worker".
        how: How it is computed.
        reason: Why a stage begins with it, if one does.
    """

    number: int
    op: Op
    label: str
    where: str
    how: str
    reason: str

    @property
    def line(self) -> str:
        """The file and line of the user's code that built it."""
        return self.op.site

    @property
    def seed(self) -> Any:
        """The seed of a random operation."""
        return getattr(self.op, "seed", None)

    @property
    def key(self) -> str:
        """The name that statistics have for it."""
        return self.op.label()


@dataclass
class NodeChain:
    """Operations one after the other; the first one is a source, or it joins parts.

    Attributes:
        parts: The chains that the first operation joins.
        nodes: The operations.
        num_left_out: How many parts, and how many operations, are too many to show.
    """

    nodes: list[GraphNode]
    parts: list["NodeChain"] = field(default_factory=list)
    num_left_out: tuple[int, int] = (0, 0)


class Graph:
    """The nodes of a pipeline."""

    def __init__(self, plan: Plan):
        self.nodes: list[GraphNode] = []
        self._steps: dict[tuple[str, str], list[PlanStep]] = defaultdict(list)
        for step in plan.steps:
            self._steps[step.op.label(), step.op.site].append(step)
        self.chain = self._chain(plan.op)

    @cached_property
    def _numbers(self) -> dict[Op, int]:
        return {node.op: node.number for node in reversed(self.nodes)}

    def number_of(self, op: Op) -> int | None:
        """The number of an operation's node; `None` if it is not shown."""
        return self._numbers.get(op)

    def _chain(self, last: Op) -> NodeChain:
        after: list[Op] = []
        op = last
        while len(op.parents) == 1 and not isinstance(op, Nary | Interleave):
            after.append(op)
            op = op.parents[0]
        parts = [self._chain(parent) for parent in op.parents[:MOST_PARTS]]
        in_order = after[::-1]
        half = MOST_NODES // 2
        shown = in_order if len(after) <= MOST_NODES else in_order[:half] + in_order[-half:]
        nodes = [self._node(each) for each in (op, *shown)]
        return NodeChain(nodes, parts, (len(op.parents) - len(parts), len(after) - len(shown)))

    def _node(self, op: Op) -> GraphNode:
        steps = self._steps[op.label(), op.site]
        step = steps.pop(0) if len(steps) > 1 else steps[0] if steps else None  # as many as there are alike
        where = (step.where if step is not None else None) or CONSUMER
        how, reason = ("", "") if step is None else (step.how, step.reason)
        node = GraphNode(len(self.nodes), op, label_of(op), where, how, reason)
        self.nodes.append(node)
        return node


def label_of(op: Op) -> str:
    """An operation for display; a source as its user wrote it."""
    return op.label() if op.parents else lines(op)[0].label.removeprefix("MapDataset.")


# --------------------------------------------------------------------------------------------------------- numbers
# The numbers of `iterator.stats()` as plain values with all keys.


_STAGE = {
    "where": "consumer",
    "elements": 0,
    "bytes": 0,
    "left_out": 0,
    "busy_s": 0.0,
    "waited_s": 0.0,
    "buffered": None,
}


def plain_numbers(stats: Any) -> dict[str, Any]:
    """Statistics as a dict: of an object with `as_dict()`, or of such a dict.

    >>> plain_numbers({"elements": 10, "seconds": 2.0, "stages": []})["rate"]
    5.0
    """
    found = stats.as_dict() if hasattr(stats, "as_dict") else dict(stats)
    wall_s = found.get("wall_s", found.get("seconds", 0.0))
    elements = found.get("elements", 0)
    recent = found.get("recent")
    return {
        "elements": elements,
        "bytes": found.get("bytes", 0),
        "wall_s": wall_s,
        "waited_s": found.get("waited_s", 0.0),
        "consumer_s": found.get("consumer_s", 0.0),
        "rate": found.get("rate", elements / wall_s if wall_s else 0.0),
        "stages": [_STAGE | {"workers": stage.get("computed_by", 1)} | stage for stage in found.get("stages", ())],
        "operations": list(found.get("operations", ())),
        "bad_records": found.get("bad_records", {}),
        "verdict": found.get("verdict", ""),
        "recent": None if not recent else plain_numbers(recent | {"recent": None}),
    }


# -------------------------------------------------------------------------------------------------------- on nodes
# The numbers of stages and operations, put on the nodes of a graph.


def on_nodes(graph: Graph, numbers: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """By node: what to write on it, who computes it, and its share of the time at work, from 0 to 1.

    Statistics know operations by their labels: those that look alike have their numbers together.
    """
    now = numbers["recent"] or numbers
    operations = _by_label(now["operations"], "operation")
    stages = _by_label(now["stages"], "stage")
    so_far = _by_label(numbers["stages"], "stage") | _by_label(numbers["operations"], "operation")
    times = {key: each["seconds"] for key, each in operations.items()}
    times = times or {key: each["busy_s"] for key, each in stages.items()}
    whole_s = sum(times.values())
    alike = Counter(node.key for node in graph.nodes)
    found = {}
    for node in graph.nodes:
        key = node.key
        stage = stages.get(key)
        known = operations.get(key) or stages.get(key)
        if known is None:
            continue
        words = _words(so_far[key]["elements"], known["elements"], times.get(key, 0.0), now["wall_s"])
        words += [f"buffer {stage['buffered']:.0%} full"] if stage and stage["buffered"] is not None else []
        words += [f"sum of {alike[key]} operations"] if alike[key] > 1 else []
        found[node.number] = {
            "text": " · ".join(words),
            "where": _where(stage) if stage else known["where"],
            "share": times.get(key, 0.0) / whole_s if whole_s else 0.0,
        }
    return found


def _words(count: int, recently: int, taken_s: float, wall_s: float) -> list[str]:
    words = [f"{short(count)} elements"]
    words += [f"{short(recently / wall_s)}/s"] if wall_s and recently else []
    return words + ([f"{seconds(taken_s / recently)} each"] if taken_s and recently else [])


def _where(stage: dict[str, Any]) -> str:
    return stage["where"] + (f" ({stage['workers']})" if stage["where"] in ("threads", "workers") else "")


def _by_label(rows: list[dict[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    """Rows by their labels; numbers of rows with the same label are added."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = found.setdefault(row[name], row)
        if known is not row:
            added = {key: known[key] + row[key] for key in ("elements", "busy_s", "seconds") if key in row}
            found[row[name]] = known | added
    return found


# ------------------------------------------------------------------------------------------------------------ page
# Templates: every text in them is escaped, wherever it comes from.


FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")


def render(template: str, **values: Any) -> str:
    """A template with its values."""
    return _environment().get_template(template).render(values)


def asset(name: str) -> str:
    """A file that pages need."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return f.read()


@functools.cache
def _environment() -> Any:
    jinja2 = optional("jinja2", extra="view")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["markup"] = optional("markupsafe", extra="view").Markup  # for what our own code has made
    return environment


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
        rates: Elements per second over the last `span_s` seconds.
        span_s: See `rates`.
        lengths: Lengths of sequences, and padding.
    """
    numbers = plain_numbers(stats)
    graph = None if plan is None else Graph(plan)
    shown: list[Figure] = [rate_figure(rates, span_s)] if len(rates) > 1 else []
    if plan is not None and position is not None:
        shown += [mixture_figure(shares) for shares in shares_of(plan.op, position)]
    shown += [length_figure(each) for each in lengths]
    return render(
        "report.html",
        title=title,
        numbers=numbers,
        graph=graph,
        notes={} if graph is None else on_nodes(graph, numbers),
        figures=shown,
        style=asset("style.css"),
    )
