"""The operations that a loader takes."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace import transforms
from headrace._dataset.base import METHODS, method_of
from headrace._ops.base import describe
from headrace.compat.grain.operations import Operation
from headrace.errors import PipelineError

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
    methods = kinds or [name for name in METHODS if callable(getattr(operation, name, None))]
    if kinds or len(methods) == 1:  # of several kinds, the first counts
        kind = transforms.RandomMap if methods[0] == "np_random_map" else METHODS[methods[0]]
        return kind(getattr(operation, methods[0]))
    if callable(operation):
        return transforms.Map(operation)
    raise PipelineError(
        f"operations has a {type(operation).__name__}, {operation!r}, which is not a transform. A loader takes "
        "MapTransform, RandomMapTransform, MapWithIndexTransform, FilterTransform, FlatMapTransform, Batch, "
        "subclasses of Operation, and functions of one element."
    )


def identity(operations: Sequence[Any]) -> str:
    """The operations by kind, for a state: without functions, or anything that changes from run to run."""
    return ", ".join(map(_kind, operations)) or "none"


def _kind(transform: Any) -> str:
    if isinstance(transform, transforms.Batch):
        return f"batch({transform.batch_size}{', drop_remainder' if transform.drop_remainder else ''})"
    return (method_of(transform) or type(transform).__name__).removeprefix("np_")


def shown(transform: Any) -> str:
    """An operation for display, with its function and arguments."""
    return _kind(transform) if isinstance(transform, transforms.Batch) else describe(transform)


def function_of(transform: Any) -> Callable[..., Any]:
    """The method that does a transform's work."""
    method = method_of(transform)
    if method is None:
        raise TypeError(
            f"{describe(transform)} is not a transform of Headrace in this process; its class was imported anew."
        )
    return getattr(transform, method)
