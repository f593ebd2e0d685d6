"""Operations that pack sequences of different lengths into rows of a fixed length.

Which sequences make a row is decided from their lengths alone, by `Bins` or on a `Tape`. A `Layout` says what
rows look like.
"""

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headrace import _tree
from headrace._ops.base import Unary, check_seed
from headrace._spec import ShapeDtypeStruct
from headrace.errors import PipelineError, SpecError, StructureError
from headrace.options import check_count, check_counts

Lengths = tuple[int, ...]
Piece = int | tuple[int, Lengths, Lengths]
"""A sequence's number, and for a part of it, where that begins and ends in each leaf."""


class BOSHandling(enum.Enum):
    """What is done to the first token of every piece of a sequence."""

    DO_NOTHING = enum.auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = enum.auto()


class Leaf(NamedTuple):
    """One array of a row."""

    name: str  # for people
    length: int
    padding: Any  # None for zeros, or what stands for them
    alignment: int
    is_meta: bool


class Layout:
    """What a row looks like: a dict of features, each a leaf, or a tree of leaves where it is a meta feature.

    A feature that is none has its segment ids (which sequence of the row, from 1; 0 is padding) and positions
    (which token of the sequence) beside it.
    """

    def __init__(self, length_struct: Any, meta_features: Sequence[str], *, padding: Any = None, alignment: Any = None):
        is_dict = isinstance(length_struct, Mapping) and all(isinstance(key, str) for key in length_struct)
        if not is_dict or not length_struct:
            raise PipelineError(
                "length_struct must be a dict from the names of features to lengths, such as {'tokens': 2048}; got "
                f"{length_struct!r}."
            )
        self._meta = frozenset(meta_features)
        self._trees: dict[str, Any] = {}  # a feature's structure, where it is more than a leaf
        self.leaves: list[Leaf] = []
        paddings = _leaves_like(length_struct, padding, "padding_struct", padding is None)
        one = alignment is None or isinstance(alignment, int)
        alignments = _leaves_like(length_struct, 1 if alignment is None else alignment, "pack_alignment_struct", one)
        for key in sorted(length_struct):
            for path, length in self._named_lengths(key, length_struct[key]):
                check_count(f"length_struct[{key!r}]{path}", length, least=1)
                step = alignments[len(self.leaves)]
                check_count("pack_alignment_struct", step, least=1)
                self.leaves.append(Leaf(key + path, length, paddings[len(self.leaves)], step, key in self._meta))
        self.keys = sorted(length_struct)
        self.is_flat = not self._trees
        self._check_names()

    def _named_lengths(self, key: str, lengths: Any) -> list[tuple[str, Any]]:
        _, tree = _tree.flatten(lengths)
        if tree.is_leaf() or tree.num_leaves == 0:
            return [("", lengths)]
        if key not in self._meta:
            raise PipelineError(
                f"length_struct[{key!r}] is {lengths!r}: only meta features may be nested. Give the feature an int, or "
                "name it in meta_features."
            )
        self._trees[key] = tree
        return _tree.named_leaves(lengths)

    def _check_names(self) -> None:
        made = {f"{key}{ending}" for key in self.keys if key not in self._meta for ending in _ENDINGS}
        for key in sorted(made & {*self.keys, *self._meta}):
            raise PipelineError(
                f"The feature {key!r} has the name of one that packing adds. Rename it in a `map` before."
            )

    def take_apart(self, element: Any) -> list[Any]:
        """The leaves of an element."""
        found = []
        for key in self.keys:
            try:
                value = element[key]
                found += self._trees[key].flatten_up_to(value) if key in self._trees else [value]
            except (KeyError, TypeError, IndexError, ValueError) as e:
                has = sorted(map(str, element)) if isinstance(element, Mapping) else type(element).__name__
                raise StructureError(
                    f"length_struct has the feature {key!r}, and an element does not have it in that form: it has "
                    f"{has}. Give every element all features of length_struct in a `map` before."
                ) from e
        return found

    def put_together(
        self, values: Sequence[Any], segment_ids: Sequence[Any], positions: Sequence[Any]
    ) -> dict[str, Any]:
        """Rows from what there is for each leaf."""
        rows, i = {}, 0
        for key in self.keys:
            if key in self._trees:
                tree = self._trees[key]
                rows[key] = tree.unflatten(values[i : i + tree.num_leaves])
                i += tree.num_leaves
                continue
            rows[key] = values[i]
            if key not in self._meta:
                rows |= {f"{key}_positions": positions[i], f"{key}_segment_ids": segment_ids[i]}
            i += 1
        return {key: rows[key] for key in sorted(rows)}


_ENDINGS = ("_positions", "_segment_ids")


def _leaves_like(length_struct: Any, values: Any, name: str, is_one: bool) -> list[Any]:
    """A value for each leaf: one for all, or those of a tree of the same structure."""
    _, tree = _tree.flatten(dict(length_struct))
    if is_one:
        return [values] * max(1, tree.num_leaves)
    try:
        return tree.flatten_up_to(values)
    except ValueError as e:
        raise PipelineError(
            f"{name} must have the structure of length_struct, {length_struct!r}; got {values!r}."
        ) from e


@dataclass(frozen=True, eq=False, repr=False)
class Packer(Unary):
    """Sequences packed into rows of the lengths that `length_struct` gives, feature by feature."""

    length_struct: Mapping[str, Any]
    meta_features: tuple[str, ...] = field(default=(), kw_only=True)

    def layout(self) -> Layout:
        """What rows look like."""
        return Layout(self.length_struct, self.meta_features)

    @property
    def lengths(self) -> dict[str, int]:
        """The length of each leaf by its name."""
        return {leaf.name: leaf.length for leaf in self.layout().leaves}

    @property
    def listed_features(self) -> tuple[str, ...]:
        """Meta features without a length: a row has a list of their values, one for each sequence."""
        return tuple(key for key in self.meta_features if key not in self.length_struct)

    def spec(self) -> Any:
        parent = self.parent.spec()
        if self.listed_features:
            raise SpecError(
                f"The element spec of {self.label()} cannot be known: {self.listed_features[0]!r} is a list."
            )
        layout = self.layout()
        shapes = [
            ShapeDtypeStruct((leaf.length, *sequence.shape[1:]), sequence.dtype)
            for leaf, sequence in zip(layout.leaves, layout.take_apart(parent), strict=True)
        ]
        ids = [ShapeDtypeStruct((leaf.length,), np.int32) for leaf in layout.leaves]
        return layout.put_together(shapes, ids, ids)


# ----------------------------------------------------------------------------------------------- into bins


class Bins:
    """The bins of one set, filled with sequences until one fits nowhere: `free[bin][leaf]` is the room left."""

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        self._lengths = tuple(leaf.length for leaf in leaves)
        self._free, self._one_leaf = [self._lengths] * count, len(leaves) == 1
        self._steps = None if all(leaf.alignment == 1 for leaf in leaves) else [leaf.alignment for leaf in leaves]
        self._most = max_sequences
        self.contents: list[list[int]] = [[] for _ in range(count)]

    def put(self, needs: Sequence[Lengths], first: int) -> int:
        """Puts in sequences from number `first` on; gives the number of the first that fits nowhere, or their count."""
        for i in range(first, len(needs)):
            if not self.place(i, needs[i]):
                return i
        return len(needs)

    def place(self, sequence: int, need: Lengths) -> bool:
        """Puts one sequence into a bin that has the room it needs in each leaf; false where it fits nowhere."""
        raise NotImplementedError

    def _take(self, bin_: int, sequence: int, need: Lengths) -> Lengths:
        """Puts a sequence into a bin; gives the room left, which is less than none where no other may come."""
        content = self.contents[bin_]
        content.append(sequence)
        if len(content) == self._most:
            need = tuple(room + 1 for room in self._free[bin_])
        elif self._steps is not None:
            need = tuple(-(-n // step) * step for n, step in zip(need, self._steps, strict=True))
        self._free[bin_] = left = _minus(self._free[bin_], need)
        return left


class FirstFitBins(Bins):
    """Bins of which the first with room is taken.

    `highest[bin]` is the most room that any bin up to this one has in the first leaf: it never falls, so the first
    bin with room in that leaf is found by bisection.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._highest = [self._lengths[0]] * count

    def place(self, sequence: int, need: Lengths) -> bool:
        free, highest = self._free, self._highest
        bin_ = bisect_left(highest, need[0])
        while bin_ < len(free) and not (self._one_leaf or _fits(need, free[bin_])):
            bin_ += 1
        if bin_ == len(free):
            return False
        most = max(self._take(bin_, sequence, need)[0], highest[bin_ - 1] if bin_ else -1)
        while highest[bin_] != most:
            highest[bin_] = most
            bin_ += 1
            if bin_ == len(free):
                break
            most = max(most, free[bin_][0])
        return True


class BestFitBins(Bins):
    """Bins of which the fullest with room is taken: the one with the least room, summed over the leaves.

    `order` has a number for each bin, by its room and then by itself.
    """

    def __init__(self, leaves: Sequence[Leaf], count: int, *, max_sequences: int | None = None):
        super().__init__(leaves, count, max_sequences=max_sequences)
        self._order = [sum(self._lengths) * count + bin_ for bin_ in range(count)]

    def place(self, sequence: int, need: Lengths) -> bool:
        free, order = self._free, self._order
        count = len(free)
        at = bisect_left(order, sum(need) * count)
        while at < count and not (self._one_leaf or _fits(need, free[order[at] % count])):
            at += 1
        if at == count:
            return False
        bin_ = order.pop(at) % count
        insort(order, sum(self._take(bin_, sequence, need)) * count + bin_)
        return True


@dataclass(frozen=True, eq=False, repr=False)
class FirstFitPack(Packer):
    """Each sequence in the first of several bins that has room; the bins come out when one fits nowhere."""

    name = "first_fit_pack"
    bins: ClassVar[type[Bins]] = FirstFitBins
    state_fields = ("rows", "taken_of_group")
    state_params = ("lengths", "num_packing_bins", "seed", "shuffle_bins", "max_sequences_per_bin")
    num_packing_bins: int = field(kw_only=True)
    seed: int = field(default=0, kw_only=True)
    shuffle_bins: bool = field(default=True, kw_only=True)
    shuffle_bins_group_by_feature: str | None = field(default=None, kw_only=True)
    pack_alignment_struct: Any = field(default=None, kw_only=True)
    padding_struct: Any = field(default=None, kw_only=True)
    max_sequences_per_bin: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_counts(self, "num_packing_bins", least=1)
        object.__setattr__(self, "seed", check_seed(self.seed, op=self.name, bits=None))
        if self.max_sequences_per_bin is not None:
            check_counts(self, "max_sequences_per_bin", least=1)
        self.layout()
        group = self.shuffle_bins_group_by_feature
        if group is not None and group not in (*self.length_struct, *self.meta_features):
            raise PipelineError(
                f"shuffle_bins_group_by_feature={group!r} is no feature of the rows, which have "
                f"{sorted({*self.length_struct, *self.meta_features})}. Name one of them."
            )

    def layout(self) -> Layout:
        padding, alignment = self.padding_struct, self.pack_alignment_struct
        return Layout(self.length_struct, self.meta_features, padding=padding, alignment=alignment)

    def open_bins(self, leaves: Sequence[Leaf]) -> Bins:
        """The bins of a set, empty."""
        return self.bins(leaves, self.num_packing_bins, max_sequences=self.max_sequences_per_bin)

    def order(self, num_rows: int, rows_before: int) -> np.ndarray:
        """In which order the rows of a set come out."""
        if not self.shuffle_bins or num_rows == 1:
            return np.arange(num_rows)
        return np.random.default_rng(self.seed + rows_before).permuted(np.arange(num_rows))


class BestFitPack(FirstFitPack):
    """Each sequence in the fullest of several bins that has room; the bins come out when one fits nowhere."""

    name = "best_fit_pack"
    bins = BestFitBins


# ----------------------------------------------------------------------------------------- one long sequence


class Tape:
    """Sequences end to end, to be cut into rows: `ends[leaf][i]` is where sequence `i` ends.

    Sequences that are set aside take no room on it. A row begins at a sequence, of which `taken` came in rows before.
    """

    def __init__(self, leaves: Sequence[Leaf], *, split_full: bool):
        self._lengths, self._split_full = tuple(leaf.length for leaf in leaves), split_full
        self._meta = [k for k, leaf in enumerate(leaves) if leaf.is_meta]
        self._ends: list[list[int]] = [[] for _ in leaves]
        self._aside: list[bool] = []
        self._sizes: list[Lengths] = []

    def __len__(self) -> int:
        return len(self._sizes)

    def append(self, sizes: Sequence[Lengths]) -> None:
        """Appends sequences."""
        if not sizes:
            return
        aside = [not self._split_full and self._fills_a_row(size) for size in sizes]
        self._sizes += sizes
        self._aside += aside
        for leaf, ends in enumerate(self._ends):
            new = [0 if alone else size[leaf] for size, alone in zip(sizes, aside, strict=True)]
            new[0] += ends[-1] if ends else 0
            ends += accumulate(new)

    def drop(self, count: int) -> None:
        """Forgets the first sequences."""
        for values in (self._sizes, self._aside, *self._ends):
            del values[:count]

    def _fills_a_row(self, size: Lengths) -> bool:
        return _fits(size, self._lengths) and any(map(int.__eq__, size, self._lengths))

    def closing(self, first: int, taken: Lengths | None) -> int:
        """The number of the sequence that does not fit as a whole into a row from `first` on, or their count."""
        row = zip(self._ends, self._begin(first, taken), self._lengths, strict=True)
        return min(bisect_right(ends, begin + length, first) for ends, begin, length in row)

    def _begin(self, first: int, taken: Lengths | None) -> list[int]:
        size = self._sizes[first] if not self._aside[first] else (0,) * len(self._lengths)
        begin = [ends[first] - n for ends, n in zip(self._ends, size, strict=True)]
        return begin if taken is None else [a + b for a, b in zip(begin, taken, strict=True)]

    def cut(self, first: int, stop: int, taken: Lengths | None) -> tuple[list[list[Piece]], Lengths | None]:
        """The row from a sequence to the one that closes it, with those set aside; and how much is taken of that."""
        aside = [] if self._split_full else [i for i in range(first, stop) if self._aside[i]]
        pieces: list[Piece] = [i for i in range(first, stop) if not self._aside[i]] if aside else [*range(first, stop)]
        if taken is not None and stop > first:
            pieces[0] = (first, taken, self._sizes[first])
        left = taken if stop == first else None
        if stop < len(self._sizes):
            used = [ends[stop] - size for ends, size in zip(self._ends, self._sizes[stop], strict=True)]
            begin = self._begin(first, taken)
            room = [n - max(0, a - b) for n, a, b in zip(self._lengths, used, begin, strict=True)]
            left = self._append_some(pieces, stop, room, left)
        rows = [pieces] if pieces else []
        return rows + [[i] for i in aside], left

    def _append_some(self, pieces: list[Piece], i: int, room: list[int], taken: Lengths | None) -> Lengths | None:
        """Appends as much of a sequence as there is room for, but nothing where a meta feature does not fit."""
        size = self._sizes[i]
        if any(size[k] > room[k] for k in self._meta):
            return taken
        begin = taken or (0,) * len(size)
        end = after = tuple(map(min, size, map(int.__add__, begin, room)))
        if self._meta:
            after = tuple(0 if k in self._meta else n for k, n in enumerate(end))
        if after == begin:
            return taken
        pieces.append((i, begin, end))
        return after


@dataclass(frozen=True, eq=False, repr=False)
class ConcatThenSplit(Packer):
    """Sequences one after the other, cut where a row is full.

    Meta features are not cut: every row that has a piece of a sequence has all of its meta features. Unless
    `split_full_length_features`, a sequence as long as a row is set aside and comes after the row that is open.
    """

    name = "concat_then_split"
    state_fields = ("tokens_taken", "taken_of_group")
    state_params = ("lengths", "split_full_length_features")
    split_full_length_features: bool = field(default=True, kw_only=True)
    bos_handling: BOSHandling = field(default=BOSHandling.DO_NOTHING, kw_only=True)
    bos_features: tuple[str, ...] = field(default=(), kw_only=True)
    bos_token_id: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        self.layout()
        if self.listed_features:
            raise PipelineError(
                f"The meta feature {self.listed_features[0]!r} has no length in length_struct, which has "
                f"{sorted(self.length_struct)}. Give every feature a length."
            )
        if self.bos_handling is BOSHandling.DO_NOTHING:
            if self.bos_features or self.bos_token_id is not None:
                raise PipelineError(
                    f"bos_features={self.bos_features} and bos_token_id={self.bos_token_id} mean nothing with "
                    "BOSHandling.DO_NOTHING. Leave them out, or choose REPLACE_FIRST_TOKEN_WITH_BOS."
                )
            return
        if self.bos_token_id is None:
            raise PipelineError(f"{self.bos_handling} needs a bos_token_id; got None.")
        for key in self.bos_features:
            if key not in self.length_struct or key in self.meta_features:
                raise PipelineError(
                    f"bos_features has {key!r}, and the features that are split are "
                    f"{sorted(set(self.length_struct) - set(self.meta_features))}. Name some of them."
                )

    def tape(self) -> Tape:
        """A tape with nothing on it."""
        return Tape(self.layout().leaves, split_full=self.split_full_length_features)


def _minus(a: Sequence[int], b: Sequence[int]) -> Lengths:
    return tuple(map(int.__sub__, a, b))


def _fits(rest: Sequence[int], room: Sequence[int]) -> bool:
    return all(map(int.__le__, rest, room))
