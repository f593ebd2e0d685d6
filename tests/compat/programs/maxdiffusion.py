"""maxdiffusion: a DataLoader over one host's shard of ArrayRecord files, shuffled without an end, in worker processes."""

import dataclasses

import grain.python as grain
import numpy as np

from tests.compat.saving import WithOrbax


@dataclasses.dataclass
class ParseFeatures(grain.MapTransform):
    def map(self, example):
        tokens = np.frombuffer(example, np.int32)[:3]
        return {"pixel_values": tokens.astype(np.float32) / 255, "input_ids": tokens}


def open_pipeline(folder):
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    shard = grain.ShardOptions(shard_index=1, shard_count=2, drop_remainder=True)
    sampler = grain.IndexSampler(num_records=len(source), num_epochs=None, shard_options=shard, shuffle=True, seed=5)
    operations = [ParseFeatures(), grain.Batch(batch_size=6, drop_remainder=True)]
    return iter(grain.DataLoader(data_source=source, operations=operations, sampler=sampler, worker_count=1))


save, restore = WithOrbax.save, WithOrbax.restore
