"""Hugging Face's datasets: a `Dataset` as a source, an `IterableDataset` as a stream."""

from headrace.sources.hugging_face.source import HuggingFaceDataSource as HuggingFaceDataSource
from headrace.sources.hugging_face.stream import HuggingFaceIterDataset as HuggingFaceIterDataset
