"""The reference: every public name has a docstring and an example that runs, and is on a page in docs/reference."""

import ast
import doctest
import importlib
import inspect
import re
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from tests.test_names import NAMES

PAGES = Path(__file__).parent.parent / "docs" / "reference"

# Public modules that are not in NAMES. Names that a module defines are public, but for those listed as its own.
OWN = {
    "data": "",
    "device.torch": "CudaDevice OtherDevice ToTorchDevice",
    "diagnosis": "",
    "errors": "Quoted available translate_full_disk format_error install_command interrupt_traceback optional rebuild_error hide_internal_frames user_traceback without_memory_addresses without_secrets",
    "exporters": "Exporter debug_report export_of",
    "iterator": "NoStats PipelineIterator",
    "monitoring": "",
    "operations": "batched",
    "options": "Config check_count check_counts check_seconds num_threads",
    "performance": "",
    "protocols": "ChunkLimits Executor PendingTask PoolLoad TaskPool",
    "records": "",
    "stats": "",
    "testing": "assert_block_law",
}
MORE = {
    "device": "device_put",
    "packing": """BOSHandling BestFitPackIterDataset ConcatThenSplitIterDataset FirstFitPackIterDataset
        PackAndBatchOperation Padding PaddingReport padding_report""",
    "insight.verify": "Damage Part Verification",
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


@pytest.fixture(autouse=True, scope="module")
def _libraries():
    for library in ("jax", "orbax.checkpoint", "torch"):  # some public names need these to be imported
        pytest.importorskip(library)


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


def first_line(value: Any) -> str:
    return (value.__doc__ or "").partition("\n")[0].strip()


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


def test_every_public_name_has_a_docstring():
    firsts = {name: first_line(value) for name, value in public().items() if is_documented(value)}
    assert [name for name, first in firsts.items() if not first] == []
    assert [first for first in firsts.values() if not first.endswith(".")] == []


def test_every_public_name_has_an_example_that_runs():
    missing = {
        f"{name} ({value.__module__})"
        for name, value in public().items()
        if is_documented(value) and not has_example(value)
        if not (of_grain(name) and first_line(value).startswith("`"))  # which says what to use instead
    }
    assert missing == set()


@pytest.mark.parametrize("kind", WITH_METHODS)
def test_every_method_of_the_main_classes_has_an_example(kind):
    assert [name for name in methods(kind) if not inherited_example(resolve(kind), name)] == []


def test_lines_on_grain_are_sentences():
    lines = [
        re.sub(r"\s+", " ", line)
        for value in public().values()
        if is_documented(value)
        for line in re.findall(r"Differs from Grain:.*?(?=\n\s*\n|\Z)", inspect.getdoc(value) or "", re.S)
    ]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"Differs from Grain: [^ ].*\.", line)] == []


# ------------------------------------------------------------------------------------------------------ pages

DIRECTIVE = re.compile(r"^( *)\.\. auto(?:class|data|exception|function|method|property):: +([\w.]+)(.*)", re.M)


@cache
def directives() -> list[tuple[str, str, str]]:
    """Page, name and signature, if it is written there; names within a class are full ones."""
    found = []
    for page in sorted(PAGES.glob("*.md")):
        outer = ""
        for indent, name, signature in DIRECTIVE.findall(page.read_text()):
            outer = outer if indent else name
            found.append((page.name, f"{outer}.{name}" if indent else name, signature))
    return found


def documented() -> dict[str, str]:
    """What the pages have directives for, with the page."""
    return {name: page for page, name, _ in directives()}


@cache
def mentioned() -> set[str]:
    """The dotted names that the pages mention as code, and those of tables in sections on a module."""
    texts = [page.read_text() for page in PAGES.glob("*.md")]
    found = {name for text in texts for name in re.findall(r"`(headrace[\w.]+)`", text)}
    for section in "".join(texts).split("\n## ")[1:]:
        if module := re.match(r"`(headrace[\w.]+)`", section):
            found |= {f"{module[1]}.{name}" for name in re.findall(r"^\| `(\w+)` \|", section, re.M)}
    return found


def test_every_public_name_is_on_a_page():
    assert public().keys() - documented() - mentioned() == set()


def test_every_docstring_is_on_a_page():
    shown = {id(resolve(name)) for name in documented()}
    assert [name for name, value in public().items() if id(value) not in shown and not of_grain(name)] == []


@pytest.mark.parametrize("kind", WITH_METHODS)
def test_every_method_of_the_main_classes_is_on_a_page(kind):
    page = (PAGES / documented()[kind]).read_text()
    options = re.split(rf"autoclass:: {re.escape(kind)}(?:\(.*)?\n", page)[1].partition("\n\n")[0]
    if ":members:" in options and ":inherited-members:" in options:
        return
    assert [each for each in methods(kind) if f"{kind}.{each}" not in documented()] == []


def test_no_name_is_on_two_pages():
    names = [name for _, name, _ in directives()]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize(
    ("name", "written"), [(name, text) for _, name, text in directives() if text not in ("", "()")]
)
def test_signatures_on_pages_are_those_of_the_code(name, written):
    """Where the page has one, since that of the code says less; `()` is for what users do not make themselves."""
    (function,) = ast.parse(f"def f{written}: ...").body
    assert isinstance(function, ast.FunctionDef)
    parameters = inspect.signature(resolve(name)).parameters
    if any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):  # of a transform, of a function or none
        return
    assert [each.arg for each in [*function.args.args, *function.args.kwonlyargs]] == [
        each for each in parameters if each != "self"
    ]
    defaults = function.args.defaults + [each for each in function.args.kw_defaults if each is not None]
    meant = [each.default for each in parameters.values() if each.default is not each.empty]
    if resolve(name) is headrace.DatasetOptions:
        meant = [getattr(headrace.DatasetOptions(), each) for each in parameters]
    for shown, default in zip(defaults, meant, strict=True):
        assert eval(ast.unparse(shown), {**vars(headrace), **vars(headrace.options), "np": np}) == default


def test_the_pages_name_only_what_there_is():
    for name in {*documented(), *mentioned()}:
        assert resolve(name) is not None


def test_every_page_is_in_the_table_of_contents():
    index = (PAGES / "index.md").read_text()
    for page in PAGES.glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.M), page.name
