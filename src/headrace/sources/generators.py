"""Any iterable as a stream: a function makes a new iterator for each iteration.

Such an iterator cannot go back or report its position. So a position is the number of elements so far, and restoring
one produces these elements again and drops them.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from headrace.dataset import IterDataset
from headrace.errors import ClosedError, PipelineError

T = TypeVar("T")


def from_generator(factory: Callable[[], Iterable[T]]) -> IterDataset[T]:
    """The elements of an iterator that `factory` makes; it is called once for each iteration of the dataset.

    A state is the number of elements so far, and restoring it produces that many elements again, which takes as long as
    the first time. If that is too slow, subclass `IterDataset` with an iterator that has `get_state` and `set_state`,
    or make the data a source with random access. The factory must return the same elements at every call.

    >>> def squares():
    ...     for i in range(4):
    ...         yield i * i
    >>> list(from_generator(squares).batch(2))
    [array([0, 1]), array([4, 9])]

    Args:
        factory: A function without arguments that returns an iterable, such as a generator function.
    """
    return GeneratorIterDataset(factory)


class GeneratorIterDataset(IterDataset[T]):
    """The elements of an iterator that a function makes; see `from_generator`."""

    def __init__(self, factory: Callable[[], Iterable[T]]):
        super().__init__()
        if not callable(factory):
            raise PipelineError(_not_a_factory(factory))
        self._factory = factory
        self._label = f"from_generator({getattr(factory, '__qualname__', type(factory).__name__)})"

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  (the class gives it states)
        return LazyIterator(self._factory, self._label)


class LazyIterator(Iterator[T]):
    """The elements of an iterable that a function makes when the first element is requested."""

    def __init__(self, make: Callable[[], Iterable[T]], label: str):
        self._make = make
        self._label = label
        self._iterator: Iterator[T] | None = None
        self._closed = False

    def __next__(self) -> T:
        if self._iterator is None:
            self._iterator = self._open()
        return next(self._iterator)

    def _open(self) -> Iterator[T]:
        if self._closed:
            raise ClosedError("This iterator is closed; create a new one.")
        made = self._make()
        if not isinstance(made, Iterable):
            raise PipelineError(
                f"The function of {self._label} must return an iterable; it returned {type(made).__name__}: {made!r}."
            )
        if inspect.isgenerator(made) and inspect.getgeneratorstate(made) != inspect.GEN_CREATED:
            raise PipelineError(
                f"The function of {self._label} returned a generator that had already started. Return a new "
                "generator from every call."
            )
        return iter(made)

    def close(self) -> None:
        """Closes a generator, so that its `finally` blocks run."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        iterator = self._iterator
        self._iterator = None
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def _not_a_factory(given: Any) -> str:
    found = f"`from_generator` takes a function that returns an iterator; got {type(given).__name__}"
    if hasattr(given, "__next__"):
        return f"{found}, which can be iterated only once. Pass the function itself: `from_generator(f)`, not `f()`."
    if isinstance(given, Iterable):
        return f"{found}. Wrap it in a function, or use `MapDataset.source` if it has a length and items by index."
    return f"{found}: {given!r}."
