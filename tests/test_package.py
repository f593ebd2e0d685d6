"""What is published: the metadata, the sdist and the wheel, the version everywhere, and the files for a forge."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from datetime import date
from pathlib import Path

import pytest

import headrace
from tests.support.proc import LIMIT_S

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
VERSION = headrace.__version__
RELEASE = re.match(r"\d+\.\d+\.\d+", VERSION)[0]  # that this version is, or becomes


def run(*arguments, **options):
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=LIMIT_S, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked():
    """The files of the repository; a sdist is none."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a repository")
    return {name for name in run("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the sdist, and the wheel that was made from it."""
    for tool in ("build", "hatchling"):
        pytest.importorskip(tool)
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def in_sdist(dist):
    with tarfile.open(dist / f"headrace-{VERSION}.tar.gz") as tar:
        return {name.partition("/")[2] for name in tar.getnames()}


@pytest.fixture(scope="module")
def wheel(dist):
    with zipfile.ZipFile(dist / f"headrace-{VERSION}-py3-none-any.whl") as file:
        yield file


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(wheel.read(f"headrace-{VERSION}.dist-info/METADATA"))


# ------------------------------------------------------------------------------------- the sdist and the wheel


def test_the_sdist_has_all_files_of_the_repository(in_sdist):
    assert not tracked() - in_sdist
    assert {name.partition("/")[0] for name in in_sdist - {"PKG-INFO"}} == {n.partition("/")[0] for n in tracked()}


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    info = f"headrace-{VERSION}.dist-info"
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/headrace/")}
    package -= {name for name in package if name.endswith("/README.md")}
    licenses = {f"{info}/licenses/LICENSE", f"{info}/licenses/src/headrace/data/LICENSE-digits.txt"}
    about = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    assert package | licenses | about == set(wheel.namelist())
    for name in ("py.typed", "dataset/types.pyi", "insight/templates/view.html", "data/digits.npz"):
        assert f"headrace/{name}" in package


def test_an_index_takes_both(dist):
    pytest.importorskip("twine")
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())


@pytest.mark.slow
def test_the_sdist_runs_its_tests(dist, tmp_path):
    with tarfile.open(dist / f"headrace-{VERSION}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    folder, home = tmp_path / f"headrace-{VERSION}", tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # The tools and libraries of this environment come after what is installed in that one.
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(python, "-m", "pip", "install", *options, dist / f"headrace-{VERSION}.tar.gz", env=environment, cwd=tmp_path)
    where = run(python, "-c", "import headrace; print(headrace.__file__)", env=environment, cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(packages)
    few = [
        "tests/errors/test_spelling.py",
        "tests/ops/test_program.py",
        "tests/errors/test_hints.py",
        "tests/ops/test_transforms.py",
    ]
    run(python, "-m", "pytest", "-x", "-p", "no:xdist", *few, env=environment, cwd=folder)


# ----------------------------------------------------------------------------------------------- the metadata


def test_people_find_the_project(metadata):
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert urls.keys() == {"Homepage", "Documentation", "Repository", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in urls.values())
    assert metadata["Author"] == "The Headrace authors"
    assert metadata["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND CC-BY-4.0"
    assert "Programming Language :: Python :: 3.14" in metadata.get_all("Classifier")


def test_links_of_the_readme_work_on_an_index(metadata):
    text = re.sub(r"^```.*?^```", "", metadata.get_payload(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, re.MULTILINE)
    links += re.findall(r"(?:href|src)=[\"']([^\"']+)", text)
    assert links
    assert not [link for link in links if not link.startswith(("https://", "#"))], "give README.md absolute links"


# ------------------------------------------------------------------------------------------------- the version


def test_the_citation_and_the_changelog_have_the_version():
    cited = yaml_of("CITATION.cff")
    released = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (str(cited["version"]), str(cited["date-released"])) == released[0]
    assert VERSION != RELEASE or released[0][0] == VERSION


def test_tests_have_all_optional_libraries():
    groups = SETTINGS["dependency-groups"]
    listed = {name(each) for group in ("dev", "tests", "demo") for each in groups[group] if isinstance(each, str)}
    with_others = {"array-record", "huggingface_hub"}  # `grain` and `datasets` need them
    elsewhere = {"gcsfs"}  # speaks to Google's servers only
    extras = {name(each) for packages in SETTINGS["project"]["optional-dependencies"].values() for each in packages}
    assert extras - listed == with_others | elsewhere


def name(requirement):
    return re.split(r"[^\w-]", requirement)[0]


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    dates = [re.fullmatch(r"\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d)", title)[1] for title in titles[1:]]
    assert dates == sorted(dates, key=date.fromisoformat, reverse=True)
    parts = {"Upgrading", "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= parts
    for name in re.findall(r"^## (\[[^\]]+\])", text, re.MULTILINE):
        assert f"\n{name}: https://" in text


def test_this_version_has_states_for_later_ones():
    for kind in ("states", "outputs"):
        assert (ROOT / "tests" / "state" / "fixtures" / f"{kind}-{RELEASE}.json").exists(), (
            "run `python -m tests.state.fixtures.make_states`"
        )


# ----------------------------------------------------------------------------------------- files for a forge


def yaml_of(name):
    return pytest.importorskip("yaml").safe_load((ROOT / name).read_text())


def test_the_citation_is_complete():
    cited = yaml_of("CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert cited.keys() >= {"message", "title", "authors", "version", "date-released", "license", "repository-code"}
    assert cited["authors"] == [{"name": author["name"]} for author in PROJECT["authors"]]
    assert cited["repository-code"] == PROJECT["urls"]["Repository"]


@pytest.fixture
def jobs():
    return yaml_of(".github/workflows/ci.yml")["jobs"]


def test_a_release_builds_what_the_makefile_builds_and_stores_no_token():
    workflow = yaml_of(".github/workflows/release.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "make dist" in [step.get("run") for step in build["steps"]]
    assert publish["permissions"] == {"id-token": "write"}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()


def test_hooks_before_a_commit_run_what_the_makefile_checks():
    (repository,) = yaml_of(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make check"]


def test_ci_runs_what_the_makefile_has(jobs):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {*commands} == {"make check", "make docs", "make test", "make test-all", "make dist"}
    assert {command.removeprefix("make ") for command in commands} <= targets


def test_ci_tries_all_versions_and_systems(jobs):
    matrix = jobs["test"]["strategy"]["matrix"]
    tried = {*matrix["python-version"], *(each["python-version"] for each in matrix["include"])}
    named = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)}
    assert tried - {"3.14t"} == named
    assert "3.14t" in tried
    systems = {*matrix["os"], *(each["os"] for each in matrix["include"])}
    assert systems == {"ubuntu-latest", "macos-latest"}
    groups = {*matrix["group"], *(each["group"] for each in matrix["include"])}
    assert groups <= SETTINGS["dependency-groups"].keys()


def test_the_makefile_finds_programs_on_windows_too():
    assert not re.findall(r"\$\(\w+\)/bin/", (ROOT / "Makefile").read_text()), "write $(VENV)/$(BIN)/python"
