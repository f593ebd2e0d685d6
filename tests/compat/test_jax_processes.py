"""States of several JAX processes travel as arrays, and come back as what they were."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.proc import LIMIT_S, free_port

pytest.importorskip("jax")

ROOT = Path(__file__).parents[2]


def test_states_of_a_packed_run_are_gathered_and_restored():
    port = str(free_port())
    commands = [[sys.executable, "-m", "tests.compat.jax_process", str(index), port] for index in range(2)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        done = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for out, err in done:
        assert out.splitlines()[-1:] == ["same"], err[-3000:]
