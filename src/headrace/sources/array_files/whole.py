"""Files that are mapped or read as a whole: `.npy`, `.npz` and IDX."""

import functools
import gzip
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace._utils.addresses import told_apart
from headrace.errors import DataError
from headrace.sources import files
from headrace.sources.array_files.paths import (
    Path,
    check_size,
    checked_keys,
    chosen_keys,
    damage_named,
    each,
    existing,
)
from headrace.sources.arrays import ArrayDataSource

READ_BYTES = 1 << 20
IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class WholeArrays(ArrayDataSource):
    """Arrays of files, each read as a whole by a function; the repr names the files."""

    def __init__(self, paths: Path | Mapping[str, Path], read: Callable[[str], Any]):
        self._paths = existing(paths, what=f"Files of {type(self).__name__}")
        super().__init__(each(read, self._paths))

    def __repr__(self) -> str:
        paths, arrays = each(told_apart, self._paths), super().__repr__().removeprefix("ArrayDataSource(")
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
        self._versions = each(files.fingerprint, self._paths)
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
            raise DataError(f"{self._paths!r} changed since the source was made. Make it again.")


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
    with damage_named(path, "a `.npy` file"):
        return np.lib.format.open_memmap(files.local_copy(path), mode="r")


def _read_npz(path: str, *, keys: list[str] | None) -> dict[str, np.ndarray]:
    with damage_named(path, "a `.npz` file"), files.open_stream(path) as stream:
        loaded = np.load(stream, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("it is a single array, not an archive")
        with loaded as archive:
            arrays, chosen = {}, chosen_keys(path, archive.files, keys)
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
        size, there = math.prod(shape) * dtype.itemsize, archive.getinfo(name).file_size - member.tell()
    if size > there and not dtype.hasobject:
        raise ValueError(f"its shape is {list(shape)} of {dtype}, which takes {size} bytes, but it has {there}")


def _read_idx(path: str) -> np.ndarray:
    with damage_named(path, "an IDX file"), files.open_stream(path) as stream:
        is_compressed = stream.read(3) == files.GZIP
        stream.seek(0)
        return _parse_idx(gzip.GzipFile(fileobj=stream) if is_compressed else stream)


def _parse_idx(stream: Any) -> np.ndarray:
    """Parses two zero bytes, the type, the number of axes, their lengths, and the values, all big-endian."""
    head = _read_up_to(stream, 4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_DTYPES:
        raise ValueError(f"it begins with {head.hex(' ') or 'nothing'}, where two zeros and a type should be")
    dtype, num_axes = np.dtype(IDX_DTYPES[head[2]]), head[3]
    lengths = _read_up_to(stream, 4 * num_axes)
    start = 4 + 4 * num_axes
    if len(lengths) < 4 * num_axes:
        raise ValueError(f"it ends after {4 + len(lengths)} bytes, within the lengths of its {num_axes} axes")
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
