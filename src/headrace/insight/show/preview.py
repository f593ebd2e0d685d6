"""The first elements of a pipeline, to look at: computed in one thread, without workers and devices.

What is shown unasked may not cost much, so `first_element` has a time limit. It is looked at before each call of a
user's function and each read of a source; only a call that takes longer continues until it returns, in its thread.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from headrace.errors import format_error
from headrace.errors.addresses import redacted
from headrace.errors.signals import in_pipeline
from headrace.ops.buffer import MpPrefetch, ToStream
from headrace.ops.ending import reads_in_order
from headrace.ops.global_batch import check_lanes
from headrace.ops.guard import Guard
from headrace.ops.inline import InlineExecutor
from headrace.ops.op import Op, parents_first
from headrace.ops.order import gather_options
from headrace.ops.source import UserDataset
from headrace.ops.streams import Context, open_stream
from headrace.options import ErrorPolicy
from headrace.threads import start_thread

LIMIT_S = 2.0
Elements = Generator[Any, None, None]


@dataclass(frozen=True)
class First:
    """The first element of a pipeline in a list, or none and why."""

    element: list[Any]
    why_not: str = ""


def first_element(op: Op, limit_s: float = LIMIT_S) -> First:
    """The first element, unless it takes long, fails, or computing it could do more than cost time."""
    reason = "functions may need `worker_init_fn`" if needs_workers(op) else _effect(_on_host(op))
    if reason:
        return First([], f"is not computed here, because {reason}. `show()` computes it.")
    op, guard = _on_host(op), _TimeLimit(gather_options(op).on_error, limit_s)
    found: list[First] = []
    done = threading.Event()
    start_thread(_find_first, op, guard, found, done, name="headrace-show", stop=guard.stop)
    return found[0] if done.wait(limit_s) else First([], f"takes more than {limit_s:g} s. `show()` computes it.")


def elements(op: Op) -> Elements:
    """The elements, however long they take."""
    return _elements(_on_host(op), _TimeLimit(gather_options(op).on_error))


def needs_workers(op: Op) -> bool:
    """Whether functions may need what a `worker_init_fn` has set up in workers."""
    return any(isinstance(each, MpPrefetch) and each.worker_init_fn for each in parents_first(op, lambda _: True))


def reads_once(op: Op) -> bool:
    """Whether a source gives each element once, so that looking at one uses it up."""
    return any(isinstance(each, ToStream) and reads_in_order(each) for each in parents_first(op, lambda _: True))


def _on_host(op: Op) -> Op:
    """The pipeline without what comes last and only moves elements: ahead, to a device, or in step with others."""
    while op.is_stream and (op.runs_in_consumer or op.is_transparent):
        op = op.parents[0]
    return op


def _effect(op: Op) -> str:
    """What reading the pipeline may do besides cost time, as a reason not to; empty if nothing."""
    for each in parents_first(op, lambda _: True):
        if isinstance(each, UserDataset) and each.stream and (each.parents or not _is_ours(each.dataset)):
            return f"reading {each.label()}, a user-defined stream, may use up its elements"
        if each.runs_in_consumer:
            return f"{each.name} is in the middle of the pipeline"
    return "the source yields each element only once" if reads_once(op) else ""


def _is_ours(dataset: Any) -> bool:
    return type(dataset).__module__.startswith("headrace.")


class _TooLong(BaseException):
    """The time is over; not an `Exception`, or `on_error` would take it for that of a record."""


class _TimeLimit(Guard):
    """Ends a pipeline when its time is over; bad records are neither logged nor listed."""

    def __init__(self, policy: ErrorPolicy, seconds: float | None = None):
        super().__init__(policy, lambda records: None, lambda count: self._check())
        self._until = None if seconds is None else time.monotonic() + seconds

    def begin(self, *args: Any, **options: Any) -> None:
        self._check()

    def stop(self) -> None:
        self._until = 0.0

    def _check(self) -> None:
        if self._until is not None and time.monotonic() > self._until:
            raise _TooLong


class _LenientWatch:
    """Lets filters drop what they like."""

    def count(self, seen: int, kept: int) -> None:
        pass


def _elements(op: Op, guard: Guard) -> Elements:
    check_lanes(op)
    stream = open_stream(op, None, Context(lambda _: InlineExecutor(), lambda _: _LenientWatch(), guard=guard))
    try:
        while (run := in_pipeline(stream.pull, 0)) is not None:
            yield from run.block.own_rows()
    finally:
        stream.close()


def _find_first(op: Op, guard: Guard, found: list[First], done: threading.Event) -> None:
    try:
        with contextlib.closing(_elements(op, guard)) as elements:
            element = list(itertools.islice(elements, 1))
        found.append(First(element, "" if element else "does not exist: the dataset is empty."))
    except _TooLong:
        return
    except BaseException as e:
        notes = "".join(f", {note}" for note in getattr(e, "__notes__", ()))
        found.append(First([], f"cannot be computed: {redacted(format_error(e) + notes)}."))
    finally:
        if found:
            done.set()
