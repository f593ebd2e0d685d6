"""What a stream's order depends on: states have it, so that errors can say how another pipeline differs.

A fingerprint has an entry for each operation that decides which elements come when, from the source on, such as
`{"0 source": {"length": 1000}, "1 shuffle": {"seed": 42}, ...}`. Its leaves are numbers, which hosts can gather.
Functions are separate: they may change, which only gives a warning.
"""

import sys
import types
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from headrace._ops.base import Op, describe
from headrace._ops.global_batch import GlobalBatch
from headrace._ops.state_fields import number_of
from headrace.errors import StateError

Entries = dict[str, dict[str, Any]]
Ordered = list[tuple[str, dict[str, Any]]]  # entries without their numbers
MOST_ENTRIES = 64  # of all parts together; if there are more, each part has one number
MOST_PARTS = 1000  # if there are more, they have one number together
MOST_SHOWN = 8  # numbers of an argument
MOST_FUNCTIONS = 16
STREAM_BEGINS = ("to_iter_dataset", "interleave")  # these and what comes before decide what an index means


def fingerprint(op: Op) -> Entries:
    """The entries of a pipeline."""
    entries: Ordered = []
    for each in _chain(op):
        identity = each.identity()
        if identity is None:
            continue
        if each.name == STREAM_BEGINS[0]:
            _drop_last_repeat(entries)
        entry: dict[str, Any] = dict(_numbers(identity))
        parts = each.named_parts()
        if parts is not None:
            entry["parts"] = _described(parts)
        entries.append((each.name, entry))
    if not op.is_stream:
        _drop_last_repeat(entries)
    return {f"{i} {name}": entry for i, (name, entry) in enumerate(entries)}


def _drop_last_repeat(entries: Ordered) -> None:
    """A `repeat` at the end changes no index; one in the middle does."""
    if entries and entries[-1] == ("repeat", {"reseed_each_epoch": 1}):
        entries.pop()


def _chain(op: Op) -> list[Op]:
    """The operations up to this one, from a source or from one with several parents."""
    chain = [op]
    while len(chain[-1].parents) == 1 and chain[-1].named_parts() is None:
        chain.append(chain[-1].parents[0])
    return chain[::-1]


def _described(parts: dict[str, Op]) -> dict[str, Any]:
    found = {name: fingerprint(part) for name, part in parts.items()}
    if sum(map(_num_entries, found.values())) <= MOST_ENTRIES:
        return found
    digests = {name: _digest(entries) for name, entries in found.items()}
    return digests if len(digests) <= MOST_PARTS else {"all": number_of(repr(digests))}


def _num_entries(part: Any) -> int:
    """The number of entries of a part, with those of its own parts."""
    if not isinstance(part, dict):  # its digest
        return 1
    return sum(1 + sum(map(_num_entries, entry.get("parts", {}).values())) for entry in part.values())


def _digest(part: Any) -> int:
    """One number for a part: it changes when the meaning of the part's indices does."""
    if not isinstance(part, dict):
        return part
    entries = _entries(part)
    return number_of(repr(_of_indices(entries) or entries))  # with random access, every entry counts


def _numbers(identity: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in identity.items():
        if isinstance(value, tuple) and len(value) <= MOST_SHOWN:
            yield from ((f"{name}[{i}]", number_of(each)) for i, each in enumerate(value))
        else:
            yield name, number_of(value)


# ------------------------------------------------------------------------------------------- comparing


def differences(op: Op, saved: Any, position: Any) -> list[str]:
    """The differences between this pipeline and that of a state at this position, if they change what comes.

    Whatever decides the meaning of an index counts, and whatever an open group is computed from. Later operations may
    differ.
    """
    num_open, base, position = _open(op, position)
    own, theirs = _entries(fingerprint(op)), _entries(saved)
    if isinstance(base, GlobalBatch):  # with one number for all lanes, everything before it must be as it was
        own, theirs = (entries[: _place_of(base.name, entries) + 1] for entries in (own, theirs))
        return _all_differences(own, theirs)
    parts = base.named_parts()
    if parts is not None and base.is_stream and not num_open:
        return _differences_of_parts(base, parts, own, theirs, position)
    if not op.is_stream:
        counted, counted_there = len(own), len(theirs)
    else:
        counted, counted_there = (max(len(_of_indices(entries)), num_open) for entries in (own, theirs))
    return _all_differences(own[:counted], theirs[:counted_there])


def _all_differences(own: Ordered, theirs: Ordered) -> list[str]:
    found = []
    for mine, other in zip_longest(own, theirs):
        found += _difference(other, mine)
        if mine is None or other is None or mine[0] != other[0]:
            break  # later entries are shifted
    return found


def _place_of(name: str, entries: Ordered) -> int:
    return next((i for i, entry in enumerate(entries) if entry[0] == name), len(entries))


def _open(op: Op, position: Any) -> tuple[int, Op, Any]:
    """The number of entries up to the last operation with an open group, and the first operation with its position."""
    num_open = 0
    while op.before is not None:
        if op.state_fields is not None:
            if not num_open and op.has_open_group(position[:-1]):
                num_open = len(fingerprint(op))
            position = position[-1]
        op = op.before
    return num_open, op, position


def _entries(fields: Any) -> Ordered:
    """The entries of a fingerprint in order, each with its operation's name."""
    try:
        numbered = [(int(key.split()[0]), key.split()[1], _as_now(dict(entry))) for key, entry in fields.items()]
    except (AttributeError, IndexError, TypeError, ValueError) as e:
        raise StateError(f"The state's description of its pipeline is damaged: {fields!r:.200}.") from e
    return [(name, entry) for _, name, entry in sorted(numbered, key=lambda each: each[0])]


def _as_now(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry in today's form: older ones have the weights of a mix instead of proportions."""
    weights = {name: value for name, value in entry.items() if name.startswith("weight[")}
    least = min(weights.values(), default=1)
    proportions = {name.replace("weight", "proportion"): int(value * 100 / least) for name, value in weights.items()}
    return {name: value for name, value in entry.items() if name not in weights} | proportions


def _of_indices(entries: Ordered) -> Ordered:
    """The entries that decide what an index means."""
    last = max((i for i, (name, _) in enumerate(entries) if name in STREAM_BEGINS), default=-1)
    return entries[: last + 1]


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
        elif not isinstance(theirs[part], dict) or not isinstance(mine[part], dict):
            if _digest(theirs[part]) != _digest(mine[part]):
                yield f"{where} {part!r}"
        else:
            for left, right in zip_longest(_entries(theirs[part]), _entries(mine[part])):
                yield from (f"{where} {part!r}: {text}" for text in _difference(left, right))


def _differences_of_parts(op: Op, parts: dict[str, Op], own: Any, theirs: Any, position: Any) -> list[str]:
    """Differences between the parts of several streams: parts may come and go, but those that stay must be the same."""
    if not theirs or theirs[0][0] != own[0][0]:
        return []
    saved, mine, positions = theirs[0][1].get("parts"), own[0][1]["parts"], op.part_positions(position[-1])
    found = []
    for name in mine if isinstance(saved, dict) else ():
        if name not in saved:
            continue
        if isinstance(saved[name], dict) and isinstance(mine[name], dict):
            inner = positions.get(name)
            texts = differences(parts[name], saved[name], inner) if inner is not None else _unopened(mine, saved, name)
            found += [f"part {name!r}: {text}" for text in texts]
        elif _digest(saved[name]) != _digest(mine[name]):
            found.append("the parts" if name == "all" else f"part {name!r}")
    return found


def _unopened(mine: dict[str, Any], saved: dict[str, Any], name: str) -> list[str]:
    pairs = zip_longest(_of_indices(_entries(saved[name])), _of_indices(_entries(mine[name])))
    return [text for left, right in pairs for text in _difference(left, right)]


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


# ------------------------------------------------------------------------------------------- functions


def functions(op: Op) -> dict[str, int]:
    """A checksum of the code of each function in a pipeline."""
    named: dict[str, int] = {"python": sys.hexversion >> 16}  # each version compiles to other byte code
    for i, each in enumerate(_chain(op)):
        function = next(filter(None, (getattr(each, name, None) for name in _FUNCTIONS)), None)
        if callable(function):
            named[f"{i} {describe(function).split(' at ')[0]}"] = _codenumber_of(function)
    if len(named) <= MOST_FUNCTIONS:
        return named
    return {"python": named["python"], "all functions": number_of(repr(named))}


def changed_functions(op: Op, saved: Any) -> list[str]:
    """The functions of a pipeline that have changed since a state was saved."""
    own = functions(op)
    if not isinstance(saved, dict) or saved.keys() != own.keys() or saved["python"] != own["python"]:
        return []  # operations were added or removed, which the user knows
    return [name.split(" ", 1)[-1] for name in own if own[name] != saved[name]]


def _codenumber_of(function: Any) -> int:
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = next((c for name in _METHODS if (c := getattr(getattr(function, name, None), "__code__", None))), None)
    return 0 if code is None else zlib.crc32(bytes_of_code(code)) % (1 << 31)


_FUNCTIONS = ("transform", "size", "weigh_by")  # arguments of operations
_METHODS = ("map", "filter", "random_map", "map_with_index", "flat_map", "__call__")


def bytes_of_code(code: types.CodeType) -> bytes:
    """What a function does, whatever file and line it is in."""
    return b"\0".join([code.co_code, *map(_bytes_of_constant, code.co_consts), repr(code.co_names).encode()])


def _bytes_of_constant(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return bytes_of_code(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
