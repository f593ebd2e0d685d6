"""Operations that combine several elements into one, or reorder a group of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import PipelineError, SpecError
from headrace.ops.lanes import Lane
from headrace.ops.op import Op, Unary, cached_from_parents
from headrace.ops.padding import pad, padded_spec, stacked_leaf
from headrace.ops.seeds import set_seed
from headrace.options import check_counts


@dataclass(frozen=True, eq=False, repr=False)
class BatchOp(Unary):
    """`batch_size` elements as one; the last of an epoch may be smaller."""

    name = "batch"
    order_params = ("batch_size", "drop_remainder")
    order_functions = ("batch_fn",)
    batch_size: int
    drop_remainder: bool = field(default=False, kw_only=True)
    batch_fn: Callable[[Sequence[Any]], Any] | None = field(default=None, kw_only=True)

    def __post_init__(self):
        check_counts(self, "batch_size", least=1)
        if self.batch_fn is not None and not callable(self.batch_fn):
            raise PipelineError(f"batch_fn must be a function of a list of elements; got {self.batch_fn!r}.")
        if not self.is_stream and self.parent.is_sparse:
            raise PipelineError(
                "`batch` cannot follow `filter` or `flat_map` on a MapDataset, whose indices may have no element: "
                "call `to_iter_dataset()` before `batch`."
            )

    @cached_from_parents
    def length(self) -> int:
        n = self.parent.length()
        return n // self.batch_size if self.drop_remainder else -(-n // self.batch_size)

    @property
    @cached_from_parents
    def endless(self) -> bool:
        return self.parent.endless

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def group_size(self) -> int:
        return self.batch_size

    def how(self) -> str:
        if self.is_stream:
            return "ordering point: stacks elements as they come"
        if self.batch_fn is not None:
            return "one call per batch"
        return (
            "one gather per batch, with the indices of many batches computed at once"
            if self.parent.gathers_columns
            else "stacks rows"
        )

    def bounds(self, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first parent index of each batch, and the one after its last."""
        n = self.parent.length()
        epochs, within = np.divmod(idx, self.length())
        start = within * self.batch_size + epochs * n
        # An endless parent has one epoch, so the bound is `n` itself and nothing overflows.
        return start, np.minimum(start + self.batch_size, (epochs + 1) * n)

    @partial(cached_from_parents, when=lambda op: op.batch_fn is None or hasattr(op.batch_fn, "output_spec"))
    def spec(self) -> Any:
        if self.batch_fn is not None:
            output_spec = getattr(self.batch_fn, "output_spec", None)
            if output_spec is not None:
                return output_spec(self.parent.spec())
            raise SpecError(
                f"The element spec after {self.label()} cannot be known: its batch_fn decides it. "
                "Give the function a method `output_spec(input_spec)`."
            )
        size: int | None = self.batch_size
        if not self.drop_remainder and (self.is_stream or self.parent.length() % self.batch_size):
            size = None
        return with_leading(self.parent.spec(), size)


class Grouped(Unary):
    """An operation that reads a group of elements before it returns an output."""

    def how(self) -> str:
        return "ordering point: one group at a time"


@dataclass(frozen=True, eq=False, repr=False)
class Rebatch(Grouped):
    """Batches cut to another size along their leading axis."""

    name = "rebatch"
    state_fields = ("rows_taken",)
    order_params = ("batch_size", "drop_remainder")
    batch_size: int
    drop_remainder: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        check_counts(self, "batch_size", least=1)

    @cached_from_parents
    def spec(self) -> Any:
        size = self.batch_size if self.drop_remainder else None
        return trees.tree_map(lambda leaf: stacked_leaf((size, *leaf.shape[1:]), leaf), self.parent.spec())


@dataclass(frozen=True, eq=False, repr=False)
class BufferShuffle(Grouped):
    """A shuffle through a sliding buffer: every element moves by less than `buffer_size`.

    Elements come out sorted by `i + buffer_size * u(i)`, where a counter-based generator draws `u(i)` in [0, 1)
    from the seed. So outputs fall into groups: group `g` holds what lands in the `g`-th stretch of
    `buffer_size`, and comes from the stretches `g - 1` and `g` of the input.
    """

    name = "shuffle"
    only_reorders = True
    state_fields = ("group", "taken_of_group")
    state_params = ("buffer_size", "seed")
    buffer_size: int
    seed: int | None = None

    def __post_init__(self):
        check_counts(self, "buffer_size", least=1)
        set_seed(self, bits=None)

    def in_lane(self, lane: Lane, parents: tuple[Op, ...]) -> Op:
        return replace(self, parent=parents[0], seed=lane.seed(self.seed))

    def landing(self, stretch: int, count: int) -> np.ndarray:
        """Where each of the first `count` elements of a stretch lands, counted from the stretch's start."""
        bits = np.random.Philox(key=np.random.SeedSequence(self.seed).generate_state(2, np.uint64))
        bits.advance(stretch << 64)
        return np.arange(count) + self.buffer_size * np.random.Generator(bits).random(count)


@dataclass(frozen=True, eq=False, repr=False)
class PaddedBatch(Grouped):
    """Padded batches of elements of different lengths, with similar lengths in one batch.

    Within each window of the stream, elements go into buckets by length. A full bucket becomes a
    batch; what is left at the window's end becomes smaller batches, shortest bucket first.
    """

    name = "padded_batch"
    state_fields = ("window", "taken_of_group")
    group_fields = ("taken_of_group",)
    state_params = ("batch_size", "boundaries", "window_size")
    order_functions = ("length_fn",)
    batch_size: int
    pad_value: Any = field(default=0, kw_only=True)
    boundaries: tuple[int, ...] = field(default=(), kw_only=True)
    length_fn: Callable[[Any], int] | None = field(default=None, kw_only=True)
    pad_to_boundary: bool = field(default=False, kw_only=True)
    window_size: int | None = field(default=None, kw_only=True)
    drop_remainder: bool = field(default=False, kw_only=True)

    def __post_init__(self):
        check_counts(self, "batch_size", least=1)
        if list(self.boundaries) != sorted(set(self.boundaries)) or any(b < 1 for b in self.boundaries):
            raise PipelineError(f"boundaries must be positive and increasing; got {self.boundaries}.")
        if self.boundaries and self.length_fn is None:
            raise PipelineError("Bucketing by length needs a `length_fn` that gives an element's length.")
        if self.window_size is None:
            buckets = len(self.boundaries) + 1
            object.__setattr__(self, "window_size", self.batch_size * (16 * buckets if buckets > 1 else 1))
        check_counts(self, "window_size", least=self.batch_size)

    def groups(self, elements: Sequence[Any]) -> list[tuple[list[int], int | None]]:
        """The batches of one window: the elements in each, and the length to pad to, if fixed."""
        buckets: list[list[int]] = [[] for _ in range(len(self.boundaries) + 1)]
        full: list[tuple[list[int], int | None]] = []
        for i, element in enumerate(elements):
            number = self._bucket(element)
            bucket = buckets[number]
            bucket.append(i)
            if len(bucket) == self.batch_size:
                full.append((bucket, self._target(number)))
                buckets[number] = []
        if not self.drop_remainder:
            full += [(bucket, self._target(number)) for number, bucket in enumerate(buckets) if bucket]
        return full

    def _bucket(self, element: Any) -> int:
        if not self.boundaries or self.length_fn is None:
            return 0
        return int(np.searchsorted(self.boundaries, self.length_fn(element), side="left"))

    def _target(self, bucket: int) -> int | None:
        return self.boundaries[bucket] if self.pad_to_boundary and bucket < len(self.boundaries) else None

    def pad(self, elements: Sequence[Any], length: int | None) -> Any:
        """Elements padded to one shape and stacked."""
        return pad(elements, self.pad_value, length)

    @cached_from_parents
    def spec(self) -> Any:
        return padded_spec(self.parent.spec(), self.batch_size if self.drop_remainder else None)


@dataclass(frozen=True)
class PadTo:
    """A `batch_fn` that fills a batch up to `batch_size`."""

    batch_size: int
    pad_value: Any = 0

    def __call__(self, values: Sequence[Any]) -> Any:
        return batch_and_pad(values, batch_size=self.batch_size, pad_value=self.pad_value)

    def output_spec(self, spec: Any) -> Any:
        return with_leading(spec, self.batch_size)


def with_leading(spec: Any, size: int | None) -> Any:
    return trees.tree_map(lambda leaf: stacked_leaf((size, *leaf.shape), leaf), spec)


def batch_and_pad(values: Sequence[Any], *, batch_size: int, pad_value: Any = 0) -> Any:
    """Elements as a batch of `batch_size`, with rows of `pad_value` where there are fewer elements.

    >>> batch_and_pad([np.array([1, 2])], batch_size=2)
    array([[1, 2],
           [0, 0]])
    """
    if len(values) > batch_size:
        raise PipelineError(
            f"A batch of batch_size={batch_size} cannot hold {len(values)} values. Pass fewer values, or "
            "raise batch_size."
        )
    missing = batch_size - len(values)

    def fill(leaf: np.ndarray) -> np.ndarray:
        return np.concatenate([leaf, np.full((missing, *leaf.shape[1:]), pad_value, leaf.dtype)])

    batch = trees.stack(list(values))
    return trees.tree_map(fill, batch) if missing else batch
