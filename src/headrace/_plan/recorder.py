"""Statistics of stages, updated once per run of outputs and never once per element."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from headrace._ops.base import Op
from headrace._plan.blocks import Block


class StageRecord:
    """How many outputs a stage has made, and how long that took.

    Parts of a mix that are built on one line share a record, and threads may compute them, so it has a lock. Bytes are
    estimated from runs 1, 4, 16, …, since measuring a run can cost more than computing it.

    Attributes:
        where: Who computes it: "consumer", "threads", "thread" or "workers".
        elements: The number of outputs.
        left_out: The number of inputs that it left out by itself, such as empty sequences or oversized elements.
        busy_s: How long they took to make, in all threads and processes together.
        waited_s: How long the reader waited for them.
    """

    __slots__ = (
        "_lock",
        "_measure_at",
        "_measured",
        "_measured_bytes",
        "_runs",
        "busy_s",
        "elements",
        "left_out",
        "op",
        "waited_s",
        "where",
    )

    def __init__(self, where: str = "consumer", op: Op | None = None):
        self.where, self.op = where, None if op is None else weakref.ref(op)
        self._lock = threading.RLock()  # a signal handler may come back here
        self.elements = self.left_out = self._runs = self._measured = self._measured_bytes = 0
        self.busy_s = self.waited_s = 0.0
        self._measure_at = 1

    def add(self, block: Block, busy_s: float = 0.0, waited_s: float = 0.0) -> None:
        """Counts a run."""
        with self._lock:
            self._runs += 1
            self.elements += len(block)
            self.busy_s += busy_s
            self.waited_s += waited_s
            if self._runs == self._measure_at:
                self._measure_at *= 4
                self._measured += len(block)
                self._measured_bytes += block.num_bytes()

    def add_busy(self, seconds: float) -> None:
        """Counts time at work whose run somebody else counts."""
        with self._lock:
            self.busy_s += seconds

    def leave_out(self, count: int, warning: Callable[[], str]) -> None:
        """Counts inputs that are left out; the first time, logs a warning."""
        if not self.left_out:
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning("%s", warning())
        with self._lock:
            self.left_out += count

    @property
    def num_bytes(self) -> int:
        """Roughly how many bytes the outputs had."""
        return self._measured_bytes * self.elements // max(1, self._measured)


class Recorder:
    """The records of the stages of one iterator.

    They are kept by line of the user's code, not by operation: an interleave may make any number of datasets there.
    """

    def __init__(self):
        self._records: dict[Any, StageRecord] = {}

    def of(self, op: Op, where: str = "consumer") -> StageRecord:
        """The record of the stage that ends with an operation."""
        function = getattr(op, "transform", None)
        key = type(op), op.site, getattr(function, "__code__", None) or type(function)
        record = self._records.get(key)
        if record is None:
            record = self._records.setdefault(key, StageRecord(where, op))
        record.where = where
        return record

    def stats(self, label: Callable[[Op], str]) -> list[dict[str, Any]]:
        """All records as plain numbers, each with the name of its stage."""
        return [
            {
                "stage": name[0].name if record.op is None or (op := record.op()) is None else label(op),
                "where": record.where,
                "elements": record.elements,
                "left_out": record.left_out,
                "bytes": record.num_bytes,
                "busy_s": record.busy_s,
                "waited_s": record.waited_s,
            }
            for name, record in list(self._records.items())
        ]
