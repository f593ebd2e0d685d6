"""Transformations as classes: subclass one, define its method, hand an instance to a dataset.

Each may also define `output_spec(input_spec)`, which lets `element_spec` be known without reading data.
`Map` may define `map_batch(columns)` beside `map`: it gets a pytree whose leaves have one leading axis and
returns one of the same length, row for row what `map` returns.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np


class Map(abc.ABC):
    """One element in, one element out."""

    @abc.abstractmethod
    def map(self, element: Any) -> Any:
        """Returns what `element` becomes."""


class RandomMap(abc.ABC):
    """One element and a random number generator of its own in, one element out."""

    @abc.abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns what `element` becomes; all randomness comes from `rng`."""


class MapWithIndex(abc.ABC):
    """One index and its element in, one element out."""

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any) -> Any:
        """Returns what the element at `index` becomes."""


class Filter(abc.ABC):
    """One element in; whether it stays."""

    @abc.abstractmethod
    def filter(self, element: Any) -> bool:
        """Returns whether `element` stays."""


class FlatMap(abc.ABC):
    """One element in, any number of elements out, up to `max_fan_out`."""

    max_fan_out: ClassVar[int]

    @abc.abstractmethod
    def flat_map(self, element: Any) -> Sequence[Any]:
        """Returns what `element` is split into."""


class TfRandomMap(abc.ABC):
    """One element and a TensorFlow seed in, one element out."""

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Returns what `element` becomes."""


class DatasetSelectionMap(abc.ABC):
    """Says for each index which dataset gives the element, and which of its elements that is."""

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


@runtime_checkable
class Transformation(Protocol):
    """Any of the classes above."""


Transformations: TypeAlias = Sequence[Transformation]
