"""Streams of `operations.py`: they assign sequences to rows by their lengths, and write many rows at once.

A position is (the operation's number, rows taken of the group, parent's at the group's start). When packing into bins,
a group is a set of bins, and its number counts the rows before it. When concatenating, a group is a row with the
sequences set aside in it, and its number says how much of the first sequence earlier rows have.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, cast

import numpy as np

from headrace.errors import PipelineError, StateError
from headrace.ops.blocks import Block, Columns, Rows, concat
from headrace.ops.packing.concat_split import Segment
from headrace.ops.packing.intake import Intake, naming_operation
from headrace.ops.packing.layout import RowArray
from headrace.ops.packing.packers import ConcatThenSplit, FirstFitPack, Packer
from headrace.ops.packing.rows import Column, Written, write, write_end_to_end
from headrace.ops.recorder import StageRecord
from headrace.ops.streams.stream import Context, Position, Run, Stream, UnaryStream, open_stream, start_at

SURELY = 4  # the lengths of a few sequences say little: at most this many times as many are expected in all
BLOCK_CELLS = 1 << 19  # rows are written together up to about this many tokens


class PackedGroup(NamedTuple):
    """The rows of one group, and where the next begins: its number and its first sequence."""

    rows: Sequence[Sequence[Segment]]
    number: Any
    stop: int


class SequencesPerRow(dict[str, float]):
    """About how many sequences a row has, by the line of the user's code that packs: its lanes have about as many."""


class PackStream(UnaryStream):
    """Makes rows, several groups at a time."""

    def __init__(
        self, op: Packer, record: StageRecord, known: SequencesPerRow, number: Any, taken: int, parent: Stream
    ):
        super().__init__((number, taken, parent.position), parent)
        self._packer = op
        self._layout = op.layout()
        self._record = record
        self._intake = Intake(op, self._layout, parent, record)
        self._number: Any = number
        self._taken = taken
        self._known = known
        self._block: Block | None = None
        self._ends: Sequence[int] = []  # of groups, as rows of the block
        self._head: Callable[[int], tuple[Any, Position]] = lambda group: (number, parent.position)

    def pull(self, n: int) -> Run | None:
        if self._block is None:
            begin = time.perf_counter()
            read_s = self._intake.read_s
            if not self._make(max(n, 1), single_step=n == 0):
                return None
            assert self._block is not None
            self._record.add(self._block, time.perf_counter() - begin - (self._intake.read_s - read_s))
            if self._taken > self._ends[0]:
                raise StateError(
                    f"The state has taken_of_group={self._taken}, but the rows of {self._packer.label()} come in "
                    f"a group of {self._ends[0]} there: the state is damaged, or belongs to another pipeline."
                )
        block = self._block
        ends = self._ends
        head = self._head
        first = self._taken
        assert block is not None
        stop = min(first + max(n, 1), len(block))
        self._taken = stop
        if stop == len(block):
            self._block = None
            self._taken = 0

        def after(j: int) -> Position:
            group = bisect_left(ends, first + j)
            if ends[group] == first + j:
                number, start = head(group + 1)
                return number, 0, start
            number, start = head(group)
            return number, first + j - (ends[group - 1] if group else 0), start

        return self._run(block.cut(first, stop), after)

    def _make(self, n: int, *, single_step: bool) -> bool:
        """Makes groups until they have about `n` rows; false at the end."""
        groups = []
        num_rows = 0
        most = max(1, BLOCK_CELLS // sum(leaf.length for leaf in self._layout.leaves))
        numbers = [self._number]
        starts = [0]
        ends = []
        first = 0
        while num_rows < min(n, most):
            group = self._next_group(first, min(n, most) - num_rows, single_step=single_step)
            if group is None:
                break
            groups.append(group)
            num_rows += len(group.rows)
            first = group.stop
            self._number = group.number
            ends.append(num_rows)
            numbers.append(group.number)
            starts.append(first)
        if not groups:
            return False
        self._known[self._packer.site] = first / num_rows
        self._set(self._written(groups), ends, numbers, starts)
        return True

    def _set(self, block: Block, ends: Sequence[int], numbers: Sequence[Any], starts: Sequence[int]) -> None:
        """Keeps rows that are ready, with the numbers and first sequences of their groups and of the next one."""
        at = self._intake.positions()
        self._block = block
        self._ends = ends
        self._head = lambda group: (numbers[group], at(starts[group]))
        self._intake.drop(starts[-1])

    def _next_group(self, first: int, num_rows: int, *, single_step: bool) -> PackedGroup | None:
        """The group that begins at a sequence; at least `num_rows` rows will be needed."""
        raise NotImplementedError

    def _fill(self, put: Callable[[int], int], first: int, num_rows: int, *, single_step: bool) -> int:
        """Puts in sequences until one closes the group, and returns that one; reads as many as it will likely need."""
        intake = self._intake
        stop = first
        while True:
            placed = stop - first
            # If the guess was too low, read a little more each time.
            count = max(self._expected(first, stop, num_rows) - placed, placed // 8, 1)
            if stop == len(intake) and not intake.read(count, single_step=single_step):
                return stop
            stop = put(stop)
            if stop < len(intake):
                return stop

    def _expected(self, first: int, stop: int, num_rows: int) -> int:
        """About how many sequences rows have: as many as other rows, or as the lengths of the first ones suggest."""
        known = self._known.get(self._packer.site)
        placed = stop - first
        if known is not None or not placed:
            return int((known or 1.0) * num_rows)
        sizes = zip(self._layout.leaves, self._intake.sizes, strict=True)
        filled = max(sum(found[first:stop]) / leaf.length for leaf, found in sizes)  # in rows
        return int(min(placed / filled * num_rows if filled else math.inf, SURELY * placed))

    def _written(self, groups: list[PackedGroup]) -> Block:
        with naming_operation(self._packer):
            if self._intake.is_uniform:
                return self._write([row for group in groups for row in group.rows], groups)
            return concat([self._write(group.rows, [group]) for group in groups])

    def _write(self, rows: Sequence[Sequence[Segment]], groups: list[PackedGroup]) -> Block:
        """Rows as a block."""
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        leaves = self._layout.leaves
        intake = self._intake
        written = [
            self._finish(leaf, write(leaf, self._arrays(column, rows, k), sizes, kinds if len(kinds) == 1 else None))
            for k, (leaf, column, kinds) in enumerate(zip(leaves, intake.columns, intake.kinds, strict=True))
        ]
        return self._columns(written, len(rows))

    def _columns(self, written: list[Written], num_rows: int) -> Columns:
        return Columns(self._layout.join_leaves(*zip(*written, strict=True)), num_rows)

    def _arrays(self, column: Column, rows: Sequence[Sequence[Any]], leaf: int) -> Column:
        """The segments of rows, as arrays of one leaf."""
        return list(itemgetter(*chain.from_iterable(rows), -1)(column)[:-1])

    def _finish(self, leaf: RowArray, written: Written) -> Written:
        return written


class BinsStream(PackStream):
    """Packs into sets of bins; the number counts the rows so far."""

    _packer: FirstFitPack

    def _next_group(self, first: int, num_rows: int, *, single_step: bool) -> PackedGroup | None:
        op = self._packer
        bins = self._packer.open_bins(self._layout.leaves)
        num_rows = max(num_rows, op.num_packing_bins)
        stop = self._fill(lambda i: bins.put(self._intake.lengths, i), first, num_rows, single_step=single_step)
        if stop == first:
            return None
        used = [content for content in bins.contents if content]
        grouped = op.shuffle_bins and op.shuffle_bins_group_by_feature
        order = range(len(used)) if grouped else op.order(len(used), self._number).tolist()
        return PackedGroup([used[k] for k in order], self._number + len(used), stop)

    def _write(self, rows: Sequence[Sequence[Segment]], groups: list[PackedGroup]) -> Block:
        block = super()._write(rows, groups)
        for key, values in self._intake.listed.items():
            lists = [[values[i] for i in row] for row in cast(list[list[int]], rows)]
            block = Rows([{**row, key: listed} for row, listed in zip(block.rows(), lists, strict=True)], owned=True)
        if not self._packer.shuffle_bins or self._packer.shuffle_bins_group_by_feature is None:
            return block
        keys = _group_keys(block.rows(), self._packer.shuffle_bins_group_by_feature)
        order = []
        first = 0
        for group in groups:
            size = len(group.rows)
            ties = self._packer.order(size, group.number - size)
            order.append(first + np.lexsort([ties, keys[first : first + size]]))
            first += size
        return block.take(np.concatenate(order))


def _group_keys(rows: list[Any], feature: str) -> np.ndarray:
    """For each row the mean of the different values of a feature, except 0."""
    try:
        values = [row[feature] for row in rows]  # arrays, or lists of one value for each sequence
        flat = [np.concatenate(list(map(np.ravel, v))) if isinstance(v, list) else np.ravel(v) for v in values]
        found = list(map(np.unique, flat))
        sums = np.array([values.sum() for values in found], np.float64)
    except (TypeError, ValueError) as e:
        raise PipelineError(f"shuffle_bins_group_by_feature={feature!r} needs a feature of numbers: {e}") from e
    return sums / np.maximum(1, [np.count_nonzero(values) for values in found])


class SplitStream(PackStream):
    """Concatenates and splits; the number is 0, or how much of each leaf of the next sequence earlier rows have.

    If rows have one length in all leaves, and every sequence does, it cuts many rows at once.
    """

    _packer: ConcatThenSplit

    def __init__(self, op: ConcatThenSplit, record: StageRecord, known: SequencesPerRow, *at: Any):
        super().__init__(op, record, known, *at)
        self._buffer = op.token_buffer()
        leaves = self._layout.leaves
        one_length = len({leaf.length for leaf in leaves}) == 1 and not any(leaf.is_meta for leaf in leaves)
        self._even = one_length and op.split_full_length_features
        self._to_check = bool(self._number)
        self._num_read = self._num_tokens = 0  # of all sequences so far, by which the next reads are estimated

    def _next_group(self, first: int, num_rows: int, *, single_step: bool) -> PackedGroup | None:
        buffer = self._buffer
        taken = tuple(self._number) if self._number else None

        def put(_: int) -> int:
            buffer.append(self._intake.lengths[len(buffer) :])
            return buffer.closing(first, taken)

        stop = self._fill(put, first, num_rows, single_step=single_step)
        if stop == first == len(buffer):
            return None
        rows, left = buffer.cut(first, stop, taken)
        return PackedGroup(rows, left or 0, stop)

    def _make(self, n: int, *, single_step: bool) -> bool:
        if self._to_check:
            self._check_taken(single_step=single_step)
            self._to_check = False
        ahead = 0
        if self._even:
            num_rows = 1 if single_step else min(n, max(1, BLOCK_CELLS // self._layout.leaves[0].length))
            # Empty segments that follow a full row belong to it, so one more token must be known, except at the end.
            ahead = int(self._packer.empty_sequences == "keep")
            if not self._read_tokens(num_rows * self._layout.leaves[0].length + ahead, single_step=single_step):
                ahead = 0
            self._even = self._intake.is_even and self._intake.is_uniform and not self._intake.has_empty
        if self._even:
            with naming_operation(self._packer):
                return self._cut_evenly(ahead)
        made = super()._make(n, single_step=single_step)
        self._buffer.drop(len(self._buffer) - len(self._intake))
        return made

    def _check_taken(self, *, single_step: bool) -> None:
        """Raises unless the first sequence is as long as the state says was taken of it."""
        while not len(self._intake) and self._intake.read(1, single_step=single_step):
            pass  # all of what was read is empty
        lengths = self._intake.lengths[0] if len(self._intake) else (0,) * len(self._layout.leaves)
        if any(map(int.__gt__, self._number, lengths)):
            raise StateError(
                f"The state has tokens_taken={list(self._number)}, but the sequence there has {list(lengths)} "
                f"in {self._packer.label()}: the state is damaged, or belongs to another pipeline."
            )
        self._even = self._even and len(set(self._number)) == 1

    def _read_tokens(self, count: int, *, single_step: bool) -> bool:
        """Reads until `count` tokens are left for rows, or to the end: then it is false."""
        intake = self._intake
        there = sum(intake.sizes[0]) - (self._number[0] if self._number else 0)
        while there < count:
            known = len(intake)
            wanted = (count - there) * self._num_read // max(self._num_tokens, 1)
            wanted += wanted // 16 + 1  # or a second read would often follow
            if not intake.read(min(wanted, 2 * self._num_read + 1), single_step=single_step):
                return False
            new = intake.sizes[0][known:]
            self._num_read, self._num_tokens = self._num_read + len(new), self._num_tokens + sum(new)
            there += sum(new)
        return True

    def _cut_evenly(self, ahead: int) -> bool:
        """Cuts all full rows from what has been read but the last `ahead` tokens, or the last row if none is full."""
        intake = self._intake
        leaves = self._layout.leaves
        length = self._layout.leaves[0].length
        taken = self._number[0] if self._number else 0
        ends = np.cumsum(np.array(intake.sizes[0], np.int64)) - taken
        total = int(ends[-1]) if len(intake) else 0
        num_rows = max((total - ahead) // length, 1)
        stop = min(num_rows * length, total)
        if not stop:
            return False
        begins = np.append(np.arange(num_rows) * length, stop)
        starts = np.searchsorted(ends, begins, side="right")
        into = begins - np.append(-taken, ends)[starts]
        numbers = [(n,) * len(leaves) if n else 0 for n in into.tolist()]
        cuts = np.concatenate([ends[: starts[-1]], begins[1:]])
        cuts.sort(kind="stable")  # which merges two lists in order
        cuts = cuts[np.append(True, cuts[1:] != cuts[:-1])]
        lengths = np.diff(cuts, prepend=0)
        per_row = np.bincount((cuts - 1) // length, minlength=num_rows)
        ends_in = int(starts[-1]), int(into[-1])
        written = [
            self._finish(leaf, write_end_to_end(leaf, _cut_sequences(column, taken, ends_in), lengths, per_row, kinds))
            for leaf, column, kinds in zip(leaves, intake.columns, intake.kinds, strict=True)
        ]
        self._number = numbers[-1]
        self._set(self._columns(written, num_rows), range(1, num_rows + 1), numbers, starts.tolist())
        return True

    def _arrays(self, column: Column, rows: Sequence[Sequence[Segment]], leaf: int) -> Column:
        return [
            column[segment] if isinstance(segment, int) else column[segment[0]][segment[1][leaf] : segment[2][leaf]]
            for row in rows
            for segment in row
        ]

    def _finish(self, leaf: RowArray, written: Written) -> Written:
        op = self._packer
        if leaf.name in op.bos_features:
            flat = written.values.reshape(-1, *written.values.shape[2:])
            starts = np.flatnonzero((written.positions == 0) & (written.segment_ids != 0))
            try:
                flat[starts] = op.bos_token_id
            except (OverflowError, ValueError) as e:
                raise PipelineError(
                    f"bos_token_id does not fit into the feature {leaf.name!r} of {flat.dtype}: {e}."
                ) from e
        return written


def _cut_sequences(column: Column, first: int, end: tuple[int, int]) -> Column:
    """Sequences from token `first` of the first one up to a token of another one."""
    last, stop = end
    found = column[:last] + ([column[last][:stop]] if stop else [])
    return [found[0][first:], *found[1:]]


def open_packer(op: Packer, position: Position, context: Context) -> Stream:
    """The stream of a packer."""
    number, taken, inner = start_at(op, position)
    kind: Any = SplitStream if isinstance(op, ConcatThenSplit) else BinsStream
    record = context.record(op, "consumer")
    known = context.kept.of(SequencesPerRow)
    return kind(op, record, known, number, taken, open_stream(op.parent, inner, context))
