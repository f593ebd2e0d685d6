"""Statistics for other programs: TensorBoard, Weights & Biases, Prometheus, and the profilers of JAX and PyTorch.

iterator = iter(ds).log_to(writer)                        # a SummaryWriter, a wandb run, or a function
iterator = iter(ds).log_to(exporters.Prometheus(port=9464))
with exporters.annotations("jax"): ...                    # or "torch": operations have names in traces
"""

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import PipelineError, format_error, optional
from headrace.ops import profile
from headrace.options import config
from headrace.stats import Stats

if TYPE_CHECKING:
    from headrace.engine.iteration import Iteration

PREFIX = "headrace/"
DEBUG_EVERY_S = 60.0
Export = Callable[[Stats], None]
_numbers = itertools.count(1)


class Exporter:
    """Sends a target the statistics of an iterator every few seconds, until an error of the target, which is logged."""

    def __init__(self, iteration: "Iteration", export: Export, every_s: float):
        self._iteration = weakref.ref(iteration)
        self._export = export
        self._every_s = every_s
        self._next_s = 0.0
        self._failed = False

    def __call__(self, *, at_once: bool = False) -> None:
        now_s = time.perf_counter()
        iteration = self._iteration()
        if iteration is None or self._failed or (now_s < self._next_s and not at_once):
            return
        self._next_s = now_s + self._every_s
        try:
            self._export(Stats.of(iteration, now_s))
        except Exception as e:
            self._failed = True
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning("Stopped exporting statistics: %s", format_error(e))


def debug_report() -> Export:
    """For Grain's setting `py_debug_mode`: logs statistics, and writes a report if there is a folder for them."""
    name = f"pipeline-{os.getpid()}-{next(_numbers)}.html"

    def report(stats: Stats) -> None:
        import logging  # slow to import, and hardly ever needed

        logging.getLogger("headrace").info("%s", stats)
        folder = config.py_dataset_visualization_output_dir
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            stats.save(os.path.join(folder, name))

    return report


def export_of(target: Any) -> Export:
    """The function that sends statistics to a target."""
    if isinstance(target, Prometheus):
        return target.show
    if hasattr(target, "add_scalar"):
        return lambda stats: _add_scalars(target, stats)
    if hasattr(target, "log") and not isinstance(target, type):
        return lambda stats: target.log(scalars(stats))
    if callable(target):
        call: Callable[..., Any] = target
        return lambda stats: call(scalars(stats))
    raise PipelineError(
        f"`log_to` takes a TensorBoard SummaryWriter, a Weights & Biases run, exporters.Prometheus or a function of a "
        f"dict; got {type(target).__name__}."
    )


def _add_scalars(writer: Any, stats: Stats) -> None:
    for name, value in scalars(stats).items():
        writer.add_scalar(name, value, stats.elements)


def scalars(stats: Stats) -> dict[str, float]:
    """The numbers to watch, by name: those of the last seconds, apart from `elements`.

    >>> from headrace import MapDataset
    >>> iterator = iter(MapDataset.range(100).to_iter_dataset())
    >>> _ = list(iterator)
    >>> sorted(scalars(iterator.stats()))[:3]
    ['headrace/cores', 'headrace/elements', 'headrace/elements_per_second']
    """
    now = stats.recent or stats
    wall_s = max(now.wall_s, 1e-9)
    found: dict[str, float] = {
        "elements": stats.elements,
        "elements_per_second": now.rate,
        "megabytes_per_second": now.bytes / wall_s / 1e6,
        "in_next": now.next_s / wall_s,
        "cores": now.cpu_s / wall_s,
    }
    for stage in now.stages:
        name = f"{stage.stage} by {stage.where}"
        found[f"{name}/busy"] = stage.busy_s / wall_s
        found[f"{name}/computed_by"] = stage.computed_by
        if stage.buffered is not None:
            found[f"{name}/buffered"] = stage.buffered
    return {PREFIX + name: float(value) for name, value in found.items()}


# ------------------------------------------------------------------------------------------ Prometheus


class Prometheus:
    """An endpoint that Prometheus reads, of `prometheus-client`: `http://127.0.0.1:9464/metrics` by default.

    >>> import prometheus_client
    >>> metrics = Prometheus(registry=prometheus_client.CollectorRegistry())
    >>> iterator = iter(MapDataset.range(4)).log_to(metrics)

    Differs from Grain: only Headrace has it.

    Args:
        port: The port; 0 picks a free one, see `port`.
        addr: The address to listen at; "0.0.0.0" for all.
        registry: A registry of your own, which serves the numbers as it does already; then nothing listens here.
    """

    def __init__(self, port: int = 9464, addr: str = "127.0.0.1", *, registry: Any = None):
        self._client = optional("prometheus_client", extra="prometheus")
        self._core = optional("prometheus_client.core", extra="prometheus")
        self._stats: Stats | None = None
        self._server: Any = None
        self._thread: Any = None
        self.port = port
        own = registry is None
        self._registry = self._client.CollectorRegistry() if own else registry
        self._registry.register(self)
        if own:
            self._server, self._thread = self._client.start_http_server(port, addr, self._registry)
            self.port = self._server.server_port

    def show(self, stats: Stats) -> None:
        """Keeps these statistics for the next reader."""
        self._stats = stats

    def collect(self) -> Iterator[Any]:
        """The metrics, as `prometheus-client` asks for them."""
        stats = self._stats
        if stats is None:
            return
        counter = self._core.CounterMetricFamily
        gauge = self._core.GaugeMetricFamily
        recent = stats.recent or stats
        yield counter("headrace_elements", "Number of outputs that the consumer received.", value=stats.elements)
        yield counter("headrace_bytes", "Approximate size of these outputs in bytes.", value=stats.bytes)
        yield counter("headrace_next_seconds", "Time that the consumer spent in next().", value=stats.next_s)
        yield counter(
            "headrace_consumer_seconds", "Time that the consumer spent between calls of next().", value=stats.consumer_s
        )
        yield counter("headrace_cpu_seconds", "CPU time of all threads and workers.", value=stats.cpu_s)
        yield gauge("headrace_elements_per_second", "Recent outputs per second.", value=recent.rate)
        busy = counter("headrace_stage_busy_seconds", "Time at work.", labels=("stage", "by"))
        buffered = gauge(
            "headrace_stage_buffered_ratio", "How full the stage's buffer is, from 0 to 1.", labels=("stage", "by")
        )
        for stage in recent.stages:
            if stage.buffered is not None:
                buffered.add_metric((stage.stage, stage.where), stage.buffered)
        for stage in stats.stages:
            busy.add_metric((stage.stage, stage.where), stage.busy_s)
        seconds = counter("headrace_operation_seconds", "Time spent in an operation.", labels=("operation", "by"))
        for each in stats.operations:
            seconds.add_metric((each.operation, each.where), each.seconds)
        yield from (busy, buffered, seconds)

    def close(self) -> None:
        """Stops listening."""
        self._registry.unregister(self)
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


# ------------------------------------------------------------------------------------------- profilers


@contextlib.contextmanager
def annotations(profiler: str) -> Iterator[None]:
    """A context in which operations that this process computes appear by name in a profiler's traces.

    Worker processes are not in such traces: `MultiprocessingOptions(enable_profiling=True)` lets a profiler look into
    them. Outside the context, operations cost nothing more.

    >>> with annotations("jax"):
    ...     _ = list(MapDataset.range(4).map(str))

    Differs from Grain: only Headrace has it.

    Args:
        profiler: "jax" for `jax.profiler`, "torch" for `torch.profiler`.
    """
    if profiler == "jax":
        named = optional("jax.profiler", extra="jax").TraceAnnotation
    elif profiler == "torch":
        named = optional("torch.profiler", extra="torch").record_function
    else:
        raise PipelineError(f"The profiler of `annotations` must be 'jax' or 'torch'; got {profiler!r}.")
    with profile.annotated(profile.labelled(named)):
        yield
