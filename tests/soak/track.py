"""A pipeline under faults: its runner, the outputs that must come, and what faults do to it."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.proc import children_of, until, workers_of
from tests.soak.pipelines import ON_SMALL_DISK, PIPELINES, How, digest
from tests.soak.s3 import Proxy

ROOT = Path(__file__).resolve().parents[2]
PACE_S = 0.001
SMALL_DISK_BYTES, CACHE_BYTES = 2 << 20, 4 << 20  # the cache believes that it has more room than there is
ON_TMPFS = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c"]
ON_TMPFS += [f'mount -t tmpfs -o size={SMALL_DISK_BYTES} soak "$0" && mkdir "$0/index" && exec "$@"']


def can_mount(folder: str) -> bool:
    """Whether runners may have a small file system of their own, which ends with them."""
    try:
        return subprocess.run([*ON_TMPFS, folder, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Track:
    """Outputs of one pipeline, which its runners continue one after the other; each is compared with the reference.

    Args:
        name: The pipeline.
        folder: For the state, the cache and what runners write to stderr.
        reference: How to compute the expected outputs: in this process, without any fault.
        proxy: The S3 server, for pipelines that read from it.
        is_steady: Whether one runner lives to the end; others are killed, and start again with other options.
        hang_s: How long to wait for an output.
        pause_s: The longest pause of a worker, of the consumer, and of S3.
        broken: What its runners do wrong.
        small_disk: Whether runners can have one.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        reference: How,
        *,
        proxy: Proxy | None,
        is_steady: bool,
        hang_s: float,
        pause_s: float,
        broken: str,
        small_disk: bool,
    ):
        self.name, self.proxy, self.is_steady, self.pause_s = name, proxy, is_steady, pause_s
        self._hang_s, self._broken = hang_s, broken
        self.has_small_disk = small_disk and name in ON_SMALL_DISK
        self._folder, self._disk = folder, folder / "disk"
        (self._disk / "index").mkdir(parents=True)
        endpoint = None if proxy is None else proxy.address
        self._how = dataclasses.replace(reference, endpoint=endpoint, index_dir=str(self._disk / "index"))
        self._reference = map(digest, PIPELINES[name](reference))
        self._expected: list[str] = []  # the last outputs, from number `_first` on
        self._first = 0
        self.outputs, self.survived, self.failure = 0, Counter[str](), ""
        self._is_resting = True
        self.process: subprocess.Popen[str] | None = None
        self.pids: list[int] = []
        self.consumer_mb, self.workers_mb = list[float](), list[float]()
        self.worker_mb: dict[int, list[float]] = {}  # of each worker
        self.descriptors, self.threads = list[int](), list[int]()

    # ---- the runner

    def start(self, chance: random.Random) -> None:
        how = json.dumps(dataclasses.asdict(self.some_how(chance)))
        command = [sys.executable, "-m", "tests.soak.runner", self.name, str(self._folder / "state"), how, self._broken]
        if self.has_small_disk:
            command = [*ON_TMPFS, str(self._disk), *command]
        cache_bytes = 0 if self.name == "s3" else CACHE_BYTES
        cache = {"HEADRACE_CACHE": str(self._disk / "cache"), "HEADRACE_CACHE_BYTES": str(cache_bytes)}
        with open(self._folder / "stderr", "w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | cache | {"SOAK_PACE_S": str(PACE_S)},
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,  # Ctrl-C in a terminal is for the soak
            )
        self.pids.append(self.process.pid)
        self._reader = threading.Thread(target=self._listen, args=[self.process.stdout], daemon=True)
        self._reader.start()

    def some_how(self, chance: random.Random) -> How:
        """Options for the next runner or iterator: any, or always the same."""
        if self.is_steady:
            return dataclasses.replace(self._how, num_workers=2, num_threads=2, prefetch=2)
        workers, threads, prefetch = chance.randrange(5), chance.choice((0, 2, 8)), chance.choice((0, 4))
        return dataclasses.replace(self._how, num_workers=workers, num_threads=threads, prefetch=prefetch)

    def tell(self, **command: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it has ended is seen elsewhere
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def workers(self) -> list[int]:
        """From the oldest to the youngest."""
        return sorted(children_of(self.process.pid)) if self.process is not None else []

    def kill(self) -> None:
        """Kills the runner; its workers then end by themselves."""
        if self.process is not None:
            self.process.kill()
            self._ended()

    def finish(self) -> None:
        """Ends the runner in order; it says itself whether it leaves anything."""
        if self.process is None or self.failure:
            return
        self.signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(self._hang_s)
        except subprocess.TimeoutExpired:
            self.fail_as_hung("it was told to end")
        if self.process is not None:
            if self.process.returncode:
                self.fail(f"its runner ended with status {self.process.returncode}")
            self._ended()

    def begin_turn(self, chance: random.Random) -> None:
        if self.process is None:
            self.start(chance)
        self.signal(signal.SIGCONT)
        self._is_resting = False

    def end_turn(self, chance: random.Random) -> None:
        """A steady runner rests; another one ends, or is killed."""
        if self.failure:
            self.kill()
        elif self.is_steady:
            self._is_resting = True
            self.signal(signal.SIGSTOP)
        elif chance.random() < 0.5:
            self.finish()
        else:
            self.kill()

    def _ended(self) -> None:
        assert self.process is not None
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        pid, self.process = self.process.pid, None
        try:
            until(lambda: not workers_of(pid), f"workers outlive their consumer: {workers_of(pid)}")
        except AssertionError as e:
            self.fail(str(e))

    # ---- its outputs

    def _listen(self, lines: Iterable[str]) -> None:
        for line in lines:
            match line.split():
                case ["output", number, found] if line.endswith("\n"):
                    self._compare(int(number), found)
                case ["opened" | "saved", number] if line.endswith("\n"):
                    self._forget_before(int(number) - 100)  # of these it would still recognize one that is repeated
                case ["interrupted"]:
                    self.survived["interrupted"] += 1
            if self.failure:
                return

    def _compare(self, number: int, found: str) -> None:
        place = number - self._first
        if not 0 <= place <= len(self._expected):
            self.fail(f"it went on at output {number}, after {self._first + len(self._expected)} outputs")
            return
        if place == len(self._expected):
            self._expected.append(next(self._reference))
        if found == self._expected[place]:
            self.outputs += 1
            return
        coming = [*self._expected[place:], *(next(self._reference) for _ in range(20))]
        if found in coming:
            self.fail(f"lost: in place of output {number} came output {number + coming.index(found)}")
        elif found in self._expected:
            self.fail(f"repeated: in place of output {number} came output {self._first + self._expected.index(found)}")
        else:
            self.fail(f"different: output {number} is not what it must be")

    def _forget_before(self, number: int) -> None:
        if number > self._first:
            del self._expected[: number - self._first]
            self._first = number

    def wait_for_outputs(self, count: int) -> bool:
        """Whether so many more outputs come, all as expected."""
        begin, target = time.monotonic(), self.outputs + count
        while self.outputs < target and not self.failure:
            if self.process is None or self.process.poll() is not None:
                self.fail(f"its runner ended with status {self.process and self.process.returncode}")
            elif time.monotonic() > begin + self._hang_s:
                self.fail_as_hung("an output was asked for")
            time.sleep(0.005)
        return not self.failure

    def fail(self, why: str) -> None:
        errors = (self._folder / "stderr").read_text()[-5000:]
        self.failure = self.failure or f"{self.name} ({'steady' if self.is_steady else 'mortal'}): {why}\n{errors}"

    def fail_as_hung(self, since: str) -> None:
        states = {pid: _status(pid) for pid in self.workers()}
        self.signal(signal.SIGUSR1)  # which writes all stacks
        time.sleep(1)
        self.fail(f"hang: for {self._hang_s} s nothing came after {since}; its workers: {states}")
        self.kill()

    # ---- what it survived and uses

    def faults(self) -> Counter[str]:
        return self.survived + (self.proxy.faults if self.proxy is not None else Counter())

    def sample(self) -> None:
        """Notes what a steady runner uses, in its turns."""
        if not self.is_steady or self._is_resting or self.process is None:
            return
        with contextlib.suppress(OSError, ValueError):  # a process that has just ended
            pid, workers = self.process.pid, self.workers()
            own, shared = memory_mb(pid)
            used = {worker: memory_mb(worker) for worker in workers}
            self.consumer_mb.append(own + shared + sum(of_worker[1] for of_worker in used.values()))
            for worker, (of_worker, _) in used.items():
                self.worker_mb.setdefault(worker, []).append(of_worker)
            self.workers_mb.append(statistics.mean(of_worker for of_worker, _ in used.values()) if used else 0.0)
            self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))
            self.threads.append(len(os.listdir(f"/proc/{pid}/task")))


def memory_mb(pid: int) -> tuple[float, float]:
    """Memory of a process: its own, and its share of what is shared. Files and code count for neither."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return kb["Pss_Anon"] / 1024, kb["Pss_Shmem"] / 1024


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] + " in " + Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return "ended"


# ---- faults: each returns when it is over


def kill_worker(track: Track, chance: random.Random) -> None:
    """In a steady runner always the youngest, so that others get old enough to show whether they grow."""
    workers = track.workers()
    _send(workers[-1] if track.is_steady else chance.choice(workers), signal.SIGKILL)


def pause_worker(track: Track, chance: random.Random) -> None:
    _pause(chance.choice(track.workers()), chance.uniform(0, track.pause_s))


def pause_consumer(track: Track, chance: random.Random) -> None:
    _pause(track.pids[-1], chance.uniform(0, track.pause_s))


def _pause(pid: int, seconds: float) -> None:
    _send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # workers also end when an iterator is closed
        os.kill(pid, number)


def slow_consumer(track: Track, chance: random.Random) -> None:
    track.tell(pause_s=0.1)
    time.sleep(chance.uniform(0, track.pause_s))
    track.tell(pause_s=0)


def interrupt(track: Track, chance: random.Random) -> None:
    track.signal(signal.SIGINT)


def reopen(track: Track, chance: random.Random) -> None:
    track.tell(how=dataclasses.asdict(track.some_how(chance)))


def kill_runner(track: Track, chance: random.Random) -> None:
    track.kill()
    track.start(chance)


def fill_disk(track: Track, chance: random.Random) -> None:
    track.tell(fill_disk=True)
    reopen(track, chance)
    track.wait_for_outputs(3)
    time.sleep(chance.uniform(0, track.pause_s))
    track.tell(fill_disk=False)


def s3_outage(track: Track, chance: random.Random) -> None:
    assert track.proxy is not None
    track.proxy.down_until = time.monotonic() + chance.uniform(0, track.pause_s)


Fault = Callable[[Track, random.Random], None]
RARELY_IN_STEADY = {"reopened": 0.3, "interrupted": 0.3}  # where others have a weight of 1: these end all workers


def faults_of(track: Track) -> dict[str, Fault]:
    """The faults that can happen to a pipeline as it runs now."""
    faults: dict[str, Fault] = {"consumer paused": pause_consumer, "reopened": reopen, "interrupted": interrupt}
    if track.workers():
        faults |= {"worker killed": kill_worker, "worker paused": pause_worker}
    if track.proxy is not None:
        faults["S3 down"] = s3_outage
    if not track.is_steady:
        faults |= {"runner killed": kill_runner, "consumer slow": slow_consumer}
        if track.has_small_disk:
            faults["disk full"] = fill_disk
    return faults
