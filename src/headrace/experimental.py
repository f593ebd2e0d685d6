"""The names of `grain.experimental`, from `compat/grain/experimental.py`."""

from headrace.compat.grain import experimental as _names
from headrace.compat.grain.experimental import *

__getattr__ = _names.__getattr__


def __dir__() -> list[str]:
    return sorted({*globals(), *(name for name in _names.__dir__() if not name.startswith("_"))})
