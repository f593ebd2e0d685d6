"""Data loading for training: reads, shuffles, transforms, mixes and batches records."""

import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from headrace import checkpoint as checkpoint
from headrace import cluster as _cluster
from headrace import constants as constants
from headrace import device as device
from headrace import experimental as experimental
from headrace import exporters as exporters
from headrace import insight as _insight
from headrace import multiprocessing as multiprocessing
from headrace import operations as operations
from headrace import python as python
from headrace import samplers as samplers
from headrace import sharding as sharding
from headrace import sources as sources
from headrace import transforms as transforms
from headrace.compat.grain import monitoring as monitoring
from headrace.compat.grain import proto as _proto
from headrace.compat.grain.as_grain import as_grain as as_grain
from headrace.dataset import IterDataset as IterDataset
from headrace.dataset import MapDataset as MapDataset
from headrace.errors import BadRecord as BadRecord
from headrace.errors.lazy_imports import lazy_module as _lazy_module
from headrace.iterator import DatasetIterator as DatasetIterator
from headrace.loader import DataLoader as DataLoader
from headrace.loader import DataLoaderIterator as DataLoaderIterator
from headrace.loader import load as load
from headrace.ops.schedule import WeightSchedule as WeightSchedule
from headrace.options import AUTOTUNE as AUTOTUNE
from headrace.options import DatasetOptions as DatasetOptions
from headrace.options import ErrorPolicy as ErrorPolicy
from headrace.options import MultiprocessingOptions as MultiprocessingOptions
from headrace.options import RayOptions as RayOptions
from headrace.options import ReadOptions as ReadOptions
from headrace.options import config as config
from headrace.records import Record as Record
from headrace.records import RecordMetadata as RecordMetadata

if _TYPE_CHECKING:
    from headrace.checkpoint.elastic import ElasticIterator as ElasticIterator
    from headrace.device.jax import device_put as device_put
    from headrace.device.stopping import in_step as in_step
    from headrace.device.stopping import stop_together as stop_together
    from headrace.diagnosis import diagnose as diagnose
    from headrace.insight.verify import verify as verify
    from headrace.performance import pick_performance_config as pick_performance_config
    from headrace.sources.opening import open as open

__version__ = "0.1.0"
_MODULES = ("audio", "images", "packing", "proto", "text", "video")
_getattr, _dir, _ = _lazy_module(
    __name__,
    {
        "checkpoint.elastic": ("ElasticIterator",),
        "device.stopping": ("in_step", "stop_together"),
        "device.jax": ("device_put",),
        "diagnosis": ("diagnose",),
        "performance": ("pick_performance_config",),
        "sources.opening": ("open",),
        "insight.verify": ("verify",),
    },
)
_sys.modules |= {  # `import headrace.monitoring`
    "headrace.monitoring": monitoring,
    "headrace.proto": _proto,
    "headrace.python.experimental": experimental,
}


def __getattr__(name: str) -> _Any:
    """Imports names on first use, and finds those of `headrace.python`, for code that was written for that."""
    if name in _MODULES:
        return _import_module(f"{__name__}.{name}")
    if name.startswith("__") or not hasattr(python, name):
        return _getattr(name)
    return getattr(python, name)


def __dir__() -> list[str]:
    return sorted({*_dir(), *_MODULES, *dir(python)})
