"""`headrace.diagnose` on pipelines of known costs: does it name the operation, and do workers give what it predicts?"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row

SECONDS = 5.0
WITHIN = 0.25  # of what was measured


def sleep(x: Any) -> Any:
    time.sleep(0.01)
    return x


def spin(x: Any) -> Any:
    end = time.thread_time() + 0.002
    while time.thread_time() < end:
        pass
    return x


def large(x: int) -> np.ndarray:
    return np.full(1 << 21, x % 256, np.uint8)


def copies(x: np.ndarray) -> np.ndarray:
    for _ in range(4):
        x = x.copy()
    return x


class SlowSource:
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


def _pipelines() -> dict[str, tuple[Any, str]]:
    """Pipelines, and the operation that takes longest."""
    numbers = hr.MapDataset.range(10**6)
    return {
        "a sleep": (numbers.map(abs).map(sleep), "map(sleep "),
        "a spin": (numbers.map(abs).map(spin).batch(2), "map(spin "),
        "large arrays": (numbers.map(large).map(len), "map(large "),  # of which workers send no more than a number
        "copies of large arrays": (numbers.map(large).map(copies).map(len), "map(copies "),
        "a slow source": (hr.MapDataset.source(SlowSource()).map(abs), "source(SlowSource"),
        "a spin beside a sleep": (numbers.map(spin).map(sleep), "map(sleep "),
        "a spin beside copies": (numbers.map(large).map(copies).map(len).map(spin), "map(spin "),
    }


def diagnosis() -> list[Row]:
    rows = []
    for name, (ds, operation) in _pipelines().items():
        found = hr.diagnose(ds.to_iter_dataset(hr.ReadOptions(num_threads=0)), seconds=SECONDS)
        named, predicted = found.operations[0].operation, found.rates[found.best]
        error = abs(predicted - found.measured) / found.measured if named.startswith(operation) else float("inf")
        rows.append(
            Row(
                f"`diagnose` of {name}: error of the prediction",
                f"{found.best} workers: {predicted:,.0f}/s",
                f"measured {found.measured:,.0f}/s, of {named}",
                error,
                WITHIN,
                higher_is_better=False,
            )
        )
    return rows


ROWS: list[Callable[[], Row | list[Row]]] = [diagnosis]
