"""Chooses threads, workers and buffers for a pipeline, from a short trial of it.

The trial computes elements in the caller's own thread, with nothing ahead, and for a second at most: where an element
takes longer, it is the only one, since nothing can stop it half-way. What is random access is then tried in two
threads, which tells whether threads pay; nothing else ever runs in threads. The choice changes only what things cost,
never a value.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace._dataset.base import Dataset
from headrace._executors.autotune import ELEMENT_S, GAIN
from headrace._executors.inline import InlineExecutor
from headrace._executors.memory import available_bytes
from headrace._ops.base import Op
from headrace._ops.buffer import ToStream
from headrace._ops.source import UserDataset
from headrace._plan.blocks import Block
from headrace._plan.kernels import fetcher
from headrace._plan.stages import all_operations
from headrace._plan.streams import Context, Position, Run, Stream, UnaryStream, open_stream, stream_of
from headrace._utils.threads import num_cores as num_cores
from headrace.errors import PipelineError
from headrace.options import MultiprocessingOptions, ReadOptions, check_count

SAMPLING_S = 0.4  # no new element is begun after this
TRIAL_S = 0.9  # nor in threads after this
ROUND_S = 0.03  # how long threads read in a round of the trial, at least
MOST_ROUNDS = 6
WAITS = 0.5  # a thread that wants a core for less of the time waits for something else
CORES_WANTED = (
    1.6  # times as many by two threads as by one: 2 where the GIL is released; 1, or 1.4 on a busy machine, if not
)
RUN_S = 0.01  # more elements are read at a time while those before took less than this
MANY_INPUTS = 2  # for each output: more of them are a batch, a window, or a filter that drops
MOST_THREADS = 16
WORKER_BUFFER_SIZE = 4
DEFAULT_BUDGET = 1 << 30  # bytes, where nobody knows how much memory there is
SHARE_OF_MEMORY = 4  # else this part of what is free


@dataclass(frozen=True)
class PerformanceConfig:
    """Options for `mp_prefetch` and `to_iter_dataset`."""

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

    Where elements are cheap, nothing runs beside the consumer. Where most of the time is spent reading, in functions
    that wait or let other threads run, threads read; otherwise workers compute. Elements are computed in this process,
    so what needs a `worker_init_fn` fails here; an error of the pipeline's own is raised as it is.

    >>> from headrace import MapDataset
    >>> ds = MapDataset.range(1000).map(lambda x: x + 1)
    >>> config = pick_performance_config(ds)
    >>> config.multiprocessing_options.num_workers, config.read_options.num_threads
    (0, 0)
    >>> stream = ds.to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)

    Args:
        ds: A `MapDataset` or an `IterDataset`.
        ram_budget_mb: What buffers may take in all, in MiB; by default a quarter of what is free.
        max_workers: The most worker processes; by default one for each core that this process may use.
        max_buffer_size: The most elements that a buffer may hold.
        samples_to_check: How many elements are computed, as far as time allows.
    """
    if not isinstance(ds, Dataset):
        raise PipelineError(f"`pick_performance_config` takes a MapDataset or an IterDataset; got {type(ds).__name__}.")
    for name, value, least in (("ram_budget_mb", ram_budget_mb, 1), ("max_workers", max_workers, 0)):
        if value is not None:
            check_count(name, value, least=least)
    if max_buffer_size is not None:
        check_count("max_buffer_size", max_buffer_size, least=1)
    check_count("samples_to_check", samples_to_check, least=1)
    budget = _free_share() if ram_budget_mb is None else ram_budget_mb << 20
    cores = num_cores()
    most_workers = cores if max_workers is None else min(cores, max_workers)
    if any(op.stays_here for op in all_operations(ds._op)):
        most_workers = 0

    begin = time.perf_counter()
    sample = _sampled(ds._stream_op, samples_to_check, begin + SAMPLING_S)
    if sample.cost_s < ELEMENT_S:
        return _config(budget)
    num_threads = _threads_that_pay(sample, cores, begin + TRIAL_S) if sample.mostly_reads else 0
    if num_threads:
        return _config(budget, read=_reading(num_threads, sample, budget, max_buffer_size))
    return _config(budget, work=_working(most_workers, sample, budget, max_buffer_size))


def _free_share() -> int:
    available = available_bytes()
    return DEFAULT_BUDGET if available is None else max(1, available // SHARE_OF_MEMORY)


# ---------------------------------------------------------------------------------------------- measuring


@dataclass
class _Reads:
    """What has been asked of one random-access chain."""

    took_s: float = 0.0
    elements: int = 0
    element_bytes: int = 1


@dataclass
class _Sample:
    """What some outputs of a pipeline cost."""

    costs_s: list[float] = field(default_factory=list)  # of each output
    inputs: int = 0
    warm: tuple[float, int] | None = None  # when the second read began, and the inputs before it
    end: float = 0.0
    took_s: float = 0.0
    busy_s: float = 0.0  # how much of it this thread wanted a core
    element_bytes: int = 1
    reads: dict[Op, _Reads] = field(default_factory=dict)

    @property
    def cost_s(self) -> float:
        """What an output costs; or an input, where many were read for the first output, as for a window."""
        costs = sorted(self.costs_s)
        if not costs:
            return self.took_s / self.inputs if self.inputs else 0.0
        typical = costs[len(costs) // 2]
        if self.warm is None or self.inputs <= MANY_INPUTS * len(costs):
            return typical
        begin, inputs = self.warm
        return max(typical, (self.end - begin) / max(1, self.inputs - inputs))

    @property
    def busy_share(self) -> float:
        return min(1.0, self.busy_s / max(self.took_s, 1e-9))

    @property
    def main_read(self) -> tuple[Op, _Reads] | None:
        """The random-access chain that takes most of the time."""
        return max(self.reads.items(), key=lambda item: item[1].took_s, default=None)

    @property
    def mostly_reads(self) -> bool:
        """Whether threads could help at all: they compute what comes before `to_iter_dataset`."""
        return sum(reads.took_s for reads in self.reads.values()) > self.took_s / 2


class _OutOfTime(Exception):
    """Nothing more is to be read."""


class _Nobody:
    """Is not interested in what filters drop."""

    def saw(self, seen: int, kept: int) -> None:
        pass


def _sampled(op: Op, count: int, deadline: float) -> _Sample:
    """Computes some outputs, until there are enough or it is too late."""
    sample = _Sample()
    begin, busy_s = time.perf_counter(), _wanted_s()
    stream = open_stream(op, None, _trial_context(sample, deadline))
    try:
        _compute(stream, sample, count)
    except _OutOfTime:
        pass
    finally:
        stream.close()
    sample.end = time.perf_counter()
    sample.took_s, sample.busy_s = sample.end - begin, _wanted_s() - busy_s
    return sample


def _compute(stream: Stream, sample: _Sample, count: int) -> None:
    begin = time.perf_counter()
    while len(sample.costs_s) < count:
        run = stream.pull(1)
        if run is None:
            return
        rows = run.block.own_rows()
        if rows:
            now = time.perf_counter()
            sample.costs_s += [(now - begin) / len(rows)] * len(rows)
            sample.element_bytes = max(sample.element_bytes, _row_bytes(run.block))
            begin = now


def _row_bytes(block: Block) -> int:
    return -(-block.num_bytes() // max(len(block), 1))


def _trial_context(sample: _Sample, deadline: float) -> Context:
    """All in the caller's thread, whatever the pipeline says, and no faster than the clock can be looked at."""

    def elsewhere(op: Op, position: Position, context: Context) -> Stream | None:
        if isinstance(op, ToStream | UserDataset):
            return _PacedStream(op, stream_of(op, position, context), sample, deadline)
        return None

    return Context(
        executor=lambda _: InlineExecutor(),
        ahead=lambda stream, _: stream,
        processes=lambda op, position, context: open_stream(op.parent, position, context),
        watch=lambda _: _Nobody(),
        close=lambda **_: None,
        elsewhere=elsewhere,
    )


class _PacedStream(UnaryStream):
    """Where a pipeline begins: times what is read, and gives a few elements at a time so that it can end in time.

    However many are asked for, runs grow only while one is used up soon, whatever comes after it in the pipeline.
    """

    def __init__(self, op: Op, parent: Stream, sample: _Sample, deadline: float):
        super().__init__(parent.position, parent)
        self._sample, self._deadline = sample, deadline
        self._reads = sample.reads.setdefault(op.parent, _Reads()) if isinstance(op, ToStream) else None
        self._size, self._last = 1, time.perf_counter()

    def pull(self, n: int) -> Run | None:
        begin = time.perf_counter()
        if begin >= self._deadline:
            raise _OutOfTime
        if self._sample.warm is None and self._sample.inputs:
            self._sample.warm = begin, self._sample.inputs
        self._size = 2 * self._size if begin - self._last < RUN_S else 1
        self._last = begin
        before, size = self.parent.position, min(n, self._size)
        run = self.parent.pull(size)
        if run is None:
            return None
        self._sample.inputs += max(size, 1)
        if self._reads is not None:
            self._reads.took_s += time.perf_counter() - begin
            self._reads.elements += max(1, self.parent.position - before)
            self._reads.element_bytes = max(self._reads.element_bytes, _row_bytes(run.block))
        return self._run(*run)


# ------------------------------------------------------------------------------------ one thread, or two


def _threads_that_pay(sample: _Sample, cores: int, deadline: float) -> int:
    """How many threads should read: 0 unless two are faster than one, as those are that wait or release the GIL."""
    assert sample.main_read is not None
    op, reads = sample.main_read
    cost_s = reads.took_s / reads.elements
    if time.perf_counter() + 3 * cost_s > deadline:  # too slow to be tried
        return _num_threads(sample.busy_share, cores) if sample.busy_share < WAITS else 0
    read = _Reader(op, reads.elements)
    alone: list[_Round] = []
    together: list[_Round] = []
    while len(alone) < MOST_ROUNDS:  # in turn, since others may use the machine
        alone.append(read.in_threads(1))
        together.append(read.in_threads(2))
        if time.perf_counter() + 3 * max(cost_s, ROUND_S) > deadline:
            break
    wanted = sum(each.cores for each in alone)
    busy_share = wanted / len(alone)
    if busy_share < WAITS:
        pays = max(each.rate for each in together) >= GAIN * max(each.rate for each in alone)
    else:  # How fast they are depends on who else uses the cores. But while one holds the GIL, the other wants none.
        pays = sum(each.cores for each in together) >= CORES_WANTED * wanted
    return _num_threads(busy_share, cores) if pays else 0


def _num_threads(busy_share: float, cores: int) -> int:
    """As many as keep all cores busy."""
    return min(MOST_THREADS, max(2, round(cores / max(busy_share, 0.01))))


class _Round(NamedTuple):
    """How many elements were read in a second, and how many cores the threads wanted."""

    rate: float
    cores: float


class _Reader:
    """Reads elements of a random-access chain one by one, each time others, as far as there are any."""

    def __init__(self, op: Op, next_index: int):
        self._fetch, self._length = fetcher(op), op.length()
        self._next_index = next_index

    def in_threads(self, count: int) -> _Round:
        """Reads for a while, in so many threads."""
        wanted_s: list[float] = []
        errors: list[BaseException] = []
        times = [0.0]  # of the start and the ends
        start = threading.Barrier(count, action=lambda: times.__setitem__(0, time.perf_counter()))
        indices = itertools.count(self._next_index)

        def work() -> None:
            before_s = _wanted_s()
            start.wait()
            try:
                times.append(self._read_until(times[0] + ROUND_S, indices))
            except BaseException as e:
                errors.append(e)
            wanted_s.append(_wanted_s() - before_s)

        threads = [threading.Thread(target=work, name="headrace-trial") for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        elements, took_s = next(indices) - self._next_index, max(times) - times[0]
        self._next_index += elements
        return _Round(elements / took_s, sum(wanted_s) / took_s)

    def _read_until(self, end: float, indices: Iterator[int]) -> float:
        now = 0.0
        while now < end:
            place = next(indices) % self._length
            self._fetch(range(place, place + 1)).own_rows()
            now = time.perf_counter()
        return now


def _wanted_s() -> float:
    """How long this thread has run so far, or, where the system tells, would have if others had used no core."""
    try:
        with open("/proc/thread-self/schedstat") as f:
            ran_ns, waited_ns, _ = map(int, f.read().split())
    except (OSError, ValueError):
        return time.thread_time()
    return (ran_ns + waited_ns) / 1e9


# ----------------------------------------------------------------------------------------------- choosing


def _config(
    budget: int, *, read: ReadOptions | None = None, work: MultiprocessingOptions | None = None
) -> PerformanceConfig:
    """Both kinds of options; where only one is given, the other runs nothing."""
    return PerformanceConfig(
        work or MultiprocessingOptions(0, buffer_bytes=min(MultiprocessingOptions.buffer_bytes, budget)),
        read or ReadOptions(0, 0, min(ReadOptions.prefetch_buffer_bytes, budget)),
    )


def _reading(num_threads: int, sample: _Sample, budget: int, max_buffer_size: int | None) -> ReadOptions:
    """So many threads, or as many as have room for an element each."""
    main = sample.main_read
    fitting = budget // (1 if main is None else main[1].element_bytes)
    size = min(ReadOptions.prefetch_buffer_size, fitting, max_buffer_size or fitting)  # type: ignore[type-var]
    num_threads = min(num_threads, size)
    buffer_bytes = min(ReadOptions.prefetch_buffer_bytes, budget)
    return ReadOptions(num_threads, size if num_threads else 0, buffer_bytes)


def _working(most_workers: int, sample: _Sample, budget: int, max_buffer_size: int | None) -> MultiprocessingOptions:
    """As many workers as may be and have room: each holds what is ready, and the element that it is making."""
    fitting = budget // sample.element_bytes
    num_workers = min(most_workers, fitting // 2)
    size = min(WORKER_BUFFER_SIZE, max_buffer_size or WORKER_BUFFER_SIZE, fitting // max(num_workers, 1) - 1)
    buffer_bytes = min(MultiprocessingOptions.buffer_bytes, budget)
    return MultiprocessingOptions(num_workers, max(size, 1), buffer_bytes=buffer_bytes)
