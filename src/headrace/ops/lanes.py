"""Lanes: a stream cut into parts that can be computed apart from each other.

Element `i` of lane `l` of `L` counts as number `i * L + l` of the stream. A lane is an ordinary stream: the one where
`to_iter_dataset()` reads every `L`-th element of the random-access chain from `l` on, and every later operation works
on what comes from there. So a stream of several lanes is a template, and `in_lane` makes a lane of it.
"""

from dataclasses import dataclass

from headrace.errors import PipelineError
from headrace.ops.op import Op, parents_first
from headrace.rng import derive_seed


@dataclass(frozen=True)
class Lane:
    """One lane of several."""

    index: int = 0
    count: int = 1

    def numbers(self, first: int, stop: int) -> range:
        """The numbers in the whole stream of a lane's elements from `first` to `stop`."""
        return range(first * self.count + self.index, stop * self.count + self.index, self.count)

    def below(self, number: int) -> int:
        """How many of the lane's elements have a number below this one."""
        return len(range(self.index, number, self.count))

    def seed(self, seed: int | None) -> int | None:
        """A separate seed for each lane."""
        return seed if seed is None or self.count == 1 else derive_seed([(seed, self.index)])


WHOLE = Lane()


def in_lane(op: Op, lane: Lane) -> Op:
    """One lane of a stream."""
    made: dict[Op, Op] = {}
    for each in parents_first(op, lambda op: op.lanes > 1, lambda op: () if op.hides_parents else op.parents):
        made[each] = each.in_lane(lane, tuple(made.get(parent, parent) for parent in each.parents))
    return made[op]


def check_same_lanes(op: Op) -> None:
    """Raises unless the parts of a combination of streams have the same number of lanes."""
    counts = [part.lanes for part in op.parents if part.is_stream]
    if len(set(counts)) > 1:
        shown = ", ".join(map(str, counts[:8])) + (", ..." if len(counts) > 8 else "")
        raise PipelineError(
            f"`{op.name}` needs parts with the same number of lanes; got {shown}. Give each part "
            f"`to_iter_dataset(num_lanes={max(counts)})`."
        )
