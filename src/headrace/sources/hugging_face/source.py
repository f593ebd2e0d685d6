"""A `datasets.Dataset` as a source."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from headrace._utils.spec import ShapeDtypeStruct
from headrace.errors import DataError, PipelineError, optional
from headrace.sources import files
from headrace.sources.hugging_face.columns import Numbers, Shape, Unreadable, column, filled, has_lists, shape_of
from headrace.sources.hugging_face.splits import chosen, chosen_stream
from headrace.sources.hugging_face.values import encoded
from headrace.sources.indices import Parts, place_of, places_of
from headrace.sources.mapped import FEW, MappedFiles
from headrace.sources.tables.lru_cache import blaming
from headrace.sources.tables.values import check_array

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
        given, self._decode = dataset.format, decode
        if not decode and given["type"] is not None and encoded(dataset.features) != dataset.features:
            raise PipelineError("`decode=False` is for a dataset without a format: call its `with_format(None)` first.")
        self._formatted = given["type"] is not None
        self._names: list[str] = dataset.column_names if given["output_all_columns"] else given["columns"]
        self._places = Places(dataset.data)
        self._order_places = None if dataset._indices is None else Places(dataset._indices)
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
        return self._rows_at(np.array([place_of(index, len(self), "rows")]))[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Element]:
        """The rows at these indices."""
        return self._rows_at(places_of(indices, len(self), "rows"))

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
        features, decode = self.features, self._decode
        return {
            name: column(self._chunks(name), shape, name, features, decode=decode)
            for name, shape in self._shapes.items()
        }

    @cached_property
    def _order(self) -> Numbers:
        """The rows of the table that the dataset has, if it was shuffled or selected from."""
        chunks = filled(self._dataset._indices.column(0))
        for chunk in chunks:
            chunk.validate()
        return Numbers(chunks, ())

    def _taken(self, name: str, rows: np.ndarray) -> Any:
        """The values of a column in these rows."""
        try:
            return self._columns[name].take(rows)
        except Unreadable as e:
            raise DataError(f"{self._places.row_name(e.row)}, column {name!r}: {e}. Is the file damaged?") from e

    def _shape_of(self, name: str) -> Shape:
        chunks, num_rows = self._chunks(name), 0
        try:
            for chunk in chunks:
                # What `datasets` reads is checked now, and the rest when values are read.
                check_array(chunk) if self._formatted or has_lists(chunk) else chunk.validate()
                num_rows += len(chunk)
        except Exception:
            with blaming(f"{self._places.name_of(num_rows)}, column {name!r},", "Hugging Face's Arrow files"):
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


class Places:
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
                raise files.changed(block.path)

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
        raise PipelineError(f"split={split!r} is for a DatasetDict or a Dataset; this is a {what}. Leave it out.")
    if isinstance(dataset, getattr(datasets, kind)):
        return dataset
    hint = ""
    if isinstance(dataset, str):
        hint = f" Load it first: `datasets.load_dataset({dataset!r}, split=...)`; files and folders: `headrace.open`."
    elif isinstance(dataset, datasets.Dataset):
        hint = " It has random access: use `MapDataset.source(HuggingFaceDataSource(dataset))`."
    elif isinstance(dataset, datasets.IterableDataset):
        hint = " It is a stream: use `HuggingFaceIterDataset(dataset)`."
    raise PipelineError(f"Needed a `datasets.{kind}`; got {type(dataset).__module__}.{type(dataset).__name__}.{hint}")
