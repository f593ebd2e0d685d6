"""How operations are computed: blocks, index programs, kernels for random access, and streams.

`kernels` answers indices, `streams` and `groups` hand over runs; each registers its operations on import.
"""

from headrace._plan import groups as groups
from headrace._plan import streams as streams
