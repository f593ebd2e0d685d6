"""The code of the README, of all documents and of all tutorials runs as it stands, and prints what they show."""

import contextlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import documents
from tests.support.documents import ROOT, blocks_of
from tests.support.proc import LIMIT_S

OTHERWISE = {"docs/how_to/many_hosts.md"}  # tests/device/hosts/test_document.py runs it, in several processes
INCLUDED = {"docs/changelog.md", "docs/contributing.md"}
OWN_PROCESS = {"docs/how_to/grain_programs.md"}  # changes what `import grain` means, for good
ON_RAY = {"docs/how_to/cluster.md"}
NOT_RUN = 6  # blocks of code that cannot be run here; each says why


def name_of(path):
    return str(path.relative_to(ROOT))


def with_code():
    for path in documents.documents():
        name = name_of(path)
        if name in OTHERWISE:
            continue
        if any(block.language in ("python", "pycon") for block in blocks_of(path)):
            marks = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")] if name in ON_RAY else []
            yield pytest.param(path, id=name, marks=marks)


def missing_modules(path):
    """Modules that the code of a document imports, and that are not installed."""
    code = "\n".join(block.code for block in blocks_of(path) if block.language == "python" and block.not_run is None)
    names = re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)
    return sorted({name for name in names if importlib.util.find_spec(name) is None})


def run_in_process(path):
    short = "/tmp" if os.name == "posix" else None  # Ray has sockets in it
    with tempfile.TemporaryDirectory(prefix="hr-", dir=short) as folder:
        environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        command = [sys.executable, "-W", "ignore", "-m", "tests.support.documents", str(path)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("path", list(with_code()))
def test_the_code_of_a_document_runs(path, tmp_path, monkeypatch):
    if missing := missing_modules(path):
        pytest.skip(f"needs {', '.join(missing)}")
    if name_of(path) in OWN_PROCESS:
        run_in_process(path)
        return
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with contextlib.chdir(tmp_path):
        printed = documents.run(path)
    if name_of(path) in PRINTED:
        assert printed == PRINTED[name_of(path)]


PRINTED = {
    "README.md": "(128, 28, 28)\n" * 2,
    "docs/index.md": "(128, 28, 28)\n",
    "docs/how_to/audio_and_video.md": "(8000,) float32 16000 1\n(8, 24, 32, 3) uint8\n",
    "docs/how_to/convert.md": "(28, 28) uint8 (0, 4) a (28, 28)\n",
    "docs/how_to/images.md": "(16, 224, 224, 3) uint8 (16, 2)\n(16, 224, 224, 3) float32\n",
    "docs/how_to/splits.md": "8 [8, 9, 103, 104]\n6 2\n",
    "docs/how_to/text.md": "{'tokens': (8, 128), 'tokens_positions': (8, 128), 'tokens_segment_ids': (8, 128)}\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("path", documents.tutorials(), ids=lambda path: path.stem)
@pytest.mark.xdist_group("tutorials")  # they take all cores
def test_the_code_of_a_tutorial_runs(path):
    if missing := missing_modules(path):
        pytest.skip(f"needs {', '.join(missing)}")
    run_in_process(path)


def test_only_a_few_blocks_are_not_run_and_they_say_why():
    reasons = [
        block.not_run for path in documents.documents() for block in blocks_of(path) if block.not_run is not None
    ]
    assert all(reasons)
    assert len(reasons) <= NOT_RUN


def test_code_is_in_blocks_that_are_run():
    for path in documents.documents():
        if name_of(path) in INCLUDED:
            continue
        text = re.sub(documents.FENCE, "", path.read_text())
        assert not re.search(r"\n\n    \S", text), f"{name_of(path)} has code without a fence"
        for block in blocks_of(path):
            known = block.language in {"", "python", "pycon", "sh", "text"} or block.language.startswith("{")
            assert known, f"{name_of(path)}, line {block.line}: nothing runs a block in {block.language!r}"


def test_what_is_printed_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    for text in (
        "```python\nprint(1)  # 2\n```\n",
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```pycon\n>>> 1\n2\n```\n",
        "```{code-cell}\n:tags: [hide-input]\n1 / 0\n```\n",
    ):
        page.write_text(text)
        with pytest.raises((AssertionError, ZeroDivisionError)):
            documents.run(page)
    page.write_text(
        "```{code-cell}\n:tags: [raises-exception]\n1 / 0\n```\n<!-- not run: why -->\n```python\n1 / 0\n```\n"
    )
    assert documents.run(page) == ""


# ---- links, which also work on a package index

LINKS = runpy.run_path(str(ROOT / "docs" / "check_links.py"))


def test_links_of_the_readme_are_absolute_and_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", text, re.MULTILINE))
    body = re.sub(r"```.*?```|`[^`]*`", "", re.sub(r"^\[[^\]]+\]: \S+$", "", text, flags=re.MULTILINE), flags=re.DOTALL)
    used = {" ".join((b or a).lower().split()) for a, b in re.findall(r"\[([^\]\[]+)\](?:\[([^\]]+)\])?", body)}
    assert used == defined.keys()
    assert len(defined) > 10
    assert not [why for link in defined.values() if (why := LINKS["problem_of_address"](link))]
    assert all(link.startswith("https://") for link in defined.values())


def test_links_between_documents_lead_somewhere():
    pages = [*documents.documents(), *documents.tutorials(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    pages += (ROOT / "src").rglob("README.md")  # the rooms' pages, whose code tests/test_contributing.py runs
    broken = []
    for path in pages:
        text = re.sub(documents.FENCE, "", path.read_text())
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in link:
                broken += [f"{name_of(path)}: {why}" for why in [LINKS["problem_of_address"](link)] if why]
            elif not link.startswith("#") and not (path.parent / link.partition("#")[0]).exists():
                broken.append(f"{name_of(path)}: {link}")
    assert not broken


def test_the_checker_of_the_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html">x</a><a href="#here" id="there">x</a><a href="http://example.com">x</a>'
        '<a href="https://github.com/headrace/headrace/blob/main/no.md">x</a><script src="https://cdn.example.com/x.js"></script>'
        '<a href="#there">good</a><a href="https://example.com/x">good</a><img src="data:image/png;base64,">'
    )
    (tmp_path / "a.css").write_text('@import "https://fonts.example.com/x.css"; a { background: url(local.png) }')
    problems = LINKS["problems_of"](tmp_path)
    assert [problem.partition(": ")[2].split()[0] for problem in problems] == [
        *(
            "loads",
            "#here",
            "b.html",
            "http://example.com",
            "https://github.com/headrace/headrace/blob/main/no.md",
            "loads",
        ),
    ]


def test_the_site_names_every_page(tmp_path):
    for folder in ("how_to", "explanation"):
        index = Path(ROOT, "docs", folder, "index.md").read_text()
        pages = {path.stem for path in Path(ROOT, "docs", folder).glob("*.md")} - {"index"}
        assert pages == set(
            re.findall(r"^(\w+)$", "\n".join(re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL)), re.MULTILINE)
        )
