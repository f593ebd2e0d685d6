"""The recipes in the rooms' READMEs run as they stand, and their diagrams show the values that come out."""

import ast
import importlib
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import ClosedError, StateError
from headrace.ops.order import IndexOp, by_epoch
from headrace.testing import assert_block_law, assert_resumable
from tests.sources import test_contract as contract
from tests.sources.intact import Form

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "headrace"
RECIPES = {
    "an element operation": "ops",
    "a reordering operation": "ops",
    "a source format": "sources",
    "a statistic": "stats",
    "a worker pool": "engine/workers",
}
DIAGRAMS = (PACKAGE / "ops" / "README.md").read_text()


def section(text, title):
    """What is under a heading, up to the next one of the same level or above."""
    found = re.search(rf"^(##+) {title}\n(.*?)(?=^\1 |^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[2]


def code_of(recipe):
    """The files of a recipe by name, and the code that uses them."""
    text = section((PACKAGE / RECIPES[recipe] / "README.md").read_text(), f"Recipe: {recipe}")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
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


def titles(text):
    return re.findall(r"^## Recipe: (.*)$", text, re.MULTILINE)


def test_every_recipe_has_a_file_and_code_that_uses_it():
    texts = {path.parent: path.read_text() for path in PACKAGE.rglob("README.md")}
    found = {(recipe, str(room.relative_to(PACKAGE))) for room in texts for recipe in titles(texts[room])}
    assert found == set(RECIPES.items())
    for recipe in RECIPES:
        files, uses = code_of(recipe)
        assert len(files) == 1
        assert "assert" in "".join(uses)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs_as_it_stands(recipe, folder):
    namespace = {"__name__": "recipe"}
    for use in write_files(recipe, folder):
        exec(compile(use, f"recipe of {recipe}", "exec"), namespace)


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
    write_files("a source format", folder)
    opened = importlib.import_module("vectors").VectorDataSource
    elements = [{"x": x} for x in np.arange(400, dtype=np.float32).reshape(100, 4)]
    form = Form(write_vectors, lambda path: opened(path, width=4), "a.vectors", elements=lambda: elements)
    path = folder / "data" / form.name
    path.parent.mkdir()
    form.write(path)
    given = {"form": form, "source": form.open(path), "path": path, "tmp_path": folder}
    claim(**{name: given[name] for name in inspect.signature(claim).parameters})


@dataclass(frozen=True, eq=False, repr=False)
class Rotate(IndexOp):
    """Elements from number `by` on, and then those before it."""

    name = "rotate"
    order_params = ("by",)
    by: int

    def indices(self, idx):
        return by_epoch(idx, self.length(), lambda within, epoch: (within + self.by) % self.length())


def test_an_index_operation_needs_indices_and_order_params_alone():
    def rotated(by):
        numbers = MapDataset.range(10)
        return numbers._then(Rotate(numbers._op, by))

    ds = rotated(3)
    assert list(ds) == [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert_block_law(ds.batch(4))
    assert_resumable(ds.to_iter_dataset())
    assert list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == list(ds)
    with iter(ds) as iterator, iter(rotated(4)) as other:
        next(iterator)
        with pytest.raises(StateError, match="by"):
            other.set_state(iterator.get_state())


class Columns:
    """A source that notes which of its methods is called, with which indices."""

    def __init__(self, length):
        self._length, self.calls = length, []

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        self.calls.append(("__getitem__", index))
        return np.int64(index)

    def __getitems__(self, indices):
        self.calls.append(("__getitems__", indices))
        return [np.int64(index) for index in indices]

    def __getcolumns__(self, indices):
        assert indices.dtype == np.int64
        assert indices.min() >= 0
        assert indices.max() < self._length
        self.calls.append(("__getcolumns__", indices.tolist()))
        return indices.copy()


def test_one_call_for_columns_is_one_batch():
    source = Columns(20)
    ds = MapDataset.source(source).shuffle(seed=1).repeat(2).batch(5)
    batches = [ds[i] for i in range(len(ds))]
    assert source.calls == [("__getcolumns__", batch.tolist()) for batch in batches]


@pytest.mark.parametrize(
    "arrange",
    [
        lambda parts: parts[0].window_shuffle(8, seed=1),
        IterDataset.mix,
        lambda parts: IterDataset.interleave(parts, cycle_length=2),
    ],
)
def test_streams_move_columns(arrange):
    source, given = Columns(40), []

    def doubled(columns):
        given.append(columns)
        return 2 * columns

    def batches(ds):
        parts = [ds[start:].to_iter_dataset() for start in range(2)]
        return [batch.tolist() for batch in arrange(parts).map(doubled, batched=True).batch(4)]

    assert batches(MapDataset.source(source)) == batches(MapDataset.range(40))
    assert {name for name, _ in source.calls} == {"__getcolumns__"}
    assert all(isinstance(columns, np.ndarray) for columns in given)


def fails_at_five(x):
    if x == 5:
        raise ValueError("five")
    return x


def test_an_iterator_goes_from_state_to_state_as_its_diagram_says(caplog):
    iterator = iter(MapDataset.range(200).map(fails_at_five).to_iter_dataset())
    start = iterator.get_state()
    for _ in range(2):
        assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(ValueError, match="five"):
                next(iterator)
        iterator.set_state(start)
    assert next(iterator) == 0
    iterator.close()
    iterator.set_state(start)
    with pytest.raises(ClosedError):
        next(iterator)
    with iter(MapDataset.range(2).to_iter_dataset()) as ended:
        start = ended.get_state()
        assert list(ended) == [0, 1]
        assert list(ended) == []
        ended.set_state(start)
        assert list(ended) == [0, 1]
    assert "succeeded when retried one element at a time" not in caplog.text


def test_an_iterator_runs_on_where_an_error_does_not_come_again(caplog):
    failed = []

    def fails_once(x):
        if x == 5 and not failed:
            failed.append(x)
            raise ValueError("five")
        return x

    with iter(MapDataset.range(200).map(fails_once).to_iter_dataset(ReadOptions(num_threads=0))) as iterator:
        assert [next(iterator) for _ in range(64)] == list(range(64))
        assert "succeeded when retried one element at a time" not in caplog.text
        assert list(iterator) == list(range(64, 200))
    assert "succeeded when retried one element at a time" in caplog.text


def diagram(title):
    """The lines of a diagram."""
    found = re.search(r"^```\n(.*?)^```", section(DIAGRAMS, title), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1].splitlines()


def position_of(iterator):
    return iterator._iteration.position()


def test_the_diagram_of_packing_has_the_rows_and_positions_that_come_out():
    sequences = [{"tokens": np.full(n, ord(letter))} for letter, n in zip("abcd", (5, 4, 3, 6), strict=True)]
    stream = MapDataset.source(sequences).to_iter_dataset()
    shown = {
        line[:20].strip(): re.split(r" {3,}", line[20:].strip()) for line in diagram("A packing group and its rows")
    }
    assert shown["sequences"] == [f"{i}: {' '.join(map(chr, s['tokens']))}" for i, s in enumerate(sequences)]
    options = re.search(r"`pack\((.*?), strategy=\"first_fit\", num_packing_bins=2, shuffle_bins=False\)`", DIAGRAMS)
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
        assert f"`{position_of(rows)}` after row 0" in DIAGRAMS


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
