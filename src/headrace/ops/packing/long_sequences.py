"""Makes sequences fit that are longer than a row, before they are packed.

Elements that are not dicts, or lack a feature, pass: the packer raises the error.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import PipelineError, StructureError
from headrace.ops.element import FilterOp, FlatMapOp, MapOp
from headrace.ops.op import Op


@dataclass(frozen=True)
class Fits:
    """Keeps elements of which no feature is longer than its row."""

    lengths: dict[str, int]

    def filter(self, element: Any) -> bool:
        return not _long(element, self.lengths)


@dataclass(frozen=True)
class Truncate:
    """Cuts each feature to the length of its row."""

    lengths: dict[str, int]

    def map(self, element: Any) -> Any:
        long = _long(element, self.lengths)
        return {**element, **{key: element[key][: self.lengths[key]] for key in long}} if long else element


@dataclass(frozen=True)
class SplitLong:
    """Cuts an element into parts that fit, all features at the same places; each part has the other features whole."""

    lengths: dict[str, int]

    def flat_map(self, element: Any) -> list[Any]:
        if not _long(element, self.lengths):
            return [element]
        sizes = {key: len(element[key]) for key in self.lengths if key in element}
        if len(set(sizes.values())) > 1:
            raise StructureError(
                f"Cannot split an element whose features are of different lengths, {sizes}: they should match. Make "
                "them equally long in an earlier `map`, or choose long_sequences='truncate' or 'drop'."
            )
        step = min(self.lengths.values())
        starts = range(0, max(sizes.values()), step)
        return [{**element, **{key: element[key][i : i + step] for key in sizes}} for i in starts]


def _long(element: Any, lengths: dict[str, int]) -> list[str]:
    """The features that are longer than a row."""
    if type(element) is not dict and not isinstance(element, Mapping):
        return []
    return [key for key, most in lengths.items() if _size(element.get(key)) > most]


def _size(value: Any) -> int:
    if type(value) is np.ndarray and value.ndim:
        return len(value)
    return len(value) if hasattr(value, "__len__") and getattr(value, "ndim", 1) else 1


LONG_SEQUENCES = ("error", "split", "truncate", "drop")


def fit_to_rows(parent: Op, lengths: dict[str, int], how: str) -> Op:
    """Elements whose features fit into rows of these lengths; with "error", the packer checks them."""
    match how:
        case "error":
            return parent
        case "split":
            return FlatMapOp(parent, SplitLong(lengths))
        case "truncate":
            return MapOp(parent, Truncate(lengths))
        case "drop":
            return FilterOp(parent, Fits(lengths))
    raise PipelineError(f"long_sequences must be one of {', '.join(map(repr, LONG_SEQUENCES))}; got {how!r}.")
