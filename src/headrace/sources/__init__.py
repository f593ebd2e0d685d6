"""Where bytes at rest become elements: one file per format, imported when it is first asked for."""

import importlib
from typing import TYPE_CHECKING, Any

from headrace.protocols import RandomAccessDataSource as RandomAccessDataSource
from headrace.sources.arrays import ArrayDataSource as ArrayDataSource
from headrace.sources.ranges import RangeDataSource as RangeDataSource
from headrace.sources.shared import InMemoryDataSource as InMemoryDataSource
from headrace.sources.shared import SharedMemoryDataSource as SharedMemoryDataSource

if TYPE_CHECKING:
    from headrace.sources.array_record import ArrayRecordDataSource as ArrayRecordDataSource

_LATER = {
    "array_record": ("ArrayRecordDataSource",),
    "array_files": ("Hdf5DataSource", "IdxDataSource", "NpyDataSource", "NpzDataSource", "ZarrDataSource"),
    "bagz": ("BagzDataSource",),
    "generators": ("from_generator",),
    "hugging_face": ("HuggingFaceDataSource", "HuggingFaceIterDataset"),
    "images": ("ImageFolderDataSource",),
    "json_lines": ("JsonLinesDataSource", "JsonLinesIterDataset", "TextLinesDataSource", "TextLinesIterDataset"),
    "opening": ("open",),
    "parquet": ("ParquetIterDataset", "TableBatches", "shuffled_groups"),
    "remote": ("Address",),
    "sql": ("SqlDataSource",),
    "tables": ("ArrowDataSource", "CsvDataSource", "ParquetDataSource"),
    "tf_example": ("ExampleDataSource", "ExampleParser", "Feature", "parse_example", "parse_sequence_example"),
    "tfds": ("TfdsDataSource",),
    "tfrecord": ("TFRecordDataSource", "TFRecordIterDataset"),
    "torch_data": ("TorchDataSource", "TorchIterDataset"),
    "writers": ("write_array_record", "write_parquet", "write_tfrecord"),
}
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
