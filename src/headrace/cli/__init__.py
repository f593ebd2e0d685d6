"""The command line: one file for each command, imported when the command runs."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from headrace import __version__
from headrace.cli.failures import in_one_line

COMMANDS = {
    "inspect": "show a data set's format, size, shapes and first record",
    "head": "print the first records of a data set, or elements of a pipeline",
    "explain": "show how each operation of a pipeline is computed, and where",
    "bench": "run a pipeline for a few seconds and report what limits it",
    "view": "watch a pipeline in the browser",
    "convert": "write data in another format",
    "doctor": "check this machine, or find damaged files and records",
}
FAILURE = 2
STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser(arguments).parse_args(arguments)
    try:
        status = given.run(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of a pipe has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails again when it ends
        return given.failure
    except KeyboardInterrupt:
        print(f"headrace: stopped.{given.after_stop}", file=sys.stderr)
        return STOPPED
    except Exception as e:
        print(f"headrace: {in_one_line(e)}", file=sys.stderr)
        return given.failure


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong with arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(FAILURE, f"headrace: {message}. See {self.prog} --help.\n")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The arguments of all commands, but details only of the one to run: others need slow imports."""
    parser = _Parser(
        prog="headrace", description="Inspect, convert and check data, and measure pipelines that load it."
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.set_defaults(failure=FAILURE, after_stop="")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    asked = next((one for one in arguments if not one.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == asked:
            import_module(f"{__name__}.{name}").add_arguments(command)
    return parser
