"""The older way to write a `DataLoader`'s operations: each receives an iterator of records and returns one.

Your own operation must attach to every record that it yields the metadata of the last record that it used. To restore a
state, the loader calls the operation again after that record, so it must hold nothing back when it yields.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace import transforms, trees
from headrace.errors import PipelineError
from headrace.options import check_counts
from headrace.records import Record


class Operation(abc.ABC):
    """Turns an iterator of records into another.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> class Pairs(Operation):
    ...     def __call__(self, input_iterator):
    ...         for record in input_iterator:
    ...             yield Record(record.metadata, (record.data, next(input_iterator).data))
    >>> list(DataLoader(data_source=range(4), sampler=SequentialSampler(4), operations=[Pairs()]))
    [(0, 1), (2, 3)]
    """

    @abc.abstractmethod
    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        """Yields the new records."""

    def as_transform(self) -> Any:
        """The transform that does the same, if there is one."""
        return None


@dataclass(frozen=True)
class MapOperation(Operation):
    """Applies a function to every element: use `transforms.Map`.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> list(DataLoader(data_source=range(4), sampler=SequentialSampler(4), operations=[MapOperation(str)]))
    ['0', '1', '2', '3']
    """

    map_function: Callable[[Any], Any]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        return (_unkeyed(record, self.map_function(record.data)) for record in input_iterator)

    def as_transform(self) -> Any:
        return transforms.Map(self.map_function)


@dataclass(frozen=True)
class RandomMapOperation(Operation):
    """Applies a function to every element and its generator: use `transforms.RandomMap`.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> draw = RandomMapOperation(lambda x, rng: x + int(rng.integers(10)))
    >>> list(DataLoader(data_source=range(4), sampler=SequentialSampler(4, seed=1), operations=[draw]))
    [4, 5, 10, 6]
    """

    random_map_function: Callable[[Any, np.random.Generator], Any]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        fn: Any = self.random_map_function
        return (_unkeyed(record, fn(record.data, record.metadata.rng)) for record in input_iterator)

    def as_transform(self) -> Any:
        return transforms.RandomMap(self.random_map_function)


@dataclass(frozen=True)
class FilterOperation(Operation):
    """Keeps the elements for which a function is true: use `transforms.Filter`.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> list(DataLoader(data_source=range(4), sampler=SequentialSampler(4), operations=[FilterOperation(bool)]))
    [1, 2, 3]
    """

    condition_function: Callable[[Any], bool]

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        return (_unkeyed(record, record.data) for record in input_iterator if self.condition_function(record.data))

    def as_transform(self) -> Any:
        return transforms.Filter(self.condition_function)


@dataclass(frozen=True)
class BatchOperation(Operation):
    """Stacks `batch_size` elements into one: use `transforms.Batch`.

    >>> from headrace import DataLoader
    >>> from headrace.samplers import SequentialSampler
    >>> list(DataLoader(data_source=range(4), sampler=SequentialSampler(4), operations=[BatchOperation(2)]))
    [array([0, 1]), array([2, 3])]
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None

    def __post_init__(self):
        check_counts(self, "batch_size", least=1)

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        batch: list[Record] = []
        for record in input_iterator:
            batch.append(record)
            if len(batch) == self.batch_size:
                yield batched(batch, self.batch_fn)
                batch = []
        if batch and not self.drop_remainder:
            yield batched(batch, self.batch_fn)

    def as_transform(self) -> Any:
        return transforms.Batch(self.batch_size, self.drop_remainder, self.batch_fn)

    def disable_deprecation_message(self) -> None:
        """Has no effect; kept for compatibility."""


def _unkeyed(record: Record, data: Any) -> Record:
    """A record with other data, whose key is no longer that of a record in the source."""
    return Record(record.metadata.remove_record_key(), data)


def batched(records: Sequence[Record], batch_fn: Callable[[Sequence[Any]], Any] | None) -> Record:
    """One record from several, with the metadata of the last."""
    data = (batch_fn or trees.stack)([record.data for record in records])
    if data is None and batch_fn is None:
        raise PipelineError(
            f"A batch got {len(records)} elements that are all None: is a `return` missing in the "
            "function of an earlier `map`?"
        )
    return Record(records[-1].metadata.remove_record_key(), data)
