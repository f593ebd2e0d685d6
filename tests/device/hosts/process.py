"""The processes of a distributed JAX program, which are forks of one that has imported everything.

python -m tests.device.hosts.process PROGRAM COUNT NUM_DEVICES LIMIT_S FOLDER ARGS

Process `i` writes what the program returns to `FOLDER/i.json`, and its output to `FOLDER/i.err`. `FOLDER/ends.json` says
which processes failed, and which hung.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import jax

from tests.device.hosts import programs
from tests.support.proc import free_port


def main() -> None:
    program, count, num_devices, limit_s, folder, args = sys.argv[1:]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    port = free_port()
    warnings.filterwarnings("ignore", "os.fork")  # JAX has no threads yet
    pids = []
    for i in range(int(count)):
        if (pid := os.fork()) == 0:
            os._exit(_run(program, i, int(count), port, Path(folder), json.loads(args)))
        pids.append(pid)
    Path(folder, "ends.json").write_text(json.dumps(_wait(pids, float(limit_s))))


def _run(program: str, index: int, count: int, port: int, folder: Path, args: list[object]) -> int:
    """Runs a program; the exit status. Threads that wait for other processes would make Python's own exit fail."""
    with (folder / f"{index}.err").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1)
    address = f"127.0.0.1:{port}"
    try:
        jax.distributed.initialize(address, num_processes=count, process_id=index, initialization_timeout=300)
        (folder / f"{index}.json").write_text(json.dumps(getattr(programs, program)(*args)))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()  # JAX leaves the others
        sys.stdout.flush()
    return 0


def _wait(pids: list[int], limit_s: float) -> dict[str, list[int]]:
    """Waits until all have ended, or one has failed; which failed, or else which hang, after these wrote their stacks."""
    end = time.monotonic() + limit_s
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids) and time.monotonic() < end:
        for pid in set(pids) - statuses.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = status
                if status:
                    end = min(end, time.monotonic() + 20)  # the others wait for one that has failed
        time.sleep(0.02)
    left = set(pids) - statuses.keys()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # faulthandler writes the stacks of all threads
    if left:
        time.sleep(2)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    failed = [i for i, pid in enumerate(pids) if statuses.get(pid)]
    return {"failed": failed, "hung": [] if failed else [i for i, pid in enumerate(pids) if pid in left]}


if __name__ == "__main__":
    main()
