"""What every worker does with a task, wherever it runs: computes it, lays out the result in a slot, explains errors."""

import time
from collections.abc import Callable
from typing import Any

from headrace._executors.imports import Missing
from headrace._executors.messages import FAILURE, RESULT
from headrace._executors.shared_plan import find_culprit
from headrace._executors.slots import Slot, Writer
from headrace._executors.tasks import StreamTask, Task, TaskRunner
from headrace._executors.tracebacks import packed_error
from headrace._ops.base import Op
from headrace._plan.guard import Step
from headrace._plan.origins import last_own
from headrace.errors import ElementTimeout, WorkerError
from headrace.options import DatasetOptions


class TaskServer:
    """Answers tasks with results in slots."""

    def __init__(
        self,
        pipelines: list[Op],
        options: DatasetOptions,
        missing: Missing,
        pack: Callable[[Writer, Any], Any] = Writer.dump,
    ):
        self._pack = pack
        self._runner = TaskRunner(pipelines, options, missing.explain, missing.may_be_cause_of)
        self._missing, self._timeout_s = missing, options.timeout_s

    def answer(self, task: Task, slot: Slot) -> tuple[int, Any]:
        """Computes a task; returns whether that failed, and what `pack` makes of the result or the error."""
        try:
            writer = Writer(slot)
            # A stream that failed is not run again here: the consumer opens it again at the right position.
            run = self._runner.run if isinstance(task, StreamTask) else self._missing.retry(self._runner.run)
            result = run(task, writer)
            try:
                return RESULT, self._pack(writer, result)
            except WorkerError:
                raise
            except Exception as e:
                raise _cannot_be_sent(self._runner.find(task.path), result, e) from e
        except BaseException as e:
            return self.failure(e, slot)

    def failure(self, error: BaseException, slot: Slot) -> tuple[int, Any]:
        """The answer to a task that failed."""
        self._missing.explain(error)
        return FAILURE, self._pack(Writer(slot), packed_error(error))

    def late_step(self) -> Step | None:
        """The call that has taken more than `timeout_s`, if there is one."""
        if self._timeout_s is None or self._runner.guard is None:
            return None
        begun = time.monotonic() - self._timeout_s
        return next((step for step in list(self._runner.guard.now.values()) if step.since < begun), None)

    def late_error(self, step: Step) -> ElementTimeout:
        """The error of a call that has taken too long."""
        where = step.where(step.j or 0)
        which = "elements from" if step.j is None else "element"
        origin = where.get("file") or where.get("source")
        record = "" if origin is None else f" (record {where['index']} of {origin})"
        error = ElementTimeout(
            f"{step.op.label()} (pipeline at {step.op.site}) took more than timeout_s={self._timeout_s:g} for {which} "
            f"{where['element']}{record}, so its worker process was ended."
        )
        error.key = "" if step.ends_run else step.key
        return error


def begin(init: Callable[[int, int], None] | None, index: int, count: int) -> None:
    """Calls the user's `worker_init_fn`."""
    try:
        if init is not None:
            init(index, count)
    except BaseException as e:
        e.add_note(f"in worker_init_fn({index}, {count})")
        raise


def _cannot_be_sent(op: Op, result: Any, error: Exception) -> WorkerError:
    """The error for outputs that cannot be pickled."""
    last = last_own(op)
    path, what = find_culprit([("", row) for row in result.block().rows()])
    found = f"{f'its {path}, ' if path else ''}{type(what).__name__},"
    return WorkerError(
        f"An output of {last.label()} (pipeline at {last.site}) cannot be sent from a worker process: {found} cannot "
        f"be pickled ({type(error).__name__}: {error}). Return arrays and plain objects, or put the operation after "
        "`mp_prefetch`."
    )
