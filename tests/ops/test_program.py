"""Index programs, which all threads of a pipeline share."""

import numpy as np

from headrace import MapDataset
from headrace.ops.program import Program, split_index_program


class Contended(Program):
    """A program whose last block other threads have always just replaced."""

    block = property(lambda self: (10**6, 10**6, np.empty(0, np.int64)), lambda self, block: None)


def test_a_block_that_another_thread_has_replaced_is_still_this_one():
    program, source = split_index_program(MapDataset.range(1000).shuffle(seed=1).repeat(2)._op)
    contended = Contended(program.steps, modulo=source.length())
    for idx in (range(5, 40), range(990, 1010), range(1500, 1990)):
        assert contended(idx).tolist() == program(idx).tolist()
