"""Hugging Face: shuffled batches of a dataset on disk, against what `datasets` does itself."""

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.sources.hugging_face import HuggingFaceDataSource

BATCH = 128
NUM_ROWS = 60_000


def _dataset(folder: str, num_files: int) -> Any:
    """784 floats and a label in each row, in mapped files of 1,000 rows to a record batch."""
    import datasets

    datasets.disable_progress_bars()
    rng = np.random.default_rng(0)
    image = datasets.List(datasets.Value("float32"))
    features = datasets.Features({"image": image, "label": datasets.ClassLabel(num_classes=10)})
    arrays = {"image": rng.random((NUM_ROWS, 784), np.float32), "label": rng.integers(0, 10, NUM_ROWS)}
    datasets.Dataset.from_dict(arrays, features=features).save_to_disk(folder, num_shards=num_files)
    return datasets.load_from_disk(folder)


def hugging_face_shuffled() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        dataset = _dataset(f"{folder}/one", 1)
        shuffled = dataset.shuffle(seed=1)
        in_order = shuffled.flatten_indices().with_format("numpy")  # written anew in the shuffled order
        many = HuggingFaceDataSource(_dataset(f"{folder}/many", 20))
        source = HuggingFaceDataSource(dataset)
        ours, several, arrays, lists, flat = side_by_side(
            lambda: seconds_per_element(lambda: hr.MapDataset.source(source).shuffle(seed=1).batch(BATCH), 400, BATCH),
            lambda: seconds_per_element(lambda: hr.MapDataset.source(many).shuffle(seed=1).batch(BATCH), 400, BATCH),
            lambda: seconds_per_element(lambda: shuffled.with_format("numpy").iter(BATCH), 60, BATCH),
            lambda: seconds_per_element(lambda: shuffled.iter(BATCH), 30, BATCH),
            lambda: seconds_per_element(lambda: in_order.iter(BATCH), 200, BATCH),
        )
    work = "Hugging Face: 60,000 rows of 784 floats on disk, shuffled batches of 128"
    return [
        faster_than(work, "datasets' shuffled iter as NumPy", 3, ours, arrays),
        faster_than("the same", "datasets' shuffled iter as lists", 3, ours, lists),
        faster_than("the same", "datasets' iter over a copy on disk in that order", 1, ours, flat),
        faster_than("the same from 20 files", "datasets' shuffled iter as NumPy, from one file", 3, several, arrays),
    ]


ROWS: list[Callable[[], Row | list[Row]]] = [hugging_face_shuffled]
