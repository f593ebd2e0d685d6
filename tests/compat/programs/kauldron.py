"""Kauldron: seeded datasets with random transforms by `apply`, mixed, batched as streams, prefetched in processes."""

import dataclasses

import grain.python as grain
import numpy as np

from tests.compat.saving import AsJson


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elements(grain.MapTransform):
    keep: tuple

    def map(self, features):
        return {key: value for key, value in features.items() if key in self.keep}


@dataclasses.dataclass(frozen=True)
class RandomCrop(grain.RandomMapTransform):
    key: str

    def random_map(self, features, rng):
        start = int(rng.integers(0, 4))
        return features | {self.key: features[self.key][start : start + 3]}


class Source(grain.RandomAccessDataSource):
    def __init__(self, offset):
        self._offset = offset

    def __len__(self):
        return 31

    def __getitem__(self, record_key):
        return {"image": np.arange(8) + self._offset + record_key, "index": np.int32(record_key), "other": "text"}


def _one(offset):
    ds = grain.MapDataset.source(Source(offset)).seed(42)[0::1].shuffle(seed=11)
    for transform in (Elements(keep=("image", "index")), RandomCrop("image")):
        ds = ds.random_map(transform) if isinstance(transform, grain.RandomMapTransform) else ds.map(transform)
    return ds


def open_pipeline(folder):
    ds = grain.MapDataset.mix([_one(0), _one(1000)], weights=[0.3, 0.7]).repeat(None)
    ds = ds.to_iter_dataset(read_options=None).batch(4, drop_remainder=True)
    return iter(ds.prefetch(grain.MultiprocessingOptions(1, enable_profiling=False)))


save, restore = AsJson.save, AsJson.restore
