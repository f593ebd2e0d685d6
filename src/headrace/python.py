"""The names of `grain.python`, from `compat/grain/python.py`."""

from headrace.compat.grain import python as _names
from headrace.compat.grain.python import *

__getattr__, __dir__ = _names.__getattr__, _names.__dir__
