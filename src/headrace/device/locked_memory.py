"""Brings elements into page-locked memory, from which a CUDA device fetches them by itself.

Batches that workers made lie in slots of shared memory, which are locked where they are. Others are copied to a few
separate slots. As everywhere, a slot is not rewritten while an array that reads it is alive.
"""

import weakref
from typing import Any

import numpy as np

from headrace import trees
from headrace.engine.page_locks import PageLocks, page_locks
from headrace.engine.workers.slots import ALIGNMENT, Slots, mapping_of
from headrace.errors import WorkerError

LEAST_BYTES = 1 << 18  # smaller elements gain nothing
NUM_STAGED = 4  # copies that devices may be reading; more elements than these take the ordinary path


class LockedMemory:
    """Page-locks what elements lie in, for one stream; `close` gives up the copies' memory."""

    def __init__(self, locks: PageLocks):
        self._locks = locks
        self._staging: Slots | None = None

    def __call__(self, element: Any) -> Any:
        """Returns the element with its arrays in locked memory, where that helps and succeeds."""
        arrays = [leaf for leaf in trees.leaves(element) if type(leaf) is np.ndarray and not leaf.dtype.hasobject]
        if sum(array.nbytes for array in arrays) < LEAST_BYTES:
            return element
        others = [array for array in arrays if not self._lock(array)]
        if sum(array.nbytes for array in others) < LEAST_BYTES:
            return element
        copies = self._copied(others)
        return trees.tree_map(lambda leaf: copies.get(id(leaf), leaf), element)

    def _lock(self, array: np.ndarray) -> bool:
        mapping = mapping_of(array)
        return mapping is not None and self._locks.lock(mapping)

    def _copied(self, arrays: list[np.ndarray]) -> dict[int, np.ndarray]:
        """Copies of arrays in locked memory, by the arrays' `id`; empty if there is none."""
        if self._staging is None:
            self._staging = Slots(NUM_STAGED)
            weakref.finalize(self, self._staging.close)
        starts = np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)]).tolist()
        try:
            memory = self._staging.lease(starts[-1])
        except WorkerError:  # too little memory
            return {}
        if memory is None or not self._lock(memory):
            return {}
        copies = {}
        for array, start in zip(arrays, starts, strict=False):
            copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            np.copyto(copy, array)
            copies[id(array)] = copy
        return copies

    def close(self) -> None:
        """Gives up the memory of copies; those that a device reads keep theirs until it has."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None


def locked_memory(device: int) -> LockedMemory | None:
    """Locked memory for a CUDA device of this process; `None` without NVIDIA's driver."""
    locks = page_locks(device)
    return None if locks is None else LockedMemory(locks)
