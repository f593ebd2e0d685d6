"""The worker pools of one iterator: opened when first needed, and kept for the next epoch at the end.

The `mp_prefetch` operations of a pipeline share one pool if they have the same kind of options and the same
`worker_init_fn`. Between epochs, the first operation keeps the pool in `kept`, so it ends with the dataset. Iterators
that run at the same time have a pool each, and share one plan.
"""

import logging
import os
import socket
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.engine.plan import Plan, Stages, has_workers, ready_for_workers
from headrace.engine.tuning import TrialResult, TrialStream, resolve_num_workers
from headrace.engine.workers.messages import is_worker_process
from headrace.errors import ClosedError, MissingDependency, optional
from headrace.ops import profile
from headrace.ops.buffer import MpPrefetch, Prefetch
from headrace.ops.streams import Context, Position, Stream, open_stream
from headrace.options import AUTOTUNE, AutotuneParameter, RayOptions
from headrace.protocols import TaskPool

Key = tuple[Any, ...]  # weak references to the operations, and what of the options workers need


class PoolCache:
    """Idle pools between two epochs, and shared plans."""

    def __init__(self):
        self.idle: dict[Key, TaskPool] = {}
        self.shared_plans: weakref.WeakValueDictionary[Key, Any] = weakref.WeakValueDictionary()


class Workers:
    """An iterator's pools, for the `mp_prefetch` operations in its plan."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._interrupted = False
        self._pools: dict[Key, TaskPool] = {}
        self._caches: dict[Key, PoolCache] = {}

    def open(self, op: MpPrefetch, position: Position, context: Context, *, single_step: bool) -> Stream:
        """The stream of an `mp_prefetch`."""
        if not has_workers(op) or is_worker_process():
            return open_stream(op.parent, position, context)
        if sys.platform == "win32" and not hasattr(op.options, "open_pool"):
            return _in_a_thread(op, position, context)
        if _is_tuned(op):
            choice = op.kept.of(TrialResult)
            if choice.workers is None and not single_step:
                workers = partial(self._open_stream, op, context=context, single_step=False)
                end = lambda: self._end(self._key(self._plan.sharing_workers(op)))  # noqa: E731
                return TrialStream(op, position, context, choice, partial(self._start_pool, op), workers, end)
            if not choice.workers:
                return open_stream(op.parent, position, context)
        return self._open_stream(op, position, context=context, single_step=single_step)

    def _start_pool(self, op: MpPrefetch) -> Callable[[], bool]:
        """Starts the workers of an `mp_prefetch`; returns a function that says whether they are ready."""
        pool = self._pool(self._plan.sharing_workers(op))
        return getattr(pool, "all_ready", lambda: True)

    def _open_stream(self, op: MpPrefetch, position: Position, *, context: Context, single_step: bool) -> Stream:
        """The stream of an `mp_prefetch`, computed by workers."""
        from headrace.engine.workers.stage_streams import PrefetchedStream, Prefetching

        if self._interrupted:
            raise ClosedError("The iterator was closed while one of its threads opened a dataset.")
        group = self._plan.sharing_workers(op)
        pool = self._pool(group)
        number = 2 * group.index(op) + single_step
        root = pool.plan.pipelines[number]
        lossy = not self._plan.options.on_error.raises

        def start(sparse: bool) -> Prefetching:
            return Prefetching(Stages(root, (number,), sparse=sparse, lossy=lossy), pool, op.options, single_step)

        # The workers of a dataset that an interleave has made end with it: there may be very many such datasets.
        end = None if op in self._plan.prefetches else lambda: self._end(self._key(group))
        stream = PrefetchedStream(start, position, context, end)
        if not _is_tuned(op) or not hasattr(pool, "resize") or single_step:
            return stream
        from headrace.engine.tuning import TunedStream, Tuner

        return TunedStream(stream, Tuner(pool))  # type: ignore[arg-type]

    def _end(self, key: Key) -> None:
        self._caches.pop(key, None)
        pool = self._pools.pop(key, None)
        if pool is not None:
            pool.close()

    def _pool(self, group: list[MpPrefetch]) -> TaskPool:
        """The pool that some `mp_prefetch` share."""
        key = self._key(group)
        cache = group[0].kept.of(PoolCache)
        pool = self._pools.get(key)
        if pool is None or pool.closed:
            self._caches[key] = cache
            pool = cache.idle.pop(key, None)
            if pool is None or pool.closed:
                pool = _open_pool(group, self._shared_plan(cache, key, group))
            pool.go_on()
            pool.load.is_idle = False
            self._pools[key] = pool
        return pool

    def _key(self, group: list[MpPrefetch]) -> Key:
        options = self._plan.options
        return (*map(weakref.ref, group), options.on_error, options.timeout_s)

    def _shared_plan(self, cache: PoolCache, key: Key, group: list[MpPrefetch]) -> Any:
        """The plan for some `mp_prefetch`, each rewritten for speed and as written; made once for all iterators."""
        from headrace.engine.workers.plan_file import SharedPlan

        shared_plan = cache.shared_plans.get(key)
        if shared_plan is None or shared_plan.closed:
            pipelines = [
                ready_for_workers(op.parent, as_written=as_written or not self._plan.maps_may_move)
                for op in group
                for as_written in (False, True)
            ]
            init = group[0].worker_init_fn
            if group[0].options.enable_profiling:
                init = Profiled(init)
            shared_plan = SharedPlan(pipelines, init, self._plan.options)
            cache.shared_plans[key] = shared_plan
        return shared_plan

    @property
    def are_open(self) -> bool:
        """Whether there are workers now."""
        return bool(self._pools)

    def work_of_workers(self) -> list[str]:
        """What the workers are doing, for a warning."""
        return [each for pool in list(self._pools.values()) for each in pool.work_of_workers()]

    def interrupt(self) -> None:
        """Makes threads that wait for a worker stop, and prevents new streams."""
        self._interrupted = True
        for pool in list(self._pools.values()):
            pool.interrupt()

    def go_on(self) -> None:
        """Allows the use of workers again after `interrupt`."""
        self._interrupted = False
        for pool in list(self._pools.values()):
            if not pool.closed:
                pool.go_on()

    def park(self) -> None:
        """At the end of an epoch: leaves the pools to the next iterator."""
        for key, pool in self._pools.items():
            idle = self._caches[key].idle
            if key in idle:
                pool.close()
            else:
                pool.load.is_idle = True
                idle[key] = pool
        self._pools.clear()

    def close(self, *, wait: bool = True) -> None:
        """Ends the processes, and those left for the next epoch unless another iterator has taken them."""
        for key, pool_cache in list(self._caches.items()):
            for pools in (self._pools, pool_cache.idle):
                pool = pools.get(key)
                if pool is not None:
                    pool.close(wait=wait)
                    pools.pop(key, None)  # last: after an exception above, the next call closes it
        self._caches.clear()


def _is_tuned(op: MpPrefetch) -> bool:
    """Whether the number of workers is found while they run; a `worker_init_fn` receives the number at the start."""
    options = op.options
    return options.num_workers is AUTOTUNE and not isinstance(options, RayOptions) and op.worker_init_fn is None


pool_openers: dict[type, Callable[[Any, int | AutotuneParameter, Any], TaskPool]] = {}
"""What opens pools of workers that are not processes of this machine, by the type of their options."""


def _open_pool(group: list[MpPrefetch], shared_plan: Any) -> TaskPool:
    """A pool of the kind that the options ask for, with the most workers that any of them asks for."""
    numbers = [op.options.num_workers for op in group]
    options = group[0].options
    if type(options) in pool_openers:
        num_workers = AUTOTUNE if AUTOTUNE in numbers else max(map(resolve_num_workers, numbers))
        return pool_openers[type(options)](shared_plan, num_workers, options)
    num_workers = max(map(resolve_num_workers, numbers))
    if hasattr(options, "open_pool"):
        return options.open_pool(shared_plan, num_workers)  # pyright: ignore[reportAttributeAccessIssue]
    from headrace.engine.workers.pool import ProcessPool

    return ProcessPool(shared_plan, num_workers)


def _in_a_thread(op: MpPrefetch, position: Position, context: Context) -> Stream:
    warnings.warn(
        "Worker processes need a POSIX system. On this system, `mp_prefetch` prefetches in a thread.", RuntimeWarning, 2
    )
    size = resolve_num_workers(op.options.num_workers) * op.options.buffer_size_or(1)
    return context.prefetch(open_stream(op.parent, position, context), Prefetch(op.parent, size))


# -------------------------------------------------------------------------------------------------------- profiled
# Workers that a profiler can look into: each serves JAX's profiler, and its operations have names in the traces.


WorkerInit = Callable[[int, int], None]


class Profiled:
    """A `worker_init_fn` that starts a profiler's server, then calls the user's."""

    def __init__(self, init: WorkerInit | None):
        self._init = init
        self._annotated: Any = None

    def __call__(self, index: int, count: int) -> None:
        self._serve(index)
        if self._init is not None:
            self._init(index, count)

    def _serve(self, index: int) -> None:
        log = logging.getLogger("headrace")
        try:
            jax = optional("jax", extra="jax")
            profiler = optional("jax.profiler", extra="jax")
        except MissingDependency as e:
            log.warning("enable_profiling=True has no effect: %s", e)
            return
        jax.config.update("jax_platforms", "cpu")  # a server opens all devices, which the consumer needs
        port = _free_port()
        profiler.start_server(port)
        self._annotated = profile.annotated(profile.labelled(profiler.TraceAnnotation))
        self._annotated.__enter__()  # for as long as the process runs
        log.warning("Worker %d (process %d) can be profiled at localhost:%d.", index, os.getpid(), port)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]
