"""Where plans run: in the consumer's thread, in threads, in processes. None of them changes a value."""

from headrace._executors.ahead import AheadStream
from headrace._executors.choice import ChoosingExecutor
from headrace._executors.inline import InlineExecutor
from headrace._executors.threads import ThreadExecutor
from headrace._ops.base import Op
from headrace._ops.buffer import Prefetch
from headrace._ops.order import gather_options
from headrace._plan.streams import Context, Stream
from headrace.options import AUTOTUNE, ReadOptions
from headrace.protocols import Executor


def context(op: Op, *, careful: bool = False) -> Context:
    """What a pipeline's streams run on; carefully, everything runs in the consumer's thread."""
    options = gather_options(op)
    if careful:
        return Context(lambda _: InlineExecutor(), lambda stream, _: stream, options)
    return Context(_executor, _ahead, options)


def _executor(options: ReadOptions | None) -> Executor:
    if options is None or options.num_threads is AUTOTUNE:
        return ChoosingExecutor(ReadOptions(num_threads=16))
    if options.num_threads == 0:
        return InlineExecutor()
    size = ReadOptions().prefetch_buffer_size if options.prefetch_buffer_size is AUTOTUNE else options.prefetch_buffer_size
    return ThreadExecutor(options.num_threads, size, options.prefetch_buffer_bytes)  # type: ignore[arg-type]


def _ahead(stream: Stream, op: Prefetch) -> Stream:
    return stream if op.buffer_size == 0 else AheadStream(stream, op)
