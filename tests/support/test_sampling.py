"""`make test` leaves out only what is marked, and whoever asks for a test gets all of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proc import LIMIT_S
from tests.support.sampling import without_group

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

FAILING = {FAILING}

@pytest.mark.parametrize("i", range(5))
def test_ordinary(i):
    pass

@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("i", range(8))
def test_sampled(i):
    assert i not in FAILING

@pytest.mark.sampled(every=2)
@pytest.mark.xdist_group("waiting")
@pytest.mark.parametrize("i", range(4))
def test_sampled_too(i):
    assert i not in FAILING

class TestClass:
    @pytest.mark.sampled(every=2)
    @pytest.mark.parametrize("i", range(3))
    def test_sampled(self, i):
        pass

@pytest.mark.slow
def test_slow():
    assert 100 not in FAILING
"""
SAMPLE = {
    "test_ordinary": [0, 1, 2, 3, 4],
    "test_sampled": [0, 3, 6],
    "test_sampled_too": [0, 2],
    "TestClass::test_sampled": [0, 2],
}
ALL = SAMPLE | {
    "test_sampled": [*range(8)],
    "test_sampled_too": [0, 1, 2, 3],
    "TestClass::test_sampled": [0, 1, 2],
    "test_slow": [],
}


def outcome(folder, *arguments, failing=()):
    """The tests that run, each with its parameters."""
    (folder / "test_law.py").write_text(TESTS.format(FAILING=set(failing)))
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "tests.support.sampling", "-W", "ignore", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=LIMIT_S
    )
    found = {}
    for name, i in re.findall(r"^(?:PASSED|FAILED) test_law\.py::([\w:]+)(?:\[(\d+)\])?", done.stdout, re.M):
        found.setdefault(name, []).extend([int(i)] if i else [])
    assert found, done.stdout + done.stderr
    return {name: sorted(numbers) for name, numbers in found.items()}


def test_one_in_so_many_parameters_runs_and_no_slow_test(tmp_path):
    assert outcome(tmp_path) == outcome(tmp_path, "test_law.py") == SAMPLE


def test_all_runs_what_is_sampled_and_slow(tmp_path):
    assert outcome(tmp_path, "--all") == ALL


@pytest.mark.parametrize("name", ["test_slow", "test_sampled", "TestClass"])
def test_whoever_names_a_test_runs_all_of_it(tmp_path, name):
    expected = {each: numbers for each, numbers in ALL.items() if each.partition("::")[0] == name}
    assert outcome(tmp_path, f"test_law.py::{name}") == expected


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")])
def test_what_failed_runs_again_with_or_without_groups(tmp_path, workers):
    outcome(tmp_path, "--all", "-n", "2", "--dist", "loadgroup", failing=[1, 3, 4, 100])
    assert outcome(tmp_path, "--lf", *workers) == {
        "test_sampled": [1, 3, 4],
        "test_sampled_too": [1, 3],
        "test_slow": [],
    }


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("a.py::test_b[c]@group", "a.py::test_b[c]"),
        ("a.py::test_b@two words", "a.py::test_b"),
        ("a.py::test_b[c@d]", "a.py::test_b[c@d]"),
        ("a.py::test_b[c@d]@group", "a.py::test_b[c@d]"),
    ],
    ids=["parameters", "two words", "no group", "both"],
)
def test_groups_are_no_part_of_a_name(nodeid, name):
    assert without_group(nodeid) == name
