"""Transformations as classes: subclass one, define its method, and pass an instance to a dataset.

With a function, `Map(fn)` and the like need no subclass.
Each may also define `output_spec(input_spec)`, so that `element_spec` is known without reading data.
Besides `map`, a `Map` may define `map_batch(columns)`: it receives a pytree whose leaves have one leading axis and
returns one of the same length, with the rows that `map` returns. If elements are not columns (texts, or arrays of
different lengths), it may define `map_rows(elements)`: it receives a list and returns one of the same length. Do not
rely on how many elements they receive at once.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from headrace.errors.notebooks import code_location
from headrace.rng import seeded_globals

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
    """One element in, one element out.

    >>> class Scale(Map):
    ...     def __init__(self, factor):
    ...         self.factor = factor
    ...     def map(self, element):
    ...         return element * self.factor
    >>> list(MapDataset.range(3).map(Scale(10))), list(MapDataset.range(3).map(Map(str)))
    ([0, 10, 20], ['0', '1', '2'])

    Differs from Grain: `Map(function)` needs no subclass; nor do the other transforms here.
    """

    _method = "map"

    @_abstract
    def map(self, element: Any) -> Any:
        """Returns the new element."""


class RandomMap(_Transform):
    """One element and its random number generator in, one element out.

    >>> class AddNoise(RandomMap):
    ...     def random_map(self, element, rng):
    ...         return element + int(rng.integers(100))
    >>> list(MapDataset.range(3).random_map(AddNoise(), seed=1))
    [42, 34, 45]
    """

    _method = "random_map"

    @_abstract
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element; take all randomness from `rng`."""


class SeedGlobals(RandomMap):
    """A function that draws from the generators of `random`, NumPy and torch, as a transform for `random_map`.

    They are seeded for each element and restored afterwards, so the function needs no generator.

    >>> import random
    >>> from headrace import MapDataset
    >>> ds = MapDataset.range(3).random_map(SeedGlobals(lambda x: x + random.random()), seed=1)
    >>> list(ds) == [ds[0], ds[1], ds[2]]
    True
    """

    _draws_from_globals: ClassVar[bool] = True

    def __init__(self, function: Callable[[Any], Any]):
        if not callable(function):
            raise TypeError(f"SeedGlobals takes a function; got {type(function).__name__}: {function!r}.")
        self._function = function

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        with seeded_globals() as seeded:
            return seeded.call(rng, self._function, element)

    def __repr__(self) -> str:
        return f"SeedGlobals({_show(self._function)})"


class MapWithIndex(_Transform):
    """One index and its element in, one element out.

    >>> class Number(MapWithIndex):
    ...     def map_with_index(self, index, element):
    ...         return index, element
    >>> list(MapDataset.source(["a", "b"]).map_with_index(Number()))
    [(0, 'a'), (1, 'b')]

    Differs from Grain: it works in a `DataLoader` too, with the sampler's index.
    """

    _method = "map_with_index"

    @_abstract
    def map_with_index(self, index: int, element: Any) -> Any:
        """Returns the new element."""


class Filter(_Transform):
    """One element in; whether it stays.

    >>> class IsEven(Filter):
    ...     def filter(self, element):
    ...         return element % 2 == 0
    >>> list(MapDataset.range(5).filter(IsEven()))
    [0, 2, 4]
    """

    _method = "filter"

    @_abstract
    def filter(self, element: Any) -> Any:
        """Returns whether `element` stays."""


class FlatMap(_Transform):
    """One element in, any number of elements out, up to `max_fan_out`.

    >>> class Halves(FlatMap):
    ...     max_fan_out = 2
    ...     def flat_map(self, element):
    ...         return [element[:2], element[2:]]
    >>> list(MapDataset.source(["abcd", "efgh"]).flat_map(Halves()))
    ['ab', 'cd', 'ef', 'gh']
    """

    _method = "flat_map"
    max_fan_out: int | None = None

    @_abstract
    def flat_map(self, element: Any) -> Any:
        """Returns the parts of `element`, as a sequence."""


class TfRandomMap(abc.ABC):
    """One element and its random number generator in, one element out: use `RandomMap` instead.

    >>> class Draw(TfRandomMap):
    ...     def np_random_map(self, element, rng):
    ...         return element, int(rng.integers(10))
    >>> list(MapDataset.range(2).seed(1).apply(Draw()))
    [(0, 0), (1, 3)]
    """

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns the new element."""


class DatasetSelectionMap(abc.ABC):
    """Maps each index to the dataset that the element comes from, and its index there.

    >>> class Alternate(DatasetSelectionMap):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, index):
    ...         return index % 2, index // 2
    >>> list(MapDataset.select_from_datasets([MapDataset.range(2), MapDataset.range(10, 12)], Alternate()))
    [0, 10, 1, 11]

    Differs from Grain: an empty dataset that is chosen is an error that names it, not a `ZeroDivisionError`.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns how many elements the selection has."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """Returns the number of a dataset and an index there."""


@dataclass(frozen=True)
class Batch:
    """`batch_size` elements in, one batch out.

    >>> list(MapDataset.range(5).apply(Batch(2, drop_remainder=True)))
    [array([0, 1]), array([2, 3])]
    """

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
            raise TypeError(f"{self._kind.__name__} takes only a function. Remove {', '.join(max_fan_out)}.")
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
    return f"{function.__name__} at {code_location(code.co_filename, code.co_firstlineno)}"


_OF_FUNCTION: dict[type, type] = {
    kind: type(f"{kind.__name__}OfFunction", (_OfFunction, kind), {kind._method: None})
    for kind in (Map, RandomMap, MapWithIndex, Filter, FlatMap)
}


Transformation: TypeAlias = Batch | Map | RandomMap | TfRandomMap | Filter | FlatMap | MapWithIndex
Transformations: TypeAlias = Sequence[Transformation]
