"""Elements that are alike, trees of arrays of the same dtypes and shapes: the rows of each array are in one file."""

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace.sources import files
from headrace.sources.files import MappedFile
from headrace.sources.kept_elements.layout import Element, Layout, dtype_named
from headrace.sources.kept_elements.names import COLUMN, as_layout, damaged
from headrace.sources.private import create

MOST_COLUMNS = 64  # elements with more arrays are records: each column is an open file
WRITE_BYTES = 1 << 18
READ_ROWS = 1024

Take = Callable[[np.ndarray], np.ndarray]
"""Copies of the rows at some places."""


class Column(NamedTuple):
    """One array of all elements, in the file of this number."""

    number: int
    dtype: np.dtype
    shape: tuple[int, ...]
    is_scalar: bool

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def columns_of(layout: Layout, shapes: list[tuple[int, ...]]) -> Any:
    """A tree of columns; `None` if something in the layout is not an array or a number of NumPy."""
    left, made = list(shapes), []

    def place(layout: Layout) -> Any:
        kind = layout[0]
        if kind == "dict":
            return {key: place(inner) for key, inner in zip(layout[1], layout[2], strict=True)}
        if kind == "tuple" and layout[1]:
            return tuple(map(place, layout[1]))
        if kind not in ("array", "scalar") or (kind == "array" and not layout[2]):
            raise LookupError
        made.append(Column(len(made), dtype_named(layout[1]), tuple(left.pop(0)), kind == "scalar"))
        return made[-1]

    try:
        tree = place(layout)
    except LookupError:
        return None
    return tree if 0 < len(made) <= MOST_COLUMNS else None


def each_column(function: Callable[[Column], Any], tree: Any) -> Any:
    """A tree of what a function makes of each column."""
    if isinstance(tree, Column):
        return function(tree)
    if isinstance(tree, dict):
        return {key: each_column(function, inner) for key, inner in tree.items()}
    return tuple([each_column(function, inner) for inner in tree])


class ColumnWriter:
    """Writes elements that are like the first one."""

    def __init__(self, folder: str, first: Element):
        self._folder, self._layout, self._shapes = folder, first.layout, first.shapes
        self._paths = [os.path.join(folder, COLUMN.format(k)) for k in range(len(first.shapes))]
        self.files = [create(path, buffering=WRITE_BYTES) for path in self._paths]
        self._length = 0

    def holds(self, element: Element) -> bool:
        """Whether an element can be added."""
        return element.layout == self._layout and element.shapes == self._shapes

    def write(self, element: Element) -> None:
        """Adds an element."""
        for file, content in zip(self.files, element.arrays, strict=True):
            file.write(content)
        self._length += 1

    def described(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"layout": self._layout, "shapes": self._shapes}

    def taken_back(self) -> Iterator[Any]:
        """The elements so far, which nobody else can read from then on."""
        for file in self.files:
            file.close()
        reader = ColumnReader(self._folder, self._length, self.described())
        for start in range(0, self._length, READ_ROWS):
            yield from reader.read(np.arange(start, min(start + READ_ROWS, self._length)))
        reader.close()
        for path in self._paths:
            os.unlink(path)


class ColumnReader:
    """Reads elements that a `ColumnWriter` wrote."""

    def __init__(self, folder: str, length: int, manifest: dict[str, Any]):
        self._length, self._tree = length, columns_of(as_layout(manifest["layout"]), manifest["shapes"])
        if self._tree is None:
            raise damaged(folder, f"{manifest['layout']} is not a layout of arrays")
        self._columns: list[Column] = []
        each_column(self._columns.append, self._tree)
        self._paths = [os.path.join(folder, COLUMN.format(column.number)) for column in self._columns]
        versions = {path: files.fingerprint(path) for path in self._paths}
        for column, (path, version) in zip(self._columns, versions.items(), strict=True):
            if version.size != length * column.row_bytes:
                name, expected = os.path.basename(path), length * column.row_bytes
                raise damaged(folder, f"{name} has {version.size} bytes, not {expected}")
        self._pool = files.Pool(versions=versions, maps=True)
        self._open: tuple[list[Take], list[Callable[[], None]]] | None = None  # with what checks files

    def gather(self, places: np.ndarray) -> Any:
        """The elements at some places, all in range, as new columns."""
        takes = self._taking()
        return each_column(lambda column: takes[column.number](places), self._tree)

    def read(self, places: np.ndarray) -> list[Any]:
        """The elements at some places, each a new object."""
        rows = [take(places) for take in self._taking()]

        def own(column: Column, i: int) -> Any:
            row = rows[column.number][i : i + 1].copy()
            return row[0] if column.is_scalar else row.reshape(column.shape)

        return [each_column(lambda column, i=i: own(column, i), self._tree) for i in range(len(places))]

    def _taking(self) -> list[Take]:
        """What takes the rows of each column, from files that have not changed."""
        if self._open is None:
            opened = [self._pool.get(path) if column.row_bytes else None for column, path in self._with_paths()]
            takes = [self._take(column, file) for column, file in zip(self._columns, opened, strict=True)]
            pairs = zip(opened, self._paths, strict=True)
            checks = [partial(file.check_unchanged, path) for file, path in pairs if isinstance(file, MappedFile)]
            self._open = takes, checks
            return takes
        takes, checks = self._open
        for check in checks:
            check()
        return takes

    def _with_paths(self) -> Iterator[tuple[Column, str]]:
        return zip(self._columns, self._paths, strict=True)

    def _take(self, column: Column, file: Any) -> Take:
        _, dtype, shape, _ = column
        size = column.row_bytes
        if not size:
            return lambda places: np.zeros((len(places), *shape), dtype)
        if isinstance(file, MappedFile):
            # As rows without a meaning, which NumPy copies at once, whatever they hold.
            every = np.ndarray((self._length,), f"V{size}", file.buffer)
            return lambda places: every.take(places, 0, None, "clip").view(dtype).reshape(len(places), *shape)

        def read(places: np.ndarray) -> np.ndarray:
            pieces = self._pool.get(self._paths[column.number]).read_many([(size * i, size) for i in places.tolist()])
            return np.frombuffer(bytearray().join(pieces), dtype).reshape(len(places), *shape)

        return read

    def close(self) -> None:
        self._open = None
        self._pool.close()
