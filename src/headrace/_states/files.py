"""States in files: one JSON file for each process of a distributed program."""

import json
import sys
from typing import Any

from headrace._states.merging import merge
from headrace.errors import StateError, full_disk_named

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
    with full_disk_named(str(path), "Make room, and save the state again."):
        path.write_text(text)


def restore(iterator: Any, directory: Any) -> None:
    """Restores an iterator from the states in a folder.

    That is this process's own, unless the iterator's elements are rows of global batches: these may go on with another
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
        raise StateError(f"The folder {directory} has states of different numbers of processes: {sorted(found)}.")
    return merge([json.loads(path.read_text()) for _, path in sorted(found.items())])
