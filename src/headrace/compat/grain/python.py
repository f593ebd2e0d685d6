"""The names of `grain.python`, Grain's older namespace, and others that its users write."""

from typing import TYPE_CHECKING, Any

from headrace import checkpoint as _checkpoint
from headrace import sharding as sharding
from headrace import sources as _sources
from headrace import transforms as _transforms
from headrace.compat.grain import experimental as experimental
from headrace.constants import DATASET_INDEX as DATASET_INDEX
from headrace.constants import EPOCH as EPOCH
from headrace.constants import INDEX as INDEX
from headrace.constants import META_FEATURES as META_FEATURES
from headrace.constants import RECORD as RECORD
from headrace.constants import RECORD_KEY as RECORD_KEY
from headrace.constants import SEED as SEED
from headrace.dataset import IterDataset as IterDataset
from headrace.dataset import MapDataset as MapDataset
from headrace.iterator import DatasetIterator as DatasetIterator
from headrace.loader import DataLoader as DataLoader
from headrace.loader import DataLoaderIterator as DataLoaderIterator
from headrace.loader import load as load
from headrace.multiprocessing import SharedMemoryArray as SharedMemoryArray
from headrace.operations import BatchOperation as BatchOperation
from headrace.operations import FilterOperation as FilterOperation
from headrace.operations import MapOperation as MapOperation
from headrace.operations import Operation as Operation
from headrace.operations import RandomMapOperation as RandomMapOperation
from headrace.options import MultiprocessingOptions as MultiprocessingOptions
from headrace.options import ReadOptions as ReadOptions
from headrace.options import config as config
from headrace.protocols import RandomAccessDataSource as RandomAccessDataSource
from headrace.records import Record as Record
from headrace.records import RecordMetadata as RecordMetadata
from headrace.samplers import IndexSampler as IndexSampler
from headrace.samplers import Sampler as Sampler
from headrace.samplers import SequentialSampler as SequentialSampler
from headrace.sharding import NoSharding as NoSharding
from headrace.sharding import ShardByJaxProcess as ShardByJaxProcess
from headrace.sharding import ShardOptions as ShardOptions
from headrace.sources import InMemoryDataSource as InMemoryDataSource
from headrace.sources import RangeDataSource as RangeDataSource
from headrace.transforms import Batch as Batch
from headrace.transforms import DatasetSelectionMap as DatasetSelectionMap
from headrace.transforms import Transformation as Transformation
from headrace.transforms import Transformations as Transformations

if TYPE_CHECKING:
    from headrace.sources import ArrayRecordDataSource as ArrayRecordDataSource

PyGrainDatasetIterator = DataLoaderIterator
BatchTransform = _transforms.Batch
FilterTransform = _transforms.Filter
FlatMapTransform = _transforms.FlatMap
MapTransform = _transforms.Map
MapWithIndexTransform = _transforms.MapWithIndex
RandomMapTransform = _transforms.RandomMap
TfRandomMapTransform = _transforms.TfRandomMap

_PREFIXES = ("PyGrain", "Grain")


def __getattr__(name: str) -> Any:
    """Imports on first use the classes for Orbax (`PyGrainCheckpointSave`, `GrainCheckpointSave`, ...) and others."""
    if name == "ArrayRecordDataSource":
        return _sources.ArrayRecordDataSource
    for prefix in _PREFIXES:
        if name.startswith(f"{prefix}Checkpoint"):
            return getattr(_checkpoint, name.removeprefix(prefix))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    later = [f"{prefix}{name}" for prefix in _PREFIXES for name in _checkpoint.__all__ if name.startswith("Checkpoint")]
    return sorted([*(name for name in globals() if not name.startswith("_")), *later, "ArrayRecordDataSource"])
