"""Translates the states of Grain's iterators into those of `headrace.state.positions`.

They have the same numbers under other names, with these differences. A packer's `counter` counts all rows, ours only
those before the set. After its last element, a window has the index of the next. A mix that has ended counts one
output more. The stream of one worker process is that of none; streams of several workers differ from ours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.errors import StateError
from headrace.ops.buffer import Cache, Limit, MpPrefetch, Prefetch, ToStream
from headrace.ops.combine import Interleave, Mix, Zip
from headrace.ops.element import FlatMapOp, MapOp, MapWithIndexOp, RandomMapOp
from headrace.ops.group import Rebatch
from headrace.ops.op import Op
from headrace.ops.order import Repeat, WindowShuffle
from headrace.ops.packing.packers import ConcatThenSplit, FirstFitPack
from headrace.ops.schedule import ScheduledMix
from headrace.ops.source import UserDataset
from headrace.ops.state_fields import ints
from headrace.ops.streams.combined_streams import interleaved_part

Json = dict[str, Any]
After = Callable[[Op, int], Json]
"""Our state of a stream after so many elements, which reads them."""

WORKERS = "iterators_in_use_states"


class Form(NamedTuple):
    """What Grain's state of an operation looks like.

    Attributes:
        name: What error messages call it.
        fields: The names of all its fields.
        own: Makes the numbers of our entry from the operation and Grain's state of it.
        parent: The field with the parent's state.
    """

    name: str
    fields: tuple[str, ...]
    own: Callable[[Any, Json], Json]
    parent: str = "parent"


def _renamed(name: str, **numbers: str) -> Form:
    """The form of an operation with one parent, from Grain's names of our numbers."""
    return Form(
        name,
        ("parent", *numbers.values()),
        lambda op, state: {ours: state[theirs] for ours, theirs in numbers.items()},
    )


def _packed(op: Any, state: Json) -> Json:
    return {"rows": state["counter"] - state["next_row"], "taken_of_group": state["next_row"]}


def _split(op: ConcatThenSplit, state: Json) -> Json:
    begins = {name: max(0, begin) for name, (begin, _) in state["remainder_slices"].items()}
    taken = [begins.get(leaf.name, 0) for leaf in op.layout().leaves]  # meta features are never cut
    return {"tokens_taken": taken, "taken_of_group": state["elements_from_buffer_after_checkpoint"]}


def _window(op: WindowShuffle, state: Json) -> Json:
    taken = state["pos_in_window"]
    return {"window": state["window_index"] - (taken == op.window_size), "taken_of_group": taken}


def _mixed(op: Mix, state: Json) -> Json:
    return {"count": state["index"] - bool(state["stop"]), "weights": ints(op.proportions)}


def _is_one_to_one(op: Any) -> bool:
    """Whether element `i` of a cache comes from index `i` of the data."""
    below: Any = op.parent
    while isinstance(below, MapOp) or below.is_transparent:
        below = below.parent
    return isinstance(below, ToStream) and not below.parent.is_sparse


FORMS: dict[Any, Form] = {
    FirstFitPack: Form("a first-fit or best-fit packer", ("parent", "next_row", "counter"), _packed),
    ConcatThenSplit: Form(
        "a ConcatThenSplitIterDataset",
        ("parent_state", "remainder_slices", "elements_from_buffer_after_checkpoint"),
        _split,
        "parent_state",
    ),
    WindowShuffle: Form(
        "a WindowShuffleIterDataset",
        ("parent_window_start_state", "window_index", "pos_in_window"),
        _window,
        "parent_window_start_state",
    ),
    RandomMapOp: _renamed("random_map", count="index_for_rng"),
    MapWithIndexOp: _renamed("map_with_index", count="counter"),
    FlatMapOp: _renamed("a FlatMapIterDataset", taken_of_group="next_index_in_buffer"),
    Limit: _renamed("a LimitIterDataset", taken="count_elements_read"),
    Repeat: _renamed("a RepeatIterDataset", epoch="epoch"),
    Rebatch: _renamed("a RebatchIterDataset", rows_taken="batch_idx"),
    Cache: Form("a CacheIterDataset", ("parent", "position", "cache_filled"), lambda op, state: {}),
    Mix: Form("IterDataset.mix", ("parents", "index", "stop"), _mixed),
    Zip: Form("a ZipIterDataset", ("parents",), lambda op, state: {}),
    Interleave: Form(
        "an InterleaveIterDataset",
        (
            "next_index_in_cycle",
            "next_index_in_datasets",
            "iterators_in_use_indices",
            WORKERS,
            "exhausted",
            "future_states",
        ),
        lambda op, state: {"slot": state["next_index_in_cycle"], "next_dataset": state["next_index_in_datasets"]},
    ),
}
_INSTEAD = (
    "To continue without it, `skip` the outputs that were already used, or set the state of a "
    "random-access chain's iterator to {'next_index': n}."
)


def translated(op: Op, state: Any, after: After, *, again: bool = False) -> Json:
    """Grain's state of a pipeline like this one, as one of ours; with `again`, it is in a later epoch."""
    entries: list[tuple[str, Json]] = []
    ahead = False  # whether the state may be inside that of an `mp_prefetch`, which has the form of an interleave's
    while op.upstream is not None:
        form = _form(op)
        if form is not None or op.state_fields is not None:
            state = _of_one_worker(state)
            fields = _own(op, form, state)
            if op.state_fields is not None:  # our cache has its parent's position
                entries.append((op.name, fields))
            assert form is not None
            again = again or (isinstance(op, Repeat) and state["epoch"] > 0)
            if isinstance(op, Cache) and state["cache_filled"]:  # it says how many elements of the cache were read
                if not _is_one_to_one(op):
                    return _joined(after(op.parent, state["position"]), entries)
                state = {"next_index": state["position"]}
                ahead = False
            else:
                state = state[form.parent]
                ahead = False
        ahead = ahead or isinstance(op, MpPrefetch | Prefetch)
        op = op.upstream
    return _joined(_begin(op, state, after, ahead=ahead, again=again), entries)


def _joined(begin: Json, entries: list[tuple[str, Json]]) -> Json:
    """A state, with entries of later operations, the last first."""
    return begin | {f"{i} {name}": fields for i, (name, fields) in enumerate(reversed(entries), len(begin))}


def _begin(op: Op, state: Any, after: After, *, ahead: bool, again: bool) -> Json:
    inner = state.get(WORKERS) if isinstance(state, dict) else None
    if not isinstance(op, Interleave):
        state = _of_one_worker(state)
    elif ahead and isinstance(inner, list) and len(inner) == 1 and WORKERS in inner[0]:
        (state,) = inner
    if isinstance(op, UserDataset):
        return {f"0 {op.name}": {"state": state, "replay": 0}}
    if not isinstance(op, ToStream):
        return {f"0 {op.name}": _own(op, _form(op), state) | _of_parts(op, state, after, again=again)}
    if not isinstance(state, dict) or state.keys() != {"next_index"}:
        raise _mismatch(op, state)
    return state


def _form(op: Op) -> Form | None:
    return (
        None if isinstance(op, ScheduledMix) else next((f for kind, f in FORMS.items() if isinstance(op, kind)), None)
    )


def _own(op: Op, form: Form | None, state: Any) -> Json:
    """Our entry: the operation's arguments, which Grain's state lacks, and its numbers."""
    if form is None or not isinstance(state, dict) or set(state) != set(form.fields):
        raise _mismatch(op, state)
    return {name: ints(getattr(op, name)) for name in op.state_params} | form.own(op, state)


def _of_parts(op: Any, state: Json, after: After, *, again: bool) -> Json:
    """The states of several parts."""
    if isinstance(op, Interleave):
        return {"open": _opened(op, state, after, again=again)}
    names = getattr(op, "names", None)
    parents = state["parents"]
    if isinstance(parents, dict) != bool(names) or len(parents) != len(op.parts):
        raise _mismatch(op, state)
    if names:
        pairs = zip(names, op.parts, strict=True)
        return {"parents": {name: translated(part, parents[name], after, again=again) for name, part in pairs}}
    return {"parents": [translated(part, at, after, again=again) for part, at in zip(op.parts, parents, strict=True)]}


def _opened(op: Interleave, state: Json, after: After, *, again: bool) -> list[Json]:
    waiting = state["next_index_in_datasets"] < op.num_datasets
    ended = state["exhausted"]
    if state["future_states"] or (again and waiting and any(ended)):
        what = "a later epoch" if again else "datasets opened before their turn"
        raise StateError(
            f"Grain saved this state of an InterleaveIterDataset with {what}, and it does not record which "
            f"datasets have ended. {_INSTEAD}"
        )
    # The state of a dataset that has ended is at its end. While others wait, its slot must be free for them.
    slots = [
        {"dataset": -1}
        if waiting and over
        else {"dataset": i, "state": translated(interleaved_part(op, i), at, after, again=again)}
        for i, at, over in zip(state["iterators_in_use_indices"], state[WORKERS], ended, strict=True)
    ]
    return slots + [{"dataset": -1}] * (op.cycle_length - len(slots))


def _of_one_worker(state: Any) -> Any:
    """The state inside that of an `mp_prefetch` or `multithread_prefetch`."""
    while isinstance(state, dict) and WORKERS in state:
        inner = state[WORKERS]
        if len(inner) != 1:
            raise StateError(
                f"Grain saved this state with {len(inner)} workers, each of which batches, packs and shuffles its "
                "own share of the elements. Headrace's stream is the same for any number of workers, so the two "
                f"differ. Save the checkpoint with one worker or none. {_INSTEAD}"
            )
        (state,) = inner
    return state


def _mismatch(op: Op, state: Any) -> StateError:
    fields = set(state) if isinstance(state, dict) else set()
    known = next((form.name for form in FORMS.values() if set(form.fields) == fields), None)
    if known is None and fields == {"next_index"}:
        known = "to_iter_dataset"
    if known is None:
        return StateError(
            f"This is neither a Headrace nor a Grain state of {op.label()} (pipeline at {op.site}): {state!r:.200}."
        )
    return StateError(
        f"Grain saved this state with {known} where the pipeline has {op.label()} (pipeline at {op.site}). "
        f"Rebuild the pipeline as it was when the state was saved. {_INSTEAD}"
    )
