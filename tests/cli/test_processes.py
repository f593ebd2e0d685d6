"""The command line as a process: in a real terminal, in pipes, and when it is stopped."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import headrace
from tests.cli.processes import run, run_in_terminal
from tests.support.proc import LIMIT_S, WAIT_S

HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold]not bold[/bold]"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": HOSTILE, "\x1b[32mkey": i}) + "\n" for i in range(5000)))
    return path


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    path = tmp_path_factory.mktemp("pipelines") / "train.py"
    path.write_text(
        "import time\nimport headrace\n\nclass Two:\n    def map(self, x):\n        return 2 * x\n\n"
        "def slow(x):\n    time.sleep(0.001)\n    return Two().map(x)\n\n"
        "ds = headrace.MapDataset.range(100).map(slow).to_iter_dataset().batch(10).mp_prefetch(1)\n"
    )
    return path


def plain(text):
    """What a terminal shows, without the codes for colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_gets_colours_and_a_pipe_gets_none(data):
    pytest.importorskip("rich")
    status, shown = run_in_terminal("inspect", data)
    assert status == 0
    assert "\x1b[1;36mFirst record\x1b[0m" in shown
    piped = run("inspect", data)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert "\x1b" not in piped.stdout
    for line in ("First record", "JSON lines", "5,000"):
        assert line in plain(shown)
        assert line in piped.stdout
    assert "\x1b[32m" not in shown  # the name of a value
    assert "\\x1b[32mkey" in piped.stdout


def test_texts_from_data_do_not_command_the_terminal(data):
    status, shown = run_in_terminal("head", data, "-n", "1", columns=200)
    assert status == 0
    assert "\x1b[31m" not in shown
    assert "\x1b]0;" not in shown
    assert "\\x1b[31mred\\x1b]0;title\\x07 [bold]not bold[/bold]" in plain(shown)


def test_a_terminal_without_rich_gets_plain_text(data, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *a: None if name == 'rich' else find(name, *a)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    status, shown = run_in_terminal("inspect", data, env={"PYTHONPATH": path})
    assert status == 0
    assert "\x1b" not in shown
    assert "First record" in shown


def test_an_error_is_one_line_in_a_terminal(pipeline):
    status, shown = run_in_terminal("explain", f"{pipeline}:nothing")
    assert status == 2
    assert shown == f"headrace: {pipeline} has no `nothing`. It has ds.\r\n"


def test_a_reader_may_stop_reading(data):
    command = [sys.executable, "-m", "headrace", "head", str(data), "-n", "5000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "[\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(LIMIT_S) == 2


def test_workers_find_what_the_file_defines_and_do_not_run_it(pipeline):
    found = run("bench", f"{pipeline}:ds", "--seconds", "1", "--json")
    assert found.stderr == ""
    assert json.loads(found.stdout)["rates"]["1"] > 0


def test_ctrl_c_stops_quietly(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(
        "import headrace\n\ndef tell(x):\n    print('running', flush=True)\n    return x\n\n"
        "ds = headrace.MapDataset.range(3).map(tell).repeat()\n"
    )
    command = [sys.executable, "-m", "headrace", "bench", str(path), "--seconds", "1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (130, "headrace: stopped.\n")


def test_importing_the_library_does_not_import_what_commands_need():
    """Nor does asking for the version."""
    code = (
        "import sys; sys.argv = ['headrace', '--version']\n"
        "try:\n    import headrace.__main__ as m; m.main()\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('rich', 'jinja2', 'starlette', 'uvicorn', 'pyarrow') if name in sys.modules])"
    )
    assert run(code, command=("-c",)).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["doctor", "inspect", "head"])
def test_a_fifo_is_an_error_and_not_waited_for(tmp_path, command):
    os.mkfifo(tmp_path / "a.jsonl")
    done = run(command, str(tmp_path / "a.jsonl"))
    assert done.returncode != 0
    assert "is a FIFO or a device, not a file" in done.stdout + done.stderr


def test_data_whose_name_looks_like_a_pipeline_is_data(tmp_path):
    (tmp_path / "x.py").write_text("raise SystemExit('x.py was run')")
    (tmp_path / "x.py:ds").write_text('{"a": 7}\n')
    done = run("head", "x.py:ds", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "7" in done.stdout


def test_a_folder_of_classes_becomes_a_tar_file(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        cv2 = pytest.importorskip("cv2")
        cv2.imwrite(str(tmp_path / "pics" / name / "1.png"), np.zeros((4, 4, 3), np.uint8))
    done = run("convert", "pics", "x.tar", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [element["cls"] for element in headrace.sources.open(tmp_path / "x.tar")] == [b"0", b"1"]
