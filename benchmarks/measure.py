"""Measuring: rates of iterators, medians of several rounds that take turns, and the table."""

import gc
import itertools
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS = 5


@dataclass
class Row:
    """One line of the table."""

    work: str
    ours: str
    peer: str
    ratio: float
    floor: float
    higher_is_better: bool = True

    @property
    def holds(self) -> bool:
        return self.ratio >= self.floor if self.higher_is_better else self.ratio <= self.floor


def seconds_per_element(make: Callable[[], Iterable[Any]], count: int, per: int = 1, *, warm_up: int = 1) -> float:
    """How long an element takes once some outputs have come; `per` elements come as one output."""
    iterator = iter(make())
    for _ in itertools.islice(iterator, warm_up):
        pass
    gc.collect()
    begin = time.perf_counter()
    taken = sum(1 for _ in itertools.islice(iterator, count))
    took = time.perf_counter() - begin
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
    return took / (taken * per)


def side_by_side(*sides: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """The median time of each side; sides take turns, so that noise falls on all of them."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            found.append(side())
    return [statistics.median(found) for found in times]


def in_fresh_process(script: str) -> float:
    """The number that a script prints, run as a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(textwrap.dedent(script))
        done = subprocess.run([sys.executable, str(path)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def in_time(seconds: float) -> str:
    """A time for people."""
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def faster_than(work: str, peer_name: str, floor: float, ours: float, peer: float) -> Row:
    """A row that compares times per element."""
    return Row(work, in_time(ours), f"{peer_name} {in_time(peer)}", peer / ours, floor)


def print_table(rows: list[Row]) -> None:
    """The table, as Markdown."""
    print("\n| work | ours | against | ratio | floor | |\n|---|---|---|---|---|---|")
    for row in rows:
        unit = "×" if row.higher_is_better else ""
        sign = "≥" if row.higher_is_better else "≤"
        print(
            f"| {row.work} | {row.ours} | {row.peer} | {row.ratio:.3g} {unit} | {sign} {row.floor:g} {unit} "
            f"| {'holds' if row.holds else 'FALLS SHORT'} |"
        )
