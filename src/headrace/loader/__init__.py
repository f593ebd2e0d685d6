"""`DataLoader`: a source, a sampler and operations, in one object."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace import transforms
from headrace.dataset import IterDataset, MapDataset
from headrace.dataset.base import Viewable
from headrace.engine.plan import Plan
from headrace.errors import PipelineError
from headrace.errors.one_line import short_repr
from headrace.errors.suggestions import closest, explains_keywords, no_attribute, written_here
from headrace.iterator import PipelineIterator
from headrace.loader import loader_state as states
from headrace.loader.chain import as_transforms, chain, display_name, identity
from headrace.loader.in_order import InOrder, reads_in_order
from headrace.loader.record_order import Order
from headrace.ops.adapters import open_given_source
from headrace.ops.source import SeededSource
from headrace.options import MultiprocessingOptions, ReadOptions, check_count
from headrace.samplers import IndexSampler
from headrace.sharding import NoSharding, ShardOptions
from headrace.state import positions

T = TypeVar("T")


class DataLoader(Viewable):
    """Reads records in a sampler's order and applies operations to them.

    >>> from headrace.transforms import Batch
    >>> loader = DataLoader(data_source=range(6), sampler=IndexSampler(6, num_epochs=1), operations=[Batch(4)])
    >>> list(loader)
    [array([0, 1, 2, 3]), array([4, 5])]

    Differs from Grain: batches and states do not depend on `worker_count`, and every record is in one shard.

    Args:
        data_source: Anything that `MapDataset.source` takes: arrays, a path, a table. The source may be a stream, whose
            `__getitem__` returns the next element whatever the index (it says so by
            `reads_in_order = True`). The loader reads it in order, in this process, and restores a state by reading up
            to its place, which works only before anything was read.
        sampler: The order of the records: an `IndexSampler`, a `SequentialSampler`, or your own.
        operations: Transforms, functions of one element, and generator functions of an iterator of `Record` objects,
            applied one after the other.
        worker_count: Worker processes; 0 computes in this process, `None` takes one for each core. Batches are the
            same with any number.
        worker_buffer_size: Outputs that each worker may have ready.
        shard_options: The shard to read, if the sampler has none: every `shard_count`-th record of its order.
        read_options: Threads that read ahead, in each process.
        enable_profiling: Lets XProf look into the workers: see `MultiprocessingOptions`.
    """

    _kind_in_title = "Loader"

    @explains_keywords
    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Any,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
    ):
        if worker_count is not None:
            worker_count = check_count("worker_count", worker_count, least=0)
        worker_buffer_size = check_count("worker_buffer_size", worker_buffer_size, least=1)
        if read_options is not None and not isinstance(read_options, ReadOptions):
            raise PipelineError(f"read_options must be ReadOptions; got {type(read_options).__name__}.")
        given = data_source
        data_source = open_given_source(data_source)
        self.source = data_source
        self.order = Order(sampler, shard_options)
        self.operations = as_transforms(operations)
        self._data_source = given  # Keras
        self._sampler = sampler
        self._operations = tuple(operations)
        self._shard_options = shard_options  # makes another loader of these
        self._read_options = read_options
        self._multiprocessing_options = MultiprocessingOptions(
            num_workers=(os.cpu_count() or 1) if worker_count is None else worker_count,
            per_worker_buffer_size=worker_buffer_size,
            enable_profiling=enable_profiling,
        )
        records = _records(data_source)
        self._num_records = len(records)
        records = self.order.read(records)
        self._in_order = None
        if reads_in_order(data_source):
            self._in_order = InOrder(data_source, len(records), read_options)
            records = self._in_order.records
        self._dataset = chain(records, self.order, self.operations, read_options)
        workers = self._multiprocessing_options
        if workers.num_workers and self._in_order is not None:  # processes cannot share a stream
            count = workers.num_workers if isinstance(workers.num_workers, int) else 1
            self._dataset = self._dataset.prefetch(count * worker_buffer_size)
        elif workers.num_workers:
            self._dataset = self._dataset.mp_prefetch(workers)
        self.identity = states.LoaderIdentity(
            sampler=states.describe(sampler),
            data_source=states.describe(data_source, self._num_records),
            shard_options=states.describe(self.order.shard),
            operations=identity(self.operations),
        )

    @property
    def dataset(self) -> IterDataset:
        """The loader's pipeline, to build on: `loader.dataset.map(...)`, `device_put(loader.dataset, ...)`.

        >>> loader = load(range(4), num_epochs=1)
        >>> list(loader.dataset.map(lambda x: x * 10))
        [0, 10, 20, 30]

        Differs from Grain: only Headrace has it.
        """
        return self._dataset

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """The options of its worker processes.

        >>> load(range(4), worker_count=2).multiprocessing_options.num_workers
        2
        """
        return self._multiprocessing_options

    def explain(self) -> Plan:
        """How the loader's pipeline will be computed, operation by operation.

        >>> print(load(range(4), num_epochs=1, batch_size=2).explain())
        MapDataset.source(range(0, 4))        | rows, one call per element
          .to_iter_dataset(allow_nones=True)  | in index order; threads if a trial shows that they help
          .batch(2)                           | ordering point: stacks elements as they come

        Differs from Grain: only Headrace has it.
        """
        return self._dataset.explain()

    def __len__(self) -> int:
        """How many outputs it has, where that is known without reading any; otherwise a `TypeError`.

        >>> len(load(range(5), num_epochs=2, batch_size=2))
        5

        Differs from Grain: there, loaders have no length.
        """
        return len(self._dataset)

    def __bool__(self) -> bool:
        return True  # whatever its length is

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = written_here(name, on_loader=True)
            if not name.startswith("_") and name in dir(IterDataset):
                hint = f" It is a method of datasets: write `loader.dataset.{name}(...)`, or give `operations`."
            raise no_attribute("DataLoader", name, None if hint else closest(name, dir(DataLoader)), hint)

    def __iter__(self) -> "DataLoaderIterator":
        """An iterator from the beginning, with states to save and restore.

        >>> with iter(load(range(4), batch_size=2)) as batches:
        ...     next(batches)
        array([0, 1])
        """
        return DataLoaderIterator(self)

    def _open_iterator(self) -> "DataLoaderIterator":
        return DataLoaderIterator(self)

    def _check_source(self) -> None:
        """Raises if the source has become shorter since the loader was made."""
        length = self._num_records if isinstance(self.source, Mapping) else len(self.source)
        if length < self._num_records:
            raise PipelineError(
                f"The data source had {self._num_records} records when the loader was created, and has {length} now. "
                "Create a new sampler and loader for it."
            )

    def __repr__(self) -> str:
        named = {"worker_count": self._multiprocessing_options.num_workers, **vars(self.identity)}
        if hasattr(self.source, "name_in_states"):  # the repr has the paths
            named["data_source"] = short_repr(self.source, 300)
        named["operations"] = f"[{', '.join(map(display_name, self.operations))}]"
        return f"DataLoader({', '.join(f'{name}={value}' for name, value in named.items())})"


class DataLoaderIterator(PipelineIterator[T]):
    """The outputs of a loader from a state on; `validate_state=False` accepts a state of any loader.

    It is not a `DatasetIterator`: programs use this to tell whether a state is a dict or bytes.

    >>> loader = load(range(6), num_epochs=1, batch_size=2)
    >>> batches = iter(loader)
    >>> _ = next(batches)
    >>> next(DataLoaderIterator(loader, batches.get_state()))
    array([2, 3])

    Differs from Grain: a state restores with any `worker_count`, and is the same in every run.
    """

    def __init__(self, data_loader: DataLoader, state: bytes | None = None, validate_state: bool = True):
        data_loader._check_source()
        super().__init__(data_loader._dataset._op)
        if data_loader._in_order is not None:
            data_loader._in_order.begin(self)
        self._loader = data_loader
        if state is not None:
            self._go_to(state, validate=validate_state)

    def get_state(self) -> bytes:  # type: ignore[override]
        """Where the iterator is, as JSON in bytes; the same with any number of workers.

        >>> import json
        >>> batches = iter(load(range(6), batch_size=2))
        >>> list(json.loads(batches.get_state()))[5:]
        ['position', 'pipeline', 'functions', 'checksum']
        """
        position = self._position_state()
        return states.encode(self._loader.identity, position, self._identity.add_to({}))

    def set_state(self, state: bytes | np.ndarray, *, strict: bool = True) -> None:  # type: ignore[override]
        """Goes to where `get_state` or `state_as_array` was called, with `strict=False` on any loader.

        >>> batches = iter(load(range(6), num_epochs=1, batch_size=2))
        >>> state = batches.get_state()
        >>> _ = list(batches)
        >>> batches.set_state(state)
        >>> next(batches)
        array([0, 1])

        Differs from Grain: a state of another loader is an error that says what differs.
        """
        given: Any = positions.unpack(state) if positions.is_array(state) else state
        self._go_to(given, validate=strict)

    def _go_to(self, state: bytes, *, validate: bool) -> None:
        position = states.decode(state, self._loader, validate=validate)
        if self._loader._in_order is not None:
            self._loader._in_order.check_is_new()
        super().set_state(position)

    def __repr__(self) -> str:
        return f"<iterator of {self._loader!r}>"


@explains_keywords
def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),  # noqa: B008  (frozen)
    transformations: Sequence[Any] = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """Makes a loader in one call.

    >>> list(load(range(6), num_epochs=1, shuffle=True, seed=3, batch_size=3))
    [array([4, 3, 0]), array([1, 2, 5])]

    Differs from Grain: `source` may be all that `MapDataset.source` takes, and `worker_count` never changes batches.

    Args:
        source: Anything that `MapDataset.source` takes.
        num_epochs: How many times to read all records; endless by default.
        shuffle: Whether each epoch has a new random order.
        seed: The seed to shuffle and for random operations, which both need one.
        shard_options: The shard that this process reads.
        transformations: Transforms and functions, applied one after the other.
        batch_size: How many elements a batch has; no batches by default.
        drop_remainder: Whether to drop a last batch that is smaller.
        worker_count: Worker processes; 0 computes in this process.
        read_options: Threads that read ahead, in each process.
    """
    source = open_given_source(source)
    records = source if isinstance(source, MapDataset) else MapDataset.source(source)
    sampler = IndexSampler(len(records), shard_options, shuffle=shuffle, num_epochs=num_epochs, seed=seed)
    operations = [*transformations]
    if batch_size is not None:
        operations.append(transforms.Batch(batch_size, drop_remainder=drop_remainder))
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=read_options,
    )


def _records(source: Any) -> MapDataset:
    """The records of a source; all epochs of a sampler read the first of a dataset, but with new random numbers."""
    if not isinstance(source, MapDataset):
        return MapDataset.source(source)
    return source if isinstance(source._op, SeededSource) else source.repeat(1, reseed_each_epoch=False)
