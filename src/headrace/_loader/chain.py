"""A loader's records and operations as one dataset.

Elements travel without metadata if their place in the stream determines it. If it does not (for a random operation
after a batch, or one that shares a generator with a random operation before a filter), they travel as records.
"""

from collections.abc import Sequence
from typing import Any

from headrace import transforms
from headrace._loader.kinds import ELEMENTWISE, PLACED, RANDOM, function_of
from headrace._loader.order import Lent, Order
from headrace._loader.records import with_records
from headrace._ops.base import describe
from headrace._ops.element import PlacedMap, RecordMap
from headrace.dataset import MapDataset
from headrace.errors import PipelineError
from headrace.operations import Operation
from headrace.options import ReadOptions


def chain(records: MapDataset, order: Order, operations: Sequence[Any], read_options: ReadOptions | None) -> Any:
    """The dataset of a loader: its operations on records in the sampler's order."""
    if any(isinstance(op, RANDOM) for op in operations) and not order.has_rng:
        raise PipelineError(
            "A random operation needs random numbers, and the sampler has no seed: IndexSampler(..., seed=42)."
        )
    ordered: Any = records.to_iter_dataset(read_options, allow_nones=True)
    if any(isinstance(op, Operation) for op in operations) or _need_records(operations):
        return with_records(ordered, order, operations)
    dataset = ordered
    for run in _runs(operations):
        if isinstance(run, list):
            dataset = dataset._then(PlacedMap(dataset._op, _Steps(run, order)))
        elif isinstance(run, transforms.Map):
            dataset = dataset._then(RecordMap(dataset._op, run))
        else:
            dataset = dataset.apply(run)
    return dataset


def _need_records(operations: Sequence[Any]) -> bool:
    """Whether places do not determine all metadata: see the top of this file."""
    group_before = random_before = filter_after_random = False
    for op in operations:
        if (isinstance(op, PLACED) and group_before) or (isinstance(op, RANDOM) and filter_after_random):
            return True
        if isinstance(op, transforms.Filter):
            filter_after_random = random_before
        elif not isinstance(op, ELEMENTWISE):
            group_before = True
        random_before = random_before or isinstance(op, RANDOM)
    return False


def _runs(operations: Sequence[Any]) -> list[Any]:
    """Operations one by one, and as a list those from one that needs metadata to the next batch or filter."""
    runs: list[Any] = []
    for op in operations:
        if runs and isinstance(runs[-1], list) and isinstance(op, ELEMENTWISE):
            runs[-1].append(op)
        else:
            runs.append([op] if isinstance(op, PLACED) else op)
    return [part for run in runs for part in (_without_tail(run) if isinstance(run, list) else [run])]


def _without_tail(run: list[Any]) -> list[Any]:
    """Takes the maps at the end out of a list of operations; they follow one by one."""
    end = max(i for i, op in enumerate(run) if isinstance(op, PLACED)) + 1
    return [run[:end], *run[end:]]


class _Steps(transforms.MapWithIndex):
    """Operations on one record that share its random number generator."""

    def __init__(self, operations: Sequence[Any], order: Order):
        self._operations, self._order = operations, order
        self._steps = [(function_of(op), isinstance(op, RANDOM), isinstance(op, PLACED)) for op in operations]
        self._free: list[Lent] = []  # one for each thread
        self._draws_from_globals = any(isinstance(op, transforms.SeedGlobals) for op in operations)

    def map_with_index(self, index: int, element: Any) -> Any:
        try:
            lent = self._free.pop()
        except IndexError:  # other threads use all of them
            lent = Lent(self._order)
        metadata = lent.of(index)
        for function, is_random, is_placed in self._steps:
            if is_random:
                element = function(element, metadata.rng)
            elif is_placed:
                element = function(metadata.index, element)
            else:
                element = function(element)
        if lent.is_back(metadata):
            self._free.append(lent)
        return element

    def __getstate__(self) -> Any:
        return self._operations, self._order

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def __repr__(self) -> str:
        return " → ".join(map(describe, self._operations))
