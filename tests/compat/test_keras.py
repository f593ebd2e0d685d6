"""Keras trains on Headrace's datasets and loaders, on each of its backends, under `as_grain()`."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.proc import LIMIT_S

ROOT = Path(__file__).parents[2]
NEEDED = "keras", "PIL", "tensorflow"  # for which Keras's preprocessing layers ask on every backend; slow to import
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.xdist_group("keras"),  # one process for each backend, whatever runs its tests
    pytest.mark.skipif(bool(MISSING), reason=f"needs {MISSING}"),
]


@pytest.fixture(scope="module", params=["jax", "torch", "tensorflow"])
def found(request, tmp_path_factory):
    """What the program prints, in a process of its own: a backend is chosen once."""
    pytest.importorskip(request.param)
    environment = {**os.environ, "KERAS_BACKEND": request.param, "KERAS_HOME": str(tmp_path_factory.mktemp("home"))}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.compat.keras_program",
        str(tmp_path_factory.mktemp("files")),
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sampled(every=3)
def test_keras_takes_all_kinds_of_datasets(found):
    assert {"map", "iter", "threads", "processes", "loader"} <= set(found["adapters"])
    assert set(found["adapters"].values()) == {"GrainDatasetAdapter"}


@pytest.mark.sampled(every=3)
def test_training_on_a_dataset_is_training_on_its_arrays(found):
    on_arrays = found["fit"].pop("arrays")
    assert len(found["fit"]) >= 4
    for name, losses in found["fit"].items():
        np.testing.assert_allclose(losses, on_arrays, rtol=1e-4, err_msg=name)


@pytest.mark.sampled(every=3)
def test_layers_know_that_they_are_called_in_a_pipeline(found):
    assert found["in_pipeline"].pop("outside") == [False]
    assert len(found["in_pipeline"]) == 7
    for where, seen in found["in_pipeline"].items():
        assert seen, where
        assert all(seen), where


@pytest.mark.sampled(every=3)
def test_preprocessing_layers_are_functions_of_a_pipeline(found):
    got, wanted = found["layers"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.sampled(every=3)
def test_keras_makes_datasets_of_files_and_arrays(found):
    files = found["files"]
    assert [labels for _, labels in files["images"]] == [[0, 0, 0, 1], [1, 1]]
    means = [mean for batch, _ in files["images"] for mean in batch]
    np.testing.assert_allclose(means, [10, 11, 12, 200, 201, 202])
    assert files["texts"] == [["a0", "a1", "a2", "b0"], ["b1", "b2"]]
    sequences = [sequence for batch, _ in files["series"] for sequence in batch]
    assert sequences == [[i, i + 1, i + 2] for i in range(8)]
    assert [target for _, batch in files["series"] for target in batch] == [2 * i for i in range(8)]
