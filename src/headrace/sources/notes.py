"""Notes: what a format cannot express about an element, written beside its plain values so that it comes back equal.

A note is JSON. In an `Example` it is the feature `__headrace__`, in JSON lines the key of that name, and in Parquet and
Arrow the schema's metadata `headrace`. Readers that do not know it see plain values. These say what a value was:

    null                    what the format gives anyway
    "int", "float", "bool", "str", "bytes", "none"
    ["uint8"]               a scalar of NumPy
    ["uint8", [28, 28]]     an array and its shape
    {"a": …, "b": …}        a dict
    ["list", […, …]]        a list, with a note for each item; also "tuple"
    ["list", …, 3]          a list of 3 items with the same note; also "tuple"
    ["object", [2, 3], …]   an array of objects, and the note of the list of them
    ["parts", "list", […]]  in an `Example`: a list whose items are the features `NAME/0`, `NAME/1` and so on
    ["bare", …]             the element is not a dict: it is the value named `record`
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from headrace.errors import PipelineError

NOTE = "__headrace__"
RECORD = "record"  # the name of an element that is not a dict
BARE = "bare"

PLAIN = "accept the loss with `plain=True` (`--plain` on the command line)"


def array_of(value: Any, name: str) -> np.ndarray | None:
    """The value as a NumPy array, if it is an array of any library."""
    if isinstance(value, np.ndarray):
        if hasattr(value, "mask"):
            raise PipelineError(
                f"{name} is a masked array, and masks cannot be written. Fill it, or write the "
                "mask as an array beside it."
            )
        return np.asarray(value)
    if isinstance(value, np.generic) or not (hasattr(value, "__array__") or hasattr(value, "__array_interface__")):
        return None
    return np.asarray(value)


def is_sequence(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or tuple; a tuple with names is neither, since the names would be lost."""
    return isinstance(value, list) or type(value) is tuple


def wrapped(element: Any) -> tuple[Mapping[str, Any], bool]:
    """An element as a dict, and whether it was none."""
    return (element, False) if isinstance(element, Mapping) else ({RECORD: element}, True)


def check_name(name: Any) -> None:
    """Raises unless a key of a dict can be a name in a file."""
    if not isinstance(name, str):
        raise PipelineError(f"The keys of a dict must be text; got {name!r}. Convert them in a `map` first.")
    if name.startswith(NOTE):
        raise PipelineError(f"The name {name!r} is reserved for notes on values. Rename it in a `map` first.")


def sequence_note(tag: str, notes: Sequence[Any]) -> tuple[Any, ...]:
    """The note of a list or tuple, given those of its items."""
    first = notes[0] if notes else None
    if first is not None and all(note == first for note in itertools.islice(notes, 1, None)):
        return tag, first, len(notes)
    return tag, tuple(notes)


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype) -> str:
    """A dtype as text."""
    return dtype.name if dtype.isnative and dtype.kind in "biufmM" else dtype.str


def dtype_named(name: Any) -> np.dtype:
    """The dtype that a note names; raises ValueError if it is none that is written."""
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufmMUS":
        raise ValueError(f"the note names the dtype {str(name)[:100]!r}")
    return dtype


def shape_noted(sizes: Any) -> tuple[int, ...]:
    """The shape in a note; raises ValueError if it is none."""
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"the note has the shape {str(sizes)[:100]}")
    return tuple(sizes)
