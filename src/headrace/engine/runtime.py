"""Where plans run: in the consumer's thread, in other threads, in processes. None of them changes a value."""

from functools import partial
from typing import Any, cast

from headrace.engine.filling import fill_caches
from headrace.engine.plan import Plan
from headrace.engine.prefetch_thread import PrefetchThreads
from headrace.engine.sizing import BufferLimit
from headrace.engine.thread_executor import Shared, ThreadExecutor, Threads
from headrace.engine.tuning import AutotunedExecutor
from headrace.engine.workers import Workers
from headrace.ops.buffer import ToStream
from headrace.ops.guard import Guard
from headrace.ops.inline import InlineExecutor
from headrace.ops.op import COMMAND
from headrace.ops.order import IndexOp
from headrace.ops.recorder import Recorder
from headrace.ops.streams import Context, FilterWatch
from headrace.options import AUTOTUNE, ReadOptions
from headrace.protocols import Executor
from headrace.threads import join_threads


def context(
    plan: Plan, workers: Workers, recorder: Recorder, guard: Guard | None = None, *, single_step: bool = False
) -> Context:
    """What a pipeline's streams run on; with `single_step`, nothing runs ahead of the consumer."""
    options = plan.options
    threads = Threads()
    prefetch_threads = PrefetchThreads(recorder)
    return Context(
        executor=(lambda _: InlineExecutor()) if single_step else partial(_executor, threads),
        prefetch=(lambda stream, _: stream) if single_step else prefetch_threads.open,
        warm_start=(lambda stream, _: stream) if single_step else prefetch_threads.warm_start,
        processes=partial(workers.open, single_step=single_step),
        watch=lambda op: FilterWatch(op, options),
        interrupt=partial(_interrupt, prefetch_threads, threads),
        close=threads.close,
        record=recorder.of,
        fill=fill_caches,
        guard=guard,
    )


def _interrupt(prefetch_threads: PrefetchThreads, threads: Threads, *, wait: bool) -> None:
    # Threads that compute ahead may wait for threads that read: signal all of them first, then wait for all.
    stopped = prefetch_threads.interrupt() + threads.interrupt()
    if wait:
        join_threads(stopped)


_DEFAULTS = ReadOptions()


def _executor(threads: Threads, op: ToStream) -> Executor:
    number = op.num_threads
    given = op.read_options or _DEFAULTS
    if number == 0:
        return InlineExecutor()
    shared = threads.shared(op.lane_of)
    if number is AUTOTUNE:
        make = lambda number: thread_executor(threads, number or _DEFAULTS.num_threads, given, shared)  # noqa: E731
        return AutotunedExecutor(threads, make, partial(_advise, op))
    return thread_executor(threads, number, given, shared)


_advised: set[tuple[str, str]] = set()


def _advise(op: ToStream, found: str) -> None:
    """Says once for each line of the user's code that worker processes would help."""
    computing = op.parent
    while computing.is_transparent or isinstance(computing, IndexOp):  # they only say which elements come
        computing = computing.parents[0]
    line = computing.label(), op.site
    if line in _advised or op.site == COMMAND:
        return
    _advised.add(line)
    import logging  # slow to import, and hardly ever needed

    logging.getLogger("headrace").warning(
        "%s (pipeline at %s): %s. Worker processes use all cores: add `.mp_prefetch()` at the end of the pipeline. To "
        "skip this trial, set `to_iter_dataset(ReadOptions(num_threads=...))`.",
        *line,
        found,
    )


def thread_executor(
    threads: Threads, num_threads: Any, options: ReadOptions, shared: Shared | None = None
) -> ThreadExecutor:
    """An executor on `num_threads` threads, with the buffer sizes from the options."""
    size: Any = options.prefetch_buffer_size
    if size is AUTOTUNE:
        limit = BufferLimit(cast(int, _DEFAULTS.prefetch_buffer_size))
        return ThreadExecutor(threads, num_threads, limit.number, options.prefetch_buffer_bytes, limit, shared)
    return ThreadExecutor(threads, num_threads, size, options.prefetch_buffer_bytes, shared=shared)
