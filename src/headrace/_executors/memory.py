"""How much memory there is; and keeps the allocator from handing back what the next batch asks for again.

glibc returns the top of its heap to the system once enough of it is free, and takes it back page by page: with
batches of some hundred kB that made a run of four 5 times slower here. It raises its own thresholds when a
large block is freed, so one such block is allocated, never touched, and freed.
"""

import sys

import numpy as np

from headrace.errors import RingMemoryError

CHECKED_BYTES = 64 << 20  # for more than this, it is first seen whether there is so much memory
LARGE_BYTES = 24 << 20  # glibc does not learn from blocks over 32 MiB

np.empty(LARGE_BYTES, np.uint8)


def check_memory(size: int) -> None:
    """Raises where so many bytes more are not to be had."""
    if size <= CHECKED_BYTES:
        return
    available = available_bytes()
    if available is not None and size > available:
        raise too_little(size, f"{available / 2**20:,.0f} MiB are free")


def too_little(size: int, found: str) -> RingMemoryError:
    """The error where there is too little memory for blocks."""
    return RingMemoryError(
        f"The memory for the workers' blocks needs {size / 2**20:,.0f} MiB more, and {found}. Give fewer num_workers "
        "or a smaller per_worker_buffer_size in MultiprocessingOptions, or make elements or batches smaller."
    )


def available_bytes() -> int | None:
    """How much memory this process may still take: what the machine has, and what its control group allows."""
    try:
        with open("/proc/meminfo") as f:
            fields = dict(line.split(":", 1) for line in f)
        found = [int(fields["MemAvailable"].split()[0]) << 10]
    except (OSError, KeyError):
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
        except (OSError, ValueError):
            continue
    return max(0, min(found))
