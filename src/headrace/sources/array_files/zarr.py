"""Zarr stores as sources.

Blosc trusts the length in the header of a chunk, and reads past the end of a truncated one: check it first.
"""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace._utils import trees
from headrace.errors import optional
from headrace.sources import files
from headrace.sources.array_files.paths import Path
from headrace.sources.array_files.stored import StoredArrays

ARRAYS = ("zarr.json", ".zarray")  # the files that describe an array
DESCRIPTIONS = (*ARRAYS, ".zgroup", ".zattrs", ".zmetadata")
BLOSC_HEADER_BYTES = 16


class ZarrDataSource(StoredArrays):
    """The rows of the arrays in a Zarr group, as dicts; nested groups are nested dicts.

    >>> import zarr
    >>> _ = zarr.create_group(folder / "a.zarr").create_array("x", data=np.arange(3))
    >>> ZarrDataSource(folder / "a.zarr")[1]
    {'x': np.int64(1)}

    Args:
        path: The store: a folder, or a zip file.
        group: The group in it; or a single array, whose rows are then the elements.
        keys: Which members of the group; all by default.
        require_chunks: Whether a missing chunk is an error. By default it reads as the fill value, even if its file was
            lost, because Zarr does not write chunks of only that value (unless with `write_empty_chunks=True`).
    """

    what = "a Zarr store"

    def __init__(
        self, path: Path, *, group: str = "/", keys: Sequence[str] | None = None, require_chunks: bool = False
    ):
        self._require_chunks = require_chunks
        super().__init__(path, group=group, keys=keys)

    def _open_file(self) -> Any:
        zarr, storage = optional("zarr", extra="zarr"), optional("zarr.storage", extra="zarr")
        store, options = self._path, {}
        if store.endswith(".zip"):
            store = _checked_store()(storage.ZipStore(files.local_copy(store), mode="r"))
        elif not files.is_remote(store):
            store = _checked_store()(storage.LocalStore(store, read_only=True))
        elif hasattr(store, "options"):  # an `Address`
            options = {"storage_options": store.options}  # type: ignore[attr-defined]
        try:
            return zarr.open(store, mode="r", **options)
        except FileNotFoundError as e:
            raise ValueError("there is no group or array at its top") from e

    def _opened(self, file: Any, arrays: Any) -> None:
        for array in trees.leaves(arrays):
            _refuse_pickles(array)
        if not isinstance(file.store, _checked_store()):
            return
        found = {array.path: _blosc_chunk_bytes(array) for array in trees.leaves(arrays)}
        file.store.chunk_bytes = {path: num_bytes for path, (is_blosc, num_bytes) in found.items() if is_blosc}
        file.store.requires_chunks = self._require_chunks

    def _files_of(self, arrays: Any) -> list[str]:
        """For a folder, the descriptions of the arrays, since its chunks are not known."""
        if os.path.isfile(self._path):
            return [self._path]
        names = [os.path.join(self._path, array.path, name) for array in trees.leaves(arrays) for name in ARRAYS]
        return list(filter(os.path.exists, names))

    def _close_file(self, file: Any) -> None:
        file.store.close()

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        return None if hasattr(group, "shape") else dict(group.members())

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        return np.asarray(array.oindex[indices])


@functools.cache
def _checked_store() -> Any:
    """The class of stores that check the chunks of another; made when zarr is first needed."""
    storage = optional("zarr.storage", extra="zarr")

    class CheckedStore(storage.WrapperStore):
        """Raises for missing chunks, if they are required, and for those that Blosc cannot read safely."""

        chunk_bytes: dict[str, int | None] = {}  # noqa: RUF012  (by the path of arrays that use Blosc)
        requires_chunks = False

        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await self._store.get(key, prototype, byte_range)
            if key.rpartition("/")[2] in DESCRIPTIONS:
                return found
            if found is None and self.requires_chunks:
                raise ValueError(f"chunk {key!r} is missing")
            if found is not None and byte_range is None and self.chunk_bytes:
                path = next((path for path in self.chunk_bytes if not path or key.startswith(f"{path}/")), None)
                if path is not None:
                    _check_blosc(key, found, self.chunk_bytes[path])
            return found

    return CheckedStore


def _refuse_pickles(array: Any) -> None:
    """Raises if reading the array would run code in it: some versions of numcodecs unpickle chunks."""
    if any(getattr(codec, "codec_id", None) == "pickle" for codec in (*array.filters, *array.compressors)):
        raise ValueError(f"the chunks of array {array.path or '/'!r} are pickled, and so could run code")


def _check_blosc(key: str, chunk: Any, expected: int | None) -> None:
    """Raises unless the header of a chunk has its correct size, and that of its content."""
    header = chunk[:BLOSC_HEADER_BYTES].to_bytes()
    num_bytes, _, size = (int.from_bytes(header[i : i + 4], "little") for i in (4, 8, 12))
    if len(header) < BLOSC_HEADER_BYTES or size != len(chunk):
        raise ValueError(f"chunk {key!r} has {len(chunk)} bytes, but says that it has {size}")
    if expected not in (None, num_bytes):
        raise ValueError(f"chunk {key!r} says that it holds {num_bytes} bytes, but must hold {expected}")


def _blosc_chunk_bytes(array: Any) -> tuple[bool, int | None]:
    """Whether the chunks of an array use Blosc, and how many bytes each holds, if known."""
    compressors = array.compressors
    is_blosc = bool(compressors) and "blosc" in type(compressors[-1]).__name__.lower() and array.shards is None
    is_plain = len(compressors) == 1 and not array.filters and array.dtype.kind in "biufc"
    return is_blosc, math.prod(array.chunks) * array.dtype.itemsize if is_plain else None
