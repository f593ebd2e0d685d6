"""Runs a program of several JAX processes, and kills it with the stacks of all processes if it hangs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.proc import free_port

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0  # only what hangs takes so long, however busy the machine is


def run(program: str, num_processes: int, *args: Any, num_devices: int = 1) -> list[Any]:
    """What `programs.<program>(*args)` returned in each process, each of which has some CPU devices."""
    with tempfile.TemporaryDirectory() as folder:
        processes = _start(Path(folder), program, num_processes, args, num_devices)
        try:
            hung = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        told = [(Path(folder) / f"{i}.err").read_text() for i in range(num_processes)]
        failed = [i for i, process in enumerate(processes) if process.returncode]
        if hung or failed:
            what = f"processes {hung} hung" if hung else f"processes {failed} failed"
            tails = "\n".join(f"---- process {i}\n{text[-6000:]}" for i, text in enumerate(told))
            raise AssertionError(f"{program} on {num_processes} processes: {what}\n{tails}")
        return [json.loads((Path(folder) / f"{i}.json").read_text()) for i in range(num_processes)]


def _start(folder: Path, program: str, count: int, args: tuple[Any, ...], num_devices: int) -> list[Any]:
    port = str(free_port())
    flags = f"--xla_force_host_platform_device_count={num_devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    started = []
    for i in range(count):
        command = [sys.executable, "-m", "tests.hosts.process", program, str(i), str(count), port]
        command += [str(folder / f"{i}.json"), json.dumps(args)]
        with (folder / f"{i}.err").open("w") as log:
            started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    return started


def _wait(processes: list[Any]) -> list[int]:
    """Waits until all have ended, or one has failed; returns those that hang, after they have written their stacks."""
    end = time.monotonic() + LIMIT_S
    while (left := [p for p in processes if p.poll() is None]) and time.monotonic() < end:
        if any(p.returncode for p in processes):
            end = min(end, time.monotonic() + 20)  # the others wait for one that has failed
        time.sleep(0.02)
    failed = any(p.returncode for p in processes)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)  # faulthandler writes the stacks of all threads
    if left:
        time.sleep(2)
    return [] if failed else [processes.index(p) for p in left]
