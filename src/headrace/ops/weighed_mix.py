"""A mix whose weights hold for the sizes of elements, such as their numbers of tokens.

Each part has a lag: by how much its share of all sizes so far is ahead of what it has given. The next element comes
from the part with the largest lag. Weights and lags are ints, so nothing drifts: a part is never ahead of its share by
more than one element, nor behind it by more than one element of each other part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from headrace.errors import PipelineError, StateError
from headrace.ops.combine import Mix, Mixing
from headrace.ops.lanes import WHOLE, Lane
from headrace.ops.op import Op
from headrace.ops.schedule import ScheduledMix, Weights, WeightSchedule
from headrace.ops.sizes import Size, SizeOf
from headrace.ops.state_fields import Fields, as_int, count, number_of

UNIT = 1 << 24
"""The sum of the weights of all parts, as ints."""

MOST = 1 << 38
"""The largest product of a size and the number of parts, so that lags fit into 63 bits."""

_HALF = 31  # bits of an int of a state, so that any host can gather it


@dataclass(frozen=True, eq=False, repr=False)
class WeighedMix(Mixing):
    """Elements of several parts, so that the sizes of their elements are in proportion to weights.

    Its numbers are the count of elements, the sum of their sizes, and the lags of the parts.
    """

    name = "mix"
    state_fields = ("count", "size", "lags")
    maps_move_into_parts = False  # a map changes sizes
    schedule: WeightSchedule
    names: tuple[str, ...] | None = None
    weigh_by: Size = field(default=len, kw_only=True)
    lane: Lane = field(default=WHOLE, repr=False, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        self.size_of  # noqa: B018  (checks it)
        for step in [0] if callable(self.schedule.weights) else self.schedule.weights:
            self._units(step)

    @cached_property
    def size_of(self) -> SizeOf:
        """The size of an element."""
        return SizeOf(self.weigh_by, "weigh_by")

    @property
    def _parts(self) -> Sequence[str] | int:
        return self.names or len(self.parts)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parts=parents, lane=lane)

    @cached_property
    def due_parts(self) -> tuple[int, ...]:
        return self.schedule.due_parts(self._parts)

    # ---- which part comes next

    def step(self, elements: int, size: int) -> int:
        """The step of the schedule after so many elements, of this size in all."""
        per_step = self.schedule.size_per_step
        if per_step is not None:
            return self.schedule.last_change(size * self.lane.count // per_step)
        number = elements * self.lane.count + self.lane.index
        return self.schedule.last_change(number // self.schedule.elements_per_step)

    def units(self, step: int) -> np.ndarray:
        """The weights at a step as ints whose sum is `UNIT`; the last ones are kept."""
        kept = self.__dict__.get("_kept_units")
        if kept is None or kept[0] != step:
            kept = self.__dict__["_kept_units"] = step, self._units(step)
        return kept[1]

    def _units(self, step: int) -> np.ndarray:
        ends = np.cumsum(self.schedule.weights_at(step, self._parts))
        units = np.diff(np.rint(ends / ends[-1] * UNIT).astype(np.int64), prepend=0)
        lost = np.flatnonzero((units == 0) & (np.diff(ends, prepend=0) > 0))
        if len(lost):
            name = self.names[lost[0]] if self.names else int(lost[0])
            raise PipelineError(
                f"The weight of part {name!r} at step {step} is less than {1 / UNIT:.0e} of the total. Remove the "
                "part, or raise its weight."
            )
        return units

    # ---- states

    def identity(self) -> dict[str, Any]:
        return {"weigh_by": self.size_of.feature}

    def first_numbers(self) -> tuple[Any, ...]:
        return 0, 0, (0,) * len(self.parts)

    def write_numbers(self, position: tuple[Any, ...]) -> Fields:
        elements, size, lags, _ = position
        written = [_halves(lag) for lag in lags]
        return {
            "count": elements,
            "size": _halves(size),
            "lags": dict(zip(self.names, written, strict=True)) if self.names else written,
            "weights": self._digest(elements, size),
        }

    def read_numbers(self, fields: Fields) -> tuple[Any, ...]:
        saved = fields["lags"]
        by_name: dict[Any, Any] = saved if isinstance(saved, dict) else dict(enumerate(saved))
        known = [by_name.get(name) for name in self.names or range(len(self.parts))]
        lags = tuple(0 if halves is None else self._whole("lags", halves) for halves in known)
        return count(self, "count", fields["count"]), self._whole("size", fields["size"]), lags

    def _whole(self, name: str, halves: Any) -> int:
        found = [as_int(half) for half in halves] if isinstance(halves, list | tuple) else []
        known = [half for half in found if half is not None and -1 << _HALF <= half < 1 << _HALF]
        if len(found) != 2 or len(known) != 2:
            raise StateError(f"The state of {self.label()} has {name}={halves!r:.100}, which must be two ints.")
        return (known[0] << _HALF) + known[1]

    def _digest(self, elements: int, size: int) -> int:
        """A number for the weights that hold next; 0 where the schedule has none."""
        try:
            return number_of(self.units(self.step(elements, size)))
        except PipelineError:
            return 0

    def _check_mix(self, fields: Fields, known: Any, *, same_parts: bool, reread: bool) -> None:
        if not reread:
            return
        elements, size, _ = self.read_numbers(fields)
        digest = count(self, "weights", fields.get("weights", 0))
        if not same_parts or (digest and digest != self._digest(elements, size)):
            raise self.changed_too_early_error()


def _halves(number: int) -> list[int]:
    return [number >> _HALF, number & ((1 << _HALF) - 1)]


def mix_op(
    parts: tuple[Op, ...],
    weights: Weights | WeightSchedule | None,
    names: tuple[str, ...] | None,
    weigh_by: Size | None,
) -> Mixing:
    """The mix of some streams: by fixed weights or a schedule, of elements or of sizes."""
    if not isinstance(weights, WeightSchedule):
        if weights is not None and (names is not None) != isinstance(weights, Mapping):
            raise PipelineError(
                "`mix` has names for only its datasets or only its weights: give both as mappings, or neither."
            )
        fixed = Mix(parts, weights, names)
        if weigh_by is None:
            return fixed
        assert fixed.weights is not None
        weights = WeightSchedule({0: fixed.weights})
    if weigh_by is None:
        return ScheduledMix(parts, weights, names)
    return WeighedMix(parts, weights, names, weigh_by=weigh_by)
