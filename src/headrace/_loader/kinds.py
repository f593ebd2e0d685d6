"""The operations that a loader takes."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headrace import transforms
from headrace._dataset.base import METHODS, method_of
from headrace._ops.base import describe
from headrace.errors import PipelineError
from headrace.operations import Operation
from headrace.records import Record

RANDOM = transforms.RandomMap | transforms.TfRandomMap
PLACED = RANDOM | transforms.MapWithIndex
ELEMENTWISE = transforms.Map | PLACED


def as_transforms(operations: Any) -> list[Any]:
    """A loader's operations as transforms; an `Operation` stays as it is if no transform does the same."""
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise PipelineError(f"operations must be a sequence of transforms; got {type(operations).__name__}.")
    return [_as_transform(operation) for operation in operations]


def _as_transform(operation: Any) -> Any:
    if isinstance(operation, type):
        raise PipelineError(
            f"operations has the class {operation.__name__}. Give an object of it, or, where the class itself is the "
            f"function to call, MapTransform({operation.__name__})."
        )
    if isinstance(operation, Operation):
        return operation.as_transform() or operation
    if isinstance(operation, transforms.Batch):
        return operation
    kinds = [name for name, kind in METHODS.items() if isinstance(operation, kind)]
    if len(kinds) == 1:
        return operation
    if takes_records(operation):
        return RecordsFunction(operation)
    methods = kinds or [name for name in METHODS if callable(getattr(operation, name, None))]
    if kinds or len(methods) == 1:  # of several kinds, the first counts
        kind = transforms.RandomMap if methods[0] == "np_random_map" else METHODS[methods[0]]
        return kind(getattr(operation, methods[0]))
    if callable(operation):
        return transforms.Map(operation)
    raise PipelineError(
        f"operations has a {type(operation).__name__}, {operation!r}, which is not a transform. A loader takes "
        "MapTransform, RandomMapTransform, MapWithIndexTransform, FilterTransform, FlatMapTransform, Batch, "
        "subclasses of Operation, generator functions of an iterator of records, and functions of one element."
    )


class RecordsFunction(Operation):
    """A function of an iterator of records that is no subclass of `Operation`."""

    def __init__(self, function: Callable[[Iterator[Record]], Iterator[Record]]):
        self.function = function

    def __call__(self, input_iterator: Iterator[Record]) -> Iterator[Record]:
        return self.function(input_iterator)

    def __repr__(self) -> str:
        return describe(self.function)


def takes_records(operation: Any) -> bool:
    """Whether a callable turns an iterator of records into another: it is a generator function, or says so.

    It says so by a parameter or result that is annotated as an iterator, or by a parameter `input_iterator`.
    """
    if not callable(operation):
        return False
    is_plain = inspect.isroutine(operation) or isinstance(operation, partial)  # or an object with a `__call__`
    function: Any = inspect.unwrap(operation if is_plain else type(operation).__call__)
    if inspect.isgeneratorfunction(function):
        return True
    try:
        signature = inspect.signature(operation)
    except (TypeError, ValueError):  # a function in C may have none
        return False
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    annotations = first.annotation, signature.return_annotation
    return first.name == "input_iterator" or any(map(_is_iterator, annotations))


def _is_iterator(annotation: Any) -> bool:
    """Whether an annotation, which may be text, means `Iterator[...]` or `Generator[...]`."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.split("[")[0].rpartition(".")[2] in ("Iterator", "Generator")


def identity(operations: Sequence[Any]) -> str:
    """The operations by kind, for a state: without functions, or anything that changes from run to run."""
    return ", ".join(map(named, operations)) or "none"


def named(transform: Any) -> str:
    """An operation by its kind, or the name of a user's own."""
    if isinstance(transform, transforms.Batch):
        return f"batch({transform.batch_size}{', drop_remainder' if transform.drop_remainder else ''})"
    if isinstance(transform, RecordsFunction):
        function: Any = transform.function.func if isinstance(transform.function, partial) else transform.function
        return getattr(function, "__name__", type(function).__name__)
    return (method_of(transform) or type(transform).__name__).removeprefix("np_")


def shown(transform: Any) -> str:
    """An operation for display, with its function and arguments."""
    return named(transform) if isinstance(transform, transforms.Batch) else describe(transform)


def function_of(transform: Any) -> Callable[..., Any]:
    """The method that does a transform's work."""
    method = method_of(transform)
    if method is None:
        raise TypeError(
            f"{describe(transform)} is not a transform of Headrace in this process; its class was imported anew."
        )
    return getattr(transform, method)
