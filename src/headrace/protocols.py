"""The protocols that objects passed to Headrace follow."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """Anything with a length and items by index.

    A source may also define:

    - `__getitems__(indices)`: the items at a list of indices, as a list.
    - `__getcolumns__(indices)`: the items at an int64 array of indices, each in `0..len - 1`, as columns: a tree like
      one item, whose leaves are NumPy arrays in which row `j` is from item `indices[j]`, bit for bit. The arrays must
      be new, since users receive rows and batches of them. Headrace prefers this method to the others.
    - `__where__(index)`: the file that an item is from, and its number there or `None`, for lists of bad records.
    - `element_spec`: the tree of shapes and dtypes of an item.

    >>> class Squares:
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return index * index
    >>> isinstance(Squares(), RandomAccessDataSource), list(MapDataset.source(Squares()))
    (True, [0, 1, 4, 9, 16])

    Differs from Grain: a source may also define `__getcolumns__`, and Headrace calls `__getitems__` where it can.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> T_co: ...


@runtime_checkable
class CheckpointableIterator(Protocol[T_co]):
    """An iterator that can save its position and return to it.

    >>> isinstance(iter(MapDataset.range(4)), CheckpointableIterator)
    True
    """

    def __next__(self) -> T_co: ...

    def __iter__(self) -> Iterator[T_co]: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any, /) -> None: ...


class Executor(Protocol):
    """Computes tasks and returns their results in the order of submission.

    An executor never changes a value. After an error, the caller closes it and does not use it again.
    """

    @property
    def inline(self) -> bool:
        """Whether submitting gains nothing, so that the caller may as well call the task itself."""
        ...

    @property
    def num_threads(self) -> int:
        """How many threads compute tasks."""
        ...

    def filled(self) -> float:
        """How full its buffer of results is, from 0 to 1."""
        ...

    def wants(self, n: int) -> int:
        """How many elements the next task should have if about `n` are needed; 0 for no task now."""
        ...

    def submit(self, task: Callable[[], Any], size: int) -> None:
        """Accepts a task that makes a block of about `size` elements."""
        ...

    def ready(self) -> bool:
        """Whether the next result is there; results computed on demand always count as there."""
        ...

    def next(self) -> Any:
        """The result of the oldest task, or its error."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """Releases threads, processes and memory."""
        ...


@dataclass(frozen=True)
class ChunkLimits:
    """How large a pool's tasks should be: small enough to arrive soon, large enough to be worth sending.

    Attributes:
        seconds: Chunks grow while they take less than this; one that takes four times as long halves them.
        num_bytes: Chunks grow while they have less than this.
        elements: The most elements in a chunk.
        under_way: The most chunks that one worker has queued.
        unmeasured: The most chunks under way until it is known how large they are.
        buffer_bytes: The most bytes under way, whatever the options say.
    """

    seconds: float = 0.004
    num_bytes: int = 1 << 20
    elements: int = 1 << 13
    under_way: int = 16
    unmeasured: int = sys.maxsize
    buffer_bytes: int = sys.maxsize


@dataclass
class PoolLoad:
    """What the streams that share a pool know of each other.

    Attributes:
        num_streams: How many streams share the workers now.
        expected_bytes: The size of all results under way, estimated from results so far.
        chunks: By kind of stage, the size of a chunk, and the bytes of a chunk of one.
        is_idle: Whether no iterator uses the pool, which waits for the next one.
    """

    num_streams: int = 0
    expected_bytes: int = 0
    chunks: dict[Any, tuple[int, float]] = field(default_factory=dict)
    is_idle: bool = False


class PendingTask(Protocol):
    """A task submitted to a pool."""

    @property
    def took_s(self) -> float:
        """How long a worker took to compute it; 0 until the answer arrives."""
        ...

    @property
    def num_bytes(self) -> int | None:
        """The size of the result; `None` until it arrives."""
        ...


class TaskPool(Protocol):
    """Workers that compute tasks: see `headrace.engine.workers` for the tasks and for what runs them.

    A pool never changes a result. It replaces a worker that dies and computes its tasks again; a task over which
    workers die repeatedly is an error. A pool belongs to one iterator at a time. To use another pool, subclass
    `MultiprocessingOptions` with a method `open_pool(plan, num_workers)` that returns one; every worker needs
    `plan.pipelines`, `plan.init` and `plan.options`.
    """

    load: PoolLoad

    @property
    def plan(self) -> Any:
        """The plan that it was opened with."""
        ...

    @property
    def num_workers(self) -> int: ...

    @property
    def chunk_limits(self) -> ChunkLimits: ...

    @property
    def closed(self) -> bool: ...

    @property
    def num_open(self) -> int:
        """How many tasks have no answer yet."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """Lets one thread at a time use the pool and its `load`."""
        ...

    def submit(self, make: Callable[[int], Any], describe: Callable[[], str], worker: int | None = None) -> PendingTask:
        """Gives a task to `worker`, or to the worker with the fewest tasks.

        The pool calls `make(number)` to make the task when it sends it. The number changes when the worker is replaced,
        so that a stream knows that it must send its position again. `describe()` names the elements for an error.
        """
        ...

    def wait(self, pending: Any) -> bool:
        """Waits until any task has an answer; returns whether this one has."""
        ...

    def ready(self, pending: Any) -> bool:
        """Whether the answer is there."""
        ...

    def result(self, pending: Any) -> Any:
        """Takes the result of a task that has an answer; raises where the answer is an error."""
        ...

    def peek(self, pending: Any) -> Any:
        """The result of a task without taking it; `None` if it is not there."""
        ...

    def cancel(self, pending: Iterable[Any]) -> None:
        """Drops tasks; workers may skip those that they have not begun."""
        ...

    def pick_worker(self) -> int:
        """Chooses a worker for a whole stream."""
        ...

    def forget_stream(self, worker: int, task: Any) -> None:
        """Asks a worker to close a stream that it keeps open, without waiting for it."""
        ...

    def work_of_workers(self) -> list[str]:
        """What each worker that has work is doing, for a warning."""
        ...

    def interrupt(self) -> None:
        """Makes every thread that waits for a result stop with a `ClosedError`."""
        ...

    def go_on(self) -> None:
        """Allows waiting for results again after `interrupt`."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers."""
        ...
