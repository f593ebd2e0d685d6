"""TFRecord: a million examples of four features, parsed and batched, beside tf.data."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.measure import Row, faster_than, seconds_per_element, side_by_side
from headrace.sources.tf_example import ExampleDataSource, Feature
from headrace.sources.tfrecord import TFRecordDataSource

NUM_EXAMPLES = 10**6
NUM_DISTINCT = 10**5  # written again and again: making them is slow, and what is in them does not matter
BATCH = 1024
MEASURED = 900  # batches
WIDTH = 16
FEATURES = {"id": np.int64, "label": np.int64, "x": Feature(np.float32, (WIDTH,)), "name": bytes}


@functools.cache
def examples() -> str:
    """The path of the file, written by TensorFlow."""
    import tensorflow as tf

    train, rng = tf.train, np.random.default_rng(0)

    def example(i: int) -> bytes:
        features = {
            "id": train.Feature(int64_list=train.Int64List(value=[int(rng.integers(10**9))])),
            "label": train.Feature(int64_list=train.Int64List(value=[int(rng.integers(1000))])),
            "x": train.Feature(float_list=train.FloatList(value=rng.random(WIDTH, np.float32))),
            "name": train.Feature(bytes_list=train.BytesList(value=[b"user-%d" % i])),
        }
        return train.Example(features=train.Features(feature=features)).SerializeToString()

    folder = tempfile.mkdtemp(prefix="headrace-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "examples.tfrecord")
    records = [example(i) for i in range(NUM_DISTINCT)]
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(NUM_EXAMPLES):
            writer.write(records[i % NUM_DISTINCT])
    return path


def tf_data() -> Any:
    """The way that TensorFlow's guide says is fastest: batch, parse many at once, in parallel."""
    import tensorflow as tf

    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "x": tf.io.FixedLenFeature([WIDTH], tf.float32),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    ds = tf.data.TFRecordDataset(examples()).batch(BATCH)
    ds = ds.map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=tf.data.AUTOTUNE)
    return ds.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()


def tfrecord_examples() -> Row:
    ds = hr.MapDataset.source(ExampleDataSource(TFRecordDataSource(examples()), FEATURES)).batch(BATCH)
    mine, peer = side_by_side(
        lambda: seconds_per_element(ds.to_iter_dataset, MEASURED, BATCH),
        lambda: seconds_per_element(tf_data, MEASURED, BATCH),
    )
    return faster_than("TFRecord: 10^6 examples of 4 features, batches of 1,024", "tf.data", 0.3, mine, peer)


ROWS: list[Callable[[], Row | list[Row]]] = [tfrecord_examples]
