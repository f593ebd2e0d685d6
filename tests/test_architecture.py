"""The architecture page and the rooms' READMEs say what is there, and imports between rooms go one way."""

import ast
import itertools
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import headrace
from headrace import MapDataset

INSTALLED = f"{Path(headrace.__file__).parent}/"
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headrace"
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
PICTURE = ROOT / "docs" / "_static" / "rooms.svg"
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
LAYERS = [layer.split(" : ") for layer in CONTRACT["layers"]]
ROOMS = {path.stem for path in PACKAGE.glob("[!_]*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
READMES = sorted(PACKAGE.rglob("README.md"))
NAMES_OF_GRAIN = {"__init__.py", "experimental.py", "packing.py", "python.py"}  # they only pass names on


def spans(text):
    """All that is written as code in a line."""
    return re.findall(r"`([^`]+)`", text)


def section(text, title):
    """The text under a heading, up to the next one."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(text):
    """The cells of all tables, without their headings."""
    tables = re.findall(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()]


# ------------------------------------------------------------------------------------------------- rooms, by name


def test_the_page_names_every_room_once():
    named = [name for _, answer in rows(section(PAGE, "Where a line of code belongs")) for name in spans(answer)]
    assert sorted(named) == sorted(ROOMS)


def test_a_layer_is_a_folder_or_a_file_at_depth_one():
    assert sorted(itertools.chain(*LAYERS)) == sorted({*ROOMS, "__main__"})


def test_the_picture_shows_the_layers_of_the_contract():
    svg = "{http://www.w3.org/2000/svg}"
    layers = [layer for layer in ElementTree.parse(PICTURE).iter(f"{svg}g") if layer.get("class") == "layer"]
    texts = [[each.text for each in layer.iter(f"{svg}text") if each.get("class") == "rooms"] for layer in layers]
    assert [" · ".join(lines).split(" · ") for lines in texts] == LAYERS


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_a_readme_names_every_file_of_its_room(path):
    room = path.parent
    elsewhere = [other.parent for other in READMES if room in other.parent.parents]
    files = {
        str(file.relative_to(room))
        for file in room.rglob("*.py")
        if file.name != "__init__.py" and not any(other in file.parents for other in elsewhere)
    }
    named = [name for line in section(path.read_text(), "Files").splitlines() for name in spans(line)]
    named = [name for name in named if name.endswith(".py") and not name.endswith("__init__.py")]
    assert sorted(named) == sorted(files)


PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "explanation").glob("*.md")), *READMES]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_that_pages_for_contributors_name_are_there(path):
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = [name for name in spans(text) if re.fullmatch(r"[\w./-]+(/|\.(py|pyi|md|toml))", name)]
    own = {"NAME.py", "sources/NAME.py"}  # stands for a file that the reader adds
    places = (ROOT, PACKAGE, path.parent)
    assert not [name for name in named if name not in own and not any((place / name).exists() for place in places)]


# ------------------------------------------------------------------------------------------------- the way of a batch


class Trace:
    """All calls of functions of the package, in order."""

    def __init__(self):
        self.calls = []

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(INSTALLED):
            self.calls.append((code.co_filename.removeprefix(INSTALLED), code.co_qualname))

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(self.before)


def steps(number):
    """The files and functions of one of the page's tables, and whether a worker computes them."""
    table = re.findall(r"(?:^\|.*\n)+", section(PAGE, "The way of a batch"), re.MULTILINE)[number]
    return [(*spans(file), *spans(function), "(worker)" in file) for file, function, _ in rows(table)]


def assert_in_order(steps, calls):
    """Each step of a table is a call that comes after that of the step before it."""
    calls = iter(calls)
    for step in steps:
        assert step in calls, f"{step} is not called after the steps before it"


def pipeline():
    numbers = MapDataset.range(100).shuffle(seed=1).map(lambda x: x + 1).to_iter_dataset()
    return numbers.filter(lambda x: x % 3).batch(4)


def test_a_batch_goes_the_way_that_the_page_shows():
    ds = pipeline()
    with Trace() as trace, iter(ds) as iterator:
        next(iterator)
    assert_in_order([(file, function) for file, function, _ in steps(0)], trace.calls)


def test_a_batch_goes_through_workers_as_the_page_shows(tmp_path):
    package, folder = INSTALLED, tmp_path  # names that the function takes along

    def record(index, count):
        def profile(frame, event, arg):
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(package):
                with open(f"{folder}/{index}", "a") as file:
                    file.write(f"{code.co_filename.removeprefix(package)} {code.co_qualname}\n")

        sys.setprofile(profile)

    ds = pipeline().mp_prefetch(2, worker_init_fn=record)
    with Trace() as trace, iter(ds) as iterator:
        next(iterator)
    assert_in_order([(file, function) for file, function, in_worker in steps(1) if not in_worker], trace.calls)
    in_worker = [(file, function) for file, function, in_worker in steps(1) if in_worker]
    assert_in_order(in_worker, [tuple(line.split(" ", 1)) for line in (tmp_path / "0").read_text().splitlines()])


def test_a_state_goes_the_way_that_the_page_shows():
    ds = pipeline()
    with iter(ds) as first, iter(ds) as second:
        next(first)
        with Trace() as trace:
            second.set_state(first.get_state())
    assert_in_order([(file, function) for file, function, _ in steps(2)], trace.calls)


# ------------------------------------------------------------------------------------------------- imports


def statements(node):
    """All nodes of a tree, those in functions too, but not what only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *statements(other))
        else:
            yield child
            yield from statements(child)


def imports_of(node):
    """The modules that a statement imports, even if by name on first use."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if not isinstance(node, ast.Call) or not node.args:
        return []
    function = ast.unparse(node.func)
    if function.endswith("import_module") and isinstance(node.args[0], ast.Constant):
        return [node.args[0].value]
    if function == "lazy_module" and isinstance(node.args[1], ast.Dict):
        return [f"headrace.{key.value}" for key in node.args[1].keys]
    return []


def imports():
    """Each import within the package: the file, its room, the module, and that one's room."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE)
        room = file.parts[0].removesuffix(".py")
        for node in statements(ast.parse(path.read_text())):
            for module in imports_of(node):
                parts = module.split(".")
                if parts[0] == "headrace":
                    imported = parts[1] if len(parts) > 1 and parts[1] in ROOMS else "__init__"
                    yield str(file), room, module, imported


IMPORTS = list(imports())


def test_no_two_rooms_import_each_other():
    graph = defaultdict(set)
    for _, room, _, imported in IMPORTS:
        if "__init__" not in (room, imported) and room != imported:
            graph[room].add(imported)
    assert len(graph["engine"]) > 5
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        circle = list(itertools.pairwise(e.args[1]))
        pytest.fail("\n".join(f"{file} imports {m}" for file, a, m, b in IMPORTS if (b, a) in circle))


def test_no_room_imports_from_a_layer_above_even_in_functions():
    layer_of = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    assert not [
        f"{file} imports {module}"
        for file, room, module, imported in IMPORTS
        if "__init__" not in (room, imported) and layer_of.get(room, 0) > layer_of[imported]
    ]


def test_only_the_command_line_imports_the_whole_package():
    assert {room for _, room, _, imported in IMPORTS if imported == "__init__"} <= {"__init__", "__main__", "cli"}


def test_nothing_but_names_comes_from_compat():
    found = {file for file, room, _, imported in IMPORTS if imported == "compat" and room != "compat"}
    assert found <= NAMES_OF_GRAIN
    for file in NAMES_OF_GRAIN - {"__init__.py"}:
        tree = ast.parse((PACKAGE / file).read_text())
        logic = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.For | ast.While)]
        assert [node.name for node in logic if node.name != "__dir__"] == [], f"{file} only passes names on"
