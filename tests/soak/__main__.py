"""Endless pipelines of every kind under faults: `python -m tests.soak --minutes 60 --seed 0`.

Two runners work at a time. One lane has a steady runner for each pipeline, which lives to the end and rests between its
turns: these show whether memory or descriptors grow. Runners of the other lane are also killed, and go on from the state
that they saved last, with other numbers of workers and threads. Every output of both is compared with that of the same
pipeline without workers, threads and faults.

The soak fails (status 1) if an output is lost, repeated or different, if memory or descriptors grow, if anything is left,
or if a runner hangs.
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.soak import s3
from tests.soak.pipelines import PIPELINES, write_files
from tests.soak.track import RARELY_IN_STEADY, Settings, Track, can_mount, faults_of
from tests.support.proc import LIMIT_S, named_memory

TURN_S = 30.0
SAMPLES_PER_TURN = 30
MOST_GROWTH = 0.05
BREAKS = ("lost", "repeated", "different", "hidden", "memory", "descriptors", "left", "hang")
BARS = "▁▂▃▄▅▆▇█"
PLOT_WIDTH = 60


def main() -> int:
    args = arguments()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as name:
        folder, temporary = Path(name), Path(name, "tmp")
        temporary.mkdir()
        os.environ |= {"TMPDIR": str(temporary), "HEADRACE_CACHE": f"{name}/cache"}
        with made_tracks(args, folder) as tracks:
            soak(tracks, args, begin)
        failures = [track.failure for track in tracks if track.failure]
        failures += [f"{track.name}: {what}" for track in tracks for what in grown(track, args.grow_samples)]
        failures += [f"left: {what}" for what in left(tracks, temporary)]
    report(tracks, time.monotonic() - begin)
    for failure in failures:
        print(f"\nFAILED: {failure}")
    print(f"\n{f'{len(failures)} FAILURES' if failures else 'passed'}; seed {args.seed}")
    return 1 if failures else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="at least; each pipeline has one turn in each lane")
    parser.add_argument("--seed", type=int, default=0, help="of the kinds and moments of faults")
    parser.add_argument("--only", nargs="*", choices=list(PIPELINES), default=list(PIPELINES), metavar="PIPELINE")
    parser.add_argument("--break", dest="broken", choices=BREAKS, default="", help="what runners do wrong, for tests")
    args = parser.parse_args()
    args.turn_s = min(TURN_S, 60 * args.minutes / len(args.only))
    args.sample_s = args.turn_s / SAMPLES_PER_TURN
    args.hang_s = 10.0 if args.broken == "hang" else 60.0
    grow_s = 4.0 if args.broken in ("memory", "descriptors") else 120.0
    args.grow_samples = max(8, grow_s / args.sample_s)  # a process that has fewer is not asked whether it grew
    return args


@contextlib.contextmanager
def made_tracks(args: argparse.Namespace, folder: Path) -> Iterator[list[Track]]:
    """For each pipeline a steady track and one whose runners are killed; no process is left afterwards."""
    data = str(folder / "data")
    write_files(data)
    pause_s = min(2.0, args.turn_s / 10)
    settings = Settings(data, args.hang_s, pause_s, small_disk=can_mount(folder / "tmp"), broken=args.broken)
    if not settings.small_disk:
        print("No disk will be full: this user cannot mount a small file system.")
    with contextlib.ExitStack() as stack:
        remote = [name for name in args.only if name.startswith("s3")]
        target = stack.enter_context(s3.server(data)) if remote else ""
        tracks = []
        for number, (name, is_steady) in enumerate(itertools.product(args.only, (True, False))):
            proxy = s3.Proxy(target, args.seed + number) if name in remote else None
            tracks.append(Track(name, folder / str(number), settings, proxy=proxy, is_steady=is_steady))
            stack.callback(tracks[-1].kill)
        yield tracks


def soak(tracks: list[Track], args: argparse.Namespace, begin: float) -> None:
    """Lets both lanes run, and takes samples meanwhile."""
    next_report, end = begin + 60, begin + 60 * args.minutes
    lanes = [in_thread(run_lane, tracks[first::2], args, end) for first in (0, 1)]
    while not all(lane.done() for lane in lanes):
        for track in tracks:
            track.sample()
        if time.monotonic() > next_report:
            next_report += 60
            print(f"{(time.monotonic() - begin) / 60:.0f} min: {summary(tracks)}", flush=True)
        time.sleep(args.sample_s)
    for lane in lanes:
        lane.result()


def in_thread(function: Callable[..., None], *args: Any) -> Future[None]:
    """Unlike a thread of an executor, this one does not keep the program from ending after Ctrl-C."""
    result: Future[None] = Future()

    def run() -> None:
        try:
            result.set_result(function(*args))
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return result


def run_lane(tracks: list[Track], args: argparse.Namespace, end: float) -> None:
    """Turns of one pipeline after the other."""
    chance = random.Random(f"{args.seed} {tracks[0].is_steady}")
    for round_number in itertools.count():
        for track in tracks:
            if (round_number and time.monotonic() > end) or all(track.failure for track in tracks):
                for each in tracks:
                    each.finish()
                return
            if not track.failure:
                take_turn(track, chance, args.turn_s)


def take_turn(track: Track, chance: random.Random, turn_s: float) -> None:
    end = time.monotonic() + turn_s
    track.begin_turn(chance)
    while track.wait_for_outputs(3):
        time.sleep(chance.uniform(0, turn_s / (4 if track.is_steady else 8)))
        faults = faults_of(track)
        weights = [RARELY_IN_STEADY.get(kind, 1.0) if track.is_steady else 1.0 for kind in faults]
        (kind,) = chance.choices(list(faults), weights)
        faults[kind](track, chance)
        if track.wait_for_outputs(3) and kind != "interrupted":  # which the runner reports
            track.survived[kind] += 1
        if time.monotonic() > end:
            break
    track.end_turn(chance)


# ---- what it finds


def quarters(series: Sequence[float], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """A number for the second and for the last quarter; before these, a process warms up."""
    quarter = len(series) // 4
    return of(series[quarter : 2 * quarter]), of(series[-quarter:])


def grown(track: Track, least_samples: float) -> Iterator[str]:
    """What has grown in a steady runner, and in the workers that lived long enough."""
    if not track.is_steady or len(track.consumer_mb) < least_samples:
        return
    with_shared_mb = list(map(sum, zip(track.consumer_mb, track.shared_mb, strict=True)))
    before, after = quarters(with_shared_mb, statistics.median)
    if after > before * (1 + MOST_GROWTH):
        yield f"the memory of the consumer grew from {before:.1f} to {after:.1f} MB"
    lives = [quarters(life, statistics.median) for life in track.worker_mb.values() if len(life) >= least_samples]
    if lives and statistics.median(after / before for before, after in lives) > 1 + MOST_GROWTH:
        grew = ", ".join(f"{before:.1f} to {after:.1f} MB" for before, after in lives)
        yield f"the memory of workers grew: {grew}"
    for name, series in (("descriptors", track.descriptors), ("threads", track.threads)):
        # They go up and down with what is open, and while a worker is replaced. What leaks raises the fewest as well as
        # the usual number.
        (least, least_after), (before, after) = quarters(series, min), quarters(series, statistics.median)
        if least_after > least and after > before:
            yield f"the {name} of the consumer grew from {before:.0f} to {after:.0f}"


def left(tracks: list[Track], temporary: Path) -> Iterator[str]:
    """What is left after the end, apart from workers, for which tracks look themselves."""
    # A process removes the shared memory of processes that were killed when it first makes some itself.
    sweep = "from headrace.sources import InMemoryDataSource; InMemoryDataSource([0])"
    subprocess.run([sys.executable, "-c", sweep], check=True, timeout=LIMIT_S)
    made = set[str]().union(*(track.named_memory for track in tracks))
    yield from (f"shared memory {name}" for name in made & named_memory())
    yield from (f"temporary file {path.name}" for path in temporary.iterdir())


def summary(tracks: list[Track]) -> str:
    num_failures = sum(bool(track.failure) for track in tracks)
    faults = sum(track.faults().total() for track in tracks)
    return f"{sum(track.outputs for track in tracks):,} outputs, {faults:,} faults survived, {num_failures} failures"


def report(tracks: list[Track], seconds: float) -> None:
    for steady, mortal in zip(tracks[::2], tracks[1::2], strict=True):
        faults = steady.faults() + mortal.faults()
        print(f"\n{steady.name}: {steady.outputs + mortal.outputs:,} outputs, {faults.total():,} faults survived")
        print("  " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())))
        for name, series, unit in (
            ("consumer", steady.consumer_mb, " MB"),
            ("shared", steady.shared_mb, " MB"),
            ("a worker", steady.workers_mb, " MB"),
            ("descriptors", steady.descriptors, ""),
            ("threads", steady.threads, ""),
        ):
            if len(series) >= 8:
                before, after = quarters(series, statistics.median)
                print(f"  {name:12}{before:7.1f} → {after:6.1f}{unit:4}{plot(series)}")
    print(f"\n{seconds / 60:.1f} minutes: {summary(tracks)}")


def plot(series: Sequence[float]) -> str:
    """The series as bars, from zero up."""
    width = min(PLOT_WIDTH, len(series))
    bins = [series[i * len(series) // width : (i + 1) * len(series) // width] for i in range(width)]
    top = max(series) or 1
    return "".join(BARS[min(int(statistics.mean(part) / top * len(BARS)), len(BARS) - 1)] for part in bins)


if __name__ == "__main__":
    sys.exit(main())
