"""The names of Grain's `experimental` namespace: each is a method or class of the core.

Each dataset class stands for one operation. Those of streams turn a `MapDataset` into a stream first.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.dataset import IterDataset, MapDataset, as_stream
from headrace.dataset.base import Dataset
from headrace.errors import PipelineError
from headrace.errors.lazy_imports import lazy_module
from headrace.iterator import DatasetIterator, StreamIterator
from headrace.ops.group import batch_and_pad as batch_and_pad
from headrace.options import AutotuneParameter
from headrace.options import DatasetOptions as DatasetOptions
from headrace.options import ExecutionTrackingMode as ExecutionTrackingMode
from headrace.protocols import CheckpointableIterator
from headrace.rng import RngPool as RngPool
from headrace.rng import index_shuffle as index_shuffle
from headrace.testing import assert_resumable
from headrace.transforms import FlatMap as FlatMapTransform
from headrace.transforms import MapWithIndex
from headrace.trees import ShapeDtypeStruct as ShapeDtypeStruct
from headrace.trees import ShapeDtypeStructProtocol as ShapeDtypeStructProtocol

if TYPE_CHECKING:
    from headrace.checkpoint.elastic import ElasticIterator as ElasticIterator
    from headrace.compat.grain.packing import BestFitPackIterDataset as BestFitPackIterDataset
    from headrace.compat.grain.packing import ConcatThenSplitIterDataset as ConcatThenSplitIterDataset
    from headrace.compat.grain.packing import FirstFitPackIterDataset as FirstFitPackIterDataset
    from headrace.compat.grain.packing import PackAndBatchOperation as PackAndBatchOperation
    from headrace.device.jax import device_put as device_put
    from headrace.ops.packing.packers import BOSHandling as BOSHandling
    from headrace.performance import PerformanceConfig as PerformanceConfig
    from headrace.performance import pick_performance_config as pick_performance_config
    from headrace.sources.parquet import ParquetIterDataset as ParquetIterDataset
    from headrace.sources.tfrecord import TFRecordIterDataset as TFRecordIterDataset

_T = TypeVar("_T")

__getattr__, __dir__, _MODULE_OF = lazy_module(
    __name__,
    {
        "checkpoint.elastic": ("ElasticIterator",),
        "device.jax": ("device_put",),
        "ops.packing.packers": ("BOSHandling",),
        "compat.grain.packing": (
            "BestFitPackIterDataset",
            "ConcatThenSplitIterDataset",
            "FirstFitPackIterDataset",
            "PackAndBatchOperation",
        ),
        "performance": ("PerformanceConfig", "pick_performance_config"),
        "sources.parquet": ("ParquetIterDataset",),
        "sources.tfrecord": ("TFRecordIterDataset",),
    },
)


def _stand_for(dataset: Dataset, parents: Dataset | Sequence[Dataset], operation: Dataset) -> None:
    """Makes a dataset with these parents stand for the last operation of another one."""
    Dataset.__init__(dataset, parents)
    dataset._operation = operation._op


class CacheIterDataset(IterDataset[_T]):
    """`parent.cache()`, of a stream."""

    def __init__(self, parent: Dataset[_T]):
        _stand_for(self, parent, as_stream(parent, "CacheIterDataset").cache())


class FlatMapIterDataset(IterDataset):
    """`parent.flat_map(transform)`, of a stream."""

    def __init__(self, parent: Dataset, transform: FlatMapTransform):
        _stand_for(self, parent, as_stream(parent, "FlatMapIterDataset").flat_map(transform))


class FlatMapMapDataset(MapDataset):
    """`parent.flat_map(transform)`."""

    def __init__(self, parent: MapDataset, transform: FlatMapTransform):
        _stand_for(self, parent, parent.flat_map(transform))


class InterleaveIterDataset(IterDataset[_T]):
    """`IterDataset.interleave(datasets, cycle_length=...)`; the other arguments have no effect."""

    def __init__(
        self,
        datasets: Sequence[Dataset[_T]] | MapDataset,
        *,
        cycle_length: int | AutotuneParameter,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ):
        if isinstance(cycle_length, AutotuneParameter):
            cycle_length = min(len(datasets), 16)
        self._datasets = datasets
        self._cycle_length = cycle_length
        parents = datasets if isinstance(datasets, MapDataset) else ()
        _stand_for(self, parents, IterDataset.interleave(datasets, cycle_length=cycle_length))

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps a slice of the datasets; `sequential_slice` has no effect."""
        self.__dict__.pop("_op", None)
        InterleaveIterDataset.__init__(self, self._datasets[sl], cycle_length=self._cycle_length)


class LimitIterDataset(IterDataset[_T]):
    """`parent.take(count)`, of a stream."""

    def __init__(self, parent: Dataset[_T], count: int):
        if count == 0:
            raise PipelineError("The count of a LimitIterDataset must be positive; got 0. `take(0)` is empty.")
        _stand_for(self, parent, as_stream(parent, "LimitIterDataset").take(count))


class RebatchIterDataset(IterDataset[_T]):
    """`parent.rebatch(batch_size)`, of a stream."""

    def __init__(self, parent: Dataset[_T], batch_size: int, drop_remainder: bool = False):
        stream = as_stream(parent, "RebatchIterDataset")
        _stand_for(self, parent, stream.rebatch(batch_size, drop_remainder=drop_remainder))


class RepeatIterDataset(IterDataset[_T]):
    """`parent.repeat(num_epochs)`, of a stream: every epoch is the same."""

    def __init__(self, parent: Dataset[_T], num_epochs: int | None = None):
        _stand_for(self, parent, as_stream(parent, "RepeatIterDataset").repeat(num_epochs))


class ThreadPrefetchIterDataset(IterDataset[_T]):
    """`parent.prefetch(prefetch_buffer_size)`, of a stream."""

    def __init__(self, parent: Dataset[_T], *, prefetch_buffer_size: int | AutotuneParameter):
        _stand_for(self, parent, as_stream(parent, "ThreadPrefetchIterDataset").prefetch(prefetch_buffer_size))


class WindowShuffleIterDataset(IterDataset[_T]):
    """`parent.window_shuffle(window_size, seed=seed)`, of a stream."""

    def __init__(self, parent: Dataset[_T], *, window_size: int, seed: int):
        _stand_for(self, parent, as_stream(parent, "WindowShuffleIterDataset").window_shuffle(window_size, seed=seed))


class WindowShuffleMapDataset(MapDataset[_T]):
    """`parent.window_shuffle(window_size, seed=seed)`."""

    def __init__(self, parent: MapDataset[_T], *, window_size: int, seed: int):
        _stand_for(self, parent, parent.window_shuffle(window_size, seed=seed))


class WithOptionsIterDataset(IterDataset[_T]):
    """`parent.with_options(options)`, of a stream."""

    def __init__(self, parent: Dataset[_T], options: DatasetOptions):
        _stand_for(self, parent, as_stream(parent, "WithOptionsIterDataset").with_options(options))


class ZipIterDataset(IterDataset[tuple]):
    """`IterDataset.zip(parents)`."""

    def __init__(self, parents: Sequence[Dataset], *, strict: bool = True):
        _stand_for(self, parents, IterDataset.zip(parents, strict=strict))


class ZipMapDataset(MapDataset[tuple]):
    """`MapDataset.zip(parents)`."""

    def __init__(self, parents: Sequence[MapDataset]):
        _stand_for(self, parents, MapDataset.zip(parents))


def apply_transformations(ds: Any, transformations: Any) -> Any:
    """`ds.apply(transformations)`."""
    return ds.apply(transformations)


def get_element_spec(ds: Dataset) -> Any:
    """`ds.element_spec`."""
    return ds.element_spec


def get_next_index(ds_iter: DatasetIterator) -> int:
    """`ds_iter.get_next_index()`."""
    return ds_iter.get_next_index()


def set_next_index(ds_iter: DatasetIterator, index: int) -> None:
    """`ds_iter.set_next_index(index)`."""
    ds_iter.set_next_index(index)


def multithread_prefetch(
    ds: IterDataset, num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset:
    """`ds.prefetch(buffer_size)`: unlike in Grain, the order is that of `ds` with any number of threads."""
    return ds.prefetch(buffer_size) if num_threads else ds


class _Borrowed(DatasetIterator):
    """An iterator that belongs to somebody else: closing this one does not close it."""

    def __init__(self, iterator: CheckpointableIterator):
        super().__init__()
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> Any:
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        self._iterator.set_state(state)


class _GivenIterDataset(IterDataset):
    """An open iterator as a dataset that starts where the iterator is."""

    def __init__(self, iterator: CheckpointableIterator):
        super().__init__()
        self._iterator = iterator
        self._start = iterator.get_state()

    def __iter__(self) -> Any:
        self._iterator.set_state(self._start)
        return _Borrowed(self._iterator)


class ThreadPrefetchDatasetIterator(StreamIterator[_T]):
    """Computes an iterator's elements ahead, in a thread.

    >>> iterator = ThreadPrefetchDatasetIterator(iter(MapDataset.range(3)), prefetch_buffer_size=2)
    >>> list(iterator)
    [0, 1, 2]
    """

    def __init__(self, parent: CheckpointableIterator[_T], prefetch_buffer_size: int | AutotuneParameter):
        super().__init__(_GivenIterDataset(parent).prefetch(prefetch_buffer_size)._op)


MapWithIndexTransform = MapWithIndex
assert_equal_output_after_checkpoint = assert_resumable
