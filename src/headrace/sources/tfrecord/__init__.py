"""TFRecord files: streams of bytes, and random access through an index of offsets."""

from headrace.sources.tfrecord.random_access import TFRecordDataSource as TFRecordDataSource
from headrace.sources.tfrecord.stream import TFRecordIterDataset as TFRecordIterDataset
