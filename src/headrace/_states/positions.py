"""States: positions as small JSON, and back.

The state of a random-access chain is `{"next_index": n}`. Each later operation with numbers of its own adds a numbered
entry, such as `"1 random_map": {"seed": 3, "count": 7}`: the arguments that the numbers depend on, and the numbers. If
a stream begins with another operation, this has entry 0, with the states of its parts in it. Operations whose position
is their parent's add nothing. `pipeline` says what the order depends on (`fingerprint.py`), `functions` identifies the
functions, whose changes only give a warning, and `checksum` tells whether anybody has changed the state.

All leaves are ints, so hosts can gather states; names are keys. In older states, the same entries are nested, with `op`
and `parent`, and have other leaves.
"""

import json
import operator
import sys
import warnings
import zlib
from typing import Any

from headrace._ops.base import Op
from headrace._ops.buffer import ToStream
from headrace._ops.combine import Interleave, Mix, Mixing, Zip
from headrace._ops.schedule import BLOCK, LAG_UNIT, ScheduledMix, plan_number
from headrace._ops.source import UserDataset
from headrace._plan.stages import start_of
from headrace._plan.streams.combine import interleaved_part
from headrace._states import arrays
from headrace._states.fingerprint import changed_functions, differences, fingerprint, functions, ints, is_reread
from headrace.compat.grain import states
from headrace.errors import StateError, StateWarning
from headrace.packing.operations import ConcatThenSplit

Json = dict[str, Any]
BESIDE = ("pipeline", "functions", "checksum")


class Identity:
    """What states have besides the position; computed once for each iterator."""

    def __init__(self, op: Op):
        self._op = op
        self._known: Json | None = None

    def added_to(self, state: Json) -> Json:
        """A state with the identity of its pipeline."""
        if self._known is None:
            self._known = {"pipeline": fingerprint(self._op), "functions": functions(self._op)}
        # A copy, since users may change their state.
        state |= {name: json.loads(json.dumps(value)) for name, value in self._known.items()}
        return state if state.keys() <= {"next_index", *BESIDE} else state | {"checksum": _checksum(state)}


def _checksum(state: Json) -> int:
    """A checksum of a state's position; floats count with 5 digits, since hosts may round them."""
    plain = {name: value for name, value in state.items() if name not in BESIDE}
    text = json.dumps(_rounded(plain), sort_keys=True, default=lambda value: type(value).__name__)
    return zlib.crc32(text.encode()) % (1 << 31)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if getattr(value, "shape", None) == ():
        value = value.item()
    return f"{value:.5g}" if isinstance(value, float) else value


def restore(op: Op, state: Any, *, strict: bool = True) -> Any:
    """The position in a state of this pipeline; without `strict`, differences only give warnings."""
    if arrays.is_array(state):
        state = json.loads(arrays.unpacked(state))
    _check_dict(state)
    bare = {name: value for name, value in state.items() if name not in BESIDE}
    try:
        if _is_foreign(bare):
            bare = states.translated(op, bare)
        if "checksum" in state and _checksum(state) != state["checksum"]:
            _refuse("The state was changed since `get_state()` returned it: its checksum differs", strict=strict)
        position = decode(op, bare)
        found = differences(op, state["pipeline"], position) if "pipeline" in state else []
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        if isinstance(e, StateError):
            raise
        what = f"{type(e).__name__}: {e!s:.100}"
        raise StateError(f"The state is damaged, or not of this pipeline ({what}): {sorted(map(str, bare))}.") from e
    if found:
        text = "The state was saved with another pipeline, so going on would lose or repeat elements: "
        _refuse(f"{text}{'; '.join(found)} (saved → here)", strict=strict)
    changed = changed_functions(op, state.get("functions"))
    if changed:
        _warn(f"Functions have changed since the state was saved: {', '.join(changed)}.")
    return position


def _refuse(text: str, *, strict: bool) -> None:
    if strict:
        raise StateError(f"{text}. Make the pipeline as it was, or give strict=False to go on anyway.")
    _warn(f"{text}.")


def _warn(text: str) -> None:
    warnings.warn(text, StateWarning, stacklevel=5)


# ------------------------------------------------------------------------------------------------- positions


def encode(op: Op, position: Any) -> Json:
    """A position as JSON."""
    if position is None:
        position = start_of(op)
    entries: list[tuple[str, Json]] = []  # the last operation first
    while op.before is not None:
        if op.state_fields is not None:
            entries.append((op.name, _encode_own(op, position)))
            position = position[-1]
        op = op.before
    state = {"next_index": position} if isinstance(op, ToStream) else {f"0 {op.name}": _encode_base(op, position)}
    return state | {f"{i} {name}": fields for i, (name, fields) in enumerate(reversed(entries), 1)}


def _encode_own(op: Op, position: Any) -> Json:
    """The arguments and the numbers of an operation."""
    assert op.state_fields is not None
    fields = {name: ints(getattr(op, name)) for name in op.state_params}
    fields |= {name: _plain(value) for name, value in zip(op.state_fields, position, strict=False)}
    if isinstance(op, ConcatThenSplit) and fields["tokens_taken"] == 0:
        fields["tokens_taken"] = [0] * len(op.layout().leaves)
    return fields


def _encode_base(op: Op, position: Any) -> Json:
    if isinstance(op, UserDataset):
        state, replay = position
        return {"replay": replay} if state is None else {"state": state, "replay": replay}
    if isinstance(op, ScheduledMix):
        count, lags, plan, _ = position
        fields = {"count": count, "lags": [round(lag / LAG_UNIT) for lag in lags], "plan": plan}
    else:
        fields = _encode_own(op, position)
    if isinstance(op, Interleave):
        return fields | {"open": [_encode_slot(op, slot) for slot in position[-1]]}
    if isinstance(op, Mix):
        fields |= {"weights": ints(op.proportions)}
    parts = [encode(part, at) for part, at in zip(op.parents, position[-1], strict=True)]
    names = op.names if isinstance(op, Mixing) else None
    return fields | {"parents": dict(zip(names, parts, strict=True)) if names else parts}


def decode(op: Op, state: Any, *, reread: bool = False) -> Any:
    """The position in a state of this pipeline.

    With `reread`, operations after it compute some outputs from this position again that were handed over before.
    """
    _check_dict(state)
    entries = _entries(state)
    levels: list[tuple[Any, ...]] = []
    while op.before is not None:
        if op.state_fields is not None:
            name, fields = entries.pop() if len(entries) > 1 else entries[0]
            _check(op, name, fields)
            levels.append(_numbers(op, fields))
            reread = reread or is_reread(op, levels[-1])
        op = op.before
    name, fields = entries.pop()
    if entries and name == op.name:
        raise StateError(f"The state has `{name}` after {op.label()}, which the stream begins with.")
    position = _decode_base(op, name, fields, reread=reread)
    for numbers in reversed(levels):
        position = (*numbers, position)
    return position


def _is_foreign(state: Json) -> bool:
    """Whether a state has none of the forms that Headrace writes."""
    return "op" not in state and "next_index" not in state and not any(map(_is_entry, state))


def _is_entry(key: Any) -> bool:
    return isinstance(key, str) and key.split(" ")[0].isdecimal() and " " in key


def _entries(state: Json) -> list[tuple[Any, Json]]:
    """The entries of the operation that the stream begins with, and of those after it that have numbers."""
    if "op" in state:  # an older state
        entries = []
        while isinstance(state, dict) and "parent" in state:
            entries.append((state.get("op"), state))
            state = state["parent"]
        _check_dict(state)
        return [*entries, (state.get("op", "to_iter_dataset" if "next_index" in state else None), state)][::-1]
    numbered = sorted((int(key.split(" ")[0]), key.split(" ", 1)[1], key) for key in state if _is_entry(key))
    entries: list[tuple[Any, Json]] = [(name, state[key]) for _, name, key in numbered]
    others = {key: value for key, value in state.items() if not _is_entry(key)}
    if others or not entries:
        entries.insert(0, ("to_iter_dataset" if "next_index" in others else None, others))
    return entries


def _decode_base(op: Op, name: Any, fields: Any, *, reread: bool) -> Any:
    if isinstance(op, ToStream):
        return _decode_index(op, name, fields)
    _check(op, name, fields)
    if isinstance(op, UserDataset):
        return _with_ints(fields.get("state")), _count(op, "replay", fields["replay"])
    numbers = _numbers(op, fields)
    if isinstance(op, Interleave):
        if len(fields["open"]) != op.cycle_length:
            raise StateError(f"The state has {len(fields['open'])} datasets open; {op.label()} has {op.cycle_length}.")
        slots = tuple(_decode_slot(op, slot, reread=reread) for slot in fields["open"])
        if fields["next_dataset"] > op.num_datasets:
            raise StateError(
                f"The state goes on with dataset {fields['next_dataset']}; {op.label()} has {op.num_datasets}."
            )
        return (*numbers, slots)
    if isinstance(op, Mixing):
        return (*numbers, _decode_mixed(op, fields, reread=reread))
    if len(fields["parents"]) != len(op.parents):
        raise StateError(f"The state zips {len(fields['parents'])} datasets; {op.label()} has {len(op.parents)}.")
    pairs = zip(op.parents, fields["parents"], strict=True)
    return (*numbers, tuple(decode(part, inner, reread=reread) for part, inner in pairs))


def _numbers(op: Op, fields: Json) -> tuple[Any, ...]:
    """The operation's numbers in a state."""
    assert op.state_fields is not None
    if isinstance(op, ScheduledMix):
        lags = tuple(lag if isinstance(lag, float) else operator.index(lag) * LAG_UNIT for lag in fields["lags"])
        plan = plan_number(fields["plan"]) if isinstance(fields["plan"], str) else fields["plan"]
        return _count(op, "count", fields["count"]), lags, _count(op, "plan", plan)
    return tuple(_counts(op, name, fields[name]) for name in op.state_fields)


def _counts(op: Op, name: str, value: Any) -> Any:
    """A field of a state with a count, or with a count for each feature."""
    if name == "tokens_taken" and isinstance(value, list | tuple) and isinstance(op, ConcatThenSplit):
        counts = [_count(op, name, each) for each in value]
        if len(counts) != len(op.layout().leaves):
            raise StateError(f"The state of {op.label()} has {name} for {len(counts)} features.")
        return counts if any(counts) else 0
    return _count(op, name, value)


def _count(op: Op, name: str, value: Any) -> int:
    """A field of a state with a count."""
    count = _int(value)
    if count is None or not 0 <= count <= sys.maxsize:
        raise StateError(f"The state of {op.label()} has {name}={value!r:.100}, which must be a count of 0 or more.")
    most = _MOST.get((op.name, name))
    if most is not None and count > (most := getattr(op, most)):
        raise StateError(f"The state of {op.label()} has {name}={count}, and {most} is the most that there can be.")
    return count


def _int(value: Any) -> int | None:
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


_MOST = {
    ("interleave", "slot"): "last_slot",
    ("window_shuffle", "taken_of_group"): "window_size",
    ("take", "taken"): "count",
    ("first_fit_pack", "taken_of_group"): "num_packing_bins",
    ("best_fit_pack", "taken_of_group"): "num_packing_bins",
}
"""Fields that an argument of their operation limits."""


def _decode_index(op: ToStream, name: Any, fields: Any) -> int:
    index = _int(fields.get("next_index")) if isinstance(fields, dict) else None
    if name != op.name or set(fields) != {"next_index"} or index is None:
        found = f"is of `{name}`" if name not in (None, op.name) else f"has the fields {sorted(map(str, fields))}"
        raise StateError(
            f"This is the state of another pipeline: it {found}, but states of {op.label()} have the form "
            "{'next_index': n}."
        )
    if not 0 <= index <= op.parent.length():
        raise StateError(
            f"The state says next_index={index}, and the dataset has {op.parent.length()} elements: its source or "
            "the operations before `to_iter_dataset()` have changed since the state was saved."
        )
    return index


def _check_dict(state: Any) -> None:
    if not isinstance(state, dict):
        raise StateError(f"A state is a dict, as `get_state()` returns it; got {type(state).__name__}: {state!r:.200}.")


def _check(op: Op, found: Any, fields: Any) -> None:
    """Raises unless an entry belongs to this operation with these arguments."""
    _check_dict(fields)
    if found != op.name:
        raise StateError(
            f"This is the state of another pipeline: it has `{found}` where the pipeline has {op.label()} "
            f"(pipeline at {op.site})."
        )
    for name in op.state_params:
        here, saved = getattr(op, name), fields.get(name)
        if saved != ints(here) and ints(saved) != ints(here):
            raise StateError(
                f"This is the state of another pipeline: it was saved with {name}={saved!r}, and "
                f"{op.label()} (pipeline at {op.site}) has {name}={here!r}."
            )
    assert op.state_fields is not None
    for name in (*(("replay",) if isinstance(op, UserDataset) else op.state_fields), *_part_fields(op)):
        if name not in fields:
            raise StateError(f"The state of {op.label()} lacks its field {name!r}; it has {sorted(map(str, fields))}.")


def _part_fields(op: Op) -> tuple[str, ...]:
    """The field of an entry with the states of several parts."""
    return ("open",) if isinstance(op, Interleave) else ("parents",) if isinstance(op, Mixing | Zip) else ()


def _decode_mixed(op: Mixing, fields: Json, *, reread: bool) -> tuple[Any, ...]:
    """The positions of the parts: new ones start at their beginning, those that are gone are left out."""
    parents: Any = fields["parents"]
    known = list(parents) if isinstance(parents, dict) else len(parents)
    same_parts = known == (list(op.names) if op.names else len(op.parts))
    if isinstance(op, ScheduledMix):
        _check_schedule(op, fields, known, same_parts=same_parts)
    elif reread and not (same_parts and _same_weights(op, fields.get("weights"))):
        raise StateError(
            f"The parts or weights of {op.label()} (pipeline at {op.site}) are not those of the state, and an "
            "operation after it is in the middle of a window or batch of them. Change them at a state where none is "
            "open, or put that operation before the mix."
        )
    if isinstance(parents, dict) != (op.names is not None):
        kinds = ("named", "numbered") if isinstance(parents, dict) else ("numbered", "named")
        raise StateError(f"The state mixes {kinds[0]} datasets, and {op.label()} has {kinds[1]} ones.")
    if op.names is None:
        parents = dict(enumerate(parents))
    names = op.names or range(len(op.parts))
    return tuple(
        decode(part, parents[name], reread=reread) if name in parents else None
        for part, name in zip(op.parts, names, strict=True)
    )


def _same_weights(op: Any, saved: Any) -> bool:
    """Whether a state has the weights of a mix: as proportions, or in older states as users gave them."""
    return saved in (ints(op.proportions), _plain(op.weights))


def _check_schedule(op: ScheduledMix, fields: Json, known: Any, *, same_parts: bool) -> None:
    """Raises unless the state's block was planned from the same weights."""
    if not same_parts:
        raise StateError(f"The state mixes the parts {known}, and {op.label()} has {op.names or len(op.parts)}.")
    count, lags, plan = _numbers(op, fields)
    first = count // BLOCK * BLOCK
    if plan and op.planned(first // BLOCK, lags).digest != plan:
        raise StateError(
            f"The schedule of {op.label()} (pipeline at {op.site}) is not that of the state, which has planned from "
            f"element {first} on. Give it the same weights there; they may differ after element {first + 2 * BLOCK}."
        )


NOT_OPEN = {"dataset": -1}


def _encode_slot(op: Interleave, slot: Any) -> Json:
    if slot is None:
        return dict(NOT_OPEN)
    number, position = slot
    return {"dataset": number, "state": encode(interleaved_part(op, number), position)}


def _decode_slot(op: Interleave, slot: Any, *, reread: bool) -> Any:
    if slot is None or slot == NOT_OPEN:
        return None
    number = _count(op, "dataset", slot["dataset"])
    if number >= op.num_datasets:
        raise StateError(
            f"The state has dataset {number} open, and {op.label()} (pipeline at {op.site}) has "
            f"{op.num_datasets} datasets."
        )
    return number, decode(interleaved_part(op, number), slot["state"], reread=reread)


def _with_ints(state: Any) -> Any:
    """The state of a user's iterator with plain ints, as it was before hosts gathered it."""
    if isinstance(state, dict):
        return {name: _with_ints(value) for name, value in state.items()}
    if isinstance(state, list):
        return [_with_ints(value) for value in state]
    is_gathered = getattr(state, "shape", None) == () and state.dtype.kind in "iu"
    return int(state) if is_gathered else state


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
