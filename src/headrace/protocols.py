"""What Headrace asks of the objects that it is given."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class RandomAccessDataSource(Protocol[T_co]):
    """Anything with a length and items by index.

    A source may also define `__getitems__(indices)`, which is asked for a list of items at once, and
    `element_spec`, a pytree of shapes and dtypes.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> T_co: ...


@runtime_checkable
class CheckpointableIterator(Protocol[T_co]):
    """An iterator that can say where it is and go back there."""

    def __next__(self) -> T_co: ...

    def __iter__(self) -> Iterator[T_co]: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any, /) -> None: ...


class Executor(Protocol):
    """Computes tasks and hands their results back in the order they were submitted.

    An executor never changes a value. After an error it is closed, and nothing more is asked of it.
    """

    @property
    def inline(self) -> bool:
        """Whether nothing is gained by submitting: the task may as well be called."""
        ...

    def wants(self, n: int) -> int:
        """How many elements the next task should have, if about `n` are needed; 0: none now."""
        ...

    def submit(self, task: Callable[[], Any], size: int) -> None:
        """Takes a task that makes a block of about `size` elements."""
        ...

    def ready(self) -> bool:
        """Whether the next result need not be waited for; what is computed when it is asked for is ready."""
        ...

    def next(self) -> Any:
        """The result of the oldest task, or its error."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """Gives back threads, processes and memory."""
        ...


@dataclass(frozen=True)
class ChunkLimits:
    """How much a task of a pool should hold: little enough to come soon, enough to be worth sending.

    Attributes:
        seconds: Chunks grow while they take less than this; one that takes four times as long halves them.
        num_bytes: Chunks grow while they have less than this.
        elements: No chunk has more.
        under_way: No worker has more chunks to compute.
    """

    seconds: float = 0.004
    num_bytes: int = 1 << 20
    elements: int = 1 << 13
    under_way: int = 16


@dataclass
class PoolLoad:
    """What the streams that share a pool know of each other.

    Attributes:
        num_streams: Streams that share the workers now.
        expected_bytes: Of all tasks under way, as far as results so far tell.
        chunks: By kind of stage, the size of a chunk, and the bytes of a chunk of one.
    """

    num_streams: int = 0
    expected_bytes: int = 0
    chunks: dict[Any, tuple[int, float]] = field(default_factory=dict)


class PendingTask(Protocol):
    """A task that a pool was given."""

    @property
    def took_s(self) -> float:
        """How long a worker took to compute it; 0 until the answer is there."""
        ...

    @property
    def num_bytes(self) -> int | None:
        """How large the result is; `None` until it is there."""
        ...


class TaskPool(Protocol):
    """Workers that compute tasks: see `_executors/tasks.py` for the tasks and for what runs them.

    A pool never changes a result. A worker that dies is replaced and its tasks are computed again; a task over which
    workers die again is an error. A pool belongs to one iterator at a time. `MultiprocessingOptions` and its subclasses
    pick it: a method `open_pool(plan, num_workers)` returns one, where `plan.pipelines` and `plan.init` are what
    every worker needs.
    """

    load: PoolLoad

    @property
    def plan(self) -> Any:
        """What it was opened with."""
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
        """Gives a task to a worker: to this one, or to whichever has least to do.

        `make(number)` makes the task when it is sent. The number is another one once a worker has been replaced, which
        tells a stream to say again where it is. `describe()` names the elements, for an error.
        """
        ...

    def wait(self, pending: Any) -> bool:
        """Waits until any task is answered; returns whether this one is."""
        ...

    def ready(self, pending: Any) -> bool:
        """Whether the answer is there."""
        ...

    def result(self, pending: Any) -> Any:
        """The result of a task that is answered, or its error."""
        ...

    def peek(self, pending: Any) -> Any:
        """The result of a task, if it is there, which stays where it is; `None` otherwise."""
        ...

    def cancel(self, pending: Iterable[Any]) -> None:
        """Forgets tasks; those that have not begun need not be computed."""
        ...

    def pick_worker(self) -> int:
        """A worker for a whole stream."""
        ...

    def forget_stream(self, worker: int, task: Any) -> None:
        """Has a worker close a stream that it keeps open; does not wait for that."""
        ...

    def interrupt(self) -> None:
        """Makes whoever waits stop, with a `ClosedError`, in whatever thread."""
        ...

    def go_on(self) -> None:
        """Lets results be waited for again."""
        ...

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers."""
        ...
