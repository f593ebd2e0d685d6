"""The names of `grain.python`, from `compat/grain/python.py`."""

from headrace.compat.grain import python as _names
from headrace.compat.grain.python import *

__path__ = []  # so that `headrace.python.experimental` can be imported
__getattr__ = _names.__getattr__
__dir__ = _names.__dir__
