"""Operations that this package does not know: what they say of themselves is all that the planner needs."""

from dataclasses import dataclass

import pytest

from headrace import MapDataset, MultiprocessingOptions
from headrace.ops.blocks import Block, Rows
from headrace.ops.op import Unary
from headrace.ops.streams import Context, Position, Run, Stream, UnaryStream, open_stream
from headrace.ops.streams.stream import GroupStream, start_at
from headrace.testing import assert_equal, assert_resumable


@dataclass(frozen=True, eq=False, repr=False)
class Doubled(Unary):
    """Twice every element."""

    name = "doubled"
    is_elementwise = True

    def open_stream(self, position: Position, context: Context) -> Stream:
        return DoubledStream(open_stream(self.parent, position, context))


class DoubledStream(UnaryStream):
    def __init__(self, parent: Stream):
        super().__init__(parent.position, parent)

    def pull(self, n: int) -> Run | None:
        run = self.parent.pull(n)
        return None if run is None else self._run(Rows([2 * x for x in run.block.own_rows()], owned=True), run.at)


@dataclass(frozen=True, eq=False, repr=False)
class Reversed(Unary):
    """Groups of elements, each from its end on."""

    name = "reversed"
    state_fields = ("group", "taken_of_group")
    group_fields = ("taken_of_group",)
    state_params = ("size",)
    only_reorders = True
    size: int

    def open_stream(self, position: Position, context: Context) -> Stream:
        group, taken, inner = start_at(self, position)
        return ReversedStream(self.size, group, taken, open_stream(self.parent, inner, context))


class ReversedStream(GroupStream):
    def __init__(self, size: int, *at):
        super().__init__(*at)
        self._size = size

    def _make(self, ordinal: int, *, single_step: bool) -> tuple[Block, Position] | None:
        self._feed.fill(self._size, single_step=single_step)
        block = self._feed.take(self._size)
        if not len(block):
            return None
        return Rows(block.own_rows()[::-1], owned=True), self._feed.positions()(0)


def stream():
    return MapDataset.range(23).to_iter_dataset()


def with_workers(ds, number):
    return ds.mp_prefetch(MultiprocessingOptions(num_workers=number))


def test_a_new_elementwise_operation_runs_in_workers():
    ds = stream()._then(Doubled(stream()._op))
    expected = [2 * x for x in range(23)]
    assert list(ds) == expected
    assert list(with_workers(ds, 2)) == expected
    assert_resumable(ds.batch(4))
    lines = str(with_workers(ds, 2).explain()).splitlines()
    (line,) = (line for line in lines if ".doubled" in line)
    assert "| worker:" in line


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_new_reordering_operation_gives_one_stream(number):
    before = stream().map(lambda x: x + 1)
    ds = before._then(Reversed(before._op, 5)).map(lambda x: (x, x * x))
    expected = [(x, x * x) for first in range(0, 23, 5) for x in reversed(range(first + 1, min(first + 5, 23) + 1))]
    assert list(with_workers(ds, number)) == expected
    assert_resumable(with_workers(ds, number))
    with iter(with_workers(ds, number)) as iterator:
        for _ in range(7):
            next(iterator)
        state = iterator.get_state()
    with iter(ds) as other:
        other.set_state(state)
        assert_equal(list(other), expected[7:])
    lines = str(with_workers(ds, 3).explain()).splitlines()
    (line,) = (line for line in lines if ".reversed" in line)
    assert "| consumer:" in line
