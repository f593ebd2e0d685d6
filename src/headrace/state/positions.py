"""States: positions as JSON, and as arrays of one size that hosts can gather even if states differ in structure.

An array holds a length in its first 8 bytes, then the state's compressed JSON of that length, and then zeros.
"""

import json
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headrace.errors import NextIndexError, StateError, StateWarning
from headrace.ops.buffer import ToStream
from headrace.ops.disk_cache import FromDisk
from headrace.ops.inline import InlineExecutor
from headrace.ops.op import Op
from headrace.ops.state_fields import PartStates, as_int, ints
from headrace.ops.streams import Context, open_stream
from headrace.ops.streams.combined_streams import part_made
from headrace.ops.streams.stream import start_of
from headrace.state.identity import changed_functions, differences, fingerprint, functions, remember

HEADER = np.dtype("<u8")
MOST_BYTES = 1 << 28  # of an unpacked state


def pack(text: bytes, size: int) -> np.ndarray:
    """A state as `size` bytes."""
    data = zlib.compress(text)
    if len(data) + HEADER.itemsize > size:
        raise StateError(
            f"The state takes {len(data) + HEADER.itemsize} bytes, and size={size}. Give a larger size, the same on "
            "all hosts."
        )
    array = np.zeros(size, np.uint8)
    array[: HEADER.itemsize] = np.array([len(data)], HEADER).view(np.uint8)
    array[HEADER.itemsize : HEADER.itemsize + len(data)] = np.frombuffer(data, np.uint8)
    return array


def is_array(state: Any) -> bool:
    """Whether this is an array of NumPy or JAX."""
    return hasattr(state, "dtype") and hasattr(state, "shape")


def unpack(array: Any) -> bytes:
    """The state in an array."""
    if array.dtype != np.uint8 or len(array.shape) != 1 or array.shape[0] < HEADER.itemsize:
        raise StateError(
            f"A state as an array is a row of uint8, as `state_as_array()` returns it; got {array.dtype} of shape "
            f"{tuple(array.shape)}. If these are gathered states, give each host its row."
        )
    array = np.ascontiguousarray(array)
    length = int(array[: HEADER.itemsize].view(HEADER)[0])
    data = array[HEADER.itemsize :].tobytes()
    try:
        if length > len(data):
            raise zlib.error(f"it has {len(data)} bytes of {length}")
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data[:length], MOST_BYTES)
        if not unpacker.eof:
            raise zlib.error("it has no end")
    except zlib.error as e:
        raise StateError(
            f"This array does not hold a state ({e}). Pass an array that `state_as_array()` returned."
        ) from e
    return text


# ------------------------------------------------------------------------------------------------------- positions
# States: positions as small JSON, and back.
#
# The state of a random-access chain is `{"next_index": n}`. Each later operation with its own numbers adds a
# numbered entry, such as `"1 random_map": {"seed": 3, "count": 7}`: the arguments that the numbers depend on, and the
# numbers. If a stream begins with another operation, this has entry 0, with the states of its parts in it. Operations
# whose position is their parent's add nothing. `pipeline` has what the order depends on (`identity.py`), `functions`
# identifies the functions, whose changes cause only a warning, and `checksum` shows whether anybody has changed the
# state.
#
# All leaves are ints, so hosts can gather states; names are keys. In older states, the same entries are nested, with
# `op` and `parent`, and have other leaves.


Json = dict[str, Any]
Replay = Callable[[Op, int], Json]  # the state of a stream after so many outputs
translators: list[Callable[[Op, Json, Replay], Json]] = []  # of states that other libraries wrote
BESIDE = ("pipeline", "functions", "checksum")
MOST_SHOWN = 8  # differences in an error


class PipelineIdentity:
    """What states have besides the position; computed once for each iterator."""

    def __init__(self, op: Op):
        self._op = op
        self._known: Json | None = None
        remember(op)

    def add_to(self, state: Json) -> Json:
        """A state with the identity of its pipeline."""
        if self._known is None:
            self._known = {"pipeline": fingerprint(self._op), "functions": functions(self._op)}
        # A copy, since users may change their state.
        state |= {name: json.loads(json.dumps(value)) for name, value in self._known.items()}
        return with_checksum(state)


def with_checksum(state: Json) -> Json:
    """A state with its checksum, if it is more than an index."""
    return state if state.keys() <= {"next_index", *BESIDE} else state | {"checksum": _checksum(state)}


def check_checksum(state: Json, *, strict: bool = True) -> None:
    """Raises if a state is not as `get_state()` returned it."""
    if "checksum" in state and _checksum(state) != state["checksum"]:
        _refuse("The state was changed since `get_state()` returned it: its checksum differs", strict=strict)


def _checksum(state: Json) -> int:
    """A checksum of a state's position; floats count with 5 digits, since hosts may round them."""
    plain = {name: value for name, value in state.items() if name not in BESIDE}
    text = json.dumps(_round(plain), sort_keys=True, default=lambda value: type(value).__name__)
    return zlib.crc32(text.encode()) % (1 << 31)


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    if getattr(value, "shape", None) == ():
        value = value.item()
    return f"{value:.5g}" if isinstance(value, float) else value


def restore(op: Op, state: Any, *, strict: bool = True) -> Any:
    """The position in a state of this pipeline; without `strict`, differences only give warnings."""
    if is_array(state):
        state = json.loads(unpack(state))
    _check_dict(state)
    bare = {name: value for name, value in state.items() if name not in BESIDE}
    try:
        if _is_foreign(bare):
            bare = _translate(op, bare)
        check_checksum(state, strict=strict)
        position = decode(op, bare)
        found = differences(op, state["pipeline"], position) if "pipeline" in state else []
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as e:
        if isinstance(e, StateError):
            raise
        what = f"{type(e).__name__}: {e!s:.100}"
        raise StateError(
            f"The state is damaged, or belongs to another pipeline ({what}): {sorted(map(str, bare))}."
        ) from e
    if found:
        text = "The state was saved with another pipeline, so resuming would lose or repeat elements: "
        more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
        _refuse(f"{text}{'; '.join(found[:MOST_SHOWN])}{more} (saved → here)", strict=strict)
        return position
    pipeline = state.get("pipeline")
    form = pipeline.get("form") if isinstance(pipeline, dict) else None
    changed = changed_functions(op, state.get("functions"), form=form)
    if changed:
        _warn(f"Functions have changed since the state was saved: {', '.join(changed)}.")
    return position


def _refuse(text: str, *, strict: bool) -> None:
    if strict:
        raise StateError(f"{text}. Restore the pipeline as it was, or pass strict=False to resume anyway.")
    _warn(f"{text}.")


def _warn(text: str) -> None:
    warnings.warn(text, StateWarning, stacklevel=5)


def _after(op: Op, count: int) -> Json:
    """The state of a stream after so many elements, which are read here, without threads."""
    position = None
    stream = open_stream(op, None, Context(lambda _: InlineExecutor(), lambda _: _SilentWatch()))
    try:
        while count and (run := stream.pull(count)) is not None:
            taken = min(count, len(run.block))
            position = run.at(taken)
            count = count - taken
    finally:
        stream.close()
    return encode(op, position)


class _SilentWatch:
    """Ignores filters: their elements come again."""

    def count(self, seen: int, kept: int) -> None:
        pass


# ------------------------------------------------------------------------------------------------- positions


def encode(op: Op, position: Any) -> Json:
    """A position as JSON."""
    if position is None:
        position = start_of(op)
    entries: list[tuple[str, Json]] = []  # the last operation first
    while op.upstream is not None:
        if op.state_fields is not None:
            entries.append((op.name, _encode_own(op, position)))
            position = position[-1]
        op = op.upstream
    state = {"next_index": position} if isinstance(op, ToStream) else {f"0 {op.name}": _encode_base(op, position)}
    return state | {f"{i} {name}": fields for i, (name, fields) in enumerate(reversed(entries), 1)}


def _encode_own(op: Op, position: Any) -> Json:
    """The arguments and the numbers of an operation."""
    return {name: ints(getattr(op, name)) for name in op.state_params} | op.write_numbers(position)


def _encode_base(op: Op, position: Any) -> Json:
    fields = _encode_own(op, position)
    return fields if op.parts_field is None else fields | op.write_parts(position[-1], _parts())


def _parts(*, reread: bool = False) -> PartStates:
    return PartStates(encode, partial(decode, reread=reread), part_made, reread)


def decode(op: Op, state: Any, *, reread: bool = False) -> Any:
    """The position in a state of this pipeline.

    With `reread`, operations after it compute some outputs from this position again that were already returned.
    """
    _check_dict(state)
    entries = _entries(state)
    levels: list[tuple[Any, ...]] = []
    while op.upstream is not None:
        if op.state_fields is not None:
            name, fields = entries.pop() if len(entries) > 1 else entries[0]
            _check(op, name, fields)
            levels.append(op.read_numbers(fields))
            reread = reread or op.has_open_group(levels[-1])
        op = op.upstream
    name, fields = entries.pop()
    if entries and name == op.name:
        raise StateError(
            f"The state has `{name}` after {op.label()}, but in this pipeline nothing comes before that. "
            "Restore the pipeline as it was."
        )
    position = _decode_base(op, name, fields, reread=reread)
    for numbers in reversed(levels):
        position = (*numbers, position)
    return position


def _is_foreign(state: Json) -> bool:
    """Whether a state has none of the forms that Headrace writes."""
    return "op" not in state and "next_index" not in state and not any(map(_is_entry, state))


def _translate(op: Op, state: Json) -> Json:
    """A state of another library as one of ours."""
    for translate in translators:
        state = translate(op, state, _after)
    return state


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
    numbers = op.read_numbers(fields)
    return numbers if op.parts_field is None else (*numbers, op.read_parts(fields, _parts(reread=reread)))


def _decode_index(op: ToStream, name: Any, fields: Any) -> int:
    index = as_int(fields.get("next_index")) if isinstance(fields, dict) else None
    if name != op.name or set(fields) != {"next_index"} or index is None:
        found = f"is of `{name}`" if name not in (None, op.name) else f"has the fields {sorted(map(str, fields))}"
        raise StateError(
            f"This is the state of another pipeline: it {found}, but states of {op.label()} have the form "
            "{'next_index': n}."
        )
    if isinstance(op, FromDisk) and not op.cache.length_is_known and index >= 0:
        return index  # where it is filled before the first element, the stream checks it
    if not 0 <= index <= op.parent.length():
        raise NextIndexError(
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
    if found not in (op.name, op.former_name):
        raise StateError(
            f"This is the state of another pipeline: it has `{found}` where the pipeline has {op.label()} "
            f"(pipeline at {op.site})."
        )
    for name in op.state_params:
        here = getattr(op, name)
        saved = fields.get(name)
        if saved != ints(here) and ints(saved) != ints(here):
            raise StateError(
                f"This is the state of another pipeline: it was saved with {name}={saved!r}, and "
                f"{op.label()} (pipeline at {op.site}) has {name}={here!r}."
            )
    wanted = [name for name in op.state_fields or () if name not in op.optional_fields]
    for name in [*wanted, *([op.parts_field] if op.parts_field else [])]:
        if name not in fields:
            raise StateError(f"The state of {op.label()} lacks its field {name!r}; it has {sorted(map(str, fields))}.")
