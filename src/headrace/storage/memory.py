"""Sources in memory: arrays (element `i` is row `i` of every array), ranges, and elements in shared memory."""

import functools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import PipelineError
from headrace.multiprocessing import NamedMemory
from headrace.storage.indices import checked_index
from headrace.trees import ShapeDtypeStruct


class ArrayDataSource:
    """Rows of an array, or of a tree of arrays with the same length.

    >>> source = ArrayDataSource({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)})
    >>> len(source), source[1]
    (3, {'x': array([2, 3]), 'y': np.int64(1)})
    """

    def __init__(self, arrays: Any):
        named = trees.named_leaves(arrays)
        if not named:
            raise PipelineError("An array source needs at least one array; got none.")
        for name, array in named:
            if np.ndim(array) == 0:
                raise PipelineError(f"Array {name or 'given'} has no axis to take elements from: it is 0-d.")
        lengths = {name: len(array) for name, array in named}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise PipelineError(
                f"Arrays of one source must have the same length; got {listed}. Trim them to one length, or zip "
                "separate datasets."
            )
        self._arrays = trees.tree_map(np.asarray, arrays)
        self._length = next(iter(lengths.values()))
        self._plain = _plain_takes(self._arrays)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_plain": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._plain = _plain_takes(self._arrays)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return trees.tree_map(lambda array: trees.copy_tree(array[index]), self._arrays)

    def __getcolumns__(self, indices: np.ndarray) -> Any:
        """The rows at `indices`, all in `0..len - 1`, as new columns."""
        if self._plain is not None:
            return {key: take(indices, 0, None, "clip") for key, take in self._plain}
        return _take(self._arrays, indices)

    def columns_in(self, indices: np.ndarray, empty: trees.Empty) -> Any:
        """The rows at `indices`, as columns in arrays that `empty` makes; for arrays without objects."""

        def column(array: np.ndarray) -> np.ndarray:
            rows = empty((len(indices), *array.shape[1:]), array.dtype)
            array.take(indices, 0, rows, "clip")
            return rows

        return trees.tree_map(column, self._arrays)

    @property
    def element_spec(self) -> Any:
        return trees.tree_map(lambda a: ShapeDtypeStruct(a.shape[1:], a.dtype), self._arrays)

    def __repr__(self) -> str:
        specs = ", ".join(
            f"{name}: {spec.dtype}{list(spec.shape)}" for name, spec in trees.named_leaves(self.element_spec)
        )
        return f"ArrayDataSource(length={self._length}, {specs.removeprefix(': ')})"


def _plain_takes(arrays: Any) -> list[tuple[Any, Any]] | None:
    """The `take` of each array, for the simplest case: a flat dict of numbers."""
    if type(arrays) is not dict or not all(type(a) is np.ndarray and not a.dtype.hasobject for a in arrays.values()):
        return None
    return [(key, array.take) for key, array in arrays.items()]


def _take(arrays: Any, indices: np.ndarray) -> Any:
    if type(arrays) is np.ndarray:
        # The indices are in range, and clipping is cheaper than checking.
        rows = arrays.take(indices, 0, None, "clip")
        return trees.copy_tree(rows) if rows.dtype.hasobject else rows
    if type(arrays) is dict:
        return {key: _take(array, indices) for key, array in arrays.items()}
    return trees.tree_map(lambda array: _take(array, indices), arrays)


def is_array_like(value: Any) -> bool:
    """Whether `MapDataset.source` reads `value` as arrays: an array, or a mapping with only arrays as leaves."""
    if not isinstance(value, Mapping):
        return isinstance(value, np.ndarray)
    return bool(value) and all(isinstance(leaf, np.ndarray) for leaf in trees.leaves(value))


# ---------------------------------------------------------------------------------------------------------- ranges
# Whole numbers as a source.


class RangeDataSource:
    """The ints of `range(start, stop, step)`.

    >>> list(RangeDataSource(0, 10, 3))
    [0, 3, 6, 9]
    """

    def __init__(self, start: int, stop: int, step: int):
        self.range = range(start, stop, step)

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, record_key: int) -> int:
        return self.range[record_key]

    @property
    def element_spec(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((), np.dtype(np.int64))

    def __repr__(self) -> str:
        r = self.range
        return f"RangeDataSource(start={r.start}, stop={r.stop}, step={r.step})"


# ---------------------------------------------------------------------------------------------------------- shared
# Elements in shared memory that other processes find by its name.


MAGIC = 0x48EAD7ACE
HEADER_BYTES = 16
UNFINISHED = -1


class SharedMemoryDataSource(Sequence):
    """Elements that several processes read from the same memory.

    Given elements, it writes them there; given only a name, it reads what this or another process wrote under it. A
    name that you choose exists until the process that created it ends, in whatever way. A default name exists as long
    as the source, so another process must attach to it before. Elements are pickled, so memory that another user owns
    or may write to is refused.

    >>> source = SharedMemoryDataSource([1, "two", b"three", {"four": 4}])
    >>> len(source), source[1], source[-1]
    (4, 'two', {'four': 4})
    """

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None):
        if elements is None:
            if name is None:
                raise PipelineError(
                    "A SharedMemoryDataSource needs elements, or the name of shared memory that another "
                    "SharedMemoryDataSource has filled."
                )
            self._memory = NamedMemory(name)
        else:
            self._memory = _write([pickle.dumps(element, protocol=5) for element in elements], name)
        self._ends = _ends_in(self._memory)

    @property
    def name(self) -> str:
        """The name by which other processes find the elements."""
        return self._memory.name

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def format(self) -> str:
        """The layout of the elements in memory, as a `struct` format: bytes of these lengths."""
        return "".join(f"{size}s" for size in np.diff(self._ends).tolist())

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        place = checked_index(position, len(self), "elements")
        return pickle.loads(memoryview(self._memory.buffer)[self._ends[place] : self._ends[place + 1]])

    def close(self) -> None:
        """Does nothing, for compatibility: the memory is freed with the object."""

    def unlink(self) -> None:
        """Removes the name."""
        self._memory.unlink()

    def __reduce__(self) -> Any:
        return functools.partial(SharedMemoryDataSource, name=self.name), ()

    def __repr__(self) -> str:
        return f"SharedMemoryDataSource(length={len(self)}, name={self.name!r})"


InMemoryDataSource = SharedMemoryDataSource


def _ends_in(memory: NamedMemory) -> np.ndarray:
    """Where the first element begins, and each one ends."""
    num_numbers = len(memory.buffer) // 8
    magic, count = np.frombuffer(memory.buffer, np.int64, 2).tolist() if num_numbers >= 2 else (0, 0)
    if magic != MAGIC or count + 3 > num_numbers:
        raise PipelineError(f"The shared memory {memory.name!r} was not made by a SharedMemoryDataSource.")
    if count < 0:
        raise PipelineError(
            f"The shared memory {memory.name!r} is incomplete: its creator is still writing, or was killed while "
            "writing."
        )
    return np.frombuffer(memory.buffer, np.int64, count + 1, offset=HEADER_BYTES)


def _write(pickled: list[bytes], name: str | None) -> NamedMemory:
    start = HEADER_BYTES + 8 * (len(pickled) + 1)
    ends = start + np.cumsum([0, *map(len, pickled)])
    memory = NamedMemory(name, size=int(ends[-1]), mark=_header(UNFINISHED))
    if name is not None:
        memory.keep()
    memory.buffer[HEADER_BYTES:start] = np.array(ends, np.int64).tobytes()
    for begin, data in zip(ends.tolist(), pickled, strict=False):
        memory.buffer[begin : begin + len(data)] = data
    memory.buffer[:HEADER_BYTES] = _header(len(pickled))  # last, so nobody reads half of it
    return memory


def _header(count: int) -> bytes:
    return np.array([MAGIC, count], np.int64).tobytes()
