"""Folders that TensorFlow Datasets prepared, read without it and without TensorFlow."""

from headrace.sources.tfds.names import folder_by_name as folder_by_name
from headrace.sources.tfds.source import TfdsDataSource as TfdsDataSource
