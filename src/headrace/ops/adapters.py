"""What `MapDataset.source` and `DataLoader` take, as sources: arrays, sources, and what `headrace.sources` opens."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.storage.memory import ArrayDataSource, is_array_like

openers: list[Callable[[Any], Any]] = []
"""Functions that open what is not a source yet, such as a path; they return `None` for what they do not know."""


def as_source(given: Any) -> Any:
    """The source that something stands for; raises if it is none."""
    source = open_given_source(given)
    if isinstance(source, type):
        raise PipelineError(
            f"A source must be an object; got the class {source.__name__}. Make one: `{source.__name__}(...)`."
        )
    if is_array_like(source):
        return ArrayDataSource(source)
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(source, name)]
    if missing and (missing[0] == "__len__" or not hasattr(source, "__getitems__")):
        kind = type(source).__name__
        raise PipelineError(
            f"A source needs `__len__` and `__getitem__`; {kind} lacks `{missing[0]}`.{_hint_for_streams(source)}"
        )
    if is_of("datasets", "DatasetDict", source):
        splits = list(source)
        raise PipelineError(
            f"A DatasetDict has a dataset for each of its splits {splits}: choose one, as in "
            f"`MapDataset.source(HuggingFaceDataSource(datasets, split={splits[0] if splits else 'train'!r}))`."
        )
    if isinstance(source, Mapping):
        raise PipelineError(
            "A dict is a source only if its values are NumPy arrays or tensors of one length: element i is row i of "
            f"each. Got values of {sorted({type(value).__name__ for value in source.values()})}."
        )
    if _is_pair_of_arrays(source):
        raise PipelineError(
            f"A tuple of two arrays of {len(source[0])} rows is not read by rows. Name them: "
            "`MapDataset.source({'x': x, 'y': y})` has {'x': x[i], 'y': y[i]} as element i. If the arrays are two "
            "elements, give them in a list."
        )
    return source


def open_given_source(given: Any) -> Any:
    """The source of a path or a frame, arrays for a dict of tensors; anything else as it is."""
    for open_given in openers:
        if (source := open_given(given)) is not None:
            return source
    return given


def _hint_for_streams(source: Any) -> str:
    """What reads something that can only be read in order."""
    if is_of("datasets", "IterableDataset", source):
        return " `headrace.sources.HuggingFaceIterDataset(dataset)` reads it in order."
    if is_of("torch.utils.data", "IterableDataset", source):  # which Hugging Face's is too
        return " `headrace.sources.TorchIterDataset(dataset)` reads it in order."
    if hasattr(source, "__iter__"):
        return " `headrace.sources.from_generator(function)` reads what a function yields, in order."
    return ""


def is_of(module: str, name: str, value: Any) -> bool:
    """Whether something is of a class of a library, which need not be installed."""
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def _is_pair_of_arrays(source: Any) -> bool:
    if type(source) is not tuple or len(source) != 2 or not all(hasattr(each, "shape") for each in source):
        return False
    lengths = [np.shape(each)[:1] for each in source]
    return lengths[0] == lengths[1] != ()
