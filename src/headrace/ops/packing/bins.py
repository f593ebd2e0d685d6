"""Decides which sequence goes into which bin, by lengths alone."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from headrace.ops.packing.layout import Lengths, RowArray


class Bins:
    """One set of bins: takes sequences until one fits nowhere; `contents[bin]` has their numbers."""

    def __init__(self, leaves: Sequence[RowArray], count: int, *, max_sequences: int | None = None):
        self._lengths = tuple(leaf.length for leaf in leaves)
        self._steps = [leaf.alignment for leaf in leaves]
        self._is_aligned = any(step > 1 for step in self._steps)
        self._most = max_sequences
        self._free = [self._lengths] * count if len(leaves) > 1 else None
        self.contents: list[list[int]] = [[] for _ in range(count)]

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        """Puts in the sequences from `first` on; returns the first that fits nowhere, or their count."""
        raise NotImplementedError

    def _taken(self, need: Lengths) -> Lengths:
        """The room that a sequence takes if starts are aligned: up to where the next may begin."""
        return tuple(-(-n // step) * step for n, step in zip(need, self._steps, strict=True))

    def _fits(self, need: Lengths, bin_: int) -> bool:
        assert self._free is not None
        return all(map(int.__le__, need, self._free[bin_]))

    def _fill(self, bin_: int, taken: Lengths) -> Lengths:
        """Takes room from a bin with several leaves; returns what is left, or -1s if no more sequences may follow."""
        assert self._free is not None
        left = tuple(map(int.__sub__, self._free[bin_], taken))
        if len(self.contents[bin_]) == self._most:
            left = (-1,) * len(left)
        self._free[bin_] = left
        return left


class FirstFitBins(Bins):
    """Puts each sequence into the first bin with room.

    `highest[bin]` is the most room that any bin up to this one has in the first leaf. It never falls from bin to bin,
    so bisection finds the first bin with room in that leaf.
    """

    def __init__(self, leaves: Sequence[RowArray], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._rooms = [self._lengths[0]] * count
        self._highest = [self._lengths[0]] * count

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        highest = self._highest
        rooms = self._rooms
        contents = self.contents
        count = len(contents)
        for i in range(first, len(needs)):
            need = needs[i]
            bin_ = bisect_left(highest, need[0])
            if self._free is not None:
                while bin_ < count and not self._fits(need, bin_):
                    bin_ += 1
            if bin_ == count:
                return i
            content = contents[bin_]
            content.append(i)
            taken = self._taken(need) if self._is_aligned else need
            if self._free is not None:
                self._fill(bin_, taken)
            room = rooms[bin_] = -1 if len(content) == self._most else rooms[bin_] - taken[0]
            if bin_ and highest[bin_ - 1] > room:
                room = highest[bin_ - 1]
            while highest[bin_] != room:
                highest[bin_] = room
                bin_ += 1
                if bin_ == count:
                    break
                if rooms[bin_] > room:
                    room = rooms[bin_]
        return len(needs)


class BestFitBins(Bins):
    """Puts each sequence into the fullest bin with room: the one with the least room, summed over the leaves.

    `order` has the number `room * count + bin` for each bin, sorted.
    """

    def __init__(self, leaves: Sequence[RowArray], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._order = [sum(self._lengths) * count + bin_ for bin_ in range(count)]

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        order = self._order
        contents = self.contents
        count = len(contents)
        for i in range(first, len(needs)):
            need = needs[i]
            at = bisect_left(order, (need[0] if self._free is None else sum(need)) * count)
            if self._free is not None:
                while at < count and not self._fits(need, order[at] % count):
                    at += 1
            if at == count:
                return i
            room, bin_ = divmod(order.pop(at), count)
            content = contents[bin_]
            content.append(i)
            taken = self._taken(need) if self._is_aligned else need
            if self._free is not None:
                room = sum(self._fill(bin_, taken))
            else:
                room = -1 if len(content) == self._most else room - taken[0]
            insort(order, room * count + bin_)
        return len(needs)
