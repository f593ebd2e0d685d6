"""The names of `grain.experimental`, from `compat/grain/experimental.py`."""

from headrace.compat.grain import experimental as _names
from headrace.compat.grain.experimental import *

__getattr__, __dir__ = _names.__getattr__, _names.__dir__
