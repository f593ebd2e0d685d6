"""What more workers give: predicted from what one of them does, and corrected by trials.

One worker does not show what many of them share, such as the memory's bandwidth. A trial does: between two numbers of
workers that were tried the correction changes evenly, and beyond the largest nothing more is expected.
"""

import math
from itertools import pairwise

from headrace._measuring.bounds import Bounds, best_number


class Scaling:
    """Outputs in a second, by number of workers.

    >>> from headrace._measuring.bounds import Part
    >>> workers = Part("workers", 1, work_s=0.01, cpu_s=0.01)
    >>> scaling = Scaling(Bounds(0.0, 1e-5, 1e-5, (workers,), output_bytes=8, cores=16))
    >>> [round(scaling.rate(number)) for number in (1, 4, 16, 32)]
    [100, 400, 1598, 1598]
    >>> scaling.learn(16, 400.0)
    >>> [round(scaling.rate(number)) for number in (1, 4, 16, 32)]
    [100, 200, 400, 400]
    >>> scaling.unknown()
    4
    """

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._factors = {1: 1.0}  # of the predictions, by number of workers

    def rate(self, number: int) -> float:
        """How many outputs in a second that many workers give."""
        predicted = self._bounds.with_workers(number)
        known = sorted(self._factors)
        if number > known[-1] > 1:
            return min(predicted, self.rate(known[-1]))
        return predicted * self._factor(number, known)

    def without_trials(self, number: int) -> float:
        """What was predicted before any trial."""
        return self._bounds.with_workers(number)

    def _factor(self, number: int, known: list[int]) -> float:
        for low, high in pairwise(known):
            if low <= number <= high:
                way = math.log(number / low) / math.log(high / low)
                return self._factors[low] ** (1 - way) * self._factors[high] ** way
        return self._factors[known[0]]

    def best(self) -> int:
        """The fewest workers that give about as much as any number of them."""
        return best_number(self.rate, self._bounds.cores)

    def learn(self, number: int, rate: float) -> None:
        """Takes in what a trial gave."""
        self._factors[number] = max(rate, 1e-9) / self._bounds.with_workers(number)

    def unknown(self) -> int | None:
        """A number half way between those that were tried, where most of them have not been."""
        known = sorted(self._factors)
        low, high = max(pairwise(known), key=lambda pair: pair[1] / pair[0], default=(1, 1))
        middle = round(math.sqrt(low * high))
        return None if middle in self._factors else middle
