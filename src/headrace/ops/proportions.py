"""Which part each output of a mix comes from, and which element of that part it is.

Parts take their outputs one part after the other. In each period, a part of proportion `p` that finds `rest` outputs
left takes number `j * rest // p` as its element `j`; the remaining outputs are renumbered for the next part. So placing
one output means walking over the parts, consecutive outputs stay consecutive on the way, and equal parts alternate.
"""

from collections.abc import Sequence
from math import gcd, inf

import numpy as np

from headrace.ops.op import ENDLESS

BLOCK = 1 << 12  # outputs computed at once
KEPT_TOTAL = 1 << 16  # a period up to this length is cached whole
KEPT_BLOCKS = 4  # a longer period is cached in at most this many blocks
FEW = 8  # with many parts, up to this many outputs are cheaper one by one than as a block
MANY_PARTS = 64  # at least this many parts are many
MOST_ALONE = 16  # after this many times, a block is computed even for a few outputs


class Shares:
    """The schedule of a mix; its period is the sum of the proportions in lowest terms.

    Parts of proportion 0 take no outputs: the others are placed as if these were not there.
    """

    def __init__(self, proportions: Sequence[int]):
        divisor = gcd(*proportions)
        self._proportions = [p // divisor for p in proportions]
        self._counts = [p for p in self._proportions if p]
        self._part_of = np.flatnonzero(self._proportions)
        self._period = sum(self._counts)
        self._count_of = np.array(self._counts)
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._alone: dict[int, int] = {}  # by block: how many times its outputs were computed one by one

    def __reduce__(self):
        return Shares, (self._proportions,)

    def __call__(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The part of each output, and the number of its element there."""
        which, inner = self._place(idx)
        return (which if len(self._counts) == len(self._proportions) else self._part_of[which]), inner

    def _place(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same, with parts counted without those of proportion 0."""
        if self._period > ENDLESS:  # the first period never ends
            return self._within_period(idx)
        cycles, rest = np.divmod(idx, self._period)
        if self._period == len(self._counts):
            return rest, cycles
        which, inner = self._within_period(rest)
        return which, inner + cycles * self._count_of[which]

    def num_outputs(self, counts: Sequence[float]) -> float:
        """How many outputs there are before one is due from a part that has no more than so many elements."""
        counts = [count for count, p in zip(counts, self._proportions, strict=True) if p]
        if min(counts) == inf:
            return inf
        cycles = min(count // own for count, own in zip(counts, self._counts, strict=True) if count < inf)
        rest = 0  # walks the parts backwards: outputs that a part finds left, and the earliest one missing
        place = None
        for count, own in zip(reversed(counts), reversed(self._counts), strict=True):
            if place is not None:
                place = -(-(place + 1) * (rest + own) // rest) - 1  # among those that this part finds
            rest += own
            if count < inf and count // own == cycles:
                due = int(count % own) * rest // own
                place = due if place is None else min(place, due)
        assert place is not None
        return int(cycles) * self._period + place

    def _within_period(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._period <= BLOCK and len(self._counts) < MANY_PARTS:
            which, inner = self._block(0)
            return which[k], inner[k]
        if not len(k):
            return np.empty(0, np.intp), np.empty(0, np.int64)
        first = int(k.min()) // BLOCK
        last = int(k.max()) // BLOCK
        if self._is_cheaper_alone(len(k), first):
            pairs = [self._one(output) for output in k.tolist()]
            return np.array([part for part, _ in pairs], np.intp), np.array([number for _, number in pairs], np.int64)
        if first == last:
            which, inner = self._block(first)
            return which[k - first * BLOCK], inner[k - first * BLOCK]
        numbers, place = np.unique(k // BLOCK, return_inverse=True)
        if self._period > KEPT_TOTAL and FEW * len(numbers) > len(k):  # scattered over a long period
            return self._route_scattered(k)
        blocks = [self._block(number) for number in numbers.tolist()]
        # All blocks but the last have the same size.
        places = place * BLOCK + k % BLOCK
        return np.concatenate([which for which, _ in blocks])[places], np.concatenate([i for _, i in blocks])[places]

    def _is_cheaper_alone(self, count: int, block: int) -> bool:
        if count > FEW or block in self._blocks or len(self._counts) < MANY_PARTS:
            return False
        times = self._alone.get(block, 0)
        if len(self._alone) > BLOCK:
            self._alone = {}
        self._alone[block] = times + 1
        return times < MOST_ALONE

    def _block(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        block = self._blocks.get(number)
        if block is None:
            block = self._consecutive(number * BLOCK, min((number + 1) * BLOCK, self._period))
            if self._period > KEPT_TOTAL and len(self._blocks) >= KEPT_BLOCKS:
                self._blocks = {}  # not `clear`: another thread may be using the old dict
            self._blocks[number] = block
        return block

    def _consecutive(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Consecutive outputs: those that each part finds left are consecutive as well."""
        which = np.empty(stop - first, np.intp)
        inner = np.empty(stop - first, np.int64)
        left = np.arange(stop - first)
        rest = self._period
        for part, p in enumerate(self._counts):
            begin = -(-first * p // rest)  # the range of its elements among them
            end = -(-stop * p // rest)
            if begin < end:
                numbers = np.arange(begin, end)
                places = (_exact(numbers, rest * end) * rest // p - first).astype(np.int64)
                here = left[places]
                which[here], inner[here] = part, numbers
                if len(here) == len(left):
                    break
                keep = np.ones(len(left), bool)
                keep[places] = False
                left = left[keep]
            first = first - begin
            stop = stop - end
            rest = rest - p
        return which, inner

    def _route_scattered(self, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Outputs in any order: those that a part takes are dropped before the next part."""
        which = np.empty(len(k), np.intp)
        inner = np.empty(len(k), np.int64)
        left = np.arange(len(k))
        rest = self._period
        k = _exact(k, self._period**2)
        for part, p in enumerate(self._counts):
            after = k * (rest - p) // rest
            mine = after == (k + 1) * (rest - p) // rest
            if mine.any():
                here = left[mine]
                others = ~mine
                which[here], inner[here] = part, (k - after)[mine]
                left = left[others]
                after = after[others]
                if not len(left):
                    break
            k = after
            rest = rest - p
        return which, inner

    def _one(self, k: int) -> tuple[int, int]:
        rest = self._period
        for part, p in enumerate(self._counts):
            left = rest - p
            after = k * left // rest
            if (k + 1) * left // rest == after:
                return part, k - after
            k = after
            rest = left
        raise AssertionError("the last part takes what is left")


def _exact(values: np.ndarray, largest: int) -> np.ndarray:
    """Ints of a dtype in which products up to `largest` are exact."""
    return values if largest < 1 << 63 else values.astype(object)
