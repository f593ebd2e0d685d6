"""Records: what a sampler says of an element, and the element itself."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class RecordMetadata:
    """What a sampler says of one record.

    Args:
        index: Its number in the whole stream, over all epochs and shards.
        record_key: Its index in the source.
        rng: A random number generator of its own.
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> "RecordMetadata":
        """The same without a key, for what is made of several records."""
        return RecordMetadata(self.index, None, self.rng)


@dataclass(slots=True)
class Record:
    """An element and what its sampler says of it."""

    metadata: RecordMetadata
    data: Any
