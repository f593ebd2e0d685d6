"""Where plans run: in the consumer's thread, in threads, in processes. None of them changes a value."""

from functools import partial
from typing import Any

from headrace._executors import memory as memory
from headrace._executors.ahead import AheadStream
from headrace._executors.choice import ChoosingExecutor
from headrace._executors.inline import InlineExecutor
from headrace._executors.threads import ThreadExecutor, Threads
from headrace._ops.base import Op
from headrace._ops.buffer import Prefetch
from headrace._ops.order import gather_options
from headrace._plan.streams import Context, Stream
from headrace.options import AUTOTUNE, ReadOptions
from headrace.protocols import Executor


def context(op: Op, *, careful: bool = False) -> Context:
    """What a pipeline's streams run on; carefully, everything runs in the consumer's thread."""
    options = gather_options(op)
    threads = Threads()
    if careful:
        return Context(lambda _: InlineExecutor(), lambda stream, _: stream, options, threads.close)
    return Context(partial(_executor, threads), _ahead, options, threads.close)


_DEFAULTS = ReadOptions()


def _executor(threads: Threads, options: ReadOptions | None) -> Executor:
    given = options or ReadOptions(num_threads=AUTOTUNE)
    if given.num_threads == 0:
        return InlineExecutor()
    if given.num_threads is AUTOTUNE:
        return ChoosingExecutor(threads, lambda: _thread_executor(threads, _DEFAULTS.num_threads, given))
    return _thread_executor(threads, given.num_threads, given)


def _thread_executor(threads: Threads, num_threads: Any, options: ReadOptions) -> ThreadExecutor:
    size: Any = options.prefetch_buffer_size
    if size is AUTOTUNE:
        size = _DEFAULTS.prefetch_buffer_size
    return ThreadExecutor(threads, num_threads, size, options.prefetch_buffer_bytes)


def _ahead(stream: Stream, op: Prefetch) -> Stream:
    return stream if op.buffer_size == 0 else AheadStream(stream, op)
