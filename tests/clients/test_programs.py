"""Programs in the manner of Grain's public clients get the same batches from Headrace, bit for bit.

And they go on from its states.
"""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.sources import write_array_record, write_parquet, write_tfrecord
from tests.clients.drive import SAVED_AT
from tests.proc import LIMIT_S

pytest.importorskip("grain")
pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path.stem for path in (Path(__file__).parent / "programs").glob("[a-z]*.py"))
NEEDS = {"torchtitan": ("torch",)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some files of token sequences and texts."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    tokens = [rng.integers(1, 100, size=rng.integers(3, 15)).astype(np.int32) for _ in range(120)]
    for i in range(3):
        part = [sequence.tobytes() for sequence in tokens[i::3]]
        write_tfrecord(part, folder / f"tokens-{i}.tfrecord")
        write_array_record(part, folder / f"tokens-{i}.array_record")
        rows = [{"id": i + 3 * j, "text": " ".join(map(str, sequence))} for j, sequence in enumerate(tokens[i::3])]
        write_parquet(rows, folder / f"texts-{i}.parquet")
    return folder


def run(library: str, name: str, folder: Path, output: Path) -> tuple:
    command = [sys.executable, "-m", "tests.clients.drive", library, name, str(folder), str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    return pickle.loads(output.read_bytes())


def assert_same(ours, theirs) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert sorted(ours) == sorted(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple | list):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    else:
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_client_gets_from_headrace_what_it_gets_from_grain(name, folder, tmp_path):
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    known, theirs, _ = run("grain", name, folder, tmp_path / "grain")  # which loses its place in some
    assert known == "grain"
    known, ours, rest = run("headrace", name, folder, tmp_path / "headrace")
    assert known == "headrace"
    assert len(ours) > SAVED_AT + 1
    assert_same(ours, theirs)
    assert_same(rest, ours[SAVED_AT:])
