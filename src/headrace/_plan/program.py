"""A chain of index operations as one program from output indices to a source's indices.

For a run of consecutive indices, the program computes an aligned block that holds it, and answers later runs from
that block. The block's size follows from the lengths of runs and the time that blocks take, so the first element is
never late, and a mix of many small parts never holds large blocks.
"""

import time

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import Cache
from headrace._ops.order import IndexOp, Repeat, Slice
from headrace._ops.source import SeededSource, Source
from headrace._plan.blocks import Indices, as_array

FIRST_BLOCK = 1 << 6
LARGEST_BLOCK = 1 << 16
LARGEST_BLOCK_RUNS = 512  # the most runs in a block, so that the blocks of many parts stay small,
SMALL_BLOCK = 1 << 10  # though blocks may always have this size
PLAN_S = 0.004  # the longest that a block should take to compute, judging by the last one


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
        self._modulo = modulo
        self.steps = [step for step in steps if not (isinstance(step, Repeat) and step.reseed_each_epoch)]
        self._epoch = self.steps[0].length() if self.steps else 0
        self._affine = all(isinstance(step, Slice) for step in self.steps)
        self._index_s = PLAN_S / FIRST_BLOCK  # the cost of an index, measured on the last block
        self._block: tuple[int, int, np.ndarray] = (0, 0, np.empty(0, np.int64))

    def __call__(self, idx: Indices) -> Indices:
        if not isinstance(idx, range):
            return self._run(idx)
        if self._affine:
            return self._within(self._slices_of_range(idx))
        if idx.step != 1:
            return self._run(as_array(idx))
        first, last, values = self._block  # read once: other threads may replace it
        if not (first <= idx.start and idx.stop <= last):
            if len(idx) <= 2:
                return self._run(as_array(idx))
            if first <= idx.start < last:  # a run that goes on into the next block
                return np.concatenate([values[idx.start - first :], as_array(self(range(last, idx.stop)))])
            first, last, values = self._plan(idx)
        return values[idx.start - first : idx.stop - first]

    def _run(self, idx: np.ndarray) -> np.ndarray:
        for step in self.steps:
            idx = step.indices(idx)
        return as_array(self._within(idx))

    def _within(self, idx: Indices) -> Indices:
        """Indices modulo the source's length; it divides only where it must, because division is slow."""
        n = self._modulo
        if n is None or not len(idx):
            return idx
        if isinstance(idx, range):
            if _lies_within(idx, n):
                return idx
            idx = as_array(idx)
        first, last = int(idx.min()) // n, int(idx.max()) // n
        if first == last:
            return idx - first * n if first else idx
        return idx % n

    def _plan(self, idx: range) -> tuple[int, int, np.ndarray]:
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
        self._block = block = first, last, values
        return block  # other threads may have replaced it

    def _slices_of_range(self, idx: range) -> Indices:
        out: Indices = idx
        for step in self.steps:
            assert isinstance(step, Slice)
            if isinstance(out, range) and _lies_within(out, step.count):
                start, stride = out.start * step.step + step.start, out.step * step.step
                out = range(start, start + len(out) * stride, stride)
            else:
                out = step.indices(as_array(out))
        return out


def _lies_within(idx: range, length: int) -> bool:
    """Whether all indices of an ascending or descending range are in the first epoch."""
    return len(idx) == 0 or (0 <= idx[0] < length and 0 <= idx[-1] < length)
