"""Where plans run: in the consumer's thread, in other threads, in processes. None of them changes a value."""

from functools import partial
from typing import Any

from headrace._executors import memory as memory
from headrace._executors.autotune import AutotunedExecutor
from headrace._executors.inline import InlineExecutor
from headrace._executors.prefetch_thread import Aheads
from headrace._executors.threads import ThreadExecutor, Threads
from headrace._executors.workers import Workers
from headrace._plan.guard import Guard
from headrace._plan.plan import Plan
from headrace._plan.recorder import Recorder
from headrace._plan.streams import Context, FilterWatch
from headrace._utils.threads import join_threads
from headrace.options import AUTOTUNE, ReadOptions, num_threads
from headrace.protocols import Executor


def context(
    plan: Plan, workers: Workers, recorder: Recorder, guard: Guard | None = None, *, single_step: bool = False
) -> Context:
    """What a pipeline's streams run on; with `single_step`, nothing runs ahead of the consumer."""
    options = plan.options
    threads, aheads = Threads(), Aheads(recorder)
    return Context(
        executor=(lambda _: InlineExecutor()) if single_step else partial(_executor, threads),
        ahead=(lambda stream, _: stream) if single_step else aheads.open,
        head_start=(lambda stream, _: stream) if single_step else aheads.give_head_start,
        processes=partial(workers.open, single_step=single_step),
        watch=lambda op: FilterWatch(op, options),
        interrupt=partial(_interrupt, aheads, threads),
        close=threads.close,
        record=recorder.of,
        guard=guard,
    )


def _interrupt(aheads: Aheads, threads: Threads, *, wait: bool) -> None:
    # Threads that compute ahead may wait for threads that read: tell all of them first, then wait for all.
    stopped = aheads.interrupt() + threads.interrupt()
    if wait:
        join_threads(stopped)


_DEFAULTS = ReadOptions()


def _executor(threads: Threads, options: ReadOptions | None) -> Executor:
    number, given = num_threads(options), options or _DEFAULTS
    if number == 0:
        return InlineExecutor()
    if number is AUTOTUNE:
        return AutotunedExecutor(threads, lambda: thread_executor(threads, _DEFAULTS.num_threads, given))
    return thread_executor(threads, number, given)


def thread_executor(threads: Threads, num_threads: Any, options: ReadOptions) -> ThreadExecutor:
    """An executor on `num_threads` threads, with the buffer sizes from the options."""
    size: Any = options.prefetch_buffer_size
    if size is AUTOTUNE:
        size = _DEFAULTS.prefetch_buffer_size
    return ThreadExecutor(threads, num_threads, size, options.prefetch_buffer_bytes)
