"""simply: mixtures of sources, packed by concatenation, batched, and prefetched in a worker process."""

import dataclasses

import grain.python as grain
import numpy as np

from tests.compat.saving import WithOrbax

FEATURES = ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")


@dataclasses.dataclass(frozen=True)
class TextSource:
    """Its examples are made when they are first needed."""

    offset: int

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"text": " ".join(str(self.offset + i) for i in range(2 + index % 7))}


@dataclasses.dataclass(frozen=True)
class Tokenize(grain.MapTransform):
    def map(self, features):
        return {"tokens": np.array([int(word) for word in features["text"].split()], np.int32)}


@dataclasses.dataclass(frozen=True)
class NextToken(grain.MapTransform):
    def map(self, features):
        tokens = features["tokens"]
        return dict(zip(FEATURES, (tokens[:-1], tokens[1:], np.ones(len(tokens) - 1, np.float32)), strict=True))


def _one(number):
    ds = grain.MapDataset.source(TextSource(100 * number)).map(Tokenize()).map(NextToken())
    return ds.shuffle(seed=21 + number).repeat(None)


def open_pipeline(folder):
    ds = grain.MapDataset.mix([_one(1), _one(2)], weights=[0.7, 0.3]).to_iter_dataset()
    ds = grain.experimental.ConcatThenSplitIterDataset(parent=ds, length_struct=dict.fromkeys(FEATURES, 16))
    ds = ds.batch(2, drop_remainder=True)
    return iter(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=1, per_worker_buffer_size=2)))


save, restore = WithOrbax.save, WithOrbax.restore
