"""`DataLoader`: the tutorials' MNIST loader, and restoring far into an endless stream."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks import mnist
from benchmarks.measure import Row, faster_than, in_time, seconds_per_element, side_by_side

BATCH = 128


class Digits:
    """The tutorials' source: an image as a vector of floats, and its label."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image, label = self._dataset[index]
        return np.ravel(np.array(image, dtype=np.float32)), label


class Pairs:
    """MNIST in memory, by index."""

    def __init__(self):
        data = mnist.load()
        self._images, self._labels = data["image"], data["label"].tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self._images[index], self._labels[index]


def loader(lib: Any, source: Any) -> Any:
    """The tutorials' loader."""
    sampler = lib.SequentialSampler(num_records=len(source), shard_options=lib.NoSharding())
    return lib.DataLoader(data_source=source, sampler=sampler, operations=[lib.Batch(BATCH)])


def hand_written(source: Any) -> Iterator[Any]:
    """A bare loop that does the same."""
    for start in range(0, len(source), BATCH):
        images, labels = zip(*[source[i] for i in range(start, min(start + BATCH, len(source)))], strict=True)
        yield np.stack(images), np.array(labels)


def _rates(source: Any, *others: Callable[[], Any], theirs: int) -> list[float]:
    import grain.python

    import headrace.python

    return side_by_side(
        lambda: seconds_per_element(lambda: loader(headrace.python, source), 400, BATCH),
        lambda: seconds_per_element(lambda: loader(grain.python, source), theirs, BATCH),
        *(lambda other=other: seconds_per_element(other, 400, BATCH) for other in others),
        rounds=9,
    )


def mnist_loader() -> list[Row]:
    source = Digits(Pairs())
    mine, grain, dataset = _rates(
        source, lambda: hr.MapDataset.source(source).to_iter_dataset().batch(BATCH), theirs=10
    )
    work = "DataLoader: MNIST raveled to float32, batches of 128"
    return [
        faster_than(work, "Grain's DataLoader, worker_count=0", 50, mine, grain),
        faster_than("the same", "ours on the dataset API", 0.95, mine, dataset),
    ]


def torchvision_loader() -> list[Row]:
    """With torchvision's own class as the source, which makes a PIL image of every digit."""
    from torchvision.datasets import MNIST

    with tempfile.TemporaryDirectory() as folder:
        _write_idx(Path(folder) / "MNIST" / "raw")
        source = Digits(MNIST(folder, train=True))
        mine, grain, bare = _rates(source, lambda: hand_written(source), theirs=10)
    return [
        faster_than("the same from torchvision's MNIST, by way of PIL", "a bare loop over the source", 0.8, mine, bare),
        faster_than("the same", "Grain's DataLoader, worker_count=0", 10, mine, grain),
    ]


def _write_idx(folder: Path) -> None:
    """MNIST in its own format, as torchvision wants to find it; the test split is not read."""
    data = mnist.load()
    folder.mkdir(parents=True)
    count = len(data["label"])
    for split in ("train", "t10k"):
        header = (0x801).to_bytes(4, "big") + count.to_bytes(4, "big")
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(header + data["label"].tobytes())
        header = (0x803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + data["image"].tobytes())


def restore_far() -> Row:
    sampler = hr.samplers.IndexSampler(10**6, shuffle=True, seed=1)
    operations = [lambda x: x + 1, hr.transforms.Batch(BATCH)]
    data = hr.DataLoader(data_source=range(10**6), sampler=sampler, operations=operations)
    fields = json.loads(iter(data).get_state())
    state = json.dumps({**fields, "position": {"next_index": 10**9}}).encode()

    def once() -> float:
        begin = time.perf_counter()
        iterator = iter(data)
        iterator.set_state(state)
        next(iterator)
        return time.perf_counter() - begin

    took = statistics.median(once() for _ in range(9))
    work = "restoring at position 10^9 of a shuffled endless loader, with a batch (ms)"
    return Row(work, in_time(took), "", took * 1e3, 50, higher_is_better=False)


ROWS: list[Callable[[], Row | list[Row]]] = [mnist_loader, torchvision_loader, restore_far]
