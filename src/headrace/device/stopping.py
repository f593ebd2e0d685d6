"""Lets all processes of a distributed program end at the same step."""

import itertools
from dataclasses import dataclass, field

from headrace.dataset import IterDataset
from headrace.device.ranks import warn_of_ranks_without_jax
from headrace.device.session import session
from headrace.engine.hosts import Hosts
from headrace.errors import PipelineError
from headrace.ops.op import ProcessLocal, Unary
from headrace.ops.streams import Context, Position, Run, Stream, UnaryStream, open_stream, stream_of
from headrace.ops.streams.stream import Feed, start_at
from headrace.options import check_counts

_numbers = itertools.count()
MOST_AGREED = 4096  # steps that were computed ahead, in units of `every`


def stop_together(ds: IterDataset, *, every: int = 8) -> IterDataset:
    """Ends a dataset at the same step in all processes of a distributed JAX program.

    Every few steps, the processes exchange how many elements they have, and all stop after the smallest number: a
    process with more drops the rest. Put it before `device_put`.

    >>> from headrace import MapDataset
    >>> list(stop_together(MapDataset.range(5).filter(lambda x: x != 2).to_iter_dataset()))
    [0, 1, 3, 4]

    Differs from Grain: only Headrace has it.

    Args:
        ds: The dataset; all processes must make and iterate over the same ones, in the same order.
        every: After how many elements to ask again. Each process computes this many ahead.
    """
    if not isinstance(ds, IterDataset):
        hint = " Call `to_iter_dataset()` first." if hasattr(ds, "to_iter_dataset") else ""
        raise PipelineError(f"`stop_together` takes an IterDataset; got {type(ds).__name__}.{hint}")
    op = ds._op
    while op.upstream is not None:
        if op.name == "device_put":
            raise PipelineError(
                "`stop_together` prefetches elements, which must still be on the host: put it before `device_put`."
            )
        op = op.upstream
    warn_of_ranks_without_jax(stacklevel=3)
    return ds._then(StopTogether(ds._op, every, next(_numbers)))


in_step = stop_together  # its first name


@dataclass(frozen=True, eq=False, repr=False)
class StopTogether(Unary):
    """The same elements, until one of the processes has no more."""

    name = "stop_together"
    former_name = "in_step"
    state_fields = ("step",)
    group_fields = order_params = ()
    ends_together = runs_in_consumer = True
    every: int
    number: int = field(repr=False)
    kept: ProcessLocal = field(default_factory=ProcessLocal, repr=False)

    def __post_init__(self):
        check_counts(self, "every", least=1)

    def identity(self) -> None:
        return None

    def how(self) -> str:
        return f"ordering point: processes agree every {self.every} elements"

    def __reduce__(self):
        raise PipelineError(
            "`stop_together` cannot run in a worker process, which is not one of JAX's processes. Put `mp_prefetch` "
            "before it."
        )


class StopTogetherStream(UnaryStream):
    """Yields what all processes have; position: (how many elements so far, the parent's position)."""

    def __init__(self, op: StopTogether, step: int, parent: Stream, hosts: Hosts, key: str, agreed: "_Agreed"):
        super().__init__((step, parent.position), parent)
        self._every = op.every
        self._hosts = hosts
        self._key = key
        self._feed = Feed(parent)
        self._until = step
        self._agreed = agreed
        self._compared = op.parent

    def pull(self, n: int) -> Run | None:
        step = self.position[0]
        if step == self._until:
            self._agree(step, single_step=n == 0)
            if step == self._until:
                return None
        count = min(max(n, 1), self._until - step)
        self._feed.fill(count, single_step=n == 0)
        after = self._feed.positions()
        return self._run(self._feed.take(count), lambda j: (step + j, after(j)))

    def _agree(self, step: int, *, single_step: bool) -> None:
        """Asks all processes how far they can go before the next exchange; at first, whether they read the same."""
        if not self._agreed:
            self._hosts.compare(f"{self._key}/pipeline", self._compared)
        stop = (step // self._every + 1) * self._every
        error = None
        try:
            self._feed.fill(stop - step, single_step=single_step)
        except Exception as e:
            if not single_step:
                raise  # it may not come again
            error = e
        mine = f"{min(stop, step + self._feed.size)} {type(error).__name__ if error else ''}"
        if stop not in self._agreed:
            self._agreed[stop] = self._hosts.exchange(f"{self._key}/{stop}", mine)
        said = [each.partition(" ") for each in self._agreed[stop]]
        self._until = min(int(until) for until, _, _ in said)
        if self._until == step:
            if error is not None:
                raise error
            for i, (_, _, failure) in enumerate(said):
                if failure:
                    raise PipelineError(
                        f"Process {i} failed with {failure} at step {step}; see the error of that process."
                    )
        self._hosts.forget(f"{self._key}/{stop - 2 * self._every}")
        while len(self._agreed) > MOST_AGREED:
            del self._agreed[next(iter(self._agreed))]


class _Agreed(dict[int, list[str]]):
    """What an iterator has learned from all processes, kept for reopened streams: no process sends it twice."""


@stream_of.register
def _(op: StopTogether, position: Position, context: Context) -> Stream:
    step, inner = start_at(op, position)
    key = f"stop_together {op.number}/{session(op, context)}"
    agreed = context.kept.of(_AllAgreed).setdefault(key, _Agreed())
    return StopTogetherStream(op, step, open_stream(op.parent, inner, context), Hosts(), key, agreed)


class _AllAgreed(dict[str, _Agreed]):
    """The same for each `stop_together` of an iterator."""
