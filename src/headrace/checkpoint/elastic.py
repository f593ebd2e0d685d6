"""Iterators whose states are global: another number of shards can go on where some have stopped."""

import json
from typing import Any

import numpy as np

from headrace import _state_arrays
from headrace._ops.base import Op
from headrace._ops.element import Filter, FlatMap
from headrace._plan.stages import all_operations
from headrace.dataset import MapDataset
from headrace.errors import PipelineError, StateError
from headrace.iterator import StreamIterator
from headrace.options import MultiprocessingOptions, ReadOptions, check_count
from headrace.sharding import ShardOptions

FIELD = "global_next_index"


class ElasticIterator(StreamIterator):
    """One shard's rows of every global batch.

    Row `r` of a global batch belongs to shard `r % shard_count`. What is left over at the end, less than a global
    batch, is not handed over.

    >>> halves = [ElasticIterator(MapDataset.range(9), 4, ShardOptions(i, 2)) for i in range(2)]
    >>> [next(half) for half in halves], halves[0].get_state()
    ([array([0, 2]), array([1, 3])], {'global_next_index': 4})
    >>> whole = ElasticIterator(MapDataset.range(9), 4, ShardOptions(0, 1))
    >>> whole.set_state(halves[0].get_state())
    >>> next(whole)
    array([4, 5, 6, 7])

    Args:
        ds: A chain without `filter` and `flat_map`: a function of indices.
        global_batch_size: How many rows all shards together get at a step.
        shard_options: The shard that this process reads.
        read_options: Threads that read ahead.
        multiprocessing_options: Worker processes.
    """

    _state_is_global = True

    def __init__(
        self,
        ds: MapDataset,
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ):
        global_batch_size = check_count("global_batch_size", global_batch_size, least=1)
        _check(ds, global_batch_size, shard_options)
        count = shard_options.shard_count
        rows = ds.shard(count, shard_options.shard_index) if count > 1 else ds
        stream = rows[: len(ds) // global_batch_size * global_batch_size // count]
        stream = stream.batch(global_batch_size // count, drop_remainder=True).to_iter_dataset(read_options)
        if multiprocessing_options is not None and multiprocessing_options.num_workers:
            stream = stream.mp_prefetch(multiprocessing_options)
        super().__init__(stream._op)
        self._global_batch_size = global_batch_size

    def get_state(self) -> dict[str, Any]:
        return {FIELD: self.get_next_index() * self._global_batch_size}

    def set_state(self, state: dict[str, Any] | np.ndarray, *, strict: bool = True) -> None:
        if _state_arrays.is_array(state):
            state = json.loads(_state_arrays.unpacked(state))
        is_one = isinstance(state, dict) and state.keys() == {FIELD} and isinstance(state[FIELD], int | np.integer)
        if not is_one or isinstance(state[FIELD], bool):
            raise StateError(f"The state of an ElasticIterator is a dict with {FIELD!r}, an int; got {state!r}.")
        step, left_over = divmod(int(state[FIELD]), self._global_batch_size)
        if left_over:
            raise StateError(
                f"The state has {FIELD}={state[FIELD]}, which is no multiple of "
                f"global_batch_size={self._global_batch_size}: it was saved with another one."
            )
        super().set_state({"next_index": step})


def _check(ds: Any, global_batch_size: int, shard_options: ShardOptions) -> None:
    if not isinstance(ds, MapDataset):
        raise PipelineError(f"An ElasticIterator reads a MapDataset; got {type(ds).__name__}.")
    if not isinstance(shard_options, ShardOptions):
        raise PipelineError(f"shard_options must be ShardOptions; got {type(shard_options).__name__}.")
    if global_batch_size % shard_options.shard_count:
        raise PipelineError(
            f"global_batch_size={global_batch_size} cannot be shared out evenly among "
            f"{shard_options.shard_count} shards."
        )
    sparse = _sparse(ds._op)
    if sparse is not None:
        raise PipelineError(
            f"An ElasticIterator needs a chain that is a function of indices; {sparse.label()} (pipeline at "
            f"{sparse.site}) leaves gaps among them. Leave it out, or do without elastic states."
        )


def _sparse(op: Op) -> Op | None:
    """The first operation, if any, that leaves indices without an element."""
    return next((each for each in all_operations(op) if isinstance(each, Filter | FlatMap)), None)
