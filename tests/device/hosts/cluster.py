"""Runs a program of several JAX processes, and kills it with the stacks of all processes if it hangs."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
LIMIT_S = 300.0  # only what hangs takes so long, however busy the machine is


def run(program: str, num_processes: int, *args: Any, num_devices: int = 1) -> list[Any]:
    """What `programs.<program>(*args)` returned in each process, each of which has some CPU devices."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _start_and_wait([program, num_processes, num_devices, LIMIT_S, folder, json.dumps(args)])
        ends = json.loads((folder / "ends.json").read_text())
        if ends["hung"] or ends["failed"]:
            what = f"processes {ends['hung']} hung" if ends["hung"] else f"processes {ends['failed']} failed"
            told = [(folder / f"{i}.err").read_text()[-6000:] for i in range(num_processes)]
            tails = "\n".join(f"---- process {i}\n{text}" for i, text in enumerate(told))
            raise AssertionError(f"{program} on {num_processes} processes: {what}\n{tails}")
        return [json.loads((folder / f"{i}.json").read_text()) for i in range(num_processes)]


def _start_and_wait(arguments: list[Any]) -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.device.hosts.process", *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, process_group=0) as process:
        try:
            status = process.wait(timeout=LIMIT_S + 60)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # and those that it forked
            raise
    assert status == 0
