"""Hints name what is really missing: the package, and the extra of pyproject.toml that has it."""

import ast
import functools
import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from headrace import MapDataset, errors
from headrace.errors import MissingDependency, SpecError, available, install_command, optional
from headrace.storage.remote import DRIVERS
from tests.support.proc import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def hints_in(path):
    """The modules and extras of all calls of `optional` in a file, also behind `functools.partial`."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text if "optional" in text else "")):
        if not isinstance(node, ast.Call):
            continue
        called = [node.func, *node.args]
        if any(isinstance(each, ast.Name) and each.id == "optional" for each in called):
            strings = [each for each in node.args if not isinstance(each, ast.Name)]
            (extra,) = [keyword.value for keyword in node.keywords if keyword.arg == "extra"]
            yield strings[0], extra


def told(node):
    """The values that an expression of strings may have; None if it says none."""
    if isinstance(node, ast.IfExp):
        return [*told(node.body), *told(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) else []


FOUND = [
    (path.relative_to(ROOT), module, extra)
    for path in sorted((ROOT / "src").rglob("*.py"))
    for named, extras in hints_in(path)
    for module in told(named) or ["tokenizers", "tiktoken", "sentencepiece"]  # `origin.library`, of `headrace.text`
    for extra in told(extras)
]
PAIRS = sorted({(module, extra) for _, module, extra in FOUND} | {*DRIVERS.values()})


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def packages_of(extra):
    """What an extra installs: its packages, and all that these need."""
    found, new = set(), [re.split(r"[^\w.-]", each)[0] for each in EXTRAS[extra]]
    while new:
        name = normal(new.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        new += [re.split(r"[^\w.-]", each)[0] for each in needed if "extra ==" not in each]
    return found


distributions = functools.cache(importlib.metadata.packages_distributions)  # reads the lists of all packages


def test_there_are_hints_to_look_at():
    assert len(FOUND) > 30
    assert {"array_record.python.array_record_module", "cv2", "pyarrow", "fsspec", "jax"} <= {m for m, _ in PAIRS}


@pytest.mark.parametrize(("module", "extra"), PAIRS)
def test_the_extra_has_the_package(module, extra):
    package = module.partition(".")[0]
    names = {normal(each) for each in distributions().get(package, [])} or {normal(package)}
    assert names & packages_of(extra), f"headrace[{extra}] installs none of {names}"


@pytest.mark.parametrize(("module", "extra"), PAIRS)
def test_the_message_names_both(module, extra, monkeypatch):
    package = module.partition(".")[0]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency) as caught:
        optional(module, extra=extra)
    message = str(caught.value)
    assert message.endswith(f"is not installed. Install it with: {install_command(extra)}")
    said = [normal(each) for each in re.findall(r"[\w.-]+", message.partition(" is not")[0])]
    direct = {normal(re.split(r"[^\w.-]", each)[0]) for each in EXTRAS[extra]}
    assert direct & {*said, normal(package)} or not direct & packages_with(package)
    assert available(module) is None


def packages_with(module):
    return {normal(each) for each in distributions().get(module, [])}


def test_what_is_installed_but_broken_is_not_said_to_be_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import a_library_that_it_needs")
    (tmp_path / "old_library.py").write_text("from json import no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingDependency, match=r"`broken_library` is installed.*No module named 'a_library_that_it_needs'"
    ):
        optional("broken_library", extra="image")
    with pytest.raises(
        MissingDependency, match="`old_library` is installed, but cannot be imported: cannot import name"
    ):
        optional("old_library", extra="image")


# ------------------------------------------------------------------------------- commands that work where one is


def installed_from(tmp_path, monkeypatch, direct_url):
    """A Headrace in a folder of installed packages, with a note of where it was installed from."""
    site = tmp_path / "site-packages"
    info = site / "headrace-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: headrace\nVersion: 9\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(direct_url if isinstance(direct_url, str) else json.dumps(direct_url))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(errors, "_PACKAGE", str(site / "headrace"))


def test_a_checkout_is_installed_with_the_extra(tmp_path, monkeypatch):
    for name in ("plain", "it's mine"):
        project = tmp_path / name
        (project / "src").mkdir(parents=True)
        (project / "pyproject.toml").touch()
        monkeypatch.setattr(errors, "_PACKAGE", str(project / "src" / "headrace"))
        assert shlex.split(install_command("hf")) == ["pip", "install", "-e", f"{project}[hf]"]


def test_a_windows_shell_knows_double_quotes_alone(monkeypatch):
    monkeypatch.setattr(errors.os, "name", "nt")
    assert errors._quoted("headrace[hf]") == '"headrace[hf]"'


def test_what_is_from_an_index_comes_from_there(tmp_path, monkeypatch):
    installed_from(tmp_path, monkeypatch, None)
    assert install_command("hf") == "pip install 'headrace[hf]'"


def test_what_is_from_a_folder_a_file_or_a_repository_comes_from_there(tmp_path, monkeypatch):
    folder = tmp_path / "my clone"
    folder.mkdir()
    installed_from(tmp_path, monkeypatch, {"url": folder.as_uri(), "dir_info": {}})
    assert install_command("hf") == f"pip install '{folder}[hf]'"
    note = tmp_path / "site-packages" / "headrace-9.dist-info" / "direct_url.json"
    wheel = tmp_path / "headrace-9-py3-none-any.whl"
    wheel.touch()
    note.write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert install_command("hf") == f"pip install 'headrace[hf] @ {wheel.as_uri()}'"
    git = {"vcs": "git", "requested_revision": "main", "commit_id": "0123abc"}
    note.write_text(json.dumps({"url": "https://example.org/headrace", "vcs_info": git}))
    assert install_command("hf") == "pip install 'headrace[hf] @ git+https://example.org/headrace@main'"


@pytest.mark.parametrize("note", [{"url": "file:///no/such/folder", "dir_info": {}}, "", "{", "[]", '{"url": 3}'])
def test_a_note_that_helps_no_more_is_left_alone(tmp_path, monkeypatch, note):
    installed_from(tmp_path, monkeypatch, note)
    assert install_command("hf") == "pip install 'headrace[hf]'"


# ------------------------------------------------------------------------------------- as users meet them


def without(modules, program):
    """The last line that a program prints in which some modules are not installed."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    done = subprocess.run([sys.executable, "-c", blocked + program], capture_output=True, text=True, timeout=LIMIT_S)
    return done.stderr.strip().splitlines()[-1]


def test_addresses_of_hugging_face():
    pytest.importorskip("fsspec")
    program = "import headrace; headrace.open('hf://datasets/a/b/data.parquet')"
    install = install_command("hf")
    needs = f"hf://datasets/a/b/data.parquet needs a driver, `huggingface_hub`. Install it with: {install}"
    assert without(["huggingface_hub"], program).endswith(needs)
    assert without(["fsspec"], program).endswith(f"`fsspec` is not installed. Install it with: {install}")


def test_addresses_of_other_servers():
    pytest.importorskip("fsspec")
    program = "import headrace; headrace.open({!r})"
    for path, package in (("s3://b/a.csv", "s3fs"), ("zip://a.csv::gs://b/a.zip", "gcsfs")):
        last = without([package], program.format(path))
        assert last.endswith(f"{path} needs a driver, `{package}`. Install it with: {install_command('cloud')}")
    last = without(["adlfs"], program.format("abfs://b/a.csv"))  # which no extra has
    assert re.search(r"abfs://b/a.csv needs a driver: .*adlfs", last)
    assert "pip install" not in last


def test_images():
    fixture = ROOT / "tests/sources/fixtures/tfds/tfrecord"
    hint = f"`cv2` (opencv-python-headless) is not installed. Install it with: {install_command('image')}"
    for program in (
        f"from headrace.sources import TfdsDataSource as T; print(T({str(fixture)!r}, 'test', as_supervised=True)[0])",
        "import numpy as np; from headrace.images import pixels; pixels.adjust_hue(np.zeros((2, 2, 3), np.uint8), 0.1)",
        "import numpy as np; from headrace.images import Resize; Resize((1, 1)).map(np.zeros((2, 2, 3), np.uint8))",
    ):
        assert without(["cv2", "PIL", "simplejpeg"], program).endswith(hint)


def test_specs_of_sources_that_have_one(tmp_path):
    datasets = pytest.importorskip("datasets")
    from headrace.sources import HuggingFaceDataSource, JsonLinesDataSource

    texts = HuggingFaceDataSource(datasets.Dataset.from_dict({"text": ["a", "b"]}))
    with pytest.raises(SpecError, match="Not all of its values are numbers.*`map` after it an `output_spec`") as caught:
        _ = MapDataset.source(texts).element_spec
    assert "attribute" not in str(caught.value)
    lists = HuggingFaceDataSource(datasets.Dataset.from_dict({"x": [1, 2], "tokens": [[1], [2, 3]]}))
    spec = MapDataset.source(lists).element_spec
    assert (spec["tokens"].shape, spec["tokens"].dtype, spec["x"].shape) == ((None,), np.int64, ())
    (tmp_path / "a.jsonl").write_text("1\n")
    with pytest.raises(SpecError, match="Give JsonLinesDataSource an attribute `element_spec`"):
        _ = MapDataset.source(JsonLinesDataSource(tmp_path / "a.jsonl")).element_spec
