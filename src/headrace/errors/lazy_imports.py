"""Names of a module that are imported on first use."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors.suggestions import closest, no_attribute


def lazy_module(
    module: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], dict[str, str]]:
    """A module's `__getattr__` and `__dir__`, and the home of each name; `names` has modules of Headrace as keys."""
    module_of = {name: home for home, several in names.items() for name in several}

    def getattr_(name: str) -> Any:
        if name in module_of:
            return getattr(importlib.import_module(f"headrace.{module_of[name]}"), name)
        raise no_attribute(f"module {module!r}", name, closest(name, dir_()))

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[module]), *module_of})

    return getattr_, dir_, module_of
