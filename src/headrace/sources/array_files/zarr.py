"""Zarr stores as sources."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace import _tree
from headrace.errors import optional
from headrace.sources.array_files.paths import on_this_machine
from headrace.sources.array_files.stored import StoredArrays

DESCRIPTIONS = ("zarr.json", ".zarray")


class ZarrDataSource(StoredArrays):
    """The rows of the arrays in a Zarr group, as dicts; groups in it are dicts within.

    Args:
        path: The store: a folder, or a `.zip` file.
        group: The group in it, or one array: its rows are then the elements.
        keys: Which members of the group; all by default.
    """

    what = "a Zarr store"

    def _open_file(self) -> Any:
        zarr, store, options = optional("zarr", extra="zarr"), self._path, {}
        if store.endswith(".zip"):
            store = optional("zarr.storage", extra="zarr").ZipStore(on_this_machine(store), mode="r")
        elif hasattr(store, "options"):  # of an `Address`
            options = {"storage_options": store.options}  # type: ignore[attr-defined]
        try:
            return zarr.open(store, mode="r", **options)
        except FileNotFoundError as e:
            raise ValueError("there is no group or array at its top") from e

    def _files_of(self, arrays: Any) -> list[str]:
        """Of a folder, the descriptions of the arrays: which chunks there are is not known."""
        if os.path.isfile(self._path):
            return [self._path]
        names = [os.path.join(self._path, array.path, name) for array in _tree.leaves(arrays) for name in DESCRIPTIONS]
        return list(filter(os.path.exists, names))

    def _close_file(self, file: Any) -> None:
        file.store.close()

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        return None if hasattr(group, "shape") else dict(group.members())

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        return np.asarray(array.oindex[indices])
