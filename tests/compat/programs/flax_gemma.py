"""flax's gemma: texts tokenized with a dataclass of an operation, shifted, padded, and loaded by `grain.load`."""

import dataclasses

import grain
import numpy as np

from tests.compat.saving import AsJson


@dataclasses.dataclass
class TokenizeOp(grain.transforms.Map):
    length: int

    def map(self, features):
        tokens = np.array([int(word) for word in features["text"].split()], np.int32)[: self.length + 1]
        return {"inputs": tokens[:-1], "targets": tokens[1:]}


@dataclasses.dataclass
class PadOp(grain.transforms.Map):
    length: int

    def map(self, features):
        return {name: np.pad(tokens, (0, self.length - len(tokens))) for name, tokens in features.items()}


def open_pipeline(folder):
    texts = [{"text": " ".join(str(i * j % 89) for j in range(2 + i % 11))} for i in range(60)]
    loader = grain.load(
        source=texts,
        num_epochs=None,
        shuffle=True,
        seed=0,
        shard_options=grain.sharding.ShardByJaxProcess(drop_remainder=True),
        transformations=[TokenizeOp(8), PadOp(8)],
        batch_size=5,
        worker_count=0,
    )
    return iter(loader)


save, restore = AsJson.save, AsJson.restore
