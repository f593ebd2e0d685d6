"""How much memory is free; on import, it also keeps glibc from returning memory that the next batch needs again.

glibc returns the top of its heap to the system once enough of it is free, and takes it back page by page: with
batches of some hundred kB, that made a run of four 5 times slower. It raises its own thresholds when a large block is
freed, so one is allocated here, never touched, and freed.
"""

import sys

import numpy as np

from headrace.errors import SharedMemoryFull
from headrace.errors.signals import let_through

CHECKED_BYTES = 64 << 20  # larger requests are checked against the free memory
LITTLE_BYTES = 256 << 20  # less free memory is short
LARGE_BYTES = 24 << 20  # glibc does not learn from blocks over 32 MiB

np.empty(LARGE_BYTES, np.uint8)


def check_memory(size: int) -> None:
    """Raises if `size` bytes are not available."""
    if size <= CHECKED_BYTES:
        return
    available = available_bytes()
    if available is not None and size > available:
        raise shared_memory_error(size, f"{available / 2**20:,.0f} MiB are free")


def shared_memory_error(size: int, found: str) -> SharedMemoryFull:
    """The error for too little memory for blocks."""
    return SharedMemoryFull(
        f"The workers' blocks need {size / 2**20:,.0f} MiB more memory, but {found}. Reduce num_workers or "
        "per_worker_buffer_size in MultiprocessingOptions, or make elements or batches smaller."
    )


def available_bytes() -> int | None:
    """How much more memory this process can use: what the machine has free, or less if its control group says so."""
    try:
        with open("/proc/meminfo") as f:
            fields = dict(line.split(":", 1) for line in f)
        found = [int(fields["MemAvailable"].split()[0]) << 10]
    except (OSError, KeyError) as e:
        let_through(e)
        return None
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit) as f, open(used) as g:
                text = f.read().strip()
                if text != "max" and int(text) < sys.maxsize // 2:
                    found.append(int(text) - int(g.read()))
        except (OSError, ValueError) as e:
            let_through(e)
            continue
    return max(0, min(found))
