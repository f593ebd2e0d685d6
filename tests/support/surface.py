"""What a package offers to its users, and where another one offers something else.

Compared are the public names of public modules; of functions, classes and methods the parameters: their names, order and
kinds, whether they have a default and which. Ours may have more of everything, as long as it can be left out.
"""

import enum
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any, get_args

_SPECIAL = ("__call__", "__getitem__", "__getitems__", "__iter__", "__len__", "__next__")
_PLAIN = (bool, int, float, str, bytes, type(None), tuple, frozenset)


def public_modules(package: ModuleType) -> list[str]:
    """The names of a package's public modules, within it; also of private ones that have a public name."""
    inside = [name for name in dir(package) if isinstance(getattr(package, name), ModuleType)]
    prefix = f"{package.__name__}."
    inside += [module.name.removeprefix(prefix) for module in pkgutil.walk_packages(package.__path__, prefix)]
    return ["", *sorted({name for name in inside if not any(part.startswith("_") for part in name.split("."))})]


def module_of(package: ModuleType, name: str) -> ModuleType | None:
    """A module by its name within a package, where it is."""
    try:
        return importlib.import_module(f"{package.__name__}.{name}" if name else package.__name__)
    except ModuleNotFoundError:
        return getattr(package, name, None)


class Differences:
    """What of theirs is not the same in ours, in words, by its dotted name.

    What is the same pair of objects under several names, as inherited methods are, is compared once.
    """

    def __init__(self):
        self.found: dict[str, str] = {}
        self._compared: list[tuple[Any, Any]] = []

    def packages(self, theirs: ModuleType, ours: ModuleType) -> dict[str, str]:
        for name in public_modules(theirs):
            mine = module_of(ours, name)
            if mine is None:
                self.found[name] = "is missing"
                continue
            other = module_of(theirs, name)
            for each in _public(other):
                self.names(f"{name}.{each}" if name else each, other, mine, each)
        return self.found

    def names(self, where: str, of_theirs: Any, of_ours: Any, name: str) -> None:
        """Compares what two modules or classes have by a name."""
        if not hasattr(of_ours, name):
            if name not in _fields(of_ours):
                self.found[where] = "is missing"
            return
        theirs, ours = getattr(of_theirs, name), getattr(of_ours, name)
        if any(a is theirs and b is ours for a, b in self._compared):
            return
        self._compared.append((theirs, ours))
        said = self._of(where, theirs, ours)
        if not said and isinstance(theirs, property) and not isinstance(ours, property):
            said = "is no property" if inspect.isroutine(ours) else ""
        if said:
            self.found[where] = said

    def _of(self, where: str, theirs: Any, ours: Any) -> str:
        if isinstance(theirs, ModuleType):
            return "" if isinstance(ours, ModuleType) else f"is a {type(ours).__name__}"
        if isinstance(theirs, type):
            return self._of_class(where, theirs, ours)
        if get_args(theirs):
            return "" if _kinds(theirs) == _kinds(ours) else f"is of {_kinds(ours)}"
        if callable(theirs):
            return _of_call(theirs, ours)
        return f"is {ours!r}, not {theirs!r}" if isinstance(theirs, _PLAIN) and theirs != ours else ""

    def _of_class(self, where: str, theirs: type, ours: Any) -> str:
        if not isinstance(ours, type):
            return "is a function"
        if issubclass(theirs, enum.Enum):
            same = [(m.name, m.value) for m in theirs] == [(m.name, m.value) for m in ours]  # type: ignore[attr-defined]
            return "" if same else "has other members"
        for each in _public(theirs):
            if each != "__call__" or "__call__" in vars(theirs):  # every class can be called
                self.names(f"{where}.{each}", theirs, ours, each)
        return _of_call(theirs, ours)


def _public(thing: Any) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_") or name in _SPECIAL]


def _fields(kind: Any) -> set[str]:
    return {*getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "__annotations__", ())}


def _kinds(alias: Any) -> list[str]:
    """The names of the classes that a type alias is made of."""
    return [name for each in get_args(alias) for name in (_kinds(each) or [each.__name__])]


def _of_call(theirs: Any, ours: Any) -> str:
    if not callable(ours):  # a slot may hold a function
        return "" if inspect.ismemberdescriptor(ours) else f"is a {type(ours).__name__}"
    try:
        wanted = list(inspect.signature(theirs).parameters.values())
        have = list(inspect.signature(ours).parameters.values())
    except (TypeError, ValueError):  # of C, which tells none
        return ""
    if [each.name for each in wanted] == ["args", "kwargs"]:  # of a protocol
        return ""
    return "; ".join(_of_parameters([each for each in wanted if not each.name.startswith("_")], have))


def _of_parameters(wanted: list[inspect.Parameter], have: list[inspect.Parameter]) -> list[str]:
    by_name = {each.name: each for each in have}
    said = [word for each in wanted for word in _of_parameter(each, by_name.pop(each.name, None))]
    needed = [each for each in by_name.values() if each.default is each.empty]
    said += [f"needs {each.name}" for each in needed if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    order = [each.name for each in wanted if each.kind is each.POSITIONAL_OR_KEYWORD]
    placed = [each.name for each in have if each.kind is each.POSITIONAL_OR_KEYWORD]
    if not said and placed[: len(order)] != order:
        said.append(f"takes {', '.join(placed)} in this order")
    return said


def _of_parameter(theirs: inspect.Parameter, ours: inspect.Parameter | None) -> list[str]:
    if ours is None:
        return [f"has no {theirs.name}"]
    if ours.kind is not theirs.kind:
        return [f"{theirs.name} is {ours.kind.description}"]
    if ours.default is ours.empty:
        return [] if theirs.default is theirs.empty else [f"{theirs.name} needs a value"]
    return [] if _same_default(theirs.default, ours.default) else [f"{theirs.name} is {ours.default!r}"]


def _same_default(theirs: Any, ours: Any) -> bool:
    """Whether two defaults are the same, as far as that can be told of objects of different packages."""
    if theirs is inspect.Parameter.empty:
        return False
    if isinstance(theirs, enum.Enum):
        return isinstance(ours, enum.Enum) and theirs.name == ours.name
    return theirs == ours if isinstance(theirs, _PLAIN) else True
