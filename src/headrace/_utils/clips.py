"""Clips of audio and video: which part of a file is taken, in seconds."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace._utils.signals import let_through
from headrace.errors import PipelineError

Seconds = float | str


class Clip(NamedTuple):
    """From `start` on, and up to `duration` seconds of it; each a number, or the name of a field of elements."""

    start: Seconds = 0.0
    duration: Seconds | None = None

    def check(self) -> "Clip":
        """Raises for numbers that make no sense."""
        for name, value in self._asdict().items():
            if value is not None and not isinstance(value, str):
                _checked(name, value, above_zero=name == "duration")
        return self

    def of(self, element: Any) -> tuple[float, float | None]:
        """The numbers for an element."""
        start = _checked("start", _looked_up(element, self.start))
        duration = _looked_up(element, self.duration)
        return start, None if duration is None else _checked("duration", duration, above_zero=True)


def _looked_up(element: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not isinstance(element, Mapping) or value not in element:
        has = sorted(map(str, element)) if isinstance(element, Mapping) else type(element).__name__
        raise PipelineError(f"The element has no field {value!r} with the time of a clip; it has {has}.")
    return element[value]


def _checked(name: str, value: Any, *, above_zero: bool = False) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError) as e:
        let_through(e)
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0 or (above_zero and seconds == 0):
        raise PipelineError(
            f"`{name}` of a clip is a number of seconds, {'above' if above_zero else 'from'} 0; got {value!r}."
        )
    return seconds
