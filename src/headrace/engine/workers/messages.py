"""The messages between a consumer and its workers: short, over a socket; they say where in a slot the rest is."""

import os
import signal
import struct
import sys

TASK = struct.Struct("<qqqq")  # number, slot, and the extent in that slot; with a negative start, the task follows
ANSWER = struct.Struct("<qqqqd")  # number, kind, extent, seconds
READY, RESULT, FAILURE, SKIPPED, NO_START = range(5)
MESSAGE_BYTES = 1 << 17  # no message is longer
STARTED_AS_WORKER = "HEADRACE_STARTED_AS_WORKER"  # an environment variable, which a worker removes at once
WORKER = "headrace.engine.workers.worker"  # the module that a worker process runs

TEMPLATE = "template"  # the argument that makes it a template for workers instead
TEMPLATE_READY = b"ready"
PROCESS_ID = struct.Struct("<q")
# The system call that copies a process; None where there are no templates.
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine) if sys.platform == "linux" else None

# Makes a worker write its stacks to a file.
STACKS = signal.SIGRTMIN + 10 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGUSR2", None)


def is_worker_process() -> bool:
    """Whether this process is a worker, or a fork of one: an `mp_prefetch` does nothing there."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == WORKER
