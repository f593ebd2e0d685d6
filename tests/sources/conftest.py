"""Fixtures that tests of several formats share."""

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.sources import array_record, record_files

RUNS_PROGRAMS = """
import os, pickle, sys, traceback
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)  # what libraries print is no answer
import tensorflow
while True:
    program, names = pickle.load(sys.stdin.buffer)
    try:
        exec(program, names)
        answer = True, names["found"]
    except Exception:
        answer = False, traceback.format_exc()
    pickle.dump(answer, answers)
    answers.flush()
"""


@pytest.fixture(scope="session")
def with_tensorflow():
    """Runs a program with some names, and returns what is its `found` then; TensorFlow, which is slow, starts once.

    Tests that take it are in the group `tensorflow`, so that one process of the tests runs them all.
    """
    if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tensorflow_datasets") is None:
        pytest.skip("TensorFlow is not installed, or not its datasets")
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TFDS_DATA_DIR": "/nonexistent"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUNS_PROGRAMS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[2],
        env=os.environ | settings,
    )

    def run(program, **names):
        pickle.dump((program, names), process.stdin)
        process.stdin.flush()
        is_good, answer = pickle.load(process.stdout)
        assert is_good, answer
        return answer

    with process:
        yield run
        process.kill()


@pytest.fixture(params=["one by one", "all cores", "slow"])
def read_by(request, monkeypatch):
    """The ways in which a file of records is read, each of which a machine or a file may never take."""
    monkeypatch.setattr(array_record, "num_cores", lambda: 1 if request.param == "one by one" else 2)
    monkeypatch.setattr(array_record, "FEWEST_AT_ONCE", 2)
    monkeypatch.setattr(record_files, "SLOW_RECORD_S", -1 if request.param == "slow" else 1e9)
    monkeypatch.setattr(record_files, "SLOW_IN_A_ROW", 1)


@pytest.fixture
def far_away(tmp_path, monkeypatch):
    """A folder behind an address, `memory://records`, and an empty cache."""
    fs = pytest.importorskip("fsspec").filesystem("memory")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    yield fs
    fs.rm("/records", recursive=True)
