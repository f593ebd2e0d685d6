"""Where bytes at rest become elements: one file or folder per format, imported when it is first used."""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import lazy_module
from headrace.protocols import RandomAccessDataSource as RandomAccessDataSource
from headrace.sources import given as _given
from headrace.storage.memory import ArrayDataSource as ArrayDataSource
from headrace.storage.memory import InMemoryDataSource as InMemoryDataSource
from headrace.storage.memory import RangeDataSource as RangeDataSource
from headrace.storage.memory import SharedMemoryDataSource as SharedMemoryDataSource

if TYPE_CHECKING:
    from headrace.sources.array_record import ArrayRecordDataSource as ArrayRecordDataSource

__getattr__, __dir__, _MODULE_OF = lazy_module(
    __name__,
    {
        "sources.array_record": ("ArrayRecordDataSource",),
        "sources.array_files": ("Hdf5DataSource", "IdxDataSource", "NpyDataSource", "NpzDataSource", "ZarrDataSource"),
        "sources.bagz": ("BagzDataSource",),
        "sources.generators": ("from_generator",),
        "sources.hugging_face": ("HuggingFaceDataSource", "HuggingFaceIterDataset"),
        "sources.image_folder": ("ImageFolderDataSource",),
        "sources.json_lines": (
            "JsonLinesDataSource",
            "JsonLinesIterDataset",
            "TextLinesDataSource",
            "TextLinesIterDataset",
        ),
        "sources.media": ("AudioDataSource", "VideoDataSource"),
        "sources.opening": ("open",),
        "sources.arrow": ("ArrowDataSource",),
        "sources.csv": ("CsvDataSource",),
        "sources.parquet": ("ParquetDataSource", "ParquetIterDataset"),
        "storage.remote": ("Address",),
        "sources.sql": ("SqlDataSource",),
        "sources.tables": ("TableBatches", "shuffled_groups"),
        "sources.tar": ("DecodeSample", "TarDataSource", "TarIterDataset"),
        "sources.tf_example": (
            "ExampleDataSource",
            "ExampleParser",
            "Feature",
            "parse_example",
            "parse_sequence_example",
        ),
        "sources.tfds": ("TfdsDataSource",),
        "sources.tfrecord": ("TFRecordDataSource", "TFRecordIterDataset"),
        "sources.torch_data": ("TorchDataSource", "TorchIterDataset"),
        "sources.writers": ("write_array_record", "write_parquet", "write_tar", "write_tfrecord"),
    },
)
