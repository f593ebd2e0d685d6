"""How fast each part of a run could go, from what was measured: seconds of work for each output.

A run is as fast as its slowest part. The consumer does one thing after the other: what it computes of the pipeline, and
its own work. Workers and threads compute meanwhile, but all of them share the cores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.threads import num_cores

if TYPE_CHECKING:
    from headrace.stats import Stats


MOST_WORKERS = 64
ALWAYS_TRIED = 8  # up to this many workers may exceed the cores, since they may sleep or wait for data
ENOUGH = 0.95  # with this share of the best rate, more workers are not worth it
HANDOVER_S = 4e-6  # what an element from a worker costs the consumer, where that was not measured
MOST_THREADS = 128
WAITING = 0.5  # work that spends a smaller share of its time on a core waits, for example for storage
COPIED_BYTES = 4e9  # bytes per second copied into a worker's memory, where that was not measured


@dataclass(frozen=True)
class PartCost:
    """Threads or workers that compute a part of the pipeline.

    Attributes:
        where: Who: "threads", "thread" or "workers".
        number: How many of them.
        work_s: Their seconds of work for each output of the pipeline.
        cpu_s: How much of that is on a core.
    """

    where: str
    number: int
    work_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """How many outputs of the pipeline it could give per second."""
        return self.number / self.work_s if self.work_s else float("inf")


@dataclass(frozen=True)
class Bounds:
    """What each output costs.

    Attributes:
        loop_s: The consumer's own work between two outputs.
        own_s: What the consumer computes of the pipeline.
        own_cpu_s: How much of that is on a core.
        parts: What others compute.
        output_bytes: The size of an output.
        cores: How many cores there are.
        reads_s: How much of the consumer's and its threads' work is random access, which threads can compute.
    """

    loop_s: float
    own_s: float
    own_cpu_s: float
    parts: tuple[PartCost, ...]
    output_bytes: float
    cores: int
    reads_s: float = 0.0

    @classmethod
    def of(cls, stats: "Stats") -> "Bounds":
        """The costs of a run."""
        outputs = max(stats.elements, 1)
        parts: dict[str, PartCost] = {}
        for stage in stats.stages:
            if stage.where == "consumer":
                continue
            key = stage.stage if stage.where == "thread" else stage.where  # workers compute all stages in turn
            before = parts.get(key, PartCost(stage.where, 0, 0.0, 0.0))
            work_s = before.work_s + max(0.0, stage.busy_s - stage.starved_s) / outputs
            number = max(before.number, stage.computed_by)
            parts[key] = PartCost(stage.where, number, work_s, before.cpu_s + stage.cpu_s / outputs)
        made = tuple(parts.values())
        remote_cpu_s = sum(part.cpu_s for part in made)
        return cls(
            loop_s=stats.consumer_s / outputs,
            own_s=max(stats.next_s - stats.waited_s, 0.0) / outputs,
            own_cpu_s=max(stats.cpu_s / outputs - remote_cpu_s, 0.0),
            parts=made,
            output_bytes=stats.bytes / outputs,
            cores=num_cores(),
            reads_s=sum(stage.busy_s for stage in stats.stages if stage.where in ("consumer", "threads")) / outputs,
        )

    @property
    def work_s(self) -> float:
        """The seconds of work in an output, whoever does it."""
        return self.own_s + sum(part.work_s for part in self.parts)

    @property
    def cpu_s(self) -> float:
        """How much of that is on a core."""
        return self.own_cpu_s + sum(part.cpu_s for part in self.parts)

    @property
    def reading_waits(self) -> bool:
        """Whether most of the work is random access that waits, such as for storage: more threads wait at once."""
        return self.reads_s > WAITING * self.work_s and self.cpu_s < WAITING * self.work_s

    def with_threads(self, number: int) -> float:
        """How many outputs per second that many threads would give, if the consumer did nothing else."""
        return min(number / max(self.reads_s, 1e-9), 1 / max(self.cpu_s, 1e-9))

    def best_threads(self) -> int:
        """A power of two of threads that give about as much as any number, or as much as the consumer can take."""
        enough = 1 / self.loop_s if self.loop_s else float("inf")
        wanted = min(ENOUGH * self.with_threads(MOST_THREADS), enough)
        return next((1 << i for i in range(8) if self.with_threads(1 << i) >= wanted), MOST_THREADS)

    @property
    def slowest(self) -> PartCost | None:
        """The threads or workers that could give least."""
        return min(self.parts, key=lambda part: part.rate, default=None)

    @property
    def alone(self) -> float:
        """How many outputs per second the loader could give if the consumer did nothing else."""
        cpu_s = self.own_cpu_s + sum(part.cpu_s for part in self.parts)
        rates = [part.rate for part in self.parts]
        rates += [1 / seconds for seconds in (self.own_s, cpu_s / self.cores) if seconds > 0]
        return min(rates, default=float("inf"))

    def with_workers(self, number: int) -> float:
        """How many outputs per second that many workers would give, if the consumer did nothing else."""
        workers = next((part for part in self.parts if part.where == "workers"), None)
        if workers is not None:
            work_s = workers.work_s
            work_cpu_s = workers.cpu_s
            own_s = self.own_s
            own_cpu_s = self.own_cpu_s
        else:  # what the consumer and its threads compute now, and then the way to the consumer
            copy_s = self.output_bytes / COPIED_BYTES
            work_s = self.own_s + sum(part.work_s for part in self.parts) + copy_s
            work_cpu_s = self.own_cpu_s + sum(part.cpu_s for part in self.parts) + copy_s
            own_s = own_cpu_s = HANDOVER_S
        cpu_s = work_cpu_s + own_cpu_s
        rates = [number / max(work_s, 1e-9), 1 / max(own_s, 1e-9), self.cores / max(cpu_s, 1e-9)]
        return min(rates)

    def best_workers(self) -> int:
        """The fewest workers that give about as much as any number of them, or as much as the consumer can take."""
        return best_number(self.with_workers, self.cores, 1 / self.loop_s if self.loop_s else float("inf"))


def best_number(rate: Callable[[int], float], cores: int, enough: float = float("inf")) -> int:
    """The fewest workers whose rate is about the best one, or enough."""
    most = range(1, min(MOST_WORKERS, max(ALWAYS_TRIED, 2 * cores)) + 1)
    wanted = min(ENOUGH * max(map(rate, most)), enough)
    return next((number for number in most if rate(number) >= wanted), most[-1])


# --------------------------------------------------------------------------------------------------------- scaling
# What more workers give: predicted from what one of them does, and corrected by trials.
#
# One worker does not show what many of them share, such as the memory's bandwidth. A trial does: between two numbers of
# workers that were tried the correction changes evenly, and beyond the largest nothing more is expected.


class Scaling:
    """Outputs per second, by number of workers.

    >>> from headrace.stats.bounds import PartCost
    >>> workers = PartCost("workers", 1, work_s=0.01, cpu_s=0.01)
    >>> scaling = Scaling(Bounds(0.0, 1e-5, 1e-5, (workers,), output_bytes=8, cores=16))
    >>> [round(scaling.rate(number)) for number in (1, 4, 16, 32)]
    [100, 400, 1598, 1598]
    >>> scaling.learn(16, 400.0)
    >>> [round(scaling.rate(number)) for number in (1, 4, 16, 32)]
    [100, 200, 400, 400]
    >>> scaling.unknown()
    4
    """

    def __init__(self, bounds: Bounds):
        self._bounds = bounds
        self._factors = {1: 1.0}  # of the predictions, by number of workers

    def rate(self, number: int) -> float:
        """How many outputs per second that many workers give."""
        predicted = self._bounds.with_workers(number)
        known = sorted(self._factors)
        if number > known[-1] > 1:
            return min(predicted, self.rate(known[-1]))
        return predicted * self._factor(number, known)

    def without_trials(self, number: int) -> float:
        """What was predicted before any trial."""
        return self._bounds.with_workers(number)

    def _factor(self, number: int, known: list[int]) -> float:
        for low, high in pairwise(known):
            if low <= number <= high:
                way = math.log(number / low) / math.log(high / low)
                return self._factors[low] ** (1 - way) * self._factors[high] ** way
        return self._factors[known[0]]

    def best(self) -> int:
        """The fewest workers that give about as much as any number of them."""
        return best_number(self.rate, self._bounds.cores)

    def learn(self, number: int, rate: float) -> None:
        """Takes in what a trial gave."""
        self._factors[number] = max(rate, 1e-9) / self._bounds.with_workers(number)

    def unknown(self) -> int | None:
        """A number half way between those that were tried, where most of them have not been."""
        known = sorted(self._factors)
        low, high = max(pairwise(known), key=lambda pair: pair[1] / pair[0], default=(1, 1))
        middle = round(math.sqrt(low * high))
        return None if middle in self._factors else middle
