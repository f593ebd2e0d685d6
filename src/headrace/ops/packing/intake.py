"""Reads and checks the sequences of a packer."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

from headrace.errors import PipelineError, StructureError
from headrace.ops.calls import add_note
from headrace.ops.packing.layout import Layout, Lengths, RowArray
from headrace.ops.packing.packers import ConcatThenSplit, Packer
from headrace.ops.packing.rows import Column, Kind, columns_of, kinds_of
from headrace.ops.recorder import StageRecord
from headrace.ops.streams.stream import At, Feed, Position, Stream, kept_places


class Intake:
    """The sequences that were read and are not in rows yet: `columns[leaf][i]`, of length `sizes[leaf][i]`.

    A sequence begins where the one before it ends: empty ones in between that were dropped belong to it. So positions
    do not depend on how many sequences were read at a time.
    """

    def __init__(self, op: Packer, layout: Layout, stream: Stream, record: StageRecord):
        self._op = op
        self._layout = layout
        self._feed = Feed(stream)
        self._record = record
        self.columns: list[Column] = [[] for _ in layout.leaves]
        self.sizes: list[list[int]] = [[] for _ in layout.leaves]
        self._lengths: list[Lengths] = []  # of the first sequences
        self.listed: dict[str, list[Any]] = {key: [] for key in op.listed_features}
        self.kinds: list[set[Kind]] = [set() for _ in layout.leaves]
        self._start = stream.position  # before the first sequence
        self._runs: list[tuple[int, int, At]] = []  # of each, the first sequence and the one after the last
        self.read_s = 0.0  # how long the stream before took
        self.has_empty = False

    def __len__(self) -> int:
        return len(self.sizes[0])

    @property
    def lengths(self) -> list[Lengths]:
        """The length of each sequence in all leaves; the list grows with the next sequences."""
        known = len(self._lengths)
        if known < len(self):
            self._lengths += zip(*(sizes[known:] for sizes in self.sizes), strict=True)
        return self._lengths

    @property
    def is_uniform(self) -> bool:
        """Whether each leaf has the same dtype and shape in all sequences."""
        return all(len(kinds) == 1 for kinds in self.kinds)

    @property
    def is_even(self) -> bool:
        """Whether each sequence is equally long in all leaves."""
        return all(sizes == self.sizes[0] for sizes in self.sizes[1:])

    def read(self, count: int, *, single_step: bool) -> bool:
        """Reads about `count` more sequences; false at the end."""
        begin = time.perf_counter()
        self._feed.fill(1 if single_step else count, single_step=single_step)
        at = self._feed.positions()
        size = self._feed.size
        block = self._feed.take(size)
        elements = block.own_rows() if self.listed else block.rows()
        self.read_s += time.perf_counter() - begin
        if not size:
            return False
        first = len(self)
        with naming_operation(self._op):
            kept = self._take_in(elements)
        if kept is not None:
            all_at = at
            after = kept_places(kept, len(self) - first)
            at = lambda j: all_at(after(j))  # noqa: E731
        if len(self) > first:
            self._runs.append((first, len(self), at))
        return True

    def _take_in(self, elements: list[Any]) -> list[bool] | None:
        """Appends sequences; if it drops some, returns which of them it keeps."""
        columns, kinds = map(list, zip(*columns_of(self._layout, elements), strict=True))
        if not self._op.drop_other_features:
            check_features({*self._layout.keys, *self._op.listed_features}, elements)
        lengths = [list(map(len, column)) for column in columns]
        kept = None
        if empty := empty_sequences_in(self._layout.leaves, lengths):
            kept = self._without(empty, len(elements))
        if kept is not None:
            elements = list(compress(elements, kept))
            columns = [list(compress(column, kept)) for column in columns]
            kinds = [kinds_of(column) if column else set() for column in columns]
            lengths = [list(compress(found, kept)) for found in lengths]
            if not elements:
                return kept
        check_lengths(self._layout.leaves, lengths, split=isinstance(self._op, ConcatThenSplit))
        for key, values in self.listed.items():
            values += [_meta_value(element, key) for element in elements]
        for column, known, new, new_kinds in zip(self.columns, self.kinds, columns, kinds, strict=True):
            column += new
            known |= new_kinds
        for sizes, found in zip(self.sizes, lengths, strict=True):
            sizes += found
        return kept

    def _without(self, empty: list[int], size: int) -> list[bool] | None:
        """Which of some sequences to keep, or `None` for all."""
        match self._op.empty_sequences:
            case "error":
                raise PipelineError(f"{_no_tokens(self._layout.leaves)} {_LEAVE_OUT}")
            case "keep":
                self.has_empty = True
                return None
        self._record.leave_out(
            len(empty),
            lambda: (
                f"{self._op.label()} (pipeline at {self._op.site}) drops empty sequences. "
                f"{_no_tokens(self._layout.leaves)} `iterator.stats()` counts them; `pack(..., "
                "empty_sequences='error')` makes them an error."
            ),
        )
        gone = set(empty)
        return [i not in gone for i in range(size)]

    def positions(self) -> At:
        """The parent's position before each sequence that is here now."""
        runs = list(self._runs)
        start = self._start

        def before(i: int) -> Position:
            if i:
                for first, stop, at in runs:
                    if i <= stop:
                        return at(i - first)
            return start

        return before

    def drop(self, count: int) -> None:
        """Forgets the first sequences."""
        self._start = self.positions()(count)
        for values in (*self.columns, *self.listed.values(), *self.sizes, self._lengths):
            del values[:count]
        self._runs = [(first - count, stop - count, at) for first, stop, at in self._runs if stop > count]
        if not len(self):
            self.kinds = [set() for _ in self.kinds]
            self.has_empty = False


def check_features(known: set[str], elements: Sequence[Any]) -> None:
    """Raises if elements have features that rows would not have."""
    if set(map(len, elements)) != {len(known)}:
        element = next(element for element in elements if len(element) != len(known))
        others = sorted(str(key) for key in element if key not in known)
        raise StructureError(
            f"An element has the features {others}, which length_struct lacks: it has {sorted(known)}. Give them a "
            "length, name them in meta_features, drop them in an earlier `map`, or pack with "
            "drop_other_features=True."
        )


def check_lengths(leaves: Sequence[RowArray], lengths: Sequence[Sequence[int]], *, split: bool) -> None:
    """Raises if a sequence is longer than a row, or, if sequences are split, one of its meta features is."""
    for leaf, found in zip(leaves, lengths, strict=True):
        if max(found) > leaf.length and (leaf.is_meta or not split):
            fix = (
                "Meta features are never split: shorten it in an earlier `map`."
                if leaf.is_meta
                else (
                    "Or choose what to do with long sequences: `pack(..., long_sequences=...)` takes 'split', "
                    "'truncate' and 'drop'."
                )
            )
            raise PipelineError(
                f"A sequence of length {max(found)} does not fit into a row: the feature {leaf.name!r} has "
                f"length {leaf.length} in length_struct. Raise that length. {fix}"
            )


def empty_sequences_in(leaves: Sequence[RowArray], lengths: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the sequences without tokens: in no leaf that is not meta, or, if all are, in none at all."""
    packed = [found for leaf, found in zip(leaves, lengths, strict=True) if not leaf.is_meta] or lengths
    if 0 not in packed[0]:
        return []
    return [i for i, most in enumerate(map(max, zip(*packed, strict=True))) if not most]


def _no_tokens(leaves: Sequence[RowArray]) -> str:
    names = [leaf.name for leaf in leaves if not leaf.is_meta] or [leaf.name for leaf in leaves]
    return f"A sequence is empty: it has no tokens in {' and '.join(map(repr, names))}."


_LEAVE_OUT = "Drop such elements in an earlier `filter`, or with `pack(..., empty_sequences='drop')`."


def _meta_value(element: Any, key: str) -> Any:
    try:
        return element[key]
    except KeyError:
        raise StructureError(
            f"meta_features has {key!r}, but an element has only {sorted(map(str, element))}. Add that feature to "
            "every element in an earlier `map`, or remove it from meta_features."
        ) from None


@contextlib.contextmanager
def naming_operation(op: Packer) -> Iterator[None]:
    """Names the operation of the pipeline in the errors that it raises."""
    try:
        yield
    except Exception as e:
        add_note(e, f"in {op.label()} (pipeline at {op.site})")
        raise
