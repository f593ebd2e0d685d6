"""Datasets: each method builds one operation, and nothing is computed before you ask for elements.

`MapDataset` has a length and elements by index; `IterDataset` is a stream. An index past the length is an
element of a later epoch: `ds[len(ds) + i]` is element `i` of epoch 1.
"""

import builtins
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeVar, Unpack, overload

import numpy as np

from headrace import transforms
from headrace.dataset.base import Dataset, map_ops, num_elements, stream_ops
from headrace.dataset.types import IterTypes, MapTypes
from headrace.errors import PipelineError
from headrace.errors.signals import in_pipeline, trim_traceback
from headrace.iterator import StreamIterator
from headrace.ops.adapters import as_source
from headrace.ops.blocks import Block, Indices
from headrace.ops.buffer import Limit, MpPrefetch, Prefetch, Skip, ToStream
from headrace.ops.by_size import BatchBySize
from headrace.ops.combine import Concatenate, Interleave, Mix, Select, Zip
from headrace.ops.ending import mark_shard, warn_of_dropped_rows
from headrace.ops.global_batch import batch_of_rows, global_batch
from headrace.ops.group import BufferShuffle, PaddedBatch, Rebatch
from headrace.ops.kernels import fetcher
from headrace.ops.op import ENDLESS
from headrace.ops.order import Pick, Repeat, Shuffle, Slice
from headrace.ops.packing.packers import PackOptions, packer
from headrace.ops.schedule import WeightSchedule
from headrace.ops.source import SeededSource, Source
from headrace.ops.split import split_of
from headrace.ops.weighed_mix import mix_op
from headrace.options import AUTOTUNE, AutotuneParameter, MultiprocessingOptions, ReadOptions, check_count
from headrace.protocols import RandomAccessDataSource
from headrace.sharding import ShardBySharding, ShardOptions, rows_of
from headrace.storage.memory import RangeDataSource

T = TypeVar("T")
S = TypeVar("S")


class MapDataset(MapTypes[T]):
    """A dataset with a length and elements by index.

    To write your own, subclass it and define `__len__` and `__getitem__` (and `__getitems__`, if several elements
    are cheaper together).

    >>> ds = MapDataset.range(5).map(lambda x: x * x)
    >>> len(ds), ds[3], ds[-1], list(ds[1:3])
    (5, 9, 16, [1, 4])
    >>> class Squares(MapDataset):
    ...     def __len__(self):
    ...         return 5
    ...     def __getitem__(self, index):
    ...         return (index % 5) ** 2
    >>> list(Squares().shuffle(seed=1).batch(2))
    [array([1, 4]), array([9, 0]), array([16])]

    Differs from Grain: `ds[-1]` is the last element, and `ds[[3, 1]]` picks elements.
    """

    _is_stream = False

    @classmethod
    def _wrap_user_class(cls) -> None:
        """Adds slices and negative indices to a user's `__getitem__`, which need only handle ints from 0 on."""
        own = cls.__dict__.get("__getitem__")
        if own is None:
            return

        @functools.wraps(own)
        def getitem(self: Any, index: Any) -> Any:
            if isinstance(index, int) and index >= 0:
                return own(self, index)
            if isinstance(index, builtins.slice | Sequence | np.ndarray):
                return MapDataset.__getitem__(self, index)
            return own(self, self._place(index))

        setattr(cls, "__getitem__", getitem)  # noqa: B010  (assigning it would redeclare the method to type checkers)

    # ---- sources

    @overload
    @staticmethod
    def source(
        source: Sequence[S] | RandomAccessDataSource[S], *, seed_globals: bool = ..., seed: int | None = ...
    ) -> "MapDataset[S]": ...
    @overload
    @staticmethod
    def source(source: Any, *, seed_globals: bool = ..., seed: int | None = ...) -> "MapDataset[Any]": ...
    @staticmethod
    def source(source: Any, *, seed_globals: bool = False, seed: int | None = None) -> "MapDataset[Any]":
        """The elements of a source: anything with `__len__` and `__getitem__`, or a path, for `headrace.open`.

        A NumPy array, a dict of arrays of one length, and a table of pandas, polars or pyarrow are read by rows; a
        source with `__getitems__` is asked for many elements at once.

        >>> MapDataset.source({"x": np.arange(4), "y": np.eye(4)})[1]
        {'x': np.int64(1), 'y': array([0., 1., 0., 0.])}

        Differs from Grain: arrays, dicts of arrays, tables and paths are sources too.

        Args:
            source: The source.
            seed_globals: The source's `__getitem__` draws from the generators of `random`, NumPy or torch, as
                torchvision's transforms do: they are seeded for each element, and restored afterwards.
            seed: The seed from which theirs are derived, with the index and the epoch; 0 by default.
        """
        source = as_source(source)
        if seed_globals:
            return MapDataset._of(SeededSource(source, seed=0 if seed is None else seed))
        if seed is not None:
            raise PipelineError("The seed of `source` has no effect without seed_globals=True.")
        return MapDataset._of(Source(source))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> "MapDataset[int]":
        """The ints of `range(start, stop, step)`.

        >>> list(MapDataset.range(2, 10, 3))
        [2, 5, 8]
        """
        first, last = (0, start) if stop is None else (start, stop)
        return MapDataset._of(Source(RangeDataSource(first, last, step)))

    # ---- several datasets

    @staticmethod
    def mix(
        datasets: "Sequence[MapDataset[T]]", weights: Sequence[float] | None = None, *, weigh_by: None = None
    ) -> "MapDataset[T]":
        """Elements of several datasets in fixed proportions, spread evenly.

        >>> list(MapDataset.mix([MapDataset.range(3), MapDataset.range(10, 16)], weights=[1, 2]))
        [0, 10, 11, 1, 12, 13, 2, 14, 15]
        """
        if isinstance(weights, WeightSchedule):
            raise PipelineError("Weights that change by the step are for `IterDataset.mix`: call `to_iter_dataset()`.")
        if weigh_by is not None:
            raise PipelineError(
                "`MapDataset.mix` cannot weigh by size: an index would depend on the sizes of all elements before it. "
                "Make streams of the parts first: `IterDataset.mix([ds.to_iter_dataset(), ...], weigh_by=...)`."
            )
        return MapDataset._of(Mix(map_ops(datasets, "mix"), weights))

    @staticmethod
    def concatenate(datasets: "Sequence[MapDataset[T]]") -> "MapDataset[T]":
        """One dataset after the other.

        >>> list(MapDataset.concatenate([MapDataset.range(2), MapDataset.range(10, 12)]))
        [0, 1, 10, 11]
        """
        return MapDataset._of(Concatenate(map_ops(datasets, "concatenate")))

    @staticmethod
    def zip(datasets: "Sequence[MapDataset[Any]]", *, strict: bool = True) -> "MapDataset[tuple[Any, ...]]":
        """Tuples of one element from each dataset.

        >>> list(MapDataset.zip([MapDataset.range(3), MapDataset.source(["a", "b", "c"])]))
        [(0, 'a'), (1, 'b'), (2, 'c')]
        >>> list(MapDataset.zip([MapDataset.range(3), MapDataset.range(2)], strict=False))
        [(0, 0), (1, 1)]

        Differs from Grain: there it is `experimental.ZipMapDataset`.
        """
        return MapDataset._of(Zip(map_ops(datasets, "zip"), strict=strict))

    @staticmethod
    def select_from_datasets(
        datasets: "Sequence[MapDataset[T]]", selection_map: transforms.DatasetSelectionMap
    ) -> "MapDataset[T]":
        """The elements that a selection map chooses.

        >>> class FromTheEnd(transforms.DatasetSelectionMap):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return 1 - index // 2, index % 2
        >>> list(MapDataset.select_from_datasets([MapDataset.range(2), MapDataset.range(10, 12)], FromTheEnd()))
        [10, 11, 0, 1]

        Differs from Grain: an empty dataset that is chosen is an error that names it.
        """
        return MapDataset._of(Select(map_ops(datasets, "select_from_datasets"), selection_map))

    # ---- access

    def __len__(self) -> int:
        """How many elements an epoch has.

        >>> len(MapDataset.range(10).batch(3))
        4
        """
        return (self._operation or self._op).length()

    @functools.cached_property
    def _fetch(self) -> Callable[[Indices], Block]:
        return fetcher(self._operation or self._op)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: builtins.slice | Sequence[int] | np.ndarray) -> "MapDataset[T]": ...
    def __getitem__(self, index: Any) -> Any:
        """An element by index; for a slice or a sequence of ints, a dataset.

        >>> ds = MapDataset.range(4).shuffle(seed=1)
        >>> ds[1], ds[-1], list(ds[:2]), list(ds[[3, 0]])
        (2, 0, [1, 2], [0, 1])
        >>> ds[4 + 1]  # of the next epoch, which has another order
        3

        Differs from Grain: a negative index counts from the end, and a sequence of indices picks elements.
        """
        if isinstance(index, builtins.slice):
            return self.slice(index)
        if hasattr(index, "__array__") and getattr(index, "ndim", 0):  # an array or a tensor
            return self._pick(np.asarray(index))
        if isinstance(index, Sequence) and not isinstance(index, str | bytes):
            return self._pick(index)
        place = self._place(index)
        try:
            (element,) = in_pipeline(self._fetch, range(place, place + 1)).own_rows()
        except BaseException as e:
            trim_traceback(e)
            raise
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
        if place > ENDLESS:
            raise IndexError(f"Index {place} is above 2**63 - 1, the largest possible.")
        return place if place >= 0 else place % length

    def _pick(self, indices: Sequence[int] | np.ndarray) -> "MapDataset[T]":
        if any(isinstance(i, bool | np.bool_) for i in indices):
            raise TypeError("Indices must be ints; got bools. Use `filter`, or np.flatnonzero(mask).")
        return MapDataset._of(Pick(self._op, np.array([self._place(i) for i in indices], np.int64)))

    def slice(self, sl: "builtins.slice | Sequence[int] | MapDataset[int]") -> "MapDataset[T]":
        """The elements of a slice, or those at some indices, as a dataset.

        >>> list(MapDataset.range(10).slice(slice(2, 8, 3))), list(MapDataset.range(10)[2:8:3])
        ([2, 5], [2, 5])
        >>> list(MapDataset.range(10).slice([3, 1, 4]))
        [3, 1, 4]

        Args:
            sl: A slice, or indices: a sequence of them, or a finite dataset, which is read now.
        """
        if isinstance(sl, MapDataset) and sl._op.endless:
            raise PipelineError("`slice` needs a finite dataset of indices: limit it with `take` first.")
        if isinstance(sl, MapDataset | Sequence | np.ndarray) and not isinstance(sl, str):
            return self._pick(list(sl))
        if not isinstance(sl, builtins.slice):
            raise PipelineError(
                "`slice` takes a slice, as in `ds.slice(slice(3))`, or a sequence or dataset of indices; got "
                f"{type(sl).__name__}: {sl!r}."
            )
        start, stop, step = sl.indices(len(self))
        return MapDataset._of(Slice(self._op, start, step, len(range(start, stop, step))))

    def take(self, count: int) -> "MapDataset[T]":
        """The first `count` elements.

        >>> list(MapDataset.range(10).take(3))
        [0, 1, 2]

        Differs from Grain: there, write `ds[:count]`.
        """
        return self.slice(builtins.slice(_non_negative("take", count)))

    def skip(self, count: int) -> "MapDataset[T]":
        """All but the first `count` elements.

        >>> list(MapDataset.range(10).skip(7))
        [7, 8, 9]

        Differs from Grain: there, write `ds[count:]`.
        """
        return self.slice(builtins.slice(_non_negative("skip", count), None))

    def shard(self, num_shards: int, index: int, *, drop_remainder: bool = False) -> "MapDataset[T]":
        """Every `num_shards`-th element from `index` on.

        >>> list(MapDataset.range(7).shard(3, 0)), list(MapDataset.range(7).shard(3, 0, drop_remainder=True))
        ([0, 3, 6], [0, 3])

        Differs from Grain: there, write `ds[index::num_shards]`.
        """
        if num_shards < 1 or not 0 <= index < num_shards:
            raise PipelineError(
                f"`shard(num_shards, index)` needs a positive number of shards and an index below it; got "
                f"num_shards={num_shards}, index={index}."
            )
        stop = len(self) // num_shards * num_shards if drop_remainder else None
        shard = self.slice(builtins.slice(index, stop, num_shards))
        mark_shard(shard._op, len(self) if stop is None else stop)
        return shard

    def split(self, text: str) -> "MapDataset[T]":
        """A part of the elements, in the way that TensorFlow Datasets and Hugging Face write slices of splits.

        Slices are percents or numbers of elements. Parts cut at the same percents together have every element once.

        >>> ds = MapDataset.range(10)
        >>> list(ds.split("[:75%]")), list(ds.split("[75%:]")), list(ds.split("[:1]+[-2:]"))
        ([0, 1, 2, 3, 4, 5, 6, 7], [8, 9], [0, 8, 9])

        Differs from Grain: only Headrace has it.
        """
        return MapDataset._of(split_of(self._op, text))

    # ---- order

    def shuffle(self, seed: int | None = None) -> "MapDataset[T]":
        """All elements in random order, a new one in each epoch.

        >>> list(MapDataset.range(10).shuffle(seed=1))
        [5, 7, 6, 0, 4, 8, 9, 2, 1, 3]

        Differs from Grain: no record is lost; Grain never returns one of them if there are 65,537 or 262,145.
        """
        return self._then(Shuffle(self._op, seed))

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> "MapDataset[T]":
        """Epoch after epoch, endlessly by default.

        >>> list(MapDataset.range(2).repeat(2))
        [0, 1, 0, 1]

        With `reseed_each_epoch=False`, every epoch has the order and the random numbers of the first.
        """
        return self._then(Repeat(self._op, num_epochs, reseed_each_epoch=reseed_each_epoch))

    def global_batch(
        self,
        batch_size: int,
        rows: ShardOptions | ShardBySharding | None = None,
        *,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> "MapDataset":
        """This process's rows of batches that all processes share; they are the same for any number of processes.

        A last batch that is not full is dropped, so all processes have the same number of batches.

        >>> [list(MapDataset.range(9).global_batch(4, ShardOptions(i, 2))) for i in range(2)]
        [[array([0, 1]), array([4, 5])], [array([2, 3]), array([6, 7])]]

        Differs from Grain: there, `ElasticIterator` alone gives such rows.

        Args:
            batch_size: How many rows a batch has in all processes together.
            rows: Which rows this process has: `ShardBySharding(sharding)`, `ShardByJaxProcess()`, or
                `ShardOptions(index, count)`. By default it has all.
            batch_fn: Makes a batch of this process's rows; by default they are stacked.
        """
        op = batch_of_rows(self._op, rows_of(rows, batch_size), batch_fn)
        warn_of_dropped_rows(op)
        return MapDataset._of(op)

    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False, num_lanes: int = 1
    ) -> "IterDataset[T]":
        """The elements as a stream.

        >>> stream = MapDataset.range(6).filter(lambda x: x % 2 == 0).to_iter_dataset()
        >>> list(stream.batch(2))
        [array([0, 2]), array([4])]

        Differs from Grain: without options, Headrace measures whether threads help; Grain starts 16.

        Args:
            read_options: Threads that read ahead. By default Headrace measures whether threads help.
            allow_nones: Whether to return `None` for a missing element.
            num_lanes: How many lanes to cut the stream into, for `global_batch`: lane `l` has every `num_lanes`-th
                element from `l` on. Processes compute only the lanes that their rows come from.
        """
        return IterDataset._of(ToStream(self._op, read_options, allow_nones=allow_nones, num_lanes=num_lanes))

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | int | AutotuneParameter | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
    ) -> "IterDataset[T]":
        """The elements as a stream that worker processes compute: `to_iter_dataset().mp_prefetch(...)`.

        >>> ds = MapDataset.range(100).map(lambda x: x * x).batch(10).mp_prefetch(2)
        >>> type(ds).__name__
        'IterDataset'

        Differs from Grain: there, only streams have it.
        """
        return self.to_iter_dataset().mp_prefetch(options, worker_init_fn)


class IterDataset(IterTypes[T]):
    """A dataset that is a stream.

    To write your own, subclass it and define `__iter__`, which returns a `DatasetIterator` or is a plain
    generator, which is read again from its start to resume.

    >>> ds = MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 3 != 0).batch(2)
    >>> list(ds)
    [array([1, 2]), array([4, 5])]
    >>> class Countdown(IterDataset):
    ...     def __iter__(self):
    ...         yield from (3, 2, 1)
    >>> list(Countdown().map(str))
    ['3', '2', '1']

    Differs from Grain: streams have a `len()` where it is known without reading.
    """

    _is_stream = True

    def _own_iter(self) -> Any:
        """What `__iter__` of a user's class returns."""
        raise NotImplementedError

    @classmethod
    def _wrap_user_class(cls) -> None:
        """Adds states and the rest to a user's `__iter__` if that is a plain generator."""
        own = cls.__dict__.get("__iter__")
        if own is None:
            return

        @functools.wraps(own)
        def iterate(self: Any) -> Any:
            iterator = own(self)
            return iterator if hasattr(iterator, "get_state") else StreamIterator(self._op)

        if "_own_iter" not in cls.__dict__:
            setattr(cls, "_own_iter", own)  # noqa: B010  (assigning it would redeclare the method to type checkers)
        setattr(cls, "__iter__", iterate)  # noqa: B010

    def __len__(self) -> int:
        """How many elements it has, where that is known without reading any; otherwise a `TypeError`.

        >>> len(MapDataset.range(10).to_iter_dataset().batch(3))
        4

        Differs from Grain: there, streams have no length.
        """
        return num_elements(self._operation or self._op)

    def __bool__(self) -> bool:
        return True  # whatever its length is

    # ---- several datasets

    @staticmethod
    def mix(
        datasets: "Sequence[Dataset[T]] | Mapping[str, Dataset[T]]",
        weights: Sequence[float] | Mapping[str, float] | WeightSchedule | None = None,
        *,
        weigh_by: "str | Callable[[T], int] | None" = None,
    ) -> "IterDataset[T]":
        """Elements of several datasets in proportion to weights, until it is the turn of one that has ended.

        With mappings, parts have names, so you can restore a state after weights or parts have changed. For weights
        that change by the step, pass a `WeightSchedule`.

        >>> a, b = MapDataset.range(3).to_iter_dataset(), MapDataset.range(10, 20).to_iter_dataset()
        >>> list(IterDataset.mix({"a": a, "b": b}, {"a": 1, "b": 2}))
        [0, 10, 11, 1, 12, 13, 2, 14, 15]

        Differs from Grain: weights may hold for sizes, change by the step, and change between a save and a restore.

        Args:
            datasets: The parts, by name or not.
            weights: The weight of each part, by default the same; or a `WeightSchedule`.
            weigh_by: Gives the size of an element, such as its number of tokens, or is the name of a feature whose
                length is the size: weights then hold for sizes instead of for numbers of elements.
        """
        names = None
        if isinstance(datasets, Mapping):
            names = tuple(sorted(datasets))
            datasets = [datasets[name] for name in names]
        return IterDataset._of(mix_op(stream_ops(datasets, "mix"), weights, names, weigh_by))

    @staticmethod
    def zip(datasets: "Sequence[Dataset[Any]]", *, strict: bool = True) -> "IterDataset[tuple[Any, ...]]":
        """Tuples of one element from each dataset.

        >>> letters = MapDataset.source(["a", "b"]).to_iter_dataset()
        >>> list(IterDataset.zip([letters, MapDataset.range(2).to_iter_dataset()]))
        [('a', 0), ('b', 1)]

        Differs from Grain: there it is `experimental.ZipIterDataset`.
        """
        return IterDataset._of(Zip(stream_ops(datasets, "zip"), strict=strict))

    @staticmethod
    def interleave(
        datasets: "Sequence[Dataset[T]] | MapDataset", *, cycle_length: int, num_lanes: int = 1
    ) -> "IterDataset[T]":
        """Elements of `cycle_length` datasets in turn; one that ends is replaced by the next.

        >>> parts = MapDataset.range(3).map(lambda i: MapDataset.range(10 * i, 10 * i + 2))
        >>> list(IterDataset.interleave(parts, cycle_length=2))
        [0, 10, 1, 11, 20, 21]

        Differs from Grain: there it is `experimental.InterleaveIterDataset`, and loses elements if some are missing.

        Args:
            datasets: Datasets, or a `MapDataset` whose elements are datasets.
            cycle_length: How many to have open at a time.
            num_lanes: How many lanes to deal the datasets out to, for `global_batch`: lane `l` interleaves every
                `num_lanes`-th dataset from `l` on.
        """
        parts = datasets._op if isinstance(datasets, MapDataset) else stream_ops(datasets, "interleave")
        return IterDataset._of(Interleave(parts, cycle_length, num_lanes))

    # ---- batches

    def pack(
        self,
        length_struct: Mapping[str, Any],
        *,
        strategy: str = "first_fit",
        long_sequences: str | None = None,
        **options: Unpack[PackOptions],
    ) -> "IterDataset":
        """Packs sequences of different lengths into rows, and adds segment ids and positions for each feature.

        >>> documents = MapDataset.source([{"tokens": np.arange(n)} for n in (3, 2, 1, 6)]).to_iter_dataset()
        >>> for row in documents.pack({"tokens": 4}, long_sequences="split", shuffle_bins=False):
        ...     print(row["tokens"], row["tokens_segment_ids"])
        [0 1 2 0] [1 1 1 2]
        [0 1 4 5] [1 1 2 2]
        [0 1 2 3] [1 1 1 1]

        Differs from Grain: there, packers are dataset classes, such as `experimental.FirstFitPackIterDataset`.

        Args:
            length_struct: The length of a row for each feature.
            strategy: "first_fit" and "best_fit" put each whole sequence into the first, or the fullest, of
                `num_packing_bins` bins (64) that has room. "concat_split" concatenates sequences and cuts them where a
                row is full.
            long_sequences: What to do with a sequence longer than a row: raise an "error", which is the default,
                "split" it into parts, "truncate" it, or "drop" it. With "concat_split", the default is to "split".
            options: Options of the packers: see `headrace.ops.packing.FirstFitPackIterDataset` and
                `ConcatThenSplitIterDataset`. And `empty_sequences`, for those without tokens: "drop", the default,
                skips them and logs it once; "error" raises; "keep" makes empty segments, as Grain does.
        """
        return self._then(packer(self._op, length_struct, options, strategy=strategy, long_sequences=long_sequences))

    def global_batch(
        self,
        batch_size: int,
        rows: ShardOptions | ShardBySharding | None = None,
        *,
        num_batches: int | None = None,
        batch_fn: Callable[[Sequence[T]], Any] | None = None,
    ) -> "IterDataset":
        """This process's rows of batches that all processes share; they are the same for any number of processes.

        A batch has the next `batch_size / num_lanes` elements of each lane of the stream, in order. A process computes
        the lanes that its rows come from: with one lane, every process computes everything and keeps its rows.

        >>> even = MapDataset.range(16).to_iter_dataset(num_lanes=2).filter(lambda x: x % 4 < 2)
        >>> [list(even.global_batch(4, ShardOptions(i, 2), num_batches=2)) for i in range(2)]
        [[array([0, 4]), array([ 8, 12])], [array([1, 5]), array([ 9, 13])]]

        Differs from Grain: only Headrace has it.

        Args:
            batch_size: How many rows a batch has in all processes together.
            rows: Which rows this process has: `ShardBySharding(sharding)`, `ShardByJaxProcess()`, or
                `ShardOptions(index, count)`. By default it has all.
            num_batches: After how many batches to end. The stream must have as many.
            batch_fn: Makes a batch of this process's rows; by default they are stacked.
        """
        found = rows_of(rows, batch_size)
        op = global_batch(self._op, found, num_batches=num_batches, batch_fn=batch_fn)
        warn_of_dropped_rows(op)
        return self._then(op)

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> "IterDataset[T]":
        """Cuts batches to another size.

        >>> list(MapDataset.range(5).batch(2).to_iter_dataset().rebatch(3))
        [array([0, 1, 2]), array([3, 4])]

        Differs from Grain: there it is `experimental.RebatchIterDataset`.
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

        Differs from Grain: only Headrace has it.

        Args:
            batch_size: How many elements a batch has.
            pad_value: The value of padding, or a dict of values by feature.
            boundaries: Upper ends of length buckets; a batch has elements of one bucket.
            length_fn: Returns an element's length, for bucketing.
            pad_to_boundary: Whether to pad to the bucket's upper end instead of to the longest element.
            window_size: After this many elements, all buckets are flushed.
            drop_remainder: Whether to drop smaller batches at a window's end.
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

    def batch_by_size(
        self,
        max_size: int,
        size: "str | Callable[[T], int]" = len,  # type: ignore[assignment]
        *,
        window_size: int = 1000,
        max_rows: int | None = None,
        padded: bool = True,
        pad_value: Any = 0,
        batch_fn: Callable[[list[T]], Any] | None = None,
        oversized: str = "error",
        shuffle_batches: bool = True,
        seed: int | None = None,
    ) -> "IterDataset":
        """Batches of as many elements as `max_size` allows, such as a number of tokens.

        Elements of similar sizes go together: each window of the stream is sorted by size, cut into batches, and the
        batches are shuffled.

        >>> ds = MapDataset.source([np.ones(n) for n in (2, 6, 3, 1, 7)]).to_iter_dataset()
        >>> [batch.shape for batch in ds.batch_by_size(12, seed=1)]
        [(1, 7), (3, 3), (1, 6)]

        Differs from Grain: only Headrace has it.

        Args:
            max_size: The most that a batch may have: the largest size times the number of rows, or, if it is not
                padded, the sum of sizes.
            size: Gives an element's size, or is the name of a feature whose length is the size.
            window_size: How many elements are sorted together.
            max_rows: The most elements that a batch may have.
            padded: Whether the elements of a batch are padded to the longest. If not, a batch is a list of them.
            pad_value: The value of padding, or a dict of values by feature.
            batch_fn: Makes the batch from a list of elements, instead of padding.
            oversized: What to do with an element that is larger than a batch: raise an "error", or "drop" it.
            shuffle_batches: Whether the batches of a window come in random order; if not, the smallest elements first.
            seed: The seed of that order; by default it is derived from `ds.seed(...)`.
        """
        op = BatchBySize(
            self._op,
            max_size,
            size,
            window_size=window_size,
            max_rows=max_rows,
            padded=padded,
            pad_value=pad_value,
            batch_fn=batch_fn,
            oversized=oversized,
            shuffle_batches=shuffle_batches,
            seed=seed,
        )
        return self._then(op)

    # ---- order

    def shuffle(self, buffer_size: int, seed: int | None = None) -> "IterDataset[T]":
        """Shuffles through a sliding buffer: every element moves by less than `buffer_size`.

        >>> ds = MapDataset.range(6).to_iter_dataset()
        >>> sorted(ds.shuffle(3, seed=1)) == list(range(6))
        True

        Differs from Grain: there, streams are shuffled by windows only.
        """
        return self._then(BufferShuffle(self._op, buffer_size, seed))

    def repeat(self, num_epochs: int | None = None) -> "IterDataset[T]":
        """The same stream again and again, endlessly by default.

        >>> list(MapDataset.range(3).shuffle(seed=1).to_iter_dataset().repeat(2))
        [1, 2, 0, 1, 2, 0]

        Differs from Grain: there it is `experimental.RepeatIterDataset`.
        """
        return self._then(Repeat(self._op, num_epochs))

    # ---- the stream as such

    def take(self, count: int) -> "IterDataset[T]":
        """The first `count` elements; `limit` is the same.

        >>> list(MapDataset.range(10).to_iter_dataset().take(3))
        [0, 1, 2]

        Differs from Grain: there it is `experimental.LimitIterDataset`.
        """
        return self._then(Limit(self._op, count))

    limit = take

    def skip(self, count: int) -> "IterDataset[T]":
        """All but the first `count` elements.

        >>> list(MapDataset.range(10).to_iter_dataset().skip(7))
        [7, 8, 9]

        Differs from Grain: only Headrace has it.
        """
        return self._then(Skip(self._op, count))

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | int | AutotuneParameter | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> "IterDataset[T]":
        """Computes everything before it ahead, in worker processes; the stream and its states stay the same.

        >>> list(MapDataset.range(4).to_iter_dataset().mp_prefetch(2))
        [0, 1, 2, 3]

        Differs from Grain: the stream and its states do not depend on workers, and the default is AUTOTUNE, not 10
        workers.

        Args:
            options: The number of workers, or options that also limit what they may have ready. AUTOTUNE, the default,
                has workers if a trial shows that they help, adds some while the consumer waits and there are cores
                and memory for them, and gives up those that do not help.
            worker_init_fn: Called in each worker at its start, with its index and the number of workers.
            sequential_slice: Has no effect; kept for compatibility.
        """
        if options is None or options is AUTOTUNE:
            options = MultiprocessingOptions(num_workers=AUTOTUNE, per_worker_buffer_size=AUTOTUNE)
        if isinstance(options, int | AutotuneParameter):
            options = MultiprocessingOptions(num_workers=options)
        return self._then(MpPrefetch(self._op, options, worker_init_fn))

    def prefetch(
        self,
        buffer_size: int | AutotuneParameter | MultiprocessingOptions | None = None,
        *,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> "IterDataset[T]":
        """Computes up to `buffer_size` elements ahead, in a thread.

        >>> list(MapDataset.range(4).to_iter_dataset().prefetch(2))
        [0, 1, 2, 3]

        Differs from Grain: it takes a number of elements, too; Grain takes options of workers.

        Args:
            buffer_size: A number of elements; `AUTOTUNE`, as many as help; or `MultiprocessingOptions`, which
                makes it an `mp_prefetch`.
            multiprocessing_options: `MultiprocessingOptions` by name.
        """
        size = multiprocessing_options if buffer_size is None else buffer_size
        if size is None:
            raise PipelineError("`prefetch` needs a number of elements, AUTOTUNE, or MultiprocessingOptions.")
        if isinstance(size, MultiprocessingOptions):
            return self.mp_prefetch(size)
        return self._then(Prefetch(self._op, size))


def _non_negative(name: str, count: int) -> int:
    count = check_count(f"The count of `{name}`", count, least=0)
    if count > ENDLESS:
        raise PipelineError(f"The count of `{name}` must be below 2**63; got {count}.")
    return count


def as_stream(dataset: Any, name: str) -> IterDataset:
    """A dataset as a stream; errors name the class that asked for it."""
    if not isinstance(dataset, Dataset):
        raise PipelineError(f"`{name}` takes a dataset; got {type(dataset).__name__}.")
    return dataset if isinstance(dataset, IterDataset) else IterDataset._of(dataset._stream_op)
