"""How the processes of a distributed JAX program exchange texts.

They use the key-value store of JAX's coordinator, and no devices: a collective operation on devices has to come in the
same order in all processes, which nobody can promise for threads that work ahead.
"""

import json
import logging
import sys
import time
from collections import Counter
from typing import Any

from headrace.errors import PipelineError, optional
from headrace.ops.global_batch import global_rows
from headrace.ops.op import Op, parents_first
from headrace.state.identity import difference_between, of_all_hosts

WAIT_S = 600.0
"""How long to wait for other processes."""
ROWS_WAIT_S = 60.0
"""The same where nothing else makes them wait for each other, and some may not read at all."""


class Hosts:
    """The processes of a distributed JAX program, or some of them."""

    def __init__(self, members: list[int] | None = None):
        jax = optional("jax", extra="jax")
        from jax._src import distributed  # JAX has no public name for the client of its coordinator

        self._client: Any = distributed.global_state.client
        self.index = jax.process_index()
        self.members = members or list(range(jax.process_count()))

    def exchange(self, key: str, text: str, *, wait_s: float = WAIT_S) -> list[str]:
        """The text that each process wrote under a key, in the order of their numbers; waits until all have written.

        A process may write again under the same key, and receives the same answer.
        """
        if len(self.members) == 1:
            return [text]
        folder = f"headrace/{key}/"
        own = f"{folder}{self.index}"
        found = self._read(folder)
        if str(self.index) not in found:
            self._client.key_value_set(own, text)
        deadline = time.monotonic() + wait_s
        pause_s = 0.0005
        while len(found) < len(self.members):
            found = self._read(folder)
            if len(found) < len(self.members):
                if time.monotonic() > deadline:
                    raise _missing_processes_error(key, self.members, found, wait_s)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.05)
        return [found[str(i)] for i in self.members]

    def publish(self, key: str, text: str) -> None:
        """Writes a text under a key without waiting for others."""
        self._client.key_value_set(f"headrace/{key}/{self.index}", text, allow_overwrite=True)

    def published(self, key: str) -> dict[str, str]:
        """The texts written under a key so far, by the number of the process."""
        return self._read(f"headrace/{key}/")

    def compare(self, key: str, op: Op) -> None:
        """Raises in all processes if their pipelines have different data where it must be the same."""
        check_same_data(dict(zip(self.members, self.exchange(key, json.dumps(of_all_hosts(op))), strict=True)))

    def compare_rows(self, key: str, op: Op) -> None:
        """The same for those processes that come in time."""
        self.publish(key, json.dumps(of_all_hosts(op)))
        end = time.monotonic() + ROWS_WAIT_S
        while len(said := self.published(key)) < len(self.members) and time.monotonic() < end:
            time.sleep(0.02)
        if len(said) < len(self.members):
            missing = [i for i in self.members if str(i) not in said]
            logging.getLogger("headrace").warning(
                "Processes %s have not read %s (pipeline at %s) yet, so their data could not be compared with this "
                "process's.",
                ", ".join(map(str, missing[:16])),
                op.label(),
                op.site,
            )
        check_same_data({int(i): text for i, text in said.items()})

    def forget(self, key: str) -> None:
        """Removes the text that this process wrote under a key."""
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


def _missing_processes_error(key: str, members: list[int], found: dict[str, str], wait_s: float) -> PipelineError:
    missing = [i for i in members if str(i) not in found]
    return PipelineError(
        f"Processes {', '.join(map(str, missing[:16]))} of {len(members)} did not reach {key} within {wait_s:.0f} s: "
        "they have ended, hang, or read other datasets. All processes must create the same iterators in the same "
        "order."
    )


def check_same_data(said: dict[int, str]) -> None:
    """Raises if processes have said that their pipelines have different data."""
    found = difference_between({i: json.loads(text) for i, text in sorted(said.items())})
    if found is not None:
        raise PipelineError(
            f"The processes read different data, so global batches would repeat some rows and miss others: {found}. "
            "All processes must see the same files and build the same pipeline."
        )


_begun: Counter[str] = Counter()  # iterators over rows of global batches, by where their pipelines were built


def compare_rows(op: Op) -> None:
    """Compares a pipeline of rows of global batches with those of other processes, if nothing after them does."""
    if "jax" not in sys.modules or not (rows := global_rows(op)) or all(each.is_all for each in rows):
        return
    before = parents_first(op, lambda each: True)
    if any(each.name == "stop_together" or not getattr(each, "is_local", True) for each in before):
        return
    from jax._src import distributed

    if distributed.global_state.client is not None and len((hosts := Hosts()).members) > 1:
        number = _begun[op.site]
        _begun[op.site] += 1
        hosts.compare_rows(f"global_batch {op.site}/{number}", op)
