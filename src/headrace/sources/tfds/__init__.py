"""Folders that TensorFlow Datasets prepared, read without it and without TensorFlow."""

from headrace.sources.tfds.source import TfdsDataSource as TfdsDataSource
