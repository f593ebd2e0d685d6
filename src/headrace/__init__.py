"""Feeds accelerators: reads, shuffles, transforms, mixes, batches and hands over records for training."""

from headrace import constants as constants
from headrace import experimental as experimental
from headrace import multiprocessing as multiprocessing
from headrace import sources as sources
from headrace import transforms as transforms
from headrace.dataset import IterDataset as IterDataset
from headrace.dataset import MapDataset as MapDataset
from headrace.iterator import DatasetIterator as DatasetIterator
from headrace.options import AUTOTUNE as AUTOTUNE
from headrace.options import DatasetOptions as DatasetOptions
from headrace.options import MultiprocessingOptions as MultiprocessingOptions
from headrace.options import ReadOptions as ReadOptions

__version__ = "0.1.0"
