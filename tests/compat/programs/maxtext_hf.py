"""MaxText: a stream in the clothes of a source, read by the thread of its number, packed in a loader's operations."""

from threading import current_thread

import grain.python as grain
import numpy as np


class StreamSource(grain.RandomAccessDataSource):
    def __init__(self):
        self.data_iters = []

    def __len__(self):
        return 10_000_000_000

    def __getitem__(self, index):
        if not self.data_iters:
            self.data_iters = [iter(range(10**6))]
        number = next(self.data_iters[int(current_thread().name.split("_")[1])])
        return {"inputs": np.arange(2 + number % 9, dtype=np.int32), "targets": np.arange(2 + number % 9) % 5}


def reformat(element):
    return {"data": element[0], "segments": element[1], "positions": element[2]}


class Reformat(grain.MapTransform):
    def map(self, element):
        return reformat(element)


def open_pipeline(folder):
    source = StreamSource()
    operations = [
        grain.experimental.PackAndBatchOperation(batch_size=2, length_struct={"inputs": 16, "targets": 16}),
        Reformat(),
    ]
    sampler = grain.IndexSampler(
        num_records=len(source),
        num_epochs=1,
        shard_options=grain.ShardOptions(shard_index=1, shard_count=2, drop_remainder=False),
        shuffle=False,
        seed=0,
    )
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
    loader = grain.DataLoader(
        data_source=source, operations=operations, sampler=sampler, worker_count=1, read_options=options
    )
    return iter(loader)


def save(iterator, folder):
    """MaxText saves no state of such a pipeline; Headrace can."""
    (folder / "state").write_bytes(iterator.get_state())


def restore(iterator, folder):
    import grain as library

    if library.__name__ == "headrace":
        iterator.set_state((folder / "state").read_bytes())
    else:
        for _ in range(4):
            next(iterator)
