"""Lets code that says `import grain` get Headrace."""

import importlib
import sys
from types import ModuleType, TracebackType

_SUBMODULES = (
    "checkpoint",
    "constants",
    "experimental",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "transforms",
)


class as_grain:
    """Puts Headrace in the place of `grain` among the imported modules.

    Called as a function, for good; in a `with` statement, until its end, when what was there comes back.

    >>> with as_grain():
    ...     import grain.python
    ...     grain.python.MapDataset.__module__
    'headrace.dataset'
    """

    def __init__(self):
        self._before = {name: module for name, module in sys.modules.items() if _is_grain(name)}
        for name in self._before:
            del sys.modules[name]
        self._headrace = importlib.import_module("headrace")
        sys.modules["grain"] = self._headrace
        for name in _SUBMODULES:
            sys.modules[f"grain.{name}"] = importlib.import_module(f"headrace.{name}")

    def __enter__(self) -> ModuleType:
        return self._headrace

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for name in [name for name in sys.modules if _is_grain(name)]:
            del sys.modules[name]
        sys.modules.update(self._before)


def _is_grain(name: str) -> bool:
    return name == "grain" or name.startswith("grain.")
