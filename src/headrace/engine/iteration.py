"""Walks a stream: hands over runs of outputs, knows its position at any moment, and recovers after an error."""

import math
import operator
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from threading import RLock, get_ident
from typing import Any

from headrace import progress
from headrace.engine import hangs
from headrace.engine.bad_records import BadRecords
from headrace.engine.filling import fill_caches
from headrace.engine.first_wait import FirstWait
from headrace.engine.hosts import compare_rows
from headrace.engine.plan import Plan
from headrace.engine.runtime import context
from headrace.engine.sizing import Growth
from headrace.engine.workers import Workers
from headrace.errors import (
    ClosedError,
    FilterError,
    HeadraceError,
    PipelineError,
    hide_internal_frames,
    interrupt_traceback,
)
from headrace.errors.signals import from_outside, in_pipeline, may_be_from_outside
from headrace.ops import profile
from headrace.ops.blocks import Block
from headrace.ops.buffer import Prefetch
from headrace.ops.global_batch import check_lanes
from headrace.ops.op import Op, ProcessLocal
from headrace.ops.profile import here
from headrace.ops.recorder import Recorder
from headrace.ops.streams import At, Context, Run, Stream, open_stream
from headrace.ops.streams.stream import start_of
from headrace.options import DatasetOptions, ExecutionTrackingMode, config

LONGEST_RUN = 1 << 13
SINGLE_STEPS = 64  # the fewest outputs to make one at a time after an error
RUN_S = 0.006  # runs double while they take less than this
RUN_BYTES = 4 << 20  # runs double while they take less memory than this
# Whoever raised one of these may have done so at any line, also while an answer was read.
AT_ANY_LINE = (MemoryError, RecursionError, StopIteration, StopAsyncIteration)
WATCHED_S = 1.0  # an iterator that has taken this long, or uses workers, is watched for hangs


class Handover:
    """The run being handed over, and `rest`, the position once the run has been emptied.

    A signal handler or another thread may ask for the position at any moment. So each change is one assignment, or
    one call that empties the list: `position()` never sees a partial change.
    """

    __slots__ = ("_at", "_length", "_rows", "iterator", "rest")

    def __init__(self, rows: list[Any], at: At | None, rest: Any = None):
        self._rows = rows
        self._length = len(rows)
        self._at = at
        self.rest = rest
        self.iterator = iter(rows)

    def position(self) -> Any:
        """The position after the last element taken."""
        left = operator.length_hint(self.iterator)  # first: another thread may empty the run meanwhile
        return self._at(self._length - left) if self._rows and self._at is not None else self.rest

    def empty(self, rest: Any) -> None:
        """Drops what is left; the position is `rest` from now on."""
        self.rest = rest
        self._rows.clear()


class Iteration:
    """Makes one run after another, for a chain to hand over.

    After an error, it opens the stream again at the last position and walks it one input at a time: the outputs before
    the failing element still come, and from then on every call raises the error. What was not raised inside
    a call of the pipeline's functions or sources, for instance by a signal handler, goes straight to the user, and the
    next call continues.
    """

    def __init__(self, op: Op):
        check_lanes(op)
        self.op = op
        self.plan = Plan(op)
        self._run = Handover([], None)
        self._kept = ProcessLocal()
        self._stream: Stream | None = None
        self._context: Context | None = None
        self._workers = Workers(self.plan)
        self._bad_records: BadRecords | None = None
        self.recorder = Recorder(measures_all=_measures_all(self.plan.options))
        self._n = 1
        self._longest = LONGEST_RUN
        self._growth = Growth()
        self._single_steps_left = 0  # outputs still to be made one at a time
        self._caution = 0  # how many there were after the last error
        self._first_error: BaseException | None = None  # the reason for single steps
        self._once: BaseException | None = None  # what came from outside, and is raised late
        self._error: tuple[BaseException, Any] | None = None  # the error that every call raises, and its traceback
        self._one_thread = RLock()  # makes runs; taking elements out of one is atomic
        self._stream_is_single_step = False
        self._in_step = False  # whether `_run` has everything pulled from the stream
        self._ended = self._closed = False
        self._caches_are_full = not op.has_disk_cache
        self._is_compared = False  # with the pipelines of other processes
        # Since when a thread waits for a run, and which thread; and the last wait that was reported, and how often.
        self.waiting: tuple[float, int] | None = None
        self.reported: tuple[tuple[float, int] | None, int] = (None, 0)
        self._watched = False
        self._first_wait = FirstWait(op, self.recorder) if progress.is_shown() else None

    def __iter__(self) -> "Iteration":
        return self

    # ---- its position

    def position(self) -> Any:
        """The position after the last element handed over."""
        position = self._run.position()
        return start_of(self.op) if position is None else position

    def num_ahead(self) -> int:
        """How many elements are made, counted and not handed over yet."""
        return operator.length_hint(self._run.iterator)

    @property
    def bad_records(self) -> BadRecords:
        if self._bad_records is None:
            self._bad_records = BadRecords(self.plan)
        return self._bad_records

    def go_to(self, position: Any) -> None:
        """Continues from a position; raises what may have come from outside and was not raised yet."""
        self._discard_stream()
        self.recorder.pause()
        self._n = 1
        self._single_steps_left = 0
        self._caution = 0
        unsettled = self._first_error
        self._first_error = None
        self._error = None
        self._ended = False
        self._kept = ProcessLocal()
        self._drop_run(position)
        if unsettled is not None and may_be_from_outside(unsettled):
            raise unsettled.with_traceback(interrupt_traceback(unsettled))

    def _drop_run(self, position: Any) -> None:
        """Drops what is made and not handed over; the position is `position` from now on."""
        self.recorder.outputs.elements -= self.num_ahead()
        self._run.empty(position)

    # ---- making runs

    def __next__(self) -> Iterator[Any]:
        with self._one_thread:
            while True:
                try:
                    run = self._next_run() if self._first_wait is None else self._first_run(self._first_wait)
                    if run is not None:
                        return run
                except BaseException as e:
                    e = self._handle(e)
                    if e is not None:
                        raise e.with_traceback(interrupt_traceback(e))  # noqa: B904  (it is the error, or what it came of)
                self._raise_if_over()

    def _first_run(self, wait: FirstWait) -> Iterator[Any] | None:
        with wait:
            run = self._next_run()
        if run is not None:
            self._first_wait = None
        return run

    def _raise_if_over(self) -> None:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        if self._error is not None:
            error, traceback = self._error
            raise error.with_traceback(traceback)
        if self._ended:
            raise StopIteration

    def _next_run(self) -> Iterator[Any] | None:
        """Prepares the next outputs for handing over; `None` if there are none now."""
        if operator.length_hint(self._run.iterator):
            return self._run.iterator  # a new chain continues the run of the last one
        if self._closed or self._ended or self._error is not None or not self._has_caches() or not self._agrees():
            return None
        if not self._in_step:
            self._discard_stream()  # an interrupt hit it, and perhaps a second one hit its handling
        elif self._stream is not None:
            self._run.empty(self._stream.position)
            if self._stream_is_single_step and not self._single_steps_left:
                self._stop_single_steps()
        stream = self._open()
        self._in_step = False
        run = self._pull(stream)
        if run is None:
            self._stay_here()
            self._ended = True
            self.recorder.pause()
            self._unwatch()
            self._workers.park()
            self._settle()
            return None
        rows = run.block.own_rows()
        if rows:
            self._single_steps_left = max(0, self._single_steps_left - len(rows))
            self._run = Handover(rows, run.at)
        self._in_step = True
        return self._run.iterator if rows else None

    def _has_caches(self) -> bool:
        """Fills caches on disk; after an error, which comes before the first output, every call raises it."""
        if not self._caches_are_full:
            try:
                fill_caches(self.op)
                self._caches_are_full = True
            except Exception as e:
                if from_outside(e):
                    raise
                self._error = _lasting_error(e)
        return self._error is None

    def _agrees(self) -> bool:
        """Whether other processes read the same data for global batches; if not, every call raises the error."""
        if not self._is_compared:
            self._is_compared = True
            try:
                compare_rows(self.op)
            except PipelineError as e:
                self._error = _lasting_error(e)
        return self._error is None

    def _pull(self, stream: Stream) -> Run | None:
        begin = time.perf_counter()
        waited_s = here.waited_s
        outputs = self.recorder.outputs
        self.waiting = begin, get_ident()
        measured = outputs.profile()
        n = 0 if self._single_steps_left else self._n
        try:
            pull = in_pipeline if measured is None else partial(measured.run, in_pipeline)
            run = pull(stream.pull, n)
        finally:
            self.waiting = None
        if run is not None:
            end = time.perf_counter()
            self.recorder.handed_over(run.block, measured, begin, end, here.waited_s - waited_s)
            if not self._single_steps_left:
                self._adapt(run.block, end - begin)
            if not self._watched and outputs.busy_s > WATCHED_S:
                self._watch()
        return run

    def _watch(self) -> None:
        """Lets a thread say where the pipeline is when it takes long; not for a few fast elements."""
        if self.plan.options.warn_after_s is not None:
            self._watched = True
            hangs.watch.add(self)

    @property
    def warn_after_s(self) -> float:
        """After how long a wait is reported."""
        return self.plan.options.warn_after_s or math.inf

    def _unwatch(self) -> None:
        if self._watched:
            self._watched = False
            hangs.watch.remove(self)

    def work_of_workers(self) -> list[str]:
        """What the workers are doing, for a warning."""
        return self._workers.work_of_workers()

    def _adapt(self, block: Block, took_s: float) -> None:
        if took_s > 4 * RUN_S:
            self._n = max(1, min(self._n, len(block)) // 2)
            self._growth.restart()
        elif took_s < RUN_S and self._n < self._longest and self._growth.may_double():
            # Count what was asked for: threads may return less now, and all of it in the next run.
            if 2 * self._n * block.num_bytes() <= RUN_BYTES * max(1, len(block)):
                self._n *= 2
            else:
                self._longest = self._n

    # ---- recovering after an error

    def _handle(self, error: BaseException) -> BaseException | None:
        """Prepares to walk to an error in single steps, or to raise it from now on; returns an error of others."""
        others = self._outside_error(error)
        if others:
            profile.forget()
        if others or may_be_from_outside(error) or isinstance(error, AT_ANY_LINE):
            self._workers.close(wait=False)  # a message may have been half read
        self._stay_here(wait=not others)
        if others:
            self._n = 1
            return others
        if self._closed:  # by another thread, which caused the error
            return None
        if isinstance(error, FilterError) or getattr(error, "of_many", False) or self._single_steps_left:
            # The error's traceback keeps this iterator alive; do not let it keep the workers too.
            self._workers.close(wait=False)
            self._first_error = None
            self._error = _lasting_error(error)
        else:
            self._go_in_single_steps(error)
        return None

    def _outside_error(self, error: BaseException) -> BaseException | None:
        """The error, or what caused it, unless it was raised inside a call of the pipeline's functions and sources."""
        if error is self._once:
            self._once = None
            return error
        return from_outside(error) or (None if _is_of_a_call(error) else error)

    def _go_in_single_steps(self, error: BaseException) -> None:
        # Longer each time: the failing element may be far into a window that is read again each time.
        self._caution = max(self._n, 4 * self._caution, SINGLE_STEPS)
        self._single_steps_left = self._caution
        self._first_error = error

    def _stop_single_steps(self) -> None:
        """Returns to normal runs, because the error did not recur."""
        self._settle()
        self._discard_stream()
        self._n = 1

    def _settle(self) -> None:
        """Logs that the error behind the single steps did not recur; raises it if it may have come from outside."""
        error = self._first_error
        self._first_error = None
        if error is not None and may_be_from_outside(error):
            self._single_steps_left = 0
            self._once = error
            raise error
        if error is not None and not isinstance(error, ClosedError):
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning(
                "`%s` failed for a block of elements, but succeeded when retried one element at a time.",
                self.op.label(),
                exc_info=error,
            )

    def _stay_here(self, *, wait: bool = True) -> None:
        """Drops the stream, which `_open` opens again at the last position."""
        self._drop_run(self._run.position())
        self._discard_stream(wait=wait)

    def _open(self) -> Stream:
        if self._stream is None:
            self._stream_is_single_step = self._single_steps_left > 0
            self._workers.go_on()
            guard = self.bad_records.guard()
            single_step = self._stream_is_single_step
            made = context(self.plan, self._workers, self.recorder, guard, single_step=single_step)
            self._context = replace(made, kept=self._kept)
            self._stream = open_stream(self.op, self._run.position(), self._context)
            self._in_step = True
            if not self._watched and (self._workers.are_open or isinstance(self.op, Prefetch)):
                self._watch()
        return self._stream

    def start(self) -> None:
        if self._closed:
            raise ClosedError("This iterator is closed; make a new one.")
        fill_caches(self.op)
        try:
            stream = self._open()
            stream.start()
            self._stream = self._context.warm_start(stream, self.op)  # type: ignore[union-attr]
        except BaseException:
            self._stay_here()
            raise

    def _discard_stream(self, *, wait: bool = True) -> None:
        stream = self._stream
        self._stream = None
        context = self._context
        if context is None:
            return
        try:
            self._workers.interrupt()
            context.interrupt(wait=wait)
            if stream is not None:
                stream.close(wait=wait)
            context.close(wait=wait)
        except BaseException:
            self._workers.close(wait=False)  # a message may have been half read
            raise
        self._context = None  # last: after an interrupt above, the next call closes it

    # ---- the end

    def close(self) -> None:
        self._closed = True
        self._unwatch()
        self._drop_run(self._run.position())
        self._discard_stream()
        self._workers.close()

    def drop(self) -> None:
        """Releases everything without waiting, when the iterator is garbage."""
        try:
            self._unwatch()
            self._discard_stream(wait=False)
        finally:
            if not self._ended:
                self._workers.close(wait=False)


def _is_of_a_call(error: BaseException) -> bool:
    """Whether an error was raised below one of the functions through which all calls of a pipeline's functions go."""
    calls = (in_pipeline.__code__, open_stream.__code__)
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in calls:
        traceback = traceback.tb_next
    return traceback is not None or isinstance(error, HeadraceError)


def _lasting_error(error: BaseException) -> tuple[BaseException, Any]:
    """An error that every call raises from now on, and its traceback."""
    hide_internal_frames(error)
    return _without_stop_iteration(error), error.__traceback__


def _without_stop_iteration(error: BaseException) -> BaseException:
    """An error that does not look like the end of an iterator."""
    if not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(
        "A function of the pipeline raised StopIteration. If it calls `next(iterator)`, write "
        "`next(iterator, default)`."
    )
    wrapped.__cause__ = error
    return wrapped.with_traceback(error.__traceback__)


def _measures_all(options: DatasetOptions) -> bool:
    return config.py_debug_mode or options.execution_tracking_mode is ExecutionTrackingMode.STAGE_TIMING
