"""Arrays of which rows are read from their file."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from headrace._utils import trees
from headrace._utils.addresses import told_apart
from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import PipelineError
from headrace.sources.array_files.paths import Path, checked_keys, chosen_keys, damage_named, existing
from headrace.sources.indices import place_of
from headrace.sources.mapped import MappedFiles


class StoredArrays:
    """Arrays in a file, which each process opens when it first reads them."""

    what: ClassVar[str]

    def __init__(self, path: Path, *, group: str = "/", keys: Sequence[str] | None = None):
        self._path = existing(path, what=f"Files of {type(self).__name__}")
        self._group, self._keys = group, checked_keys(keys)
        self._lock = threading.Lock()
        self._open: tuple[Any, Any] | None = None  # the file, and the tree of its arrays
        self._mapped = MappedFiles()
        with damage_named(self._path, self.what):
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
                with damage_named(self._path, self.what):
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
            raise PipelineError(f"{self._path} has no group or array {inside!r}; at its top are {there}.") from None

    def _tree_of(self, node: Any, name: str, keys: list[str] | None = None) -> Any:
        members = self._members(node)
        if members is None:
            return node
        if len(members) == 0:
            raise PipelineError(f"Group {name or '/'!r} of {self._path} has no arrays.")
        chosen = chosen_keys(self._path, sorted(members), keys)
        return {key: self._tree_of(members[key], f"{name}/{key}") for key in chosen}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        place = place_of(index, self._length, "rows")
        return trees.tree_map(lambda column: column[0], self.__getcolumns__(np.array([place])))

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, all in `0..len - 1`, as columns; the file is read in ascending order."""
        places, order = np.unique(indices, return_inverse=True)
        arrays = self._arrays()
        self._mapped.check_all()

        def read(array: Any) -> np.ndarray:
            with damage_named(self._path, f"{self.what}, array {array.name}, rows {places[0]} to {places[-1]}"):
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
        return f"{type(self).__name__}({told_apart(self._path)!r}{chosen}, length={self._length})"


def _check_lengths(path: str, arrays: Any) -> None:
    shapes = {name: array.shape for name, array in trees.named_leaves(arrays)}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
        listed = ", ".join(f"{name or 'the array'}: {list(shape or ())}" for name, shape in shapes.items())
        raise PipelineError(
            f"Arrays of one source must have the same length; {path} has the shapes {listed}. Choose some of them "
            "by `keys`, or a group of them by `group`."
        )
