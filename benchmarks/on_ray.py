"""Workers on Ray: against worker processes on the same machine, and against Ray Data doing the same ordered work."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side

WORKERS = 2
BATCH = 128


def work(x: int) -> int:
    """50 µs of Python."""
    end = time.perf_counter() + 50e-6
    while time.perf_counter() < end:
        pass
    return x


def rows() -> Any:
    return hr.MapDataset.range(10**6).map(work).batch(BATCH).to_iter_dataset()


def small(_: int) -> np.ndarray:
    return np.zeros((BATCH, 784), np.float32)  # 0.4 MB


def large(_: int) -> np.ndarray:
    return np.zeros((64, 224, 224, 3), np.float32)  # 38.5 MB


def made(make: Callable[[int], np.ndarray]) -> Any:
    return hr.MapDataset.range(10**6).map(make).to_iter_dataset()


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """A Ray on this machine for all sides."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init("local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def _on(ds: Any, options: Any) -> Any:
    return ds.mp_prefetch(options)


def _times(ds: Any, count: int, per: int, peer: Callable[[], float]) -> list[float]:
    """Seconds an element, once all workers are there: on Ray, in processes, and by Ray Data."""
    on_ray = _on(ds, hr.RayOptions(num_workers=WORKERS, per_worker_buffer_size=2))
    processes = _on(ds, hr.MultiprocessingOptions(num_workers=WORKERS, per_worker_buffer_size=2))
    return side_by_side(
        lambda: seconds_per_element(lambda: on_ray, count, per, warm_up=count),
        lambda: seconds_per_element(lambda: processes, count, per, warm_up=count),
        peer,
        rounds=3,
    )


def ray_data(make: Callable[[Any], Any], items: int, *, batch_size: int) -> float:
    """Seconds an item of Ray Data's ordered iteration: what twice as many take longer, without its start."""
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False

    def took(count: int) -> float:
        dataset = make(ray.data.range(count))
        begin = time.perf_counter()
        for _ in dataset.iter_batches(batch_size=batch_size, prefetch_batches=4):
            pass
        return time.perf_counter() - begin

    return (took(3 * items) - took(items)) / (2 * items)


def ray_rows() -> list[Row]:
    with cluster():
        ours, processes, peer = _times(
            rows(),
            700,
            BATCH,
            lambda: ray_data(lambda ds: ds.map(lambda row: {"id": work(row["id"])}), 30_000, batch_size=BATCH),
        )
    name = "Ray actors: map of 50 µs of Python, batches of 128"
    return [
        faster_than(name, "worker processes", 0.95, ours, processes),
        faster_than("the same", "Ray Data in order", 3, ours, peer),
    ]


def _arrays(name: str, make: Callable[[int], np.ndarray], count: int, least: float) -> list[Row]:
    with cluster():
        ours, processes, peer = _times(
            made(make),
            count,
            1,
            lambda: ray_data(
                lambda ds: ds.map_batches(lambda batch: {"x": make(0)[None]}, batch_size=1), count // 4, batch_size=1
            ),
        )
    return [
        faster_than(f"Ray actors: {name}", "worker processes", least, ours, processes),
        faster_than("the same", "Ray Data in order", 3, ours, peer),
    ]


def ray_small() -> list[Row]:
    return _arrays("batches of 0.4 MB", small, 3000, 0.2)


def ray_large() -> list[Row]:
    return _arrays("elements of 38.5 MB", large, 100, 0.15)


ROWS: list[Callable[[], Row | list[Row]]] = [ray_rows, ray_small, ray_large]
