"""The value that an operation is about, in an element with others: it is found, and replaced."""

from collections.abc import Mapping
from typing import Any

from headrace.errors import PipelineError


def field_in(element: Any, key: str, what: str) -> Any:
    """The value of a key, the first item of a tuple or list, or the element itself; `what` names it in messages."""
    if isinstance(element, Mapping):
        try:
            return element[key]
        except KeyError:
            raise PipelineError(
                f"The element has no {what} under {key!r}; it has {sorted(map(str, element))}. Give `key` its name."
            ) from None
    if isinstance(element, tuple | list):
        if not element:
            kind = type(element).__name__
            raise PipelineError(f"The element is an empty {kind}; its first item should be the {what}.")
        return element[0]
    return element


def with_field(element: Any, key: str, value: Any) -> Any:
    """The element with another value there."""
    if isinstance(element, Mapping):
        return {**element, key: value}
    if isinstance(element, tuple):
        return type(element)(value, *element[1:]) if hasattr(element, "_fields") else (value, *element[1:])
    return [value, *element[1:]] if isinstance(element, list) else value
