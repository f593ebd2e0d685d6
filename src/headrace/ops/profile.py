"""Which operations time goes to, measured in some pieces of work: a pull, a chunk, or a worker's task.

While nothing is measured, an operation costs a look at `measuring.threads`. The time of an operation does not include
that of the operations below it.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, TypeVar

from headrace.ops.op import Op

T = TypeVar("T")
ALL_THREADS = -1  # in `measuring.threads`: operations have names in traces, whichever thread computes them


class OperationTime:
    """How long one operation took, and how many outputs it made."""

    __slots__ = ("elements", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.elements = 0


class Profile:
    """The times of operations in one piece of work, which runs in one thread.

    Attributes:
        times: The time of each operation.
        took_s: How long all of it took.
        cpu_s: How long of that the thread had a core.
        calls: How many calls of operations were timed.
    """

    __slots__ = ("_inner_s", "calls", "cpu_s", "times", "took_s")

    def __init__(self) -> None:
        self.times: dict[Op, OperationTime] = {}
        self.took_s = self.cpu_s = self._inner_s = 0.0
        self.calls = 0

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Does a piece of work, and measures it."""
        outer = here.profile
        thread = threading.get_ident()
        begin = time.perf_counter()
        cpu_begin = time.thread_time()
        try:
            here.profile = self
            measuring.threads.add(thread)
            return work(*args)
        finally:
            here.profile = outer
            self.cpu_s, self.took_s = time.thread_time() - cpu_begin, time.perf_counter() - begin
            if outer is None:
                measuring.threads.discard(thread)
            else:  # this counts by itself
                outer.leave_out(self.took_s)

    def call(self, op: Op, function: Callable[..., Any], args: Any, named: Any) -> Any:
        """Calls a function of an operation, which returns a block or a run, and counts its time."""
        outer = self._inner_s
        self._inner_s = 0.0
        made = None
        begin = time.perf_counter()
        try:
            made = function(*args, **named)
            return made
        finally:
            took_s = time.perf_counter() - begin
            self.calls += 1
            counted = self.times.get(op) or self.times.setdefault(op, OperationTime())
            counted.seconds += took_s - self._inner_s
            counted.elements += 0 if made is None else len(getattr(made, "block", made))
            self._inner_s = outer + took_s

    def leave_out(self, seconds: float) -> None:
        """Counts time that is no operation's."""
        self._inner_s += seconds


class _Measuring:
    """Which threads measure what they do, and what names operations in the traces of a profiler."""

    __slots__ = ("annotate", "threads")

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.annotate: Callable[[Op], AbstractContextManager[Any]] | None = None


class _Here(threading.local):
    """What a thread does now.

    Attributes:
        profile: What measures it.
        waited_s: How long it has waited so far for other threads and processes of its pipelines.
    """

    profile: Profile | None = None
    waited_s = 0.0


measuring = _Measuring()
here = _Here()


def timed(op: Op, function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Calls a function of an operation; counts its time if this thread is measured."""
    if measuring.annotate is not None:
        with measuring.annotate(op):
            return _time_call(op, function, args, named)
    return _time_call(op, function, args, named)


def _time_call(op: Op, function: Callable[..., T], args: Any, named: Any) -> T:
    profile = here.profile
    return function(*args, **named) if profile is None else profile.call(op, function, args, named)


def labelled(named: Callable[[str], Any]) -> Callable[[Op], AbstractContextManager[Any]]:
    """For an operation, the context that a profiler has for a name."""
    labels: weakref.WeakKeyDictionary[Op, str] = weakref.WeakKeyDictionary()

    def annotate(op: Op) -> Any:
        label = labels.get(op)
        if label is None:
            label = labels[op] = f"headrace: {op.label()}"
        return named(label)

    return annotate


@contextmanager
def annotated(annotate: Callable[[Op], AbstractContextManager[Any]]) -> Iterator[None]:
    """Within it, every operation of this process is computed in its own context."""
    before = measuring.annotate
    measuring.annotate = annotate
    measuring.threads.add(ALL_THREADS)
    try:
        yield
    finally:
        measuring.annotate = before
        if before is None:
            measuring.threads.discard(ALL_THREADS)


def timed_pull(pull: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
    """The method `pull` of a stream, which counts its time for the operation that the stream is of."""

    @wraps(pull)
    def call(stream: Any, n: int) -> Any:
        if not measuring.threads or stream.op is None:
            return pull(stream, n)
        return timed(stream.op, pull, stream, n)

    return call


def waited(seconds: float) -> None:
    """Counts time in which this thread waited for others of the pipeline."""
    here.waited_s += seconds
    if here.profile is not None:
        here.profile.leave_out(seconds)


def forget() -> None:
    """After an exception from a signal handler, which can leave this thread with a profile."""
    here.profile = None
    measuring.threads.discard(threading.get_ident())
