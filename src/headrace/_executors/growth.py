"""When runs and chunks may become longer.

A run is complete before its first output is handed over, so a slow record delays those before it in its run. Runs
double only after several of one length: then an output never waits for one further ahead than a fixed fraction of the
number of outputs so far.
"""

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
