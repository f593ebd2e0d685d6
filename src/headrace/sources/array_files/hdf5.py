"""HDF5 files as sources.

An HDF5 file may take data from other files, by external links, external storage and virtual datasets. By default they
must be in its folder, so that a file from somewhere else cannot make one read any file of the machine.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.errors import DataError, optional
from headrace.sources import files
from headrace.sources.array_files.paths import Path
from headrace.sources.array_files.stored import StoredArrays

BRIDGED_BYTES = 64 << 10  # unwanted rows are read if that saves another read


class Hdf5DataSource(StoredArrays):
    """The rows of the datasets in a group of an HDF5 file, as dicts; nested groups are nested dicts.

    >>> import h5py
    >>> with h5py.File(folder / "a.h5", "w") as file:
    ...     file["x"] = np.arange(3)
    >>> Hdf5DataSource(folder / "a.h5")[1]
    {'x': np.int64(1)}

    Args:
        path: The file.
        group: The group; or a single dataset, whose rows are then the elements.
        keys: Which members of the group; all by default.
        external: Whether the file may take data from files in other folders.
    """

    what = "an HDF5 file"

    def __init__(self, path: Path, *, group: str = "/", keys: Sequence[str] | None = None, external: bool = False):
        self._external = external
        super().__init__(path, group=group, keys=keys)

    def _open_file(self) -> Any:
        return optional("h5py", extra="hdf5").File(files.local_copy(self._path), "r")

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        is_array = hasattr(group, "shape")
        if not self._external:
            self._check_near(group.file.filename)  # a link may lead to another file
            for name in _other_files(group) if is_array else ():
                self._check_near(name)
        return None if is_array else group

    def _check_near(self, name: str) -> None:
        """Raises unless a file that the data is taken from is in the folder of this one."""
        folder = os.path.realpath(os.path.dirname(files.local_copy(self._path)))
        if os.path.dirname(os.path.realpath(os.path.join(folder, name))) != folder:
            raise DataError(
                f"{self._path} takes data from {name!r}, which is not in its folder. If you trust the file, pass "
                "`external=True`."
            )

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        is_text = array.dtype.metadata and array.dtype.metadata.get("vlen") is str
        readable = array.asstr() if is_text else array
        pieces = [readable[rows[0] : rows[-1] + 1][rows - rows[0]] for rows in _spans(array, indices)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _other_files(array: Any) -> list[str]:
    """The names of the files that an array is stored in, except for its own."""
    if array.is_virtual:
        return [source.file_name for source in array.virtual_sources() if source.file_name != "."]
    # Unlike other names, these are relative to the working directory.
    return [os.path.abspath(os.fsdecode(name)) for name, _, _ in array.external or ()]


def _spans(array: Any, indices: np.ndarray) -> list[np.ndarray]:
    """Ascending indices, cut where reading on would cost more than another read.

    Reading ranges is 2 to 40 times faster than reading a list of indices with HDF5, except for a few close ones.
    """
    if array.chunks:
        cuts = np.flatnonzero(np.diff(indices // array.chunks[0]))
    else:
        row_bytes = max(1, math.prod(array.shape[1:]) * array.dtype.itemsize)
        cuts = np.flatnonzero(np.diff(indices) > max(1, BRIDGED_BYTES // row_bytes))
    return np.split(indices, cuts + 1)
