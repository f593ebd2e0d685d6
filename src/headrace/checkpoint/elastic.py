"""Iterators with global states, which another number of shards can restore."""

import json
from typing import Any

import numpy as np

from headrace.dataset import IterDataset, MapDataset
from headrace.engine.plan import all_operations
from headrace.errors import PipelineError, StateError
from headrace.iterator import DatasetIterator, StreamIterator, _Checkpointable
from headrace.ops.element import FilterOp, FlatMapOp
from headrace.ops.global_batch import batch_of_rows
from headrace.ops.op import Op
from headrace.options import MultiprocessingOptions, ReadOptions, check_count
from headrace.sharding import ShardBySharding, ShardOptions, rows_of
from headrace.state import positions

FIELD = "global_next_index"


class ElasticIterator(IterDataset, _Checkpointable):
    """One shard's rows of every global batch.

    Its elements are those of `ds.global_batch(global_batch_size, shard_options)`, and its states are Grain's. It drops
    a last global batch that is not full.

    >>> halves = [ElasticIterator(MapDataset.range(9), 4, ShardOptions(i, 2)) for i in range(2)]
    >>> [next(half) for half in halves], halves[0].get_state()
    ([array([0, 1]), array([2, 3])], {'global_next_index': 4})
    >>> whole = ElasticIterator(MapDataset.range(9), 4, ShardOptions(0, 1))
    >>> whole.set_state(halves[0].get_state())
    >>> next(whole)
    array([4, 5, 6, 7])

    Another global batch size can resume from the same state; its batches then begin at that element.

    It is a dataset and its own iterator: `iter(it)` continues where `next(it)` stopped. In a pipeline, as in
    `it.map(f)`, it begins at the start; states stay global.

    Differs from Grain: a shard has consecutive rows, and all shards end together, before a batch that is not full.

    Args:
        ds: A dataset without `filter` and `flat_map`: every index must have an element.
        global_batch_size: How many rows all shards together receive in a step.
        shard_options: The shard that this process reads, or `ShardBySharding(sharding)`.
        read_options: Threads that read ahead.
        multiprocessing_options: Worker processes.
    """

    _state_is_global = True

    def __init__(
        self,
        ds: MapDataset,
        global_batch_size: int,
        shard_options: ShardOptions | ShardBySharding,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ):
        super().__init__()
        global_batch_size = check_count("global_batch_size", global_batch_size, least=1)
        _check(ds, shard_options)
        self._ds = ds
        self._global_batch_size = global_batch_size
        self.global_rows = rows_of(shard_options, global_batch_size)
        self._read_options = read_options
        self._multiprocessing_options = multiprocessing_options
        self._iterator = self._own_iter()

    def _own_iter(self) -> "ElasticDatasetIterator":
        return ElasticDatasetIterator(self)

    def __iter__(self) -> DatasetIterator:
        return self._iterator

    def __next__(self) -> Any:
        return self._iterator.__next__()

    def get_state(self) -> dict[str, Any]:
        """Returns the iterator's position, which is the same for all shards."""
        return self._iterator.get_state()

    def state_as_array(self, size: int = 1 << 14) -> np.ndarray:
        """Returns the state as an array of `size` bytes."""
        return self._iterator.state_as_array(size)

    def set_state(self, state: dict[str, Any] | np.ndarray, *, strict: bool = True) -> None:
        """Restores a state of any shard."""
        self._iterator.set_state(state, strict=strict)

    def get_next_index(self) -> int:
        """Returns how many global batches it has yielded."""
        return self._iterator.get_next_index()

    def set_next_index(self, index: int) -> None:
        """Moves to a global batch by its number."""
        self._iterator.set_next_index(index)

    def start_prefetch(self) -> None:
        """Starts to compute ahead, before you ask for the first element."""
        self._iterator.start_prefetch()

    def close(self) -> None:
        """Releases threads, processes and memory."""
        self._iterator.close()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_iterator": self.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterator = self._own_iter()
        self._iterator.set_state(state["_iterator"])


class ElasticDatasetIterator(StreamIterator):
    """Iterates over one shard's rows of every global batch."""

    _state_every = 1  # in a pipeline, states count no steps: these would depend on the global batch size

    def __init__(self, dataset: ElasticIterator):
        self._dataset = dataset
        self._begin_at(0)

    def _begin_at(self, first: int) -> None:
        """Makes global batches of the elements from this index on."""
        of = self._dataset
        size = self._dataset._global_batch_size
        workers = of._multiprocessing_options
        rest = of._ds[first : first + max(0, len(of._ds) - first) // size * size]
        batches = MapDataset._of(batch_of_rows(rest._op, of.global_rows))
        stream = batches.to_iter_dataset(of._read_options)
        if workers is not None and workers.num_workers:
            stream = stream.mp_prefetch(workers)
        super().__init__(stream._op)
        self._first = first

    def get_state(self) -> dict[str, Any]:
        return {FIELD: self._first + self.get_next_index() * self._dataset._global_batch_size}

    def set_state(self, state: dict[str, Any] | np.ndarray, *, strict: bool = True) -> None:
        if positions.is_array(state):
            state = json.loads(positions.unpack(state))
        is_one = isinstance(state, dict) and state.keys() == {FIELD} and isinstance(state[FIELD], int | np.integer)
        if not is_one or isinstance(state[FIELD], bool):
            raise StateError(
                f"The state of an ElasticIterator is a dict with the int {FIELD!r}, as its `get_state()` "
                f"returns it; got {state!r}."
            )
        index = int(state[FIELD])
        length = len(self._dataset._ds)
        size = self._dataset._global_batch_size
        if length < index < length + size:
            index = length  # after a last batch that is not full, which Grain hands over
        step, first = divmod(index, size)
        if first != self._first:  # the state has another global batch size
            self._iteration.close()
            self._begin_at(first)
        super().set_state({"next_index": step})


def _check(ds: Any, shard_options: Any) -> None:
    if not isinstance(ds, MapDataset):
        raise PipelineError(f"ElasticIterator takes a MapDataset; got {type(ds).__name__}.")
    if not isinstance(shard_options, ShardOptions | ShardBySharding):
        raise PipelineError(f"shard_options must be ShardOptions; got {type(shard_options).__name__}.")
    sparse = _sparse(ds._op)
    if sparse is not None:
        raise PipelineError(
            f"ElasticIterator needs an element at every index; {sparse.label()} (pipeline at {sparse.site}) drops "
            "some. Remove it, or iterate over the dataset without ElasticIterator."
        )


def _sparse(op: Op) -> Op | None:
    """The first operation that leaves indices without an element, if there is one."""
    return next((each for each in all_operations(op) if isinstance(each, FilterOp | FlatMapOp)), None)
