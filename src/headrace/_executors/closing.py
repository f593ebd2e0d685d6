"""What pools of workers have in common: one thread uses one at a time, waiting can be interrupted, and it ends once."""

import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace._executors.processes import ctrl_c_later
from headrace._executors.shared_plan import SharedPlan
from headrace.errors import ClosedError
from headrace.protocols import PoolLoad

P = TypeVar("P", bound="ClosingPool")


class ClosingPool:
    """The part of a `TaskPool` that does not depend on what its workers are."""

    def __init__(self, shared_plan: SharedPlan):
        self.plan, self.load = shared_plan, PoolLoad()
        self.interrupted = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closed = self._given_back = False
        try:
            self.plan.users.add(id(self))
            _pools.add(self)
            self._start()
        except BaseException:
            self.close(wait=False)
            raise

    def _start(self) -> None:
        """Starts the workers."""
        raise NotImplementedError

    def _end(self, *, wait: bool) -> None:
        """Ends the workers and releases memory; after an exception it is called again, and goes on with the rest."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Makes every thread that waits for a result stop."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the pool cannot be used any more; in a fork of its process, it never can be."""
        return self._closed or os.getpid() != self._pid

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One thread at a time; Ctrl-C can leave the pool in any state, so the pool is closed then."""
        self._check(even_if_interrupted=True)
        try:
            with self._lock:
                yield
        except Exception:
            raise
        except BaseException:
            self.close(wait=False)
            raise

    def _check(self, *, even_if_interrupted: bool = False) -> None:
        if self.closed or (self.interrupted and not even_if_interrupted):
            raise ClosedError("The workers of this iterator were closed while it waited for them.")

    def close(self, *, wait: bool = True) -> None:
        """Ends the workers and releases their memory, apart from arrays still in use.

        If a signal handler raises meanwhile, the next call continues with the rest.
        """
        if self._given_back or os.getpid() != self._pid:
            return
        self.interrupt()
        with ctrl_c_later(), self._lock:
            if self._given_back:
                return
            self._closed = True
            self._end(wait=wait)
            self.plan.give_up(id(self))
            _pools.discard(self)
            self._given_back = True

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing):
        # At exit, `_close_all` has run, and modules may be gone. Without the attribute, an interrupt came at the start
        # of `__init__`.
        if not is_finalizing() and hasattr(self, "_given_back"):
            self.close(wait=False)


_pools: "weakref.WeakSet[ClosingPool]" = weakref.WeakSet()


def open_pools(kind: type[P]) -> list[P]:
    """The open pools of a kind in this process."""
    return [pool for pool in list(_pools) if isinstance(pool, kind)]


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
