"""When runs and chunks may become longer.

They are made whole before any of them is handed over, so a record that takes long keeps those before it in its run
waiting. Runs double only after several of one length: no output waits for one that is further on than a share of the
way so far.
"""

RUNS_ALIKE = 4


class Growth:
    """Counts runs of one length."""

    __slots__ = ("_alike",)

    def __init__(self):
        self._alike = 0

    def may_double(self) -> bool:
        """Notes a run that was cheap; whether the next may be twice as long."""
        self._alike += 1
        if self._alike < RUNS_ALIKE:
            return False
        self._alike = 0
        return True

    def restart(self) -> None:
        """Notes a run that was not."""
        self._alike = 0
