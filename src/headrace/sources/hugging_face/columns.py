"""Columns of a dataset, from which rows are taken.

A column of numbers, or of lists of numbers of the same shape, is gathered directly from Arrow's memory, which for a
dataset on disk is the mapped file, without an Arrow or Python object for each value, and without concatenation. Other
columns are read value by value, and decoded by the dataset's features.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.errors import optional
from headrace.sources.hugging_face.values import conversion, encoded
from headrace.sources.indices import Parts
from headrace.sources.tables.values import check_array

ROWS_PER_BUFFER = 8  # with fewer rows from each buffer, a loop over rows is faster than one over buffers
RAGGED = "ragged"
Shape = tuple[int, ...] | str | None
"""The shape of a column's values, or `RAGGED` for lists; `None` if they are not numbers, or some are null."""


def shape_of(chunks: list[Any]) -> Shape:
    """The shape of all values of a column."""
    types = optional("pyarrow", extra="hf").types
    if not chunks or any(chunk.null_count for chunk in chunks):
        return None
    first = _shape_of_lists(chunks[0], types)
    if first is not None and all(_shape_of_lists(chunk, types) == first for chunk in chunks):
        return first
    kind = chunks[0].type
    if not (types.is_list(kind) or types.is_large_list(kind)) or not _is_number(kind.value_type, types):
        return None
    return None if any(chunk.values.null_count for chunk in chunks) else RAGGED


def _shape_of_lists(array: Any, types: Any) -> tuple[int, ...] | None:
    shape: list[int] = []
    while not array.null_count:
        if _is_number(array.type, types):
            return tuple(shape)
        if types.is_fixed_size_list(array.type):
            shape.append(array.type.list_size)
        elif types.is_list(array.type) or types.is_large_list(array.type):
            lengths = np.unique(np.diff(array.offsets.to_numpy()))
            if len(lengths) != 1:
                return None
            shape.append(int(lengths[0]))
        else:
            return None
        array = _items(array, shape[-1])
    return None


def has_lists(array: Any) -> bool:
    """Whether finding the shape of an array's values reads its offsets."""
    types = optional("pyarrow", extra="hf").types
    return types.is_list(array.type) or types.is_large_list(array.type) or types.is_fixed_size_list(array.type)


def _is_number(kind: Any, types: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _items(array: Any, size: int) -> Any:
    """The items of lists that have this size, joined."""
    first = array.offset * size if hasattr(array.type, "list_size") else array.offsets[0].as_py()
    return _storage(array.values.slice(first, len(array) * size))


def _storage(array: Any) -> Any:
    return getattr(array, "storage", array)


def filled(column: Any) -> list[Any]:
    """The nonempty chunks of a column."""
    return [_storage(chunk) for chunk in column.chunks if len(chunk)]


def _places(parts: Parts, rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """The chunk of each row, and its place there."""
    chunks, places = parts.find_all(rows)
    return zip(chunks.tolist(), places.tolist(), strict=True)


def column(
    chunks: list[Any], shape: Shape, name: str, features: Any, *, decode: bool = True
) -> "Numbers | Lists | Objects":
    """A column of a dataset, with values of this shape."""
    if shape is None:
        return Objects(chunks, name, features, decode=decode)
    return Numbers(chunks, shape) if isinstance(shape, tuple) else Lists(chunks)


class Numbers:
    """A column of numbers, or of arrays of the same shape, without nulls.

    The buffers of a mapped file are parts of one buffer, so most columns have a single buffer to gather from. The value
    in row `r` of chunk `c` begins at item `r * width + shift[c]` of the buffer of the chunk.
    """

    def __init__(self, chunks: list[Any], shape: tuple[int, ...]):
        self.shape, self._width = shape, int(np.prod(shape, dtype=np.int64))
        lengths = [len(chunk) for chunk in chunks]
        for size in shape:
            chunks = [_items(chunk, size) for chunk in chunks]
        self.dtype = np.dtype(chunks[0].type.to_pandas_dtype())
        self._items = np.dtype(np.uint8) if self.dtype == bool else self.dtype  # bools are bits
        self._ends = np.cumsum(lengths)
        self._buffers: list[np.ndarray] = []
        known: dict[int, int] = {}  # buffers by address
        self._buffer_of, shift = np.zeros(len(chunks), np.int64), np.zeros(len(chunks), np.int64)
        for i, chunk in enumerate(chunks if self._width else []):
            whole, start = self._place(chunk)
            self._buffer_of[i] = known.setdefault(whole.address, len(known))
            if len(known) > len(self._buffers):
                self._buffers.append(np.frombuffer(whole, self._items, whole.size // self._items.itemsize))
            shift[i] = start
        self._shift = shift - (self._ends - lengths) * self._width

    def _place(self, chunk: Any) -> tuple[Any, int]:
        """The outermost buffer around a chunk, and the chunk's first item there."""
        whole = own = chunk.buffers()[1]
        while whole.parent is not None:
            whole = whole.parent
        if (own.address - whole.address) % self._items.itemsize or whole.address % self._items.itemsize:
            whole = own
        item_bits = 1 if self.dtype == bool else 8 * self._items.itemsize
        return whole, (own.address - whole.address) * 8 // item_bits + chunk.offset

    def take(self, rows: np.ndarray) -> np.ndarray:
        """A copy of the values in these rows."""
        if not self._width:
            return np.empty((len(rows), *self.shape), self.dtype)
        chunks = np.searchsorted(self._ends, rows, side="right")
        starts = rows * self._width + self._shift[chunks]
        if len(self._buffers) == 1:
            taken = self._take(0, starts)
        else:
            taken = self._take_from_many(self._buffer_of[chunks], starts)
        return taken.reshape(len(rows), *self.shape)

    def _take_from_many(self, numbers: np.ndarray, starts: np.ndarray) -> np.ndarray:
        taken = np.empty((len(starts), self._width), self.dtype)
        if len(self._buffers) * ROWS_PER_BUFFER > len(starts) and self.dtype != bool:
            buffers, width = self._buffers, self._width
            for row, number, start in zip(taken, numbers.tolist(), starts.tolist(), strict=True):
                row[:] = buffers[number][start : start + width]
            return taken
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            taken[mine] = self._take(number, starts[mine])
        return taken

    def _take(self, number: int, starts: np.ndarray) -> np.ndarray:
        items, width = self._buffers[number], self._width
        if self.dtype == bool:
            bits = starts[:, None] + np.arange(width)
            return (items[bits >> 3] >> (bits & 7).astype(np.uint8) & 1).astype(bool)
        if width == 1:
            return items.take(starts, 0, None, "clip")[:, None]
        windows = np.lib.stride_tricks.as_strided(
            items, (max(0, len(items) - width + 1), width), items.strides * 2, writeable=False
        )
        return windows[starts]


class Unreadable(Exception):
    """A value in a row cannot be read."""

    def __init__(self, row: int, error: Exception):
        super().__init__(" ".join(str(error).split()).rstrip(".") or type(error).__name__)
        self.row = row


class Objects:
    """A column of anything else; the offsets in a chunk are checked before its first value is read."""

    def __init__(self, chunks: list[Any], name: str, features: Any, *, decode: bool):
        self._chunks, self._parts = chunks, Parts(map(len, chunks))
        self._name, self._convert = name, conversion(features[name], encoded=not decode)
        self._decode = (features if decode else encoded(features)).decode_column
        self._checked: set[int] = set()

    def take(self, rows: np.ndarray) -> list[Any]:
        """The values in these rows, decoded."""
        places = list(_places(self._parts, rows))
        try:
            return self._take(places)
        except (ImportError, FileNotFoundError, MemoryError):
            raise
        except Exception as error:  # of Arrow or a decoder: which row is it?
            for row, place in zip(rows.tolist(), places, strict=True):
                try:
                    self._take([place])
                except Exception as e:
                    raise Unreadable(row, e) from e
            raise Unreadable(int(rows[0]), error) from error

    def _take(self, places: list[tuple[int, int]]) -> list[Any]:
        for number in {number for number, _ in places} - self._checked:
            check_array(self._chunks[number])
            self._checked.add(number)
        values = [self._chunks[number][row].as_py() for number, row in places]
        return list(map(self._convert, self._decode(values, self._name)))


class Lists:
    """A column of lists of numbers of different lengths, without nulls."""

    shape = (None,)

    def __init__(self, chunks: list[Any]):
        self._chunks, self._parts = chunks, Parts(map(len, chunks))
        self.dtype = np.dtype(chunks[0].type.value_type.to_pandas_dtype())
        self._opened: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by chunk: where lists begin, and all items

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """A copy of the values in these rows."""
        taken = []
        for number, row in _places(self._parts, rows):
            begins, items = self._opened.get(number) or self._open(number)
            taken.append(items[begins[row] : begins[row + 1]].copy())
        return taken

    def _open(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        chunk = self._chunks[number]
        opened = chunk.offsets.to_numpy(), chunk.values.to_numpy(zero_copy_only=False)
        return self._opened.setdefault(number, opened)
