"""Packs sequences of different lengths into rows of a fixed length.

`operations` defines the strategies, with `layout` (the features of a row), `bins`, `concat_split` and
`long_sequences`; `streams` computes rows, from the `intake` of sequences to writing `rows`; `report` counts padding.

A segment is what a row has of one sequence: all of it, or a part.
"""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import lazy_module

if TYPE_CHECKING:
    from headrace.compat.grain.packing import BestFitPackIterDataset as BestFitPackIterDataset
    from headrace.compat.grain.packing import ConcatThenSplitIterDataset as ConcatThenSplitIterDataset
    from headrace.compat.grain.packing import FirstFitPackIterDataset as FirstFitPackIterDataset
    from headrace.compat.grain.packing import PackAndBatchOperation as PackAndBatchOperation
    from headrace.ops.packing.packers import BOSHandling as BOSHandling
    from headrace.ops.packing.padding_report import Padding as Padding
    from headrace.ops.packing.padding_report import PaddingReport as PaddingReport
    from headrace.ops.packing.padding_report import padding_report as padding_report

__getattr__, __dir__, _MODULE_OF = lazy_module(
    __name__,
    {
        "compat.grain.packing": (
            "BestFitPackIterDataset",
            "ConcatThenSplitIterDataset",
            "FirstFitPackIterDataset",
            "PackAndBatchOperation",
        ),
        "ops.packing.packers": ("BOSHandling",),
        "ops.packing.padding_report": ("Padding", "PaddingReport", "padding_report"),
    },
)
