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


def _rows(work: str, name: str, floor: float = 10, **options: Any) -> list[Row]:
    """Times of a million tokens in rows that are nearly full."""
    import grain

    sequences = _sequences()

    def packed(lib: Any, read_options: Any = None) -> Callable[[], Any]:
        ds = lib.MapDataset.source(sequences).repeat().to_iter_dataset(*([read_options] if read_options else []))
        return lambda: getattr(lib.experimental, name)(ds, length_struct=LENGTHS, **options)

    inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    ours, theirs, without_threads = side_by_side(
        lambda: _round(packed(hr), 150),
        lambda: _round(packed(grain), 2),
        lambda: _round(packed(grain, inline), 3),
    )
    return [
        faster_than(f"{work}: 16 to 512 tokens into rows of 2,048, a million tokens", "Grain", 20, ours, theirs),
        faster_than("the same", "Grain without its threads", floor, ours, without_threads),
    ]


def _round(make: Callable[[], Any], num_sets: int) -> float:
    """Seconds for a million tokens, over whole sets of bins: the rows of a set come all at once."""
    return seconds_per_element(make, num_sets * NUM_BINS, LENGTHS["tokens"], warm_up=NUM_BINS) * 1e6


def first_fit() -> list[Row]:
    return _rows("first fit", "FirstFitPackIterDataset", num_packing_bins=NUM_BINS)


def best_fit() -> list[Row]:
    return _rows("best fit", "BestFitPackIterDataset", num_packing_bins=NUM_BINS)


def concat_then_split() -> list[Row]:
    return _rows("concat then split", "ConcatThenSplitIterDataset", floor=20)


ROWS: list[Callable[[], Row | list[Row]]] = [first_fit, best_fit, concat_then_split]
