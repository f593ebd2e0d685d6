"""Hugging Face's datasets: a `Dataset` as a source with random access, an `IterableDataset` as a stream.

Values become NumPy's, by the dataset's features or by their own type. Columns of numbers are gathered directly from
Arrow's memory; all others are decoded value by value.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace.dataset import IterDataset
from headrace.errors import DataError, PipelineError, StateError, optional
from headrace.sources.generators import LazyIterator
from headrace.sources.tables import check_array, translate_arrow_errors
from headrace.sources.torch_data import StateDictIterator, copy_of
from headrace.storage import files
from headrace.storage.files import FEW, MappedFiles
from headrace.storage.indices import Parts, checked_index, checked_indices
from headrace.storage.splits import parse_split
from headrace.trees import ShapeDtypeStruct

# ---------------------------------------------------------------------------------------------------------- values
# Single values converted to NumPy: by the features, or by their own type.


Convert = Callable[[Any], Any]


def conversion(feature: Any, *, encoded: bool = False) -> Convert:
    """The function that converts a decoded value of a feature to NumPy; images that are `encoded`, to bytes."""
    if encoded and type(feature).__name__ == "Image":
        return _content
    if isinstance(feature, dict):
        inner = {name: conversion(one, encoded=encoded) for name, one in feature.items()}
        return lambda value: value and {name: inner.get(name, by_value)(one) for name, one in value.items()}
    innermost = feature
    while _inside(innermost) is not None:
        innermost = _inside(innermost)
    dtype = _number_dtype(innermost)
    if dtype is not None and (hasattr(feature, "shape") or _inside(feature) is not None):  # Array2D, or a list
        return lambda value: value if value is None else _as_array(value, dtype)
    if dtype is not None:
        return lambda value: value if value is None else dtype.type(value)
    if _inside(feature) is not None:
        convert = conversion(_inside(feature), encoded=encoded)
        return lambda value: value and list(map(convert, value))
    return by_value


def _content(image: dict[str, Any] | None) -> bytes | None:
    """The file of an image, which a dataset has or names."""
    if image is None:
        return None
    if image["bytes"] is not None:
        return image["bytes"]
    with files.open_stream(image["path"]) as stream:
        return stream.read()


def encoded(features: Any) -> Any:
    """Features that leave images, audio and other files as they are."""
    changed = copy.deepcopy(features)
    below = list(changed.values())
    while below:
        feature = below.pop()
        if isinstance(feature, dict):
            below += feature.values()
        elif _inside(feature) is not None:
            below.append(_inside(feature))
        elif hasattr(feature, "decode") and type(feature).__name__ != "Json":
            feature.decode = False
    return type(features)(changed)


def _inside(feature: Any) -> Any:
    """The feature of a list's items; `None` if it is not a list."""
    return feature[0] if isinstance(feature, list | tuple) else getattr(feature, "feature", None)


def _number_dtype(feature: Any) -> np.dtype | None:
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or object)
    except (TypeError, ValueError):  # a type that NumPy does not have
        return None
    return dtype if dtype.kind in "biuf" else None


def _as_array(value: Any, dtype: np.dtype | None) -> Any:
    """Nested lists as an array; as lists of arrays if their lengths differ, and unchanged if they have nulls."""
    if isinstance(value, list) and None in value:
        return value
    if isinstance(value, list) and value and isinstance(value[0], list):
        items = [_as_array(item, dtype) for item in value]
        same = all(isinstance(item, np.ndarray) for item in items) and len({item.shape for item in items}) == 1
        return np.stack(items) if same else items
    return np.asarray(value, dtype)


def by_value(value: Any) -> Any:
    """Converts a value by its own type, if there is no feature."""
    if isinstance(value, dict):
        return {name: by_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        leaf = value
        while isinstance(leaf, list) and leaf:
            leaf = leaf[0]
        return _as_array(value, None) if type(leaf) in (bool, int, float) else list(map(by_value, value))
    return np.asarray(value) if type(value).__module__.startswith("PIL.") else value


# --------------------------------------------------------------------------------------------------------- columns
# Columns of a dataset, from which rows are taken.
#
# A column of numbers, or of lists of numbers of the same shape, is gathered directly from Arrow's memory, which for a
# dataset on disk is the mapped file, without an Arrow or Python object for each value, and without concatenation. Other
# columns are read value by value, and decoded by the dataset's features.


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
) -> "NumberColumn | Lists | Objects":
    """A column of a dataset, with values of this shape."""
    if shape is None:
        return Objects(chunks, name, features, decode=decode)
    return NumberColumn(chunks, shape) if isinstance(shape, tuple) else Lists(chunks)


class NumberColumn:
    """A column of numbers, or of arrays of the same shape, without nulls.

    The buffers of a mapped file are parts of one buffer, so most columns have a single buffer to gather from. The value
    in row `r` of chunk `c` begins at item `r * width + shift[c]` of the buffer of the chunk.
    """

    def __init__(self, chunks: list[Any], shape: tuple[int, ...]):
        self.shape = shape
        self._width = int(np.prod(shape, dtype=np.int64))
        lengths = [len(chunk) for chunk in chunks]
        for size in shape:
            chunks = [_items(chunk, size) for chunk in chunks]
        self.dtype = np.dtype(chunks[0].type.to_pandas_dtype())
        self._items = np.dtype(np.uint8) if self.dtype == bool else self.dtype  # bools are bits
        self._ends = np.cumsum(lengths)
        self._buffers: list[np.ndarray] = []
        known: dict[int, int] = {}  # buffers by address
        self._buffer_of = np.zeros(len(chunks), np.int64)
        shift = np.zeros(len(chunks), np.int64)
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
            buffers = self._buffers
            width = self._width
            for row, number, start in zip(taken, numbers.tolist(), starts.tolist(), strict=True):
                row[:] = buffers[number][start : start + width]
            return taken
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(numbers == number)
            taken[mine] = self._take(number, starts[mine])
        return taken

    def _take(self, number: int, starts: np.ndarray) -> np.ndarray:
        items = self._buffers[number]
        width = self._width
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
        self._chunks = chunks
        self._parts = Parts(map(len, chunks))
        self._name = name
        self._convert = conversion(features[name], encoded=not decode)
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
        self._chunks = chunks
        self._parts = Parts(map(len, chunks))
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


# ---------------------------------------------------------------------------------------------------------- splits
# Splits of Hugging Face's datasets.


def chosen(splits: Mapping[str, Any], split: Any, what: str) -> Any:
    """The dataset that a split means, given those by name; as in `datasets`, a slice may reach past the ends.

    `what` has the splits; errors begin with it.
    """
    pieces = []
    for part in parse_split(_text(split, splits, what), splits, what):
        whole = splits[part.name]
        pieces.append(whole if part.is_whole else whole.select(range(*part.bounds(len(whole), clips=True))))
    return pieces[0] if len(pieces) == 1 else optional("datasets", extra="hf").concatenate_datasets(pieces)


def chosen_stream(splits: Mapping[str, Any], split: Any, what: str) -> Any:
    """The stream that a split means; without a length, it cannot be sliced."""
    text = _text(split, splits, what)
    parts = parse_split(text, splits, what)
    if len(parts) == 1 and parts[0].is_whole:
        return splits[parts[0].name]
    raise PipelineError(
        f"{text!r} slices or adds streams, whose lengths are unknown. Choose one split, as in "
        f"`split={parts[0].name!r}`, and select elements with `take` and `skip`."
    )


def _text(split: Any, names: Collection[str], what: str) -> str:
    """A split as text; it may be a `datasets.Split` or a `datasets.ReadInstruction`."""
    if split is None:
        names = list(names)
        raise PipelineError(
            f"{what} has the splits {names}: choose one, as in `split={names[0] if names else '…'!r}`; got None."
        )
    return str(split)


Element = Any


class HuggingFaceDataSource:
    """The rows of a `datasets.Dataset`, as dicts.

    A number is a NumPy scalar of the features' dtype, a list of numbers or an image an array, a string `str`, and a
    null `None`. A dataset with a format or transform (`with_format`, `set_transform`) is read through that instead.

    If every column holds numbers, or lists of the same shape, batches are made without rows.

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({"x": [1, 2, 3], "name": ["a", "b", "c"]})
    >>> MapDataset.source(HuggingFaceDataSource(dataset, split="[1:]"))[0]
    {'x': np.int64(2), 'name': 'b'}

    Args:
        dataset: A dataset, or a `DatasetDict`.
        split: A split of a `DatasetDict`, a part of it, or a sum of these: `train`, `train[:80%]`, `train[10:20]+test`,
            `all`; or a part of a dataset, `[:80%]`.
        decode: Whether to decode images, audio and the like; with False, an image is the bytes of its file.
    """

    def __init__(self, dataset: Any, *, split: str | None = None, decode: bool = True):
        dataset = self._dataset = checked(dataset, "Dataset", split)
        given = dataset.format
        self._decode = decode
        if not decode and given["type"] is not None and encoded(dataset.features) != dataset.features:
            raise PipelineError("`decode=False` needs a dataset without a format: call its `with_format(None)` first.")
        self._formatted = given["type"] is not None
        self._names: list[str] = dataset.column_names if given["output_all_columns"] else given["columns"]
        self._places = BufferRows(dataset.data)
        self._order_places = None if dataset._indices is None else BufferRows(dataset._indices)
        self._shapes = {name: self._shape_of(name) for name in self._names}

    @property
    def features(self) -> Any:
        """The dataset's features by column: the types of its values, and how to decode them."""
        return self._dataset.features

    @property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of each column with labels."""
        return {name: list(f.names) for name, f in self.features.items() if type(f).__name__ == "ClassLabel"}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Element:
        return self._rows_at(np.array([checked_index(index, len(self), "rows")]))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Element]:
        """The rows at these indices."""
        return self._rows_at(checked_indices(indices, len(self), "rows"))

    def _rows_at(self, places: np.ndarray) -> list[Element]:
        if not len(places):
            return []
        rows = self._rows_of(places)
        self._places.check(rows)
        if self._formatted:
            return self._dataset.__getitems__(places.tolist())
        if not self._names:  # no column was chosen
            return [{} for _ in places]
        columns = [self._taken(name, rows) for name in self._columns]
        return [dict(zip(self._names, values, strict=True)) for values in zip(*columns, strict=True)]

    @property
    def __getcolumns__(self) -> Callable[[np.ndarray], Any]:
        """Reads rows as columns, if every column holds numbers."""
        if not self._shapes or not all(isinstance(shape, tuple) for shape in self._shapes.values()):
            raise AttributeError("`__getcolumns__`: not all columns hold numbers of one shape")
        return self._read_columns

    def _read_columns(self, indices: np.ndarray) -> Any:
        rows = self._rows_of(indices)
        self._places.check(rows)
        return {name: column.take(rows) for name, column in self._columns.items()}

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of an element; None if a column holds anything but numbers and lists of them."""
        if self._formatted or any(shape is None for shape in self._shapes.values()):
            return None
        return {name: ShapeDtypeStruct(column.shape, column.dtype) for name, column in self._columns.items()}

    @cached_property
    def _columns(self) -> dict[str, Any]:
        features = self.features
        decode = self._decode
        return {
            name: column(self._chunks(name), shape, name, features, decode=decode)
            for name, shape in self._shapes.items()
        }

    @cached_property
    def _order(self) -> NumberColumn:
        """The rows of the table that the dataset has, if it was shuffled or selected from."""
        chunks = filled(self._dataset._indices.column(0))
        for chunk in chunks:
            chunk.validate()
        return NumberColumn(chunks, ())

    def _taken(self, name: str, rows: np.ndarray) -> Any:
        """The values of a column in these rows."""
        try:
            return self._columns[name].take(rows)
        except Unreadable as e:
            raise DataError(f"{self._places.row_name(e.row)}, column {name!r}: {e}. Is the file damaged?") from e

    def _shape_of(self, name: str) -> Shape:
        chunks = self._chunks(name)
        num_rows = 0
        try:
            for chunk in chunks:
                # What `datasets` reads is checked now, and the rest when values are read.
                check_array(chunk) if self._formatted or has_lists(chunk) else chunk.validate()
                num_rows += len(chunk)
        except Exception:
            with translate_arrow_errors(
                f"{self._places.name_of(num_rows)}, column {name!r},", "Hugging Face's Arrow files"
            ):
                raise
        return None if self._formatted else shape_of(chunks)

    def _rows_of(self, places: np.ndarray) -> np.ndarray:
        if self._order_places is None:
            return places
        self._order_places.check(places)
        return self._order.take(places).astype(np.int64)

    def _chunks(self, name: str) -> list[Any]:
        return filled(self._dataset.data.column(name))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_columns", "_order")}

    def __repr__(self) -> str:
        # The fingerprint identifies the data and all transformations, the same in every process.
        options = "" if self._decode else ", decode=False"
        return f"HuggingFaceDataSource(num_rows={len(self)}, fingerprint={self._dataset._fingerprint}{options})"


class BufferRows:
    """The mapped files that hold the rows of a Hugging Face table."""

    def __init__(self, table: Any):
        # A table is one block, or rows of blocks, each with some blocks side by side.
        stacked = getattr(table, "blocks", None) or [[table]]
        self._firsts = [_first_row(beside[0]) for beside in stacked]
        self._parts = Parts(beside[0].num_rows for beside in stacked)
        self._paths = [[block.path for block in beside if hasattr(block, "path")] for beside in stacked]
        self._mapped = MappedFiles(path for paths in self._paths for path in paths)
        for block in (block for beside in stacked for block in beside if hasattr(block, "path")):
            size = self._mapped.size_of(block.path)
            if size is not None and size < _mapped_bytes(block.table):  # it was truncated before the source was made
                raise files.changed_error(block.path)

    def check(self, rows: np.ndarray) -> None:
        """Raises if a file that holds one of these rows has changed."""
        if len(self._paths) == 1:
            self._mapped.check(self._paths[0])
        elif len(rows) > FEW:
            self._mapped.check_all()
        else:
            numbers = np.unique(self._parts.find_all(rows)[0]).tolist()
            self._mapped.check([path for number in numbers for path in self._paths[number]])

    def row_name(self, row: int) -> str:
        """The file that holds a row, and the row's number in it, for messages."""
        number, place = self._parts.find(row)
        return f"{self.name_of(row)}, row {place + self._firsts[number]}"

    def name_of(self, row: int) -> str:
        """The file that holds a row, for messages."""
        number = self._parts.find(row)[0]
        paths = self._paths[number] if number < len(self._paths) else []
        return " and ".join(paths) or "The dataset"


def _first_row(block: Any) -> int:
    """The number in its file of a block's first row: of mapped tables, `datasets` keeps a list of all slices."""
    return sum(arguments[0] for name, arguments, _ in getattr(block, "replays", None) or () if name == "slice")


def _mapped_bytes(table: Any) -> int:
    """How many bytes of a file are mapped, judged by a table."""
    chunks = table.columns[0].chunks if table.columns else []
    buffer = next(filter(None, chunks[0].buffers()), None) if chunks else None
    while buffer is not None and buffer.parent is not None:
        buffer = buffer.parent
    return 0 if buffer is None else buffer.size


def checked(dataset: Any, kind: str, split: Any = None) -> Any:
    """The dataset, or a split of it; raises unless it is of this kind."""
    datasets = optional("datasets", extra="hf")
    what = type(dataset).__name__
    if isinstance(dataset, datasets.DatasetDict):
        dataset = chosen(dataset, split, what)
    elif isinstance(dataset, datasets.IterableDatasetDict):
        dataset = chosen_stream(dataset, split, what)
    elif split is not None and isinstance(dataset, datasets.Dataset):
        dataset = chosen({str(dataset.split or ""): dataset}, split, "The dataset")
    elif split is not None:
        raise PipelineError(f"split={split!r} is for a DatasetDict or a Dataset; this is a {what}. Remove `split`.")
    if isinstance(dataset, getattr(datasets, kind)):
        return dataset
    hint = ""
    if isinstance(dataset, str):
        hint = f" Load it first: `datasets.load_dataset({dataset!r}, split=...)`; files and folders: `headrace.open`."
    elif isinstance(dataset, datasets.Dataset):
        hint = " It has random access: use `MapDataset.source(HuggingFaceDataSource(dataset))`."
    elif isinstance(dataset, datasets.IterableDataset):
        hint = " It is a stream: use `HuggingFaceIterDataset(dataset)`."
    raise PipelineError(f"Expected a `datasets.{kind}`; got {type(dataset).__module__}.{type(dataset).__name__}.{hint}")


# ---------------------------------------------------------------------------------------------------------- stream
# A `datasets.IterableDataset` as a stream.


def HuggingFaceIterDataset(
    dataset: Any, *, split: str | None = None, num_shards: int | None = None
) -> IterDataset[Element]:
    """The rows of a `datasets.IterableDataset`, in its order, with values as of a `HuggingFaceDataSource`.

    A state is the dataset's `state_dict`. For Arrow data and batched maps, it says where `datasets` continues and how
    many rows to skip: after a restore it may look different at the same place, but the rows are the same. It does not
    include the buffer of `dataset.shuffle`, so restoring a dataset with one produces all rows before the state again:
    use `window_shuffle` of this library instead.

    >>> import datasets
    >>> dataset = datasets.Dataset.from_dict({"x": [1, 2, 3]}).to_iterable_dataset()
    >>> list(HuggingFaceIterDataset(dataset))
    [{'x': np.int64(1)}, {'x': np.int64(2)}, {'x': np.int64(3)}]

    Args:
        dataset: A dataset, or an `IterableDatasetDict`.
        split: The split of an `IterableDatasetDict`.
        num_shards: Cuts the dataset into this many parts, each with some of its shards, and takes a row of each in
            turn, so that with `mp_prefetch` different workers read them. This changes the order; by default, one part.
    """
    whole = checked(dataset, "IterableDataset", split)
    if num_shards is None:
        return HuggingFaceRows(whole)
    if not 1 <= num_shards <= whole.num_shards:
        raise PipelineError(
            f"`num_shards` must be from 1 to {whole.num_shards}, the number of its shards; got {num_shards}."
        )
    parts = [whole.shard(num_shards, i, contiguous=False) for i in range(num_shards)]
    for part in parts:
        part.set_epoch(whole.epoch)
    return IterDataset.interleave(list(map(HuggingFaceRows, parts)), cycle_length=num_shards)


class HuggingFaceRows(IterDataset[Element]):
    """The rows of one `datasets.IterableDataset`."""

    _label = "HuggingFaceIterDataset"

    def __init__(self, dataset: Any):
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[Element]:  # type: ignore[override]  (the class gives states to those without)
        dataset = self._dataset
        convert = _conversion_of_rows(self._dataset)
        if _forgets(dataset._ex_iterable):
            return LazyIterator(lambda: map(convert, copy_of(dataset)), self._label)
        return HuggingFaceIterator(dataset, convert, self._label)


class HuggingFaceIterator(StateDictIterator):
    """Iterates over a copy of a dataset, with the dataset's states."""

    def set_state(self, state: dict[str, Any]) -> None:
        loaded = state.get("state_dict") if isinstance(state, dict) else None
        if loaded is not None and loaded.get("epoch") != self._dataset.epoch:
            raise StateError(
                f"The state is of epoch {loaded.get('epoch')}, but the dataset is at epoch {self._dataset.epoch}. Call "
                "its `set_epoch` before you pass it to `HuggingFaceIterDataset`."
            )
        super().set_state(state)


def _conversion_of_rows(dataset: Any) -> Convert:
    """Converts the values of a row to NumPy, unless the dataset has a format."""
    if dataset._formatting is not None:
        return lambda row: row
    return by_value if dataset.features is None else conversion(dataset.features)


def _forgets(examples: Any) -> bool:
    """Whether a dataset has a shuffle buffer, which its states do not include."""
    below = [*getattr(examples, "ex_iterables", ()), getattr(examples, "ex_iterable", None)]
    return type(examples).__name__ == "BufferShuffledExamplesIterable" or any(_forgets(one) for one in below if one)
