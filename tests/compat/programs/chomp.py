"""chomp: an iterator of its own at the start and one at the end, with a window shuffle and a thread in between."""

import dataclasses

import grain
import numpy as np

from tests.compat.saving import WithOrbax


@dataclasses.dataclass
class Batch:
    tokens: np.ndarray
    segment_ids: np.ndarray


class WindowsIterator(grain.DatasetIterator):
    def __init__(self):
        super().__init__()
        self._next = 0

    def __next__(self):
        if self._next >= 100:
            raise StopIteration
        self._next += 1
        return np.arange(8, dtype=np.int32) + self._next, np.full(8, self._next % 3, np.int32)

    def get_state(self):
        return {"next": self._next}

    def set_state(self, state):
        self._next = state["next"]

    def get_stats(self):
        return {"docs_seen": self._next}


class Windows(grain.IterDataset):
    def __iter__(self):
        return WindowsIterator()


class AssembleIterator(grain.DatasetIterator):
    def __next__(self):
        rows = [next(self._parent) for _ in range(4)]
        return Batch(*map(np.stack, zip(*rows, strict=True)))

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)


class Assemble(grain.IterDataset):
    def __iter__(self):
        return AssembleIterator(self._parent.__iter__())


def stats_of(iterator):
    """Walks up the chain to whoever has stats; who has no parent says so by an AssertionError."""
    while True:
        if hasattr(iterator, "get_stats"):
            return iterator.get_stats()
        try:
            iterator = iterator._parent
        except AssertionError:
            return {}


def open_pipeline(folder):
    ds = grain.experimental.WindowShuffleIterDataset(Windows(), window_size=10, seed=17)
    ds = grain.experimental.ThreadPrefetchIterDataset(Assemble(ds), prefetch_buffer_size=2)
    iterator = iter(ds)
    assert isinstance(stats_of(iterator), dict)
    return iterator


save, restore = WithOrbax.save, WithOrbax.restore
