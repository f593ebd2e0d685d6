"""Operations on records: elements with their metadata."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace import transforms
from headrace._dataset.base import Dataset
from headrace._loader.kinds import RANDOM, function_of, named
from headrace._loader.order import Order
from headrace._ops.base import describe
from headrace._ops.element import PlacedMap
from headrace._plan.elements import check_is_element
from headrace.dataset import IterDataset
from headrace.errors import PipelineError
from headrace.iterator import DatasetIterator
from headrace.operations import Operation, batched
from headrace.records import Record, RecordMetadata


def with_records(ordered: IterDataset, order: Order, operations: Sequence[Any]) -> Any:
    """The dataset of a loader, whose elements travel with their metadata."""
    dataset: Any = ordered._then(PlacedMap(ordered._op, _AsRecord(order)))
    for op in operations:
        dataset = _on_records(dataset, op)
    return dataset.map(_data)


def _on_records(dataset: Any, op: Any) -> Any:
    if isinstance(op, Operation):
        return _Operated(dataset, op)
    if isinstance(op, transforms.Batch):
        return dataset.batch(op.batch_size, drop_remainder=op.drop_remainder, batch_fn=_Batched(op))
    if isinstance(op, transforms.Filter):
        return dataset.filter(_OnRecord(op, lambda function, record: function(record.data)))
    if isinstance(op, transforms.FlatMap):
        return dataset.flat_map(_OnRecord(op, _children))
    if isinstance(op, RANDOM):
        return dataset.map(_OnRecord(op, _draw))
    return dataset.map(_OnRecord(op, _map_with_index if isinstance(op, transforms.MapWithIndex) else _map))


class _OnRecord:
    """A user's operation as a function of records; its repr is that of the operation."""

    def __init__(self, op: Any, apply: Callable[[Callable[..., Any], Record], Any]):
        self._op, self._function, self._apply = op, function_of(op), apply
        self._draws_from_globals = isinstance(op, transforms.SeedGlobals)

    def __call__(self, record: Record) -> Any:
        return self._apply(self._function, record)

    def __repr__(self) -> str:
        return describe(self._op)


class _Batched:
    """Stacks records; the batch gets the metadata of the last."""

    def __init__(self, op: transforms.Batch):
        self._batch_fn = op.batch_fn

    def __call__(self, records: Sequence[Record]) -> Record:
        return batched(records, self._batch_fn)

    def __repr__(self) -> str:
        return "stack" if self._batch_fn is None else describe(self._batch_fn)


def _map(function: Callable[..., Any], record: Record) -> Record:
    made = function(record.data)
    check_is_element(function, made)
    return Record(record.metadata, made)


def _map_with_index(function: Callable[..., Any], record: Record) -> Record:
    return Record(record.metadata, function(record.metadata.index, record.data))


def _draw(function: Callable[..., Any], record: Record) -> Record:
    return Record(record.metadata, function(record.data, record.metadata.rng))


class _AsRecord(transforms.MapWithIndex):
    """Adds its metadata to an element."""

    def __init__(self, order: Order):
        self._order = order

    def map_with_index(self, index: int, element: Any) -> Record:
        return Record(self._order.metadata_of(index), element)


def _data(record: Record) -> Any:
    return record.data


def _children(function: Callable[..., Any], record: Record) -> list[Record]:
    """The children of a record, each with its own random numbers, whichever process computes it."""
    return [Record(_nth_child(record.metadata, i), child) for i, child in enumerate(function(record.data))]


def _nth_child(metadata: RecordMetadata, n: int) -> RecordMetadata:
    rng = metadata.rng
    if rng is None:
        return metadata
    bits: Any = rng.bit_generator
    if not n or hasattr(bits, "jumped"):
        child = type(rng)(bits.jumped(n) if n else copy.deepcopy(bits))
    else:
        child = np.random.default_rng([n, *copy.deepcopy(rng).integers(0, 2**32, 4).tolist()])
    return RecordMetadata(metadata.index, metadata.record_key, child)


class _Operated(IterDataset):
    """Records after a user's `Operation`."""

    def __init__(self, parent: Dataset, operation: Operation):
        super().__init__(parent)
        self._user_operation = operation

    @property
    def _label(self) -> str:
        return describe(self._user_operation)

    def __iter__(self) -> Any:
        return _OperatedIterator(iter(self._parent), self._user_operation)  # type: ignore[arg-type]


class _OperatedIterator(DatasetIterator):
    """Its state is its parent's after the record whose metadata the last output has."""

    def __init__(self, parent: DatasetIterator, operation: Operation):
        super().__init__(parent)
        self._operation = operation
        self._restart(parent.get_state())

    def _restart(self, state: Any) -> None:
        self._state = state
        self._read: list[tuple[int, Any]] = []  # since the last output: indices, and states after them
        records: Any = self._operation(self._feed())
        if not hasattr(records, "__iter__"):
            raise PipelineError(
                f"{named(self._operation)} returned a {type(records).__name__}: an Operation returns an iterator of "
                "Records."
            )
        self._records = iter(records)

    def _feed(self) -> Any:
        for record in self._parent:
            self._read.append((record.metadata.index, self._parent.get_state()))
            yield record

    def __next__(self) -> Record:
        record = next(self._records)
        if not isinstance(record, Record):
            raise PipelineError(
                f"{named(self._operation)} yielded a {type(record).__name__}: an Operation yields Records."
            )
        while self._read and self._read[0][0] <= record.metadata.index:
            _, self._state = self._read.pop(0)
        return record

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state)
        self._restart(state)
