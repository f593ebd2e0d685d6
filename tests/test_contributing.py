"""What CONTRIBUTING.md shows is true: its recipes run as they stand, and its diagrams have the values that come out."""

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset
from tests.sources import test_contract as contract
from tests.sources.intact import Form

DOCUMENT = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^### (\d\. [^\n]*)\n(.*?)(?=^##)", DOCUMENT, re.DOTALL | re.MULTILINE))


def code_of(recipe):
    """The files of a recipe by name, and the code that uses them."""
    blocks = re.findall(r"^```python\n(.*?)^```", RECIPES[recipe], re.DOTALL | re.MULTILINE)
    named = {match[1]: block for block in blocks if (match := re.match(r"# (\w+\.py)\n", block))}
    return named, [block for block in blocks if block not in named.values()]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that programs run in and import from; what they import is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and Path(sys.modules[name].__file__).parent == tmp_path:
            del sys.modules[name]


def write_files(recipe, folder):
    files, uses = code_of(recipe)
    for name, code in files.items():
        (folder / name).write_text(code)
    return uses


def test_there_are_five_recipes_with_a_file_and_code_that_uses_it():
    assert [recipe[0] for recipe in RECIPES] == list("12345")
    for recipe in RECIPES:
        files, uses = code_of(recipe)
        assert len(files) == 1
        assert "assert" in "".join(uses)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_as_it_stands(recipe, folder):
    namespace = {"__name__": "recipe"}
    for use in write_files(recipe, folder):
        exec(compile(use, "CONTRIBUTING.md", "exec"), namespace)


CLAIMS = [
    claim
    for name, claim in vars(contract).items()
    if name.startswith("test_") and {*inspect.signature(claim).parameters} <= {"form", "source", "path", "tmp_path"}
    if contract.of_many.mark not in claim.pytestmark
]


def write_vectors(path):
    np.arange(400, dtype="<f4").tofile(path)


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_source_of_a_recipe_keeps_the_contract_of_all_sources(claim, folder):
    (recipe,) = (recipe for recipe in RECIPES if "source format" in recipe)
    write_files(recipe, folder)
    opened = importlib.import_module("vectors").VectorDataSource
    elements = [{"x": x} for x in np.arange(400, dtype=np.float32).reshape(100, 4)]
    form = Form(write_vectors, lambda path: opened(path, width=4), "a.vectors", elements=lambda: elements)
    path = folder / "data" / form.name
    path.parent.mkdir()
    form.write(path)
    given = {"form": form, "source": form.open(path), "path": path, "tmp_path": folder}
    claim(**{name: given[name] for name in inspect.signature(claim).parameters})


def diagram(title):
    """The lines of a diagram."""
    found = re.search(rf"^### {title}.*?^```\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].splitlines()


def position_of(iterator):
    return iterator._walk.position()


def test_the_diagram_of_packing_has_the_rows_and_positions_that_come_out():
    sequences = [{"tokens": np.full(n, ord(letter))} for letter, n in zip("abcd", (5, 4, 3, 6), strict=True)]
    stream = MapDataset.source(sequences).to_iter_dataset()
    shown = {line[:20].strip(): re.split(r" {3,}", line[20:].strip()) for line in diagram("A packing group")}
    assert shown["sequences"] == [f"{i}: {' '.join(map(chr, s['tokens']))}" for i, s in enumerate(sequences)]
    options = re.search(r"`pack\((.*?), strategy=\"first_fit\", num_packing_bins=2, shuffle_bins=False\)`", DOCUMENT)
    assert options is not None
    lengths = ast.literal_eval(options[1])
    with iter(stream.pack(lengths, strategy="first_fit", num_packing_bins=2, shuffle_bins=False)) as rows:
        for i, row in enumerate(rows):
            assert shown["tokens"][i] == " ".join(chr(token) if token else "." for token in row["tokens"])
            for name in ("tokens_segment_ids", "tokens_positions"):
                assert shown[name][i] == " ".join(map(str, row[name]))
            assert shown["position after it"][i] == str(position_of(rows))
    assert i == 2
    with iter(stream.pack(lengths, strategy="concat_split")) as rows:
        next(rows)
        assert f"`{position_of(rows)}` after row 0" in DOCUMENT


def test_the_diagram_of_an_interleave_has_the_positions_that_come_out():
    parts = [
        MapDataset.source([f"{name}{i}" for i in range(n)]).to_iter_dataset()
        for name, n in (("a", 4), ("b", 1), ("c", 2))
    ]
    found = []
    with iter(IterDataset.interleave(parts, cycle_length=2)) as elements:
        found.append(("start", position_of(elements)))
        found += [(element, position_of(elements)) for element in elements]
    lines = [re.match(r"(\w+) +(\(.*\))", line) for line in diagram("The position of an interleave")]
    assert [(line[1], ast.literal_eval(line[2])) for line in lines] == found
