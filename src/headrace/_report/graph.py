"""A pipeline as a graph of nodes, as it was written, with who computes each of its operations."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace._ops.base import Op
from headrace._ops.combine import Interleave, Nary
from headrace._plan.plan import CONSUMER, Plan, Step
from headrace._plan.show import lines

MOST_PARTS = 8
MOST_NODES = 100  # of one chain


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes:
        number: Its number in the graph.
        op: The operation itself.
        label: The operation with its arguments.
        where: "consumer" or "worker".
        how: How it is computed.
        reason: Why a stage begins with it, if one does.
    """

    number: int
    op: Op
    label: str
    where: str
    how: str
    reason: str

    @property
    def line(self) -> str:
        """The file and line of the user's code that built it."""
        return self.op.site

    @property
    def seed(self) -> Any:
        """The seed of a random operation."""
        return getattr(self.op, "seed", None)

    @property
    def key(self) -> str:
        """The name that statistics have for it."""
        return self.op.label()


@dataclass
class Chain:
    """Operations one after the other; the first one is a source, or it joins parts.

    Attributes:
        parts: The chains that the first operation joins.
        nodes: The operations.
        num_left_out: How many parts, and how many operations, are too many to show.
    """

    nodes: list[Node]
    parts: list["Chain"] = field(default_factory=list)
    num_left_out: tuple[int, int] = (0, 0)


class Graph:
    """The nodes of a pipeline."""

    def __init__(self, plan: Plan):
        self.nodes: list[Node] = []
        self._steps: dict[tuple[str, str], list[Step]] = defaultdict(list)
        for step in plan.steps:
            self._steps[step.op.label(), step.op.site].append(step)
        self.chain = self._chain(plan.op)

    @cached_property
    def _numbers(self) -> dict[Op, int]:
        return {node.op: node.number for node in reversed(self.nodes)}

    def number_of(self, op: Op) -> int | None:
        """The number of an operation's node; `None` if it is not shown."""
        return self._numbers.get(op)

    def _chain(self, last: Op) -> Chain:
        after: list[Op] = []
        op = last
        while len(op.parents) == 1 and not isinstance(op, Nary | Interleave):
            after.append(op)
            op = op.parents[0]
        parts = [self._chain(parent) for parent in op.parents[:MOST_PARTS]]
        in_order, half = after[::-1], MOST_NODES // 2
        shown = in_order if len(after) <= MOST_NODES else in_order[:half] + in_order[-half:]
        nodes = [self._node(each) for each in (op, *shown)]
        return Chain(nodes, parts, (len(op.parents) - len(parts), len(after) - len(shown)))

    def _node(self, op: Op) -> Node:
        steps = self._steps[op.label(), op.site]
        step = steps.pop(0) if len(steps) > 1 else steps[0] if steps else None  # as many as there are alike
        where = (step.where if step is not None else None) or CONSUMER
        how, reason = ("", "") if step is None else (step.how, step.reason)
        node = Node(len(self.nodes), op, label_of(op), where, how, reason)
        self.nodes.append(node)
        return node


def label_of(op: Op) -> str:
    """An operation for display; a source as its user wrote it."""
    return op.label() if op.parents else lines(op)[0].label.removeprefix("MapDataset.")
