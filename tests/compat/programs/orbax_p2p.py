"""Orbax's peer-to-peer checkpoints: a handler of its own that asks whether an iterator is a dataset's or a loader's."""

import grain.python as grain
from etils import epath
from orbax.checkpoint.experimental.emergency.p2p import local


def open_pipeline(folder):
    sampler = grain.IndexSampler(num_records=50, num_epochs=None, shuffle=True, seed=1)
    return iter(grain.DataLoader(data_source=range(50), sampler=sampler, operations=[grain.Batch(4)]))


def save(iterator, folder):
    assert not isinstance(iterator, grain.DatasetIterator)
    assert isinstance(iterator, grain.PyGrainDatasetIterator)
    local._LocalPyGrainHandlerMixin(process_index=0).save(epath.Path(folder), item=iterator)


def restore(iterator, folder):
    local._LocalPyGrainHandlerMixin(process_index=0).restore(epath.Path(folder), item=iterator)
