"""Grain's statistics, to which users' datasets and iterators report; nothing is recorded."""

import contextlib
from typing import Any


class NoStats:
    """Ignores reports and returns elements unchanged."""

    output_spec = None

    def record_self_time(self, *, num_elements: int = 1, offset_ns: int = 0) -> contextlib.AbstractContextManager[None]:
        """A context for the work of one step."""
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        """Returns the element."""
        return element

    record_output_spec_for_batch = record_bytes_consumed = record_bytes_produced = record_output_spec

    def report(self) -> None:
        """Reports nothing."""
