"""MaxText: ArrayRecord files by name, each shuffled and sharded, mixed by weights, concatenated and split."""

import grain.python as grain
import numpy as np

from tests.compat.saving import WithOrbax


def _one(path):
    ds = grain.MapDataset.source(grain.ArrayRecordDataSource([path])).shuffle(seed=7).repeat(3)[1::2]
    return ds.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))


def open_pipeline(folder):
    paths = sorted(map(str, folder.glob("*.array_record")))
    ds = grain.IterDataset.mix({"a": _one(paths[0]), "b": _one(paths[1])}, {"a": 0.25, "b": 0.75})
    ds = ds.map(lambda element: {"inputs": np.frombuffer(element, np.int32)})
    ds = grain.experimental.ConcatThenSplitIterDataset(ds, length_struct={"inputs": 16})
    return iter(ds.batch(3, drop_remainder=True))


save, restore = WithOrbax.save, WithOrbax.restore
