"""Sizes of elements, such as their numbers of tokens: what batches and mixes count instead of elements."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import PipelineError
from headrace.errors.signals import let_through

Size = str | Callable[[Any], int]
"""A function of an element, or the name of a feature whose length is the size."""


@dataclass(frozen=True)
class SizeOf:
    """The size of an element.

    >>> SizeOf("tokens", "size")({"tokens": [7, 8, 9]})
    3

    Args:
        size: A function of an element, or the name of a feature whose length is the size.
        argument: What users call this.
    """

    size: Size
    argument: str

    def __post_init__(self):
        if not isinstance(self.size, str) and not callable(self.size):
            raise PipelineError(
                f"{self.argument} must be a function of an element, or the name of a feature; got {self.size!r}."
            )

    @property
    def feature(self) -> str | None:
        """The feature whose length is the size."""
        return self.size if isinstance(self.size, str) else None

    def __call__(self, element: Any) -> int:
        if isinstance(self.size, str):
            return len(self._feature_of(element, self.size))
        if self.size is len and isinstance(element, Mapping | tuple):
            raise PipelineError(
                f"`len` of an element that is a {type(element).__name__} counts its features: name the one whose "
                f'length counts, {self.argument}="tokens", or give a function, {self.argument}=lambda e: len(e[0]).'
            )
        found = self.size(element)
        try:
            size = -1 if isinstance(found, bool) else operator.index(found)
        except TypeError as e:
            let_through(e)
            size = -1
        if size < 0:
            raise PipelineError(
                f"The function of {self.argument} must return an int of 0 or more; it returned {found!r}."
            )
        return size

    def _feature_of(self, element: Any, feature: str) -> Any:
        try:
            return element[feature]
        except (KeyError, TypeError, IndexError):
            has = sorted(map(str, element)) if isinstance(element, Mapping) else f"a {type(element).__name__}"
            raise PipelineError(f"{self.argument}={feature!r}, but the element has no such feature: {has}.") from None
