"""Chunks of Zarr arrays on their way from the store.

Blosc believes what the header of a chunk says of its own length, and reads on behind the end of one that was cut short:
the header is looked at before.
"""

import functools
import math
from typing import Any

from headrace.errors import optional

DESCRIPTIONS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
BLOSC_HEADER_BYTES = 16


@functools.cache
def checked_store() -> Any:
    """A class of stores that look at what another one gives; zarr is imported when it is needed."""
    storage = optional("zarr.storage", extra="zarr")

    class CheckedStore(storage.WrapperStore):
        """Raises for chunks that are not there, if they have to be, and for those that Blosc would be led astray by."""

        chunk_bytes: dict[str, int | None] = {}  # noqa: RUF012  (by the path of an array: those that are Blosc's)
        requires_chunks = False

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await self._store.get(key, prototype, byte_range)
            if key.rpartition("/")[2] in DESCRIPTIONS:
                return found
            if found is None and self.requires_chunks:
                raise ValueError(f"chunk {key!r} is not there")
            if found is not None and byte_range is None and self.chunk_bytes:
                path = next((path for path in self.chunk_bytes if not path or key.startswith(f"{path}/")), None)
                if path is not None:
                    _check_blosc(key, found, self.chunk_bytes[path])
            return found

    return CheckedStore


def _check_blosc(key: str, chunk: Any, expected: int | None) -> None:
    """Raises unless the header of a chunk says the length that it has, and that of what it holds."""
    header = chunk[:BLOSC_HEADER_BYTES].to_bytes()
    num_bytes, _, size = (int.from_bytes(header[i : i + 4], "little") for i in (4, 8, 12))
    if len(header) < BLOSC_HEADER_BYTES or size != len(chunk):
        raise ValueError(f"chunk {key!r} has {len(chunk)} bytes, and says that it has {size}")
    if expected not in (None, num_bytes):
        raise ValueError(f"chunk {key!r} says that it holds {num_bytes} bytes, and has to hold {expected}")


def blosc_chunk_bytes(array: Any) -> tuple[bool, int | None]:
    """Whether the chunks of an array are Blosc's, and how many bytes each holds, where that is known."""
    compressors = array.compressors
    is_blosc = bool(compressors) and "blosc" in type(compressors[-1]).__name__.lower() and array.shards is None
    is_plain = len(compressors) == 1 and not array.filters and array.dtype.kind in "biufc"
    return is_blosc, math.prod(array.chunks) * array.dtype.itemsize if is_plain else None
