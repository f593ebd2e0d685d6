"""AirIO: preprocessors given to `grain.load` and `DataLoader`, with random maps, filters, and packing in the loader."""

import dataclasses

import grain.python as grain
import numpy as np

from tests.compat.saving import AsJson


@dataclasses.dataclass(frozen=True)
class MapFn(grain.MapTransform):
    function: object

    def map(self, element):
        return self.function(element)


@dataclasses.dataclass(frozen=True)
class RandomMapFn(grain.RandomMapTransform):
    def random_map(self, element, rng):
        return {**element, "targets": (element["targets"] + rng.integers(0, 5, dtype=np.int32)).astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class FilterFn(grain.FilterTransform):
    def filter(self, element):
        return len(element["inputs"]) > 4


def to_features(record):
    tokens = np.frombuffer(record, np.int32)
    return {"inputs": tokens, "targets": tokens[:4]}


def unpack(packed):
    data, segments, positions = packed
    return {
        "inputs": data["inputs"],
        "targets": data["targets"],
        "segments": segments["inputs"],
        "at": positions["inputs"],
    }


def open_pipeline(folder):
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    operations = [
        MapFn(to_features),
        FilterFn(),
        RandomMapFn(),
        grain.experimental.PackAndBatchOperation(length_struct={"inputs": 20, "targets": 12}, batch_size=3),
        MapFn(unpack),
    ]
    loader = grain.load(source, num_epochs=2, shuffle=True, seed=13, transformations=operations)
    return iter(loader)


save, restore = AsJson.save, AsJson.restore
