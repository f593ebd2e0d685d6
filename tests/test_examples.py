"""The examples run unchanged, without warnings, and print what they promise."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.proc import LIMIT_S

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *, needs=()):
    """What an example prints; it runs in a process of its own, where what it imports cannot touch other tests."""
    missing = [module for module in needs if find_spec(module) is None]
    if missing:
        pytest.skip(f"{name} needs {', '.join(missing)}")
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def test_strategies():
    out = run("strategies.py")
    assert "split: 1500 to train, 297 to test" in out
    assert "training: 46 batches of (64, 8, 8) and (64, 10)" in out
    assert "reading a batch twice gives the same numbers: True" in out
    assert "testing: batches of [128, 128, 41]" in out
    assert "second epoch, 1500 examples" in out
    assert "topics of Python's documentation" in out
    assert "the same from 2 workers: True" in out


def test_data_loader():
    out = run("data_loader.py", needs=["jax", "orbax"])
    assert out.count("place ") == 6
    assert "shards of 10 records: [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]" in out
    assert "5 batches of (32, 12, 12); the same from 2 workers: True" in out
    assert "the same state: True" in out
    assert "after restoring, the next batches are the same: True" in out
    (words,) = [line for line in out.splitlines() if line.startswith("from shared memory: ")]
    assert sorted(words.split()[3:]) == ["drives", "the", "the", "water", "wheel"]


def test_from_pytorch():
    out = run("from_pytorch.py", needs=["torch"])
    assert "a batch: image float32[64, 64], label int64[64]" in out
    assert "batches for each of two processes: [140, 140]" in out
    assert "280 steps from 2 workers, training accuracy 9" in out
    assert "restored at step 100, the remaining batches are the same: True" in out


def test_train_on_cpu():
    out = run("train_on_cpu.py", needs=["jax"])
    for source in ("arrays", "records", "memory map"):
        assert f"{source}: test accuracy 9" in out
    assert "on cpu, the same weights from all three: True" in out


def test_advanced_datasets():
    out = run("advanced_datasets.py", needs=["jax"])
    assert "mix 1:3, of 400 elements: {'small': 100, 'large': 300}" in out
    assert "mix of filtered streams, 1:1: [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]" in out
    assert "every line of 6 files once: True" in out
    assert "the same from threads, workers and the chosen settings: True" in out
    assert "next index after 10: 10" in out
    assert "after restoring, the next batch is the same: True" in out


def test_images():
    out = run("images.py", needs=["cv2"])
    assert "300 files; the first has " in out
    assert "training: 9 batches of (64, 96, 96, 3), labels of (64, 10)" in out
    assert "the same from 2 workers: True" in out
    assert "testing: batches of [128, 128, 44], float32" in out
    assert "a crop: (10, 148, 183, 138, False, 96, 96)" in out


@pytest.mark.slow
def test_many_hosts():
    out = run("many_hosts.py", needs=["jax", "optax", "orbax"])
    assert "on 2: steps 0 to 20" in out
    assert "on 3: steps 20 to 40" in out
    assert "on 1: steps 40 to 60" in out
    assert "No batch was lost, repeated or changed." in out


@pytest.mark.xdist_group("ray")
def test_on_ray():
    out = run("on_ray.py", needs=["ray"])
    assert "none of them in this process: True" in out
    assert "an actor was killed" in out
    assert "the same batches as without workers: True" in out


def test_every_example_is_tested():
    tests = [Path(__file__).parent / f"test_{name}.py" for name in ("examples", "demo", "language_model")]
    text = "".join(path.read_text() for path in tests)
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in text] == []
