"""The reference: every public name has a docstring and an example that runs, and is on a page in docs/reference."""

import doctest
import importlib
import inspect
import re
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.test_names import NAMES

PAGES = Path(__file__).parent.parent / "docs" / "reference"

# Public modules that are not in NAMES. Names that a module defines are public, but for those listed as its own.
OWN = {
    "data": "",
    "device.images": "DecodeImages",
    "device.torch": "CudaDevice OtherDevice ToTorchDevice",
    "diagnosis": "",
    "errors": "Quoted available in_words optional put_together users_frames without_memory_addresses without_secrets",
    "exporters": "Exporter debug_report export_of",
    "iterator": "PipelineIterator",
    "monitoring": "",
    "operations": "batched",
    "options": "check_count check_counts check_seconds num_threads",
    "performance": "",
    "protocols": "ChunkLimits Executor PendingTask PoolLoad TaskPool",
    "records": "",
    "stats": "",
    "testing": "assert_block_law",
}
MORE = {
    "device": "device_put in_step",
    "packing": """BOSHandling BestFitPackIterDataset ConcatThenSplitIterDataset FirstFitPackIterDataset
        PackAndBatchOperation Padding PaddingReport padding_report""",
    "sources.verification": "Damage Part Verification",
}

# Grain's other namespaces: a name may say which one to use instead of having an example.
OF_GRAIN = ("constants", "experimental", "monitoring", "operations", "python")

# Classes whose every public method has an example.
WITH_METHODS = (
    "headrace.MapDataset",
    "headrace.IterDataset",
    "headrace.DatasetIterator",
    "headrace.DataLoader",
    "headrace.DataLoaderIterator",
    "headrace.iterator.StreamIterator",
    "headrace.stats.Stats",
)
INTERNAL = ("headrace.stats.Stats.between", "headrace.stats.Stats.of")
SPECIAL = ("__getitem__", "__iter__", "__len__", "__next__")


def _module(name: str) -> types.ModuleType:
    return importlib.import_module(f"headrace.{name}" if name else "headrace")


def _defined(name: str) -> list[str]:
    """The public classes and functions that a module defines."""
    module, own = _module(name), OWN[name].split()
    return [
        each
        for each, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
        if not each.startswith("_") and each not in own
    ]


@cache
def public() -> dict[str, Any]:
    """What every public name stands for, by its dotted name."""
    found = {}
    names = {name: several.split() for name, several in {**NAMES, **MORE}.items()}
    for name in OWN:
        names[name] = sorted({*names.get(name, ()), *_defined(name)})
    for name, several in names.items():
        for each in several:
            value = getattr(_module(name), each)
            if not isinstance(value, types.ModuleType):
                found[".".join(filter(None, ("headrace", name, each)))] = value
    return found


def is_documented(value: Any) -> bool:
    """Whether it has a docstring of its own: a class or a function, not a constant or a union of types."""
    return inspect.isclass(value) or inspect.isfunction(value)


def of_grain(name: str) -> bool:
    return name.startswith(tuple(f"headrace.{each}." for each in OF_GRAIN))


def methods(name: str) -> list[str]:
    """The public methods and properties of a class that this package defines."""
    kind = resolve(name)
    found = []
    for each in dir(kind):
        value = inspect.getattr_static(kind, each)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if not inspect.isfunction(value) and not isinstance(value, property):
            continue
        if f"{name}.{each}" not in INTERNAL and (not each.startswith("_") or (each in SPECIAL and value.__doc__)):
            found.append(each)
    return found


def resolve(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise ModuleNotFoundError(name)


@cache
def examples_of(module: str) -> set[str]:
    """The qualified names in a module whose docstrings have examples that pytest runs."""
    tests = doctest.DocTestFinder(exclude_empty=True).find(sys.modules[module], module)
    return {test.name.removeprefix(f"{module}.") for test in tests if test.examples}


def has_example(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return value.__qualname__ in examples_of(value.__module__)


def inherited_example(kind: type, method: str) -> bool:
    """Whether a method, or the one whose docstring it has, has an example."""
    for each in kind.__mro__:
        if method in vars(each) and getattr(vars(each)[method], "__doc__", None):
            return has_example(vars(each)[method])
    return False


@pytest.mark.parametrize("name", [name for name, value in public().items() if is_documented(value)])
def test_every_public_name_has_a_docstring_and_an_example(name):
    value = public()[name]
    first = (value.__doc__ or "").partition("\n")[0].strip()
    assert first, f"{name} has no docstring"
    assert first.endswith("."), f"the first line of {name} is not a sentence: {first!r}"
    instead = of_grain(name) and first.startswith("`")
    assert has_example(value) or instead, f"{name} ({value.__module__}) has no example that runs"


@pytest.mark.parametrize("name", [f"{kind}.{each}" for kind in WITH_METHODS for each in methods(kind)])
def test_every_method_of_the_main_classes_has_an_example(name):
    kind, _, method = name.rpartition(".")
    assert inherited_example(resolve(kind), method), f"{name} has no example that runs"


# ------------------------------------------------------------------------------------------------------ pages

DIRECTIVE = re.compile(r"^( *)\.\. auto(?:class|data|exception|function|method|property)?:: +([\w.]+)", re.M)


@cache
def documented() -> dict[str, str]:
    """What the pages have directives for, with the page; those within a class come by their full name."""
    found = {}
    for page in sorted(PAGES.glob("*.md")):
        outer = ""
        for indent, name in DIRECTIVE.findall(page.read_text()):
            if indent:
                name = f"{outer}.{name}"
            else:
                outer = name
            assert name not in found, f"{name} is on {found[name]} and on {page.name}"
            found[name] = page.name
    return found


@cache
def mentioned() -> set[str]:
    """The dotted names that the pages mention as code."""
    return {name for page in PAGES.glob("*.md") for name in re.findall(r"`(headrace[\w.]+)`", page.read_text())}


@pytest.mark.parametrize("name", list(public()))
def test_every_public_name_is_on_a_page(name):
    assert name in documented() or name in mentioned(), f"{name} is on no page of docs/reference"
    same = [each for each in documented() if resolve(each) is public()[name]]
    assert same or of_grain(name), f"no page of docs/reference has the docstring of {name}"


@pytest.mark.parametrize("kind", WITH_METHODS)
def test_every_method_of_the_main_classes_is_on_a_page(kind):
    page = (PAGES / documented()[kind]).read_text()
    options = page.partition(f"autoclass:: {kind}\n")[2].partition("\n\n")[0]
    if ":members:" in options and ":inherited-members:" in options:
        return
    assert [each for each in methods(kind) if f"{kind}.{each}" not in documented()] == []


def test_the_pages_name_only_what_there_is():
    for name in {*documented(), *mentioned()}:
        assert resolve(name) is not None


def test_every_page_is_in_the_table_of_contents():
    index = (PAGES / "index.md").read_text()
    for page in PAGES.glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.M), page.name
