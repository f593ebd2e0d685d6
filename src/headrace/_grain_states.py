"""Grain's states, as its iterators write them, in the form of `_state.py`.

They hold the same numbers under other names. A packer's `counter` counts all rows, ours those before the set. A window's
index is that of the next one as soon as a window has been handed over. A mix that has ended has tried one output more.
What a single worker process gives is what comes without; several workers' streams are not the one that we compute.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from headrace._fingerprint import ints
from headrace._ops.base import Op
from headrace._ops.buffer import Cache, Limit, ToStream
from headrace._ops.combine import Interleave, Mix, Mixing, Zip
from headrace._ops.element import FlatMap, MapWithIndex, RandomMap
from headrace._ops.group import Rebatch
from headrace._ops.order import Repeat, WindowShuffle
from headrace._ops.pack import ConcatThenSplit, FirstFitPack
from headrace._ops.schedule import ScheduledMix
from headrace._ops.source import UserDataset
from headrace._plan.streams.combine import interleaved_part
from headrace.errors import StateError

Json = dict[str, Any]
WORKERS = "iterators_in_use_states"


class Form(NamedTuple):
    """What Grain's state of an operation looks like.

    Attributes:
        name: For people.
        fields: All that there are.
        own: The numbers of our entry, from the operation and Grain's state of it.
        parent: The field with the parent's state; the first one where it is empty.
    """

    name: str
    fields: tuple[str, ...]
    own: Callable[[Any, Json], Json]
    parent: str = "parent"


def _packed(op: Any, state: Json) -> Json:
    return {"rows": state["counter"] - state["next_row"], "taken_of_group": state["next_row"]}


def _split(op: ConcatThenSplit, state: Json) -> Json:
    begins = {name: max(0, begin) for name, (begin, _) in state["remainder_slices"].items()}
    taken = [begins.get(leaf.name, 0) for leaf in op.layout().leaves]  # meta features are never cut
    return {"tokens_taken": taken, "taken_of_group": state["elements_from_buffer_after_checkpoint"]}


def _window(op: WindowShuffle, state: Json) -> Json:
    taken = state["pos_in_window"]
    return {"window": state["window_index"] - (taken == op.window_size), "taken_of_group": taken}


def _cached(op: Any, state: Json) -> Json:
    if state["cache_filled"]:
        raise StateError(
            "The state was written by Grain while its `CacheIterDataset` gave what it had kept, and does not say where "
            f"in the data that is. {_INSTEAD}"
        )
    return {}


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
    RandomMap: Form("random_map", ("parent", "index_for_rng"), lambda op, state: {"count": state["index_for_rng"]}),
    MapWithIndex: Form("map_with_index", ("parent", "counter"), lambda op, state: {"count": state["counter"]}),
    FlatMap: Form(
        "a FlatMapIterDataset",
        ("parent", "next_index_in_buffer"),
        lambda op, state: {"taken_of_group": state["next_index_in_buffer"]},
    ),
    Limit: Form(
        "a LimitIterDataset",
        ("parent", "count_elements_read"),
        lambda op, state: {"taken": state["count_elements_read"]},
    ),
    Repeat: Form("a RepeatIterDataset", ("parent", "epoch"), lambda op, state: {"epoch": state["epoch"]}),
    Rebatch: Form(
        "a RebatchIterDataset", ("parent", "batch_idx"), lambda op, state: {"rows_taken": state["batch_idx"]}
    ),
    Cache: Form("a CacheIterDataset", ("parent", "position", "cache_filled"), _cached),
    Mix: Form("IterDataset.mix", ("parents", "index", "stop"), lambda op, state: _mixed(op, state)),
    Zip: Form("a ZipIterDataset", ("parents",), lambda op, state: {"parents": _parts(op, state)}),
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
        lambda op, state: _interleaved(op, state),
    ),
}
_INSTEAD = (
    "Go on without it: `skip` as many outputs as have been used, or give a random-access chain's iterator the state "
    "{'next_index': n}."
)


def translated(op: Op, state: Any) -> Json:
    """A state that Grain wrote of a pipeline like this one, as one of ours."""
    entries: list[tuple[str, Json]] = []
    while not isinstance(op, ToStream | UserDataset | Interleave | Mixing | Zip):
        form = _form(op)
        if form is not None or op.state_fields is not None:
            state = _of_one_worker(state)
            fields = _own(op, form, state)
            if op.state_fields is not None:  # a cache's position is its parent's here
                entries.append((op.name, fields))
            assert form is not None
            state = state[form.parent]
        op = op.parents[0]
    begin = _begin(op, state)
    return begin | {f"{i} {name}": fields for i, (name, fields) in enumerate(reversed(entries), 1)}


def _begin(op: Op, state: Any) -> Json:
    if isinstance(op, Interleave):
        inner = state.get(WORKERS, ()) if isinstance(state, dict) else ()
        if any(isinstance(each, dict) and WORKERS in each for each in inner):
            state = _of_one_worker(state)
    else:
        state = _of_one_worker(state)
    if isinstance(op, UserDataset):
        return {f"0 {op.name}": {"state": state, "replay": 0}}
    if not isinstance(op, ToStream):
        return {f"0 {op.name}": _own(op, _form(op), state)}
    if not isinstance(state, dict) or state.keys() != {"next_index"}:
        raise _mismatch(op, state)
    return state


def _form(op: Op) -> Form | None:
    return (
        None if isinstance(op, ScheduledMix) else next((f for kind, f in FORMS.items() if isinstance(op, kind)), None)
    )


def _own(op: Op, form: Form | None, state: Any) -> Json:
    """What an entry of ours has: the operation's arguments, which Grain's state does not have, and its numbers."""
    if form is None or not isinstance(state, dict) or set(state) != set(form.fields):
        raise _mismatch(op, state)
    return {name: ints(getattr(op, name)) for name in op.state_params} | form.own(op, state)


def _mixed(op: Mix, state: Json) -> Json:
    weights = ints(op.proportions)
    return {"count": state["index"] - bool(state["stop"]), "weights": weights, "parents": _parts(op, state)}


def _parts(op: Any, state: Json) -> Any:
    names, parents = getattr(op, "names", None), state["parents"]
    if isinstance(parents, dict) != bool(names) or len(parents) != len(op.parts):
        raise _mismatch(op, state)
    if names:
        return {name: translated(part, parents[name]) for name, part in zip(names, op.parts, strict=True)}
    return [translated(part, inner) for part, inner in zip(op.parts, parents, strict=True)]


def _interleaved(op: Interleave, state: Json) -> Json:
    if state["future_states"]:
        raise StateError(
            "The state was written by Grain with datasets of an InterleaveIterDataset opened before their turn. "
            f"{_INSTEAD}"
        )
    slots = zip(state["iterators_in_use_indices"], state[WORKERS], state["exhausted"], strict=True)
    is_open = [
        {"dataset": -1} if ended else {"dataset": i, "state": translated(interleaved_part(op, i), inner)}
        for i, inner, ended in slots
    ]
    is_open += [{"dataset": -1}] * (op.cycle_length - len(is_open))
    slot = state["next_index_in_cycle"]
    return {"slot": slot, "next_dataset": state["next_index_in_datasets"], "open": is_open}


def _of_one_worker(state: Any) -> Any:
    """The state inside one of `mp_prefetch` or `multithread_prefetch`."""
    while isinstance(state, dict) and WORKERS in state:
        inner = state[WORKERS]
        if len(inner) != 1:
            raise StateError(
                f"The state was written by Grain with {len(inner)} workers. There each makes batches, rows and windows "
                "of elements of its own, so its stream is not the one that any number of workers gives here. Write "
                f"the checkpoint with one worker or none. {_INSTEAD}"
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
            f"This is no state of {op.label()} (pipeline at {op.site}), neither one of Headrace nor one of Grain: "
            f"{state!r:.200}."
        )
    return StateError(
        f"The state was written by Grain, and has that of {known} where the pipeline has {op.label()} (pipeline at "
        f"{op.site}). Make the pipeline as it was there. {_INSTEAD}"
    )
