"""The stream of `ops/weighed_mix.py`: which part comes next depends on the sizes of the elements before."""

import operator
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.calls import blame
from headrace.ops.streams.combined_streams import MixStream, open_parts
from headrace.ops.streams.stream import (
    At,
    Context,
    Feed,
    Position,
    Stream,
    places_base,
    start_at,
    stream_of,
    where_after,
)
from headrace.ops.weighed_mix import MOST, UNIT, WeighedMix

NEVER = np.iinfo(np.int64).min


class WeighedMixStream(MixStream):
    """A mix by size; its numbers are the count of elements, their size in all, and the lags."""

    _op: WeighedMix

    def __init__(self, op: WeighedMix, numbers: tuple[Any, ...], feeds: list[Feed]):
        super().__init__(op, numbers, feeds)
        self._sizes: defaultdict[int, deque[int]] = defaultdict(deque)  # of elements that were read, by part

    def _due(self, n: int, *, single_step: bool) -> tuple[np.ndarray, At]:
        op, (count, total, before) = self._op, self.position[:3]
        which = list[int]()
        sizes = list[int]()
        taken = Counter[int]()
        spans = _Spans()
        units = np.zeros(len(before), np.int64)
        due = np.array(
            before
        )  # the lags, and one unit more of each share, so that the largest is first if all lags are 0
        while len(which) < n:
            now = op.units(op.step(count + len(which), total))
            if now is not units:
                due += now - units
                units = now
                spans.begin(len(which), now)
            part = int((due if spans.all_have_weights else np.where(units, due, NEVER)).argmax())
            if not self._sizes[part]:
                share = (n - len(which)) * int(units[part]) // UNIT
                if not self._read(part, taken[part], max(share, 1), single_step=single_step):
                    break
            size = self._sizes[part].popleft()
            due += units * size
            due[part] -= UNIT * size
            which.append(part)
            sizes.append(size)
            taken[part] += 1
            total += size
        return np.array(which, np.intp), self._numbers(np.array(which, np.intp), np.array(sizes, np.int64), spans)

    def _numbers(self, which: np.ndarray, sizes: np.ndarray, spans: "_Spans") -> At:
        """The numbers of the position after `j` elements of a run."""
        count, total, before = self.position[:3]

        def after(j: int) -> tuple[Any, ...]:
            lags = np.array(before)
            for first, stop, units in spans.before(j):
                lags += units * sizes[first:stop].sum()
            np.subtract.at(lags, which[:j], UNIT * sizes[:j])
            return count + j, total + int(sizes[:j].sum()), tuple(lags.tolist())

        return after

    def _read(self, part: int, taken: int, more: int, *, single_step: bool) -> bool:
        """Reads elements of a part, of which a run has taken some, and notes their sizes; false at the part's end."""
        feed = self._feeds[part]
        size_of = self._op.size_of
        feed.fill(taken + more, single_step=single_step)
        rows = feed.rows_from(taken)
        left = iter(rows)
        try:
            sizes = [size_of(element) for element in left]
        except Exception as e:
            self._blame(e, part, feed.positions()(feed.size - operator.length_hint(left)))
            raise
        if max(sizes, default=0) * len(self._feeds) > MOST:
            raise PipelineError(
                f"{self._op.label()} (pipeline at {self._op.site}) got an element of size {max(sizes)}; with "
                f"{len(self._feeds)} parts, the most is {MOST // len(self._feeds)}. Let weigh_by count in larger units."
            )
        self._sizes[part] += sizes
        return bool(rows)

    def _blame(self, error: Exception, part: int, position: Position) -> None:
        op = self._op
        element = where_after(places_base(op.parts[part]), position)["element"]
        blame(error, op, iter(()), [f"{element} of part {op.names[part] if op.names else part!r}"])


class _Spans:
    """The elements of a run that have the same weights."""

    def __init__(self):
        self._begins: list[tuple[int, np.ndarray]] = []
        self.all_have_weights = True

    def begin(self, j: int, units: np.ndarray) -> None:
        """Notes that these are the weights from element `j` on."""
        self._begins.append((j, units))
        self.all_have_weights = bool(units.all())

    def before(self, stop: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """The spans before an element: their first element, the one after their last, and the weights."""
        ends = [first for first, _ in self._begins[1:]] + [stop]
        for (first, units), end in zip(self._begins, ends, strict=True):
            if first < stop:
                yield first, min(end, stop), units


@stream_of.register
def _(op: WeighedMix, position: Position, context: Context) -> Stream:
    *numbers, positions = start_at(op, position)
    return WeighedMixStream(op, tuple(numbers), open_parts(op.parts, positions, context, op.due_parts))
