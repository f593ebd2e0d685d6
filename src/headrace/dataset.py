"""Datasets: each method builds one operation and nothing is computed until elements are asked for.

`MapDataset` has a length and elements by index; `IterDataset` is a stream. An index past the length is an
element of a later epoch: `ds[len(ds) + i]` is element `i` of epoch 1.
"""

import builtins
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np

from headrace import transforms
from headrace._executors import context
from headrace._ops.base import ENDLESS, Op
from headrace._ops.buffer import Cache, Limit, Prefetch, Skip, ToStream
from headrace._ops.combine import Concatenate, Interleave, Mix, Select, Zip
from headrace._ops.element import Filter, FlatMap, Map, MapWithIndex, RandomMap
from headrace._ops.group import Batch, BufferShuffle, PaddedBatch, Rebatch, batch_and_pad
from headrace._ops.order import Options, Pick, Repeat, Seed, Shuffle, Slice, WindowShuffle
from headrace._ops.source import Source, UserDataset
from headrace._plan.blocks import Block, Indices, concat
from headrace._plan.explain import explain, show
from headrace._plan.kernels import fetcher
from headrace._plan.streams import open_stream
from headrace.errors import PipelineError
from headrace.iterator import DatasetIterator, StreamIterator
from headrace.options import AutotuneParameter, DatasetOptions, MultiprocessingOptions, ReadOptions
from headrace.sources import ArrayDataSource, RangeDataSource
from headrace.sources.arrays import is_array_like

T = TypeVar("T")
S = TypeVar("S")


class Dataset(Generic[T]):
    """What `MapDataset` and `IterDataset` share: a subclass of the user's own has its `parents` here."""

    _parents: "tuple[Dataset, ...]" = ()

    def __init__(self, parents: "Dataset | Sequence[Dataset]" = ()):
        self._parents = (parents,) if isinstance(parents, Dataset) else tuple(parents)

    @classmethod
    def _of(cls, op: Op) -> Self:
        self = cls.__new__(cls)
        self.__dict__["_op"] = op
        return self

    @functools.cached_property
    def _op(self) -> Op:
        """The operation that this dataset is; a user's own class is one of its own."""
        return UserDataset(self, isinstance(self, IterDataset))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fetch"}

    def _then(self, op: Op) -> Self:
        """The dataset after one more operation."""
        return (IterDataset if op.is_stream else MapDataset)._of(op)  # type: ignore[return-value]

    @property
    def parents(self) -> "Sequence[Dataset]":
        """The datasets that this one is made from."""
        op = self._op
        return self._parents if isinstance(op, UserDataset) else tuple(map(_dataset_of, op.parents))

    @property
    def _parent(self) -> "Any":
        (parent,) = self.parents
        return parent

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of elements, without reading any."""
        return self._op.spec()

    def explain(self) -> str:
        """How the pipeline will be computed, operation by operation."""
        return explain(self._op)

    def __repr__(self) -> str:
        return show(self._op)

    # ---- operations on elements

    def map(self, transform: "transforms.Map | Callable[[T], S]", *, batched: bool = False) -> "Any":
        """Applies a function to every element.

        >>> list(MapDataset.range(3).map(lambda x: x * 10))
        [0, 10, 20]

        Args:
            transform: A function, or a `transforms.Map`; where that has a `map_batch` as well, it is called
                with columns where elements travel as columns.
            batched: The function works on columns, row by row: it gets a pytree whose leaves have a leading
                axis and returns one of the same length. How many rows a call gets is not defined.
        """
        return self._then(Map(self._op, transform, batched))

    def map_with_index(self, transform: "transforms.MapWithIndex | Callable[[int, T], S]") -> "Any":
        """Applies a function to every index (in a stream: the count so far) and element.

        >>> list(MapDataset.range(10, 13).map_with_index(lambda i, x: (i, x)))
        [(0, 10), (1, 11), (2, 12)]
        """
        return self._then(MapWithIndex(self._op, transform))

    def random_map(
        self,
        transform: "transforms.RandomMap | Callable[[T, np.random.Generator], S]",
        *,
        seed: int | None = None,
    ) -> "Any":
        """Applies a function to every element and a random number generator of its own.

        >>> list(MapDataset.range(3).random_map(lambda x, rng: int(rng.integers(1000)), seed=5))
        [864, 504, 14]
        """
        return self._then(RandomMap(self._op, transform, seed))

    def filter(self, transform: "transforms.Filter | Callable[[T], bool]") -> Self:
        """Keeps the elements for which a function is true.

        In a `MapDataset` the others become `None`, so that indices keep their meaning; a stream closes the gaps.

        >>> list(MapDataset.range(6).filter(lambda x: x % 2 == 0))
        [0, 2, 4]
        """
        return self._then(Filter(self._op, transform))

    def flat_map(
        self, transform: "transforms.FlatMap | Callable[[T], Sequence[S]]", *, max_fan_out: int | None = None
    ) -> "Any":
        """Splits every element into several.

        >>> list(MapDataset.range(3).to_iter_dataset().flat_map(lambda x: [x] * x))
        [1, 2, 2]

        Args:
            transform: A function that returns a sequence, or a `transforms.FlatMap`.
            max_fan_out: How many children an element has at most; needed on a `MapDataset`.
        """
        return self._then(FlatMap(self._op, transform, max_fan_out))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[T]], S] | None = None,
    ) -> "Any":
        """Stacks `batch_size` elements into one, leaf by leaf.

        >>> list(MapDataset.range(5).batch(2))
        [array([0, 1]), array([2, 3]), array([4])]

        Args:
            batch_size: How many elements a batch has.
            drop_remainder: Leaves out a last batch that is smaller.
            batch_fn: Makes the batch from a list of elements, instead of stacking.
        """
        return self._then(Batch(self._op, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn))

    def batch_and_pad(self, batch_size: int, *, pad_value: Any = 0) -> "Any":
        """Batches of exactly `batch_size`: a last one that is smaller is filled up with `pad_value`.

        >>> list(MapDataset.range(3).batch_and_pad(2, pad_value=-1))
        [array([0, 1]), array([ 2, -1])]
        """
        return self.batch(
            batch_size, batch_fn=functools.partial(batch_and_pad, batch_size=batch_size, pad_value=pad_value)
        )

    # ---- order

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> Self:
        """Shuffles within windows of consecutive elements.

        >>> list(MapDataset.range(8).window_shuffle(4, seed=3))
        [2, 3, 0, 1, 5, 4, 6, 7]
        """
        return self._then(WindowShuffle(self._op, window_size, seed))

    def seed(self, seed: int) -> Self:
        """Gives the random operations after it the seed that theirs are derived from.

        >>> list(MapDataset.range(4).seed(42).shuffle()) == list(MapDataset.range(4).seed(42).shuffle())
        True
        """
        return self._then(Seed(self._op, seed))

    def cache(self) -> Self:
        """Keeps elements in memory once they are computed; later epochs see those of the first.

        Random operations belong after it, and so does `repeat`.
        """
        return self._then(Cache(self._op))

    def with_options(self, options: DatasetOptions) -> Self:
        """Sets options of the whole pipeline."""
        return self._then(Options(self._op, options))

    # ---- composition

    def apply(self, transformations: "transforms.Transformation | transforms.Transformations") -> "Any":
        """Applies transforms one after the other.

        >>> list(MapDataset.range(4).apply([transforms.Batch(2)]))
        [array([0, 1]), array([2, 3])]
        """
        dataset: Any = self
        many = isinstance(transformations, Sequence) and not isinstance(transformations, str)
        for transform in transformations if many else [transformations]:  # type: ignore[union-attr]
            dataset = _apply_one(dataset, transform)
        return dataset

    def pipe(self, function: Callable[..., S], /, *args: Any, **kwargs: Any) -> S:
        """`function(self, *args, **kwargs)`, so that functions of datasets read in order.

        >>> list(MapDataset.range(4).pipe(lambda ds, n: ds.take(n), 2))
        [0, 1]
        """
        return function(self, *args, **kwargs)

    def to_arrays(self) -> Any:
        """A whole finite dataset as one pytree of arrays with a leading axis.

        >>> MapDataset.range(4).map(lambda x: {"x": x, "y": x / 2}).to_arrays()
        {'x': array([0, 1, 2, 3]), 'y': array([0. , 0.5, 1. , 1.5])}
        """
        op = self._stream_op
        if op.endless:
            raise PipelineError("`to_arrays` of an endless dataset never ends: cut it with `take` first.")
        stream = open_stream(op, None, context(op))
        try:
            blocks = list(_blocks(stream))
        except Exception:
            blocks = None
        finally:
            stream.close()
        rows = concat(blocks) if blocks else list(self)  # once more where it failed, for an error that says where
        if not len(rows):
            raise PipelineError("`to_arrays` of an empty dataset: there is no element to tell shapes and dtypes.")
        return rows.stack()  # type: ignore[union-attr]

    @property
    def _stream_op(self) -> Op:
        op = self._op
        return op if op.is_stream else ToStream(op)

    def __iter__(self) -> DatasetIterator[T]:
        return StreamIterator.of(self._stream_op)


class MapDataset(Dataset[T]):
    """A dataset with a length and elements by index.

    For a dataset of your own, subclass it and define `__len__` and `__getitem__` (and `__getitems__`, if
    several elements are cheaper together).
    """

    # ---- sources

    @staticmethod
    def source(source: Any) -> "MapDataset":
        """The elements of a source: anything with `__len__` and `__getitem__`.

        A NumPy array, or a dict of arrays with one leading length, is read by rows; a source that has
        `__getitems__` is asked for many elements at once.

        >>> MapDataset.source({"x": np.arange(4), "y": np.eye(4)})[1]
        {'x': np.int64(1), 'y': array([0., 1., 0., 0.])}
        """
        if is_array_like(source):
            source = ArrayDataSource(source)
        if not hasattr(source, "__len__") or not (hasattr(source, "__getitem__") or hasattr(source, "__getitems__")):
            raise PipelineError(
                f"A source needs `__len__` and `__getitem__`; {type(source).__name__} lacks "
                f"{'`__len__`' if not hasattr(source, '__len__') else '`__getitem__`'}."
            )
        if isinstance(source, Mapping):
            raise PipelineError(
                "A dict is a source only if its values are NumPy arrays of one length: element i is then row i of "
                f"each. Got values of {sorted({type(value).__name__ for value in source.values()})}."
            )
        return MapDataset._of(Source(source))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> "MapDataset[int]":
        """The ints of `range(start, stop, step)`."""
        first, last = (0, start) if stop is None else (start, stop)
        return MapDataset._of(Source(RangeDataSource(first, last, step)))

    # ---- several datasets

    @staticmethod
    def mix(datasets: "Sequence[MapDataset[T]]", weights: Sequence[float] | None = None) -> "MapDataset[T]":
        """Elements of several datasets in fixed proportions, spread evenly.

        >>> list(MapDataset.mix([MapDataset.range(3), MapDataset.range(10, 16)], weights=[1, 2]))
        [0, 10, 11, 1, 12, 13, 2, 14, 15]
        """
        return MapDataset._of(Mix(_ops(datasets, "mix"), None if weights is None else tuple(weights)))

    @staticmethod
    def concatenate(datasets: "Sequence[MapDataset[T]]") -> "MapDataset[T]":
        """One dataset after the other."""
        return MapDataset._of(Concatenate(_ops(datasets, "concatenate")))

    @staticmethod
    def zip(datasets: "Sequence[MapDataset]", *, strict: bool = True) -> "MapDataset[tuple]":
        """Tuples of one element from each dataset."""
        return MapDataset._of(Zip(_ops(datasets, "zip"), strict=strict))

    @staticmethod
    def select_from_datasets(
        datasets: "Sequence[MapDataset[T]]", selection_map: transforms.DatasetSelectionMap
    ) -> "MapDataset[T]":
        """Elements that a selection map chooses."""
        return MapDataset._of(Select(_ops(datasets, "select_from_datasets"), selection_map))

    # ---- access

    def __len__(self) -> int:
        return self._op.length()

    @functools.cached_property
    def _fetch(self) -> Callable[[Indices], Block]:
        return fetcher(self._op)

    def __getitem__(self, index: Any) -> Any:
        """An element by index; a dataset of elements, for a slice or a sequence of ints."""
        if isinstance(index, builtins.slice):
            return self.slice(index)
        if isinstance(index, Sequence | np.ndarray) and not isinstance(index, str | bytes):
            return self._pick(index)
        place = self._place(index)
        (element,) = self._fetch(range(place, place + 1)).own_rows()
        return element

    def _place(self, index: Any) -> int:
        """An index as an int from 0 on."""
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"An index must be an int, a slice or a sequence of ints; got {type(index).__name__}: {index!r}."
            ) from None
        length = len(self)
        if length == 0:
            raise IndexError("The dataset is empty.")
        return place if place >= 0 else place % length

    def _pick(self, indices: Sequence[int] | np.ndarray) -> "MapDataset[T]":
        if any(isinstance(i, bool | np.bool_) for i in indices):
            raise TypeError("Indices must be ints; got bools. Use `filter`, or np.flatnonzero(mask).")
        return MapDataset._of(Pick(self._op, np.array([self._place(i) for i in indices], np.int64)))

    def slice(self, sl: builtins.slice) -> "MapDataset[T]":
        """The elements of a slice, as a dataset.

        >>> list(MapDataset.range(10)[2:8:3])
        [2, 5]
        """
        start, stop, step = sl.indices(len(self))
        return MapDataset._of(Slice(self._op, start, step, len(range(start, stop, step))))

    def take(self, count: int) -> "MapDataset[T]":
        """The first `count` elements."""
        return self.slice(builtins.slice(_non_negative("take", count)))

    def skip(self, count: int) -> "MapDataset[T]":
        """All but the first `count` elements."""
        return self.slice(builtins.slice(_non_negative("skip", count), None))

    def shard(self, num_shards: int, index: int, *, drop_remainder: bool = False) -> "MapDataset[T]":
        """Every `num_shards`-th element from `index` on.

        >>> list(MapDataset.range(7).shard(3, 0)), list(MapDataset.range(7).shard(3, 0, drop_remainder=True))
        ([0, 3, 6], [0, 3])
        """
        if not 0 <= index < num_shards:
            raise PipelineError(f"A shard's index must lie in 0..{num_shards - 1}; got {index}.")
        stop = len(self) // num_shards * num_shards if drop_remainder else None
        return self.slice(builtins.slice(index, stop, num_shards))

    # ---- order

    def shuffle(self, seed: int | None = None) -> "MapDataset[T]":
        """All elements in random order, another one in each epoch.

        >>> list(MapDataset.range(10).shuffle(seed=1))
        [5, 7, 6, 0, 4, 8, 9, 2, 1, 3]
        """
        return self._then(Shuffle(self._op, seed))

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> "MapDataset[T]":
        """Epoch after epoch, without an end unless one is given.

        >>> list(MapDataset.range(2).repeat(2))
        [0, 1, 0, 1]
        """
        return self._then(Repeat(self._op, num_epochs, reseed_each_epoch=reseed_each_epoch))

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> "IterDataset[T]":
        """The elements as a stream.

        Args:
            read_options: Threads that read ahead. By default Headrace measures whether any pay.
            allow_nones: Hands over `None` where a filter left a gap.
        """
        return IterDataset._of(ToStream(self._op, read_options, allow_nones=allow_nones))


class IterDataset(Dataset[T]):
    """A dataset that is a stream.

    For a dataset of your own, subclass it and define `__iter__`, which returns a `DatasetIterator`.
    """

    # ---- several datasets

    @staticmethod
    def mix(
        datasets: "Sequence[Dataset[T]] | Mapping[str, Dataset[T]]",
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> "IterDataset[T]":
        """Elements of several datasets in fixed proportions, until one that is due has ended.

        With mappings, parts are known by name: a state can be restored after weights or parts have changed.

        >>> a, b = MapDataset.range(3).to_iter_dataset(), MapDataset.range(10, 20).to_iter_dataset()
        >>> list(IterDataset.mix({"a": a, "b": b}, {"a": 1, "b": 2}))
        [0, 10, 11, 1, 12, 13, 2, 14, 15]
        """
        names = None
        if isinstance(datasets, Mapping):
            names = tuple(datasets)
            if isinstance(weights, Mapping):
                if set(weights) != set(names):
                    raise PipelineError(f"`mix` has datasets {sorted(names)} and weights for {sorted(weights)}.")
                weights = [weights[name] for name in names]
            datasets = list(datasets.values())
        elif isinstance(weights, Mapping):
            raise PipelineError("`mix` has weights by name and datasets without names: give both as mappings.")
        parts = _stream_ops(datasets, "mix")
        return IterDataset._of(Mix(parts, None if weights is None else tuple(weights), names))

    @staticmethod
    def zip(datasets: "Sequence[Dataset]", *, strict: bool = True) -> "IterDataset[tuple]":
        """Tuples of one element from each dataset."""
        return IterDataset._of(Zip(_stream_ops(datasets, "zip"), strict=strict))

    @staticmethod
    def interleave(datasets: "Sequence[Dataset[T]] | MapDataset", *, cycle_length: int) -> "IterDataset[T]":
        """Elements of `cycle_length` datasets in turn; one that ends is replaced by the next.

        >>> parts = MapDataset.range(3).map(lambda i: MapDataset.range(10 * i, 10 * i + 2))
        >>> list(IterDataset.interleave(parts, cycle_length=2))
        [0, 10, 1, 11, 20, 21]

        Args:
            datasets: Datasets, or a `MapDataset` whose elements are datasets.
            cycle_length: How many are open at a time.
        """
        if isinstance(datasets, MapDataset):
            return IterDataset._of(Interleave(datasets._op, cycle_length))
        return IterDataset._of(Interleave(_stream_ops(datasets, "interleave"), cycle_length))

    # ---- batches

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> "IterDataset[T]":
        """Batches cut anew to another size.

        >>> list(MapDataset.range(5).batch(2).to_iter_dataset().rebatch(3))
        [array([0, 1, 2]), array([3, 4])]
        """
        return self._then(Rebatch(self._op, batch_size, drop_remainder=drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        *,
        pad_value: Any = 0,
        boundaries: Sequence[int] = (),
        length_fn: Callable[[T], int] | None = None,
        pad_to_boundary: bool = False,
        window_size: int | None = None,
        drop_remainder: bool = False,
    ) -> "IterDataset":
        """Batches of elements of different lengths, padded at their ends.

        >>> ds = MapDataset.source([np.ones(2), np.ones(3), np.ones(1)]).to_iter_dataset()
        >>> [batch.shape for batch in ds.padded_batch(2)]
        [(2, 3), (1, 1)]

        Args:
            batch_size: How many elements a batch has.
            pad_value: What padding is made of: one value, or a dict of values by feature.
            boundaries: Upper ends of length buckets; elements of one bucket are batched together.
            length_fn: An element's length, for bucketing.
            pad_to_boundary: Pads to the bucket's upper end instead of to the longest element.
            window_size: Buckets are flushed after so many elements.
            drop_remainder: Leaves out smaller batches at a window's end.
        """
        op = PaddedBatch(
            self._op,
            batch_size,
            pad_value=pad_value,
            boundaries=tuple(boundaries),
            length_fn=length_fn,
            pad_to_boundary=pad_to_boundary,
            window_size=window_size,
            drop_remainder=drop_remainder,
        )
        return self._then(op)

    # ---- order

    def shuffle(self, buffer_size: int, seed: int | None = None) -> "IterDataset[T]":
        """A shuffle through a sliding buffer: every element moves by less than `buffer_size`.

        >>> ds = MapDataset.range(6).to_iter_dataset()
        >>> sorted(ds.shuffle(3, seed=1)) == list(range(6))
        True
        """
        return self._then(BufferShuffle(self._op, buffer_size, seed))

    def repeat(self, num_epochs: int | None = None) -> "IterDataset[T]":
        """The same stream again and again, without an end unless one is given."""
        return self._then(Repeat(self._op, num_epochs))

    # ---- the stream as such

    def take(self, count: int) -> "IterDataset[T]":
        """The first `count` elements."""
        return self._then(Limit(self._op, count))

    limit = take

    def skip(self, count: int) -> "IterDataset[T]":
        """All but the first `count` elements."""
        return self._then(Skip(self._op, count))

    def prefetch(self, buffer_size: int | AutotuneParameter | MultiprocessingOptions) -> "IterDataset[T]":
        """Computes up to `buffer_size` elements ahead, in a thread.

        Args:
            buffer_size: A number of elements; `AUTOTUNE`, bounded in bytes; or `MultiprocessingOptions`, whose
                buffers are then filled by a thread.
        """
        if isinstance(buffer_size, MultiprocessingOptions):
            buffer_size = buffer_size.num_workers * buffer_size.per_worker_buffer_size
        return self._then(Prefetch(self._op, buffer_size))


def _blocks(stream: Any) -> Iterable[Block]:
    while (run := stream.pull(4096)) is not None:
        yield run.block


def _dataset_of(op: Op) -> Dataset:
    if isinstance(op, UserDataset):
        return op.dataset
    return (IterDataset if op.is_stream else MapDataset)._of(op)


def _ops(datasets: "Sequence[Dataset]", name: str) -> tuple[Op, ...]:
    """The operations of random-access datasets."""
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, MapDataset):
            raise PipelineError(
                f"`MapDataset.{name}` needs MapDatasets; dataset {i} is {type(dataset).__name__}. "
                f"Streams are combined with `IterDataset.{name}`."
            )
    return tuple(dataset._op for dataset in datasets)


def _stream_ops(datasets: "Sequence[Dataset]", name: str) -> tuple[Op, ...]:
    """The operations of datasets as streams."""
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, Dataset):
            raise PipelineError(f"`IterDataset.{name}` needs datasets; item {i} is {type(dataset).__name__}.")
    return tuple(dataset._stream_op for dataset in datasets)


def _non_negative(name: str, count: int) -> int:
    if not isinstance(count, int) or count < 0 or count > ENDLESS:
        raise PipelineError(f"`{name}` needs a count of 0 or more; got {count!r}.")
    return count


_APPLIED: dict[type, str] = {
    transforms.Map: "map",
    transforms.RandomMap: "random_map",
    transforms.MapWithIndex: "map_with_index",
    transforms.Filter: "filter",
    transforms.FlatMap: "flat_map",
}


def _apply_one(dataset: Any, transform: Any) -> Any:
    if isinstance(transform, transforms.Batch):
        return dataset.batch(transform.batch_size, drop_remainder=transform.drop_remainder, batch_fn=transform.batch_fn)
    for kind, method in _APPLIED.items():
        if isinstance(transform, kind):
            return getattr(dataset, method)(transform)
    if callable(transform):
        return dataset.map(transform)
    raise PipelineError(
        f"`apply` takes transforms (Map, RandomMap, MapWithIndex, Filter, FlatMap, Batch) and functions; got "
        f"{type(transform).__name__}."
    )
