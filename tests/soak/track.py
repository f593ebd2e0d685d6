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

from tests.soak.pipelines import ON_SMALL_DISK, PIPELINES, How, digest
from tests.soak.s3 import Proxy
from tests.support.proc import children_of, named_memory, until, workers_of

ROOT = Path(__file__).resolve().parents[2]
PACE_S = 0.001
SMALL_DISK_BYTES, CACHE_BYTES = 2 << 20, 4 << 20  # the cache believes that it has more room than there is
ON_SMALL_TMPFS = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c"]
ON_SMALL_TMPFS += [f'mount -t tmpfs -o size={SMALL_DISK_BYTES} soak "$0" && mkdir "$0/index" && exec "$@"']


def can_mount(folder: Path) -> bool:
    """Whether runners can have a small file system of their own, which ends with them."""
    try:
        return subprocess.run([*ON_SMALL_TMPFS, folder, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all tracks share."""

    data: str  # the folder of files
    hang_s: float  # how long to wait for an output
    pause_s: float  # the longest pause of a worker or of the consumer
    small_disk: bool
    broken: str  # what runners do wrong


class Track:
    """The outputs of a pipeline, which its runners continue one after the other; each is compared with the reference.

    Args:
        name: The pipeline.
        folder: For the state, the cache and what runners write to stderr.
        proxy: The S3 server, if the pipeline reads from it.
        is_steady: Whether one runner lives to the end; others are killed, and start again with other options.
    """

    def __init__(self, name: str, folder: Path, settings: Settings, *, proxy: Proxy | None, is_steady: bool):
        self.name, self.settings, self.proxy, self.is_steady = name, settings, proxy, is_steady
        self.has_small_disk = settings.small_disk and name in ON_SMALL_DISK
        self._folder, self._disk = folder, folder / "disk"
        (self._disk / "index").mkdir(parents=True)
        self.process: Any = None  # the runner
        self.pids: list[int] = []
        self.named_memory: set[str] = set()  # what killed runners had
        self._is_resting = True
        self._reference = map(digest, PIPELINES[name](How(settings.data)))  # in this process, without any fault
        self._expected: list[str] = []  # the last outputs, from number `_first` on
        self._first = 0
        self.outputs, self.failure, self.survived = 0, "", Counter[str]()
        self.consumer_mb, self.shared_mb, self.workers_mb = list[float](), list[float](), list[float]()
        self.worker_mb: dict[int, list[float]] = {}  # by worker
        self.descriptors, self.threads = list[int](), list[int]()

    # ---- the runner

    def begin_turn(self, chance: random.Random) -> None:
        if self.process is None:
            self.start(chance)
        self.process.send_signal(signal.SIGCONT)
        self._is_resting = False

    def end_turn(self, chance: random.Random) -> None:
        """A steady runner rests; another one ends, or is killed."""
        self._is_resting = True
        if self.is_steady and not self.failure:
            self.process.send_signal(signal.SIGSTOP)
        elif self.failure or chance.random() < 0.5:
            self.kill()
        else:
            self.finish()

    def start(self, chance: random.Random) -> None:
        how = json.dumps(dataclasses.asdict(self.some_how(chance)))
        command = [sys.executable, "-m", "tests.soak.runner", self.name, self._folder / "state", how]
        command = [*ON_SMALL_TMPFS, self._disk, *command] if self.has_small_disk else command
        cache_bytes = 0 if self.name == "s3" else CACHE_BYTES
        environment = os.environ | {
            "HEADRACE_CACHE": f"{self._disk}/cache",
            "HEADRACE_CACHE_BYTES": str(cache_bytes),
            "MALLOC_ARENA_MAX": "1",  # or glibc's heaps, one for each thread, would grow for long
            "SOAK_PACE_S": str(PACE_S),
        }
        with open(self._folder / "stderr", "w") as errors:
            self.process = subprocess.Popen(
                [*command, self.settings.broken],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,  # Ctrl-C in a terminal is for the soak alone
            )
        self.pids.append(self.process.pid)
        self._listener = threading.Thread(target=self._listen, args=[self.process.stdout], daemon=True)
        self._listener.start()

    def some_how(self, chance: random.Random) -> How:
        """Options for the next runner or iterator: any, or always the same."""
        workers, threads, prefetch = chance.randrange(5), chance.choice((0, 2, 8)), chance.choice((0, 4))
        if self.is_steady:
            workers, threads, prefetch = 2, 2, 2
        endpoint = None if self.proxy is None else self.proxy.address
        return How(self.settings.data, workers, threads, prefetch, endpoint, f"{self._disk}/index")

    def tell(self, **command: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever waits for outputs sees that it has ended
            print(json.dumps(command), file=self.process.stdin, flush=True)

    def workers(self) -> list[int]:
        """From the oldest to the youngest."""
        return sorted(children_of(self.pids[-1]))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._after_the_end()

    def finish(self) -> None:
        """Ends the runner in order; it checks itself that it leaves nothing."""
        if self.process is None or self.failure:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            status = self.process.wait(self.settings.hang_s)
        except subprocess.TimeoutExpired:
            self._fail_as_hung("it was told to end")
        else:
            if status:
                self._fail(f"its runner ended with status {status}")
            self._after_the_end()

    def _after_the_end(self) -> None:
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process = None
        self.named_memory |= named_memory(self.pids[-1])
        try:
            until(lambda: not workers_of(self.pids[-1]), "workers outlive their runner")
        except AssertionError as e:
            self._fail(str(e))

    # ---- its outputs

    def _listen(self, lines: Iterable[str]) -> None:
        for line in lines:
            match line.split() if line.endswith("\n") else None:  # the last one may be cut
                case ["output", number, found]:
                    self._compare(int(number), found)
                case ["opened" | "saved", number]:
                    self._forget_before(int(number) - 100)  # keeping some, to recognize one that is repeated
                case ["interrupted"]:
                    self.survived["interrupted"] += 1
                case ["hidden", *_]:
                    self._fail(f"an error that the recovery from errors would hide: {line}")
            if self.failure:
                return

    def _compare(self, number: int, found: str) -> None:
        place = number - self._first
        if not 0 <= place <= len(self._expected):
            return self._fail(f"it went on at output {number}, after {self._first + len(self._expected)} outputs")
        if place == len(self._expected):
            self._expected.append(next(self._reference))
        if found == self._expected[place]:
            self.outputs += 1
            return None
        coming = [*self._expected[place:], *(next(self._reference) for _ in range(20))]
        if found in coming:
            return self._fail(f"lost: in place of output {number} came output {number + coming.index(found)}")
        if found in self._expected:
            number_found = self._first + self._expected.index(found)
            return self._fail(f"repeated: in place of output {number} came output {number_found}")
        return self._fail(f"different: output {number} is not what it must be")

    def _forget_before(self, number: int) -> None:
        if number > self._first:
            del self._expected[: number - self._first]
            self._first = number

    def wait_for_outputs(self, count: int) -> bool:
        """Whether so many more outputs come, all as expected."""
        end, target = time.monotonic() + self.settings.hang_s, self.outputs + count
        while self.outputs < target and not self.failure:
            if self.process.poll() is not None:
                self._fail(f"its runner ended with status {self.process.returncode}")
            elif time.monotonic() > end:
                self._fail_as_hung("an output was asked for")
            time.sleep(0.005)
        return not self.failure

    def _fail(self, why: str) -> None:
        errors = (self._folder / "stderr").read_text()[-5000:]
        self.failure = self.failure or f"{self.name} ({'steady' if self.is_steady else 'mortal'}): {why}\n{errors}"

    def _fail_as_hung(self, since: str) -> None:
        waiting = {pid: Path(f"/proc/{pid}/wchan").read_text() for pid in self.workers()}
        self.process.send_signal(signal.SIGUSR1)  # which writes all stacks
        time.sleep(1)
        self._fail(f"hang: for {self.settings.hang_s} s nothing came after {since}; workers are in {waiting}")
        self.kill()

    # ---- what it survived, and what it uses

    def faults(self) -> Counter[str]:
        return self.survived + (Counter() if self.proxy is None else self.proxy.faults)

    def sample(self) -> None:
        """Notes what a steady runner uses, in its turns."""
        if not self.is_steady or self._is_resting:
            return
        with contextlib.suppress(OSError, KeyError):  # a process has just ended
            pid = self.pids[-1]
            own, shared = _memory_mb(pid)
            of_workers = {worker: _memory_mb(worker) for worker in self.workers()}
            self.consumer_mb.append(own)
            self.shared_mb.append(shared + sum(shared for _, shared in of_workers.values()))
            self.workers_mb.append(statistics.mean(own for own, _ in of_workers.values()) if of_workers else 0.0)
            for worker, (own, _) in of_workers.items():
                self.worker_mb.setdefault(worker, []).append(own)
            self.descriptors.append(_num_descriptors(pid))
            self.threads.append(len(os.listdir(f"/proc/{pid}/task")))


def _memory_mb(pid: int) -> tuple[float, float]:
    """A process's own memory, and its part of the memory that it shares; files and code count for neither."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return kb["Pss_Anon"] / 1024, kb["Pss_Shmem"] / 1024


def _num_descriptors(pid: int) -> int:
    """Without those of shared memory, which has more slots the more is under way."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    return sum("memfd:headrace" not in os.readlink(link) for link in links)


# ---- faults: each returns when it is over


def kill_worker(track: Track, chance: random.Random) -> None:
    """In a steady runner always the youngest: others get old enough to show whether they grow."""
    workers = track.workers()
    _send(workers[-1] if track.is_steady else chance.choice(workers), signal.SIGKILL)


def pause_worker(track: Track, chance: random.Random) -> None:
    _pause(chance.choice(track.workers()), chance.uniform(0, track.settings.pause_s))


def pause_consumer(track: Track, chance: random.Random) -> None:
    _pause(track.pids[-1], chance.uniform(0, track.settings.pause_s))


def _pause(pid: int, seconds: float) -> None:
    _send(pid, signal.SIGSTOP)
    time.sleep(seconds)
    _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # a worker that was about to end
        os.kill(pid, number)


def interrupt(track: Track, chance: random.Random) -> None:
    _send(track.pids[-1], signal.SIGINT)


def slow_consumer(track: Track, chance: random.Random) -> None:
    track.tell(pause_s=0.1)
    time.sleep(chance.uniform(0, track.settings.pause_s))
    track.tell(pause_s=0)


def reopen(track: Track, chance: random.Random) -> None:
    track.tell(how=dataclasses.asdict(track.some_how(chance)))


def kill_runner(track: Track, chance: random.Random) -> None:
    track.kill()
    track.start(chance)


def fill_disk(track: Track, chance: random.Random) -> None:
    track.tell(fill_disk=True)
    reopen(track, chance)
    if track.wait_for_outputs(3):
        time.sleep(chance.uniform(0, track.settings.pause_s))
        track.tell(fill_disk=False)


def s3_outage(track: Track, chance: random.Random) -> None:
    """Short enough that a request is not yet at its last attempt."""
    assert track.proxy is not None
    track.proxy.down_until = time.monotonic() + chance.uniform(0, track.settings.pause_s / 2)


Fault = Callable[[Track, random.Random], None]
RARELY_IN_STEADY = {"reopened": 0.1, "interrupted": 0.1}  # where others have a weight of 1: these end all workers


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
