"""A consumer of one pipeline: `python -m tests.soak.runner NAME STATE_FILE HOW BREAK`.

It writes a line for each output (its number and digest), saves its state to a file now and then, and obeys the commands
that it reads, which are JSON. It ends when these do, and fails unless everything is then closed.
"""

import contextlib
import errno
import faulthandler
import gc
import itertools
import json
import logging
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
from typing import Any

import fsspec.asyn

from headrace.errors import WorkerError
from tests.soak.pipelines import PIPELINES, How, digest
from tests.support.proc import nothing_left, until

SAVE_EVERY_S = 0.5
BROKEN_AT = 4  # the output from which on a runner is broken, if the test says so


class Runner:
    def __init__(self, name: str, state_file: str, broken: str):
        self._pipeline, self._state_file, self._broken = PIPELINES[name], state_file, broken
        self._number, self._taken, self._kept = 0, [], []
        self._interruptible, self._pause_s = False, 0.0
        self._iterator: Any = None
        self._commands = sys.stdin.buffer.raw  # a buffer would hide commands from `select`
        signal.signal(signal.SIGINT, self._interrupt)
        logging.getLogger("headrace").addFilter(tell_of_hidden_errors)

    def run(self, how: How) -> None:
        self._open(how, *self._saved())
        next_save = time.monotonic()
        while self._obey():
            self._break()
            say(f"output {self._number} {digest(self._take())}")
            self._number += 1
            if time.monotonic() > next_save:
                self._save()
                next_save = time.monotonic() + SAVE_EVERY_S
            time.sleep(self._pause_s)
        self._iterator.close()
        self._iterator = None  # which held the sources, and their files

    def _open(self, how: How, number: int, state: Any) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None
            gc.collect()  # what is still there afterwards is a leak
        self._how, self._number, self._iterator = how, number, iter(self._pipeline(how))
        if state is not None:
            self._iterator.set_state(state)
        say(f"opened {number}")

    def _take(self) -> Any:
        """The next output; an interrupt either comes before it is taken or leaves it in the list."""
        while not self._taken:
            try:
                self._interruptible = True
                self._taken.extend(itertools.islice(self._iterator, 1))
                self._interruptible = False
            except KeyboardInterrupt:
                say("interrupted")
        return self._taken.pop()

    def _interrupt(self, *_: object) -> None:
        if self._interruptible:
            self._interruptible = False
            raise KeyboardInterrupt

    def _save(self) -> None:
        with open(f"{self._state_file}.new", "wb") as file:
            pickle.dump((self._number, self._iterator.get_state()), file)
        os.replace(f"{self._state_file}.new", self._state_file)
        say(f"saved {self._number}")

    def _saved(self) -> tuple[int, Any]:
        if not os.path.exists(self._state_file):
            return 0, None
        with open(self._state_file, "rb") as file:
            return pickle.load(file)

    def _obey(self) -> bool:
        """Obeys a command, if there is one; returns whether to go on."""
        if not select.select([self._commands], [], [], 0)[0]:
            return True
        line = self._commands.readline()
        match json.loads(line) if line else None:
            case None:
                return False
            case {"how": how}:
                self._save()  # the next runner goes on from here at the earliest
                self._open(How(**how), self._number, self._iterator.get_state())
            case {"pause_s": seconds}:
                self._pause_s = seconds
            case {"fill_disk": fill}:
                fill_disk(self._how.index_dir, fill=fill)
        return True

    def _break(self) -> None:
        """What goes wrong for the tests of the soak."""
        if not self._broken or self._number < BROKEN_AT:
            return
        if self._broken == "memory":
            self._kept.append(b"x" * 500_000)
        elif self._broken == "descriptors":
            self._kept.append(os.open(os.devnull, os.O_RDONLY))
        elif self._number == BROKEN_AT:
            match self._broken:
                case "lost":
                    self._take()
                case "repeated":
                    self._taken.append(self._take())
                    say(f"output {self._number} {digest(self._taken[0])}")
                    self._number += 1
                case "different":
                    self._taken.append(str(self._take()))
                case "hidden":
                    logging.getLogger("headrace").warning("Going on.", exc_info=ValueError("of the library"))
                case "left":
                    os.close(tempfile.mkstemp()[0])
                case "hang":
                    time.sleep(600)


def fill_disk(folder: str | None, *, fill: bool) -> None:
    """Takes all room that is left on the file system of a folder, or frees it."""
    assert folder is not None
    ballast = os.path.join(folder, "ballast")
    if not fill:
        os.unlink(ballast)
        return
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as e:
            assert e.errno == errno.ENOSPC  # noqa: PT017  (not a test's)


def tell_of_hidden_errors(record: logging.LogRecord) -> bool:
    """A filter of what the library logs: it expects only that two workers were killed at the same element."""
    error = record.exc_info[1] if record.exc_info else None
    is_expected = isinstance(error, WorkerError)
    if not is_expected:
        say(f"hidden {record.getMessage()!r} {error!r}")
    return not is_expected


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    name, state_file, how_as_json, broken = sys.argv[1:]
    how = How(**json.loads(how_as_json))
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if how.endpoint is not None:
        fsspec.asyn.get_loop()  # it stays, with its descriptors
    with nothing_left():
        Runner(name, state_file, broken).run(how)
        if how.endpoint is not None:
            fsspec.get_filesystem_class("s3").clear_instance_cache()  # which closes their connections
    names = {thread.name for thread in threading.enumerate()}
    until(lambda: not any(thread.name.startswith("headrace") for thread in threading.enumerate()), f"threads: {names}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the soak was stopped
        main()
