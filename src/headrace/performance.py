"""Chooses threads, workers and buffers for a pipeline, from a short trial of it.

The trial first computes elements in the caller's thread, with nothing ahead. If these take long and most of the time
goes into reading, it also reads in one thread and in two, to see whether threads help. All of it takes a second at
most, or one element if that takes longer. The choice changes only speed, never a value.
"""

import itertools
import threading
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.dataset.base import Dataset
from headrace.engine.free_memory import available_bytes
from headrace.engine.plan import all_operations
from headrace.engine.tuning import ELEMENT_S, THREADS_GAIN
from headrace.errors import PipelineError
from headrace.ops.blocks import Block
from headrace.ops.buffer import ToStream
from headrace.ops.guard import Guard
from headrace.ops.inline import InlineExecutor
from headrace.ops.kernels import fetcher
from headrace.ops.op import Op
from headrace.ops.order import gather_options
from headrace.ops.source import UserDataset
from headrace.ops.streams import Context, FilterWatch, Position, Run, Stream, UnaryStream, open_stream, stream_of
from headrace.options import DatasetOptions, MultiprocessingOptions, ReadOptions, check_count
from headrace.threads import has_gil, map_in_threads, thread_wanted_s
from headrace.threads import num_cores as num_cores

SAMPLING_S = 0.4  # the sample starts no element after this
TRIAL_S = 0.9  # threads start no round after this
ROUND_S = 0.03  # how long threads read in one round
MOST_ROUNDS = 6
WAITS = 0.5  # a thread that wants a core for less than this share of its time waits for something else
# How many times the cores of one thread two threads must want: it is 2 if they release the GIL; if not, it is 1, or up
# to 1.4 on a busy machine.
CORES_WANTED = 1.6
RUN_S = 0.01  # reads grow while they take less than this
MANY_INPUTS = 2  # more inputs for each output come from a batch, a window, or a filter that drops
MOST_THREADS = 16
WORKER_BUFFER_SIZE = 4
DEFAULT_BUDGET = 1 << 30  # in bytes, where the system does not report how much memory is free
SHARE_OF_MEMORY = 4  # otherwise, the budget is the free memory divided by this


@dataclass(frozen=True)
class PerformanceConfig:
    """Options for `mp_prefetch` and `to_iter_dataset`.

    >>> config = pick_performance_config(MapDataset.range(100).map(str))
    >>> sorted(vars(config))
    ['multiprocessing_options', 'read_options']
    """

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: Dataset,
    *,
    ram_budget_mb: int | None = None,
    max_workers: int | None = None,
    max_buffer_size: int | None = None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Options that suit a pipeline on this machine, found by computing some of its elements.

    Cheap pipelines run in the consumer. Where most of the time goes into reading, in functions that wait or release the
    GIL, or in any on a Python without a GIL, threads read; otherwise workers compute. The trial runs in this process,
    so functions that need a `worker_init_fn` fail in it. Errors of the pipeline are raised unchanged.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.range(1000).map(lambda x: x + 1)
    >>> config = pick_performance_config(ds)
    >>> config.multiprocessing_options.num_workers, config.read_options.num_threads
    (0, 0)
    >>> stream = ds.to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)

    Args:
        ds: A `MapDataset` or an `IterDataset`.
        ram_budget_mb: The most memory for all buffers, in MiB; by default a quarter of what is free.
        max_workers: The most worker processes; by default one for each core that this process may use.
        max_buffer_size: The most elements that a buffer may hold.
        samples_to_check: How many elements to compute, as far as time allows.
    """
    if not isinstance(ds, Dataset):
        raise PipelineError(f"`pick_performance_config` takes a MapDataset or an IterDataset; got {type(ds).__name__}.")
    limits = {"ram_budget_mb": ram_budget_mb, "max_workers": max_workers, "max_buffer_size": max_buffer_size}
    for name, value in limits.items():
        if value is not None:
            check_count(name, value, least=0 if name == "max_workers" else 1)
    check_count("samples_to_check", samples_to_check, least=1)
    budget = _free_share() if ram_budget_mb is None else ram_budget_mb << 20
    cores = num_cores()
    most_workers = cores if max_workers is None else max_workers
    if any(op.runs_in_consumer for op in all_operations(ds._op)):
        most_workers = 0

    begin = time.perf_counter()
    sample = _sample_stream(ds._stream_op, samples_to_check, begin + SAMPLING_S)
    read = ReadOptions(0, 0, min(ReadOptions.prefetch_buffer_bytes, budget))
    work = MultiprocessingOptions(0, buffer_bytes=min(MultiprocessingOptions.buffer_bytes, budget))
    if sample.cost_s >= ELEMENT_S:
        source = max(sample.reads.values(), key=lambda each: each.took_s, default=None)
        most_threads = 0
        if source is not None and sample.mostly_reads:
            most_threads = _threads_that_help(source, sample, cores, begin + TRIAL_S)
        if source is not None and most_threads:
            read = _reading(read, most_threads, budget // source.element_bytes, max_buffer_size)
        else:
            work = _working(work, most_workers, budget // sample.element_bytes, max_buffer_size)
    return PerformanceConfig(work, read)


def _free_share() -> int:
    available = available_bytes()
    return DEFAULT_BUDGET if available is None else max(1, available // SHARE_OF_MEMORY)


def _reading(options: ReadOptions, most_threads: int, fitting: int, max_buffer_size: int | None) -> ReadOptions:
    """As many threads as have room for an element each."""
    size = min(ReadOptions.prefetch_buffer_size, fitting, max_buffer_size or fitting)  # type: ignore[type-var]
    num_threads = min(most_threads, size)
    return replace(options, num_threads=num_threads, prefetch_buffer_size=size if num_threads else 0)


def _working(
    options: MultiprocessingOptions, most_workers: int, fitting: int, max_buffer_size: int | None
) -> MultiprocessingOptions:
    """As many workers as have room: each holds finished elements, and the one that it computes."""
    num_workers = min(most_workers, fitting // 2)
    size = min(WORKER_BUFFER_SIZE, max_buffer_size or WORKER_BUFFER_SIZE, fitting // max(num_workers, 1) - 1)
    return replace(options, num_workers=num_workers, per_worker_buffer_size=max(size, 1))


# ---------------------------------------------------------------------------------------- the caller's thread


@dataclass
class _Reads:
    """What was read from one random-access chain, and how long this took."""

    op: Op
    took_s: float = 0.0
    elements: int = 0
    element_bytes: int = 1


@dataclass
class _Sample:
    """What some outputs of a pipeline cost."""

    outputs_s: list[float] = field(default_factory=list)
    inputs_s: list[float] = field(default_factory=list)  # with all that was computed until the next was read
    took_s: float = 0.0
    busy_s: float = 0.0  # how much of it the thread wanted a core
    element_bytes: int = 1
    reads: dict[Op, _Reads] = field(default_factory=dict)
    guard: Guard | None = None

    @property
    def cost_s(self) -> float:
        """What an output costs; or an input, where the first output needs many, as in a window."""
        output_s = _median(self.outputs_s)
        has_many = len(self.inputs_s) > MANY_INPUTS * len(self.outputs_s)
        return max(output_s, _median(self.inputs_s)) if has_many else output_s

    @property
    def mostly_reads(self) -> bool:
        """Whether threads could help at all: they compute what comes before `to_iter_dataset`."""
        return sum(reads.took_s for reads in self.reads.values()) > self.took_s / 2


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


class _OutOfTime(Exception):
    """The sample ends here."""


def _sample_stream(op: Op, count: int, deadline: float) -> _Sample:
    """Computes outputs until there are enough or time is up."""
    sample = _Sample()
    last = begin = time.perf_counter()
    wanted_s = thread_wanted_s()

    def paced(op: Op, position: Position, context: Context) -> Stream | None:
        return _PacedStream(op, position, context, sample, deadline) if isinstance(op, ToStream | UserDataset) else None

    policy = gather_options(op).on_error
    sample.guard = None if policy.raises else Guard(policy, lambda records: None)  # the run itself will report them
    stream = open_stream(op, None, replace(_HERE, remote_stream=paced, guard=sample.guard))
    try:
        while len(sample.outputs_s) < count and (run := stream.pull(1)) is not None:
            if rows := run.block.own_rows():
                now = time.perf_counter()
                sample.outputs_s += [(now - last) / len(rows)] * len(rows)
                sample.element_bytes = max(sample.element_bytes, _row_bytes(run.block))
                last = now
    except _OutOfTime:
        pass
    finally:
        stream.close()
    sample.took_s, sample.busy_s = time.perf_counter() - begin, thread_wanted_s() - wanted_s
    return sample


_HERE = Context(  # whatever the pipeline says
    executor=lambda _: InlineExecutor(),
    prefetch=lambda stream, _: stream,
    processes=lambda op, position, context: open_stream(op.parent, position, context),
    watch=lambda op: FilterWatch(op, DatasetOptions(filter_warn_threshold_ratio=None)),
    close=lambda **_: None,
)


def _row_bytes(block: Block) -> int:
    return -(-block.num_bytes() // max(len(block), 1))


class _PacedStream(UnaryStream):
    """Where a pipeline begins: times reads, and keeps them short so that the sample can end in time.

    However many elements the pipeline asks for, a read grows only while the one before was used up soon.
    """

    def __init__(self, op: Op, position: Position, context: Context, sample: _Sample, deadline: float):
        parent = stream_of(op, position, context)
        super().__init__(parent.position, parent)
        self._sample = sample
        self._deadline = deadline
        self._reads = sample.reads.setdefault(op, _Reads(op.parent)) if isinstance(op, ToStream) else None
        self._size = 0
        self._last = time.perf_counter()

    def pull(self, n: int) -> Run | None:
        begin = time.perf_counter()
        since_s = begin - self._last
        self._sample.inputs_s += [since_s / max(self._size, 1)] * self._size
        if begin >= self._deadline:
            raise _OutOfTime
        self._size = max(1, min(n, 2 * self._size if since_s < RUN_S else 1))
        self._last = begin
        before = self.parent.position
        run = self.parent.pull(self._size)
        if run is None:
            return None
        if self._reads is not None:
            self._reads.took_s += time.perf_counter() - begin
            self._reads.elements += max(1, self.parent.position - before)
            self._reads.element_bytes = max(self._reads.element_bytes, _row_bytes(run.block))
        return self._run(*run)


# -------------------------------------------------------------------------------------------------- threads


class _Round(NamedTuple):
    """How many elements threads read per second, and how many cores they wanted."""

    rate: float
    cores: float


def _threads_that_help(reads: _Reads, sample: _Sample, cores: int, deadline: float) -> int:
    """How many threads keep all cores busy; 0 unless two are faster than one: if they wait or release the GIL."""
    length = reads.op.length()
    indices = itertools.count(reads.elements)
    busy_share = sample.busy_s / sample.took_s
    fetch = fetcher(reads.op, sample.guard)

    def read_for_a_while(start: threading.Barrier) -> tuple[float, float, float]:
        start.wait()
        wanted_s = thread_wanted_s()
        begin = time.perf_counter()
        now = begin
        while now < begin + ROUND_S:
            place = next(indices) % length
            fetch(range(place, place + 1)).own_rows()
            now = time.perf_counter()
        return begin, now, thread_wanted_s() - wanted_s

    def read(num_threads: int) -> _Round:
        first = next(indices)
        starts = [threading.Barrier(num_threads)] * num_threads
        begins, ends, wanted_s = zip(
            *map_in_threads(read_for_a_while, starts, num_threads, "headrace-trial"), strict=True
        )
        took_s = max(ends) - min(begins)
        return _Round((next(indices) - first) / took_s, sum(wanted_s) / took_s)

    alone = []
    together = []
    cost_s = max(reads.took_s / max(reads.elements, 1), ROUND_S)
    while len(alone) < MOST_ROUNDS and time.perf_counter() + 3 * cost_s < deadline:
        alone.append(read(1))  # in turn, since others may use the machine
        together.append(read(2))
    if alone:
        busy_share = sum(each.cores for each in alone) / len(alone)
    if not alone:  # too slow for a trial
        helps = busy_share < WAITS or not has_gil()
    elif busy_share < WAITS:
        helps = max(each.rate for each in together) >= THREADS_GAIN * max(each.rate for each in alone)
    else:  # Speed depends on who else uses the cores. But while one thread holds the GIL, the other wants none.
        wanted = [each.cores for each in together]
        # On a busy machine, one may start when the other ends. Without a GIL, one round shows that they need not wait.
        helps = (sum(wanted) / len(wanted) if has_gil() else max(wanted)) >= CORES_WANTED * busy_share
    return min(MOST_THREADS, max(2, round(cores / min(1.0, max(busy_share, 0.01))))) if helps else 0
