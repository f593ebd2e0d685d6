"""Damaged files: an error of this library or some values, whatever bytes are in them; never the end of the process.

Each format's own writer writes the files, `damage.py` damages and reads them in processes of their own, with bounded
memory. To look at more damage: `HEADRACE_MUTATIONS=1000 pytest tests/sources/test_damage.py`.
"""

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.insight import verify
from tests.sources.damage import mutate
from tests.sources.intact import FORMS
from tests.support.proc import LIMIT_S

REPOSITORY = Path(__file__).resolve().parents[2]
MUTATIONS = int(os.environ.get("HEADRACE_MUTATIONS", "50"))
OPEN = ["array_record", "bagz", "tfrecord", "parquet", "arrow", "arrow_stream", "feather", "json_lines", "npy", "hdf5"]
OPEN += ["hugging_face", "csv", "tar"]


def written(name, folder):
    """The intact files of a format."""
    form = FORMS[name]
    for needed in form.needs:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    (folder / "intact").mkdir()
    form.write(folder / "intact" / form.name)


def run(*arguments):
    """What a process says of damaged files, line by line, and how it ended."""
    command = [sys.executable, "-m", "tests.sources.damage", *map(str, arguments)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    return ended.stdout.splitlines(), ended


def wrong_ones(task, name, folder, first, *stop):
    """The damage that gave another error than it should, or ended the process, after which the rest is tried."""
    wrong = []
    while True:
        lines, ended = run(task, name, folder, first, *stop)
        wrong += [line for line in lines if "WRONG" in line]
        if ended.returncode == 0:
            return wrong
        assert lines, ended.stderr
        last = int(lines[-1].split()[0])
        wrong.append(f"{last} ended the process with {ended.returncode}: {ended.stderr[-1000:]}")
        first = last + 1


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", FORMS)
def test_a_damaged_file_is_an_error_or_some_values(name, tmp_path):
    written(name, tmp_path)
    wrong = wrong_ones("run", name, tmp_path, 0, MUTATIONS)
    assert not wrong, "\n".join(wrong)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["tfds", "hugging_face", "zarr", "zarr_2"])
def test_a_description_that_is_wrong_is_an_error_or_read(name, tmp_path, request):
    written(name, tmp_path)
    wrong = wrong_ones("describe", name, tmp_path, 0, 1 if request.config.getoption("--all") else 5)
    assert not wrong, f"{len(wrong)} of them:\n" + "\n".join(wrong)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", OPEN)
def test_a_file_that_changes_while_it_is_open_is_an_error_that_names_it(name, tmp_path):
    written(name, tmp_path)
    lines, ended = run("open", name, tmp_path)
    assert ended.returncode == 0, (lines, ended.stderr)
    outcomes = [line for line in lines if "begins" not in line]
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert "refused (DataError: " in outcome
        assert "has changed since its source was created" in outcome
        assert str(tmp_path) in outcome


def test_verify_names_the_hdf5_files_that_make_the_library_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "MOST_HANGS", 1)  # in a file, which is given up then
    h5py = pytest.importorskip("h5py")
    hanging = [12, 184, 355]  # with HDF5 1.14; another version may say that they are damaged
    for seed in sorted({*range(MUTATIONS // 25), *hanging}):
        with h5py.File(tmp_path / f"{seed:04}.h5", "w") as file:
            file.create_dataset("id", data=np.arange(40))
            texts = [f"text {i} " + "x" * (i % 5) for i in range(40)]
            file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
        mutate(tmp_path / f"{seed:04}.h5", random.Random(f"text {seed}"))
    begin = time.monotonic()
    found = headrace.verify(tmp_path, timeout_s=0.5)
    assert time.monotonic() - begin < LIMIT_S
    assert [os.path.basename(part.path) for part in found.parts] == sorted(os.listdir(tmp_path))
    damaged = {os.path.basename(damage.file or "") for damage in found.damaged}
    assert {f"{seed:04}.h5" for seed in hanging} <= damaged
