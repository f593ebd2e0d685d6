"""`mp_prefetch()`, which tunes itself, against fixed numbers of threads and workers."""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.images import photograph
from benchmarks.measure import Row
from headrace.images import Decode

WITHIN_S, FIXED_S, MEASURED_S = 10.0, 3.0, 2.0
FLOOR = 0.9
FIXED: dict[str, Callable[[Any], Any]] = {
    "inline": lambda ds: ds.to_iter_dataset(hr.ReadOptions(num_threads=0)),
    "16 threads": lambda ds: ds.to_iter_dataset(hr.ReadOptions(num_threads=16)),
    "64 threads": lambda ds: ds.to_iter_dataset(hr.ReadOptions(num_threads=64)),
    "1 worker": lambda ds: ds.mp_prefetch(1),
    "2 workers": lambda ds: ds.mp_prefetch(2),
    "4 workers": lambda ds: ds.mp_prefetch(4),
    "a worker for each core": lambda ds: ds.mp_prefetch(os.cpu_count() or 1),
}


def _spin(x: int) -> int:
    return sum(i for i in range(70_000)) + x  # some 2 ms; threads that wait for the GIL would use up a time limit


def _fetch(x: int) -> int:
    time.sleep(0.02)
    return x


def _large(x: int) -> np.ndarray:
    return np.full(500_000, x, np.float32)


def _pipelines() -> dict[str, hr.MapDataset[Any]]:
    numbers = hr.MapDataset.range(10**9)
    photographs = [photograph(375, 500, seed, 20.0) for seed in range(32)]
    return {
        "cheap": numbers.map(lambda x: x + 1).batch(32),
        "decode": hr.MapDataset.source(photographs).repeat().map(Decode()).batch(8),
        "spin": numbers.map(_spin).batch(4),
        "IO with latency": numbers.map(_fetch),
        "large elements": numbers.map(_large),
    }


def _measured(ds: Iterable[Any], warm_up_s: float) -> tuple[float, float]:
    """Seconds to the first output, and outputs a second after the warm-up."""
    begin = time.perf_counter()
    iterator = iter(ds)
    next(iterator)
    first_s = time.perf_counter() - begin
    _read(iterator, begin + warm_up_s)
    begin = time.perf_counter()
    count = _read(iterator, begin + MEASURED_S)
    took = time.perf_counter() - begin
    iterator.close()  # type: ignore[attr-defined]
    return first_s, count / took


def _read(iterator: Any, end_s: float) -> int:
    count = 0
    while time.perf_counter() < end_s:
        next(iterator)
        count += 1
    return count


def autotune() -> list[Row]:
    rows = []
    for name, ds in _pipelines().items():
        fixed = {kind: _measured(make(ds), FIXED_S) for kind, make in FIXED.items()}
        first_s, rate = _measured(ds.mp_prefetch(), WITHIN_S)
        best = max(fixed, key=lambda kind: fixed[kind][1])
        rows.append(
            Row(
                f"`mp_prefetch()` of {name}, after {WITHIN_S:.0f} s",
                f"{rate:,.0f}/s",
                f"the best fixed setting, {best}: {fixed[best][1]:,.0f}/s",
                rate / fixed[best][1],
                FLOOR,
            )
        )
        one_s = fixed["1 worker"][0]
        rows.append(
            Row(
                f"its first output, of {name}",
                f"{1e3 * first_s:.1f} ms",
                f"one worker: {1e3 * one_s:.0f} ms",
                one_s / first_s,
                1.0,
            )
        )
    return rows


ROWS: list[Callable[[], Row | list[Row]]] = [autotune]
