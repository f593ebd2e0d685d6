"""How a source, a sampler and operations become a dataset.

Elements travel bare wherever their metadata can be told from their place in the stream. Where it cannot (a random
operation after a batch, or one that goes on with the generator of another behind a filter), they travel as records.
"""

import copy
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace import transforms
from headrace._dataset import Dataset
from headrace._ops.base import describe
from headrace._ops.element import PlacedMap
from headrace.dataset import IterDataset, MapDataset
from headrace.errors import PipelineError
from headrace.iterator import DatasetIterator
from headrace.operations import Operation, batched
from headrace.options import ReadOptions
from headrace.records import Record, RecordMetadata
from headrace.samplers import At, BuiltInSampler, Sampler, strided
from headrace.sharding import NoSharding, ShardOptions

_METHODS: dict[str, type] = {
    "map": transforms.Map,
    "random_map": transforms.RandomMap,
    "np_random_map": transforms.TfRandomMap,
    "map_with_index": transforms.MapWithIndex,
    "filter": transforms.Filter,
    "flat_map": transforms.FlatMap,
}

# ------------------------------------------------------------------------------------------ records in order


class Order:
    """The places of a sampler that one shard reads, and what is at them."""

    def __init__(self, sampler: Any, shard_options: ShardOptions | None):
        if isinstance(sampler, type) or not isinstance(sampler, Sampler):
            raise PipelineError(
                "A sampler answers `sampler[i]` with the RecordMetadata of the record at place i of the stream; got "
                f"{sampler!r}. See IndexSampler and SequentialSampler."
            )
        self.sampler: Any = sampler
        self.shard = _shard(sampler, shard_options)
        self.is_known = isinstance(sampler, BuiltInSampler) and sampler.is_as_written
        self.first = None if self.is_known else _first_metadata(sampler)

    def read(self, records: MapDataset) -> MapDataset:
        """The records of this shard, in order."""
        sampler, count = self.sampler, len(records)
        if not self.is_known:
            return MapDataset.select_from_datasets([records], _Selection(self, count))  # type: ignore[arg-type]
        if sampler.num_records > count:
            raise PipelineError(
                f"The sampler has num_records={sampler.num_records}, and the data source has {count} records. "
                "Give the sampler len(data_source), or fewer to read only the first ones."
            )
        ordered = sampler.read(records)
        return ordered if sampler.shard_options.shard_count > 1 else strided(ordered, self.shard)

    def place(self, nth: int) -> int:
        """The place in the whole stream of the n-th record of this shard."""
        return self.shard.shard_index + nth * self.shard.shard_count

    def metadata_of(self, nth: int) -> RecordMetadata:
        """The metadata of the n-th record of this shard, with a generator that nobody else has."""
        metadata = self.sampler[self.place(nth)]
        if self.is_known or metadata.rng is None:
            return metadata
        return RecordMetadata(metadata.index, metadata.record_key, copy.deepcopy(metadata.rng))

    def metadata(self) -> "Lent":
        """The same to be lent again and again: see `Lent`."""
        return Lent(self)

    @property
    def has_rng(self) -> bool:
        """Whether records have random number generators, as far as the first one tells."""
        if self.is_known:
            return self.sampler.has_rng
        return self.first is None or self.first.rng is not None


def _first_metadata(sampler: Any) -> RecordMetadata | None:
    """What a user's sampler says of its first place, checked; `None` where it has no places."""
    try:
        first = sampler[0]
    except IndexError:
        return None
    if not all(hasattr(first, name) for name in ("index", "record_key", "rng")):
        raise PipelineError(
            f"{type(sampler).__name__} is no sampler: `sampler[0]` must be a RecordMetadata(index, record_key, rng), "
            f"and is {first!r}. See IndexSampler and SequentialSampler."
        )
    return first


class Lent:
    """Metadata of one record at a time: making a generator for each costs ten times as much as using one again."""

    def __init__(self, order: Order):
        self._order = order
        self._at: At | None = order.sampler.metadata() if order.is_known else None
        self._references = None if self._at is None else sys.getrefcount(self._at(0).rng)

    def of(self, nth: int) -> RecordMetadata:
        """The metadata of the n-th record of the shard."""
        return self._order.metadata_of(nth) if self._at is None else self._at(self._order.place(nth))

    def is_back(self, metadata: RecordMetadata) -> bool:
        """Whether nobody has kept the generator, so that it can be used for another record."""
        rng = metadata.rng
        return rng is None or self._references is None or sys.getrefcount(rng) <= self._references + 1


def _shard(sampler: Any, given: ShardOptions | None) -> ShardOptions:
    if given is not None and not isinstance(given, ShardOptions):
        raise PipelineError(f"shard_options must be ShardOptions; got {type(given).__name__}.")
    own = sampler.shard_options if isinstance(sampler, BuiltInSampler) else NoSharding()
    if own.shard_count == 1:
        return given or own
    if given is None or isinstance(given, NoSharding):
        return own
    fields = ("shard_index", "shard_count", "drop_remainder")
    if any(getattr(given, name) != getattr(own, name) for name in fields):
        raise PipelineError(
            f"The loader and the sampler disagree on the shard to read: {given!r} and {own!r}. "
            "Give shard_options to one of them."
        )
    return own


class _Selection(transforms.DatasetSelectionMap):
    """The keys of a user's sampler, as a selection from one dataset."""

    def __init__(self, order: Order, num_records: int):
        self._order, self._num_records = order, num_records
        places = _num_places(order.sampler)
        self._length = places if places == sys.maxsize else order.shard.piece(places)[1]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        key = self._order.metadata_of(index).record_key
        try:
            place = operator.index(key)  # type: ignore[arg-type]
        except TypeError:
            place = -1
        if not 0 <= place < self._num_records:
            raise PipelineError(
                f"{type(self._order.sampler).__name__} gives record_key={key!r} at place {self._order.place(index)}; "
                f"keys are ints from 0 to {self._num_records - 1}, as the data source has {self._num_records} records."
            )
        return 0, place


def _num_places(sampler: Any) -> int:
    """How many places a user's sampler has: its length, or where it begins to raise `IndexError`."""
    if hasattr(sampler, "__len__"):
        return len(sampler)

    def has(place: int) -> bool:
        try:
            sampler[place]
        except IndexError:
            return False
        return True

    below, above = 0, 1  # those below `below` are there
    while has(above - 1):
        if above >= 1 << 62:
            return sys.maxsize
        below, above = above, 2 * above
    while below + 1 < above:
        middle = (below + above) // 2
        below, above = (middle, above) if has(middle - 1) else (below, middle)
    return below


# ------------------------------------------------------------------------------------------------ operations


def as_transforms(operations: Any) -> list[Any]:
    """What a loader is given as operations: transforms, and operations that nothing else says."""
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise PipelineError(f"operations must be a sequence of transforms; got {type(operations).__name__}.")
    return [_as_transform(operation) for operation in operations]


def _as_transform(operation: Any) -> Any:
    if isinstance(operation, type):
        raise PipelineError(
            f"operations has the class {operation.__name__}. Give an object of it, or, where the class itself is the "
            f"function to call, MapTransform({operation.__name__})."
        )
    if isinstance(operation, Operation):
        return operation.as_transform() or operation
    if isinstance(operation, transforms.Batch):
        return operation
    kinds = [name for name, kind in _METHODS.items() if isinstance(operation, kind)]
    if len(kinds) == 1:
        return operation
    methods = kinds or [name for name in _METHODS if callable(getattr(operation, name, None))]
    if kinds or len(methods) == 1:  # of several kinds at once, it is the first
        kind = transforms.RandomMap if methods[0] == "np_random_map" else _METHODS[methods[0]]
        return kind(getattr(operation, methods[0]))
    if callable(operation):
        return transforms.Map(operation)
    raise PipelineError(
        f"operations has a {type(operation).__name__}, {operation!r}, which is no transform. Accepted are "
        "MapTransform, RandomMapTransform, MapWithIndexTransform, FilterTransform, FlatMapTransform, Batch, "
        "subclasses of Operation, and functions of one element."
    )


def identity(operations: Sequence[Any]) -> str:
    """The operations by kind, for a state: no functions, and nothing that changes from run to run."""
    return ", ".join(map(_kind, operations)) or "none"


def _kind(transform: Any) -> str:
    if isinstance(transform, transforms.Batch):
        return f"batch({transform.batch_size}{', drop_remainder' if transform.drop_remainder else ''})"
    for name, kind in _METHODS.items():
        if isinstance(transform, kind):
            return name.removeprefix("np_")
    return type(transform).__name__


def _function(transform: Any) -> Callable[..., Any]:
    for name, kind in _METHODS.items():
        if isinstance(transform, kind):
            return getattr(transform, name)
    raise TypeError(
        f"{describe(transform)} is no transform of Headrace's in this process; its class was imported anew."
    )


RANDOM = transforms.RandomMap | transforms.TfRandomMap
PLACED = RANDOM | transforms.MapWithIndex
ELEMENTWISE = transforms.Map | PLACED


def chain(records: MapDataset, order: Order, operations: Sequence[Any], read_options: ReadOptions | None) -> Any:
    """The dataset of a loader: records in order, and then its operations."""
    if any(isinstance(op, RANDOM) for op in operations) and not order.has_rng:
        raise PipelineError(
            "A random operation needs random numbers, and the sampler has no seed: IndexSampler(..., seed=42)."
        )
    ordered: Any = order.read(records).to_iter_dataset(read_options, allow_nones=True)
    if any(isinstance(op, Operation) for op in operations) or _need_records(operations):
        return _with_records(ordered, order, operations)
    dataset = ordered
    for run in _runs(operations):
        if isinstance(run, list):
            dataset = dataset._then(PlacedMap(dataset._op, _Steps(run, order)))
        else:
            dataset = dataset.apply(run)
    return dataset


def _need_records(operations: Sequence[Any]) -> bool:
    """Whether some metadata does not follow from places: see the top of this file."""
    kinds = "".join("r" if isinstance(op, RANDOM) else "." if isinstance(op, ELEMENTWISE) else "|" for op in operations)
    filters = [isinstance(op, transforms.Filter) for op in operations]
    first_group = next((i for i, (k, f) in enumerate(zip(kinds, filters, strict=True)) if k == "|" and not f), None)
    late = first_group is not None and any(isinstance(op, PLACED) for op in operations[first_group:])
    return late or any(isinstance(op, transforms.Filter) for op in operations[kinds.find("r") : kinds.rfind("r")])


def _runs(operations: Sequence[Any]) -> list[Any]:
    """Operations one by one, but those from the first that needs metadata to the last as lists."""
    runs: list[Any] = []
    for op in operations:
        if runs and isinstance(runs[-1], list) and isinstance(op, ELEMENTWISE):
            runs[-1].append(op)
        else:
            runs.append([op] if isinstance(op, PLACED) else op)
    return [part for run in runs for part in (_without_tail(run) if isinstance(run, list) else [run])]


def _without_tail(run: list[Any]) -> list[Any]:
    """A list of operations without the maps at its end, which follow one by one."""
    end = max(i for i, op in enumerate(run) if isinstance(op, PLACED)) + 1
    return [run[:end], *run[end:]]


class _Steps(transforms.MapWithIndex):
    """Operations on one record that share its random number generator."""

    def __init__(self, operations: Sequence[Any], order: Order):
        self._operations, self._order = operations, order
        self._steps = [(_function(op), isinstance(op, RANDOM), isinstance(op, PLACED)) for op in operations]
        self._free: list[Lent] = []  # one for each thread that is at work

    def map_with_index(self, index: int, element: Any) -> Any:
        lent = self._free.pop() if self._free else self._order.metadata()
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


# ---------------------------------------------------------------------------------------- elements as records


def _with_records(ordered: IterDataset, order: Order, operations: Sequence[Any]) -> Any:
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
    """A user's operation as a function of records; it is shown as what the user wrote."""

    def __init__(self, op: Any, apply: Callable[[Callable[..., Any], Record], Any]):
        self._op, self._function, self._apply = op, _function(op), apply

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
    return Record(record.metadata, function(record.data))


def _map_with_index(function: Callable[..., Any], record: Record) -> Record:
    return Record(record.metadata, function(record.metadata.index, record.data))


def _draw(function: Callable[..., Any], record: Record) -> Record:
    return Record(record.metadata, function(record.data, record.metadata.rng))


class _AsRecord(transforms.MapWithIndex):
    """Puts an element together with its metadata."""

    def __init__(self, order: Order):
        self._order = order

    def map_with_index(self, index: int, element: Any) -> Record:
        return Record(self._order.metadata_of(index), element)


def _data(record: Record) -> Any:
    return record.data


def _children(function: Callable[..., Any], record: Record) -> list[Record]:
    """The children of a record; each draws random numbers of its own, whoever computes it."""
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
    """Records after an operation of the user's own."""

    def __init__(self, parent: Dataset, operation: Operation):
        super().__init__(parent)
        self._operation = operation

    @property
    def _label(self) -> str:
        return describe(self._operation)

    def __iter__(self) -> Any:
        return _OperatedIterator(iter(self._parent), self._operation)  # type: ignore[arg-type]


class _OperatedIterator(DatasetIterator):
    """Its state is its parent's after the record that the last output has the metadata of."""

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
                f"{type(self._operation).__name__} returned a {type(records).__name__}: an Operation returns an "
                "iterator of Records."
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
                f"{type(self._operation).__name__} yielded a {type(record).__name__}: an Operation yields Records."
            )
        while self._read and self._read[0][0] <= record.metadata.index:
            _, self._state = self._read.pop(0)
        return record

    def get_state(self) -> Any:
        return self._state

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state)
        self._restart(state)
