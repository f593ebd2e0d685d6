"""Zarr stores as sources."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace._utils import trees
from headrace.errors import optional
from headrace.sources import files
from headrace.sources.array_files.chunks import blosc_chunk_bytes, checked_store
from headrace.sources.array_files.paths import Path
from headrace.sources.array_files.stored import StoredArrays

ARRAYS = ("zarr.json", ".zarray")  # the files that describe one


class ZarrDataSource(StoredArrays):
    """The rows of the arrays in a Zarr group, as dicts; groups in it are dicts within.

    Args:
        path: The store: a folder, or a `.zip` file.
        group: The group in it, or one array: its rows are then the elements.
        keys: Which members of the group; all by default.
        require_chunks: Makes a chunk that is not there an error. Zarr does not write those of nothing but the fill
            value, unless told to (`write_empty_chunks=True`): by default such a chunk is that value, also where its
            file was lost.
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
            store = checked_store()(storage.ZipStore(files.local_copy(store), mode="r"))
        elif not files.is_remote(store):
            store = checked_store()(storage.LocalStore(store, read_only=True))
        elif hasattr(store, "options"):  # of an `Address`
            options = {"storage_options": store.options}  # type: ignore[attr-defined]
        try:
            return zarr.open(store, mode="r", **options)
        except FileNotFoundError as e:
            raise ValueError("there is no group or array at its top") from e

    def _opened(self, file: Any, arrays: Any) -> None:
        if not isinstance(file.store, checked_store()):
            return
        told = {array.path: blosc_chunk_bytes(array) for array in trees.leaves(arrays)}
        file.store.chunk_bytes = {path: num_bytes for path, (is_blosc, num_bytes) in told.items() if is_blosc}
        file.store.requires_chunks = self._require_chunks

    def _files_of(self, arrays: Any) -> list[str]:
        """Of a folder, the descriptions of the arrays: which chunks there are is not known."""
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
