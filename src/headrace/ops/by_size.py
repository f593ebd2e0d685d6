"""Batches of as many elements as a budget allows, such as a number of tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from headrace.errors import PipelineError, SpecError
from headrace.ops.group import Grouped
from headrace.ops.lanes import Lane
from headrace.ops.op import Op, cached_from_parents
from headrace.ops.padding import pad, padded_spec
from headrace.ops.seeds import set_seed
from headrace.ops.sizes import Size, SizeOf
from headrace.options import check_counts

OVERSIZED = ("error", "drop")


@dataclass(frozen=True, eq=False, repr=False)
class BatchBySize(Grouped):
    """Batches of up to `max_size`: the sum of the sizes of their elements or, if padded, the longest times the rows.

    Each window of the stream is sorted by size and cut into batches, the smallest elements first, so that its last
    batch, which may not be full, has the largest. Then the batches are shuffled.

    `oversized` is no parameter of states: a run that ended at an element that is too large can resume without it.
    """

    name = "batch_by_size"
    state_fields = ("window", "taken_of_group")
    group_fields = ("taken_of_group",)
    state_params = ("max_size", "feature", "window_size", "max_rows", "padded", "shuffle_batches", "seed")
    order_functions = ("size", "batch_fn")
    max_size: int
    size: Size = len
    window_size: int = field(default=1000, kw_only=True)
    max_rows: int | None = field(default=None, kw_only=True)
    padded: bool = field(default=True, kw_only=True)
    pad_value: Any = field(default=0, kw_only=True)
    batch_fn: Callable[[list[Any]], Any] | None = field(default=None, kw_only=True)
    oversized: str = field(default="error", kw_only=True)
    shuffle_batches: bool = field(default=True, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_counts(self, "max_size", "window_size", least=1)
        if self.max_rows is not None:
            check_counts(self, "max_rows", least=1)
        if self.oversized not in OVERSIZED:
            raise PipelineError(f"oversized must be one of {', '.join(map(repr, OVERSIZED))}; got {self.oversized!r}.")
        if self.batch_fn is not None and not callable(self.batch_fn):
            raise PipelineError(f"batch_fn must be a function of a list of elements; got {self.batch_fn!r}.")
        self.size_of  # noqa: B018  (checks it)
        if self.shuffle_batches:
            set_seed(self)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], seed=lane.seed(self.seed))

    @cached_property
    def size_of(self) -> SizeOf:
        """The size of an element."""
        return SizeOf(self.size, "size")

    @property
    def feature(self) -> str | None:
        """The feature whose length is the size."""
        return self.size_of.feature

    def batches(self, sizes: Sequence[int], window: int) -> list[list[int]]:
        """The elements of each batch of a window, given the sizes of all that fit."""
        found: list[list[int]] = []
        filled = self.max_size + 1
        for i in np.argsort(sizes, kind="stable").tolist():
            rows = len(found[-1]) + 1 if found else 1
            filled = sizes[i] * rows if self.padded else filled + sizes[i]
            if not found or filled > self.max_size or rows - 1 == self.max_rows:
                found.append([])
                filled = sizes[i]
            found[-1].append(i)
        return [found[i] for i in self._order(len(found), window)] if self.shuffle_batches else found

    def _order(self, num_batches: int, window: int) -> list[int]:
        assert self.seed is not None
        keys = np.random.Philox(key=[self.seed, window]).random_raw(num_batches)
        return np.argsort(keys, kind="stable").tolist()

    @property
    def make(self) -> Callable[[list[Any]], Any]:
        """Makes a batch of a list of elements."""
        if self.batch_fn is not None:
            return self.batch_fn
        return partial(pad, pad_value=self.pad_value) if self.padded else list

    @partial(cached_from_parents, when=lambda op: op.padded or op.batch_fn is not None)
    def spec(self) -> Any:
        if self.batch_fn is None and self.padded:
            return padded_spec(self.parent.spec(), None)
        output_spec = getattr(self.batch_fn, "output_spec", None)
        if output_spec is None:
            raise SpecError(
                f"The element spec after {self.label()} cannot be known: batches are lists, or what batch_fn makes of "
                "them. Give the function a method `output_spec(input_spec)`."
            )
        return output_spec(self.parent.spec())
