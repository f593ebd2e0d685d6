"""Hugging Face's datasets: a `Dataset` as a source, an `IterableDataset` as a stream.

A column of numbers, or of lists of numbers that all have one shape, is gathered straight from the memory that Arrow has
it in, which for a dataset on disk is the mapped file: no Arrow or Python object is made for a value, and nothing is
concatenated. Other columns are read value by value, and decoded as the dataset's features say.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace._spec import ShapeDtypeStruct
from headrace.dataset import IterDataset
from headrace.errors import PipelineError, StateError, optional
from headrace.sources.generators import Made
from headrace.sources.torch_data import StateDictIterator, copy_of

Element = Any
ROWS_PER_BUFFER = 8  # below so many rows from each buffer, a loop over rows is faster than one over buffers


class HuggingFaceDataSource:
    """The rows of a `datasets.Dataset`, as dicts.

    A number is a NumPy scalar of the dtype that the features say, a list of numbers or an image an array, a string
    `str`, and a null `None`. A dataset with a format or transform of its own (`with_format`, `set_transform`) is read
    through that instead.

    Where every column is of numbers, or of lists of one shape, batches are made without rows:

        dataset = datasets.load_dataset("ylecun/mnist", split="train")
        batches = MapDataset.source(HuggingFaceDataSource(dataset)).shuffle(seed=1).batch(128)

    Args:
        dataset: A dataset; of a `DatasetDict`, one split: `dataset["train"]`.
    """

    def __init__(self, dataset: Any):
        self._dataset = _checked(dataset, "Dataset")
        given = dataset.format
        self._formatted = given["type"] is not None
        self._names: list[str] = dataset.column_names if given["output_all_columns"] else given["columns"]
        self._shapes = {} if self._formatted else {name: _shape_of(self._chunks(name)) for name in self._names}

    @property
    def features(self) -> Any:
        """The dataset's features by column: what its values are, and how they are decoded."""
        return self._dataset.features

    @property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of each column that has labels."""
        return {name: list(f.names) for name, f in self.features.items() if type(f).__name__ == "ClassLabel"}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Element:
        return self.__getitems__([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Element]:
        """The rows at these indices."""
        places, length = np.asarray(indices, np.int64), len(self)
        outside = places[(places < -length) | (places >= length)]
        if len(outside):
            raise IndexError(f"Index {outside[0]} is out of range for {length} rows.")
        if not len(places):
            return []
        places %= length
        if self._formatted:
            return self._dataset.__getitems__(places.tolist())
        rows = self._rows_of(places)
        columns = [column.take(rows) for column in self._columns.values()]
        return [dict(zip(self._names, values, strict=True)) for values in zip(*columns, strict=True)]

    @property
    def __getcolumns__(self) -> Callable[[np.ndarray], Any]:
        """What reads rows as columns, where every column is of numbers."""
        if not self._shapes or not all(isinstance(shape, tuple) for shape in self._shapes.values()):
            raise AttributeError("`__getcolumns__`: not all columns are of numbers of one shape")
        return self._read_columns

    def _read_columns(self, indices: np.ndarray) -> Any:
        rows = self._rows_of(indices)
        return {name: column.take(rows) for name, column in self._columns.items()}

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of an element, where every column is of numbers."""
        _ = self.__getcolumns__
        return {name: ShapeDtypeStruct(column.shape, column.dtype) for name, column in self._columns.items()}

    @cached_property
    def _columns(self) -> dict[str, Any]:
        return {name: self._open(name, shape) for name, shape in self._shapes.items()}

    def _open(self, name: str, shape: "Shape") -> "_Numbers | _Lists | _Objects":
        chunks = self._chunks(name)
        if shape is None:
            return _Objects(chunks, name, self.features)
        return _Numbers(chunks, shape) if isinstance(shape, tuple) else _Lists(chunks)

    @cached_property
    def _order(self) -> "_Numbers | None":
        """Which rows of the table are the dataset's, where it was shuffled or selected from."""
        indices = self._dataset._indices
        return None if indices is None else _Numbers(_filled(indices.column(0)), ())

    def _rows_of(self, places: np.ndarray) -> np.ndarray:
        return places if self._order is None else self._order.take(places).astype(np.int64)

    def _chunks(self, name: str) -> list[Any]:
        return _filled(self._dataset.data.column(name))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_columns", "_order")}

    def __repr__(self) -> str:
        # The fingerprint names the data and all that was done to it, the same in every process.
        return f"HuggingFaceDataSource(num_rows={len(self)}, fingerprint={self._dataset._fingerprint})"


def _checked(dataset: Any, kind: str) -> Any:
    """The dataset, if it is one of this kind."""
    datasets = optional("datasets", extra="hf")
    if isinstance(dataset, getattr(datasets, kind)):
        return dataset
    if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
        splits = list(dataset) or ["…"]
        raise PipelineError(
            f"{type(dataset).__name__} has the splits {splits}: choose one, as in `dataset[{splits[0]!r}]`."
        )
    hint = ""
    if isinstance(dataset, datasets.Dataset):
        hint = " It has random access: use `MapDataset.source(HuggingFaceDataSource(dataset))`."
    elif isinstance(dataset, datasets.IterableDataset):
        hint = " It is a stream: use `HuggingFaceIterDataset(dataset)`."
    raise PipelineError(f"Needed a `datasets.{kind}`; got {type(dataset).__module__}.{type(dataset).__name__}.{hint}")


# ------------------------------------------------------------------------------------ columns of numbers

RAGGED = "ragged"
Shape = tuple[int, ...] | str | None
"""The shape of a column's values, or `RAGGED` for lists; `None` where they are not numbers, or some are null."""


def _shape_of(chunks: list[Any]) -> Shape:
    """The shape that all values of a column have."""
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


def _is_number(kind: Any, types: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _items(array: Any, size: int) -> Any:
    """The items of lists of one size, one after the other."""
    first = array.offset * size if hasattr(array.type, "list_size") else array.offsets[0].as_py()
    return _storage(array.values.slice(first, len(array) * size))


def _storage(array: Any) -> Any:
    return getattr(array, "storage", array)


def _filled(column: Any) -> list[Any]:
    """The chunks of a column that are not empty."""
    return [_storage(chunk) for chunk in column.chunks if len(chunk)]


def _places(ends: np.ndarray, rows: np.ndarray) -> Iterator[tuple[int, int]]:
    """The chunk that each row lies in, and its place there."""
    chunks = np.searchsorted(ends, rows, side="right")
    return zip(chunks.tolist(), (rows - np.append(0, ends)[chunks]).tolist(), strict=True)


class _Numbers:
    """A column whose values are numbers, or arrays of one shape, with no null among them.

    Buffers of a file that is mapped are parts of one buffer, so that most columns have a single one to gather from.
    The value in row `r`, which lies in chunk `c`, begins at item `r * width + shift[c]` of the buffer of the chunk.
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
        """The outermost buffer that a chunk lies in, and its first item there."""
        whole = own = chunk.buffers()[1]
        while whole.parent is not None:
            whole = whole.parent
        if (own.address - whole.address) % self._items.itemsize or whole.address % self._items.itemsize:
            whole = own
        item_bits = 1 if self.dtype == bool else 8 * self._items.itemsize
        return whole, (own.address - whole.address) * 8 // item_bits + chunk.offset

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The values in these rows, in memory of their own."""
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


class _Objects:
    """A column of anything else."""

    def __init__(self, chunks: list[Any], name: str, features: Any):
        self._chunks, self._ends = chunks, np.cumsum(list(map(len, chunks)))
        self._decode, self._name, self._convert = features.decode_column, name, _conversion(features[name])

    def take(self, rows: np.ndarray) -> list[Any]:
        """The values in these rows, decoded."""
        values = [self._chunks[number][row].as_py() for number, row in _places(self._ends, rows)]
        return list(map(self._convert, self._decode(values, self._name)))


class _Lists:
    """A column of lists of numbers that differ in length, with no null among them."""

    def __init__(self, chunks: list[Any]):
        self._chunks, self._ends = chunks, np.cumsum(list(map(len, chunks)))
        self._opened: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # where lists begin, and all items, of each chunk

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """The values in these rows, in memory of their own."""
        taken = []
        for number, row in _places(self._ends, rows):
            begins, items = self._opened.get(number) or self._open(number)
            taken.append(items[begins[row] : begins[row + 1]].copy())
        return taken

    def _open(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        chunk = self._chunks[number]
        opened = chunk.offsets.to_numpy(), chunk.values.to_numpy(zero_copy_only=False)
        return self._opened.setdefault(number, opened)


# ------------------------------------------------------------------------------------------ single values


Convert = Callable[[Any], Any]


def _conversion(feature: Any) -> Convert:
    """How a value that the features have decoded becomes one of NumPy's."""
    if isinstance(feature, dict):
        inner = {name: _conversion(one) for name, one in feature.items()}
        return lambda value: value and {name: inner.get(name, _by_value)(one) for name, one in value.items()}
    dtype = _number_dtype(_innermost(feature))
    if dtype is not None and (hasattr(feature, "shape") or _inside(feature) is not None):  # Array2D, or a list
        return lambda value: value if value is None else _as_array(value, dtype)
    if dtype is not None:
        return lambda value: value if value is None else dtype.type(value)
    if _inside(feature) is not None:
        convert = _conversion(_inside(feature))
        return lambda value: value and list(map(convert, value))
    return _by_value


def _inside(feature: Any) -> Any:
    """The feature of a list's items; `None` where it is no list."""
    return feature[0] if isinstance(feature, list | tuple) else getattr(feature, "feature", None)


def _innermost(feature: Any) -> Any:
    while _inside(feature) is not None:
        feature = _inside(feature)
    return feature


def _number_dtype(feature: Any) -> np.dtype | None:
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or object)
    except (TypeError, ValueError):  # a type that only Arrow has
        return None
    return dtype if dtype.kind in "biuf" else None


def _as_array(value: Any, dtype: np.dtype | None) -> Any:
    """Nested lists as an array; as lists of arrays where they differ in length, and as they are where one has nulls."""
    if isinstance(value, list) and None in value:
        return value
    if isinstance(value, list) and value and isinstance(value[0], list):
        items = [_as_array(item, dtype) for item in value]
        same = all(isinstance(item, np.ndarray) for item in items) and len({item.shape for item in items}) == 1
        return np.stack(items) if same else items
    return np.asarray(value, dtype)


def _by_value(value: Any) -> Any:
    """What a value says of itself, where no feature does."""
    if isinstance(value, dict):
        return {name: _by_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        leaf = value
        while isinstance(leaf, list) and leaf:
            leaf = leaf[0]
        return _as_array(value, None) if type(leaf) in (bool, int, float) else list(map(_by_value, value))
    return np.asarray(value) if type(value).__module__.startswith("PIL.") else value


# ------------------------------------------------------------------------------------------------ streams


def HuggingFaceIterDataset(dataset: Any, *, num_shards: int | None = None) -> IterDataset[Element]:
    """The rows of a `datasets.IterableDataset`, in its own order, with values as of a `HuggingFaceDataSource`.

    A state is the dataset's own `state_dict`, which for one place may read differently after a restore than before: it
    says how `datasets` came there. What `dataset.shuffle` holds in its buffer is not in it, so restoring a dataset that
    has one makes all rows before the state again: shuffle with `window_shuffle` of this library instead.

    Args:
        dataset: A dataset; of an `IterableDatasetDict`, one split: `dataset["train"]`.
        num_shards: Cuts the dataset into so many parts, each with some of its shards, and takes a row of each in turn:
            with `mp_prefetch`, different workers read them. It changes the order; by default the dataset is one part.
    """
    whole = _checked(dataset, "IterableDataset")
    if num_shards is None:
        return HuggingFaceRows(whole)
    if not 1 <= num_shards <= whole.num_shards:
        raise PipelineError(
            f"`num_shards` must be from 1 to {whole.num_shards}, the shards that the dataset has; got {num_shards}."
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
        dataset, convert = self._dataset, _conversion_of_rows(self._dataset)
        if _forgets(dataset._ex_iterable):
            return Made(lambda: map(convert, copy_of(dataset)), self._label)
        return HuggingFaceIterator(dataset, convert, self._label)


class HuggingFaceIterator(StateDictIterator):
    """Walks a copy of a dataset, with the dataset's own states."""

    def set_state(self, state: dict[str, Any]) -> None:
        loaded = state.get("state_dict") if isinstance(state, dict) else None
        if loaded is not None and loaded.get("epoch") != self._dataset.epoch:
            raise StateError(
                f"The state is of epoch {loaded.get('epoch')}, and the dataset is at epoch {self._dataset.epoch}. Call "
                "`set_epoch` on it before it is given to `HuggingFaceIterDataset`."
            )
        super().set_state(state)


def _conversion_of_rows(dataset: Any) -> Convert:
    """What makes NumPy's values of a row, unless the dataset has a format of its own."""
    if dataset._formatting is not None:
        return lambda row: row
    return _by_value if dataset.features is None else _conversion(dataset.features)


def _forgets(examples: Any) -> bool:
    """Whether there is a shuffle buffer in a dataset, which its states leave out."""
    below = [*getattr(examples, "ex_iterables", ()), getattr(examples, "ex_iterable", None)]
    return type(examples).__name__ == "BufferShuffledExamplesIterable" or any(_forgets(one) for one in below if one)
