"""The fields that operations write into states, and read again: all are ints, so that hosts can gather them."""

import operator
import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.errors import StateError

if TYPE_CHECKING:
    from headrace.ops.op import Op

Fields = dict[str, Any]


class PartStates(NamedTuple):
    """How an operation on several parts reads and writes their states.

    Attributes:
        encode: The state of a part at a position.
        decode: The position in a state of a part.
        made: The operation of the dataset that an interleave has under a number.
        reread: Whether later operations compute some outputs from these positions again.
    """

    encode: "Callable[[Op, Any], Fields]"
    decode: "Callable[[Op, Any], Any]"
    made: "Callable[[Any, int], Op]"
    reread: bool = False


def count(op: "Op", name: str, value: Any) -> int:
    """A field of a state with a count."""
    found = as_int(value)
    if found is None or not 0 <= found <= sys.maxsize:
        raise StateError(
            f"The state of {op.label()} has {name}={value!r:.100}, which must be 0 or more. The state is "
            "damaged, or belongs to another pipeline."
        )
    if name in op.state_limits and found > (most := getattr(op, op.state_limits[name])):
        raise StateError(
            f"The state of {op.label()} has {name}={found}, but at most {most} is possible. The state is "
            "damaged, or belongs to another pipeline."
        )
    return found


def as_int(value: Any) -> int | None:
    """A number as an int; `None` if it is not one."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def number_of(value: Any) -> int:
    """A value as a number that fits into 32 bits, so any host can gather it."""
    if value is None:
        return -1
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | np.integer) and 0 <= value < 1 << 31:  # bools too
        return int(value)
    data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return zlib.crc32(data) % (1 << 31)


def ints(value: Any) -> Any:
    """An argument of an operation as ints."""
    if isinstance(value, dict):
        return {name: ints(each) for name, each in value.items()}
    return [ints(each) for each in value] if isinstance(value, list | tuple) else number_of(value)


def plain(value: Any) -> Any:
    """A tuple as the list that JSON makes of it."""
    return list(value) if isinstance(value, tuple) else value
