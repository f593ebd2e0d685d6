"""Decides by a trial whether worker processes pay, for an `mp_prefetch` with `num_workers=AUTOTUNE`.

Outputs are computed in this process first, in threads if those pay. If the consumer waits for them, workers are
started: soon if outputs are costly and threads do not help, otherwise only after a while. A short run is over before
they are ready, so it gets none; one of unknown length counts as long once it has taken long. Then they go on from the
position after the last output, and stay if they are faster. If not, they are tried again after a while, since other
programs may have had the cores. Positions say nothing of who computes, so nothing but speed depends on the choice. It
is kept with the operation, for the next iterator.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace._executors.autotune import ELEMENT_S, AutotunedExecutor
from headrace._ops.buffer import MpPrefetch, ToStream
from headrace._ops.ending import num_outputs
from headrace._plan.streams import Context, Position, Run, Stream, UnaryStream, open_stream
from headrace._utils.signals import let_through
from headrace._utils.threads import has_gil, num_cores
from headrace.protocols import Executor

HERE_S = 0.25  # how long to wait for outputs that are computed here: longer than most trials of threads
THREADS_S = 1.0  # where threads come first: longer than all of them
WORKERS_S = 0.2  # and for those of workers,
RAMP_S = 0.3  # once their chunks have grown
WAITS, MOSTLY = 0.1, 0.5  # the share of time that a consumer waits for costly outputs, and for others, to want workers
LOOKS = 4  # how many times in a row, for others
LONG_S = 3.0  # how long the rest of a run takes here, at least, if workers are to pay for their start
AGAIN_S = 20.0  # how long to do without workers that were not faster; each time twice as long
AT_ONCE_S = 0.1  # how long outputs may take that are computed here at once, after workers were not faster
STILL_FASTER = 1.05  # workers that become so much faster from look to look may win yet: at first their memory is new
GAIN = 1.1  # workers must be this much faster: then what is chosen has nine tenths of the best speed


class Choice:
    """What trials of one `mp_prefetch` have found; `workers` is `None` as long as that is nothing.

    Attributes:
        workers: Whether workers are faster.
        epochs_s: How long the epochs so far took, which may come again.
    """

    workers: bool | None = None
    epochs_s = 0.0


class TrialStream(UnaryStream):
    """Outputs computed here, then by workers, and from then on by whoever was faster.

    Args:
        op: The `mp_prefetch`.
        position: Where to begin.
        context: What streams run on.
        choice: Gets what the trial finds.
        start_workers: Starts workers; returns a function that says whether they are ready.
        open_workers: Opens the stream that workers compute, at a position.
        end_workers: Ends the workers.
    """

    def __init__(
        self,
        op: MpPrefetch,
        position: Position,
        context: Context,
        choice: Choice,
        start_workers: Callable[[], Callable[[], bool]],
        open_workers: Callable[[Position], Stream],
        end_workers: Callable[[], None],
    ):
        self._op, self._choice = op, choice
        self._start_workers, self._open_workers, self._end_workers = start_workers, open_workers, end_workers
        self._are_ready: Callable[[], bool] | None = None
        self._context = context
        self._executors: list[AutotunedExecutor] = []
        self._is_stuck = False
        stream = self._open_here(position)
        super().__init__(stream.position, stream)
        self._with_workers = False
        self._rate_here = self._rate_before = 0.0
        self._outputs, self._waited_s, self._unmeasured = 0, 0.0, 0
        self._since_s = self._begin_s = time.perf_counter()
        self._made, self._is_whole = 0, position is None
        self._late_looks, self._ramp_end_s = 0, 0.0
        self._again_s, self._pause_s = 0.0, AGAIN_S
        self._most = sys.maxsize  # outputs at a time
        self._ends = num_cores() == 1

    def _open_here(self, position: Position) -> Stream:
        return open_stream(self._op.parent, position, replace(self._context, executor=self._executor))

    def _executor(self, op: ToStream) -> Executor:
        executor = self._context.executor(op)
        if isinstance(executor, AutotunedExecutor):
            executor.on_stuck = self._note_stuck  # instead of advice to do what this does
            self._executors.append(executor)
        return executor

    def _note_stuck(self, found: str) -> None:
        self._is_stuck = True

    def pull(self, n: int) -> Run | None:
        begin = time.perf_counter()
        if not self._outputs:
            self._since_s = begin
        run = self.parent.pull(n if self._with_workers else min(n, self._most))
        if run is None:
            self._choice.epochs_s += time.perf_counter() - self._begin_s
            return None
        run = self._run(*run)
        self._made += len(run.block)
        if not self._ends:
            self._count(len(run.block), time.perf_counter() - begin)
        return run

    def _count(self, outputs: int, waited_s: float) -> None:
        if self._are_ready is not None:
            self._try(self._go_on_when_ready)
            return
        if self._unmeasured > 0:
            self._unmeasured -= outputs
            return
        if self._again_s > 0:
            if time.perf_counter() < self._again_s:
                return
            self._again_s, self._since_s = 0.0, time.perf_counter()
        self._outputs += outputs
        self._waited_s += waited_s
        if self._with_workers:
            self._judge_workers()
        elif self._outputs and (self._waited_s >= self._here_s or (self._is_stuck and self._waited_s > 0)):
            self._judge_here()

    def _judge_here(self) -> None:
        """Starts workers if the consumer waits too long for what is computed here."""
        elapsed_s = time.perf_counter() - self._since_s
        self._rate_here = self._outputs / self._waited_s
        if any(executor.waits_for_data and executor.threads_pay is None for executor in self._executors):
            return  # threads are on trial
        threads_pay = any(executor.threads_pay for executor in self._executors) and not self._is_stuck
        waits_for_data = any(executor.waits_for_data for executor in self._executors)
        if threads_pay and (waits_for_data or not has_gil()):  # workers would do no better
            self._ends, self._choice.workers = True, False
            return
        is_costly = self._waited_s >= ELEMENT_S * self._outputs and not threads_pay
        is_late = self._waited_s > (WAITS if is_costly else MOSTLY) * elapsed_s
        self._late_looks = self._late_looks + 1 if is_late else 0
        if self._late_looks >= (1 if is_costly else LOOKS) and self._rest_s() >= LONG_S:
            self._try(self._start)
        self._outputs, self._waited_s = 0, 0.0

    def _rest_s(self) -> float:
        """How long the rest takes, if it goes on like this: as long again, if nobody knows, and all epochs so far."""
        took_s = time.perf_counter() - self._begin_s
        count = num_outputs(self._op.parent) if self._is_whole else None
        return self._choice.epochs_s + (took_s if count is None else took_s * (count / self._made - 1))

    def _judge_workers(self) -> None:
        """Keeps the workers if they are faster."""
        if time.perf_counter() < self._ramp_end_s:
            self._outputs, self._waited_s = 0, 0.0
        elif self._waited_s >= WORKERS_S or self._outputs * WORKERS_S >= 8 * self._rate_here:
            rate = self._outputs / max(self._waited_s, 1e-9)
            if rate >= GAIN * self._rate_here:
                self._ends = True
            elif rate < STILL_FASTER * self._rate_before:
                self._go_on_here()
            self._outputs, self._waited_s, self._rate_before = 0, 0.0, rate

    @property
    def _here_s(self) -> float:
        """How long to wait for outputs that are computed here: without a GIL, until threads have been tried."""
        tries_threads = any(executor.threads_pay is None for executor in self._executors)
        return THREADS_S if tries_threads and not has_gil() else HERE_S

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as e:  # such as a function that cannot be pickled
            let_through(e)
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning(
                "%s (pipeline at %s): no worker processes, since they cannot be started: %s",
                self._op.label(),
                self._op.site,
                e,
            )
            self._are_ready, self._ends, self._choice.workers = None, True, False

    def _start(self) -> None:
        self._are_ready = self._start_workers()

    def _go_on_when_ready(self) -> None:
        assert self._are_ready is not None
        if not self._are_ready():
            return
        workers = self._open_workers(self.position)
        self._are_ready, self._with_workers = None, True
        self._outputs, self._waited_s, self._unmeasured = 0, 0.0, 2 * num_cores()
        self._ramp_end_s, self._rate_before = time.perf_counter() + RAMP_S, 0.0
        self.parent.close(wait=False)
        self.parent = workers
        self._choice.workers = True  # also after an error: what ends its process must not run here

    def _go_on_here(self) -> None:
        self._with_workers = self._choice.workers = False
        self.parent.close()
        self._end_workers()
        self.parent = self._open_here(self.position)
        self._most = max(1, int(AT_ONCE_S * self._rate_here))  # the consumer asks for as many as workers would give
        self._outputs, self._waited_s, self._late_looks = 0, 0.0, 0
        self._again_s, self._pause_s = time.perf_counter() + self._pause_s, 2 * self._pause_s


def number(num_workers: Any) -> int:
    """How many processes `AUTOTUNE` means: one for each core."""
    return num_workers if isinstance(num_workers, int) else num_cores()
