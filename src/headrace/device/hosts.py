"""What the processes of a distributed JAX program tell each other.

They use the key-value store of JAX's coordinator, and no devices: a collective operation on devices has to come in the
same order in all processes, which nobody can promise for threads that work ahead.
"""

import time
from typing import Any

from headrace._plan.streams import Context
from headrace.errors import PipelineError, optional

WAIT_S = 600.0
"""How long to wait for other processes."""


class Hosts:
    """The processes of a distributed JAX program, or some of them."""

    def __init__(self, members: list[int] | None = None):
        jax = optional("jax", extra="jax")
        from jax._src import distributed  # JAX has no public name for the client of its coordinator

        self._client: Any = distributed.global_state.client
        self.index, self.members = jax.process_index(), members or list(range(jax.process_count()))

    def exchange(self, key: str, text: str, *, wait_s: float = WAIT_S) -> list[str]:
        """What each process says under a key, in the order of their numbers; waits until all have said something.

        A process may say something again under the same key, and gets the same answer.
        """
        if len(self.members) == 1:
            return [text]
        folder = f"headrace/{key}/"
        own = f"{folder}{self.index}"
        found = self._read(folder)
        if str(self.index) not in found:
            self._client.key_value_set(own, text)
        deadline, pause_s = time.monotonic() + wait_s, 0.0005
        while len(found) < len(self.members):
            found = self._read(folder)
            if len(found) < len(self.members):
                if time.monotonic() > deadline:
                    raise _nobody_came(key, self.members, found, wait_s)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        return [found[str(i)] for i in self.members]

    def say(self, key: str, text: str) -> None:
        """Says something under a key without waiting for others."""
        self._client.key_value_set(f"headrace/{key}/{self.index}", text, allow_overwrite=True)

    def heard(self, key: str) -> dict[str, str]:
        """What has been said under a key so far, by the number of the process."""
        return self._read(f"headrace/{key}/")

    def forget(self, key: str) -> None:
        """Removes what this process has said under a key."""
        if len(self.members) > 1:
            self._client.key_value_delete(f"headrace/{key}/{self.index}")

    def _read(self, folder: str) -> dict[str, str]:
        try:
            pairs = self._client.key_value_dir_get(folder)
        except Exception as e:
            if "NOT_FOUND" in str(e):
                return {}
            raise
        return {key.rpartition("/")[2]: value for key, value in pairs}


def _nobody_came(key: str, members: list[int], found: dict[str, str], wait_s: float) -> PipelineError:
    missing = [i for i in members if str(i) not in found]
    return PipelineError(
        f"Processes {', '.join(map(str, missing[:16]))} of {len(members)} did not come to {key} within {wait_s:.0f} s: "
        "they have ended, hang, or read other datasets. All processes must make the same iterators in the same order."
    )


class _Numbers(dict[Any, int]):
    """The number of an iterator among those over each operation: the same in all processes."""


class _Sessions:
    """How many iterators there have been over an operation."""

    count = 0


def session(op: Any, context: Context) -> int:
    """The number of this iterator among those over an operation, which it keeps until it goes to another position."""
    numbers = context.kept.of(_Numbers)
    if op not in numbers:
        sessions = op.kept.of(_Sessions)
        numbers[op], sessions.count = sessions.count, sessions.count + 1
    return numbers[op]
