"""MaxText: TFRecord files read by a reader of its own, interleaved, shuffled, packed, and batched with padding."""

import dataclasses
import functools

import grain.python as grain
import numpy as np
from grain._src.python.dataset.sources.tfrecord_dataset import _TFRecordDatasetIterator, _TFRecordReader
from grain.experimental import TFRecordIterDataset

from tests.compat.saving import WithOrbax

LENGTH = 24


class _Reader(_TFRecordReader):
    def __init__(self, path):
        self._reader = open(path.removeprefix("mem://"), "rb")  # noqa: SIM115


class _Iterator(_TFRecordDatasetIterator):
    def __init__(self, path):
        grain.DatasetIterator.__init__(self)
        self._reader = _Reader(path)


class _Files(TFRecordIterDataset):
    def __iter__(self):
        return _Iterator(self._path)


def make_dataset(path):
    return _Files(path) if path.startswith("mem://") else TFRecordIterDataset(path)


@dataclasses.dataclass
class Parse(grain.MapTransform):
    def map(self, element):
        return {"inputs": np.frombuffer(element, np.int32)}


@dataclasses.dataclass
class Rekey(grain.MapTransform):
    mapping: dict

    def map(self, element):
        return {new: element[old] for new, old in self.mapping.items()}


@dataclasses.dataclass
class ReformatPacking(grain.MapTransform):
    columns: tuple

    def map(self, element):
        return {key: element[key] for column in self.columns for key in (column, f"{column}_segment_ids")}


def open_pipeline(folder):
    paths = sorted(map(str, folder.glob("*.tfrecord")))
    ds = grain.MapDataset.source([paths[0], *(f"mem://{path}" for path in paths[1:])])
    ds = ds.shuffle(seed=3).repeat(2)[0::1]
    ds = grain.experimental.InterleaveIterDataset(ds.map(make_dataset), cycle_length=2)
    ds = ds.map(Parse()).map(Rekey({"inputs": "inputs", "targets": "inputs"}))
    lengths = {"inputs": LENGTH, "targets": LENGTH}
    ds = grain.experimental.FirstFitPackIterDataset(ds, length_struct=lengths, num_packing_bins=4)
    ds = ds.map(ReformatPacking(("inputs", "targets")))
    batch_fn = functools.partial(grain.experimental.batch_and_pad, batch_size=4, pad_value=0)
    ds = ds.batch(4, batch_fn=batch_fn)
    return iter(grain.experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))


save, restore = WithOrbax.save, WithOrbax.restore
