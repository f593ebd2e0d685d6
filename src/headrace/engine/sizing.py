"""When runs, chunks and buffers may grow.

A run is complete before its first output is handed over, so a slow record delays those before it in its run. Runs
double only after several of one length: then an output never waits for one further ahead than a fixed fraction of the
number of outputs so far.
"""

import time
from collections.abc import Callable

from headrace.engine.free_memory import LITTLE_BYTES, available_bytes

RUNS_ALIKE = 4


class Growth:
    """Counts runs of one length."""

    __slots__ = ("_alike",)

    def __init__(self):
        self._alike = 0

    def may_double(self) -> bool:
        """Counts a cheap run; returns whether the next may be twice as long."""
        self._alike += 1
        if self._alike < RUNS_ALIKE:
            return False
        self._alike = 0
        return True

    def restart(self) -> None:
        """Starts counting again, after an expensive run."""
        self._alike = 0


# ---------------------------------------------------------------------------------------------------- buffer limit
# How many elements a buffer may hold, for sizes that are `AUTOTUNE`.
#
# A buffer that was full and then empty was too small: first what fills it had to stop, then its reader had to wait.
# Then it may hold twice as many. It shrinks again if its reader has not waited for a while, or if memory runs short.
# Only speed depends on it; limits on bytes hold as well.


MOST = 1 << 16
LOOK_S = 10.0  # how often to look whether the room is needed


class BufferLimit:
    """The limit of one buffer.

    Args:
        first: How many elements it may hold at first, and when nobody waits.
        clock: Returns the time in seconds.
        free_bytes: Returns how much memory is free; `None` if that is not known.
    """

    def __init__(
        self,
        first: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        free_bytes: Callable[[], int | None] = available_bytes,
    ):
        self.number = self._first = first
        self._clock = clock
        self._free_bytes = free_bytes
        self._was_full = self._was_short = False
        self._next_look_s = clock() + LOOK_S

    def full(self) -> None:
        """What fills the buffer found no room."""
        self._was_full = True

    def empty(self) -> None:
        """The reader found nothing."""
        if self._was_full:
            self._was_full = False
            self._was_short = True
            if self._has_memory():
                self.number = min(2 * self.number, MOST)

    def update(self) -> None:
        """Halves the limit now and then, if the room is not needed or memory is short."""
        now = self._clock()
        if now < self._next_look_s:
            return
        self._next_look_s = now + LOOK_S
        if not self._has_memory():
            self.number = max(1, self.number // 2)
        elif not self._was_short:
            self.number = max(min(self.number, self._first), self.number // 2)
        self._was_short = False

    def _has_memory(self) -> bool:
        free = self._free_bytes()
        return free is None or free > LITTLE_BYTES
