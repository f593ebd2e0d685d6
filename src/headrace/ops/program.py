"""A chain of index operations as one program from output indices to a source's indices.

For a run of consecutive indices, the program computes an aligned block that holds it, and answers later runs from
that block. The block's size follows from the lengths of runs and the time that blocks take, so the first element is
never late, and a mix of many small parts never holds large blocks.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.ops.blocks import Indices, as_array
from headrace.ops.buffer import Cache
from headrace.ops.op import ENDLESS, Op
from headrace.ops.order import IndexOp, Repeat, Shuffle, Slice
from headrace.ops.source import SeededSource, Source

FIRST_BLOCK = 1 << 6
LARGEST_BLOCK = 1 << 16
LARGEST_BLOCK_RUNS = (
    512  # the most runs in a block larger than `SMALL_BLOCK`, so that the blocks of many parts stay small
)
SMALL_BLOCK = 1 << 10  # a block may always have this size, however few the runs
LARGEST_TOGETHER = 1 << 14  # the most outputs for which the parts of a mix are planned together
PLAN_TOGETHER_S = 0.02  # planning together does not grow once it takes this long
KEPT_TOGETHER = 4  # how many blocks planned together are kept, since threads may be reading them
PLAN_S = 0.004  # the longest that a block should take to compute, judging by the last one

PlannedBlock = tuple[int, int, np.ndarray]
"""The first of some consecutive indices, where they end, and what a program makes of them."""


def split_index_program(op: Op) -> "tuple[Program, Op]":
    """The index operations at the end of a chain as a program, and the operation before them."""
    steps: list[IndexOp] = []
    while isinstance(op, IndexOp) and not isinstance(op, Cache):
        steps.append(op)
        op = op.parent
    later_epochs_are_alike = (isinstance(op, Source) or op.gathers_columns) and not isinstance(op, SeededSource)
    return Program(steps, modulo=op.length() if later_epochs_are_alike else None), op


class Program:
    """A function from output indices to parent indices; callers share the result and must not write to it.

    With `modulo`, a source's length, indices of later epochs become those of the first.
    """

    def __init__(self, steps: list[IndexOp], *, modulo: int | None):
        self.modulo = modulo
        self.steps = [step for step in steps if not _does_nothing(step)]
        self._epoch = self.steps[0].length() if self.steps else 0
        self.affine = all(isinstance(step, Slice) for step in self.steps)
        self._index_s = PLAN_S / FIRST_BLOCK  # the cost of an index, measured on the last block
        self.block: PlannedBlock = (0, 0, np.empty(0, np.int64))

    def __call__(self, idx: Indices) -> Indices:
        if not isinstance(idx, range):
            return self._run(idx)
        if self.affine:
            return self._within(self._slices_of_range(idx))
        if idx.step != 1:
            return self._run(as_array(idx))
        first, last, values = self.block  # read once: other threads may replace it
        if not (first <= idx.start and idx.stop <= last):
            if len(idx) <= 2:
                return self._run(as_array(idx))
            if first <= idx.start < last:  # a run that continues into the next block
                return np.concatenate([values[idx.start - first :], as_array(self(range(last, idx.stop)))])
            first, last, values = self._plan(idx)
        return values[idx.start - first : idx.stop - first]

    def _run(self, idx: np.ndarray) -> np.ndarray:
        for step in self.steps:
            idx = step.indices(idx)
        return as_array(self._within(idx))

    def _within(self, idx: Indices) -> Indices:
        """Indices modulo the source's length; it divides only where it must, because division is slow."""
        n = self.modulo
        if n is None or not len(idx):
            return idx
        if isinstance(idx, range):
            if _lies_within(idx, n):
                return idx
            idx = as_array(idx)
        first = int(idx.min()) // n
        last = int(idx.max()) // n
        if first == last:
            return idx - first * n if first else idx
        return idx % n

    def _plan(self, idx: range) -> PlannedBlock:
        """Computes the aligned block that holds a run, or just the run if it extends into another block."""
        # A shuffle is cheaper in large blocks, but small windows are expensive, and planning many would stall.
        affordable = int(PLAN_S / self._index_s)
        size = max(len(idx), min(affordable, LARGEST_BLOCK, max(LARGEST_BLOCK_RUNS * len(idx), SMALL_BLOCK)))
        size = 1 << (size - 1).bit_length()
        start = idx.start // self._epoch * self._epoch  # an epoch's order is its own: a block stays within one
        end = start + self._epoch
        first = start + (idx.start - start) // size * size
        last = min(first + size, end)
        if idx.stop > last:
            return idx.start, idx.stop, self._run(as_array(idx))
        begin = time.perf_counter()
        values = self._run(np.arange(first, last))
        values.setflags(write=False)
        self._index_s = max((time.perf_counter() - begin) / len(values), 1e-9)
        self.block = block = first, last, values
        return block  # other threads may have replaced it

    def _slices_of_range(self, idx: range) -> Indices:
        out: Indices = idx
        for step in self.steps:
            assert isinstance(step, Slice)
            if isinstance(out, range) and _lies_within(out, step.count):
                start = out.start * step.step + step.start
                stride = out.step * step.step
                out = range(start, start + len(out) * stride, stride)
            else:
                out = step.indices(as_array(out))
        return out


class Together:
    """The index programs of many parts, run together for some outputs, because each part has only few of them.

    `route(idx)` says which part each output comes from and its index there; those of a part are consecutive.
    """

    def __init__(self, route: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]):
        self._route = route
        self._size = FIRST_BLOCK
        self._planned: list[tuple[int, int, dict[int, PlannedBlock]]] = []

    def blocks(self, idx: range, program_of: Callable[[int], Program | None]) -> dict[int, PlannedBlock]:
        """A block with the indices of these outputs for each part that has a program."""
        for first, last, blocks in self._planned:
            if first <= idx.start and idx.stop <= last:
                return blocks
        stop = min(idx.start + max(2 * len(idx), self._size), ENDLESS)
        begin = time.perf_counter()
        blocks = self._run(np.arange(idx.start, stop), program_of)
        # Few outputs cost as much as many, so a slow block is no reason for a small one until it is very slow.
        if time.perf_counter() - begin < PLAN_TOGETHER_S:
            self._size = min(2 * self._size, LARGEST_TOGETHER)
        # A new list, because other threads may be reading the old one.
        self._planned = [(idx.start, stop, blocks), *self._planned[: KEPT_TOGETHER - 1]]
        return blocks

    def _run(self, outputs: np.ndarray, program_of: Callable[[int], Program | None]) -> dict[int, PlannedBlock]:
        which, inner = self._route(outputs)
        programs = {part: program_of(part) for part in np.flatnonzero(np.bincount(which)).tolist()}
        planned = {part: program for part, program in programs.items() if program is not None and not program.affine}
        if not planned:
            return {}
        order = np.argsort(which, kind="stable")
        if len(planned) < len(programs):
            order = order[np.isin(which[order], list(planned))]
        counts = np.bincount(which[order])[list(planned)]
        ends = np.cumsum(counts)
        idx = inner[order]
        firsts = idx[ends - counts]
        values = run_together(list(planned.values()), idx, counts)
        values.setflags(write=False)
        bounds = (each.tolist() for each in (firsts, firsts + counts, ends - counts, ends))
        return {part: (first, last, values[a:b]) for part, first, last, a, b in zip(planned, *bounds, strict=True)}


def run_together(programs: Sequence[Program], idx: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """What programs make of their indices: `counts[i]` of each, one's after the other's."""
    ends = np.cumsum(counts)
    steps = [program.steps[::-1] for program in programs]
    of = np.repeat(np.arange(len(counts)), counts)
    waiting = list(range(len(programs)))
    while waiting:
        for i in waiting:
            while steps[i] and not isinstance(steps[i][-1], Shuffle):
                mine = slice(ends[i] - counts[i], ends[i])
                idx[mine] = steps[i].pop().indices(idx[mine])
        waiting = [i for i in waiting if steps[i]]
        if waiting:
            shuffles: Any = [steps[i].pop() for i in waiting]
            here = np.flatnonzero(np.isin(of, waiting))
            idx[here] = Shuffle.indices_together(shuffles, idx[here], counts[waiting])
    return idx % np.array([program.modulo or ENDLESS for program in programs])[of]


def _does_nothing(step: IndexOp) -> bool:
    return step.is_transparent or (isinstance(step, Repeat) and step.reseed_each_epoch)


def _lies_within(idx: range, length: int) -> bool:
    """Whether all indices of an ascending or descending range are in the first epoch."""
    return len(idx) == 0 or (0 <= idx[0] < length and 0 <= idx[-1] < length)
