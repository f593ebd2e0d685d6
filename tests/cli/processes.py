"""The command line as a user runs it: as a process, in a terminal or in a pipe."""

import contextlib
import os
import pty
import subprocess
import sys

from tests.support.proc import LIMIT_S


def run(*arguments, cwd=None, env=None, command=("-m", "headrace")):
    """A command whose output goes to pipes."""
    return subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=cwd,
        env=None if env is None else os.environ | env,
    )


def run_in_terminal(*arguments, columns=80, env=None):
    """The exit status of a command and what it wrote to its terminal."""
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ours)
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *map(str, arguments)],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=os.environ | {"TERM": "xterm-256color", "COLUMNS": str(columns)} | (env or {}),
            )
        finally:
            os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is closed when the process ends
            while part := os.read(ours, 1 << 16):
                shown += part
        return process.wait(LIMIT_S), shown.decode()
