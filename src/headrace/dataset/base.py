"""What both kinds of datasets share: operations on elements, composition, and the operation behind a dataset."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from headrace import transforms
from headrace.engine.bad_records import BadRecords
from headrace.engine.filling import fill_caches
from headrace.engine.plan import Plan
from headrace.engine.runtime import context
from headrace.engine.workers import Workers
from headrace.errors import BadRecord, PipelineError, SpecError
from headrace.errors.signals import in_pipeline, let_through
from headrace.errors.suggestions import closest, explain_keywords_of, no_attribute, written_here
from headrace.iterator import DatasetIterator, NoStats, StreamIterator
from headrace.ops.blocks import Block, Rows, concat
from headrace.ops.buffer import Cache, ToStream
from headrace.ops.disk_cache import DiskCache, stream_from_disk
from headrace.ops.element import FilterOp, FlatMapOp, MapOp, MapWithIndexOp, RandomMapOp
from headrace.ops.ending import num_outputs, warn_of_uneven_shards
from headrace.ops.group import BatchOp, PadTo
from headrace.ops.labels import show
from headrace.ops.op import ENDLESS, Op
from headrace.ops.order import Options, Seed, WindowShuffle
from headrace.ops.recorder import Recorder
from headrace.ops.source import UserDataset
from headrace.ops.streams import Stream, open_stream
from headrace.options import DatasetOptions, ErrorPolicy


class Viewable:
    """The methods by which a dataset or loader shows its pipeline and its elements."""

    insight: ClassVar[Any]
    """`headrace.insight`, which sets itself here: rooms import only from those below."""
    _kind_in_title: ClassVar[str] = "Pipeline"

    def view(self, *, title: str | None = None, port: int = 0, open_browser: bool = True) -> Any:
        """Serves a page on this machine that shows the pipeline while it runs, and what operations do to elements.

        It returns a `View` with the address, `url`, and `close()`. A script that has nothing else to do calls `wait()`.

        >>> with MapDataset.range(4).view(open_browser=False) as view:
        ...     view.url.startswith("http://127.0.0.1:")
        True

        Differs from Grain: only Headrace has it.

        Args:
            title: What the page is called; its kind by default.
            port: The port to serve at; any that is free by default.
            open_browser: Whether to open the page in a browser, if there is a screen.
        """
        return self.insight.open_view(self, title=title or self._kind_in_title, port=port, open_browser=open_browser)

    def show(self, n: int = 3) -> None:
        """Shows the first elements, in a notebook as HTML: images as images, tokens as text.

        >>> MapDataset.source([{"id": 7, "name": "a"}, {"id": 8, "name": "b"}]).show(2)
        id  name
         7  'a'
         8  'b'

        Differs from Grain: only Headrace has it.
        """
        self.insight.show_elements(self, n)

    def _repr_html_(self) -> str:
        return self.insight.dataset_html(self)


T = TypeVar("T")
S = TypeVar("S")
_OF_ITERATORS = (
    *("get_state", "set_state", "state_as_array", "get_next_index", "set_next_index"),
    *("stats", "start_prefetch", "close"),
)


class Dataset(Viewable, Generic[T]):
    """What `MapDataset` and `IterDataset` share, and their subclasses in users' code."""

    _is_stream: ClassVar[bool]
    _kinds: ClassVar[dict[bool, "type[Dataset]"]] = {}  # by whether it is a stream
    _parents: "tuple[Dataset, ...]" = ()
    _operation: Op | None = None  # of a class that stands for one operation
    _stats: ClassVar[NoStats] = NoStats()

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if Dataset._kinds.setdefault(cls._is_stream, cls) is not cls:
            cls._wrap_user_class()
        else:
            explain_keywords_of(cls)

    @classmethod
    def _wrap_user_class(cls) -> None:
        """Completes a user's class, so that it can be used like any other dataset."""

    def __init__(self, parents: "Dataset | Sequence[Dataset]" = ()):
        self._parents = (parents,) if isinstance(parents, Dataset) else tuple(_datasets(type(self).__name__, parents))

    @classmethod
    def _of(cls, op: Op) -> Self:
        self = cls.__new__(cls)
        self.__dict__["_op"] = op
        return self

    @functools.cached_property
    def _op(self) -> Op:
        """The operation of this dataset; for a user's class, a `UserDataset`."""
        methods = ("_own_iter",) if self._is_stream else ("__len__", "__getitem__")
        kind = Dataset._kinds[self._is_stream]
        missing = [name for name in methods if getattr(type(self), name) is getattr(kind, name)]
        if self._operation is not None:
            return self._operation if len(missing) == len(methods) else UserDataset(self, self._is_stream)
        if missing:
            name = missing[0].replace("_own_iter", "__iter__")
            raise PipelineError(f"{type(self).__name__} must define `{name}` to be a dataset.")
        return UserDataset(self, self._is_stream)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_fetch"}

    def __getattr__(self, name: str) -> Any:
        meant, hint = (None, "") if name.startswith("_") else _suggest_method(type(self), name)
        raise no_attribute(type(self).__name__, name, meant, hint)

    def _then(self, op: Op) -> Self:
        """The dataset after one more operation."""
        return dataset_of(op)  # type: ignore[return-value]

    @property
    def parents(self) -> "Sequence[Dataset]":
        """The datasets that this one reads.

        >>> ds = MapDataset.range(4).map(str)
        >>> list(ds.parents[0])
        [0, 1, 2, 3]
        """
        op = self._op
        return self._parents if self._parents or isinstance(op, UserDataset) else tuple(map(dataset_of, op.parents))

    @property
    def _parent(self) -> "Any":
        (parent,) = self.parents
        return parent

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of elements, without reading any.

        >>> MapDataset.source({"x": np.zeros((5, 3), np.float32)}).batch(2, drop_remainder=True).element_spec
        {'x': ShapeDtypeStruct(shape=(2, 3), dtype=dtype('float32'))}

        Differs from Grain: there it is `experimental.get_element_spec(ds)`.
        """
        try:
            return self._op.spec()
        except AttributeError as e:  # which Python would take for a missing property
            raise SpecError(f"The shapes and dtypes of {self._op.label()} are not known: {e}.") from e

    def explain(self) -> Plan:
        """How the pipeline will be computed, and by whom: print it, or read its `steps` and `stages`.

        >>> print(MapDataset.range(4).shuffle(seed=1).batch(2).explain())
        MapDataset.range(4)  | ints
          .shuffle(seed=1)   | indices only, computed in blocks ahead of time
          .batch(2)          | stacks rows

        Differs from Grain: only Headrace has it.
        """
        return Plan(self._op)

    def __repr__(self) -> str:
        return show(self._op)

    # ---- operations on elements

    def map(self, transform: "transforms.Map | Callable[[T], S]", *, batched: bool = False) -> "Any":
        """Applies a function to every element.

        >>> list(MapDataset.range(3).map(lambda x: x * 10))
        [0, 10, 20]

        Differs from Grain: `batched=True` and `map_batch` work on columns.

        Args:
            transform: A function, or a `transforms.Map`. If that has a `map_batch`, elements that are stored as
                columns go there.
            batched: The function works on columns, row by row: it receives a pytree whose leaves have a leading axis
                and returns one of the same length. Do not rely on how many rows a call receives.
        """
        return self._then(MapOp(self._op, transform, batched))

    def map_with_index(self, transform: "transforms.MapWithIndex | Callable[[int, T], S]") -> "Any":
        """Applies a function to every element and its index (in a stream, the count so far).

        >>> list(MapDataset.range(10, 13).map_with_index(lambda i, x: (i, x)))
        [(0, 10), (1, 11), (2, 12)]
        """
        return self._then(MapWithIndexOp(self._op, transform))

    def random_map(
        self,
        transform: "transforms.RandomMap | Callable[[T, np.random.Generator], S]",
        *,
        seed: int | None = None,
    ) -> "Any":
        """Applies a function to every element and its random number generator.

        >>> list(MapDataset.range(3).random_map(lambda x, rng: int(rng.integers(1000)), seed=5))
        [864, 504, 14]

        Differs from Grain: after `interleave` or `mp_prefetch` it takes the seeds of what comes before; Grain raises.
        """
        return self._then(RandomMapOp(self._op, transform, seed))

    def filter(self, transform: "transforms.Filter | Callable[[T], bool]") -> Self:
        """Keeps the elements for which a function is true.

        In a `MapDataset` the others become `None`, so indices keep their meaning; a stream skips them.

        >>> list(MapDataset.range(6).filter(lambda x: x % 2 == 0))
        [0, 2, 4]
        """
        return self._then(FilterOp(self._op, transform))

    def flat_map(
        self, transform: "transforms.FlatMap | Callable[[T], Sequence[S]]", *, max_fan_out: int | None = None
    ) -> "Any":
        """Splits every element into several.

        >>> list(MapDataset.range(3).to_iter_dataset().flat_map(lambda x: [x] * x))
        [1, 2, 2]

        Differs from Grain: there it is `experimental.FlatMapIterDataset` or `FlatMapMapDataset`.

        Args:
            transform: A function that returns a sequence, or a `transforms.FlatMap`.
            max_fan_out: The most children that an element may have; needed on a `MapDataset`.
        """
        return self._then(FlatMapOp(self._op, transform, max_fan_out))

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

        Differs from Grain: numbers together with dicts, and `batch` after `filter` on a `MapDataset`, are errors.

        Args:
            batch_size: How many elements a batch has.
            drop_remainder: Drops a last batch that is smaller.
            batch_fn: Makes the batch from a list of elements, instead of stacking.
        """
        op = BatchOp(self._op, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)
        warn_of_uneven_shards(op)
        return self._then(op)

    def batch_and_pad(self, batch_size: int, *, pad_value: Any = 0) -> "Any":
        """Batches of exactly `batch_size`: fills up the last one with `pad_value`.

        >>> list(MapDataset.range(3).batch_and_pad(2, pad_value=-1))
        [array([0, 1]), array([ 2, -1])]

        Differs from Grain: there, it is a function for `batch_fn`: `experimental.batch_and_pad`.
        """
        return self.batch(batch_size, batch_fn=PadTo(batch_size, pad_value))

    # ---- order

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> Self:
        """Shuffles within windows of consecutive elements.

        >>> list(MapDataset.range(8).window_shuffle(4, seed=3))
        [2, 3, 0, 1, 5, 4, 6, 7]

        Differs from Grain: no element is lost if the window does not divide the length of a `MapDataset`.
        """
        return self._then(WindowShuffle(self._op, window_size, seed))

    def seed(self, seed: int) -> Self:
        """Sets the seed from which the random operations after it derive theirs.

        >>> list(MapDataset.range(4).seed(42).shuffle()) == list(MapDataset.range(4).seed(42).shuffle())
        True

        Differs from Grain: a wrong seed is an error here, not at the first element.
        """
        return self._then(Seed(self._op, seed))

    def cache(self, path: "str | os.PathLike[str] | None" = None, *, version: str | None = None) -> Self:
        """Keeps computed elements in memory or on disk; later epochs reuse those of the first.

        Put random operations and `repeat` after it. On disk, they are computed once: before the first element comes, an
        iterator fills its own folder below `path`, and later runs read it. Its name is a digest of all that comes
        before, functions and files included, so a changed pipeline fills another one. Remove folders that are no longer
        needed.

        >>> ds = MapDataset.range(4).map(lambda x: x * x).cache().shuffle(seed=1).repeat(2)
        >>> list(ds)
        [1, 4, 9, 0, 0, 9, 1, 4]
        >>> list(MapDataset.range(3).cache(folder / "squares", version="1"))
        [0, 1, 2]

        Differs from Grain: there it is `experimental.CacheIterDataset`, of streams and in memory.

        Args:
            path: The folder; without it, elements are kept in memory. Elements on disk are dicts, lists and tuples of
                arrays, numbers, texts and bytes.
            version: Text that stands for all that comes before, instead of the digest.
        """
        if path is None:
            return self._then(Cache(self._op))
        from headrace.state.content_key import content_key, named_key  # hardly ever needed

        op = self._op
        folder = os.path.abspath(os.fsdecode(path))
        key = content_key(op) if version is None else named_key(version)
        return self._then(stream_from_disk(op, folder, key) if op.is_stream else DiskCache(op, path=folder, key=key))

    def with_options(self, options: DatasetOptions) -> Self:
        """Sets options of the whole pipeline.

        >>> ds = MapDataset.range(6).with_options(DatasetOptions(filter_raise_threshold_ratio=0.99))

        Differs from Grain: there it is `experimental.WithOptionsIterDataset`.
        """
        return self._then(Options(self._op, options))

    def on_error(
        self,
        action: "str | Callable[[BadRecord], Any]",
        *,
        max_errors: int | None = 100,
        max_ratio: float | None = 0.001,
        quarantine: "str | os.PathLike[str] | None" = None,
    ) -> Self:
        """Sets what to do about records that cannot be read, or that make a function raise, in the whole pipeline.

        >>> ds = MapDataset.source(["1", "2", "x", "4"]).map(int).on_error("skip")
        >>> list(ds)
        [1, 2, 4]

        The other records are the same, on any number of workers. A batch of a `MapDataset` is smaller by those that are
        skipped, and a batch of a stream takes the next ones instead.

        Differs from Grain: only Headrace has it.

        Args:
            action: "raise", "skip", or a function of the `BadRecord` that returns what the operation should have
                returned, or `None` to skip it.
            max_errors: The run ends after more bad records than this; `None` for any number.
            max_ratio: The run ends if more than this share of records is bad; `None` for any share.
            quarantine: A JSON lines file that lists the bad records.
        """
        return self.with_options(DatasetOptions(on_error=ErrorPolicy(action, max_errors, max_ratio, quarantine)))

    # ---- composition

    def apply(self, transformations: "transforms.Transformation | transforms.Transformations") -> "Any":
        """Applies transforms one after the other.

        >>> list(MapDataset.range(4).apply([transforms.Batch(2)]))
        [array([0, 1]), array([2, 3])]

        Differs from Grain: plain functions are transforms too.
        """
        dataset: Any = self
        many = isinstance(transformations, Sequence) and not isinstance(transformations, str)
        for transform in transformations if many else [transformations]:  # type: ignore[union-attr]
            dataset = _apply_one(dataset, transform)
        return dataset

    def pipe(self, func: Callable[..., S], /, *args: Any, **kwargs: Any) -> S:
        """Returns `func(self, *args, **kwargs)`, so that calls of functions can be chained.

        >>> list(MapDataset.range(4).pipe(lambda ds, n: ds.take(n), 2))
        [0, 1]
        """
        return func(self, *args, **kwargs)

    def to_arrays(self) -> Any:
        """A whole finite dataset as one pytree of arrays with a leading axis.

        >>> MapDataset.range(4).map(lambda x: {"x": x, "y": x / 2}).to_arrays()
        {'x': array([0, 1, 2, 3]), 'y': array([0. , 0.5, 1. , 1.5])}

        Differs from Grain: only Headrace has it.
        """
        op = self._stream_op
        if op.endless:
            raise PipelineError(
                "`to_arrays` needs a dataset with an end, but this one is endless: limit it with `take` first."
            )
        fill_caches(op)
        plan = Plan(op)
        workers = Workers(plan)
        run_on = context(plan, workers, Recorder(), BadRecords(plan).guard())
        stream = open_stream(op, None, run_on)
        try:
            blocks = list(_blocks(stream))
        except Exception as e:
            let_through(e)
            blocks = [Rows(list(self), owned=True)]  # again, since an iterator's errors say where
        finally:
            workers.interrupt()
            stream.close()
            run_on.close()
            workers.park()
        if not any(map(len, blocks)):
            raise PipelineError(
                "`to_arrays` needs at least one element to know shapes and dtypes, but the dataset is empty."
            )
        return concat(blocks).stack()

    @property
    def _stream_op(self) -> Op:
        op = self._op
        return op if op.is_stream else ToStream(op)

    def _open_iterator(self) -> StreamIterator[T]:
        """An iterator with statistics, which those of users' own classes do not have."""
        return StreamIterator(self._stream_op)

    def __iter__(self) -> DatasetIterator[T]:
        # A subclass may call this in its `__iter__`: it then means the operation that its base class stands for.
        """An iterator from the beginning, with states to save and restore.

        >>> with iter(MapDataset.range(3)) as iterator:
        ...     next(iterator), iterator.get_next_index()
        (0, 1)
        """
        own: Any = self._operation if self._is_stream else None
        return own.dataset.__iter__() if isinstance(own, UserDataset) else StreamIterator(own or self._stream_op)


explain_keywords_of(Viewable)
explain_keywords_of(Dataset)


@functools.lru_cache(128)  # programs may ask for the same attribute again and again
def _suggest_method(kind: type[Dataset], name: str) -> tuple[str | None, str]:
    """The method that a wrong name may mean, and where to call it if the other kind of dataset has it."""
    other = Dataset._kinds[not kind._is_stream]
    own = dir(kind)
    if name in _OF_ITERATORS:
        return None, f" It is a method of iterators: `it = iter(ds)`, then `it.{name}(...)`."
    if hint := written_here(name):
        return None, hint
    meant = closest(name, {*own, *dir(other)})
    hint = ""
    if meant is not None and meant not in own:
        where = f"{'before' if kind._is_stream else 'after'} `to_iter_dataset()`"
        hint = f" It is a method of {other.__name__}, to call {where}."
    return None if meant == name else meant, hint


def _datasets(name: str, parents: Any) -> Iterable[Dataset]:
    """The parents given to a dataset's constructor; raises at the first that is no dataset, and reads no further."""
    wrong = parents
    if isinstance(parents, Iterable) and not isinstance(parents, Mapping):
        for wrong in parents:
            if not isinstance(wrong, Dataset):
                break
            yield wrong
        else:
            return
    raise PipelineError(
        f"`{name}(...)` takes the datasets that a user-defined class reads; got {type(wrong).__name__}. To read data, "
        "write `MapDataset.source(...)`, and `.to_iter_dataset()` after it for a stream."
    )


def dataset_of(op: Op) -> Dataset:
    """The dataset of an operation."""
    return op.dataset if isinstance(op, UserDataset) else Dataset._kinds[op.is_stream]._of(op)


def num_elements(op: Op) -> int:
    """How many elements a stream has; raises a `TypeError`, which `list` and `tqdm` expect, where that is not known."""
    count = num_outputs(op, surely=True)
    if count is None:
        raise TypeError(
            f"The length of `{op.name}` (pipeline at {op.site}) is known only after reading all of it. To "
            "count its elements, iterate over it."
        )
    if count >= ENDLESS:
        raise TypeError(f"`{op.name}` (pipeline at {op.site}) is endless, so it has no length. Limit it with `take`.")
    return int(count)


def _blocks(stream: Stream) -> Iterable[Block]:
    while (run := in_pipeline(stream.pull, 4096)) is not None:
        yield run.block


METHODS: dict[str, type] = {
    "map": transforms.Map,
    "random_map": transforms.RandomMap,
    "np_random_map": transforms.TfRandomMap,
    "map_with_index": transforms.MapWithIndex,
    "filter": transforms.Filter,
    "flat_map": transforms.FlatMap,
}
"""The kinds of transforms, by the method that each defines."""


def method_of(transform: Any) -> str | None:
    """The name of a transform's method; of several kinds, the first counts."""
    return next((name for name, kind in METHODS.items() if isinstance(transform, kind)), None)


def _apply_one(dataset: Any, transform: Any) -> Any:
    if isinstance(transform, transforms.Batch):
        return dataset.batch(transform.batch_size, drop_remainder=transform.drop_remainder, batch_fn=transform.batch_fn)
    method = method_of(transform)
    if method == "np_random_map":
        return dataset.random_map(transform.np_random_map)
    if method is not None:
        return getattr(dataset, method)(transform)
    if callable(transform):
        return dataset.map(transform)
    raise PipelineError(
        f"`apply` takes transforms (Map, RandomMap, MapWithIndex, Filter, FlatMap, Batch) and functions; got "
        f"{type(transform).__name__}."
    )


def stream_ops(datasets: "Sequence[Dataset]", name: str) -> tuple[Op, ...]:
    """The operations of datasets, as streams."""
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, Dataset):
            raise PipelineError(f"`IterDataset.{name}` needs datasets; item {i} is {type(dataset).__name__}.")
    return tuple(dataset._stream_op for dataset in datasets)


def map_ops(datasets: "Sequence[Dataset]", name: str) -> tuple[Op, ...]:
    """The operations of random-access datasets."""
    if isinstance(datasets, Mapping):
        raise PipelineError(
            f"`MapDataset.{name}` takes a sequence of datasets; parts by name are for `IterDataset.mix`."
        )
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, Dataset) or dataset._op.is_stream:
            raise PipelineError(
                f"`MapDataset.{name}` needs MapDatasets; dataset {i} is {type(dataset).__name__}. "
                f"Combine streams with `IterDataset.{name}`."
            )
    return tuple(dataset._op for dataset in datasets)
