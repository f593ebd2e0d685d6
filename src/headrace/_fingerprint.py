"""What a stream's order depends on, kept in its states: a state of another pipeline is noticed, and told apart by name.

A fingerprint has an entry for each operation that decides which elements come when, from the source on, such as
`{"0 source": {"length": 1000}, "1 shuffle": {"seed": 42}, ...}`. Its leaves are numbers, which hosts can gather.
Functions are kept apart: they may change, and are only warned of.
"""

import sys
import types
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from headrace._ops.base import Op, describe
from headrace._ops.combine import Nary
from headrace.errors import StateError

Entries = dict[str, dict[str, Any]]
MOST_ENTRIES = 64  # of all parts together; of more there is one number
MOST_FUNCTIONS = 16
RANDOM_ACCESS_ENDS = "to_iter_dataset"


def fingerprint(op: Op) -> Entries:
    """The entries of a pipeline."""
    entries: Entries = {}
    for each in _chain(op):
        identity = each.identity()
        if identity is not None:
            entry = {name: _number(value) for name, value in identity.items()}
            if isinstance(each, Nary):
                entry["parts"] = _parts(each)
            entries[f"{len(entries)} {each.name}"] = entry
    return entries


def _chain(op: Op) -> list[Op]:
    """The operations up to one, from a source or from one with several parents on."""
    chain = [op]
    while len(chain[-1].parents) == 1 and not isinstance(chain[-1], Nary):
        chain.append(chain[-1].parents[0])
    return chain[::-1]


def _parts(op: Nary) -> Any:
    found = {name: fingerprint(part) for name, part in zip(_names(op), op.parts, strict=True)}
    return found if sum(map(len, found.values())) <= MOST_ENTRIES else _number(repr(found))


def _names(op: Nary) -> list[str]:
    return list(getattr(op, "names", None) or map(str, range(len(op.parts))))


def _number(value: Any) -> int | float:
    """A value as a number that fits 32 bits, whatever gathers it; a float as it is."""
    if value is None:
        return -1
    if isinstance(value, float):
        return value
    if isinstance(value, int | np.integer):  # bools too
        return int(value) % (1 << 31)
    data = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
    return zlib.crc32(data) % (1 << 31)


# ------------------------------------------------------------------------------------------- comparing


def differences(op: Op, saved: Any, num_open: int = 0, *, whole: bool = False) -> list[str]:
    """How the pipeline that a state was saved with differs from this one, where that changes what comes.

    Everything below `to_iter_dataset()` counts, and the first `num_open` entries, of which something is made once
    more. What stands after those may be changed.
    """
    own, theirs = _entries(fingerprint(op)), _entries(saved)
    chain = _chain(op)
    if isinstance(chain[0], Nary) and chain[0].is_stream and not (whole or num_open):
        return _differences_of_parts(chain[0], own, theirs)
    counted = len(own) if whole or not op.is_stream else max(_random_access(own), num_open)
    counted_there = len(theirs) if whole or not op.is_stream else max(_random_access(theirs), num_open)
    found = []
    for mine, other in zip_longest(own[:counted], theirs[:counted_there]):
        found += _difference(other, mine)
        if mine is None or other is None or mine[0] != other[0]:
            break  # what follows is shifted
    return found


def _entries(fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The entries of a fingerprint in order, each with its operation's name."""
    try:
        numbered = [(int(key.split()[0]), key.split()[1], dict(entry)) for key, entry in fields.items()]
    except (AttributeError, IndexError, TypeError, ValueError) as e:
        raise StateError(f"The state's description of its pipeline is damaged: {fields!r:.200}.") from e
    return [(name, entry) for _, name, entry in sorted(numbered, key=lambda each: each[0])]


def _random_access(entries: list[tuple[str, dict[str, Any]]]) -> int:
    """How many entries there are up to where random access ends."""
    names = [name for name, _ in entries]
    return names.index(RANDOM_ACCESS_ENDS) + 1 if RANDOM_ACCESS_ENDS in names else 0


def _difference(saved: Any, own: Any) -> Iterator[str]:
    if saved is None or own is None or saved[0] != own[0]:
        left, right = ("nothing" if each is None else f"`{each[0]}`" for each in (saved, own))
        yield f"{left} → {right}"
        return
    (name, theirs), (_, mine) = saved, own
    for key in dict.fromkeys((*theirs, *mine)):
        left, right = theirs.get(key), mine.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _difference_of_dicts(f"{name}, part", left, right)
        elif left != right:
            yield f"{name} {key} {_shown(left)} → {_shown(right)}"


def _difference_of_dicts(where: str, theirs: dict[str, Any], mine: dict[str, Any]) -> Iterator[str]:
    for part in dict.fromkeys((*theirs, *mine)):
        if part not in theirs or part not in mine:
            yield f"{where} {part!r} {'is gone' if part in theirs else 'is new'}"
            continue
        for left, right in zip_longest(_entries(theirs[part]), _entries(mine[part])):
            yield from (f"{where} {part!r}: {text}" for text in _difference(left, right))


def _differences_of_parts(op: Nary, own: Any, theirs: Any) -> list[str]:
    """Of a mix of streams: parts may come and go, those that stay must be what they were."""
    saved = theirs[0][1].get("parts") if theirs and theirs[0][0] == own[0][0] else None
    if not isinstance(saved, dict):
        return []
    return [
        f"part {name!r}: {text}"
        for name, part in zip(_names(op), op.parts, strict=True)
        if name in saved
        for text in differences(part, saved[name])
    ]


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


# ------------------------------------------------------------------------------------------- functions


def functions(op: Op) -> dict[str, int]:
    """A number for each function of a pipeline, which another code has another of."""
    named: dict[str, int] = {"python": sys.hexversion >> 16}  # each version has byte code of its own
    for i, each in enumerate(_chain(op)):
        function = getattr(each, "transform", None)
        if function is not None:
            named[f"{i} {describe(function).split(' at ')[0]}"] = _code_number(function)
    if len(named) <= MOST_FUNCTIONS:
        return named
    return {"python": named["python"], "all functions": int(_number(repr(named)))}


def changed_functions(op: Op, saved: Any) -> list[str]:
    """The functions of a pipeline that are not what they were when a state was saved."""
    own = functions(op)
    if not isinstance(saved, dict) or saved.keys() != own.keys() or saved["python"] != own["python"]:
        return []  # operations were added or taken out, which the program shows
    return [name.split(" ", 1)[-1] for name in own if own[name] != saved[name]]


def _code_number(function: Any) -> int:
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = next((c for name in _METHODS if (c := getattr(getattr(function, name, None), "__code__", None))), None)
    return 0 if code is None else zlib.crc32(_bytes_of(code)) % (1 << 31)


_METHODS = ("map", "filter", "random_map", "map_with_index", "flat_map", "__call__")


def _bytes_of(code: types.CodeType) -> bytes:
    return b"\0".join([code.co_code, *map(_bytes_of_constant, code.co_consts), repr(code.co_names).encode()])


def _bytes_of_constant(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return _bytes_of(constant)
    if isinstance(constant, frozenset):  # whose order is another one in every process
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
