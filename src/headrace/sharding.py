"""Which part of the data a process reads."""

from dataclasses import dataclass

from headrace.errors import PipelineError, optional
from headrace.options import check_counts


@dataclass(frozen=True)
class ShardOptions:
    """One shard of several.

    Args:
        shard_index: Which shard, from 0 on.
        shard_count: How many there are.
        drop_remainder: Whether all shards get the same number of records, and no shard reads the rest.
    """

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


class NoSharding(ShardOptions):
    """One shard, which has everything."""

    def __init__(self):
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


class ShardByJaxProcess(ShardOptions):
    """One shard for each process of a distributed JAX program."""

    def __init__(self, drop_remainder: bool = False):
        jax = optional("jax", extra="jax")
        super().__init__(jax.process_index(), jax.process_count(), drop_remainder)
