"""The places of a sampler that one shard reads, with their records and metadata."""

import copy
import operator
import sys
import warnings
from typing import Any

from headrace import transforms
from headrace.dataset import MapDataset
from headrace.errors import PipelineError
from headrace.records import RecordMetadata
from headrace.samplers import At, BuiltInSampler, Sampler, strided
from headrace.sharding import NoSharding, ShardOptions


class Order:
    """The places of a sampler that one shard reads."""

    def __init__(self, sampler: Any, shard_options: ShardOptions | None):
        if isinstance(sampler, type) or not isinstance(sampler, Sampler):
            raise PipelineError(
                "`sampler[i]` must return the RecordMetadata of the record at place i of the stream; got the "
                f"sampler {sampler!r}. See IndexSampler and SequentialSampler."
            )
        self.sampler: Any = sampler
        self.shard = _shard(sampler, shard_options)
        self.is_known = isinstance(sampler, BuiltInSampler) and sampler.is_as_written
        self.first = None if self.is_known else _first_metadata(sampler)

    def read(self, records: MapDataset) -> MapDataset:
        """The records of this shard, in order."""
        sampler = self.sampler
        count = len(records)
        if not self.is_known:
            return MapDataset.select_from_datasets([records], _Selection(self, count))  # type: ignore[arg-type]
        if sampler.num_records > count:
            warnings.warn(
                f"The sampler has num_records={sampler.num_records}, but the data source has only {count} records, so "
                "the first ones repeat. Set num_records to len(data_source), or less to read only the first records.",
                UserWarning,
                stacklevel=4,
            )
            epochs = -(-sampler.num_records // count) if count else 1
            records = records.repeat(epochs, reseed_each_epoch=False).take(sampler.num_records)
        ordered = sampler.read(records)
        return ordered if sampler.shard_options.shard_count > 1 else strided(ordered, self.shard)

    def place(self, nth: int) -> int:
        """The place of this shard's n-th record in the whole stream."""
        return self.shard.shard_index + nth * self.shard.shard_count

    def metadata_of(self, nth: int) -> RecordMetadata:
        """The metadata of this shard's n-th record, with a generator that nobody else has."""
        metadata = self.sampler[self.place(nth)]
        if self.is_known or metadata.rng is None:
            return metadata
        return RecordMetadata(metadata.index, metadata.record_key, copy.deepcopy(metadata.rng))

    @property
    def has_rng(self) -> bool:
        """Whether records have random number generators, judging by the first."""
        if self.is_known:
            return self.sampler.has_rng
        return self.first is None or self.first.rng is not None


def _first_metadata(sampler: Any) -> RecordMetadata | None:
    """The metadata at the first place of a user's sampler, checked; `None` if it has no places."""
    try:
        first = sampler[0]
    except IndexError:
        return None
    if not all(hasattr(first, name) for name in ("index", "record_key", "rng")):
        raise PipelineError(
            f"{type(sampler).__name__} is not a sampler: `sampler[0]` must be a RecordMetadata(index, record_key, rng) "
            f"and is {first!r}. See IndexSampler and SequentialSampler."
        )
    return first


class ReusableMetadata:
    """Metadata of one record at a time: a new generator for each costs ten times as much as moving one."""

    def __init__(self, order: Order):
        self._order = order
        self._at: At | None = order.sampler.metadata() if order.is_known else None
        self._references = None if self._at is None else sys.getrefcount(self._at(0).rng)

    def of(self, nth: int) -> RecordMetadata:
        """The metadata of the shard's n-th record."""
        return self._order.metadata_of(nth) if self._at is None else self._at(self._order.place(nth))

    def can_reuse(self, metadata: RecordMetadata) -> bool:
        """Whether nobody has kept the generator, so another record may use it."""
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
    """The record keys of a user's sampler, as a selection from one dataset."""

    def __init__(self, order: Order, num_records: int):
        self._order = order
        self._num_records = num_records
        places = _num_places(order.sampler)
        shard = order.shard
        if places == sys.maxsize:
            self._length = places
        else:
            self._length = places // shard.shard_count if shard.ends_together else shard.piece(places)[1]

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

    below = 0  # `below` places exist
    above = 1
    while has(above - 1):
        if above >= 1 << 62:
            return sys.maxsize
        below = above
        above = 2 * above
    while below + 1 < above:
        middle = (below + above) // 2
        below, above = (middle, above) if has(middle - 1) else (below, middle)
    return below
