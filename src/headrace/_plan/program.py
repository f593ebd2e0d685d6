"""Index operations one after the other, as one program from output indices to a source's indices.

A run of consecutive indices is looked up in an aligned block that is computed at once: its size follows the
runs that are asked for, so a first element is never late and many small parts never hold large blocks.
"""

import numpy as np

from headrace._ops.base import Op
from headrace._ops.buffer import Cache
from headrace._ops.order import IndexOp, Repeat, Slice
from headrace._plan.blocks import Indices, as_array

SMALLEST_BLOCK = 1 << 10
LARGEST_BLOCK = 1 << 16
BLOCK_RUNS = 8  # a block holds about this many runs


def split_index_program(op: Op) -> "tuple[Program | None, Op]":
    """The index operations at the end of a chain as a program, and the operation before them."""
    steps: list[IndexOp] = []
    while isinstance(op, IndexOp) and not isinstance(op, Cache):
        steps.append(op)
        op = op.parent
    return (Program(steps) if steps else None), op


class Program:
    """A function from output indices to parent indices; what it returns may be shared, and is not written to."""

    def __init__(self, steps: list[IndexOp]):
        self.steps = [step for step in steps if not (isinstance(step, Repeat) and step.reseed_each_epoch)]
        self._affine = all(isinstance(step, Slice) for step in self.steps)
        self._block: tuple[int, int, np.ndarray] = (0, 0, np.empty(0, np.int64))

    def __call__(self, idx: Indices) -> Indices:
        if not isinstance(idx, range):
            return self._run(idx)
        if self._affine:
            return self._slices_of_range(idx)
        if len(idx) <= 2 or idx.step != 1:
            return self._run(as_array(idx))
        first, last, values = self._block  # one read: threads may replace it meanwhile
        if not (first <= idx.start and idx.stop <= last):
            first, last, values = self._block = self._plan(idx)
        return values[idx.start - first : idx.stop - first]

    def _run(self, idx: np.ndarray) -> np.ndarray:
        for step in self.steps:
            idx = step.indices(idx)
        return idx

    def _plan(self, idx: range) -> tuple[int, int, np.ndarray]:
        """The aligned block, or two, that holds a run."""
        size = min(max(BLOCK_RUNS * len(idx), SMALLEST_BLOCK), LARGEST_BLOCK)
        size = 1 << (size - 1).bit_length()
        first = idx.start // size * size
        last = -(-idx.stop // size) * size
        values = self._run(np.arange(first, last))
        values.setflags(write=False)
        return first, last, values

    def _slices_of_range(self, idx: range) -> Indices:
        out: Indices = idx
        for step in self.steps:
            if isinstance(out, range) and isinstance(step, Slice) and out.start >= 0 and out.stop <= step.count:
                start = out.start * step.step + step.start
                stride = out.step * step.step
                out = range(start, start + len(out) * stride, stride)
            else:
                out = step.indices(as_array(out))
        return out
