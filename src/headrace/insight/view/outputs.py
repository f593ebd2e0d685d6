"""Outputs of streams with their positions, computed here: without threads, workers and buffers."""

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from headrace.engine.bad_records import BadRecords
from headrace.engine.plan import Plan
from headrace.errors import PipelineError, StateError, format_error
from headrace.errors.signals import in_pipeline
from headrace.ops.buffer import ToStream
from headrace.ops.inline import InlineExecutor
from headrace.ops.next_index import position_at
from headrace.ops.op import Op
from headrace.ops.order import Options
from headrace.ops.origins import index_in
from headrace.ops.streams import Context, Position, open_stream
from headrace.options import DatasetOptions, ErrorPolicy

SEARCH_S = 20.0
LONGEST_RUN = 256
QUICK_S = 0.005  # a run that takes longer is long enough
MOST_KNOWN = 1000  # places of a stream


@dataclass(frozen=True)
class Output:
    """An output of a stream, and the positions before and after it."""

    element: Any
    before: Position
    after: Position


class _NobodyWatches:
    def count(self, seen: int, kept: int) -> None:
        """Filters may drop what they like."""


class Streams:
    """Opens the streams of one pipeline; what its `on_error` skips is skipped here too, but not listed."""

    def __init__(self, op: Op):
        policy = Plan(op).options.on_error
        quiet = DatasetOptions(on_error=ErrorPolicy(policy.action, None, None, None))
        self._plan = Plan(Options(op, quiet))

    def outputs(self, op: Op, position: Position, longest_run: int = 1) -> Iterator[Output]:
        """The outputs of an operation from a position on, made in runs that become longer while they are quick."""
        context = Context(
            executor=lambda _: InlineExecutor(),
            watch=lambda _: _NobodyWatches(),
            guard=BadRecords(self._plan).guard(),
        )
        stream = open_stream(op, position, context)
        run = 1
        try:
            begin = time.monotonic()
            while (made := in_pipeline(stream.pull, run)) is not None:
                run = min(2 * run, longest_run) if time.monotonic() - begin < QUICK_S else run
                for i, row in enumerate(made.block.own_rows()):
                    yield Output(row, made.at(i), made.at(i + 1))
                begin = time.monotonic()
        finally:
            stream.close()
            context.close()

    def between(self, op: Op, first: Position, last: Position, most: int | None = None) -> list[Output]:
        """The outputs of an operation between two positions, or as many as are asked for."""
        found = []
        for output in self.outputs(op, first):
            found.append(output)
            if output.after == last or len(found) == most:
                break
        return found


class Finder:
    """Finds an output of a stream by its number, from the nearest place that it knows."""

    def __init__(self, op: Op, streams: Streams):
        self._op = op
        self._streams = streams
        self._known: list[tuple[int, Position]] = [(0, None)]  # how many outputs have come, and the position then
        self._lock = threading.Lock()

    def remember(self, count: int, position: Position) -> None:
        """Notes the position after so many outputs."""
        with self._lock:
            place = bisect_right(self._known, count, key=itemgetter(0))
            if self._known[place - 1][0] != count:
                self._known.insert(place, (count, position))
            if len(self._known) > MOST_KNOWN:
                del self._known[1::2]

    def find(self, number: int) -> Output:
        """The output with this number, from 0 on; where its number determines its position, its error if it has one."""
        position = self._position_of(number)
        if position is not None:
            for output in self._streams.outputs(self._op, position):
                return output
        try:
            return self._walk_to(number)
        except PipelineError:
            raise
        except Exception as e:
            raise PipelineError(f"Could not reach element {number:,}: {format_error(e)}") from e

    def _walk_to(self, number: int) -> Output:
        with self._lock:
            first, position = self._known[bisect_right(self._known, number, key=itemgetter(0)) - 1]
        count = first
        end = time.monotonic() + SEARCH_S
        for output in self._streams.outputs(self._op, position, LONGEST_RUN):
            if count == number:
                return output
            count += 1
            is_late = time.monotonic() > end
            if is_late or count % LONGEST_RUN == 0:
                self.remember(count, output.after)
            if is_late:
                raise PipelineError(
                    f"Element {number:,} is too far away: in {SEARCH_S:.0f} s, the search got from element {first:,} "
                    f"to {count:,}. Ask again to continue from there."
                )
        raise PipelineError(f"There is no element {number:,}: the pipeline has {count:,}.")

    def index_of(self, number: int) -> tuple[Op, int] | None:
        """The random-access chain below and the index there, where the number of an output determines them."""
        position = self._position_of(number)
        found = None if position is None else index_in(self._op, position)
        return None if found is None else (found[0].parents[0], found[1])

    def _position_of(self, number: int) -> Position | None:
        """The position before an output, where its number determines it: the stream must have no holes."""
        base = self._op
        while not isinstance(base, ToStream):
            if len(base.parents) != 1:
                return None
            (base,) = base.parents
        try:
            return None if base.parent.is_sparse else position_at(self._op, number)
        except StateError:
            return None
