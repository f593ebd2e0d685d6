"""What a fork of the consumer may do: `python -m tests.support.forks CHECK`."""

import os
import signal
import sys
from functools import partial

import numpy as np

from headrace import MapDataset
from tests.support.pipelines import PIPELINES, TWO, assert_same, by_index, expected
from tests.support.proc import nothing_left


def in_fork(function):
    """Runs a function in a fork of this process; whether it went well."""
    fork = os.fork()
    if fork == 0:
        signal.alarm(60)
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitpid(fork, 0)[1] == 0


def leaves_the_workers_alone(name):
    with nothing_left(), iter(PIPELINES[name]().mp_prefetch(TWO)) as iterator:
        batches = [next(iterator) for _ in range(3)]
        assert in_fork(lambda: iterator.close() is None)
        batches += iterator
        assert_same(batches, expected(name))
        del batches
        iterator.close()


def goes_on_by_itself(name):
    ds = PIPELINES[name]().mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        batches = [next(iterator) for _ in range(3)]
        rest = expected(name)[3:]
        assert in_fork(lambda: [int(b["i"][0]) for b in iterator] == [int(b["i"][0]) for b in rest])
        batches += iterator
        assert_same(batches, expected(name))
        count = len(batches)
        assert in_fork(lambda: len(list(ds)) == count)  # workers that wait for the next epoch are the parent's
        assert_same(list(ds), batches)
        del batches
        iterator.close()


def drops_an_iterator_that_a_thread_computes():
    with nothing_left(), iter(by_index().mp_prefetch(TWO).prefetch(2)) as iterator:
        first = next(iterator)
        assert in_fork(lambda: iterator.close() is None)
        assert_same([first, *iterator], expected("by index"))
        iterator.close()
        del first


def fill(batch):
    batch[:] = -1
    return batch[0] == -1


def does_not_share_a_batch():
    ds = MapDataset.range(200).map(lambda i: np.full(100_000, i)).to_iter_dataset().mp_prefetch(TWO)
    with nothing_left(), iter(ds) as iterator:
        batch = next(iterator)
        assert in_fork(partial(fill, batch))
        assert (batch == 0).all()
        ready, go_on = os.pipe()
        fork = os.fork()
        if fork == 0:  # looks at the batch long after its parent has let it go
            os.close(go_on)
            os.read(ready, 1)
            os._exit(0 if (batch == 0).all() else 1)
        del batch
        assert sum(int(later[0]) for later in iterator) == sum(range(200))
        os.close(go_on)
        os.close(ready)
        assert os.waitpid(fork, 0)[1] == 0
        iterator.close()


CHECKS = {
    **{f"leaves the workers alone, {name}": partial(leaves_the_workers_alone, name) for name in PIPELINES},
    **{f"goes on by itself, {name}": partial(goes_on_by_itself, name) for name in PIPELINES},
    "drops an iterator that a thread computes": drops_an_iterator_that_a_thread_computes,
    "does not share a batch": does_not_share_a_batch,
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
