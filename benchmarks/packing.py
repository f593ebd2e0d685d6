"""Packing sequences of 16 to 512 tokens into rows of 2,048, against Grain."""

from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side

LENGTHS = {"tokens": 2048}
NUM_BINS = 64


def _sequences() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"tokens": rng.integers(1, 50_000, n, np.int32)} for n in rng.integers(16, 513, 20_000)]


def _row(work: str, name: str, **options: Any) -> Row:
    """Times per token of rows that are nearly full."""
    import grain

    sequences = _sequences()

    def ours() -> Any:
        ds = hr.MapDataset.source(sequences).to_iter_dataset()
        return getattr(hr.experimental, name)(ds, length_struct=LENGTHS, **options)

    def theirs() -> Any:
        # Threads make it slower.
        ds = grain.MapDataset.source(sequences).to_iter_dataset(
            grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        )
        return getattr(grain.experimental, name)(ds, length_struct=LENGTHS, **options)

    fast, slow = side_by_side(
        lambda: seconds_per_element(ours, 2000, LENGTHS["tokens"]),
        lambda: seconds_per_element(theirs, 150, LENGTHS["tokens"]),
    )
    million = 1e6  # tokens
    return faster_than(f"{work} into rows of 2,048, a million tokens", "Grain", 20, fast * million, slow * million)


def first_fit() -> Row:
    return _row("first fit", "FirstFitPackIterDataset", num_packing_bins=NUM_BINS)


def best_fit() -> Row:
    return _row("best fit", "BestFitPackIterDataset", num_packing_bins=NUM_BINS)


def concat_then_split() -> Row:
    return _row("concat then split", "ConcatThenSplitIterDataset")


ROWS: list[Callable[[], Row | list[Row]]] = [first_fit, best_fit, concat_then_split]
