"""Options for speed, memory and errors; those for speed and memory never change what a pipeline returns."""

import enum
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.errors import BadRecord, PipelineError
from headrace.errors.suggestions import explains_constructor

MOST_WORKERS = 256
MOST_WORKERS_PER_CORE = 16


class AutotuneParameter(enum.Enum):
    """The type of `AUTOTUNE`, which lets Headrace measure and choose a number.

    >>> AutotuneParameter.AUTOTUNE is AUTOTUNE
    True
    """

    AUTOTUNE = -1

    def __repr__(self) -> str:
        return "AUTOTUNE"


AUTOTUNE = AutotuneParameter.AUTOTUNE
"""Lets Headrace measure and choose a number."""


def check_count(name: str, value: Any, *, least: int, autotune: bool = False) -> Any:
    """A count as an int of at least `least` (or AUTOTUNE, if allowed); raises for anything else."""
    if autotune and value is AUTOTUNE:
        return value
    try:
        count = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = least - 1
    if count < least:
        kind = "a positive int" if least == 1 else f"an int of at least {least}"
        extra = " or AUTOTUNE" if autotune else ""
        raise PipelineError(f"{name} must be {kind}{extra}; got {value!r}.")
    return count


def check_counts(thing: Any, *names: str, least: int, autotune: bool = False) -> None:
    """Checks counts among the fields of a frozen dataclass, and makes them ints."""
    for name in names:
        object.__setattr__(thing, name, check_count(name, getattr(thing, name), least=least, autotune=autotune))


@explains_constructor(
    num_workers="`num_threads=n`", num_parallel_calls="`num_threads=n`", buffer_size="`prefetch_buffer_size=n`"
)
@dataclass(frozen=True)
class ReadOptions:
    """How a `MapDataset` is read into a stream.

    >>> ds = MapDataset.range(4).to_iter_dataset(ReadOptions(num_threads=2, prefetch_buffer_size=8))
    >>> list(ds)
    [0, 1, 2, 3]

    Differs from Grain: without these options, Headrace measures whether threads help; Grain starts 16.

    Args:
        num_threads: Threads that read ahead; 0 reads in the consumer's own thread.
        prefetch_buffer_size: The most elements ready or under way; 0 reads in the consumer's own thread. With AUTOTUNE,
            more are allowed while that helps, and fewer if memory gets short.
        prefetch_buffer_bytes: The most bytes ready or under way.
    """

    num_threads: int | AutotuneParameter = 16
    prefetch_buffer_size: int | AutotuneParameter = 500
    prefetch_buffer_bytes: int = 256 << 20

    def __post_init__(self):
        check_counts(self, "num_threads", "prefetch_buffer_size", least=0, autotune=True)
        check_counts(self, "prefetch_buffer_bytes", least=1)
        threads = self.num_threads
        size = self.prefetch_buffer_size
        if isinstance(threads, int) and isinstance(size, int) and 0 < size < threads:
            import logging  # hardly ever needed

            logging.getLogger("headrace").warning(
                "prefetch_buffer_size=%d is smaller than num_threads=%d, so at most %d threads have work. Make "
                "it at least num_threads.",
                size,
                threads,
                size,
            )


def num_threads(options: ReadOptions | None, *, in_worker: bool = False) -> Any:
    """How many threads read a random-access chain; `AUTOTUNE` where a trial decides, but never in workers."""
    given = AUTOTUNE if options is None else options.num_threads
    if in_worker:
        return 0 if given is AUTOTUNE else given
    return 0 if options is not None and options.prefetch_buffer_size == 0 else given


@explains_constructor(
    num_proc="`num_workers=n`", prefetch_factor="`per_worker_buffer_size=n`", worker_count="`num_workers=n`"
)
@dataclass(frozen=True)
class MultiprocessingOptions:
    """How to use worker processes.

    >>> options = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)
    >>> ds = MapDataset.range(100).to_iter_dataset().mp_prefetch(options)

    Differs from Grain: the number of workers never changes the stream or its states.

    Args:
        num_workers: Worker processes; 0 computes in the consumer's own process. With AUTOTUNE, the consumer's own
            process starts; one worker for each core takes over if that is faster, and workers are added or removed
            depending on how long the consumer waits and how many cores and how much memory are free.
        per_worker_buffer_size: Outputs that each worker may have ready; cheap ones travel several at a time. With
            AUTOTUNE, one at first, more while that helps, and fewer again if memory gets short.
        enable_profiling: Each worker serves JAX's profiler and logs the address: XProf or TensorBoard can capture a
            trace there, in which operations have names. JAX then uses the CPU in workers. Without JAX it has no effect.
        buffer_bytes: The most bytes ready or under way, in all workers together.
    """

    num_workers: int | AutotuneParameter = 0
    per_worker_buffer_size: int | AutotuneParameter = 1
    enable_profiling: bool = False
    buffer_bytes: int = 1 << 30

    @property
    def has_workers(self) -> bool:
        return self.num_workers != 0

    @property
    def kind(self) -> tuple[Any, ...]:
        """What must be the same for two `mp_prefetch` to share workers."""
        return type(self), self.enable_profiling

    def buffer_size_or(self, default: int) -> int:
        """The size of a worker's buffer, or a default for `AUTOTUNE`."""
        size = self.per_worker_buffer_size
        return default if isinstance(size, AutotuneParameter) else size

    def __post_init__(self):
        check_counts(self, "num_workers", least=0, autotune=True)
        check_counts(self, "per_worker_buffer_size", least=1, autotune=True)
        check_counts(self, "buffer_bytes", least=1)
        most = max(MOST_WORKERS, MOST_WORKERS_PER_CORE * (os.cpu_count() or 1))
        if isinstance(self.num_workers, int) and self.num_workers > most:
            raise PipelineError(
                f"num_workers={self.num_workers} exceeds the limit of {most} on a machine with {os.cpu_count()} "
                "cores. Start with one worker per core."
            )


@dataclass(frozen=True)
class RayOptions(MultiprocessingOptions):
    """How to use workers on a Ray cluster: the same stream, computed by Ray actors.

    >>> options = RayOptions(num_workers=64, address="auto", num_cpus=2)
    >>> ds = MapDataset.range(100).to_iter_dataset().mp_prefetch(options)

    Differs from Grain: there, workers run on one machine.

    Args:
        num_workers: How many actors. Those that the cluster has no room for start later, when it has. AUTOTUNE, the
            default, uses what the cluster has free, now and later.
        address: The cluster, as for `ray.init`: "auto", or an address. By default the Ray that this process uses, or
            one that is started on this machine and ends with the iterator.
        num_cpus: What each actor reserves.
        resources: What else each actor reserves, by name.
        runtime_env: The environment of actors, as Ray defines it.
    """

    num_workers: int | AutotuneParameter = AUTOTUNE
    address: str | None = field(default=None, kw_only=True)
    num_cpus: float = field(default=1, kw_only=True)
    resources: Mapping[str, float] | None = field(default=None, kw_only=True, hash=False)
    runtime_env: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)

    @property
    def kind(self) -> tuple[Any, ...]:
        return *super().kind, self.address, self.num_cpus, self.resources, self.runtime_env

    def __post_init__(self):
        check_counts(self, "num_workers", least=0, autotune=True)
        if self.address is not None and self.address.startswith("ray://"):
            raise PipelineError(
                f"RayOptions(address={self.address!r}) is an address for Ray Client, which Headrace does not "
                'support. Run on a node of the cluster with address="auto"; that node may offer no CPUs '
                "(`ray start --num-cpus=0`)."
            )
        check_counts(self, "per_worker_buffer_size", "buffer_bytes", least=1)
        if not isinstance(self.num_cpus, int | float) or self.num_cpus < 0:
            raise PipelineError(f"num_cpus must be a number of at least 0; got {self.num_cpus!r}.")
        if self.num_workers is AUTOTUNE and not self.num_cpus and not self.resources:
            raise PipelineError(
                "num_workers=AUTOTUNE starts as many workers as fit, so they must reserve something: set "
                "num_cpus or resources."
            )


class ExecutionTrackingMode(enum.Enum):
    """How closely an iterator's execution is recorded, for `DatasetOptions`.

    >>> options = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)

    Differs from Grain: `iterator.stats()` has times in both modes; with `STAGE_TIMING`, every run is measured.
    """

    DISABLED = enum.auto()
    STAGE_TIMING = enum.auto()


@dataclass(frozen=True)
class ErrorPolicy:
    """What to do with a record that cannot be read, or that makes a function raise.

    Errors of the pipeline itself, such as batches of unequal shapes, and of a server that does not answer are never
    skipped.

    >>> policy = ErrorPolicy("skip", max_errors=10)
    >>> list(MapDataset.source(["1", "x", "3"]).map(int).with_options(DatasetOptions(on_error=policy)))
    [1, 3]

    Differs from Grain: there, an error always ends the run.

    Args:
        action: "raise" ends the run. "skip" drops the record. A function receives the `BadRecord` and returns what the
            operation that failed should have returned, or `None` to drop the record; it runs in workers too.
        max_errors: The run ends with a `BadRecordsError` after more bad records than this in one epoch; `None` for any
            number.
        max_ratio: The run also ends if bad records exceed this share of all records read, from the eleventh bad one on;
            `None` for any share.
        quarantine: A JSON lines file that lists each bad record once, even over several runs.
    """

    action: "str | Callable[[BadRecord], Any]" = "raise"
    max_errors: int | None = 100
    max_ratio: float | None = 0.001
    quarantine: "str | os.PathLike[str] | None" = None

    def __post_init__(self):
        if self.action not in ("raise", "skip") and not callable(self.action):
            raise PipelineError(f'on_error must be "raise", "skip" or a function; got {self.action!r}.')
        if self.max_errors is not None:
            check_counts(self, "max_errors", least=0)
        if self.max_ratio is not None and not 0 < self.max_ratio <= 1:
            raise PipelineError(f"max_ratio must be over 0 and at most 1, or None; got {self.max_ratio!r}.")
        if self.quarantine is not None:
            object.__setattr__(self, "quarantine", os.path.abspath(os.fsdecode(self.quarantine)))

    @property
    def raises(self) -> bool:
        """Whether every error ends the run."""
        return self.action == "raise"


def check_seconds(name: str, value: Any) -> None:
    """Raises unless a value is a number of seconds, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise PipelineError(f"{name} must be a positive number of seconds, or None; got {value!r}.")


_UNSET: Any = object()


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetOptions:
    """Options of a whole pipeline; where several set the same option, the one nearest the consumer wins.

    >>> options = DatasetOptions(filter_warn_threshold_ratio=None, timeout_s=60)
    >>> ds = MapDataset.range(6).with_options(options)

    Differs from Grain: `min_shm_size` has no effect, and `on_error`, `warn_after_s` and `timeout_s` are new.

    Args:
        filter_warn_threshold_ratio: The share of dropped elements from which a filter warns; `None` for never.
        filter_raise_threshold_ratio: The share from which it raises; `None` for never.
        execution_tracking_mode: With `STAGE_TIMING`, every run is measured by operation for `iterator.stats()`, and not
            only as many as cost nothing that can be measured.
        min_shm_size: Accepted as in Grain, without effect. Arrays from workers always travel in shared memory.
        on_error: What to do about bad records: an `ErrorPolicy`, or its action alone ("raise", "skip", a function).
        warn_after_s: After how many seconds of waiting for one element to log where the pipeline is; `None` for never.
        timeout_s: After how many seconds on one element a worker process is ended and its element an error, or a bad
            record under `on_error`; `None` for never. Without worker processes it has no effect.
    """

    filter_warn_threshold_ratio: float | None = _UNSET
    filter_raise_threshold_ratio: float | None = _UNSET
    execution_tracking_mode: ExecutionTrackingMode = _UNSET
    min_shm_size: int = _UNSET
    on_error: "ErrorPolicy" = _UNSET
    warn_after_s: float | None = _UNSET
    timeout_s: float | None = _UNSET
    _given: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self):
        object.__setattr__(
            self, "_given", frozenset(f.name for f in fields(self) if f.init and getattr(self, f.name) is not _UNSET)
        )
        for name, default in _DEFAULTS.items():
            if name not in self._given:
                object.__setattr__(self, name, default)
        for name in ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not 0 <= ratio <= 1:
                raise PipelineError(f"{name} must lie between 0 and 1, or be None; got {ratio!r}.")
        if not isinstance(self.on_error, ErrorPolicy):
            object.__setattr__(self, "on_error", ErrorPolicy(self.on_error))
        for name in ("warn_after_s", "timeout_s"):
            check_seconds(name, getattr(self, name))

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self._given))
        return f"DatasetOptions({given})"

    def merge(self, other: "DatasetOptions | None") -> "DatasetOptions":
        """These options, with those of `other` where these are not set."""
        given = {} if other is None else {name: getattr(other, name) for name in other._given}
        given |= {name: getattr(self, name) for name in self._given}
        return DatasetOptions(**given)


_DEFAULTS = {
    "filter_warn_threshold_ratio": 0.9,
    "filter_raise_threshold_ratio": None,
    "execution_tracking_mode": ExecutionTrackingMode.DISABLED,
    "min_shm_size": 0,
    "on_error": ErrorPolicy(),
    "warn_after_s": 60.0,
    "timeout_s": None,
}


_SETTINGS: dict[str, Any] = {
    "py_debug_mode": False,
    "py_dataset_visualization_output_dir": None,
    "py_traceback_filtering": "auto",
}


class Config:
    """Settings by name, as in Grain.

    With `py_debug_mode`, iterators made from then on measure all that they compute, and log their statistics (level
    INFO, logger `headrace`) every minute and when they are closed. With `py_dataset_visualization_output_dir` as well,
    they write them to that folder, as reports for a browser. `py_traceback_filtering` has no effect.

    >>> config.update("py_debug_mode", True)
    >>> config.py_debug_mode, config.get_or_default("py_traceback_filtering")
    (True, 'auto')
    >>> config.update("py_debug_mode", False)

    Differs from Grain: `py_traceback_filtering` has no effect.
    """

    def __init__(self):
        self._values = dict(_SETTINGS)

    def update(self, name: str, value: Any) -> None:
        """Sets a setting."""
        self._check(name)
        self._values[name] = value

    def get_or_default(self, name: str) -> Any:
        """A setting's value."""
        self._check(name)
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        """A setting's value, as an attribute."""
        if name in _SETTINGS:
            return self._values[name]
        raise AttributeError(f"There is no setting {name!r}; the settings are {sorted(_SETTINGS)}.")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_SETTINGS})

    def _check(self, name: str) -> None:
        if name not in _SETTINGS:
            raise PipelineError(f"There is no setting {name!r}; the settings are {sorted(_SETTINGS)}.")


config = Config()
