"""States of a `DataLoader`: bytes that say which loader they belong to and where it was.

It also reads states that Grain wrote, if Grain's stream and this one continue with the same records.
"""

import dataclasses
import hashlib
import inspect
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.dataset.base import Dataset
from headrace.errors import StateError
from headrace.errors.addresses import with_identity_digest
from headrace.loader.chain import ELEMENTWISE, identity
from headrace.loader.record_order import Order
from headrace.samplers import BuiltInSampler
from headrace.sharding import ShardOptions
from headrace.sources import SharedMemoryDataSource
from headrace.storage.indices import BlockSource

FORMAT = "headrace.DataLoader/1"
LONGEST = 200
PIPELINE = ("pipeline", "functions")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_IN_MEMORY = (list, tuple, dict, set, frozenset, str, bytes, Dataset, SharedMemoryDataSource)


@dataclass(frozen=True)
class LoaderIdentity:
    """What must be the same in a state and in the loader that restores it."""

    sampler: str
    data_source: str
    shard_options: str
    operations: str


class Loader(Protocol):
    """What a loader must have to read a state."""

    order: Order
    source: Any
    operations: list[Any]
    identity: LoaderIdentity


def describe(thing: Any, length: int | None = None) -> str:
    """A sampler, source or shard in one short line that is the same in every run, even if addresses are signed anew.

    It is the `repr`, or the name that our own sources have for it; for data in memory, the class and the length.
    """
    if isinstance(thing, BuiltInSampler):
        return thing.identity
    if isinstance(thing, ShardOptions):
        remainder = ", drop_remainder" if thing.drop_remainder and thing.shard_count > 1 else ""
        return f"{thing.shard_index} of {thing.shard_count}{remainder}"
    kind = type(thing)
    records = "" if length is None else f" of {length} records"
    fields = _simple_fields(thing)
    named = getattr(thing, "name_in_states", thing.__repr__) if isinstance(thing, BlockSource) else thing.__repr__
    text = _ADDRESS.sub("", named()) if _has_repr(kind) else ""
    if fields is not None:
        text = f"{kind.__qualname__}({fields})"
    text = with_identity_digest(text)
    if not text or "<function" in text or "<lambda>" in text:
        return f"{kind.__qualname__}{records}"
    if len(text) <= LONGEST:
        return text
    return f"{kind.__qualname__}{records}, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _has_repr(kind: type) -> bool:
    """Whether a class has a `repr` that identifies its objects."""
    in_memory = issubclass(kind, _IN_MEMORY) or kind.__module__ == "numpy"
    return not in_memory and kind.__repr__ is not object.__repr__


def _simple_fields(thing: Any) -> str | None:
    """The numbers and strings among the fields of a dataclass that defines no `repr`; other fields may be caches."""
    code = getattr(inspect.unwrap(type(thing).__repr__), "__code__", None)
    if not dataclasses.is_dataclass(thing) or code is None or code.co_filename != "<string>":  # not made by `dataclass`
        return None
    values = {f.name: getattr(thing, f.name, None) for f in dataclasses.fields(thing) if f.repr}
    return ", ".join(f"{k}={v!r}" for k, v in values.items() if isinstance(v, str | int | float | os.PathLike))


def encode(identity: LoaderIdentity, position: dict[str, Any], pipeline: dict[str, Any]) -> bytes:
    """A state as bytes, with what the states of datasets have besides the position."""
    fields = {"format": FORMAT, **vars(identity), "position": position, **pipeline}
    return json.dumps(fields | {"checksum": _checksum(fields)}, indent=4).encode()


def _checksum(fields: dict[str, Any]) -> int:
    plain = {name: value for name, value in fields.items() if name != "checksum"}
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def decode(state: Any, loader: Loader, *, validate: bool = True) -> dict[str, Any]:
    """The position in a state."""
    fields = _parse(state)
    try:
        if fields.get("format") == FORMAT:
            if "checksum" in fields and fields["checksum"] != _checksum(fields):  # older states have none
                raise StateError(
                    "The state was changed since `get_state()` returned it: its checksum differs. To go to another "
                    "position on purpose, remove its field 'checksum'."
                )
            if not validate:
                return fields["position"]
            _check(fields, loader.identity)
            pipeline = {name: fields[name] for name in PIPELINE if name in fields}  # older states have none
            return fields["position"] | pipeline
        if fields.get("version") == 2:
            return _from_grain(fields, loader, validate=validate)
        if "next_index_in_buffer" in fields or "iterators_in_use_states" in fields:
            return fields  # Grain's state of a dataset, if there is a flat map among the operations
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        if isinstance(e, StateError):
            raise
        raise StateError(f"This state of a DataLoader is damaged ({e!r}): {state[:200]!r}.") from e
    raise StateError(
        f"This is not a state of a DataLoader: it has the fields {sorted(fields)}. "
        f"States of this version have format={FORMAT!r}."
    )


def _parse(state: Any) -> dict[str, Any]:
    if not isinstance(state, bytes | bytearray | str):
        hint = " It looks like the state of a dataset's iterator." if isinstance(state, dict) else ""
        raise StateError(
            f"A DataLoader's state is bytes, as `get_state()` returns them; got {type(state).__name__}.{hint}"
        )
    try:
        fields = json.loads(state)
    except (ValueError, RecursionError) as e:
        raise StateError(f"This is not a state of a DataLoader: it is not JSON ({e}): {state[:80]!r}.") from e
    if not isinstance(fields, dict):
        raise StateError(f"This is not a state of a DataLoader: it is a JSON {type(fields).__name__}.")
    return fields


def _check(fields: dict[str, Any], identity: LoaderIdentity) -> None:
    differ = [name for name, own in vars(identity).items() if fields.get(name) != own]
    if differ:
        lines = [f"  {name}: {fields.get(name)!r} in the state, {getattr(identity, name)!r} here" for name in differ]
        raise StateError(
            f"The state is of another loader; {' and '.join(differ)} differ{'s' * (len(differ) == 1)}:\n"
            + "\n".join(lines)
            + "\nCreate the loader as it was when the state was saved."
        )


def _from_grain(fields: dict[str, Any], loader: Loader, *, validate: bool) -> dict[str, Any]:
    """The position of a state that Grain's `DataLoader` wrote."""
    if validate:
        for name, own in (("sampler", loader.order.sampler), ("data_source", loader.source)):
            if not _is_repr_of(own, fields[name]):
                raise StateError(
                    f"The state, which Grain wrote, is of another loader; {name} differs:\n"
                    f"  {fields[name]} in the state\n  {own!r} here"
                )
    if len(fields["last_seen_indices"]) > 1:
        _check_element_by_element(fields["worker_count"], loader.operations)
    shard = loader.order.shard
    last = max(map(int, fields["last_seen_indices"].values()))
    return {"next_index": (last - shard.shard_index) // shard.shard_count + 1}


def _is_repr_of(thing: Any, text: str) -> bool:
    """Whether Grain may have written this for a sampler or source; it identifies sequences by class alone."""
    if type(thing).__name__ == "ArrayRecordDataSource":  # each library hashes the paths in its own way
        return text.startswith("ArrayRecordDataSource")
    if isinstance(thing, Dataset):
        return "MapDataset" in text
    return with_identity_digest(_ADDRESS.sub("", text)) in (
        with_identity_digest(_ADDRESS.sub("", repr(thing))),
        str(type(thing)),
    )


def _check_element_by_element(worker_count: int, operations: Sequence[Any]) -> None:
    """Raises unless workers that took turns gave what one would have given."""
    other = [op for op in operations if not isinstance(op, ELEMENTWISE)]
    if other:
        raise StateError(
            f"Grain wrote the state with {worker_count} workers and {identity(other)} among the operations. "
            "There each worker filters and batches its share of the records, so its stream differs from the one that "
            "any number of workers gives here. Write the checkpoint with worker_count=0 or 1."
        )
