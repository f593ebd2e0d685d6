"""Transformations as classes: subclass one, define its method, and give an object of it to a dataset.

With a function, `Map(fn)` and the like need no subclass.
Each may also define `output_spec(input_spec)`, so that `element_spec` is known without reading data.
Besides `map`, a `Map` may define `map_batch(columns)`: it gets a pytree whose leaves have one leading axis and
returns one of the same length, with the rows that `map` returns. If elements are not columns (texts, or arrays of
different lengths), it may define `map_rows(elements)`: it gets a list and returns one of the same length. Do not rely
on how many elements they get at once.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from headrace._utils.notebooks import place

_F = TypeVar("_F")

if TYPE_CHECKING:

    def _abstract(method: _F) -> _F:
        """Hides from type checkers that these methods are abstract, so they accept `Map(fn)`."""
        return method

else:
    _abstract = abc.abstractmethod


class _Transform(abc.ABC):
    """A transform; `Map(fn)` is a `Map` whose `map` is `fn`, and so on."""

    _method: ClassVar[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = _OF_FUNCTION.get(cls, cls) if args or kwargs else cls
        return super().__new__(made)


class Map(_Transform):
    """One element in, one element out."""

    _method = "map"

    @_abstract
    def map(self, element: Any) -> Any:
        """Returns the new element."""


class RandomMap(_Transform):
    """One element and its random number generator in, one element out."""

    _method = "random_map"

    @_abstract
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element; take all randomness from `rng`."""


class MapWithIndex(_Transform):
    """One index and its element in, one element out."""

    _method = "map_with_index"

    @_abstract
    def map_with_index(self, index: int, element: Any) -> Any:
        """Returns the new element."""


class Filter(_Transform):
    """One element in; whether it stays."""

    _method = "filter"

    @_abstract
    def filter(self, element: Any) -> Any:
        """Returns whether `element` stays."""


class FlatMap(_Transform):
    """One element in, any number of elements out, up to `max_fan_out`."""

    _method = "flat_map"
    max_fan_out: int | None = None

    @_abstract
    def flat_map(self, element: Any) -> Any:
        """Returns the parts of `element`, as a sequence."""


class TfRandomMap(abc.ABC):
    """One element and a TensorFlow seed in, one element out."""

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element."""


class DatasetSelectionMap(abc.ABC):
    """Says for each index which dataset the element comes from, and its index there."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns how many elements the selection has."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """Returns the number of a dataset and an index there."""


@dataclass(frozen=True)
class Batch:
    """`batch_size` elements in, one batch out."""

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


class _OfFunction:
    """A transform made from a function."""

    _method: ClassVar[str]

    def __init__(self, function: Callable[..., Any], **max_fan_out: int | None):
        if not callable(function):
            raise TypeError(f"{self._kind.__name__} takes a function; got {type(function).__name__}: {function!r}.")
        setattr(self, self._method, function)
        if max_fan_out.keys() - (["max_fan_out"] if self._kind is FlatMap else []):
            raise TypeError(f"{self._kind.__name__} takes a function, and not {', '.join(max_fan_out)}.")
        self.__dict__.update(max_fan_out)

    @property
    def _kind(self) -> type:
        return type(self).__bases__[1]

    @property
    def _function(self) -> Callable[..., Any]:
        return getattr(self, self._method)

    def __repr__(self) -> str:
        return f"{self._kind.__name__}({_show(self._function)})"

    def __reduce__(self) -> Any:
        return _made_again, (self._kind, self._function, {k: v for k, v in vars(self).items() if k == "max_fan_out"})


def _made_again(kind: type, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    return kind(function, **options)


def _show(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return getattr(function, "__name__", repr(function))
    return f"{function.__name__} at {place(code.co_filename, code.co_firstlineno)}"


_OF_FUNCTION: dict[type, type] = {
    kind: type(f"{kind.__name__}OfFunction", (_OfFunction, kind), {kind._method: None})
    for kind in (Map, RandomMap, MapWithIndex, Filter, FlatMap)
}


Transformation: TypeAlias = Batch | Map | RandomMap | TfRandomMap | Filter | FlatMap | MapWithIndex
Transformations: TypeAlias = Sequence[Transformation]
