"""What limits a run, in two sentences."""

from typing import TYPE_CHECKING

from headrace.stats.bounds import WAITING, Bounds, PartCost

if TYPE_CHECKING:
    from headrace.stats import Stats

FEWEST = 8  # with fewer outputs, nothing is known
SMALL = 0.1  # a smaller share of the time does not matter
PLENTY = 2.0  # a loader this many times as fast as the loop is more than fast enough
IN_USE = 0.5  # with a smaller share of the cores in use, cores are not the limit
WORTH = 1.2  # a smaller gain is not worth a change
OF = {"workers": "the workers' time", "threads": "the threads' time", "thread": "the prefetch thread's time"}


def verdict(stats: "Stats") -> str:
    """What limits a run."""
    if stats.elements < FEWEST or not stats.wall_s:
        return f"No verdict yet: {stats.elements} elements are too few."
    bounds = Bounds.of(stats)
    if stats.next_s < SMALL * stats.wall_s or _waits_by_chance(stats, bounds):
        return _loop_verdict(stats, bounds)
    slowest = bounds.slowest
    own_s = stats.next_s - stats.waited_s
    # The consumer's own time includes waiting for the GIL, so a part that is slower than it is the bottleneck anyway.
    if slowest is not None and (
        stats.waited_s > own_s or slowest.rate * bounds.own_s < 1 or _holds_the_gil(bounds, slowest)
    ):
        return f"{_culprit(stats, slowest)} {_advice(stats, bounds)}"
    where = f"{stats.next_s / stats.wall_s:.0%} of the time is spent in `next()`"
    return f"{culprit(stats, 'consumer', where)} {_advice(stats, bounds)}"


def _holds_the_gil(bounds: Bounds, part: PartCost) -> bool:
    """Whether the consumer was kept off a core while threads of its process were on one."""
    return part.where != "workers" and bounds.own_cpu_s < WAITING * bounds.own_s < part.cpu_s


def _waits_by_chance(stats: "Stats", bounds: Bounds) -> bool:
    """Whether threads or workers could give far more than the loop takes, and were only late at times."""
    return bool(bounds.parts) and stats.consumer_s > stats.next_s and bounds.alone * bounds.loop_s > PLENTY


def _loop_verdict(stats: "Stats", bounds: Bounds) -> str:
    share = stats.consumer_s / stats.wall_s
    factor = bounds.alone / stats.rate
    return (
        f"The training loop is the bottleneck ({100 * share:.0f} % of wall time). The loader could "
        f"deliver {significant(factor)} × as many elements."
    )


def _culprit(stats: "Stats", part: PartCost) -> str:
    in_use = f"{stats.cpu_s / stats.wall_s:.2g} of {Bounds.of(stats).cores} cores are in use"
    return culprit(stats, part.where, in_use)


def culprit(stats: "Stats", where: str, more: str = "") -> str:
    """The operation that takes most of the time there."""
    there = [each for each in stats.operations if each.where == where and each.seconds > 0]
    if not there:
        return "The slowest operation is not known."
    total_s = sum(each.seconds for each in there)
    longest = there[0]
    share = f"{longest.seconds / total_s:.0%} of {OF.get(where, 'what the consumer computes')}"
    return f"{longest.operation} is the bottleneck: {share}{f'; {more}' if more else ''}."


def _advice(stats: "Stats", bounds: Bounds) -> str:
    if bounds.reading_waits:
        return _advice_on_threads(stats, bounds)
    workers = next((part.number for part in bounds.parts if part.where == "workers"), 0)
    best = bounds.best_workers()
    rate = bounds.with_workers(best)
    taken = rate if not bounds.loop_s else min(rate, 1 / bounds.loop_s)
    if best <= workers or taken < WORTH * stats.rate:
        return f"More workers would not help: {_limit(stats, bounds, max(best, workers))}."
    return f"`.mp_prefetch({best})` would give about {significant(taken)} elements/s."


def _advice_on_threads(stats: "Stats", bounds: Bounds) -> str:
    waits = f"It mostly waits: it uses a core for only {bounds.cpu_s / bounds.work_s:.0%} of its time."
    threads = max((part.number for part in bounds.parts if part.where == "threads"), default=0)
    best = bounds.best_threads()
    rate = min(bounds.with_threads(best), 1 / bounds.loop_s if bounds.loop_s else float("inf"))
    if best <= threads or rate < WORTH * stats.rate:
        return f"{waits} More than {threads} threads would not help."
    return f"{waits} `to_iter_dataset({with_threads(best)})` would give about {significant(rate)} elements/s."


def with_threads(number: int) -> str:
    """The options for so many threads, with room for what they read."""
    return f"ReadOptions(num_threads={number})"


def significant(number: float) -> str:
    """A number with two or three digits that count: 4,100, 37, 2.1."""
    if number >= 100:
        size = 10 ** (len(str(int(number))) - 2)
        return f"{round(number / size) * size:,}"
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _limit(stats: "Stats", bounds: Bounds, number: int) -> str:
    """What keeps more workers from helping."""
    cpu_s = bounds.cpu_s
    rate = bounds.with_workers(max(number, 1))
    if bounds.loop_s and rate >= 1 / bounds.loop_s:
        return "the loop itself could not consume more"
    if cpu_s < WAITING * bounds.work_s:
        return (
            "they mostly wait, and threads can do that as well: move what waits before "
            "`to_iter_dataset(ReadOptions(num_threads=64))`"
        )
    if cpu_s / bounds.cores < bounds.own_s:
        return "receiving their results costs the consumer as much"
    if stats.cpu_s < IN_USE * bounds.cores * stats.wall_s:
        return f"{number} could give {significant(rate)} elements/s, but may still be starting or wait for each other"
    return f"all {bounds.cores} cores are needed already" if bounds.cores > 1 else "the one core is in use"
