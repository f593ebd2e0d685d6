"""States in files: one JSON file for each process of a distributed program."""

import json
import sys
from typing import Any

from headrace.errors import StateError

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
    (directory / file_name()).write_text(text)


def restore(iterator: Any, directory: Any) -> None:
    """Restores an iterator from this process's file in a folder."""
    text = _find(directory, any_process=getattr(iterator, "_state_is_global", False)).read_text()
    iterator.set_state(text.encode() if isinstance(iterator.get_state(), bytes) else json.loads(text))


def _find(directory: Any, *, any_process: bool) -> Any:
    """This process's file; if states are global, any process's file will do."""
    path = directory / file_name()
    if path.exists():
        return path
    found = sorted(directory.glob("process_*.json")) if directory.exists() else []
    if found and any_process:
        return found[0]
    raise StateError(
        f"There is no state of this process at {path}; the folder has {[p.name for p in found] or 'no states'}. "
        "Restore a checkpoint with as many processes as wrote it; for another number see `ElasticIterator`."
    )
