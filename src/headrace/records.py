"""Records: elements with their metadata."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class RecordMetadata:
    """What a sampler knows about one record.

    >>> from headrace.samplers import IndexSampler
    >>> metadata = IndexSampler(4, shuffle=True, seed=1)[5]
    >>> metadata.index, metadata.record_key
    (5, 3)

    Args:
        index: Its place in the whole stream, over all epochs and shards.
        record_key: Its index in the source.
        rng: Its random number generator.
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> "RecordMetadata":
        """The same without a key, for a combination of several records."""
        return RecordMetadata(self.index, None, self.rng)


@dataclass(slots=True)
class Record:
    """An element and its metadata.

    >>> record = Record(RecordMetadata(index=3), data="three")
    >>> record.metadata.index, record.data
    (3, 'three')
    """

    metadata: RecordMetadata
    data: Any
