"""States: positions as small JSON, and back.

A random-access chain's state is `{"next_index": n}`. Any other names its operation, the arguments that its
numbers depend on, the numbers, and the states of its parents. Operations whose position is their parent's
leave no trace there. `pipeline` beside it says what the order depends on (`_fingerprint.py`), `functions` what is only
warned of, and `checksum` tells whether the state is as it was given out.
"""

import json
import sys
import warnings
import zlib
from typing import Any

import numpy as np

from headrace._fingerprint import REREAD, changed_functions, differences, fingerprint, functions
from headrace._ops.base import Op
from headrace._ops.buffer import ToStream
from headrace._ops.combine import Interleave, Mix, Mixing, Zip
from headrace._ops.schedule import BLOCK, ScheduledMix
from headrace._ops.source import UserDataset
from headrace._plan.streams.combine import interleaved_part
from headrace.errors import StateError, StateWarning

Json = dict[str, Any]
BESIDE = ("pipeline", "functions", "checksum")


class Identity:
    """What states of a pipeline carry beside the position; worked out once."""

    def __init__(self, op: Op):
        self._op = op
        self._known: Json | None = None

    def added_to(self, state: Json) -> Json:
        """A state with what it belongs to."""
        if self._known is None:
            self._known = {"pipeline": fingerprint(self._op), "functions": functions(self._op)}
        # Copied, since a state is the user's to change.
        state |= {name: json.loads(json.dumps(value)) for name, value in self._known.items()}
        return state | {"checksum": _checksum(state)} if "op" in state else state


def _checksum(state: Json) -> int:
    """A number for all that is in a state but what stands beside it; floats to some digits, as hosts may round them."""
    plain = {name: value for name, value in state.items() if name not in BESIDE}
    text = json.dumps(_rounded(plain), sort_keys=True, default=lambda value: type(value).__name__)
    return zlib.crc32(text.encode()) % (1 << 31)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return f"{value:.5g}" if isinstance(value, float) else value


def restore(op: Op, state: Any, *, strict: bool = True) -> Any:
    """The position that a state of this pipeline stands for; not `strict`, differences are warned of."""
    if not isinstance(state, dict):
        raise StateError(f"A state is a dict as `get_state()` returns it; got {type(state).__name__}: {state!r:.200}.")
    bare = {name: value for name, value in state.items() if name not in BESIDE}
    try:
        if "checksum" in state and _checksum(state) != state["checksum"]:
            _refuse(
                "The state is not as `get_state()` gave it out, by its checksum: it was changed since", strict=strict
            )
        position = decode(op, bare)
        found = differences(op, state["pipeline"], bare) if "pipeline" in state else []
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        if isinstance(e, StateError):
            raise
        what = f"{type(e).__name__}: {e!s:.100}"
        raise StateError(f"The state is damaged, or not of this pipeline ({what}): {sorted(map(str, bare))}.") from e
    if found:
        text = "The state was saved with another pipeline, and going on would lose or repeat elements: "
        _refuse(f"{text}{'; '.join(found)} (saved → here)", strict=strict)
    changed = changed_functions(op, state.get("functions"))
    if changed:
        _warn(f"Functions are not what they were when the state was saved: {', '.join(changed)}.")
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
    levels: list[Json] = []  # from the last operation on, each with the state of its parent to be put in
    while not isinstance(op, ToStream | UserDataset | Interleave | Mixing | Zip):
        if op.state_fields is not None:
            levels.append(_encode_own(op, position))
            position = position[-1]
        op = op.parents[0]
    state = _encode_base(op, position)
    for level in reversed(levels):
        state = level | {"parent": state}
    return state


def _encode_own(op: Op, position: Any) -> Json:
    assert op.state_fields is not None
    state = {"op": op.name} | {name: _plain(getattr(op, name)) for name in op.state_params}
    return state | dict(zip(op.state_fields, map(_plain, position), strict=False))


def _encode_base(op: Op, position: Any) -> Json:
    if isinstance(op, ToStream):
        return {"next_index": position}
    state = _encode_own(op, position)
    if isinstance(op, UserDataset):
        return state
    if isinstance(op, Interleave):
        return state | {"open": [_encode_slot(op, slot) for slot in position[-1]]}
    if isinstance(op, Mix):
        state |= {"weights": _plain(op.weights)}
    parts = [encode(part, at) for part, at in zip(op.parents, position[-1], strict=True)]
    names = op.names if isinstance(op, Mixing) else None
    return state | {"parents": dict(zip(names, parts, strict=True)) if names else parts}


def decode(op: Op, state: Any, *, reread: bool = False) -> Any:
    """The position that a state of this pipeline stands for; `None` is the start.

    With `reread`, some of what comes from this position has been handed over already and is made once more.
    """
    levels: list[tuple[Any, ...]] = []
    while not isinstance(op, ToStream | UserDataset | Interleave | Mixing | Zip):
        if op.state_fields is not None:
            _check(op, state)
            levels.append(_numbers(op, state))
            reread = reread or any(state.get(name) for name in REREAD)
            state = state["parent"]
        op = op.parents[0]
    position = _decode_base(op, state, reread=reread)
    for numbers in reversed(levels):
        position = (*numbers, position)
    return position


def _decode_base(op: Op, state: Any, *, reread: bool) -> Any:
    if isinstance(op, ToStream):
        return _decode_index(op, state)
    _check(op, state)
    if isinstance(op, UserDataset):
        return state["state"], _count(op, "replay", state["replay"])
    numbers = _numbers(op, state)
    if isinstance(op, Interleave):
        if len(state["open"]) != op.cycle_length:
            raise StateError(f"The state has {len(state['open'])} datasets open; {op.label()} has {op.cycle_length}.")
        slots = tuple(_decode_slot(op, slot, reread=reread) for slot in state["open"])
        if state["next_dataset"] > op.num_datasets:
            raise StateError(
                f"The state goes on with dataset {state['next_dataset']}; {op.label()} has {op.num_datasets}."
            )
        return (*numbers, slots)
    if isinstance(op, Mixing):
        return (*numbers, _decode_mixed(op, state, reread=reread))
    if len(state["parents"]) != len(op.parents):
        raise StateError(f"The state zips {len(state['parents'])} datasets; {op.label()} has {len(op.parents)}.")
    pairs = zip(op.parents, state["parents"], strict=True)
    return (*numbers, tuple(decode(part, inner, reread=reread) for part, inner in pairs))


def _numbers(op: Op, state: Json) -> tuple[Any, ...]:
    """The operation's own numbers in a state."""
    assert op.state_fields is not None
    if isinstance(op, ScheduledMix):
        return _count(op, "count", state["count"]), tuple(map(float, state["lags"])), state["plan"]
    return tuple(_counts(op, name, state[name]) for name in op.state_fields)


def _counts(op: Op, name: str, value: Any) -> Any:
    """A field of a state that counts something, or several things."""
    if name == "tokens_taken" and isinstance(value, list | tuple):
        return [_count(op, name, each) for each in value]
    return _count(op, name, value)


def _count(op: Op, name: str, value: Any) -> int:
    """A field of a state that counts something."""
    if isinstance(value, np.integer):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= sys.maxsize:
        raise StateError(f"The state of {op.label()} has {name}={value!r}, where there is a count of 0 or more.")
    most = _MOST.get((op.name, name))
    if most is not None and value > (most := getattr(op, most)):
        raise StateError(f"The state of {op.label()} has {name}={value}, and {most} is the most that there can be.")
    return value


_MOST = {
    ("interleave", "slot"): "last_slot",
    ("window_shuffle", "taken_of_group"): "window_size",
    ("take", "taken"): "count",
}
"""Fields that an argument of their operation bounds."""


def _decode_index(op: ToStream, state: Any) -> int:
    _check_dict(state)
    index = state.get("next_index")
    if isinstance(index, np.integer):
        index = int(index)
    if set(state) != {"next_index"} or not isinstance(index, int) or isinstance(index, bool):
        found = f"of `{state['op']}`" if "op" in state else f"with the fields {sorted(state)}"
        raise StateError(
            f"This is the state of another pipeline: it is {found}, where {op.label()} has a state of the form "
            "{'next_index': n}."
        )
    if not 0 <= index <= op.parent.length():
        raise StateError(
            f"The state says next_index={index}, and the dataset has {op.parent.length()} elements: its source or "
            "the operations before `to_iter_dataset()` are not those that the state was saved with."
        )
    return index


def _check_dict(state: Any) -> None:
    if not isinstance(state, dict):
        raise StateError(f"A state is a dict as `get_state()` returns it; got {type(state).__name__}: {state!r:.200}.")


def _check(op: Op, state: Any) -> None:
    """Raises unless the state is one of this operation with these arguments."""
    _check_dict(state)
    found = state.get("op", "to_iter_dataset" if "next_index" in state else None)
    if found != op.name:
        raise StateError(
            f"This is the state of another pipeline: it has `{found}` where the pipeline has {op.label()} "
            f"(pipeline at {op.site})."
        )
    for name in op.state_params:
        here = _plain(getattr(op, name))
        if state.get(name) != here:
            raise StateError(
                f"This is the state of another pipeline: it was saved with {name}={state.get(name)!r}, and "
                f"{op.label()} (pipeline at {op.site}) has {name}={here!r}."
            )
    assert op.state_fields is not None
    for name in (*op.state_fields, *_parent_fields(op)):
        if name not in state:
            raise StateError(f"The state of {op.label()} lacks its field {name!r}; it has {sorted(state)}.")


def _parent_fields(op: Op) -> tuple[str, ...]:
    """The field of a state that holds the states of the operation's parents."""
    if isinstance(op, UserDataset):
        return ()
    return ("open",) if isinstance(op, Interleave) else ("parents",) if isinstance(op, Mixing | Zip) else ("parent",)


def _decode_mixed(op: Mixing, state: Json, *, reread: bool) -> tuple[Any, ...]:
    """Parts that the state does not know start at their beginning; parts that are gone are left out."""
    parents: Any = state["parents"]
    known = list(parents) if isinstance(parents, dict) else len(parents)
    same_parts = known == (list(op.names) if op.names else len(op.parts))
    if isinstance(op, ScheduledMix):
        _check_schedule(op, state, known, same_parts=same_parts)
    elif reread and not (same_parts and state.get("weights") == _plain(op.weights)):  # type: ignore[attr-defined]
        raise StateError(
            f"The parts or weights of {op.label()} (pipeline at {op.site}) are not those of the state, and an "
            "operation after it is in the middle of a window or batch that they made. Change them at a state "
            "where none is open, or put that operation before the mix."
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


def _check_schedule(op: ScheduledMix, state: Json, known: Any, *, same_parts: bool) -> None:
    """Raises unless the block that the state is in is planned from the same weights."""
    if not same_parts:
        raise StateError(f"The state mixes the parts {known}, and {op.label()} has {op.names or len(op.parts)}.")
    first = state["count"] // BLOCK * BLOCK
    if state["plan"] and op.planned(first // BLOCK, state["lags"]).digest != state["plan"]:
        raise StateError(
            f"The schedule of {op.label()} (pipeline at {op.site}) is not that of the state, which has planned from "
            f"element {first} on. Give it the same weights there; it may differ after element {first + 2 * BLOCK}."
        )


def _encode_slot(op: Interleave, slot: Any) -> Json | None:
    if slot is None:
        return None
    number, position = slot
    return {"dataset": number, "state": encode(interleaved_part(op, number), position)}


def _decode_slot(op: Interleave, slot: Any, *, reread: bool) -> Any:
    if slot is None:
        return None
    number = _count(op, "dataset", slot["dataset"])
    if number >= op.num_datasets:
        raise StateError(
            f"The state has dataset {number} open, and {op.label()} (pipeline at {op.site}) has "
            f"{op.num_datasets} datasets."
        )
    return number, decode(interleaved_part(op, number), slot["state"], reread=reread)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
