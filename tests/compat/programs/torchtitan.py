"""torchtitan: weighted mixtures packed into rows of tensors, with a state for each rank in a dict of its own."""

import json

import grain.python as grain
import numpy as np
import torch
from grain import experimental as grain_experimental


def _tokens(folder, number):
    path = sorted(map(str, folder.glob("*.array_record")))[number]
    ds = grain.MapDataset.source(grain.ArrayRecordDataSource([path])).seed(42 + number)
    ds = ds.shuffle().repeat(None)[1::2]
    return ds.map(lambda record: {"input": np.frombuffer(record, np.int32)})


def collate(rows):
    tokens = np.stack([row["input"] for row in rows])
    positions = np.stack([row["input_positions"] for row in rows])
    return {"input": torch.from_numpy(tokens[:, :-1].copy()), "positions": torch.from_numpy(positions[:, :-1].copy())}


class Loader:
    def __init__(self, folder):
        ds = grain.MapDataset.mix([_tokens(folder, 0), _tokens(folder, 1)], weights=[2.0, 1.0]).to_iter_dataset()
        ds = grain_experimental.FirstFitPackIterDataset(
            ds, length_struct={"input": 17}, num_packing_bins=8, shuffle_bins=False
        )
        ds = ds.batch(4, drop_remainder=True, batch_fn=collate)
        assert isinstance(ds, grain.IterDataset)
        self._iterator = iter(grain_experimental.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=8))

    def __iter__(self):
        return self._iterator

    def state_dict(self):
        return {"version": 1, "dp_world_size": 2, "dp_rank_1": self._iterator.get_state()}

    def load_state_dict(self, state):
        assert (state["version"], state["dp_world_size"]) == (1, 2)
        self._iterator.set_state(state["dp_rank_1"])


open_pipeline = Loader


def save(loader, folder):
    (folder / "loader.json").write_text(json.dumps(loader.state_dict()))


def restore(loader, folder):
    loader.load_state_dict(json.loads((folder / "loader.json").read_text()))
