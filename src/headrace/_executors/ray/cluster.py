"""The Ray that pools run on: the one that this process uses already, a cluster at an address, or one on this machine.

What Headrace has started or joined, it leaves when its last pool closes. A Ray that the user has started stays.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from headrace.errors import PipelineError, WorkerError, optional
from headrace.options import RayOptions

CONNECT_S = 10.0
_lock = threading.RLock()  # a pool that is collected may close while another opens
_pools: set[int] = set()  # those that are open on a Ray that Headrace has started or joined
_ours: tuple[str, str] | None = None  # that Ray
_is_embedded = False
_is_fork = False


def _after_fork() -> None:
    global _is_fork
    _is_fork = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def library() -> Any:
    """The `ray` module."""
    return optional("ray", extra="ray")


def connection() -> tuple[str, str] | None:
    """What this process is in the cluster that it has joined; another one after `ray.shutdown()` and `ray.init()`."""
    ray = library()
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.get_worker_id(), context.get_node_id()


def enter(pool: int, options: RayOptions) -> bool:
    """Starts or joins a Ray for a pool, unless this process has one; returns whether it is for pools alone."""
    global _ours, _is_embedded
    ray = library()
    with _lock:
        if _is_fork and ray.is_initialized():
            raise WorkerError(
                "This process is a fork of one that uses Ray, whose threads are not here. Start it anew instead "
                '(`multiprocessing.get_context("spawn")`), or use worker processes: `mp_prefetch(num_workers)`.'
            )
        if not ray.is_initialized():
            _is_embedded = options.address in (None, "local")
            _start(ray, options)
            _ours = connection()
            _pools.clear()
        elif options.address not in (None, "auto", "local", ray.get_runtime_context().gcs_address):
            raise PipelineError(
                f"RayOptions(address={options.address!r}) names another cluster than the one that this process has "
                f"joined, {ray.get_runtime_context().gcs_address}. A process can use one: leave out the address, or "
                "call `ray.shutdown()` first."
            )
        is_ours = connection() == _ours
        if is_ours:
            _pools.add(pool)
        return is_ours and _is_embedded


def leave(pool: int) -> None:
    """Ends or leaves the Ray that was started or joined, after its last pool."""
    global _ours
    with _lock:
        if pool not in _pools:
            return
        if len(_pools) == 1:
            if connection() == _ours:  # else the user has shut it down
                library().shutdown()
            _ours = None
        _pools.discard(pool)  # last: after an exception above, the next call ends it


def _start(ray: Any, options: RayOptions) -> None:
    quiet = {"logging_level": logging.WARNING, "log_to_driver": True}
    if options.address not in (None, "local"):
        try:
            _reach(options.address)
            with _own_signals():
                ray.init(options.address, **quiet)
        except Exception as e:
            raise WorkerError(
                f"The Ray cluster at {options.address!r} could not be joined ({type(e).__name__}: {e}). Check that it "
                "runs and can be reached from here (`ray status`), and set RAY_AUTH_MODE=token if it wants a token. "
                "Without an address, Ray starts on this machine."
            ) from e
        return
    with _own_signals():
        ray.init("local", include_dashboard=False, **quiet)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the user's handler of SIGTERM, such as one that saves at preemption; Ray sets its own."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _reach(address: str | None) -> None:
    """Raises if nobody listens at an address: Ray itself would try for minutes."""
    host, _, port = str(address).rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()


def is_alive(node: str) -> bool:
    """Whether a node is still in the cluster."""
    return any(each["NodeID"] == node and each["Alive"] for each in library().nodes())


def store_bytes() -> int:
    """The size of the smallest object store of the cluster."""
    stores = [each["Resources"].get("object_store_memory", 0) for each in library().nodes() if each["Alive"]]
    return int(min([store for store in stores if store], default=1 << 30))


def num_free(options: RayOptions) -> int:
    """How many more workers the cluster has room for, node by node as far as is known."""
    free = library().available_resources()
    needed = {"CPU": options.num_cpus, **(options.resources or {})}
    return int(min((free.get(name, 0.0) / amount for name, amount in needed.items() if amount), default=0))
