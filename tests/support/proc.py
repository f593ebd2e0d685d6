"""What `/proc` knows about a process: its workers, threads, descriptors and shared memory.

Where there is no `/proc`, as on macOS and Windows, tests that ask it are skipped.
"""

import contextlib
import gc
import os
import random
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.engine.workers.messages import TEMPLATE, WORKER
from headrace.engine.workers.template import templates

WAIT_S = 60.0  # only what hangs takes so long, however busy the machine is
LIMIT_S = 600.0  # the same of a program


def _proc(pid: int | str = "self") -> Path:
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("there is no /proc")
    return Path(f"/proc/{pid}")


def workers_of(pid: int) -> set[int]:
    """The workers that a process has started, whether or not it is still there."""
    found = set()
    for folder in _proc().parent.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")
            is_template = TEMPLATE.encode() in command and (folder / "comm").read_text() != "headrace-worker\n"
            if WORKER.encode() in command and command[-2] == str(pid).encode() and not is_template:
                found.add(int(folder.name))
    return found


def children_of(pid: int) -> set[int]:
    """All children of a process but the template for workers, dead ones that nobody has waited for included."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in (_proc(pid) / "task").iterdir():
            found.update(map(int, (task / "children").read_text().split()))
    template = templates.current and templates.current.process
    return found - {template.pid} if template else found


def descriptors() -> dict[str, str]:
    """The open descriptors of this process, without the one for the template for workers."""
    found = {}
    for link in (_proc() / "fd").iterdir():
        with contextlib.suppress(OSError):
            found[link.name] = os.readlink(link)
    if templates.current is not None:
        found.pop(str(templates.current.socket.fileno()), None)
    return {fd: target for fd, target in found.items() if not target.startswith("/proc/")}


def mapped() -> list[str]:
    """Parts of this process's memory that are the library's shared files."""
    return [line for line in (_proc() / "maps").read_text().splitlines() if "memfd:headrace" in line]


def held_bytes() -> int:
    """How much memory the library's shared files take, each counted once."""
    files = {}
    for link in (_proc() / "fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:headrace" in os.readlink(link):
                status = os.stat(link)
                files[status.st_ino] = status.st_blocks * 512
    return sum(files.values())


def named_memory(maker: int | str = "*") -> set[str]:
    """The names of shared memory on this machine, or of what one process made without giving it a name."""
    return {path.name for path in Path("/dev/shm").glob(f"headrace_{maker}_*")}


def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def free_port() -> int:
    """A port that no connection gets by itself meanwhile, since it is below those that the system gives out."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def collect() -> None:
    """Ends iterators in reference cycles; the collector may meet a pool's sockets before the pool, and warn of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def end_earlier_workers() -> None:
    """Collects the datasets of earlier tests, whose workers would be counted as this test's."""
    collect()
    until(lambda: not workers_of(os.getpid()), "workers of an earlier test are left")


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Whatever happens inside, this process has no more of anything afterwards."""
    end_earlier_workers()
    before = descriptors(), children_of(os.getpid()), named_memory(os.getpid())
    yield
    collect()
    until(lambda: children_of(os.getpid()) <= before[1], f"processes left: {workers_of(os.getpid())}")
    assert not workers_of(os.getpid())
    until(lambda: set(descriptors().items()) <= set(before[0].items()), f"descriptors left: {descriptors()}")
    assert mapped() == []
    assert named_memory(os.getpid()) <= before[2]
