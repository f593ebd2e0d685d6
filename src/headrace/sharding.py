"""Which part of the data a process reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from headrace.errors import PipelineError, optional
from headrace.options import check_count, check_counts


@dataclass(frozen=True)
class ShardOptions:
    """One shard of several.

    >>> from headrace import DataLoader, samplers
    >>> sampler = samplers.SequentialSampler(5, ShardOptions(shard_index=1, shard_count=2))
    >>> list(DataLoader(data_source=range(5), sampler=sampler))
    [1, 3]

    Differs from Grain: without `drop_remainder`, every record is in one shard; Grain drops a record of uneven shards.

    Args:
        shard_index: Which shard, from 0 on.
        shard_count: How many there are.
        drop_remainder: Whether all shards have the same number of records, and no shard reads the rest.
    """

    ends_together: ClassVar[bool] = False  # whether a loader gives all shards the same number of records
    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self):
        check_counts(self, "shard_count", least=1)
        if not 0 <= self.shard_index < self.shard_count:
            raise PipelineError(
                f"shard_index must lie between 0 and {self.shard_count - 1}, as shard_count is {self.shard_count}; "
                f"got {self.shard_index}."
            )
        check_counts(self, "shard_index", least=0)

    def piece(self, num_records: int) -> tuple[int, int]:
        """Where this shard's consecutive part of `num_records` begins, and its size.

        >>> [ShardOptions(i, 3).piece(10) for i in range(3)]
        [(0, 4), (4, 3), (7, 3)]
        """
        size, left_over = divmod(num_records, self.shard_count)
        if self.drop_remainder:
            return self.shard_index * size, size
        return self.shard_index * size + min(self.shard_index, left_over), size + (self.shard_index < left_over)

    def rows(self, batch_size: int) -> np.ndarray:
        """The rows of a global batch that belong to this shard: consecutive ones.

        >>> ShardOptions(1, 3).rows(6)
        array([2, 3])
        """
        if batch_size % self.shard_count:
            raise PipelineError(
                f"A global batch of {batch_size} rows does not divide evenly among {self.shard_count} shards. Choose a "
                f"multiple of {self.shard_count}."
            )
        size = batch_size // self.shard_count
        return np.arange(self.shard_index * size, (self.shard_index + 1) * size)


class NoSharding(ShardOptions):
    """One shard, which has everything.

    >>> NoSharding().shard_index, NoSharding().shard_count
    (0, 1)
    """

    def __init__(self):
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


class ShardByJaxProcess(ShardOptions):
    """One shard for each process of a distributed JAX program.

    In a `DataLoader` all processes read the same number of records, as in Grain, so that they end together: a few are
    dropped if the number of records is not a multiple of the number of processes. To read all of them, pass
    `ShardOptions(jax.process_index(), jax.process_count())`.

    >>> shard = ShardByJaxProcess()  # here, one process of one
    >>> shard.shard_index, shard.shard_count
    (0, 1)
    """

    ends_together = True

    def __init__(self, drop_remainder: bool = False):
        jax = optional("jax", extra="jax")
        super().__init__(jax.process_index(), jax.process_count(), drop_remainder)


class ShardBySharding:
    """The rows of a global batch that the devices of this process hold, on any mesh.

    Processes whose devices hold copies of the same rows, such as along a model axis, read the same rows.

    >>> import jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> ShardBySharding(jax.NamedSharding(mesh, jax.P("data"))).rows(4)
    array([0, 1, 2, 3])

    Args:
        sharding: A `jax.sharding.Sharding` of a batch, or a tree with one for each leaf. Axis 0 is that of the rows.
    """

    def __init__(self, sharding: Any):
        jax = optional("jax", extra="jax")
        self._shardings = jax.tree.leaves(sharding)
        wrong = [each for each in self._shardings if not isinstance(each, jax.sharding.Sharding)]
        if wrong or not self._shardings:
            raise PipelineError(f"ShardBySharding takes a jax.sharding.Sharding, or a tree of these; got {sharding!r}.")

    def rows(self, batch_size: int) -> np.ndarray:
        """The rows of a global batch that any leaf has on this process's devices."""
        return np.unique(np.concatenate([rows_on_devices(each, batch_size) for each in self._shardings]))


def rows_on_devices(sharding: Any, batch_size: int) -> np.ndarray:
    """The rows of an array of `batch_size` rows that this process's devices hold."""
    # Later axes have as many rows as there are devices, which any sharding divides evenly.
    rank = len(getattr(sharding, "spec", ()))
    shape = (batch_size, *(len(sharding.device_set),) * (rank - 1))
    try:
        slices = {index[0].indices(batch_size) for index in sharding.addressable_devices_indices_map(shape).values()}
    except ValueError as e:
        raise PipelineError(
            f"A global batch of {batch_size} rows does not divide evenly over {sharding}: {str(e).splitlines()[0]}"
        ) from e
    return np.unique(np.concatenate([np.arange(*each) for each in sorted(slices)] or [np.empty(0, np.int64)]))


class GlobalRows:
    """The rows of a global batch that this process has, in increasing order."""

    def __init__(self, numbers: Sequence[int] | np.ndarray, batch_size: int):
        self.numbers = np.array(numbers, np.int64)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def is_all(self) -> bool:
        """Whether these are all rows."""
        return len(self) == self.batch_size

    def __repr__(self) -> str:
        """As in `rows 0-3, 8-11 of 16`."""
        numbered = enumerate(self.numbers.tolist())
        runs = [[n for _, n in run] for _, run in groupby(numbered, lambda pair: pair[1] - pair[0])]
        shown = ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs[:8])
        return f"rows {shown}{', ...' if runs[8:] else ''} of {self.batch_size}"


def rows_of(rows: ShardOptions | ShardBySharding | None, batch_size: int) -> GlobalRows:
    """The rows of a global batch that a process has."""
    batch_size = check_count("The batch size of `global_batch`", batch_size, least=1)
    if rows is None:
        return GlobalRows(range(batch_size), batch_size)
    if not isinstance(rows, ShardOptions | ShardBySharding):
        raise PipelineError(
            "The rows of a `global_batch` must be ShardBySharding(sharding), ShardByJaxProcess(), or "
            f"ShardOptions(index, count); got {rows!r}."
        )
    found = rows.rows(batch_size)
    if not len(found):
        raise PipelineError(
            f"No device of this process holds rows of a batch of {batch_size}: {rows!r}. Use a larger "
            "batch, or a sharding that covers all processes."
        )
    return GlobalRows(found, batch_size)
