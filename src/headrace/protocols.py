"""What Headrace asks of the objects that it is given."""

from collections.abc import Callable, Iterator
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
