"""Operations on a stream as a whole: its start and end, caches, and what is computed ahead."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from headrace.errors import PipelineError
from headrace.ops.lanes import Lane
from headrace.ops.op import ENDLESS, Op, ProcessLocal, Unary, cached_from_parents, describe, parents_first
from headrace.ops.order import IndexOp, Slice
from headrace.options import (
    AUTOTUNE,
    AutotuneParameter,
    MultiprocessingOptions,
    RayOptions,
    ReadOptions,
    check_counts,
    num_threads,
)


@dataclass(frozen=True, eq=False, repr=False)
class ToStream(Unary):
    """The elements of a random-access chain in order; missing ones are skipped unless `allow_nones`."""

    name = "to_iter_dataset"
    read_options: ReadOptions | None = None
    allow_nones: bool = field(default=False, kw_only=True)
    num_lanes: int = field(default=1, kw_only=True)
    lane_of: "ToStream | None" = field(default=None, kw_only=True)  # the stream that this is a lane of

    def __post_init__(self):
        check_counts(self, "num_lanes", least=1)

    @property
    def is_stream(self) -> bool:
        return True

    @property
    def lanes(self) -> int:
        return self.num_lanes

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        every = Slice(self.parent, lane.index, lane.count, lane.below(self.parent.length()), site=self.site)
        return replace(self, parent=every, num_lanes=1, lane_of=self)

    def identity(self) -> dict[str, Any]:
        cut = {"num_lanes": self.num_lanes} if self.num_lanes > 1 else {}
        return {"allow_nones": self.allow_nones} | cut

    def first_position(self, parts: tuple[Any, ...]) -> int:
        return 0

    @property
    def num_threads(self) -> Any:
        """How many threads read; `AUTOTUNE` where a trial decides.

        No trial lets threads draw from generators that the consumer may be using.
        """
        number = num_threads(self.read_options)
        if number is AUTOTUNE and any(op.draws_from_globals for op in parents_first(self.parent, lambda _: True)):
            return 0
        return number

    def how(self) -> str:
        threads = self.num_threads
        if threads is AUTOTUNE:
            return "in index order; threads if a trial shows that they help"
        return f"in index order, {threads} threads" if threads else "in index order, no threads"

    @property
    @cached_from_parents
    def endless(self) -> bool:
        return self.parent.endless or self.parent.length() >= ENDLESS


@dataclass(frozen=True, eq=False, repr=False)
class Limit(Unary):
    """The first `count` elements."""

    name = "take"
    state_fields = ("taken",)
    group_fields = ()
    state_limits: ClassVar = {"taken": "count"}
    only_reorders = True
    order_params = ("count",)
    count: int

    def __post_init__(self):
        check_counts(self, "count", least=0)

    @property
    def endless(self) -> bool:
        return False

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], count=lane.below(self.count))


@dataclass(frozen=True, eq=False, repr=False)
class Skip(Unary):
    """All but the first `count` elements."""

    name = "skip"
    state_fields = ("skipped",)
    group_fields = ()
    order_params = ("count",)
    count: int

    def __post_init__(self):
        check_counts(self, "count", least=0)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], count=lane.below(self.count))


@dataclass(frozen=True, eq=False, repr=False)
class Prefetch(Unary):
    """The same elements, computed ahead in a thread."""

    name = "prefetch"
    is_transparent = only_reorders = True
    buffer_size: int | AutotuneParameter

    def __post_init__(self):
        check_counts(self, "buffer_size", least=0, autotune=True)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return parents[0]  # it works ahead after the lanes are joined

    def how(self) -> str:
        return f"a thread prefetches {self.buffer_size} elements"


@dataclass(frozen=True, eq=False, repr=False)
class MpPrefetch(Unary):
    """The same elements, computed ahead in worker processes."""

    name = "mp_prefetch"
    is_transparent = only_reorders = True
    is_seed_step = False  # as in Grain without workers: seeds must not depend on the number of workers
    options: MultiprocessingOptions
    worker_init_fn: Callable[[int, int], None] | None = None
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    def __post_init__(self):
        if not isinstance(self.options, MultiprocessingOptions):
            raise PipelineError(f"`mp_prefetch` takes MultiprocessingOptions; got {self.options!r}.")
        if self.worker_init_fn is not None and not _takes_two(self.worker_init_fn):
            raise PipelineError(
                f"worker_init_fn must take two arguments, the worker's index and the number of workers; got "
                f"{describe(self.worker_init_fn)}."
            )

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return parents[0]  # it works ahead after the lanes are joined

    def how(self) -> str:
        number = self.options.num_workers
        on_ray = isinstance(self.options, RayOptions)
        if number is AUTOTUNE:
            found = "prefetches with as many Ray actors as fit"
            return found if on_ray else "prefetches with worker processes if a trial shows that they help"
        kind = "Ray actors" if on_ray else "worker processes"
        return f"prefetches with {number} {kind}" if self.options.has_workers else "no work at run time"

    def label(self) -> str:
        number = "" if self.options.num_workers is AUTOTUNE else repr(self.options.num_workers)
        return f"mp_prefetch({f'RayOptions({number})' if isinstance(self.options, RayOptions) else number})"


def _takes_two(function: Any) -> bool:
    """Whether a function takes two arguments, or does not say."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(0, 1)
    except TypeError:
        return False
    except ValueError:
        pass  # a built-in without a signature
    return True


@dataclass(frozen=True, eq=False, repr=False)
class Cache(IndexOp):
    """The elements of the first epoch, kept in memory: later epochs see the same."""

    name = "cache"
    order_params = ()
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    def __post_init__(self):
        if self.parent.endless:
            raise PipelineError("`cache` cannot hold an endless dataset: put it before `repeat`.")

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], kept=ProcessLocal())

    @property
    def gathers_columns(self) -> bool:
        return False

    def how(self) -> str:
        return "kept in memory"

    def indices(self, idx: np.ndarray) -> np.ndarray:
        return idx % self.parent.length()
