"""How much of packed rows is padding, strategy by strategy."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.packing.packers import STRATEGIES, PackOptions, options_of

_IDS = "_segment_ids"


@dataclass(frozen=True)
class Padding:
    """How much of packed rows is padding, feature by feature.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.source([{"x": np.ones(n)} for n in (3, 2, 1)]).to_iter_dataset()
    >>> Padding.of(ds.pack({"x": 4}))
    Padding(num_rows=2, cells={'x': 8}, padding={'x': 2})
    """

    num_rows: int
    cells: dict[str, int]
    padding: dict[str, int]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> "Padding":
        """Counts the padding of rows, or of batches of rows: the cells with segment id 0."""
        num_rows = 0
        cells = Counter[str]()
        padding = Counter[str]()
        for row in rows:
            ids = {key.removesuffix(_IDS): np.asarray(row[key]) for key in row if key.endswith(_IDS)}
            num_rows += max((ids[key].size // ids[key].shape[-1] for key in ids), default=0)
            cells.update({key: ids[key].size for key in ids})
            padding.update({key: int(np.count_nonzero(ids[key] == 0)) for key in ids})
        return cls(num_rows, dict(cells), dict(padding))

    @property
    def share(self) -> float:
        """The share of padding in all cells, from 0 to 1."""
        return sum(self.padding.values()) / max(1, sum(self.cells.values()))


@dataclass(frozen=True)
class PaddingReport:
    """The padding of the same sequences by strategy, and how many were dropped because they are empty.

    `print` shows it as a table.

    >>> ds = MapDataset.source([{"x": np.ones(n)} for n in (3, 2, 1)]).to_iter_dataset()
    >>> report = padding_report(ds, {"x": 4}, strategies=["first_fit"])
    >>> report.strategies["first_fit"].share
    0.25
    """

    strategies: dict[str, Padding]
    num_empty: int = 0

    def __str__(self) -> str:
        lines = [f"{'strategy':<12}  {'rows':>8}  {'padding':>8}"]
        for name, padding in self.strategies.items():
            lines.append(f"{name:<12}  {padding.num_rows:>8,}  {padding.share:>8.2%}")
        if self.num_empty:
            lines.append(f"{self.num_empty:,} empty sequence{'s' if self.num_empty > 1 else ''} dropped")
        return "\n".join(lines)


def padding_report(
    ds: Any,
    length_struct: Mapping[str, Any],
    *,
    strategies: Sequence[str] = tuple(STRATEGIES),
    num_sequences: int = 10_000,
    long_sequences: str = "split",
    **options: Unpack[PackOptions],
) -> PaddingReport:
    """Packs the first sequences of a dataset by each strategy, to see how much of the rows is padding.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.range(1, 400).map(lambda i: {"x": np.ones(i * 37 % 60 + 1)}).to_iter_dataset()
    >>> print(padding_report(ds, {"x": 64}, num_packing_bins=8))
    strategy          rows   padding
    first_fit          214    11.22%
    best_fit           213    10.81%
    concat_split       190     0.01%

    Args:
        ds: An `IterDataset` whose elements are dicts of arrays.
        length_struct: The length of a row for each feature.
        strategies: The strategies to compare.
        num_sequences: How many elements to pack.
        long_sequences: What to do with sequences longer than a row: "split", "truncate" or "drop".
        options: Options of `IterDataset.pack`; each strategy uses those that it has.
    """
    known = {name for strategy in strategies for name in options_of(strategy)}
    for name in options:
        if name not in known:
            raise PipelineError(f"There is no option {name!r}; the options are {', '.join(sorted(known))}.")
    ds = ds.map(lambda element: {key: element[key] for key in length_struct if key in element})
    found = {}
    num_empty = 0
    for strategy in strategies:
        mine: Any = {name: value for name, value in options.items() if name in options_of(strategy)}
        rows = ds.take(num_sequences).pack(length_struct, strategy=strategy, long_sequences=long_sequences, **mine)
        iterator: Any
        with iter(rows) as iterator:
            found[strategy] = Padding.of(iterator)
            stages = {stage.stage: stage for stage in iterator.stats().stages}
        num_empty = stages[rows._op.label()].left_out
    return PaddingReport(found, num_empty)
