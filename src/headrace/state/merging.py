"""States of all processes as one: each process has only the lanes that it computes."""

import json
import sys
from collections.abc import Iterable
from typing import Any

from headrace.errors import StateError, translate_full_disk
from headrace.state import positions
from headrace.state.positions import Json, check_checksum, with_checksum

LANES = "lanes"


def merge(states: Iterable[Any]) -> Json:
    """The states of all processes at one step as one, which any number of processes can restore.

    >>> from headrace import MapDataset
    >>> from headrace.sharding import ShardOptions
    >>> ds = MapDataset.range(20).repeat().to_iter_dataset(num_lanes=2)
    >>> states = [iter(ds.global_batch(4, ShardOptions(i, 2))).get_state() for i in range(2)]
    >>> merge(states)["0 global_batch"]
    {'num_lanes': 2, 'batch_size': 4, 'step': 0, 'lanes': {'0': {'next_index': 0}, '1': {'next_index': 0}}}

    Args:
        states: What `get_state()` or `state_as_array()` returned in each process, in any order.
    """
    given = [states] if isinstance(states, dict) else list(states)
    if not given or given[0] is states:
        raise StateError(f"`merge` takes the states of all processes as a list; got {type(states).__name__}.")
    found = [json.loads(positions.unpack(state)) if positions.is_array(state) else state for state in given]
    for i, state in enumerate(found):
        if not isinstance(state, dict):
            raise StateError(f"A state is a dict, as `get_state()` returns it; state {i} is {type(state).__name__}.")
        check_checksum(state)
    merged = {name: value for name, value in found[0].items() if name != "checksum"}
    for i, state in enumerate(found[1:], 1):
        bare = {name: value for name, value in state.items() if name != "checksum"}
        merged = _merge_values(merged, bare | {"functions": merged.get("functions")}, f"state 0 and state {i}", "")
    return with_checksum(merged) if "checksum" in found[0] else merged


def _merge_values(one: Any, other: Any, which: str, where: str) -> Any:
    """Two states of the same step as one: of their lanes they have all, and everything else must be the same."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [_merge_values(*pair, which, f"{where} {i}") for i, pair in enumerate(zip(one, other, strict=True))]
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other:
            raise StateError(
                f"The states are from different steps: {where.strip()} is {one} and {other} ({which}). Merge "
                "the states of one checkpoint."
            )
        return one
    if one.keys() != other.keys():
        name = sorted(map(str, one.keys() ^ other.keys()))[0]
        raise StateError(
            f"The states are from different pipelines: only one has {name!r} ({which}). Merge the states "
            "of one checkpoint."
        )
    has_lanes = "num_lanes" in one and isinstance(one.get(LANES), dict)
    return {
        name: (_lanes if has_lanes and name == LANES else _merge_values)(
            one[name], other[name], which, f"{where} {name}"
        )
        for name in one
    }


def _lanes(one: Json, other: Json, which: str, where: str) -> Json:
    both = {lane: _merge_values(one[lane], other[lane], which, f"{where} {lane}") for lane in one.keys() & other.keys()}
    return {lane: both.get(lane, one.get(lane, other.get(lane))) for lane in sorted({*one, *other}, key=int)}


# ----------------------------------------------------------------------------------------------------------- files
# States in files: one JSON file for each process of a distributed program.


State = dict[str, Any] | bytes


def file_name() -> str:
    """The file of this process."""
    jax = sys.modules.get("jax")  # a program of several JAX processes has imported it
    index, count = (jax.process_index(), jax.process_count()) if jax is not None else (0, 1)
    return f"process_{index}-of-{count}.json"


def dump(state: State) -> str:
    """A state as text."""
    if isinstance(state, bytes):
        return state.decode()
    try:
        return json.dumps(state, indent=4)
    except TypeError as e:
        raise StateError(f"This state cannot be saved, since it is not JSON ({e}): {state!r}.") from e


def write(directory: Any, text: str) -> None:
    """Writes a state to this process's file in a folder."""
    path = directory / file_name()
    with translate_full_disk(str(path), "Make room, and save the state again."):
        path.write_text(text)


def restore(iterator: Any, directory: Any) -> None:
    """Restores an iterator from the states in a folder.

    That is this process's own, unless the iterator's elements are rows of global batches: these may resume with another
    number of processes, or with other rows in each, and then need the states of all.
    """
    own = directory / file_name()
    if getattr(iterator, "_state_is_global", False) or not own.exists():
        iterator.set_state(_of_all(directory, own, is_global=getattr(iterator, "_state_is_global", False)))
        return
    text = own.read_text()
    iterator.set_state(text.encode() if isinstance(iterator.get_state(), bytes) else json.loads(text))


def _of_all(directory: Any, own: Any, *, is_global: bool) -> State:
    """The states of all processes as one."""
    found = {path.name: path for path in directory.glob("process_*.json")} if directory.exists() else {}
    if not found or not is_global:
        raise StateError(
            f"There is no state of this process at {own}; the folder has {sorted(found) or 'no states'}. Restore a "
            "checkpoint with as many processes as wrote it; to restore with another number, read rows of a "
            "`global_batch`."
        )
    if len({name.partition("-of-")[2] for name in found}) > 1:
        raise StateError(
            f"The folder {directory} has states of different numbers of processes: {sorted(found)}. "
            "Remove those of the other run."
        )
    return merge([json.loads(path.read_text()) for _, path in sorted(found.items())])
