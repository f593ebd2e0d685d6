"""Programs in the manner of Grain's public clients get the same batches from Headrace, bit for bit.

And they go on from its states.
"""

import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from headrace.sources import write_array_record, write_parquet, write_tfrecord
from tests.compat.drive import SAVED_AT
from tests.support.proc import LIMIT_S

pytest.importorskip("grain")
pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")
pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path.stem for path in (Path(__file__).parent / "programs").glob("[a-z]*.py"))
NEEDS = {"torchtitan": ("torch",)}
pytestmark = pytest.mark.xdist_group("clients")


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


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    """What the programs got, by library; all run in one process of each, since its imports take most of the time."""
    output, results = tmp_path_factory.mktemp("output"), {}
    for library in ("grain", "headrace"):
        command = [sys.executable, "-m", "tests.compat.drive", library, str(folder), str(output)]
        command += [name for name in PROGRAMS if not missing(name)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr[-4000:]
        known, results[library] = pickle.loads((output / library).read_bytes())
        assert known == library
    return results


def missing(name: str) -> list[str]:
    return [library for library in NEEDS.get(name, ()) if find_spec(library) is None]


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
def test_a_client_gets_from_headrace_what_it_gets_from_grain(name, found):
    if missing(name):
        pytest.skip(f"needs {', '.join(missing(name))}")
    failed = [result for results in found.values() if isinstance(result := results[name], str)]
    assert not failed, "\n".join(failed)
    theirs, _ = found["grain"][name]
    ours, rest = found["headrace"][name]
    assert len(ours) > SAVED_AT + 1
    assert_same(ours, theirs)
    assert_same(rest, ours[SAVED_AT:])
