"""axlearn: datasets and iterators of its own beside Grain's, batches that are taken apart again, and shards by proportion."""

import grain.python as grain
import jax
import numpy as np
from grain._src.core.sharding import even_split
from grain._src.python.data_loader import _determine_worker_count
from grain._src.python.dataset import dataset as dataset_base

from tests.compat.saving import AsJson


class ProportionalSlice(dataset_base.MapDataset):
    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent, *, start, end, period):
        super().__init__(parent)
        self._start, self._width, self._period = start, end - start, period
        whole, left = divmod(len(parent), period)
        self._length = whole * self._width + min(left, end) - min(left, start)

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        row, column = divmod(index % len(self), self._width)
        return self._parent[self._start + row * self._period + column]


class UnbatchIterator(grain.DatasetIterator):
    def __init__(self, parent):
        super().__init__(parent)
        self._index, self._batch = 0, None
        self._parent_state = self._parent.get_state()

    def __next__(self):
        if self._batch is None:
            self._batch = jax.tree.flatten(next(self._parent))
        leaves, structure = self._batch
        example = jax.tree.unflatten(structure, [leaf[self._index] for leaf in leaves])
        self._index += 1
        if self._index >= len(leaves[0]):
            self._index, self._batch = 0, None
            self._parent_state = self._parent.get_state()
        return example

    def get_state(self):
        return {"parent": self._parent_state, "index": self._index}

    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self._parent_state, self._index = state["parent"], state["index"]
        self._batch = None
        if self._index:
            self._batch = jax.tree.flatten(next(self._parent))


class Unbatch(grain.IterDataset):
    def __str__(self):
        return "Unbatch"

    def __iter__(self):
        return UnbatchIterator(self._parent.__iter__())


def open_pipeline(folder):
    assert _determine_worker_count(3) == 3
    assert even_split(10, grain.ShardOptions(1, 3)) == (4, 7)
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    ds = grain.MapDataset.source(source).seed(9).shuffle().map(lambda record: np.frombuffer(record, np.int32)[:3])
    ds = ProportionalSlice(ds, start=1, end=3, period=4)
    ds = ds.slice(slice(0, None, 2)).repeat(2)
    ds = ds.random_map(lambda x, rng: {"x": x, "noise": rng.normal(size=2)})
    ds = ds.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)).batch(5)
    return iter(Unbatch(ds).batch(3, drop_remainder=True))


save, restore = AsJson.save, AsJson.restore
