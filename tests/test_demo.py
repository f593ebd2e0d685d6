"""The demo trains, stops, resumes in another process, and yields the batches of an uninterrupted run."""

import hashlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from headrace.data import digits
from tests.support.proc import LIMIT_S

DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits.py"
MISSING = [module for module in ("jax", "optax", "flax", "orbax") if find_spec(module) is None]


def test_the_digits_are_those_of_the_repository_they_come_from():
    arrays = digits()
    assert arrays["image"].shape == (1797, 8, 8)
    assert arrays["image"].dtype == arrays["label"].dtype == np.uint8
    assert (arrays["image"].min(), arrays["image"].max()) == (0, 16)
    # The numbers of each digit in the test set, as its authors publish them.
    assert np.bincount(arrays["label"]).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    content = hashlib.sha256(arrays["image"].tobytes() + arrays["label"].tobytes()).hexdigest()
    assert content == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_each_call_gives_arrays_to_change():
    digits()["image"][:] = 0
    assert digits()["image"].any()


@pytest.mark.skipif(bool(MISSING), reason=f"the demo needs {', '.join(MISSING)}")
def test_the_demo_resumes_exactly_in_a_new_process_and_learns(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DEMO), "--epochs=5"],
        env=os.environ
        | {"TMPDIR": str(tmp_path), "XLA_FLAGS": "--xla_backend_optimization_level=0"},  # compiles sooner
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    out = done.stdout
    assert done.returncode == 0, out + done.stderr
    begun = re.findall(r"process (\d+) starts at batch (\d+) of epoch (\d+) \((\d) worker", out)
    assert [begin[1:] for begin in begun] == [("1", "1", "2"), ("12", "3", "1")]
    assert begun[0][0] != begun[1][0]
    assert re.findall(r"stops after (\d+) batches of 110", out) == ["55", "110"]
    digests = re.findall(r"110 batches, digest ([0-9a-f]{16})", out)
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert "The stream resumed exactly where it stopped." in out
    assert fact(r"test accuracy: +([\d.]+)%", out) > 90
    assert fact(r"examples per second: +([\d,]+)", out) > 0
    assert 0 <= fact(r"waiting for the loader: +([\d.]+)% of the time", out) <= 100
    assert not list(tmp_path.iterdir()), "the checkpoints were not removed"


def fact(pattern, text):
    """The number that the demo printed."""
    (found,) = re.findall(pattern, text)
    return float(found.replace(",", ""))
