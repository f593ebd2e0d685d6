"""Feeds accelerators: reads, shuffles, transforms, mixes, batches and hands over records for training."""

from importlib import import_module as _import_module
from typing import Any as _Any

from headrace import checkpoint as checkpoint
from headrace import constants as constants
from headrace import device as device
from headrace import experimental as experimental
from headrace import monitoring as monitoring
from headrace import multiprocessing as multiprocessing
from headrace import python as python
from headrace import samplers as samplers
from headrace import sharding as sharding
from headrace import sources as sources
from headrace import transforms as transforms
from headrace._as_grain import as_grain as as_grain
from headrace._config import config as config
from headrace._ops.schedule import WeightSchedule as WeightSchedule
from headrace.dataset import IterDataset as IterDataset
from headrace.dataset import MapDataset as MapDataset
from headrace.iterator import DatasetIterator as DatasetIterator
from headrace.loader import DataLoader as DataLoader
from headrace.loader import DataLoaderIterator as DataLoaderIterator
from headrace.loader import load as load
from headrace.options import AUTOTUNE as AUTOTUNE
from headrace.options import DatasetOptions as DatasetOptions
from headrace.options import MultiprocessingOptions as MultiprocessingOptions
from headrace.options import ReadOptions as ReadOptions
from headrace.records import Record as Record
from headrace.records import RecordMetadata as RecordMetadata

__version__ = "0.1.0"
_LATER = ("packing", "text")


def __getattr__(name: str) -> _Any:
    """Modules that are imported when they are asked for, and the names of `headrace.python`.

    The latter are there so that code written for it may import this package instead.
    """
    if name in _LATER:
        return _import_module(f"{__name__}.{name}")
    if name.startswith("__") or not hasattr(python, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(python, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *dir(python)})
