"""Grain's names for the packers: dataset classes, and an operation of a `DataLoader`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headrace.dataset import IterDataset, as_stream
from headrace.dataset.base import Dataset
from headrace.operations import Operation
from headrace.ops.packing.bins import Bins, FirstFitBins
from headrace.ops.packing.intake import check_lengths
from headrace.ops.packing.layout import Layout
from headrace.ops.packing.packers import BOSHandling, plain_ints
from headrace.ops.packing.rows import columns_of, write
from headrace.options import check_counts
from headrace.records import Record, RecordMetadata


class _BinPackIterDataset(IterDataset):
    """Packs whole sequences into bins."""

    _strategy: ClassVar[str]

    def __init__(
        self,
        parent: Dataset,
        *,
        length_struct: Any,
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Any = None,
        padding_struct: Any = None,
        max_sequences_per_bin: int | None = None,
    ):
        stream = as_stream(parent, type(self).__name__)
        super().__init__(parent)
        self._operation = stream.pack(
            length_struct,
            strategy=self._strategy,
            drop_other_features=True,
            empty_sequences="keep",
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )._op


class FirstFitPackIterDataset(_BinPackIterDataset):
    """Packs each sequence into the first of several bins that has room for it.

    For each feature, a row also has `{feature}_segment_ids` (which sequence of the row, from 1; 0 is padding) and
    `{feature}_positions` (which token of the sequence).

    >>> from headrace import MapDataset
    >>> ds = MapDataset.source([{"x": np.array([1, 2, 3])}, {"x": np.array([4, 5])}, {"x": np.array([6])}])
    >>> for row in FirstFitPackIterDataset(ds.to_iter_dataset(), length_struct={"x": 4}, num_packing_bins=2):
    ...     print(row["x"], row["x_segment_ids"], row["x_positions"])
    [1 2 3 6] [1 1 1 2] [0 1 2 0]
    [4 5 0 0] [1 1 0 0] [0 1 0 0]

    Differs from Grain: values keep a dtype that holds all, and one alignment applies to all features; see also
    `ds.pack(...)`.

    Args:
        parent: Elements that are dicts of arrays.
        length_struct: The length of a row for each feature; features without one are dropped.
        num_packing_bins: How many bins to fill at a time. They are all emitted when a sequence fits into none.
        seed: The seed of the order in which the bins of a set come out.
        shuffle_bins: Whether that order is random.
        shuffle_bins_group_by_feature: A feature that the rows of a set are sorted by (the mean of its different
            values); rows where it is equal are shuffled.
        meta_features: Features that get no segment ids and positions. Those without a length come as lists of one
            value for each sequence; those with one may be trees of arrays.
        pack_alignment_struct: A number that every sequence's start is a multiple of, or one for each feature.
        padding_struct: The value of padding for each feature; 0 by default.
        max_sequences_per_bin: The most sequences that a row may have.
    """

    _strategy = "first_fit"


class BestFitPackIterDataset(_BinPackIterDataset):
    """Packs each sequence into the fullest of several bins that has room for it.

    The fullest bin is the one with the most tokens, summed over all features that have a length. The arguments and
    the rows are those of `FirstFitPackIterDataset`.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.source([{"x": np.full(n, n)} for n in (2, 3, 1)]).to_iter_dataset()
    >>> for row in BestFitPackIterDataset(ds, length_struct={"x": 4}, num_packing_bins=2, shuffle_bins=False):
    ...     print(row["x"])
    [2 2 0 0]
    [3 3 3 1]

    Differs from Grain: an empty sequence counts for `max_sequences_per_bin`.
    """

    _strategy = "best_fit"


class ConcatThenSplitIterDataset(IterDataset):
    """Concatenates sequences and cuts them where a row is full.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.source([{"x": np.array([1, 2, 3])}, {"x": np.array([4, 5, 6])}]).to_iter_dataset()
    >>> for row in ConcatThenSplitIterDataset(ds, length_struct={"x": 4}):
    ...     print(row["x"], row["x_segment_ids"], row["x_positions"])
    [1 2 3 4] [1 1 1 2] [0 1 2 0]
    [5 6 0 0] [1 1 0 0] [0 1 0 0]

    Differs from Grain: every token comes once, even if features have different lengths; Grain may repeat tokens or not
    end.

    Args:
        parent: Elements that are dicts of arrays.
        length_struct: The length of a row for each feature that elements have.
        meta_features: Features that are not cut and get no segment ids and positions: every row with a segment of
            a sequence has all of them.
        split_full_length_features: Whether to cut a sequence that is exactly as long as a row like any other. If not,
            it is a row by itself, after the row that is open.
        bos_handling: Whether to replace the first token of every segment with `bos_token_id`.
        bos_features: The features in which to do so.
        bos_token_id: The token at the beginning of a sequence.
    """

    def __init__(
        self,
        parent: Dataset,
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ):
        stream = as_stream(parent, "ConcatThenSplitIterDataset")
        super().__init__(parent)
        self._operation = stream.pack(
            length_struct,
            strategy="concat_split",
            empty_sequences="keep",
            meta_features=tuple(meta_features),
            split_full_length_features=split_full_length_features,
            bos_handling=bos_handling,
            bos_features=tuple(bos_features),
            bos_token_id=bos_token_id,
        )._op


@dataclass
class PackAndBatchOperation(Operation):
    """An operation of a `DataLoader` that packs records by first fit into batches of `batch_size` rows.

    Each batch is a tuple of values, segment ids and positions: three trees like `length_struct`.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> records = [np.array([1, 2, 3]), np.array([4, 5]), np.array([6])]
    >>> pack = PackAndBatchOperation(length_struct=4, batch_size=2)
    >>> loader = DataLoader(data_source=records, sampler=SequentialSampler(3), operations=[pack])
    >>> values, segment_ids, positions = next(iter(loader))
    >>> values
    array([[1, 2, 3, 6],
           [4, 5, 0, 0]])

    Args:
        length_struct: A tree like that of the records, with the length of a row for each array.
        batch_size: How many rows a batch has.
        max_sequences_per_bin: The most records that a row may have.
    """

    length_struct: Any
    batch_size: int
    max_sequences_per_bin: int | None = None

    def __post_init__(self):
        check_counts(self, "batch_size", least=1)
        if self.max_sequences_per_bin is not None:
            check_counts(self, "max_sequences_per_bin", least=1)
        # Only meta features may be trees, so the whole record is one.
        self._layout = Layout({"record": plain_ints(self.length_struct)}, ["record"])

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        records = []
        needs = []
        bins = self._open_bins()
        index = 0
        for record in input_iterator:
            arrays = [array for (array,), _ in columns_of(self._layout, [{"record": record.data}])]
            lengths = tuple(map(len, arrays))
            check_lengths(self._layout.leaves, [[length] for length in lengths], split=False)
            needs.append(lengths)
            if bins.put(needs, len(records)) == len(records):
                yield Record(RecordMetadata(index), self._batch(records, bins))
                records = []
                needs = [lengths]
                bins = self._open_bins()
                bins.put(needs, 0)
            records.append(arrays)
            index = record.metadata.index
        if records:
            yield Record(RecordMetadata(index), self._batch(records, bins))

    def _open_bins(self) -> Bins:
        return FirstFitBins(self._layout.leaves, self.batch_size, max_sequences=self.max_sequences_per_bin)

    def _batch(self, records: list[list[np.ndarray]], bins: Bins) -> tuple[Any, Any, Any]:
        sizes = np.array([len(content) for content in bins.contents])
        columns = zip(*(records[i] for content in bins.contents for i in content), strict=True)
        written = [write(leaf, list(column), sizes) for leaf, column in zip(self._layout.leaves, columns, strict=True)]
        values, segment_ids, positions = (
            self._layout.join_leaves(leaves, (), ())["record"] for leaves in zip(*written, strict=True)
        )
        return values, segment_ids, positions
