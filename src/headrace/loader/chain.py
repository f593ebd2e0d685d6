"""The operations that a loader takes."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace import transforms
from headrace.dataset import IterDataset, MapDataset
from headrace.dataset.base import METHODS, Dataset, method_of
from headrace.errors import PipelineError
from headrace.iterator import DatasetIterator
from headrace.loader.record_order import Order, ReusableMetadata
from headrace.operations import Operation, batched
from headrace.ops.calls import check_is_element
from headrace.ops.element import PlacedMap, RecordMap
from headrace.ops.op import describe
from headrace.options import ReadOptions
from headrace.records import Record, RecordMetadata

RANDOM = transforms.RandomMap | transforms.TfRandomMap
PLACED = RANDOM | transforms.MapWithIndex
ELEMENTWISE = transforms.Map | PLACED


def as_transforms(operations: Any) -> list[Any]:
    """A loader's operations as transforms; an `Operation` stays as it is if no transform does the same."""
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise PipelineError(f"operations must be a sequence of transforms; got {type(operations).__name__}.")
    return [_as_transform(operation) for operation in operations]


def _as_transform(operation: Any) -> Any:
    if isinstance(operation, type):
        raise PipelineError(
            f"operations contains the class {operation.__name__}. Pass an instance of it or, if the class itself is "
            f"the function to call, MapTransform({operation.__name__})."
        )
    if isinstance(operation, Operation):
        return operation.as_transform() or operation
    if isinstance(operation, transforms.Batch):
        return operation
    kinds = [name for name, kind in METHODS.items() if isinstance(operation, kind)]
    if len(kinds) == 1:
        return operation
    if takes_records(operation):
        return RecordsFunction(operation)
    methods = kinds or [name for name in METHODS if callable(getattr(operation, name, None))]
    if kinds or len(methods) == 1:  # of several kinds, the first counts
        kind = transforms.RandomMap if methods[0] == "np_random_map" else METHODS[methods[0]]
        return kind(getattr(operation, methods[0]))
    if callable(operation):
        return transforms.Map(operation)
    raise PipelineError(
        f"operations contains a {type(operation).__name__}, {operation!r}, which is not a transform. A loader takes "
        "MapTransform, RandomMapTransform, MapWithIndexTransform, FilterTransform, FlatMapTransform, Batch, "
        "subclasses of Operation, generator functions of an iterator of records, and functions of one element."
    )


class RecordsFunction(Operation):
    """A function of an iterator of records that is no subclass of `Operation`."""

    def __init__(self, function: Callable[[Iterator[Record]], Iterator[Record]]):
        self.function = function

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        return self.function(input_iterator)

    def __repr__(self) -> str:
        return describe(self.function)


def takes_records(operation: Any) -> bool:
    """Whether a callable turns an iterator of records into another: it is a generator function, or says so.

    It says so by a parameter or result that is annotated as an iterator, or by a parameter `input_iterator`.
    """
    if not callable(operation):
        return False
    is_plain = inspect.isroutine(operation) or isinstance(operation, partial)  # or an object with a `__call__`
    function: Any = inspect.unwrap(operation if is_plain else type(operation).__call__)
    if inspect.isgeneratorfunction(function):
        return True
    try:
        signature = inspect.signature(operation)
    except (TypeError, ValueError):  # a function in C may have none
        return False
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    annotations = first.annotation, signature.return_annotation
    return first.name == "input_iterator" or any(map(_is_iterator, annotations))


def _is_iterator(annotation: Any) -> bool:
    """Whether an annotation, which may be text, means `Iterator[...]` or `Generator[...]`."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split("[")[0].rpartition(".")[2] in ("Iterator", "Generator")


def identity(operations: Sequence[Any]) -> str:
    """The operations by kind, for a state: without functions, or anything that changes from run to run."""
    return ", ".join(map(kind_name, operations)) or "none"


def kind_name(transform: Any) -> str:
    """An operation by its kind, or the name of a user's own."""
    if isinstance(transform, transforms.Batch):
        return f"batch({transform.batch_size}{', drop_remainder' if transform.drop_remainder else ''})"
    if isinstance(transform, RecordsFunction):
        function: Any = transform.function.func if isinstance(transform.function, partial) else transform.function
        return getattr(function, "__name__", type(function).__name__)
    return (method_of(transform) or type(transform).__name__).removeprefix("np_")


def display_name(transform: Any) -> str:
    """An operation for display, with its function and arguments."""
    return kind_name(transform) if isinstance(transform, transforms.Batch) else describe(transform)


def function_of(transform: Any) -> Callable[..., Any]:
    """The method that does a transform's work."""
    method = method_of(transform)
    if method is None:
        raise TypeError(
            f"{describe(transform)} is not a transform in this process, where its class was imported again. "
            "Check that its module defines the same class in every process."
        )
    return getattr(transform, method)


# --------------------------------------------------------------------------------------------------------- records
# Operations on records: elements with their metadata.


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
        self._op = op
        self._function = function_of(op)
        self._apply = apply
        self._draws_from_globals = isinstance(op, transforms.SeedGlobals)

    def __call__(self, record: Record) -> Any:
        return self._apply(self._function, record)

    def __repr__(self) -> str:
        return describe(self._op)


class _Batched:
    """Stacks records; the batch has the metadata of the last."""

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
                f"{kind_name(self._operation)} returned a {type(records).__name__}: an Operation returns an iterator "
                "of Records."
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
                f"{kind_name(self._operation)} yielded a {type(record).__name__}: an Operation yields Records."
            )
        while self._read and self._read[0][0] <= record.metadata.index:
            _, self._state = self._read.pop(0)
        return record

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state)
        self._restart(state)


# ----------------------------------------------------------------------------------------------------------- chain
# A loader's records and operations as one dataset.
#
# Elements travel without metadata if their place in the stream determines it. If it does not (for a random operation
# after a batch, or one that shares a generator with a random operation before a filter), they travel as records.


def chain(records: MapDataset, order: Order, operations: Sequence[Any], read_options: ReadOptions | None) -> Any:
    """The dataset of a loader: its operations on records in the sampler's order."""
    if any(isinstance(op, RANDOM) for op in operations) and not order.has_rng:
        raise PipelineError(
            "A random operation needs a seed, and the sampler has none. Give it one: IndexSampler(..., seed=42)."
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
    """Whether places do not determine all metadata: see the comment above `chain`."""
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
        self._operations = operations
        self._order = order
        self._steps = [(function_of(op), isinstance(op, RANDOM), isinstance(op, PLACED)) for op in operations]
        self._free: list[ReusableMetadata] = []  # one for each thread
        self._draws_from_globals = any(isinstance(op, transforms.SeedGlobals) for op in operations)

    def map_with_index(self, index: int, element: Any) -> Any:
        try:
            lent = self._free.pop()
        except IndexError:  # other threads use all of them
            lent = ReusableMetadata(self._order)
        metadata = lent.of(index)
        for function, is_random, is_placed in self._steps:
            if is_random:
                element = function(element, metadata.rng)
            elif is_placed:
                element = function(metadata.index, element)
            else:
                element = function(element)
        if lent.can_reuse(metadata):
            self._free.append(lent)
        return element

    def __getstate__(self) -> Any:
        return self._operations, self._order

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)

    def __repr__(self) -> str:
        return " → ".join(map(describe, self._operations))
