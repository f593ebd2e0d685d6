"""States: positions as small JSON, and back.

A random-access chain's state is `{"next_index": n}`. Any other names its operation, the arguments that its
numbers depend on, the numbers, and the states of its parents. Operations whose position is their parent's
leave no trace, so maps and batches may be changed between a save and a restore.
"""

from typing import Any

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import ToStream
from headrace._ops.combine import Interleave, Mix, Mixing, Zip
from headrace._ops.schedule import BLOCK, ScheduledMix
from headrace._ops.source import UserDataset
from headrace._plan.streams.combine import interleaved_part
from headrace.errors import StateError

Json = dict[str, Any]


def encode(op: Op, position: Any) -> Json:
    """A position as JSON."""
    if isinstance(op, ToStream):
        return {"next_index": position}
    if op.state_fields is None:
        return encode(op.parents[0], position)
    state = {"op": op.name} | {name: _plain(getattr(op, name)) for name in op.state_params}
    state |= dict(zip(op.state_fields, map(_plain, position), strict=False))
    if isinstance(op, UserDataset):
        return state
    if isinstance(op, Interleave):
        return state | {"open": [_encode_slot(op, slot) for slot in position[-1]]}
    if isinstance(op, Mix):
        state |= {"weights": _plain(op.weights)}
    if isinstance(op, Mixing | Zip):
        parts = [encode(part, at) for part, at in zip(op.parts, position[-1], strict=True)]
        names = op.names if isinstance(op, Mixing) else None
        return state | {"parents": dict(zip(names, parts, strict=True)) if names else parts}
    return state | {"parent": encode(op.parents[0], position[-1])}


def decode(op: Op, state: Any, *, reread: bool = False) -> Any:
    """The position that a state of this pipeline stands for; `None` is the start.

    With `reread`, some of what comes from this position has been handed over already and is made once more.
    """
    if op.state_fields is None and not isinstance(op, ToStream):
        return decode(op.parents[0], state, reread=reread)
    if not isinstance(state, dict):
        raise StateError(f"A state is a dict as `get_state()` returns it; got {type(state).__name__}: {state!r}.")
    if isinstance(op, ToStream):
        return _decode_index(op, state)
    _check(op, state)
    assert op.state_fields is not None
    numbers = tuple(state[name] for name in op.state_fields)
    reread = reread or any(state.get(name) for name in _REREAD)
    if isinstance(op, UserDataset):
        return numbers
    if isinstance(op, Interleave):
        return (*numbers, tuple(_decode_slot(op, slot, reread=reread) for slot in state["open"]))
    if isinstance(op, Mixing):
        return (*numbers, _decode_mixed(op, state, reread=reread))
    if isinstance(op, Zip):
        if len(state["parents"]) != len(op.parts):
            raise StateError(f"The state zips {len(state['parents'])} datasets; {op.label()} has {len(op.parts)}.")
        pairs = zip(op.parts, state["parents"], strict=True)
        return (*numbers, tuple(decode(part, inner, reread=reread) for part, inner in pairs))
    return (*numbers, decode(op.parents[0], state["parent"], reread=reread))


_REREAD = ("taken_of_group", "rows_taken", "tokens_taken", "group")
"""Fields that are not zero where a restored stream reads again what it has read before."""


def _decode_index(op: ToStream, state: Json) -> int:
    index = state.get("next_index")
    if isinstance(index, np.integer):
        index = int(index)
    if set(state) != {"next_index"} or not isinstance(index, int):
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


def _check(op: Op, state: Json) -> None:
    """Raises unless the state is one of this operation with these arguments."""
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
    if slot["dataset"] >= op.num_datasets:
        raise StateError(
            f"The state has dataset {slot['dataset']} open, and {op.label()} (pipeline at {op.site}) has "
            f"{op.num_datasets} datasets."
        )
    return slot["dataset"], decode(interleaved_part(op, slot["dataset"]), slot["state"], reread=reread)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
