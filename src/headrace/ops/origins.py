"""Where elements come from, for error messages: the operation that made them, and the source items behind it."""

from typing import Any

import numpy as np

from headrace.errors.addresses import redacted
from headrace.errors.signals import suppress
from headrace.ops.blocks import by_part
from headrace.ops.buffer import ToStream
from headrace.ops.combine import Interleave, RouteOp
from headrace.ops.element import FlatMapOp
from headrace.ops.group import BatchOp
from headrace.ops.op import Op
from headrace.ops.order import IndexOp
from headrace.ops.source import Source, UserDataset

MOST_SHOWN = 20


def last_visible_op(op: Op) -> Op:
    """The last operation that does anything to elements or their order."""
    while op.is_transparent or isinstance(op, ToStream):
        op = op.parents[0]
    return op


def show_elements(top: Op, first: int, stop: int) -> str:
    """Names some outputs of a stage, with the operation that makes them."""
    op = last_visible_op(top)
    which = f"element {first}" if stop == first + 1 else f"elements {first} to {stop - 1}"
    return f"{which} of {op.label()} (pipeline at {op.site}"


def show_source_indices(base: Op, first: int, stop: int) -> str:
    """Names the source items that some elements of a random-access chain are made from."""
    items = source_indices(base.parents[0], np.arange(first, min(stop, first + MOST_SHOWN)))
    return ", ".join(map(str, items[:MOST_SHOWN])) + (", …" if max(len(items), stop - first) > MOST_SHOWN else "")


def index_in(op: Op, position: Any) -> tuple[Op, int] | None:
    """The random-access chain below a stream and its index at a position, if there is exactly one chain."""
    while not isinstance(op, ToStream):
        if len(op.parents) != 1 or isinstance(op, UserDataset | Interleave):
            return None
        position = position if op.state_fields is None else position[-1]
        op = op.parents[0]
    return op, position


def source_indices(op: Op, idx: np.ndarray) -> list[int]:
    """The indices of the source items that elements of a random-access chain are made from."""
    return [i for source, indices in source_items(op, idx) for i in (indices % max(source.length(), 1)).tolist()]


def source_items(op: Op, idx: np.ndarray) -> list[tuple[Op, np.ndarray]]:
    """The sources of some elements of a random-access chain, and the indices there; those of later epochs continue."""
    while not isinstance(op, Source | UserDataset) and not op.parents[0].is_stream:  # which a cache on disk may have
        if isinstance(op, RouteOp):
            which, inner = op.route(idx)
            return [item for k, places in by_part(which) for item in source_items(op.parts[k], inner[places])]
        if isinstance(op, IndexOp):
            idx = op.indices(idx)
        elif isinstance(op, BatchOp):
            starts, stops = op.bounds(idx)
            pieces = [np.arange(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
            if not pieces:
                return []
            idx = np.concatenate(pieces)
        elif isinstance(op, FlatMapOp) and op.max_fan_out:
            idx = np.unique(idx // op.max_fan_out)
        op = op.parents[0]
    return [(op, idx)]


def origin(op: Op, index: int) -> dict[str, Any]:
    """The source, file, record and epoch of an element of a random-access chain, as far as they are known."""
    items = source_items(op, np.array([index]))
    if len(items) != 1 or not len(items[0][1]):
        return {}
    source, indices = items[0]
    epochs, records = np.divmod(indices, max(source.length(), 1))
    where = getattr(getattr(source, "source", None), "__where__", None)
    file = None
    if where is not None:
        with suppress(Exception):  # it is for a message only
            file = where(int(records[0]))[0]
    return {
        "source": source.label(),
        "file": None if file is None else redacted(file),
        "index": int(records[0]) if len(records) == 1 else records.tolist(),
        "epoch": int(epochs[0]),
    }
