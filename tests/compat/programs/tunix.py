"""tunix: a DataLoader over records, with a tokenizer, training inputs that are dataclasses, and a filter."""

import dataclasses

import flax.struct
import grain.python as grain
import numpy as np

from tests.compat.saving import AsJson


@flax.struct.dataclass
class TrainingInput:
    input_tokens: np.ndarray
    input_mask: np.ndarray


@dataclasses.dataclass
class Tokenize(grain.MapTransform):
    def map(self, element):
        tokens = np.frombuffer(element, np.int32)
        return tokens[:3], tokens[3:]


@dataclasses.dataclass
class BuildTrainInput(grain.MapTransform):
    length: int

    def map(self, element):
        source, target = element
        tokens = np.concatenate([source, target])
        mask = np.concatenate([np.zeros(len(source), bool), np.ones(len(target), bool)])
        pad = [0, max(self.length - len(tokens), 0)]
        return TrainingInput(np.pad(tokens, pad), np.pad(mask, pad))


class FilterOverlength(grain.FilterTransform):
    def filter(self, element):
        return element.input_tokens.shape[0] <= 12


def open_pipeline(folder):
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    sampler = grain.IndexSampler(num_records=len(source), num_epochs=2, shard_options=grain.NoSharding())
    operations = [Tokenize(), BuildTrainInput(12), FilterOverlength(), grain.Batch(batch_size=4, drop_remainder=True)]
    return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=operations))


save, restore = AsJson.save, AsJson.restore
