"""Which sequences go into which bin, decided from their lengths."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from headrace.packing.layout import Leaf, Lengths


class Bins:
    """The bins of one set, filled with sequences until one fits nowhere; `contents[bin]` has their numbers.

    A bin's room is that of its first leaf, or where it has several leaves, what a kind of bins looks at first.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        self._lengths = tuple(leaf.length for leaf in leaves)
        self._steps = [leaf.alignment for leaf in leaves]
        self._is_aligned = any(step > 1 for step in self._steps)
        self._most = max_sequences
        self._free = [self._lengths] * count if len(leaves) > 1 else None
        self.contents: list[list[int]] = [[] for _ in range(count)]

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        """Puts in sequences from number `first` on; gives the number of the first that fits nowhere, or their count."""
        raise NotImplementedError

    def _taken(self, need: Lengths) -> Lengths:
        """The room that a sequence takes where starts are aligned: up to where the next may begin."""
        return tuple(-(-n // step) * step for n, step in zip(need, self._steps, strict=True))

    def _fits(self, need: Lengths, bin_: int) -> bool:
        assert self._free is not None
        return all(map(int.__le__, need, self._free[bin_]))

    def _fill(self, bin_: int, taken: Lengths) -> Lengths:
        """The room that a bin of several leaves has left; none where no other sequence may come."""
        assert self._free is not None
        left = tuple(map(int.__sub__, self._free[bin_], taken))
        if len(self.contents[bin_]) == self._most:
            left = (-1,) * len(left)
        self._free[bin_] = left
        return left


class FirstFitBins(Bins):
    """Bins of which the first with room is taken.

    `highest[bin]` is the most room that any bin up to this one has in the first leaf: it never falls, so the first
    bin with room in that leaf is found by bisection.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._rooms = [self._lengths[0]] * count
        self._highest = [self._lengths[0]] * count

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        highest, rooms, contents = self._highest, self._rooms, self.contents
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
    """Bins of which the fullest with room is taken: the one with the least room, summed over the leaves.

    `order` has a number for each bin, by its room and then by itself.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._order = [sum(self._lengths) * count + bin_ for bin_ in range(count)]

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        order, contents = self._order, self.contents
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
