"""States of a `DataLoader`: bytes that say which loader they belong to and where it was.

States that Grain wrote are read as well, where its stream and this one go on with the same records.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace._loader_chain import ELEMENTWISE, Order, identity
from headrace.errors import StateError

FORMAT = "headrace.DataLoader/1"
LONGEST = 200
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes)


@dataclass(frozen=True)
class Identity:
    """What a state must agree on with the loader that it is given to."""

    sampler: str
    data_source: str
    shard_options: str
    operations: str


class Loader(Protocol):
    """What is asked of a loader to read a state."""

    order: Order
    source: Any
    operations: list[Any]
    identity: Identity


def describe(thing: Any) -> str:
    """A sampler or source in one short line that is the same in every run."""
    kind = type(thing)
    length = f" of {len(thing)} records" if hasattr(thing, "__len__") else ""
    if kind.__repr__ is object.__repr__ or isinstance(thing, _CONTAINERS) or kind.__module__ == "numpy":
        return f"{kind.__qualname__}{length}"
    text = _ADDRESS.sub("", repr(thing))
    if len(text) <= LONGEST:
        return text
    return f"{kind.__qualname__}{length}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def encode(identity: Identity, position: dict[str, Any]) -> bytes:
    """A state as bytes."""
    return json.dumps({"format": FORMAT, **vars(identity), "position": position}, indent=4).encode()


def decode(state: Any, loader: Loader, *, validate: bool = True) -> dict[str, Any]:
    """The position in a state."""
    fields = _parse(state)
    if fields.get("format") == FORMAT:
        if validate:
            _check(fields, loader.identity)
        return fields["position"]
    if fields.get("version") == 2:
        return _from_grain(fields, loader, validate=validate)
    if fields.keys() == {"parent", "next_index_in_buffer"} and fields["parent"].keys() == {"next_index"}:
        # What Grain's loader writes with a flat map among its operations.
        return {"op": "flat_map", "taken_of_group": fields["next_index_in_buffer"], "parent": fields["parent"]}
    raise StateError(
        f"This is no state of a DataLoader that is known here: it has the fields {sorted(fields)}. "
        f"States of this version say format={FORMAT!r}."
    )


def _parse(state: Any) -> dict[str, Any]:
    if not isinstance(state, bytes | bytearray | str):
        hint = " It looks like the state of a dataset's iterator." if isinstance(state, dict) else ""
        raise StateError(
            f"A DataLoader's state is bytes, as `get_state()` returns them; got {type(state).__name__}.{hint}"
        )
    try:
        fields = json.loads(state)
    except ValueError as e:
        raise StateError(f"This is no state of a DataLoader: it is no JSON ({e}): {state[:80]!r}.") from e
    if not isinstance(fields, dict):
        raise StateError(f"This is no state of a DataLoader: it is a JSON {type(fields).__name__}.")
    return fields


def _check(fields: dict[str, Any], identity: Identity) -> None:
    differ = [name for name, own in vars(identity).items() if fields.get(name) != own]
    if differ:
        lines = [f"  {name}: {fields.get(name)!r} in the state, {getattr(identity, name)!r} here" for name in differ]
        raise StateError(
            f"The state is of another loader; {' and '.join(differ)} differ{'s' * (len(differ) == 1)}:\n"
            + "\n".join(lines)
            + "\nMake the loader as it was when the state was saved."
        )


def _from_grain(fields: dict[str, Any], loader: Loader, *, validate: bool) -> dict[str, Any]:
    """The position of a state that Grain's `DataLoader` wrote."""
    if validate:
        for name, own in (("sampler", loader.order.sampler), ("data_source", loader.source)):
            if not _is_repr_of(own, fields[name]):
                raise StateError(
                    f"The state, written by Grain, is of another loader; {name} differs:\n"
                    f"  {fields[name]} in the state\n  {own!r} here"
                )
    if len(fields["last_seen_indices"]) > 1:
        _check_element_by_element(fields["worker_count"], loader.operations)
    shard = loader.order.shard
    last = max(map(int, fields["last_seen_indices"].values()))
    return {"next_index": (last - shard.shard_index) // shard.shard_count + 1}


def _is_repr_of(thing: Any, text: str) -> bool:
    if type(thing).__module__.startswith("headrace.sources"):  # its repr is its own
        return text.startswith(type(thing).__name__)
    return _ADDRESS.sub("", text) == _ADDRESS.sub("", repr(thing))


def _check_element_by_element(worker_count: int, operations: Sequence[Any]) -> None:
    """Raises unless workers that took turns gave what one would have given, in the same order."""
    other = [op for op in operations if not isinstance(op, ELEMENTWISE)]
    if other:
        raise StateError(
            f"The state was written by Grain with {worker_count} workers and {identity(other)} among the operations. "
            "There each worker filters and batches records of its own, so its stream is not the one that any number "
            "of workers gives here. Write the checkpoint with worker_count=0 or 1."
        )
