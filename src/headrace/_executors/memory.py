"""Keeps the allocator from handing memory back that the next batch asks for again.

glibc returns the top of its heap to the system once enough of it is free, and takes it back page by page: with
batches of some hundred kB that made a run of four 5 times slower here. It raises its own thresholds when a
large block is freed, so one such block is allocated, never touched, and freed.
"""

import numpy as np

LARGE_BYTES = 24 << 20  # glibc does not learn from blocks over 32 MiB

np.empty(LARGE_BYTES, np.uint8)
