"""The private modules of Grain that public programs import: `as_grain()` provides them with these names.

`MODULES` says for each module under `grain._src` which names it has, and where Headrace has them. Names that Headrace
defines nowhere else are defined below.
"""

import os
from types import ModuleType
from typing import Any

from headrace.dataset import IterDataset, MapDataset
from headrace.errors.lazy_imports import lazy_module
from headrace.iterator import DatasetIterator
from headrace.options import ReadOptions
from headrace.sharding import ShardOptions
from headrace.sources.tfrecord import FOOTER, HEADER, DamagedFile, checksum, masked, masked_crc_of_length

_OWN = "compat.grain.private_modules"
_TRANSFORMATIONS = "python.dataset.transformations"

MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    "core.constants": {
        "constants": ("DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED")
    },
    "core.sharding": {"sharding": ("NoSharding", "ShardByJaxProcess", "ShardOptions"), _OWN: ("even_split",)},
    "core.transforms": {
        "transforms": ("Batch", "Filter", "FlatMap", "Map", "MapWithIndex", "RandomMap", "TfRandomMap"),
        "python": ("Transformation", "Transformations"),
    },
    "python.checkpoint.handler": {"checkpoint": ("CheckpointHandler", "CheckpointRestore", "CheckpointSave")},
    "python.data_loader": {"loader": ("DataLoader", "DataLoaderIterator"), _OWN: ("_determine_worker_count",)},
    "python.data_sources": {"sources": ("ArrayRecordDataSource", "RangeDataSource", "SharedMemoryDataSource")},
    "python.dataset.base": {
        "transforms": ("DatasetSelectionMap",),
        "experimental": ("DatasetOptions", "ExecutionTrackingMode"),
        "sources": ("RandomAccessDataSource",),
    },
    "python.dataset.dataset": {
        "dataset": ("IterDataset", "MapDataset"),
        "iterator": ("DatasetIterator",),
        "experimental": ("WithOptionsIterDataset", "apply_transformations"),
    },
    "python.dataset.sources.parquet_dataset": {"experimental": ("ParquetIterDataset",)},
    "python.dataset.sources.tfrecord_dataset": {
        "experimental": ("TFRecordIterDataset",),
        _OWN: ("_TFRecordDatasetIterator", "_TFRecordReader"),
    },
    f"{_TRANSFORMATIONS}.flatmap": {"experimental": ("FlatMapIterDataset", "FlatMapMapDataset")},
    f"{_TRANSFORMATIONS}.interleave": {"experimental": ("InterleaveIterDataset",)},
    f"{_TRANSFORMATIONS}.mix": {_OWN: ("ConcatenateMapDataset", "MixedIterDataset", "MixedMapDataset")},
    f"{_TRANSFORMATIONS}.packing": {"experimental": ("BestFitPackIterDataset", "FirstFitPackIterDataset")},
    f"{_TRANSFORMATIONS}.packing_concat_then_split": {"experimental": ("BOSHandling", "ConcatThenSplitIterDataset")},
    f"{_TRANSFORMATIONS}.prefetch": {
        "experimental": ("ThreadPrefetchDatasetIterator", "ThreadPrefetchIterDataset", "multithread_prefetch"),
        _OWN: ("PrefetchIterDataset",),
    },
    f"{_TRANSFORMATIONS}.shuffle": {"experimental": ("WindowShuffleIterDataset", "WindowShuffleMapDataset")},
    f"{_TRANSFORMATIONS}.source": {_OWN: ("RangeMapDataset", "SourceMapDataset")},
    f"{_TRANSFORMATIONS}.zip": {"experimental": ("ZipIterDataset", "ZipMapDataset")},
    "python.experimental.index_shuffle.python.index_shuffle_module": {"experimental": ("index_shuffle",)},
    "python.ipc.shared_memory_array": {"multiprocessing": ("SharedMemoryArray", "SharedMemoryArrayMetadata")},
    "python.options": {"options": ("MultiprocessingOptions", "ReadOptions")},
    "python.record": {"records": ("Record", "RecordMetadata")},
    "python.samplers": {"samplers": ("IndexSampler", "Sampler", "SequentialSampler")},
}


def module(path: str) -> ModuleType | None:
    """The module or package `grain._src.{path}`; `None` if there is none."""
    name = f"grain._src.{path}".rstrip(".")
    if path not in MODULES and not any(f"{known}.".startswith(f"{path}." if path else "") for known in MODULES):
        return None
    made = ModuleType(name, f"Names of Headrace in the place of `{name}`.")
    made.__path__ = []  # type: ignore[attr-defined]  # a package
    made.__getattr__, made.__dir__, _ = lazy_module(name, MODULES.get(path, {}))  # type: ignore[method-assign]
    return made


# ------------------------------------------------------------------------------------ under Grain's names alone


def even_split(num_examples: int, options: ShardOptions) -> tuple[int, int]:
    """Where a shard's consecutive part of the examples begins and ends."""
    begin, size = options.piece(num_examples)
    return begin, begin + size


def _determine_worker_count(input_worker_count: int | None) -> int:
    """The number of workers; by default one for each core."""
    return (os.cpu_count() or 1) if input_worker_count is None else input_worker_count


SourceMapDataset = MapDataset.source
RangeMapDataset = MapDataset.range
ConcatenateMapDataset = MapDataset.concatenate


def MixedMapDataset(parents: Any, proportions: Any = None, selection_map: Any = None) -> MapDataset:
    """`MapDataset.mix`; with a selection map, `select_from_datasets`."""
    if selection_map is not None:
        return MapDataset.select_from_datasets(parents, selection_map)
    return MapDataset.mix(parents, proportions)


def MixedIterDataset(parents: Any, proportions: Any = None) -> IterDataset:
    """`IterDataset.mix`."""
    return IterDataset.mix(parents, proportions)


def PrefetchIterDataset(parent: MapDataset, *, read_options: ReadOptions, allow_nones: bool = False) -> IterDataset:
    """`parent.to_iter_dataset`."""
    return parent.to_iter_dataset(read_options, allow_nones=allow_nones)


class _TFRecordReader:
    """Reads the records of a TFRecord file; subclasses may set another open file as `_reader`."""

    def __init__(self, path: str):
        self._reader: Any = open(path, "rb")  # noqa: SIM115

    def __next__(self) -> bytes:
        header = self._read(HEADER.size, at_end=b"")
        if not header:
            raise StopIteration
        length, crc = HEADER.unpack(header)
        if crc != masked_crc_of_length(length):
            raise self._broken("the checksum of its length is wrong")
        record = self._read(length)
        if masked(checksum()(record)) != FOOTER.unpack(self._read(FOOTER.size))[0]:
            raise self._broken("the checksum of its bytes is wrong")
        return record

    def _read(self, num_bytes: int, at_end: bytes | None = None) -> bytes:
        found = self._reader.read(num_bytes)
        if len(found) == num_bytes or found == at_end:
            return found
        raise self._broken("the file ends too early")

    def _broken(self, what: str) -> DamagedFile:
        name = getattr(self._reader, "name", type(self._reader).__name__)
        return DamagedFile(f"{name} is damaged in the record before offset {self.tell()}: {what}.")

    def tell(self) -> int:
        """The offset of the next record."""
        return self._reader.tell()

    def seek(self, offset: int) -> None:
        """Goes to the record at an offset."""
        self._reader.seek(offset)

    def __del__(self):
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.close()


class _TFRecordDatasetIterator(DatasetIterator[bytes]):
    """The records of a reader, with the offset as state; subclasses may set another `_reader`."""

    def __init__(self, path: str):
        super().__init__()
        self._reader = _TFRecordReader(path)

    def __next__(self) -> bytes:
        return next(self._reader)

    def get_state(self) -> dict[str, Any]:
        return {"reader_offset": self._reader.tell()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._reader.seek(state["reader_offset"])
