"""Operations that pack sequences of different lengths into rows of a fixed length.

`Bins` or a `TokenBuffer` decide which sequences make a row, from their lengths alone. A `Layout` says what rows look
like.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypedDict

import numpy as np

from headrace import trees
from headrace.errors import PipelineError, SpecError, StateError
from headrace.ops.lanes import Lane
from headrace.ops.op import Op, Unary
from headrace.ops.packing.bins import BestFitBins, Bins, FirstFitBins
from headrace.ops.packing.concat_split import TokenBuffer
from headrace.ops.packing.layout import Layout, RowArray
from headrace.ops.packing.long_sequences import fit_to_rows
from headrace.ops.seeds import check_seed
from headrace.ops.state_fields import Fields, count
from headrace.options import check_counts
from headrace.trees import ShapeDtypeStruct


class BOSHandling(enum.Enum):
    """What happens to the first token of every segment.

    >>> ds = MapDataset.source([{"x": np.array([5, 6, 7])}, {"x": np.array([8, 9, 10])}]).to_iter_dataset()
    >>> handling = BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS
    >>> rows = ds.pack({"x": 4}, strategy="concat_split", bos_handling=handling, bos_features=["x"], bos_token_id=1)
    >>> [row["x"] for row in rows]
    [array([1, 6, 7, 1]), array([ 1, 10,  0,  0])]

    Differs from Grain: padding stays padding if a row has a segment without tokens of a feature.
    """

    DO_NOTHING = enum.auto()
    REPLACE_FIRST_TOKEN_WITH_BOS = enum.auto()


EMPTY_SEQUENCES = ("drop", "error", "keep")


@dataclass(frozen=True, eq=False, repr=False)
class Packer(Unary):
    """Packs sequences into rows; `length_struct` has the length of a row for each feature.

    `empty_sequences` is no parameter of states: a run that ended at an empty sequence can resume from its state without
    it.
    """

    length_struct: Mapping[str, Any]
    meta_features: Sequence[str] = field(default=(), kw_only=True)
    drop_other_features: bool = field(default=False, kw_only=True)
    empty_sequences: str = field(default="drop", kw_only=True)

    def __post_init__(self):
        object.__setattr__(self, "length_struct", plain_ints(self.length_struct))
        if isinstance(self.meta_features, str):
            raise PipelineError(f"meta_features must be a sequence of names; got the string {self.meta_features!r}.")
        object.__setattr__(self, "meta_features", tuple(self.meta_features))
        if self.empty_sequences not in EMPTY_SEQUENCES:
            raise PipelineError(
                f"empty_sequences must be one of {', '.join(map(repr, EMPTY_SEQUENCES))}; got {self.empty_sequences!r}."
            )
        self.layout()

    def layout(self) -> Layout:
        """What rows look like."""
        return Layout(self.length_struct, self.meta_features)

    @property
    def lengths(self) -> dict[str, int]:
        """The length of each leaf by its name."""
        return {leaf.name: leaf.length for leaf in self.layout().leaves}

    @property
    def alignments(self) -> dict[str, int]:
        """The number that starts are multiples of, by leaf, if it is not 1."""
        return {leaf.name: leaf.alignment for leaf in self.layout().leaves if leaf.alignment > 1}

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
            for leaf, sequence in zip(layout.leaves, layout.split_leaves(parent), strict=True)
        ]
        ids = [ShapeDtypeStruct((leaf.length,), np.int32) for leaf in layout.leaves]
        return layout.join_leaves(shapes, ids, ids)

    def open_stream(self, position: Any, context: Any) -> Any:
        from headrace.ops.packing.packed_streams import open_packer  # which imports this module

        return open_packer(self, position, context)


@dataclass(frozen=True, eq=False, repr=False)
class FirstFitPack(Packer):
    """Puts each sequence in the first bin with room, and returns all bins when a sequence fits in none."""

    name = "first_fit_pack"
    bins: ClassVar[type[Bins]] = FirstFitBins
    state_fields = ("rows", "taken_of_group")
    group_fields = ("taken_of_group",)
    state_limits: ClassVar = {"taken_of_group": "num_packing_bins"}
    state_params = ("lengths", "alignments", "num_packing_bins", "seed", "shuffle_bins", "max_sequences_per_bin")
    num_packing_bins: int = field(default=64, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    shuffle_bins: bool = field(default=True, kw_only=True)
    shuffle_bins_group_by_feature: str | None = field(default=None, kw_only=True)
    pack_alignment_struct: Any = field(default=None, kw_only=True)
    padding_struct: Any = field(default=None, kw_only=True)
    max_sequences_per_bin: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        object.__setattr__(self, "pack_alignment_struct", plain_ints(self.pack_alignment_struct))
        super().__post_init__()
        check_counts(self, "num_packing_bins", least=1)
        object.__setattr__(self, "seed", check_seed(self.seed, op=self.name, bits=None))
        if self.max_sequences_per_bin is not None:
            check_counts(self, "max_sequences_per_bin", least=1)
        group = self.shuffle_bins_group_by_feature
        if group is not None and group not in (*self.length_struct, *self.meta_features):
            raise PipelineError(
                f"shuffle_bins_group_by_feature={group!r} is not a feature of the rows, which have "
                f"{sorted({*self.length_struct, *self.meta_features})}. Name one of them."
            )

    def layout(self) -> Layout:
        padding = self.padding_struct
        alignment = self.pack_alignment_struct
        return Layout(self.length_struct, self.meta_features, padding=padding, alignment=alignment)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return dataclasses.replace(self, parent=parents[0], seed=lane.seed(self.seed))

    def open_bins(self, leaves: Sequence[RowArray]) -> Bins:
        """A set of empty bins."""
        return self.bins(leaves, self.num_packing_bins, max_sequences=self.max_sequences_per_bin)

    def order(self, num_rows: int, rows_before: int) -> np.ndarray:
        """The order in which the rows of a set come out."""
        if not self.shuffle_bins or num_rows == 1:
            return np.arange(num_rows)
        return np.random.default_rng(self.seed + rows_before).permuted(np.arange(num_rows))


class BestFitPack(FirstFitPack):
    """Puts each sequence in the fullest bin with room, and returns all bins when a sequence fits in none."""

    name = "best_fit_pack"
    bins = BestFitBins


@dataclass(frozen=True, eq=False, repr=False)
class ConcatThenSplit(Packer):
    """Concatenates sequences and cuts them where a row is full.

    Meta features are not cut: every row with a segment of a sequence has all of its meta features. Unless
    `split_full_length_features`, a sequence as long as a row is set aside and comes after the row that is open.
    """

    name = "concat_then_split"
    state_fields = group_fields = ("tokens_taken", "taken_of_group")
    state_params = ("lengths", "split_full_length_features")
    split_full_length_features: bool = field(default=True, kw_only=True)
    bos_handling: BOSHandling = field(default=BOSHandling.DO_NOTHING, kw_only=True)
    bos_features: Sequence[str] = field(default=(), kw_only=True)
    bos_token_id: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "bos_features", tuple(self.bos_features))
        if self.listed_features:
            raise PipelineError(
                f"The meta feature {self.listed_features[0]!r} has no length in length_struct, which has "
                f"{sorted(self.length_struct)}. Give every feature a length."
            )
        if not isinstance(self.bos_handling, BOSHandling):
            raise PipelineError(f"bos_handling must be a BOSHandling; got {self.bos_handling!r}.")
        if self.bos_handling is BOSHandling.DO_NOTHING:
            if self.bos_features or self.bos_token_id is not None:
                raise PipelineError(
                    f"bos_features={self.bos_features} and bos_token_id={self.bos_token_id} have no effect with "
                    "BOSHandling.DO_NOTHING. Remove them, or choose REPLACE_FIRST_TOKEN_WITH_BOS."
                )
            return
        if self.bos_token_id is None:
            raise PipelineError(f"{self.bos_handling} needs a bos_token_id; got None.")
        for key in self.bos_features:
            if key not in self.length_struct or key in self.meta_features:
                raise PipelineError(
                    f"bos_features has {key!r}, but the features that are split are "
                    f"{sorted(set(self.length_struct) - set(self.meta_features))}. Name some of them."
                )

    def write_numbers(self, position: tuple[Any, ...]) -> Fields:
        fields = super().write_numbers(position)
        if fields["tokens_taken"] == 0:
            fields["tokens_taken"] = [0] * len(self.layout().leaves)
        return fields

    def read_numbers(self, fields: Fields) -> tuple[Any, ...]:
        tokens = fields["tokens_taken"]
        taken = count(self, "taken_of_group", fields["taken_of_group"])
        if not isinstance(tokens, list | tuple):  # an older state
            return count(self, "tokens_taken", tokens), taken
        counts = [count(self, "tokens_taken", each) for each in tokens]
        if len(counts) != len(self.layout().leaves):
            raise StateError(
                f"The state of {self.label()} has tokens_taken for {len(counts)} features, but the pipeline "
                "packs a different number. Restore length_struct as it was."
            )
        return counts if any(counts) else 0, taken

    def token_buffer(self) -> TokenBuffer:
        """An empty buffer."""
        return TokenBuffer(self.layout().leaves, split_full=self.split_full_length_features)


STRATEGIES: dict[str, type[Packer]] = {
    "first_fit": FirstFitPack,
    "best_fit": BestFitPack,
    "concat_split": ConcatThenSplit,
}


class PackOptions(TypedDict, total=False):
    """The arguments of packers: first those of all, then those of bins, and then those of concat-then-split."""

    meta_features: Sequence[str]
    drop_other_features: bool
    empty_sequences: str
    num_packing_bins: int
    seed: int
    shuffle_bins: bool
    shuffle_bins_group_by_feature: str | None
    pack_alignment_struct: Any
    padding_struct: Any
    max_sequences_per_bin: int | None
    split_full_length_features: bool
    bos_handling: BOSHandling
    bos_features: Sequence[str]
    bos_token_id: int | None


def packer(
    parent: Op, length_struct: Any, options: PackOptions, *, strategy: str, long_sequences: str | None = None
) -> Packer:
    """The packer of a strategy, on elements that fit into rows."""
    known = options_of(strategy)
    for name in options:
        if name not in known:
            raise PipelineError(f"The strategy {strategy!r} has no option {name!r}; it has {', '.join(known)}.")
    kind = STRATEGIES[strategy]
    op = kind(parent, length_struct, **options)  # type: ignore[arg-type]
    if kind is ConcatThenSplit:
        if long_sequences == "error":
            raise PipelineError("The strategy 'concat_split' always splits long sequences: they cannot be an error.")
        long_sequences = None if long_sequences == "split" else long_sequences
    if long_sequences is None:
        return op
    packed = {key: n for key, n in op.length_struct.items() if key not in op.meta_features}
    if long_sequences == "drop":  # meta features can be too long as well
        packed |= {key: n for key, n in op.length_struct.items() if isinstance(n, int)}
    return dataclasses.replace(op, parent=fit_to_rows(parent, packed, long_sequences))


def options_of(strategy: str) -> list[str]:
    """The names of a strategy's options."""
    if strategy not in list(STRATEGIES):  # it may not be hashable
        raise PipelineError(f"strategy must be one of {', '.join(map(repr, STRATEGIES))}; got {strategy!r}.")
    return [f.name for f in dataclasses.fields(STRATEGIES[strategy]) if f.kw_only and f.name != "site"]


def plain_ints(struct: Any) -> Any:
    """A tree with NumPy's ints as plain ints."""
    return trees.tree_map(lambda n: int(n) if isinstance(n, np.integer) else n, struct)
