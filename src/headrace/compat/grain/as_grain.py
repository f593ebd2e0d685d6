"""Makes `import grain` import Headrace."""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

from headrace.compat.grain import hooks
from headrace.engine.workers.imports import module_of

ALIAS = "grain"
PACKAGE = "headrace"
PRIVATE = "grain._src"  # `private_modules.py` makes its modules


class as_grain:
    """Puts Headrace in the place of `grain` and all its modules.

    Called as a function, for good; in a `with` statement, until its end. Worker processes import the modules that the
    main process imported this way in the same way.

    >>> with as_grain():
    ...     import grain.python
    ...     grain.python.MapDataset.__module__
    'headrace.dataset'
    """

    def __init__(self):
        self._finder = _Finder()
        self._hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_alias(name)}
        self._known = set(sys.modules)
        sys.meta_path.insert(0, self._finder)
        importlib.import_module(ALIAS)  # Keras checks whether it is imported
        hooks.install(_for_workers)

    def __enter__(self) -> ModuleType:
        return importlib.import_module(PACKAGE)

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        _imported_so.update(name for name in sys.modules if name not in self._known and _is_user(sys.modules[name]))
        sys.meta_path.remove(self._finder)
        for name in [name for name in sys.modules if _is_alias(name)]:
            del sys.modules[name]
        vars(sys.modules[PACKAGE]).pop("_src", None)
        sys.modules.update(self._hidden)
        hooks.remove()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `headrace.x` for `grain.x`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if _is_alias(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if f"{spec.name}.".startswith(f"{PRIVATE}."):
            private = importlib.import_module("headrace.compat.grain.private_modules")
            module = private.module(spec.name[len(PRIVATE) + 1 :])
        else:
            module = _public(spec.name.removeprefix(ALIAS))
        if not isinstance(module, ModuleType):
            raise ModuleNotFoundError(
                f"No module named {spec.name!r}: `grain` is an alias of Headrace here.", name=spec.name
            )
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if self._own_spec is not None:  # the import system has replaced it
            module.__spec__ = self._own_spec


def _public(name: str) -> Any:
    parent, _, last = name.rpartition(".")
    for package in (PACKAGE, f"{PACKAGE}.compat.grain"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(package + name)
    return getattr(sys.modules.get(PACKAGE + parent), last, None)


def _is_alias(name: str) -> bool:
    return name == ALIAS or name.startswith(f"{ALIAS}.")


def _is_user(module: ModuleType) -> bool:
    """Whether a module outside Headrace uses it."""
    if module.__name__.startswith(PACKAGE):
        return False
    return any(
        module_of(value).startswith((PACKAGE, PRIVATE)) for value in list(getattr(module, "__dict__", {}).values())
    )


# ------------------------------------------------------------------------------------------- for worker processes

_imported_so: set[str] = set()  # modules that were imported while Headrace was `grain`


def _for_workers() -> Callable[[], None] | None:
    """What makes Headrace `grain` in a worker too, where it is or was here."""
    always = any(isinstance(finder, _Finder) for finder in sys.meta_path)
    modules = sorted(_imported_so)
    return partial(enforce, always, modules) if always or modules else None


def enforce(always: bool, modules: list[str]) -> None:
    """Makes Headrace `grain` in this process as in another one."""
    if always:
        as_grain()
    elif modules:
        with as_grain():
            for name in modules:
                try:
                    importlib.import_module(name)
                except ImportError:  # only the other process can import it, such as its main module
                    continue
