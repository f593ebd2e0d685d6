"""Lengths of sequences before an operation that pads or packs them, and how much of its rows is padding."""

from dataclasses import dataclass

import numpy as np

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
