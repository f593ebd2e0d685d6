"""Workers that a profiler can look into: each serves JAX's profiler, and its operations have names in the traces."""

import logging
import os
import socket
from collections.abc import Callable
from typing import Any

from headrace._plan import profile
from headrace.errors import MissingDependency, optional

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
