"""Files of arrays as sources: `.npy`, `.npz`, IDX (the format of MNIST), HDF5 and Zarr; element `i` is row `i` of each.

Arrays of one source have one leading length. What NumPy can map is mapped; IDX and `.npz` files are read into memory,
where workers share one copy; HDF5 and Zarr stay in their files, and of a block each chunk is read once.
"""

import contextlib
import functools
import gzip
import math
import operator
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headrace import _tree
from headrace._spec import ShapeDtypeStruct
from headrace.errors import DataError, HeadraceError, PipelineError, optional
from headrace.sources import files
from headrace.sources.arrays import ArrayDataSource

Path = str | os.PathLike
IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
BRIDGED_BYTES = 64 << 10  # rows that nobody asked for are read along where that spares a read


class _ArraysInFiles(ArrayDataSource):
    """Arrays of files, each read at once by the format's function; the repr has the files as well."""

    def __init__(self, paths: Path | Mapping[str, Path], read: Callable[[str], Any]):
        self._paths = _found(paths, what=f"Files of {type(self).__name__}")
        super().__init__(_each(read, self._paths))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._paths!r}, {super().__repr__().removeprefix('ArrayDataSource(')}"


class NpyDataSource(_ArraysInFiles):
    """The rows of a `.npy` file, which is mapped into memory; of a dict of files, a dict of rows.

    Args:
        paths: A path, or a dict of paths, as in `{"image": "images.npy", "label": "labels.npy"}`.
    """

    def __init__(self, paths: Path | Mapping[str, Path]):
        super().__init__(paths, _mapped)
        self._versions = _each(files.fingerprint, self._paths)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._paths, "versions": self._versions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"])
        if self._versions != state["versions"]:
            raise DataError(f"{self._paths!r} changed since the source was made: make it again.")


class NpzDataSource(_ArraysInFiles):
    """The rows of the arrays in a `.npz` file, as dicts.

    Args:
        path: The file.
        keys: Which arrays; all by default.
    """

    def __init__(self, path: Path, *, keys: Sequence[str] | None = None):
        super().__init__(path, functools.partial(_read_npz, keys=_names(keys)))


class IdxDataSource(_ArraysInFiles):
    """The rows of an IDX file, gzipped or not; of a dict of files, a dict of rows.

    Args:
        paths: A path, or a dict of paths, as in `{"image": "train-images-idx3-ubyte.gz", "label": …}`.
    """

    def __init__(self, paths: Path | Mapping[str, Path]):
        super().__init__(paths, _read_idx)


def _found(paths: Path | Mapping[str, Path], *, what: str) -> Any:
    """The paths as strings that also hold in another working folder; raises with all that are missing."""
    if isinstance(paths, str | os.PathLike):
        return _found({"": paths}, what=what)[""]
    if not isinstance(paths, Mapping) or not paths:
        raise PipelineError(f"{what} are given by a path, or by a dict of paths; got {paths!r}.")
    found = {name: _absolute(path) for name, path in paths.items()}
    missing = [path for path in found.values() if not files.is_remote(path) and not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of {len(found)} {what} do not exist: {', '.join(missing)}.")
    return found


def _absolute(path: Path) -> str:
    if not isinstance(path, str | os.PathLike):
        raise PipelineError(f"A path must be a string or a path object; got {type(path).__name__}: {path!r}.")
    return path if isinstance(path, str) and files.is_remote(path) else os.path.abspath(os.fsdecode(path))


def _each(function: Callable[[str], Any], paths: Any) -> Any:
    return {name: function(path) for name, path in paths.items()} if isinstance(paths, dict) else function(paths)


def _names(keys: Sequence[str] | None) -> list[str] | None:
    if isinstance(keys, str) or (keys is not None and not keys):
        raise PipelineError(f"`keys` must be a sequence of names, at least one; got {keys!r}.")
    return None if keys is None else list(keys)


def _chosen(path: str, found: Sequence[str], keys: list[str] | None) -> list[str]:
    missing = [key for key in keys or () if key not in found]
    if missing:
        raise PipelineError(f"{path} has no {', '.join(map(repr, missing))}; it has {', '.join(map(repr, found))}.")
    return list(found) if keys is None else keys


def _on_this_machine(path: str) -> str:
    """A local path to the bytes, for libraries that open files themselves."""
    if files.is_remote(path):
        from headrace.sources import remote

        return remote.local_copy(path)
    return path


# -------------------------------------------------------------------------------------------- NumPy, IDX


def _mapped(path: str) -> np.ndarray:
    with _damage_named(path, "a `.npy` file"):
        return np.lib.format.open_memmap(_on_this_machine(path), mode="r")


def _read_npz(path: str, *, keys: list[str] | None) -> dict[str, np.ndarray]:
    with _damage_named(path, "a `.npz` file"), files.open_stream(path) as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is one array, and no archive")
        with loaded as archive:
            arrays = {}
            for key in _chosen(path, archive.files, keys):
                try:
                    arrays[key] = archive[key]
                except ValueError as e:
                    raise ValueError(f"array {key!r}: {e}") from e
            return arrays


def _read_idx(path: str) -> np.ndarray:
    with _damage_named(path, "an IDX file"), files.open_stream(path) as stream:
        content = stream.read()
        return _parse_idx(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)


def _parse_idx(content: bytes) -> np.ndarray:
    """Two zero bytes, the type, the number of axes, their lengths, and the values; all big-endian."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_DTYPES:
        raise ValueError(f"it begins with {content[:4].hex(' ') or 'nothing'}, where two zeros and a type should be")
    dtype, num_axes = np.dtype(IDX_DTYPES[content[2]]), content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(f"it ends after {len(content)} bytes, within the lengths of its {num_axes} axes")
    shape = np.frombuffer(content, ">u4", num_axes, offset=4).tolist()
    needed = start + math.prod(shape) * dtype.itemsize
    if len(content) != needed:
        raise ValueError(f"its shape is {shape} of {dtype}, which takes {needed} bytes, and it has {len(content)}")
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


@contextlib.contextmanager
def _damage_named(path: str, what: str) -> Iterator[None]:
    """Errors of a reader as one that names the file."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, EOFError, KeyError, OSError, zlib.error, zipfile.BadZipFile) as e:
        if isinstance(e, FileNotFoundError | PermissionError):
            raise
        found = str(e).rstrip(".") or type(e).__name__
        raise DataError(f"{path} cannot be read as {what}: {found}. Was it written or copied to its end?") from e


# ------------------------------------------------------------------------------------------- HDF5, Zarr


class _StoredArrays:
    """Arrays that stay in their file: it is opened when they are first read, in each process on its own."""

    what: ClassVar[str]

    def __init__(self, path: Path, *, group: str = "/", keys: Sequence[str] | None = None):
        self._path = _found(path, what=f"Files of {type(self).__name__}")
        self._group, self._keys = group, _names(keys)
        self._lock = threading.Lock()
        self._open: tuple[Any, Any] | None = None  # the file, and the tree of its arrays
        self.element_spec = _spec_of(self._arrays())
        self._length = _tree.leaves(self._arrays())[0].shape[0]

    def _open_file(self) -> Any:
        raise NotImplementedError

    def _close_file(self, file: Any) -> None:
        file.close()

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        """The groups and arrays in a group; None if it is an array."""
        raise NotImplementedError

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        """The rows of an array at indices that ascend."""
        raise NotImplementedError

    def _arrays(self) -> Any:
        with self._lock:
            if self._open is None:
                with _damage_named(self._path, self.what):
                    file = self._open_file()
                try:
                    arrays = self._tree_of(self._group_in(file), self._group.strip("/"), self._keys)
                    _check_lengths(self._path, arrays)
                except BaseException:
                    self._close_file(file)
                    raise
                self._open = file, arrays
            return self._open[1]

    def _group_in(self, file: Any) -> Any:
        inside = self._group.strip("/")
        if not inside:
            return file
        try:
            return file[inside]
        except KeyError:
            there = ", ".join(map(repr, sorted(self._members(file) or ())))
            raise PipelineError(f"{self._path} has no group or array {inside!r}; at its top are {there}.") from None

    def _tree_of(self, node: Any, name: str, keys: list[str] | None = None) -> Any:
        members = self._members(node)
        if members is None:
            return node
        if len(members) == 0:
            raise PipelineError(f"Group {name or '/'!r} of {self._path} has no arrays.")
        chosen = _chosen(self._path, sorted(members), keys)
        return {key: self._tree_of(members[key], f"{name}/{key}") for key in chosen}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = operator.index(index)
        if not -self._length <= place < self._length:
            raise IndexError(f"Index {index} is out of range for {self._length} rows.")
        return _tree.tree_map(lambda column: column[0], self.__getcolumns__(np.array([place % self._length])))

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, each of which lies in `0..len - 1`, as columns; the file is read in its own order."""
        places, order = np.unique(indices, return_inverse=True)

        def read(array: Any) -> np.ndarray:
            with _damage_named(self._path, f"{self.what}, array {array.name}, rows {places[0]} to {places[-1]}"):
                rows = self._rows(array, places)[order]
            # A list that is asked for twice must be two: they are the user's to change.
            is_list = rows.dtype == object and rows.ndim == 1
            return np.fromiter(map(_tree.copy_tree, rows), object, len(rows)) if is_list else rows

        if not len(places):
            return _tree.tree_map(lambda spec: np.empty((0, *spec.shape), spec.dtype), self.element_spec)
        return _tree.tree_map(read, self._arrays())

    def close(self) -> None:
        """Closes the file; reading from the source opens it again."""
        with self._lock:
            opened, self._open = self._open, None
        if opened is not None:
            self._close_file(opened[0])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def __repr__(self) -> str:
        inside = self._group.strip("/")
        chosen = (f", group={inside!r}" if inside else "") + (f", keys={self._keys}" if self._keys else "")
        return f"{type(self).__name__}({self._path!r}{chosen}, length={self._length})"


def _spec_of(arrays: Any) -> Any:
    return _tree.tree_map(lambda array: ShapeDtypeStruct(array.shape[1:], array.dtype), arrays)


def _check_lengths(path: str, arrays: Any) -> None:
    shapes = {name: array.shape for name, array in _tree.named_leaves(arrays)}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
        listed = ", ".join(f"{name or 'the array'}: {list(shape or ())}" for name, shape in shapes.items())
        raise PipelineError(
            f"Arrays of one source must have the same length; {path} has the shapes {listed}. Choose some of them "
            "by `keys`, or a group of them by `group`."
        )


class Hdf5DataSource(_StoredArrays):
    """The rows of the datasets in a group of an HDF5 file, as dicts; groups in it are dicts within.

    Args:
        path: The file.
        group: The group, or one dataset: its rows are then the elements.
        keys: Which members of the group; all by default.
    """

    what = "an HDF5 file"

    def _open_file(self) -> Any:
        return optional("h5py", extra="hdf5").File(_on_this_machine(self._path), "r")

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        return None if hasattr(group, "shape") else group

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        is_text = array.dtype.metadata and array.dtype.metadata.get("vlen") is str
        readable = array.asstr() if is_text else array
        pieces = [readable[rows[0] : rows[-1] + 1][rows - rows[0]] for rows in _spans(array, indices)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _spans(array: Any, indices: np.ndarray) -> list[np.ndarray]:
    """Indices that ascend, cut where reading on would cost more than another read.

    Reading ranges is 2 to 40 times faster than what HDF5 makes of a list of indices, but for a few in one piece.
    """
    if array.chunks:
        cuts = np.flatnonzero(np.diff(indices // array.chunks[0]))
    else:
        row_bytes = max(1, math.prod(array.shape[1:]) * array.dtype.itemsize)
        cuts = np.flatnonzero(np.diff(indices) > max(1, BRIDGED_BYTES // row_bytes))
    return np.split(indices, cuts + 1)


class ZarrDataSource(_StoredArrays):
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
            store = optional("zarr.storage", extra="zarr").ZipStore(_on_this_machine(store), mode="r")
        elif hasattr(store, "options"):  # of an `Address`
            options = {"storage_options": store.options}  # type: ignore[attr-defined]
        try:
            return zarr.open(store, mode="r", **options)
        except FileNotFoundError as e:
            raise ValueError("there is no group or array at its top") from e

    def _close_file(self, file: Any) -> None:
        file.store.close()

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        return None if hasattr(group, "shape") else dict(group.members())

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        return np.asarray(array.oindex[indices])
