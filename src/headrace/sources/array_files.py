"""Files of arrays as sources: `.npy`, `.npz`, IDX (the format of MNIST), HDF5 and Zarr; element `i` is row `i` of each.

The arrays of a source have the same first dimension. `.npy` files are mapped; IDX and `.npz` files are read into
memory, where workers share one copy; HDF5 and Zarr are read from their files, each chunk once for a block.
"""

import contextlib
import functools
import gzip
import math
import os
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headrace import trees
from headrace.errors import (
    DataError,
    DataMemoryError,
    HeadraceError,
    PipelineError,
    RemoteError,
    format_error,
    optional,
    without_secrets,
)
from headrace.errors.addresses import redacted, secrets_in, with_identity_digest
from headrace.storage import files
from headrace.storage.files import MappedFiles
from headrace.storage.indices import checked_index
from headrace.storage.memory import ArrayDataSource
from headrace.trees import ShapeDtypeStruct

# ----------------------------------------------------------------------------------------------------------- paths
# Paths of files of arrays, names of arrays in them, and their errors.


Path = str | os.PathLike


def existing_paths(paths: Path | Mapping[str, Path], *, what: str) -> Any:
    """The absolute paths as strings; raises with all that are missing."""
    if isinstance(paths, str | os.PathLike):
        return existing_paths({"": paths}, what=what)[""]
    if not isinstance(paths, Mapping) or not paths:
        raise PipelineError(f"{what} need a path or a dict of paths; got {paths!r}.")
    wrong = [path for path in paths.values() if not isinstance(path, str | os.PathLike)]
    if wrong:
        raise PipelineError(f"A path must be a string or a path object; got {type(wrong[0]).__name__}: {wrong[0]!r}.")
    found = {name: files.absolute(path) for name, path in paths.items()}
    missing = [path for path in found.values() if not files.is_remote(path) and not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of {len(found)} {what} do not exist: {redacted(', '.join(missing))}.")
    return found


def map_paths(function: Callable[[str], Any], paths: Any) -> Any:
    """Applies a function to a path, or to each in a dict of paths."""
    return {name: function(path) for name, path in paths.items()} if isinstance(paths, dict) else function(paths)


def checked_keys(keys: Sequence[str] | None) -> list[str] | None:
    """The names of the arrays to read; None for all."""
    if isinstance(keys, str) or (keys is not None and not keys):
        raise PipelineError(f"`keys` must be a sequence of at least one name; got {keys!r}.")
    return None if keys is None else list(keys)


def chosen_keys(path: str, found: Sequence[str], keys: list[str] | None) -> list[str]:
    """The names of the arrays to read, of those found in a file."""
    missing = [key for key in keys or () if key not in found]
    if missing:
        raise PipelineError(f"{path} has no {', '.join(map(repr, missing))}; it has {', '.join(map(repr, found))}.")
    return list(found) if keys is None else keys


def check_size(what: str, num_bytes: int) -> None:
    """Raises for data that cannot fit into memory: a small compressed file may hold very much, or say so."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory_bytes:
        raise ValueError(f"{what}, which takes {num_bytes} bytes, but the memory of this machine is {memory_bytes}")


_OF_DAMAGE = (ValueError, EOFError, KeyError, OSError, RuntimeError, zlib.error, zipfile.BadZipFile)


@contextlib.contextmanager
def translate_damage(path: str, what: str) -> Iterator[None]:
    """Turns errors of a reader into one that names the file, without the secrets in errors of drivers."""
    hidden = secrets_in(getattr(path, "options", None))
    try:
        yield
    except (HeadraceError, ImportError):
        raise
    except MemoryError as e:
        error = DataMemoryError(f"{redacted(path)} cannot be read as {what}: not enough memory. {e}")
        error.add_note(f"reading {redacted(path)} as {what}")
        raise error from e
    except (FileNotFoundError, PermissionError) as e:
        if without_secrets(e, hidden) is e:
            raise
        raise type(e)(redacted(str(e), hidden)) from None
    except Exception as e:  # libraries raise anything for a damaged file
        cause = without_secrets(e, hidden)
        if files.is_remote(path) and not isinstance(e, _OF_DAMAGE):
            raise RemoteError(f"{path} could not be read: {redacted(format_error(e), hidden)}.") from cause
        found = redacted(" ".join(str(e).split()).rstrip("."), hidden) or type(e).__name__
        raise DataError(f"{path} cannot be read as {what}: {found}. Is the file truncated?") from cause


# ---------------------------------------------------------------------------------------------------------- stored
# Arrays of which rows are read from their file.


class StoredArrays:
    """Arrays in a file, which each process opens when it first reads them."""

    what: ClassVar[str]

    def __init__(self, path: Path, *, group: str = "/", keys: Sequence[str] | None = None):
        self._path = existing_paths(path, what=f"Files of {type(self).__name__}")
        self._group = group
        self._keys = checked_keys(keys)
        self._lock = threading.Lock()
        self._open: tuple[Any, Any] | None = None  # the file, and the tree of its arrays
        self._mapped = MappedFiles()
        with translate_damage(self._path, self.what):
            arrays = self._arrays()
            self.element_spec = trees.tree_map(lambda a: ShapeDtypeStruct(a.shape[1:], a.dtype), arrays)
        self._length = trees.leaves(arrays)[0].shape[0]

    def _open_file(self) -> Any:
        raise NotImplementedError

    def _close_file(self, file: Any) -> None:
        file.close()

    def _members(self, group: Any) -> Mapping[str, Any] | None:
        """The groups and arrays in a group; None for an array."""
        raise NotImplementedError

    def _rows(self, array: Any, indices: np.ndarray) -> np.ndarray:
        """The rows of an array at ascending indices."""
        raise NotImplementedError

    def _arrays(self) -> Any:
        with self._lock:
            if self._open is None:
                with translate_damage(self._path, self.what):
                    file = self._open_file()
                    try:
                        arrays = self._tree_of(self._group_in(file), self._group.strip("/"), self._keys)
                        _check_lengths(self._path, arrays)
                        for path in self._files_of(arrays):
                            self._mapped.add(path)
                        self._opened(file, arrays)
                    except BaseException:
                        self._close_file(file)
                        raise
                self._open = file, arrays
            return self._open[1]

    def _opened(self, file: Any, arrays: Any) -> None:
        """Called when the arrays of a file are known."""

    def _files_of(self, arrays: Any) -> list[str]:
        """The files that show whether the data changed: by default, the only one."""
        return [self._path]

    def _group_in(self, file: Any) -> Any:
        inside = self._group.strip("/")
        if not inside:
            return file
        try:
            return file[inside]
        except KeyError:
            there = ", ".join(map(repr, sorted(self._members(file) or ())))
            raise PipelineError(
                f"{self._path} has no group or array {inside!r}; at its top level it has {there}."
            ) from None

    def _tree_of(self, node: Any, name: str, keys: list[str] | None = None) -> Any:
        members = self._members(node)
        if members is None:
            return node
        if len(members) == 0:
            raise PipelineError(
                f"Group {name or '/'!r} of {self._path} has no arrays. Choose another one with `group`."
            )
        chosen = chosen_keys(self._path, sorted(members), keys)
        return {key: self._tree_of(members[key], f"{name}/{key}") for key in chosen}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = checked_index(index, self._length, "rows")
        return trees.tree_map(lambda column: column[0], self.__getcolumns__(np.array([place])))

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, all in `0..len - 1`, as columns; the file is read in ascending order."""
        places, order = np.unique(indices, return_inverse=True)
        arrays = self._arrays()
        self._mapped.check_all()

        def read(array: Any) -> np.ndarray:
            with translate_damage(self._path, f"{self.what}, array {array.name}, rows {places[0]} to {places[-1]}"):
                rows = self._rows(array, places)[order]
            # A list that is requested twice must be copied: users may modify either.
            is_list = rows.dtype == object and rows.ndim == 1
            return np.fromiter(map(trees.copy_tree, rows), object, len(rows)) if is_list else rows

        if not len(places):
            return trees.tree_map(lambda spec: np.empty((0, *spec.shape), spec.dtype), self.element_spec)
        return trees.tree_map(read, arrays)

    def close(self) -> None:
        """Closes the file; reading from the source opens it again."""
        with self._lock:
            opened = self._open
            self._open = None
        if opened is not None:
            self._close_file(opened[0])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lock": None, "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock()}

    def __repr__(self) -> str:
        inside = self._group.strip("/")
        chosen = (f", group={inside!r}" if inside else "") + (f", keys={self._keys}" if self._keys else "")
        return f"{type(self).__name__}({with_identity_digest(self._path)!r}{chosen}, length={self._length})"


def _check_lengths(path: str, arrays: Any) -> None:
    shapes = {name: array.shape for name, array in trees.named_leaves(arrays)}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
        listed = ", ".join(f"{name or 'the array'}: {list(shape or ())}" for name, shape in shapes.items())
        raise PipelineError(
            f"Arrays of one source must have the same length; {path} has the shapes {listed}. Select some of them "
            "with `keys`, or a group with `group`."
        )


# ------------------------------------------------------------------------------------------------------------ hdf5
# HDF5 files as sources.
#
# An HDF5 file may take data from other files, by external links, external storage and virtual datasets. By default they
# must be in its folder, so that a file from somewhere else cannot make one read any file of the machine.


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
                f"{self._path} reads data from {name!r}, outside its folder. If you trust the file, pass "
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


# ----------------------------------------------------------------------------------------------------------- whole
# Files that are mapped or read as a whole: `.npy`, `.npz` and IDX.


READ_BYTES = 1 << 20
IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class WholeArrays(ArrayDataSource):
    """Arrays of files, each read as a whole by a function; the repr names the files."""

    def __init__(self, paths: Path | Mapping[str, Path], read: Callable[[str], Any]):
        self._paths = existing_paths(paths, what=f"Files of {type(self).__name__}")
        super().__init__(map_paths(read, self._paths))

    def __repr__(self) -> str:
        paths = map_paths(with_identity_digest, self._paths)
        arrays = super().__repr__().removeprefix("ArrayDataSource(")
        return f"{type(self).__name__}({paths!r}, {arrays}"


class NpyDataSource(WholeArrays):
    """The rows of a `.npy` file, which is mapped into memory; for a dict of files, dicts of rows.

    >>> np.save(folder / "x.npy", np.arange(6).reshape(3, 2))
    >>> NpyDataSource({"x": folder / "x.npy"})[1]
    {'x': array([2, 3])}

    Args:
        paths: A path, or a dict of paths, as in `{"image": "images.npy", "label": "labels.npy"}`.
    """

    def __init__(self, paths: Path | Mapping[str, Path]):
        super().__init__(paths, _mapped)
        self._versions = map_paths(files.fingerprint, self._paths)
        named = self._paths if isinstance(self._paths, dict) else {"": self._paths}
        self._open = [(path, files.LocalFile(path)) for path in named.values() if not files.is_remote(path)]

    def __getitem__(self, index: int) -> Any:
        self._check_unchanged()
        return super().__getitem__(index)

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, all in `0..len - 1`, as new columns."""
        self._check_unchanged()
        return super().__getcolumns__(indices)

    def _check_unchanged(self) -> None:
        for path, file in self._open:
            file.check_unchanged(path)

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self._paths, "versions": self._versions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["paths"])
        if self._versions != state["versions"]:
            raise DataError(f"{self._paths!r} changed after the source was created. Recreate the source.")


class NpzDataSource(WholeArrays):
    """The rows of the arrays in a `.npz` file, as dicts.

    >>> np.savez(folder / "a.npz", x=np.arange(3), y=np.zeros(3))
    >>> NpzDataSource(folder / "a.npz", keys=["x"])[1]
    {'x': np.int64(1)}

    Args:
        path: The file.
        keys: Which arrays; all by default.
    """

    def __init__(self, path: Path, *, keys: Sequence[str] | None = None):
        super().__init__(path, functools.partial(_read_npz, keys=checked_keys(keys)))


class IdxDataSource(WholeArrays):
    """The rows of an IDX file, gzipped or not; for a dict of files, dicts of rows.

    >>> header = bytes([0, 0, 8, 1, 0, 0, 0, 3])  # three uint8, as in MNIST's labels
    >>> _ = (folder / "labels-idx1-ubyte").write_bytes(header + bytes([7, 8, 9]))
    >>> IdxDataSource(folder / "labels-idx1-ubyte")[1]
    np.uint8(8)

    Args:
        paths: A path, or a dict of paths, as in `{"image": "train-images-idx3-ubyte.gz", "label": …}`.
    """

    def __init__(self, paths: Path | Mapping[str, Path]):
        super().__init__(paths, _read_idx)


def _mapped(path: str) -> np.ndarray:
    with translate_damage(path, "a `.npy` file"):
        return np.lib.format.open_memmap(files.local_copy(path), mode="r")


def _read_npz(path: str, *, keys: list[str] | None) -> dict[str, np.ndarray]:
    with translate_damage(path, "a `.npz` file"), files.open_stream(path) as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array, not an archive")
        with loaded as archive:
            arrays = {}
            chosen = chosen_keys(path, archive.files, keys)
            sizes = {entry.filename: entry.file_size for entry in archive.zip.infolist()}  # type: ignore[union-attr]
            check_size(f"it has {len(chosen)} arrays of data", sum(sizes.get(f"{key}.npy", 0) for key in chosen))
            for key in chosen:
                try:
                    _check_header(archive.zip, key)
                    arrays[key] = archive[key]
                except ValueError as e:
                    raise ValueError(f"array {key!r}: {e}") from e
            return arrays


def _check_header(archive: Any, key: str) -> None:
    """Raises if an array says that it is larger than the archive says: NumPy would ask for memory before it reads."""
    name = key if key in archive.namelist() else f"{key}.npy"
    with archive.open(name) as member:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        version = np.lib.format.read_magic(member)
        if version not in read:
            return
        shape, _, dtype = read[version](member)
        size = math.prod(shape) * dtype.itemsize
        there = archive.getinfo(name).file_size - member.tell()
    if size > there and not dtype.hasobject:
        raise ValueError(f"its shape is {list(shape)} of {dtype}, which takes {size} bytes, but it has {there}")


def _read_idx(path: str) -> np.ndarray:
    with translate_damage(path, "an IDX file"), files.open_stream(path) as stream:
        is_compressed = stream.read(3) == files.GZIP
        stream.seek(0)
        return _parse_idx(gzip.GzipFile(fileobj=stream) if is_compressed else stream)


def _parse_idx(stream: Any) -> np.ndarray:
    """Parses two zero bytes, the type, the number of axes, their lengths, and the values, all big-endian."""
    head = _read_up_to(stream, 4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_DTYPES:
        raise ValueError(f"it begins with {head.hex(' ') or 'nothing'}, but should begin with two zeros and a type")
    dtype = np.dtype(IDX_DTYPES[head[2]])
    num_axes = head[3]
    lengths = _read_up_to(stream, 4 * num_axes)
    start = 4 + 4 * num_axes
    if len(lengths) < 4 * num_axes:
        raise ValueError(
            f"it ends after {4 + len(lengths)} bytes, before it has given the lengths of its {num_axes} axes"
        )
    shape = np.frombuffer(lengths, ">u4").tolist()
    size = math.prod(shape) * dtype.itemsize
    check_size(f"its shape is {shape} of {dtype}", size)
    content = _read_up_to(stream, size + 1)
    if len(content) != size:
        found = f"more than {start + size}" if len(content) > size else start + len(content)
        raise ValueError(f"its shape is {shape} of {dtype}, which takes {start + size} bytes, but it has {found}")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_up_to(stream: Any, size: int) -> bytearray:
    """Up to `size` bytes; memory is allocated only for those that exist, whatever size a file claims."""
    found = bytearray()
    while len(found) < size and (piece := stream.read(min(READ_BYTES, size - len(found)))):
        found += piece
    return found


# ------------------------------------------------------------------------------------------------------------ zarr
# Zarr stores as sources.
#
# Blosc trusts the length in the header of a chunk, and reads past the end of a truncated one: check it first.


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
        zarr = optional("zarr", extra="zarr")
        storage = optional("zarr.storage", extra="zarr")
        store = self._path
        options = {}
        if store.endswith(".zip"):
            store = _checked_store()(storage.ZipStore(files.local_copy(store), mode="r"))
        elif not files.is_remote(store):
            store = _checked_store()(storage.LocalStore(store, read_only=True))
        elif hasattr(store, "options"):  # an `Address`
            options = {"storage_options": store.options}  # type: ignore[attr-defined]
        try:
            return zarr.open(store, mode="r", **options)
        except FileNotFoundError as e:
            raise ValueError("there is no group or array at its top level") from e

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
        raise ValueError(f"the chunks of array {array.path or '/'!r} are pickled, so reading them could run code")


def _check_blosc(key: str, chunk: Any, expected: int | None) -> None:
    """Raises unless the header of a chunk has its correct size, and that of its content."""
    header = chunk[:BLOSC_HEADER_BYTES].to_bytes()
    num_bytes, _, size = (int.from_bytes(header[i : i + 4], "little") for i in (4, 8, 12))
    if len(header) < BLOSC_HEADER_BYTES or size != len(chunk):
        raise ValueError(f"chunk {key!r} has {len(chunk)} bytes, but claims to have {size}")
    if expected not in (None, num_bytes):
        raise ValueError(f"chunk {key!r} claims to hold {num_bytes} bytes, but must hold {expected}")


def _blosc_chunk_bytes(array: Any) -> tuple[bool, int | None]:
    """Whether the chunks of an array use Blosc, and how many bytes each holds, if known."""
    compressors = array.compressors
    is_blosc = bool(compressors) and "blosc" in type(compressors[-1]).__name__.lower() and array.shards is None
    is_plain = len(compressors) == 1 and not array.filters and array.dtype.kind in "biufc"
    return is_blosc, math.prod(array.chunks) * array.dtype.itemsize if is_plain else None
