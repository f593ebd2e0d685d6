"""Which of the main script's imports a worker repeats, so that it has what those modules register on import.

A worker does not run the main script. When it starts, it imports the user's own modules that the script imports. It
imports those that need a framework, and third-party modules, only after a lookup in a function fails: they may take
seconds and much memory, and few pipelines need them.
"""

import ast
import functools
import importlib
import importlib.util
import sys
import sysconfig
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, ParamSpec, TypeVar

from headrace.errors.signals import let_through
from headrace.errors.suggestions import keys_instead

P = ParamSpec("P")
T = TypeVar("T")
FRAMEWORKS = {"flax", "jax", "keras", "lightning", "tensorflow", "torch", "torchvision", "transformers"}
_STANDARD = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


class Imports(NamedTuple):
    """The main script's imports: those for a worker's start, and those for after a failed lookup."""

    at_start: list[str]
    when_missed: list[str]


# ---- in the consumer

SetUp = Callable[[], object]
set_ups: list[Callable[[], SetUp | None]] = []
"""Functions of this process that return what a new worker calls first, if anything."""


def worker_set_ups() -> list[SetUp]:
    """What a worker that starts now calls first."""
    return [call for find in set_ups if (call := find()) is not None]


def main_script_imports() -> Imports:
    """What this process's main script has imported, in the order of its lines."""
    main = sys.modules.get("__main__")
    imports = Imports([], [])
    if main is None:
        return imports
    bound = (value.__name__ for value in list(vars(main).values()) if isinstance(value, ModuleType))
    named = _named_in_source(getattr(main, "__file__", None), getattr(main, "__package__", None) or None)
    for name in dict.fromkeys([*named, *bound]):
        module = sys.modules.get(name)
        if module is None or name == "__main__" or _top(name) in FRAMEWORKS | {"headrace"} or _is_standard(module):
            continue
        is_light = _is_own(module) and not _needs_framework(module, set())
        (imports.at_start if is_light else imports.when_missed).append(name)
    return imports


@functools.cache
def _named_in_source(file: str | None, package: str | None) -> list[str]:
    """The modules named by a script's import statements outside of functions."""
    try:
        with tokenize.open(str(file)) as f:
            return list(_named(ast.parse(f.read()), package))
    except Exception as e:  # a notebook has no file, and a file may be gone
        let_through(e)
        return []


def _named(node: ast.AST, package: str | None) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        name = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        yield name
        yield from (f"{name}.{alias.name}" for alias in node.names)  # some are modules
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _named(child, package)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _is_standard(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or (file.startswith(_STANDARD) and not _is_installed(file))


def _is_own(module: ModuleType) -> bool:
    is_ours = _top(module.__name__) == "headrace"  # which may be in a folder like a user's
    return not is_ours and not _is_standard(module) and not _is_installed(str(module.__file__))


def _needs_framework(module: ModuleType, seen: set[str]) -> bool:
    """Whether a user's module, or another user's module that it imports, uses something from a framework."""
    seen.add(module.__name__)
    named = {module_of(value) for value in list(vars(module).values())} - seen
    if not FRAMEWORKS.isdisjoint(map(_top, named)):
        return True
    others = [sys.modules[name] for name in named if name in sys.modules]
    return any(_needs_framework(other, seen) for other in others if other.__name__ not in seen and _is_own(other))


def module_of(value: object) -> str:
    """The name of the module that a value is or comes from."""
    if isinstance(value, ModuleType):
        return value.__name__
    try:
        home = getattr(value, "__module__", None)
    except Exception as e:  # from a `__getattr__`
        let_through(e)
        return ""
    return home if isinstance(home, str) else ""


# ---- in a worker


class DeferredImports:
    """The main script's imports that this worker has not imported yet."""

    def __init__(self, imports: Imports):
        self._left = imports.when_missed
        self._failed: dict[str, BaseException] = {}
        self._import(imports.at_start)

    def _import(self, names: list[str]) -> None:
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as e:  # the pipeline may not need it
                self._failed[name] = e

    def may_be_cause_of(self, error: Exception) -> bool:
        """Whether an error may be gone once the rest is imported."""
        return bool(self._left) and isinstance(error, LookupError)

    def retry(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, called again with the rest imported if a lookup fails."""

        def called(*args: P.args, **named: P.kwargs) -> T:
            try:
                return function(*args, **named)
            except LookupError:
                if not self._left:
                    raise
            names = self._left
            self._left = []
            self._import(names)
            return function(*args, **named)

        return called

    def explain(self, error: BaseException) -> None:
        """Adds notes to a `KeyError` about what a worker may lack, unless a value of the user's function lacks it."""
        if isinstance(error, KeyError) and keys_instead(error) is None:
            error.add_note(
                "in a worker process, which does not run the main script, so anything that the script itself "
                "registers is missing. Register it in a module that the script imports, or in `worker_init_fn`."
            )
            for name, reason in self._failed.items():
                error.add_note(f"The worker could not import `{name}`: {type(reason).__name__}: {reason}")
