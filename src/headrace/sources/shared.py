"""Elements in shared memory that other processes find by its name."""

import functools
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace._utils.shared_memory import NamedMemory
from headrace.errors import PipelineError
from headrace.sources.indices import place_of

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
                raise PipelineError("A SharedMemoryDataSource needs elements, or the name of memory that holds some.")
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
        place = place_of(position, len(self), "elements")
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
            f"The shared memory {memory.name!r} is not complete: its maker is still writing, or was killed meanwhile."
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
