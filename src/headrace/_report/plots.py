"""Small plots as SVG. Colours come from classes, which the page's style defines for light and dark."""

from collections.abc import Sequence
from html import escape

import numpy as np

from headrace._report.words import short

WIDTH, HEIGHT = 420, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 8, 20
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


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
