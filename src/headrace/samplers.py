"""Samplers: the order in which records come.

`sampler[i]` is the metadata of the record at place `i` of the whole stream; a sampler may have a length. With shards,
places `shard_index`, `shard_index + shard_count`, ... belong to one shard.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headrace.errors import PipelineError, SeedError
from headrace.errors.suggestions import explains_constructor
from headrace.options import check_count
from headrace.records import RecordMetadata
from headrace.rng import KeyedRng, shuffled_indices
from headrace.sharding import NoSharding, ShardOptions

At = Callable[[int], RecordMetadata]


@runtime_checkable
class Sampler(Protocol):
    """Knows which record is at a place of the stream; past the end it raises `IndexError`.

    >>> from headrace import DataLoader
    >>> class Backwards:
    ...     def __getitem__(self, index):
    ...         if index >= 3:
    ...             raise IndexError
    ...         return RecordMetadata(index, record_key=2 - index)
    >>> list(DataLoader(data_source=range(3), sampler=Backwards()))
    [2, 1, 0]

    Differs from Grain: your own sampler needs no shard options and no length.
    """

    def __getitem__(self, index: int) -> RecordMetadata: ...


class BuiltInSampler:
    """What the samplers of this module share: numbers of records and epochs, a seed, shards."""

    def __init__(self, num_records: int, shard_options: ShardOptions, num_epochs: int | None, seed: int | None):
        num_records = check_count("Invalid number of records: num_records", num_records, least=1)
        if num_epochs is not None:
            num_epochs = check_count("num_epochs", num_epochs, least=1)
        if seed is not None and not (isinstance(seed, int | np.integer) and 0 <= seed < 2**32):
            kind = PipelineError if isinstance(seed, int | np.integer) else SeedError
            raise kind(f"The seed of a sampler must be an int between 0 and 2**32 - 1; got {seed!r}.")
        if not isinstance(shard_options, ShardOptions):
            raise PipelineError(f"shard_options must be ShardOptions; got {type(shard_options).__name__}.")
        self._num_records = num_records
        self._shard_options = shard_options
        self._num_epochs = num_epochs
        self._seed = None if seed is None else int(seed)

    @property
    def num_records(self) -> int:
        """How many of the source's records an epoch has, over all shards."""
        return self._num_records

    @property
    def is_as_written(self) -> bool:
        """Whether no subclass has changed the order or the metadata."""
        own = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return all(getattr(type(self), name) is getattr(own, name) for name in ("__getitem__", "__len__", "record_key"))

    @property
    def has_rng(self) -> bool:
        """Whether records have random number generators."""
        return self._seed is not None

    @property
    def shard_options(self) -> ShardOptions:
        return self._shard_options

    def _facts(self) -> dict[str, Any]:
        """What the order depends on."""
        return {"num_records": self._num_records, "num_epochs": self._num_epochs, "seed": self._seed}

    @property
    def identity(self) -> str:
        """The sampler in one line, the same for all shards."""
        facts = self._facts() | ({"in_shards": True} if self._shard_options.shard_count > 1 else {})
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in facts.items())})"

    def __len__(self) -> int:
        raise NotImplementedError

    def record_key(self, index: int) -> int:
        """The index in the source for the record at a place."""
        raise NotImplementedError

    def read(self, records: Any) -> Any:
        """The records of a `MapDataset` that belong to this shard, in the order of this sampler."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> RecordMetadata:
        self._check(index)
        key = None if self._seed is None else self._seed + index
        rng = None if key is None else np.random.Generator(np.random.Philox(key=key))
        return RecordMetadata(index=index, record_key=self.record_key(index), rng=rng)

    def __iter__(self) -> Iterator[RecordMetadata]:
        return map(self.__getitem__, range(len(self)))

    def metadata(self) -> At:
        """A function from places to metadata, which always returns the same object with the same generator."""
        if self._seed is None:
            return lambda index: RecordMetadata(index)
        at = KeyedRng().at
        seed = self._seed
        reused = RecordMetadata(0)

        def metadata(index: int) -> RecordMetadata:
            reused.index, reused.rng = index, at(seed + index)
            return reused

        return metadata

    def _check(self, index: int) -> None:
        if index < 0:
            raise IndexError(f"The places of a sampler start at 0; got {index}.")


@explains_constructor(
    data_source="`num_records=len(source)`", generator="`seed=`, an int", num_samples="`num_records=n`"
)
class IndexSampler(BuiltInSampler):
    """Records in order or shuffled, for one epoch, several, or endlessly.

    Each shard has a consecutive part of the records and shuffles within it.

    >>> [metadata.record_key for metadata in IndexSampler(5, shuffle=True, seed=0, num_epochs=1)]
    [0, 4, 1, 2, 3]

    Differs from Grain: more records than the source has are an error, and uneven shards lose no record.

    Args:
        num_records: How many records the source has.
        shard_options: The shard that this process reads.
        shuffle: Whether each epoch has a new random order.
        num_epochs: How many times to read all records; endless by default.
        seed: The seed to shuffle and for random operations, which both need one.
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008  (frozen)
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ):
        super().__init__(num_records, shard_options, num_epochs, seed)
        if shuffle and seed is None:
            raise PipelineError("An IndexSampler that shuffles needs a seed: IndexSampler(..., shuffle=True, seed=42).")
        self._shuffle = shuffle
        self._start, self._size = shard_options.piece(self._num_records)
        if not self._size:
            raise PipelineError(
                f"Shard {shard_options.shard_index} of {shard_options.shard_count} has none of the {num_records} "
                "records. Use fewer shards."
            )

    def __len__(self) -> int:
        """How many places there are, over all shards; `sys.maxsize` if endless."""
        if self._num_epochs is None:
            return sys.maxsize
        count = self._shard_options.shard_count
        per_epoch = self._size * count if self._shard_options.drop_remainder else self._num_records
        return per_epoch * self._num_epochs

    def _check(self, index: int) -> None:
        super()._check(index)
        if self._num_epochs is None:
            return
        # If shards differ in size, the last place of the longest lies past `len(self)`.
        places = max(len(self), self._num_epochs * self._size * self._shard_options.shard_count)
        if index >= places:
            raise IndexError(
                f"Place {index} is past the end: there are {places} places in {self._num_epochs} epochs. "
                "Raise num_epochs to read on."
            )

    def record_key(self, index: int) -> int:
        epoch, place = divmod(index // self._shard_options.shard_count, self._size)
        if self._shuffle:
            assert self._seed is not None
            (place,) = shuffled_indices(np.array([place]), self._size - 1, (self._seed + epoch) % 2**32).tolist()
        return self._start + place

    def read(self, records: Any) -> Any:
        records = piece(records, self._start, self._size)
        if self._shuffle:
            records = records.shuffle(seed=self._seed)
        shard = self._shard_options
        if shard.ends_together and self._num_epochs is not None and len(self) % shard.shard_count:
            # As in Grain: a piece that is one record shorter than others repeats its first one at the end.
            return records.repeat()[: len(self) // shard.shard_count]
        return records if self._num_epochs == 1 else records.repeat(self._num_epochs)

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"shuffle": self._shuffle}

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records}, shard_options={self._shard_options!r}, "
            f"shuffle={self._shuffle}, num_epochs={self._num_epochs}, seed={self._seed})"
        )


@explains_constructor(
    data_source="`num_records=len(source)`", generator="`seed=`, an int", num_samples="`num_records=n`"
)
class SequentialSampler(BuiltInSampler):
    """Every record once, in order; with shards, every `shard_count`-th.

    >>> [metadata.record_key for metadata in SequentialSampler(3)]
    [0, 1, 2]
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008  (frozen)
        seed: int | None = None,
    ):
        super().__init__(num_records, shard_options, 1, seed)

    def __len__(self) -> int:
        """How many places there are, over all shards."""
        shard = self._shard_options
        return self._num_records // shard.shard_count * shard.shard_count if shard.drop_remainder else self._num_records

    def _check(self, index: int) -> None:
        super()._check(index)
        if index >= len(self):
            raise IndexError(f"Place {index} is past the end: there are {len(self)} places.")

    def record_key(self, index: int) -> int:
        return index

    def read(self, records: Any) -> Any:
        return strided(piece(records, 0, self._num_records), self._shard_options)

    def __repr__(self) -> str:
        return f"SequentialSampler(num_records={self._num_records}, shard_options={self._shard_options!r})"


def piece(records: Any, start: int, size: int) -> Any:
    """Consecutive elements of a `MapDataset`."""
    return records if size == len(records) else records[start : start + size]


def strided(records: Any, shard: ShardOptions) -> Any:
    """Every `shard_count`-th element of a `MapDataset`."""
    if shard.shard_count == 1:
        return records
    same_size = shard.drop_remainder or shard.ends_together
    return records.shard(shard.shard_count, shard.shard_index, drop_remainder=same_size)
