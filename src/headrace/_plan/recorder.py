"""Statistics of stages, updated once per run of outputs and never once per element."""

from collections.abc import Callable
from typing import Any

from headrace._ops.base import Op
from headrace._plan.blocks import Block


class StageRecord:
    """How many outputs a stage has made, and how long that took.

    Only one thread changes each number, so there is no lock. Bytes are estimated from runs 1, 4, 16, …, since
    measuring a run can cost more than computing it.

    Attributes:
        where: Who computes it: "consumer", "threads", "thread" or "workers".
        elements: The number of outputs.
        busy_s: How long they took to make, in all threads and processes together.
        waited_s: How long the reader waited for them.
    """

    __slots__ = ("_measure_at", "_measured", "_measured_bytes", "_runs", "busy_s", "elements", "waited_s", "where")

    def __init__(self, where: str = "consumer"):
        self.where = where
        self.elements = self._runs = self._measured = self._measured_bytes = 0
        self.busy_s = self.waited_s = 0.0
        self._measure_at = 1

    def add(self, block: Block, busy_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Counts a run."""
        self._runs += 1
        self.elements += len(block)
        self.busy_s += busy_s
        self.waited_s += waited_s
        if self._runs == self._measure_at:
            self._measure_at *= 4
            self._measured += len(block)
            self._measured_bytes += block.num_bytes()

    @property
    def num_bytes(self) -> int:
        """Roughly how many bytes the outputs had."""
        return self._measured_bytes * self.elements // max(1, self._measured)


class Recorder:
    """The records of the stages of one iterator."""

    def __init__(self):
        self._records: dict[Op, StageRecord] = {}

    def of(self, op: Op, where: str = "consumer") -> StageRecord:
        """The record of the stage that ends with an operation."""
        record = self._records.get(op)
        if record is None:
            record = self._records[op] = StageRecord(where)
        record.where = where
        return record

    def stats(self, label: Callable[[Op], str]) -> list[dict[str, Any]]:
        """All records as dicts of plain numbers, each with the name of its stage."""
        return [
            {
                "stage": label(op),
                "where": record.where,
                "elements": record.elements,
                "bytes": record.num_bytes,
                "busy_s": record.busy_s,
                "waited_s": record.waited_s,
            }
            for op, record in list(self._records.items())
        ]
