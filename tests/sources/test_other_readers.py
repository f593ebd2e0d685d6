"""Other libraries read what the writers write, notes or not."""

import json

import numpy as np
import pytest

from headrace.sources.tf_example import parse_example
from headrace.sources.writers import (
    write_array_record,
    write_arrow,
    write_csv,
    write_json_lines,
    write_parquet,
    write_tfrecord,
)
from headrace.testing import assert_equal

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pa_csv, pa_json = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.json")

ROWS = [
    {
        "image": np.full((2, 3), i, np.uint8),
        "boxes": np.full((i % 3, 4), i / 2, np.float32),
        "label": i,
        "weight": i / 3,
        "text": f"ünï {i}",
        "tokens": np.arange(i),
        "words": ["a", "b"],
        "nested": {"x": np.int16(i)},
        "maybe": None if i % 2 else i,
    }
    for i in range(6)
]


def plain(value):
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


PLAIN = json.loads(json.dumps(ROWS, default=plain))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    write_parquet(ROWS, folder / "a.parquet", row_group_rows=4)
    write_arrow(ROWS, folder / "a.arrow")
    write_json_lines(ROWS, folder / "a.jsonl")
    write_tfrecord(ROWS, folder / "a.tfrecord")
    write_array_record(ROWS, folder / "a.array_record")
    write_csv([{"x": i, "y": float(i), "text": f"t{i}"} for i in range(6)], folder / "a.csv")
    return folder


def test_pyarrow(folder):
    with pa.ipc.open_file(folder / "a.arrow") as file:
        assert file.read_all().to_pylist() == PLAIN
    table = pq.read_table(folder / "a.parquet")
    assert table.to_pylist() == PLAIN
    types = {field.name: str(field.type) for field in table.schema}
    assert types["image"] == "list<element: list<element: uint8>>"
    assert types["nested"] == "struct<x: int16>"
    lines = pa_json.read_json(folder / "a.jsonl").drop_columns(["__headrace__"])
    assert lines.to_pylist() == PLAIN
    assert pa_csv.read_csv(folder / "a.csv").to_pylist() == [{"x": i, "y": float(i), "text": f"t{i}"} for i in range(6)]


def test_pandas(folder):
    pandas = pytest.importorskip("pandas")
    for frame in (pandas.read_parquet(folder / "a.parquet"), pandas.read_feather(folder / "a.arrow")):
        assert frame["text"].tolist() == [row["text"] for row in ROWS]
        for i, row in enumerate(ROWS):
            assert_equal(np.stack(frame["image"][i]), row["image"])
            assert_equal(frame["tokens"][i], row["tokens"])
    assert pandas.read_json(folder / "a.jsonl", lines=True)["image"].tolist() == [row["image"].tolist() for row in ROWS]
    assert pandas.read_csv(folder / "a.csv")["y"].tolist() == [float(i) for i in range(6)]


@pytest.mark.parametrize(("kind", "suffix"), [("parquet", "parquet"), ("arrow", "arrow"), ("json", "jsonl")])
def test_hugging_face(folder, tmp_path, kind, suffix):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    found = datasets.load_dataset(kind, data_files=str(folder / f"a.{suffix}"), split="train", cache_dir=str(tmp_path))
    rows = [{name: value for name, value in row.items() if name != "__headrace__"} for row in found]
    assert rows == PLAIN
    if kind != "json":
        assert found.features["image"].feature.feature.dtype == "uint8"


def test_the_readers_of_array_record_and_grain(folder):
    module = pytest.importorskip("array_record.python.array_record_module")
    reader = module.ArrayRecordReader(str(folder / "a.array_record"))
    records = reader.read_all()
    reader.close()
    assert_equal([parse_example(record) for record in records], ROWS)
    grain = pytest.importorskip("grain.python")
    source = grain.ArrayRecordDataSource([str(folder / "a.array_record")])
    assert [source[i] for i in range(len(source))] == records


WITH_TENSORFLOW = """
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

kinds = {
    "image": tf.io.FixedLenFeature([2, 3], tf.int64),
    "boxes": tf.io.VarLenFeature(tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
    "weight": tf.io.FixedLenFeature([], tf.float32),
    "text": tf.io.FixedLenFeature([], tf.string),
    "tokens": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    "nested/x": tf.io.FixedLenFeature([], tf.int64),
}
records = list(tf.data.TFRecordDataset(folder + "/a.tfrecord"))
parsed = [tf.io.parse_single_example(record, kinds) for record in records]
plain = [{k: (tf.sparse.to_dense(v) if k == "boxes" else v).numpy() for k, v in row.items()} for row in parsed]
features = tfds.features.FeaturesDict({
    "image": tfds.features.Tensor(shape=(2, 3), dtype=np.uint8),
    "label": tfds.features.Scalar(dtype=np.int32),
    "text": tfds.features.Text(),
    "tokens": tfds.features.Sequence(tfds.features.Scalar(dtype=np.int64)),
    "nested": {"x": tfds.features.Scalar(dtype=np.int16)},
})
prepared = [features.deserialize_example_np(record.numpy()) for record in records]
found = plain, prepared
"""


@pytest.mark.xdist_group("tensorflow")
def test_tensorflow_and_its_datasets(folder, with_tensorflow):
    parsed, prepared = with_tensorflow(WITH_TENSORFLOW, folder=str(folder))
    for row, plain_row, made in zip(ROWS, parsed, prepared, strict=True):
        assert_equal(plain_row["image"], row["image"].astype(np.int64))
        assert_equal(plain_row["boxes"], row["boxes"].ravel())
        assert (plain_row["label"], plain_row["text"]) == (row["label"], row["text"].encode())
        assert_equal(plain_row["weight"], np.float32(row["weight"]))
        assert_equal(plain_row["tokens"], row["tokens"])
        assert_equal(made["image"], row["image"])
        assert made["nested"]["x"] == row["nested"]["x"]
        assert list(made["tokens"]) == row["tokens"].tolist()
