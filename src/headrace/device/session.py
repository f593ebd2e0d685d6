"""Numbers iterators alike in all processes of a distributed JAX program, which can then refer to them."""

from typing import Any

from headrace.ops.streams import Context


class _Numbers(dict[Any, int]):
    """The number of an iterator among those over each operation: the same in all processes."""


class _Sessions:
    """How many iterators there have been over an operation."""

    count = 0


def session(op: Any, context: Context) -> int:
    """The number of this iterator among those over an operation, which it keeps until it goes to another position."""
    numbers = context.kept.of(_Numbers)
    if op not in numbers:
        sessions = op.kept.of(_Sessions)
        numbers[op], sessions.count = sessions.count, sessions.count + 1
    return numbers[op]
