"""What a stream's order depends on: states have it, so that errors can say how another pipeline differs.

A fingerprint has an entry for each operation that decides which elements come when, from the source on, such as
`{"0 source": {"length": 1000, "start": 0}, "1 shuffle": {"seed": 42}, ...}`. Its leaves are numbers, which hosts can
gather. Files count by names, sizes and the bytes at their ends, and a function that decides which elements come, such
as a filter's, by what it depends on besides its code. `form` is the form of all this: older states have none, and lack
files, functions, the bounds of ranges, and the order of parts that only differ in functions.

Functions are separate: if their code changes, or what only changes values, there is a warning that names them.
"""

import os
import sys
import types
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from headrace._ops.base import Op, describe, parents_first
from headrace._ops.global_batch import GlobalBatch, has_rows
from headrace._ops.source import Source, UserDataset
from headrace._ops.state_fields import number_of
from headrace._states import values
from headrace.errors import StateError

Entries = dict[str, dict[str, Any]]
Ordered = list[tuple[str, dict[str, Any]]]  # entries without their numbers
MOST_ENTRIES = 64  # of all parts together; if there are more, each part has one number
MOST_PARTS = 1000  # if there are more, they have one number together
MOST_SHOWN = 8  # numbers of an argument
MOST_FUNCTIONS = 16
MOST_VALUES = 32  # of all functions; if there are more, each function has one number
MOST_NAMES = 256  # of files that processes tell each other
FORM = 2
IN_ORDER, IN_ANY_ORDER = "order", "any order"
STREAM_BEGINS = ("to_iter_dataset", "interleave")  # these and what comes before decide what an index means


def fingerprint(op: Op) -> dict[str, Any]:
    """The entries of a pipeline, with their form."""
    return {"form": FORM, **_fingerprint(op, FORM)}


def _fingerprint(op: Op, form: int) -> Entries:
    entries: Ordered = []
    for each in _chain(op):
        identity = each.identity()
        if identity is None:
            continue
        if each.name == STREAM_BEGINS[0]:
            _drop_last_repeat(entries)
        entry: dict[str, Any] = dict(_numbers(identity))
        if form == FORM:
            entry |= _further_numbers(each)
        parts = each.named_parts()
        if parts is not None:
            entry |= _described(parts, form)
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


def _further_numbers(op: Op) -> dict[str, int]:
    """What else decides which elements come: the files of a source, and the functions of a filter."""
    if isinstance(op, Source | UserDataset):
        return values.identity_of_source(op)
    found = {}
    for argument in op.order_functions:
        function, given = _given(op)[argument]
        if function is None:
            continue
        argument = "fn" if argument == "transform" else argument  # shorter
        name, code = values.name_of(function), values.code_of(function)
        if name != "<lambda>":
            found[f"{argument} name"] = number_of(name)
        found[f"{argument} code"] = 0 if code is None else values.instructions_of(code)
        given = {name: value for name, value in given.items() if not name.startswith(values.GLOBAL)}
        each = {"const": values.constants_of(function) or None, **given}
        numbers = {key: values.number(value, counts_code=False) for key, value in each.items() if value is not None}
        numbers = numbers if len(numbers) <= MOST_SHOWN else {"values": number_of(sorted(numbers.items()))}
        found |= {f"{argument}.{key}": number for key, number in numbers.items()}
    return found


def _given(op: Op) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The functions of an operation by argument, each with what it depends on when this is first asked."""
    key = "_known_given"
    if key not in op.__dict__:
        named = {name: op.__dict__[name] for name in _FUNCTIONS if name in op.__dict__}
        found = {name: (each, values.values_of(each)) for name, each in named.items()}
        if isinstance(op, Source | UserDataset):
            source = op.source if isinstance(op, Source) else op.dataset
            found["source"] = source, values.values_of_source(op)
        op.__dict__[key] = {
            name: (function, {key: values.kept(value) for key, value in given.items()})
            for name, (function, given) in found.items()
        }
    return op.__dict__[key]


def remember(op: Op) -> None:
    """Keeps what the functions of a pipeline depend on: attributes may change while they are called."""
    for each in parents_first(op, lambda each: "_known_given" not in each.__dict__):
        _given(each)


def _described(parts: dict[str, Op], form: int) -> dict[str, Any]:
    found = {name: _fingerprint(part, form) for name, part in parts.items()}
    entry: dict[str, Any] = {}
    has_names = any(not name.isdecimal() for name in parts)
    in_order = sorted(parts) if has_names else list(parts)  # those with names may come in any order
    if form == FORM:
        wholly = [
            number_of(repr((name if has_names else "", found[name], functions(parts[name])))) for name in in_order
        ]
        entry = {IN_ORDER: number_of(wholly), IN_ANY_ORDER: number_of(sorted(wholly))}
    if sum(map(_num_entries, found.values())) <= MOST_ENTRIES:
        return entry | {"parts": found}
    digests = {name: _digest(entries) for name, entries in found.items()}
    return entry | {"parts": digests if len(digests) <= MOST_PARTS else {"all": number_of(repr(digests))}}


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
    form = saved.get("form") if isinstance(saved, dict) else None
    if form not in (None, FORM):
        raise StateError(f"The state describes its pipeline in form {form!r}, which this version does not know.")
    entries = {key: entry for key, entry in saved.items() if key != "form"} if form else saved
    return _differences(op, entries, position, form or 1)


def _differences(op: Op, saved: Any, position: Any, form: int) -> list[str]:
    num_open, base, position = _open(op, position)
    own, theirs = _entries(_fingerprint(op, form)), _entries(saved)
    if isinstance(base, GlobalBatch):  # with one number for all lanes, everything before it must be as it was
        own, theirs = (entries[: _place_of(base.name, entries) + 1] for entries in (own, theirs))
        return _all_differences(own, theirs)
    parts = base.named_parts()
    if parts is not None and base.is_stream and not num_open:
        return _differences_of_parts(base, parts, own, theirs, position, form)
    if not op.is_stream:
        counted, counted_there = len(own), len(theirs)
    else:
        counted, counted_there = (max(len(_of_source(entries)), num_open) for entries in (own, theirs))
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
                num_open = len(_fingerprint(op, 1))
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


def _of_source(entries: Ordered) -> Ordered:
    """The entries that decide what an index means, or the place of a user-defined stream."""
    return _of_indices(entries) or [entry for entry in entries[:1] if entry[0] == "user_dataset"]


def _difference(saved: Any, own: Any) -> Iterator[str]:
    if saved is None or own is None or saved[0] != own[0]:
        left, right = ("nothing" if each is None else f"`{each[0]}`" for each in (saved, own))
        yield f"{left} → {right}"
        return
    (name, theirs), (_, mine) = saved, own
    if _is_reordered(theirs, mine):
        yield f"{name}: the same parts in another order"
        return
    for key in dict.fromkeys((*theirs, *mine)):
        left, right = theirs.get(key), mine.get(key)
        if left == right or not _decides(key, theirs, mine):
            continue
        if key in _OF_FILES:
            yield f"{name}: {_OF_FILES[key]}"
        elif key.endswith((" name", " code")):
            yield f"{name}: another {key.partition(' ')[0]}"
        elif isinstance(left, dict) and isinstance(right, dict):
            yield from _difference_of_dicts(f"{name}, part", left, right)
        else:
            yield f"{name} {key} {_shown(left)} → {_shown(right)}"


_OF_FILES = {
    "files": "other files, or in another order",
    "sizes": "files of the same names, with other sizes",
    "contents": "files of the same names and sizes, with other bytes",
}


def _is_reordered(saved: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether an operation has the same parts in another order."""
    return (
        IN_ORDER in saved
        and saved[IN_ORDER] != own.get(IN_ORDER)
        and saved.get(IN_ANY_ORDER) == own.get(IN_ANY_ORDER)
        and isinstance(own["parts"], dict)
    )


def _decides(key: str, saved: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether a number that differs means another order.

    A function of another name may be the same, and one of other code may do the same; with the same code, whatever it
    depends on counts. Files that cannot be read have no sizes.
    """
    if key in (IN_ORDER, IN_ANY_ORDER):
        return False
    if key in ("sizes", "contents"):
        return key in saved and key in own and saved.get("files") == own.get("files")
    argument, sign, _ = key.partition("." if "." in key else " ")
    code = f"{argument} code"
    if key == code:
        return code not in saved or code not in own
    if key == f"{argument} name":
        return code in saved and code in own and saved[code] != own[code]
    return not sign or saved.get(code) == own.get(code)


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


def _differences_of_parts(
    op: Op, parts: dict[str, Op], own: Ordered, theirs: Ordered, position: Any, form: int
) -> list[str]:
    """Differences between the parts of several streams: parts may come and go, but those that stay must be the same."""
    if not theirs or theirs[0][0] != own[0][0]:
        return []
    if _is_reordered(theirs[0][1], own[0][1]):
        return [f"{own[0][0]}: the same parts in another order"]
    saved, mine, positions = theirs[0][1].get("parts"), own[0][1]["parts"], op.part_positions(position[-1])
    found = []
    if not isinstance(saved, dict):
        return found
    for name in mine:
        if name not in saved:
            continue
        if isinstance(saved[name], dict) and isinstance(mine[name], dict):
            inner = positions.get(name)
            opened = inner is not None
            texts = _differences(parts[name], saved[name], inner, form) if opened else _unopened(mine, saved, name)
            found += [f"part {name!r}: {text}" for text in texts]
        elif _digest(saved[name]) != _digest(mine[name]):
            found.append("the parts" if name == "all" else f"part {name!r}")
    return found


def _unopened(mine: dict[str, Any], saved: dict[str, Any], name: str) -> list[str]:
    pairs = zip_longest(_of_source(_entries(saved[name])), _of_source(_entries(mine[name])))
    return [text for left, right in pairs for text in _difference(left, right)]


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


# ----------------------------------------------------------------------------------------------- hosts


def of_all_hosts(op: Op) -> Any:
    """What must be the same in all processes of a program: all that decides the rows of global batches, or what comes
    before a shard; `None` if each process may have its own data.
    """
    entries = [(name, _same_entry(entry)) for name, entry in _entries(_fingerprint(op, FORM))]
    paths = [values.paths_of(getattr(each, "source", None)) for each in parents_first(op, lambda _: True)]
    names = [os.path.basename(path) for some in paths for path in some]
    told: dict[str, Any] = {"files": names if len(names) <= MOST_NAMES else []}
    if has_rows(op):
        return told | {"entries": entries}
    shard = next((i for i, (name, entry) in enumerate(entries) if name == "slice" and entry["step"] > 1), None)
    if shard is None:
        return None
    slice_ = entries[shard][1]
    return told | {"entries": entries[:shard], "shard": slice_["start"], "num_shards": slice_["step"]}


def _same_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without functions, which may depend on the process."""
    of_function = lambda key: "." in key or key.endswith((" name", " code")) or key in (IN_ORDER, IN_ANY_ORDER)  # noqa: E731
    kept = {key: value for key, value in entry.items() if not of_function(key)}
    parts = kept.get("parts", {})
    each = {
        part: {k: _same_entry(v) for k, v in inner.items()} if isinstance(inner, dict) else inner
        for part, inner in parts.items()
    }
    return kept | ({"parts": each} if parts else {})


def difference_between(said: dict[int, Any]) -> str | None:
    """How the data of a process differs from that of most; `None` if it does not."""
    if len(said) < 2 or any(each is None for each in said.values()):
        return None
    shards = [each.get("shard") for each in said.values()]
    if shards[0] is not None:
        counts = {each.get("num_shards") for each in said.values()}
        if None in shards or counts != {len(said)} or len(set(shards)) < len(said):
            return None  # not the shards of these processes
    texts = {i: repr(each["entries"]) for i, each in said.items()}
    usual = max(texts.values(), key=list(texts.values()).count)
    first = next(i for i in said if texts[i] == usual)
    odd = next((i for i in said if texts[i] != usual), None)
    if odd is None:
        return None
    most, other = (said[i] for i in (first, odd))
    found = _all_differences([tuple(each) for each in other["entries"]], [tuple(each) for each in most["entries"]])
    lost, new = ([name for name in one if name not in two] for one, two in _pairs(most["files"], other["files"]))
    found += [f"process {odd} does not see {', '.join(lost[:MOST_SHOWN])}"] if lost else []
    found += [f"only process {odd} sees {', '.join(new[:MOST_SHOWN])}"] if new else []
    return f"{'; '.join(found)} (process {first} → process {odd})"


def _pairs(one: list[str], other: list[str]) -> list[tuple[list[str], list[str]]]:
    return [(one, other), (other, one)] if one and other else [([], [])] * 2


# ------------------------------------------------------------------------------------------- functions


def functions(op: Op) -> dict[str, int]:
    """A checksum of the code of each function in a pipeline, and of each value that it depends on.

    Elements in memory count as what a source depends on, and the functions of parts are among these.
    """
    found = _functions(op)
    codes = {name: number for name, number in found.items() if VALUE not in name}
    if len(codes) > MOST_FUNCTIONS:
        found = {"0 all functions": number_of(repr(codes)), f"0 all functions{VALUE}values": number_of(repr(found))}
    elif len(found) - len(codes) > MOST_VALUES:
        inner = {name: [found[key] for key in found if key.startswith(name + VALUE)] for name in codes}
        found = codes | {f"{name}{VALUE}values": number_of(each) for name, each in inner.items() if each}
    return {"python": sys.hexversion >> 16, **found}  # each version compiles to other byte code


VALUE = ": "  # between a function and what it depends on


def _functions(op: Op) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, each in enumerate(_chain(op)):
        for function, given in _given(each).values():
            if function is not None and (callable(function) or given):
                name = f"{i} {values.name_of(function)}"
                code = values.code_of(function)
                found[name] = 0 if code is None else zlib.crc32(bytes_of_code(code)) % (1 << 31)
                found |= {f"{name}{VALUE}{key}": values.number(value) for key, value in given.items()}
        for part, inner in (each.named_parts() or {}).items():
            found |= {f"{i}/{part}/{name}": number for name, number in _functions(inner).items()}
    return found


def changed_functions(op: Op, saved: Any, *, form: Any = None) -> list[str]:
    """The functions of a pipeline that have changed since a state was saved, each with what has changed."""
    if not isinstance(saved, dict):
        return []
    own = functions(op)
    if form != FORM and not any(VALUE in name for name in saved) and _codes(own) != _codes(saved):
        own = _functions_before(op)
    if saved.get("python") != own["python"]:
        return []
    if _codes(own) != _codes(saved):
        return _replaced(_codes(own) - _codes(saved), _codes(saved) - _codes(own)) if form == FORM else []
    changed: dict[str, list[str]] = {}
    for key in own:
        if key in saved and own[key] != saved[key]:
            name, _, value = key.partition(VALUE)
            changed.setdefault(name, []).append(value or "its code")
    return [f"{_without_number(name)} ({', '.join(what)})" for name, what in changed.items()]


def _replaced(own: set[str], saved: set[str]) -> list[str]:
    """The functions that stand in place of others; none if operations were added or removed, which the user knows."""
    here, there = ({_place_in_pipeline(name): name for name in names} for names in (own, saved))
    if here.keys() != there.keys() or len(here) < max(len(own), len(saved)):
        return []
    return [f"{_without_number(name)} (it was {_without_number(there[place])})" for place, name in here.items()]


def _place_in_pipeline(name: str) -> str:
    parts, _, last = name.rpartition("/")
    return f"{parts}/{last.partition(' ')[0]}"


def _codes(numbers: dict[str, int]) -> set[str]:
    return {name for name in numbers if VALUE not in name}


def _without_number(name: str) -> str:
    *parts, last = name.split("/")
    where = "".join(f" of part {part!r}" for part in parts[1::2])
    return last.partition(" ")[2] + where


def _functions_before(op: Op) -> dict[str, int]:
    """The checksums as older states have them: only code, and not that of parts."""
    named: dict[str, int] = {"python": sys.hexversion >> 16}
    for i, each in enumerate(_chain(op)):
        function = next(filter(None, (getattr(each, name, None) for name in ("transform", "size", "weigh_by"))), None)
        if callable(function):
            code = values.code_of(function)
            number = 0 if code is None else zlib.crc32(bytes_of_code(code)) % (1 << 31)
            named[f"{i} {describe(function).split(' at ')[0]}"] = number
    if len(named) <= MOST_FUNCTIONS:
        return named
    return {"python": named["python"], "all functions": number_of(repr(named))}


_FUNCTIONS = ("transform", "size", "weigh_by", "batch_fn", "length_fn", "selection_map")  # arguments of operations


def bytes_of_code(code: types.CodeType) -> bytes:
    """What a function does, whatever file and line it is in."""
    return b"\0".join([code.co_code, *map(_bytes_of_constant, code.co_consts), repr(code.co_names).encode()])


def _bytes_of_constant(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return bytes_of_code(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
