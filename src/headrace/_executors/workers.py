"""The worker processes of one iterator: taken when they are first needed, kept for the next epoch at its end.

All the `mp_prefetch` of a pipeline share one pool, whatever parts of it they are in. Between epochs the pool waits in
the operation's `pool_cache`, so that it ends with the dataset. Iterators at the same time have a pool each, and share
one plan.
"""

import sys
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING

from headrace._ops.base import Op
from headrace._ops.buffer import MpPrefetch, PoolCache, Prefetch
from headrace._plan.stages import ready_for_workers
from headrace._plan.streams import Context, Position, Stream, open_stream
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from headrace._executors.pool import Pool
    from headrace._executors.shared_plan import SharedPlan

Key = tuple["weakref.ref[MpPrefetch]", ...]


is_worker = False  # in a worker, an `mp_prefetch` does nothing


class Workers:
    """The worker processes of an iterator over an operation."""

    def __init__(self, op: Op):
        self._found = _outermost(op)
        self._interrupted = False
        self._pools: dict[Key, Pool] = {}
        self._caches: dict[Key, PoolCache] = {}

    def open(self, op: MpPrefetch, position: Position, context: Context, *, single_step: bool) -> Stream:
        """The stream of an `mp_prefetch`."""
        if op.options.num_workers == 0 or is_worker:
            return open_stream(op.parent, position, context)
        if sys.platform == "win32":
            return _in_a_thread(op, position, context)
        from headrace._executors.stage_streams import Plan, PrefetchedStream

        if self._interrupted:
            raise ClosedError("The iterator was closed while a thread of it opened a dataset.")
        group = self._group(op) if op in self._found else [op]
        pool = self._pool(group)
        number = 2 * group.index(op) + single_step
        plan = partial(Plan, pool.shared_plan.pipelines[number], number, pool, op.options, single_step=single_step)
        # In a dataset that an interleave has made, workers end with it: there may be very many.
        end = None if op in self._found else partial(self._end, _key(group))
        return PrefetchedStream(lambda gaps: plan(gaps=gaps), position, context, end)

    def _group(self, op: MpPrefetch) -> list[MpPrefetch]:
        """Those that share a pool with this one."""
        return [each for each in self._found if each.worker_init_fn is op.worker_init_fn and each.options.num_workers]

    def _end(self, key: Key) -> None:
        self._caches.pop(key, None)
        pool = self._pools.pop(key, None)
        if pool is not None:
            pool.close()

    def _pool(self, group: list[MpPrefetch]) -> "Pool":
        from headrace._executors.pool import Pool

        key = _key(group)
        pool = self._pools.get(key)
        if pool is None or pool.closed:
            pool_cache = self._caches[key] = group[0].pool_cache
            pool = pool_cache.idle.pop(key, None)
            if pool is None or pool.closed:
                num_workers = max(op.options.num_workers for op in group)
                pool = Pool(_shared_plan(pool_cache, key, group), num_workers)
            pool.go_on()
            self._pools[key] = pool
        return pool

    def interrupt(self) -> None:
        """Makes whoever waits for a worker stop, and nobody start any."""
        self._interrupted = True
        for pool in list(self._pools.values()):
            pool.interrupt()

    def go_on(self) -> None:
        """Lets workers be used again."""
        self._interrupted = False
        for pool in list(self._pools.values()):
            if not pool.closed:
                pool.go_on()

    def rest(self) -> None:
        """At the end of an epoch: leaves the pools to whoever iterates next."""
        for key, pool in self._pools.items():
            idle = self._caches[key].idle
            if key in idle:
                pool.close()
            else:
                idle[key] = pool
        self._pools.clear()

    def close(self, *, wait: bool = True) -> None:
        """Ends the processes, also those left for the next epoch, unless somebody else has taken them since."""
        for key, pool_cache in list(self._caches.items()):
            for pools in (self._pools, pool_cache.idle):
                pool = pools.get(key)
                if pool is not None:
                    pool.close(wait=wait)
                    pools.pop(key, None)  # not before: an exception above leaves it to the next call
        self._caches.clear()


def _key(group: list[MpPrefetch]) -> Key:
    return tuple(map(weakref.ref, group))


def _outermost(op: Op) -> list[MpPrefetch]:
    """The `mp_prefetch` operations that are not before another one, each once."""
    found: dict[MpPrefetch, None] = {}
    ahead, seen = [op], {op}
    while ahead:
        op = ahead.pop()
        if isinstance(op, MpPrefetch):
            found[op] = None
        else:
            ahead += [parent for parent in reversed(op.parents) if parent not in seen]
            seen.update(op.parents)
    return list(found)


def _shared_plan(pool_cache: PoolCache, key: Key, group: list[MpPrefetch]) -> "SharedPlan":
    """The plan of some `mp_prefetch`, each rewritten for speed and as it was written; made once for all iterators."""
    from headrace._executors.shared_plan import SharedPlan

    shared_plan = pool_cache.shared_plans.get(key)
    if shared_plan is None or shared_plan.closed:
        trees = [ready_for_workers(op.parent, as_written=as_written) for op in group for as_written in (False, True)]
        shared_plan = pool_cache.shared_plans[key] = SharedPlan(trees, group[0].worker_init_fn)
    return shared_plan


def _in_a_thread(op: MpPrefetch, position: Position, context: Context) -> Stream:
    warnings.warn(
        "Worker processes need a POSIX system: `mp_prefetch` computes ahead in a thread here.", RuntimeWarning, 2
    )
    size = op.options.num_workers * op.options.per_worker_buffer_size
    return context.ahead(open_stream(op.parent, position, context), Prefetch(op.parent, size))
