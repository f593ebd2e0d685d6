"""What `docs/how_to/many_hosts.md` tells people to do, word for word."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.device.hosts.cluster import LIMIT_S, ROOT
from tests.support.proc import free_port, until

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.xdist_group("hosts")


@pytest.fixture
def document(tmp_path):
    """The script in a folder of its own, with its checkpoints there; and the commands."""
    text = (ROOT / "docs" / "how_to" / "many_hosts.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (tmp_path / "train.py").write_text(script.replace("/tmp/headrace-hosts", str(tmp_path)))
    for port in ("12321", "12322"):
        commands = commands.replace(port, str(free_port()))
    return tmp_path, commands


def environment():
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "JAX_PLATFORMS": "cpu"}


def test_the_script_trains_on_two_and_then_on_three_processes(document):
    folder, commands = document
    options = {"cwd": folder, "env": environment(), "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run(["bash", "-c", commands], **options, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("steps")]
    assert [line.partition(":")[0] for line in lines] == ["steps 0 to 30 on 2", "steps 30 to 60 on 3"], done.stderr
    assert 2.9 < float(lines[1].split()[-1]) < 3.1


def test_a_run_that_is_preempted_saves_in_all_processes_at_one_step_and_goes_on(document):
    folder, _ = document
    checkpoints = folder / "checkpoints"

    def start(num_processes, num_steps):
        address = f"127.0.0.1:{free_port()}"
        commands = [
            [sys.executable, "train.py", address, str(num_processes), str(i), str(num_steps)]
            for i in range(num_processes)
        ]
        return [
            subprocess.Popen(
                command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for command in commands
        ]

    processes = start(2, 10**9)
    try:
        until(lambda: (folder / "checkpoints").exists(), "the run does not begin", LIMIT_S)
        time.sleep(3)  # some steps; any number will do
        processes[1].send_signal(signal.SIGTERM)
        done = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    (saved,) = [int(path.name) for path in checkpoints.iterdir() if path.name.isdigit()]
    assert f"steps 0 to {saved} on 2" in done[0][0], done
    (process,) = start(1, saved + 5)
    out, err = process.communicate(timeout=LIMIT_S)
    assert f"steps {saved} to {saved + 5} on 1" in out, err
