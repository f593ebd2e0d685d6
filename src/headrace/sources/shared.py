"""Elements in shared memory that other processes find by a name."""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace._shared import NamedMemory
from headrace.errors import PipelineError

MAGIC = 0x48EAD7ACE


class SharedMemoryDataSource(Sequence):
    """Elements that several processes read from one memory.

    Given elements, it puts them there; given only a name, it reads what another process, or this one, put there
    under that name. A name that the user gave stays until the process that gave it ends; one that was not given goes
    with the source, so a copy in another process must be made while the source is there.

    >>> source = SharedMemoryDataSource([1, "two", b"three", {"four": 4}])
    >>> len(source), source[1], source[-1]
    (4, 'two', {'four': 4})
    """

    def __init__(self, elements: Sequence[Any] | None = None, *, name: str | None = None):
        if elements is None:
            if name is None:
                raise PipelineError("A SharedMemoryDataSource needs elements, or the name of memory that holds some.")
            self._memory = NamedMemory(name)
        else:
            self._memory = _write([pickle.dumps(element, protocol=5) for element in elements], name)
        header = np.frombuffer(self._memory.buffer, np.int64, 2)
        if header[0] != MAGIC:
            raise PipelineError(f"The shared memory {name!r} was not made by a SharedMemoryDataSource.")
        self._ends = np.frombuffer(self._memory.buffer, np.int64, int(header[1]) + 1, offset=16)

    @property
    def name(self) -> str:
        """The name that other processes find the elements by."""
        return self._memory.name

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is out of range for {len(self)} elements.")
        start, end = self._ends[index % len(self)], self._ends[index % len(self) + 1]
        return pickle.loads(memoryview(self._memory.buffer)[start:end])

    def close(self) -> None:
        """Kept for compatibility: the memory goes with the object."""

    def unlink(self) -> None:
        """Removes the name."""
        self._memory.unlink()

    def __reduce__(self) -> Any:
        return _attach, (self.name,)

    def __repr__(self) -> str:
        return f"SharedMemoryDataSource(length={len(self)}, name={self.name!r})"


InMemoryDataSource = SharedMemoryDataSource


def _attach(name: str) -> SharedMemoryDataSource:
    return SharedMemoryDataSource(name=name)


def _write(pickled: list[bytes], name: str | None) -> NamedMemory:
    start = 16 + 8 * (len(pickled) + 1)
    ends = start + np.cumsum([0, *map(len, pickled)])
    memory = NamedMemory(name, size=int(ends[-1]))
    if name is not None:
        memory.keep()
    memory.buffer[:start] = np.array([MAGIC, len(pickled), *ends], np.int64).tobytes()
    for begin, data in zip(ends.tolist(), pickled, strict=False):
        memory.buffer[begin : begin + len(data)] = data
    return memory
