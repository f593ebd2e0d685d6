"""`DataLoader`: the tutorials' MNIST loader, and restoring far into an endless stream."""

import json
import statistics
import time
from collections.abc import Callable, Iterator
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


class Pictures(Pairs):
    """The same as PIL images, as torchvision's MNIST gives them."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        return Image.fromarray(self._images[index]), self._labels[index]


def picture_loader() -> list[Row]:
    source = Digits(Pictures())
    mine, grain, bare = _rates(source, lambda: hand_written(source), theirs=10)
    return [
        faster_than("the same from a source of PIL images", "a bare loop over the source", 0.8, mine, bare),
        faster_than("the same", "Grain's DataLoader, worker_count=0", 10, mine, grain),
    ]


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


ROWS: list[Callable[[], Row | list[Row]]] = [mnist_loader, picture_loader, restore_far]
