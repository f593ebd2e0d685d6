"""The names that the seeds' `experimental` namespace has: no logic, each is a method or class of the core."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace._dataset import Dataset
from headrace._later import later
from headrace._ops.group import batch_and_pad as batch_and_pad
from headrace._rng import RngPool as RngPool
from headrace._rng import index_shuffle as index_shuffle
from headrace._spec import ShapeDtypeStruct as ShapeDtypeStruct
from headrace._spec import ShapeDtypeStructProtocol as ShapeDtypeStructProtocol
from headrace.dataset import IterDataset, MapDataset
from headrace.iterator import DatasetIterator
from headrace.options import AutotuneParameter
from headrace.options import DatasetOptions as DatasetOptions
from headrace.options import ExecutionTrackingMode as ExecutionTrackingMode
from headrace.protocols import CheckpointableIterator
from headrace.testing import assert_resumable
from headrace.transforms import FlatMap as FlatMapTransform
from headrace.transforms import MapWithIndex

if TYPE_CHECKING:
    from headrace.checkpoint.elastic import ElasticIterator as ElasticIterator
    from headrace.device.jax import device_put as device_put
    from headrace.packing import BestFitPackIterDataset as BestFitPackIterDataset
    from headrace.packing import BOSHandling as BOSHandling
    from headrace.packing import ConcatThenSplitIterDataset as ConcatThenSplitIterDataset
    from headrace.packing import FirstFitPackIterDataset as FirstFitPackIterDataset
    from headrace.packing import PackAndBatchOperation as PackAndBatchOperation
    from headrace.performance import PerformanceConfig as PerformanceConfig
    from headrace.performance import pick_performance_config as pick_performance_config
    from headrace.sources.parquet import ParquetIterDataset as ParquetIterDataset
    from headrace.sources.tfrecord import TFRecordIterDataset as TFRecordIterDataset

__getattr__, __dir__, _MODULE_OF = later(
    __name__,
    {
        "checkpoint.elastic": ("ElasticIterator",),
        "device.jax": ("device_put",),
        "packing": (
            "BOSHandling",
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


def CacheIterDataset(parent: IterDataset) -> IterDataset:
    """`parent.cache()`."""
    return parent.cache()


def FlatMapIterDataset(parent: IterDataset, transform: FlatMapTransform) -> IterDataset:
    """`parent.flat_map(transform)`."""
    return parent.flat_map(transform)


def FlatMapMapDataset(parent: MapDataset, transform: FlatMapTransform) -> MapDataset:
    """`parent.flat_map(transform)`."""
    return parent.flat_map(transform)


def InterleaveIterDataset(
    datasets: Sequence[Dataset] | MapDataset,
    *,
    cycle_length: int | AutotuneParameter,
    num_make_iter_threads: int = 1,
    make_iter_buffer_size: int = 1,
    iter_buffer_size: int = 1,
) -> IterDataset:
    """`IterDataset.interleave(datasets, cycle_length=...)`; the buffer sizes are not needed here."""
    if isinstance(cycle_length, AutotuneParameter):
        cycle_length = min(len(datasets), 16)
    return IterDataset.interleave(datasets, cycle_length=cycle_length)


def LimitIterDataset(parent: IterDataset, count: int) -> IterDataset:
    """`parent.take(count)`."""
    return parent.take(count)


def RebatchIterDataset(parent: IterDataset, batch_size: int, drop_remainder: bool = False) -> IterDataset:
    """`parent.rebatch(batch_size)`."""
    return parent.rebatch(batch_size, drop_remainder=drop_remainder)


def RepeatIterDataset(parent: IterDataset, num_epochs: int | None = None) -> IterDataset:
    """`parent.repeat(num_epochs)`."""
    return parent.repeat(num_epochs)


def ThreadPrefetchIterDataset(parent: IterDataset, *, prefetch_buffer_size: int | AutotuneParameter) -> IterDataset:
    """`parent.prefetch(prefetch_buffer_size)`."""
    return parent.prefetch(prefetch_buffer_size)


def WindowShuffleIterDataset(parent: IterDataset, *, window_size: int, seed: int) -> IterDataset:
    """`parent.window_shuffle(window_size, seed=seed)`."""
    return parent.window_shuffle(window_size, seed=seed)


def WindowShuffleMapDataset(parent: MapDataset, *, window_size: int, seed: int) -> MapDataset:
    """`parent.window_shuffle(window_size, seed=seed)`."""
    return parent.window_shuffle(window_size, seed=seed)


def WithOptionsIterDataset(parent: IterDataset, options: DatasetOptions) -> IterDataset:
    """`parent.with_options(options)`."""
    return parent.with_options(options)


def ZipIterDataset(parents: Sequence[IterDataset], *, strict: bool = True) -> IterDataset:
    """`IterDataset.zip(parents)`."""
    return IterDataset.zip(parents, strict=strict)


def ZipMapDataset(parents: Sequence[MapDataset]) -> MapDataset:
    """`MapDataset.zip(parents)`."""
    return MapDataset.zip(parents)


def apply_transformations(ds: Any, transformations: Any) -> Any:
    """`ds.apply(transformations)`."""
    return ds.apply(transformations)


def get_element_spec(ds: Dataset) -> Any:
    """`ds.element_spec`."""
    return ds.element_spec


def get_next_index(ds_iter: DatasetIterator) -> int:
    """The index of the next element, for an iterator over a random-access chain."""
    return ds_iter.get_next_index()  # type: ignore[attr-defined]


def set_next_index(ds_iter: DatasetIterator, index: int) -> None:
    """Goes to an index, for an iterator over a random-access chain."""
    ds_iter.set_state({"next_index": index})


def multithread_prefetch(
    ds: IterDataset, num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset:
    """Computes ahead in threads; unlike elsewhere, the order is that of `ds`, whatever the number of threads."""
    return ds.prefetch(buffer_size) if num_threads else ds


class _Borrowed(DatasetIterator):
    """An iterator that belongs to somebody else: it is not closed with what reads from it."""

    def __init__(self, iterator: CheckpointableIterator):
        super().__init__()
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> Any:
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        self._iterator.set_state(state)


class _Given(IterDataset):
    """An iterator that is there already, as a dataset that starts where the iterator is."""

    def __init__(self, iterator: CheckpointableIterator):
        super().__init__()
        self._iterator, self._start = iterator, iterator.get_state()

    def __iter__(self) -> Any:
        self._iterator.set_state(self._start)
        return _Borrowed(self._iterator)


def ThreadPrefetchDatasetIterator(
    parent: CheckpointableIterator, prefetch_buffer_size: int | AutotuneParameter
) -> DatasetIterator:
    """An iterator that computes another one ahead, in a thread."""
    return iter(_Given(parent).prefetch(prefetch_buffer_size))


MapWithIndexTransform = MapWithIndex
assert_equal_output_after_checkpoint = assert_resumable
