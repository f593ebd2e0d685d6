"""Logs where a pipeline is when a consumer waits long for its next elements, and again after twice as long.

One thread per process looks at all iterators that may wait. It runs only while there are such iterators, and an
iterator whose elements come fast never starts it.
"""

import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from headrace.errors import format_error
from headrace.ops.calls import ints
from headrace.ops.op import Op
from headrace.threads import start_thread

if TYPE_CHECKING:
    from headrace.engine.iteration import Iteration

OVERSLEPT_S = 1.0  # a thread that sleeps this much too long was not alone
LOOKS = 4  # how often to look at an iterator in the time after which it warns


class HangWatch:
    """The iterators of this process that are watched, and the thread that watches them."""

    def __init__(self):
        self._lock = threading.RLock()
        self._iterations: weakref.WeakSet[Iteration] = weakref.WeakSet()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, iteration: "Iteration") -> None:
        with self._lock:
            self._iterations.add(iteration)
            self._changed.clear()
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._watch, name="headrace-watch", stop=self._stop)

    def remove(self, iteration: "Iteration") -> None:
        with self._lock:
            self._iterations.discard(iteration)
            if not self._iterations:
                self._changed.set()

    def _stop(self) -> None:
        self._iterations.clear()
        self._changed.set()

    def _watch(self) -> None:
        awake_since = 0.0
        while (after_s := self._check(awake_since)) is not None:
            begin = time.perf_counter()
            self._changed.wait(after_s)
            if time.perf_counter() - begin > after_s + OVERSLEPT_S:  # the whole process was stopped
                awake_since = time.perf_counter()

    def _check(self, awake_since: float) -> float | None:
        """Looks at all iterators; returns when to look again, or `None` if there are none."""
        with self._lock:
            iterations = list(self._iterations)
            if not iterations:
                self._thread = None
                return None
        for iteration in iterations:
            waiting = iteration.waiting
            wait, times = iteration.reported if iteration.reported[0] is waiting else (waiting, 0)
            if wait is not None and time.perf_counter() - max(wait[0], awake_since) > iteration.warn_after_s * 2**times:
                iteration.reported = wait, times + 1
                _report(iteration, *wait)
        return min(iteration.warn_after_s for iteration in iterations) / LOOKS


def _report(iteration: "Iteration", since: float, thread: int) -> None:
    import logging  # slow to import, and hardly ever needed

    try:
        found = [*iteration.work_of_workers(), *_work_of_threads(thread)]
    except Exception as e:  # such as a worker that has just ended
        found = [f"Could not find out what it is doing: {format_error(e)}"]
    logging.getLogger("headrace").warning(
        "No output from %s (pipeline at %s) for %.0f s.%s",
        iteration.op.label(),
        iteration.op.site,
        time.perf_counter() - since,
        "".join(f"\n{each}" for each in found),
    )


def _work_of_threads(consumer: int) -> Iterator[str]:
    """What the consumer and the threads of pipelines do that are at an element now, with their stacks."""
    import traceback

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        name = names.get(number) or ""
        if number != consumer and not name.startswith("headrace-"):
            continue
        found = _element_in(frame)
        if found is not None:
            stack = "".join(traceback.format_stack(frame)).rstrip()
            yield f"Thread {name} is at {found}:\n{stack}"


def _element_in(frame: FrameType | None) -> str | None:
    """The operation and the element that a thread is at, if it is in a function of a pipeline."""
    while frame is not None:
        if _is_ours(frame.f_code.co_filename):
            found = _operation(frame.f_locals)
            if found is not None:
                return found
        frame = frame.f_back
    return None


def _operation(variables: dict[str, Any]) -> str | None:
    """The operation and the element, from the variables of the function that loops over elements."""
    this = variables.get("self")
    op = variables.get("op", getattr(this, "_op", getattr(this, "op", None)))
    if not isinstance(op, Op):
        return None
    numbers = next((variables[name] for name in ("numbers", "indices", "idx") if variables.get(name) is not None), None)
    if "trace" in variables:
        numbers = variables["self"]._places(variables["block"], variables["trace"])
    where = f"{op.label()} (pipeline at {op.site})"
    if "feed" in variables and numbers is not None:
        done = len(numbers) - operator.length_hint(variables["feed"])
        return f"element {ints(numbers)[max(done - 1, 0)]} of {where}"
    return where if "feed" in variables or "getitem" in variables else None


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


watch = HangWatch()


def _in_child() -> None:
    global watch
    watch = HangWatch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
