"""Streams of `_ops/pack.py`: sequences go into rows by their lengths, and the rows of many are written at once.

A position is (the operation's number, rows taken of the group, parent's at the group's start). The group of a packer
into bins is a set of bins, and its number how many rows came before. The group of a concat-then-split is a row with
the sequences set aside for it, and its number says how much of the first sequence came in rows before.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np

from headrace._ops.pack import ConcatThenSplit, FirstFitPack, Layout, Leaf, Lengths, Packer, Piece
from headrace._plan.blocks import Block, Columns, Rows, concat
from headrace._plan.kernels import add_note
from headrace._plan.streams.base import At, Context, Feed, Position, Run, Stream, Unary, open_stream, stream_of
from headrace.errors import PipelineError, StructureError

BLOCK_CELLS = 1 << 18  # rows are written together up to about this many tokens

Column = list[np.ndarray]


# ------------------------------------------------------------------------------------------------- writing


class Written(NamedTuple):
    """One leaf of some rows: arrays with a leading axis of rows."""

    values: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray


def columns_of(layout: Layout, elements: Sequence[Any]) -> list[Column]:
    """The leaves of elements, each as a list of arrays with a length."""
    if layout.is_flat:
        with contextlib.suppress(KeyError, TypeError, IndexError):  # taking elements apart will tell which
            return [_as_arrays([element[key] for element in elements]) for key in layout.keys]
    return [_as_arrays(column) for column in zip(*map(layout.take_apart, elements), strict=True)]


def _as_arrays(column: Sequence[Any]) -> Column:
    if set(map(type, column)) == {np.ndarray} and min(map(attrgetter("ndim"), column)):
        return list(column)
    return [np.atleast_1d(np.asarray(value)) for value in column]


def write(leaf: Leaf, pieces: Column, sizes: np.ndarray) -> Written:
    """Rows of one leaf: `sizes[k]` pieces make row `k`."""
    num_rows, cells = len(sizes), len(sizes) * leaf.length
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    first = np.cumsum(sizes) - sizes  # the first piece of each row
    row = np.repeat(np.arange(num_rows), sizes)
    steps = lengths if leaf.alignment == 1 else -(-lengths // leaf.alignment) * leaf.alignment
    before = np.append(0, np.cumsum(steps))
    starts = before[:-1] - before[first][row] + row * leaf.length
    # Padding and pieces in turn, beginning with the padding before the first piece.
    spans = np.empty(2 * len(pieces) + 1, np.int64)
    spans[1::2] = lengths
    spans[0::2] = np.append(starts, cells) - np.append(0, starts + lengths)
    ids = np.zeros(len(spans), np.int32)
    ids[1::2] = np.arange(1, len(pieces) + 1) - first[row]
    begins = np.zeros(len(spans), np.int32)
    begins[1::2] = starts
    segment_ids = np.repeat(ids, spans)
    positions = np.arange(cells, dtype=np.int32)
    positions -= np.repeat(begins, spans)
    positions *= segment_ids != 0
    shape = (num_rows, leaf.length)
    values = _fill(leaf, pieces, spans[0::2].tolist(), num_rows)
    return Written(values, segment_ids.reshape(shape), positions.reshape(shape))


def _fill(leaf: Leaf, pieces: Column, gaps: list[int], num_rows: int) -> np.ndarray:
    dtype, tail = _kind(leaf, pieces)
    padding = np.zeros((max(gaps), *tail), dtype)
    if leaf.padding is not None:
        padding[...] = leaf.padding
    parts = [padding[: gaps[0]]]
    for piece, gap in zip(pieces, gaps[1:], strict=True):
        parts.append(piece)
        if gap:
            parts.append(padding[:gap])
    values = np.empty((num_rows, leaf.length, *tail), dtype)
    np.concatenate(parts, out=values.reshape(num_rows * leaf.length, *tail), casting="same_kind")
    return values


def _kind(leaf: Leaf, pieces: Column) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and further axes of a leaf's rows: those of the first piece, which the others have to fit."""
    first = pieces[0]
    for dtype, tail in kinds_of(pieces):
        if tail != first.shape[1:] or not np.can_cast(dtype, first.dtype, "same_kind"):
            raise StructureError(
                f"Cannot pack sequences of different kinds into one set of rows: the feature {leaf.name!r} has "
                f"{first.dtype} with further axes {first.shape[1:]} in one, and {dtype} with {tail} in another. "
                "Give them one dtype and shape in a `map` before."
            )
    if first.dtype.kind in "SU":  # or longer strings would be cut
        return np.result_type(*{piece.dtype for piece in pieces}), first.shape[1:]
    return first.dtype, first.shape[1:]


def kinds_of(column: Column) -> set[tuple[np.dtype, tuple[int, ...]]]:
    """The dtypes and further axes that arrays have."""
    dtypes = set(map(attrgetter("dtype"), column))
    if len(dtypes) == 1 and set(map(attrgetter("ndim"), column)) == {1}:
        return {(dtypes.pop(), ())}
    return {(array.dtype, array.shape[1:]) for array in column}


# ------------------------------------------------------------------------------------------------- reading


class Intake:
    """Sequences that have been read and are not used up: `columns[leaf][i]`, `lengths[i][leaf]`."""

    def __init__(self, op: Packer, layout: Layout, stream: Stream):
        self._op, self._layout, self._feed = op, layout, Feed(stream)
        self.columns: list[Column] = [[] for _ in layout.leaves]
        self.lengths: list[Lengths] = []
        self.listed: dict[str, list[Any]] = {key: [] for key in op.listed_features}
        self._kinds: list[set[Any]] = [set() for _ in layout.leaves]
        self._runs: list[tuple[int, int, At]] = []  # of each: the numbers of its first sequence and of the one after

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def is_uniform(self) -> bool:
        """Whether each leaf of all sequences has one dtype and shape."""
        return all(len(kinds) == 1 for kinds in self._kinds)

    def read(self, count: int, *, careful: bool) -> bool:
        """Reads about `count` sequences more; false at the end."""
        self._feed.fill(1 if careful else count, careful=careful)
        at, size = self._feed.positions(), self._feed.size
        if not size:
            return False
        block = self._feed.take(size)
        elements = block.own_rows() if self.listed else block.rows()
        try:
            self._take_in(elements)
        except Exception as e:
            add_note(e, f"in {self._op.label()} (pipeline at {self._op.site})")
            raise
        self._runs.append((len(self) - size, len(self), at))
        return True

    def _take_in(self, elements: list[Any]) -> None:
        columns = columns_of(self._layout, elements)
        if isinstance(self._op, ConcatThenSplit):
            check_features(self._layout, elements)
        lengths = [list(map(len, column)) for column in columns]
        check_lengths(self._layout.leaves, lengths, split=isinstance(self._op, ConcatThenSplit))
        for key, values in self.listed.items():
            values += [_meta_value(element, key) for element in elements]
        for column, kinds, new in zip(self.columns, self._kinds, columns, strict=True):
            column += new
            kinds |= kinds_of(new)
        self.lengths += zip(*lengths, strict=True)

    def position(self, i: int) -> Position:
        """The parent's position before sequence `i`."""
        for first, stop, at in self._runs:
            if i <= stop:
                return at(i - first)
        return self._feed.stream.position

    def drop(self, count: int) -> None:
        """Forgets the first sequences."""
        for values in (*self.columns, *self.listed.values(), self.lengths):
            del values[:count]
        self._runs = [(first - count, stop - count, at) for first, stop, at in self._runs if stop > count]
        if not len(self):
            self._kinds = [set() for _ in self._kinds]


def check_features(layout: Layout, elements: Sequence[Any]) -> None:
    """Raises where elements have features that rows would not have."""
    for element in elements:
        if len(element) != len(layout.keys):
            raise StructureError(
                f"An element has the features {sorted(map(str, element))}, and length_struct has {layout.keys}: every "
                "feature of an element needs a length. Give it one, or leave the feature out in a `map` before."
            )


def check_lengths(leaves: Sequence[Leaf], lengths: Sequence[Sequence[int]], *, split: bool) -> None:
    """Raises where a sequence is longer than a row; where sequences are split, only meta features may not be."""
    for leaf, found in zip(leaves, lengths, strict=True):
        if max(found) > leaf.length and (leaf.is_meta or not split):
            raise PipelineError(
                f"A sequence of length {max(found)} does not fit into a row: the feature {leaf.name!r} has length "
                f"{leaf.length} in length_struct. Cut it to that length in a `map` before, or give the feature more."
            )


def _meta_value(element: Any, key: str) -> Any:
    try:
        return element[key]
    except KeyError:
        raise StructureError(
            f"meta_features has {key!r}, and an element has only {sorted(map(str, element))}. Give every element that "
            "feature in a `map` before, or leave it out of meta_features."
        ) from None


# ------------------------------------------------------------------------------------------------- streams


class Group(NamedTuple):
    """The rows of one group, and where the next begins: its number, and the sequence that it begins at."""

    rows: Sequence[Sequence[Piece]]
    number: Any
    stop: int


class PackStream(Unary):
    """Rows, several groups of them at a time."""

    def __init__(self, op: Packer, number: Any, taken: int, parent: Stream):
        super().__init__((number, taken, parent.position), parent)
        self._packer, self._layout = op, op.layout()
        self._intake = Intake(op, self._layout, parent)
        self._number, self._taken = number, taken
        self._per_row = 1.0  # about how many sequences make a row
        self._block: Block | None = None
        self._ends: list[int] = []  # of groups, counted in rows of the block
        self._heads: list[tuple[Any, Position]] = []  # numbers and positions of groups, and of the next

    def pull(self, n: int) -> Run | None:
        if self._block is None and not self._make(max(n, 1), careful=n == 0):
            return None
        block, ends, heads, first = self._block, self._ends, self._heads, self._taken
        assert block is not None
        stop = min(first + max(n, 1), len(block))
        self._taken = stop
        if stop == len(block):
            self._block, self._taken = None, 0

        def after(j: int) -> Position:
            group = bisect_left(ends, first + j)
            if ends[group] == first + j:
                number, start = heads[group + 1]
                return number, 0, start
            number, start = heads[group]
            return number, first + j - (ends[group - 1] if group else 0), start

        return self._run(block.cut(first, stop), after)

    def _make(self, n: int, *, careful: bool) -> bool:
        """Makes groups until they have about `n` rows; false where there is nothing left."""
        intake, groups, num_rows = self._intake, [], 0
        most = max(1, BLOCK_CELLS // sum(leaf.length for leaf in self._layout.leaves))
        heads, ends, first = [(self._number, intake.position(0))], [], 0
        while num_rows < min(n, most):
            group = self._next_group(first, min(n, most) - num_rows, careful=careful)
            if group is None:
                break
            groups.append(group)
            num_rows += len(group.rows)
            first, self._number = group.stop, group.number
            ends.append(num_rows)
            heads.append((group.number, intake.position(first)))
        if not groups:
            return False
        self._per_row = first / num_rows
        self._block, self._ends, self._heads = self._written(groups), ends, heads
        intake.drop(first)
        return True

    def _next_group(self, first: int, num_rows: int, *, careful: bool) -> Group | None:
        """The group that begins at a sequence; at least `num_rows` rows will be needed."""
        raise NotImplementedError

    def _fill(self, put: Callable[[int], int], first: int, num_rows: int, *, careful: bool) -> int:
        """Puts in sequences until one closes the group, whose number it gives; reads what is likely to be needed."""
        intake, stop = self._intake, first
        while True:
            placed = stop - first
            # A little more each time where the guess was not enough.
            count = max(int(self._per_row * num_rows) - placed, placed // 8, 1)
            if stop == len(intake) and not intake.read(count, careful=careful):
                return stop
            stop = put(stop)
            if stop < len(intake):
                return stop

    def _written(self, groups: list[Group]) -> Block:
        try:
            if self._intake.is_uniform:
                return self._write([row for group in groups for row in group.rows], groups)
            return concat([self._write(group.rows, [group]) for group in groups])
        except Exception as e:
            add_note(e, f"in {self._packer.label()} (pipeline at {self._packer.site})")
            raise

    def _write(self, rows: Sequence[Sequence[Piece]], groups: list[Group]) -> Block:
        """Rows of pieces as a block."""
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        leaves = self._layout.leaves
        written = [
            self._finish(leaf, write(leaf, _pieces(column, rows, k), sizes))
            for k, (leaf, column) in enumerate(zip(leaves, self._intake.columns, strict=True))
        ]
        values, segment_ids, positions = zip(*written, strict=True)
        return Columns(self._layout.put_together(values, segment_ids, positions), len(rows))

    def _finish(self, leaf: Leaf, written: Written) -> Written:
        return written


def _pieces(column: Column, rows: Sequence[Sequence[Piece]], leaf: int) -> Column:
    return [
        column[piece] if isinstance(piece, int) else column[piece[0]][piece[1][leaf] : piece[2][leaf]]
        for row in rows
        for piece in row
    ]


class BinsStream(PackStream):
    """Sets of bins; the number is the count of rows so far."""

    _packer: FirstFitPack

    def _next_group(self, first: int, num_rows: int, *, careful: bool) -> Group | None:
        op, bins = self._packer, self._packer.open_bins(self._layout.leaves)
        num_rows = max(num_rows, op.num_packing_bins)
        stop = self._fill(lambda i: bins.put(self._intake.lengths, i), first, num_rows, careful=careful)
        if stop == first:
            return None
        used = [content for content in bins.contents if content]
        grouped = op.shuffle_bins and op.shuffle_bins_group_by_feature
        order = range(len(used)) if grouped else op.order(len(used), self._number).tolist()
        return Group([used[k] for k in order], self._number + len(used), stop)

    def _write(self, rows: Sequence[Sequence[Piece]], groups: list[Group]) -> Block:
        block = super()._write(rows, groups)
        for key, values in self._intake.listed.items():
            lists = [[values[i] for i in row] for row in cast(list[list[int]], rows)]
            block = Rows([{**row, key: listed} for row, listed in zip(block.rows(), lists, strict=True)], owned=True)
        if not self._packer.shuffle_bins or self._packer.shuffle_bins_group_by_feature is None:
            return block
        keys = _group_keys(block.rows(), self._packer.shuffle_bins_group_by_feature)
        order, first = [], 0
        for group in groups:
            size = len(group.rows)
            ties = self._packer.order(size, group.number - size)
            order.append(first + np.lexsort([ties, keys[first : first + size]]))
            first += size
        return block.take(np.concatenate(order))


def _group_keys(rows: list[Any], feature: str) -> np.ndarray:
    """The mean of the values of a feature that each row has, each counted once, and zeros only in the sum."""
    try:
        values = [row[feature] for row in rows]  # arrays, or lists of one value for each sequence
        flat = [np.concatenate(list(map(np.ravel, v))) if isinstance(v, list) else np.ravel(v) for v in values]
        found = list(map(np.unique, flat))
        sums = np.array([values.sum() for values in found], np.float64)
    except (TypeError, ValueError) as e:
        raise PipelineError(f"shuffle_bins_group_by_feature={feature!r} needs a feature of numbers: {e}") from e
    return sums / np.maximum(1, [np.count_nonzero(values) for values in found])


@stream_of.register
def _(op: FirstFitPack, position: Position, context: Context) -> Stream:
    rows, taken, inner = position or (0, 0, None)
    return BinsStream(op, rows, taken, open_stream(op.parent, inner, context))


class SplitStream(PackStream):
    """Rows of a concat-then-split; the number is 0, or how much of each leaf of the next sequence has come."""

    _packer: ConcatThenSplit

    def __init__(self, op: ConcatThenSplit, *at: Any):
        super().__init__(op, *at)
        self._tape = op.tape()

    def _next_group(self, first: int, num_rows: int, *, careful: bool) -> Group | None:
        tape, taken = self._tape, tuple(self._number) if self._number else None

        def put(_: int) -> int:
            tape.append(self._intake.lengths[len(tape) :])
            return tape.closing(first, taken)

        stop = self._fill(put, first, num_rows, careful=careful)
        if stop == first == len(tape):
            return None
        rows, left = tape.cut(first, stop, taken)
        return Group(rows, left or 0, stop)

    def _make(self, n: int, *, careful: bool) -> bool:
        made = super()._make(n, careful=careful)
        self._tape.drop(len(self._tape) - len(self._intake))
        return made

    def _finish(self, leaf: Leaf, written: Written) -> Written:
        op = self._packer
        if leaf.name in op.bos_features:
            flat = written.values.reshape(-1, *written.values.shape[2:])
            starts = np.flatnonzero((written.positions == 0) & (written.segment_ids != 0))
            try:
                flat[starts] = op.bos_token_id
            except (OverflowError, ValueError) as e:
                raise PipelineError(
                    f"bos_token_id does not suit the feature {leaf.name!r} of {flat.dtype}: {e}."
                ) from e
        return written


@stream_of.register
def _(op: ConcatThenSplit, position: Position, context: Context) -> Stream:
    number, taken, inner = position or (0, 0, None)
    return SplitStream(op, number, taken, open_stream(op.parent, inner, context))
