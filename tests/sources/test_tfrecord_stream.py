"""TFRecord files as streams, against TensorFlow's own writer and against Grain."""

from pathlib import Path

import pytest

from headrace.errors import PipelineError, StateError
from headrace.sources.tfrecord import TFRecordIterDataset
from headrace.testing import assert_equal, assert_resumable
from tests.sources.fixtures.tfrecords import damage, write
from tests.sources.test_array_record import (
    assert_files_are_given_back,
    assert_same_with_workers,
    interleaved,
    named,
)

grain = pytest.importorskip("grain")

TEXTS = [b"", b"x", *named("y", 30), bytes(range(256)) * 5000]


TENSORFLOW_WRITES = """
import tensorflow as tf
with tf.io.TFRecordWriter(path) as writer:
    for record in records:
        writer.write(record)
found = None
"""


@pytest.mark.xdist_group("tensorflow")
def test_tfrecord_files_are_those_that_tensorflow_writes(tmp_path, with_tensorflow):
    with_tensorflow(TENSORFLOW_WRITES, path=str(tmp_path / "theirs"), records=TEXTS)
    assert Path(write(tmp_path / "ours", TEXTS)).read_bytes() == (tmp_path / "theirs").read_bytes()
    assert list(TFRecordIterDataset(tmp_path / "theirs")) == TEXTS


def test_tfrecords_and_their_states_are_those_of_grain(tmp_path):
    path = write(tmp_path / "t", TEXTS)
    ours, theirs = iter(TFRecordIterDataset(path)), iter(grain.experimental.TFRecordIterDataset(path))
    assert ours.get_state() == theirs.get_state()
    for a, b in zip(ours, theirs, strict=True):
        assert_equal(a, b)
        assert ours.get_state() == theirs.get_state()
    assert list(TFRecordIterDataset(path)) == TEXTS


def test_tfrecords_seek_to_resume(tmp_path):
    path = write(tmp_path / "t", TEXTS)
    iterator = iter(TFRecordIterDataset(path))
    before = [next(iterator) for _ in range(20)]
    state = iterator.get_state()
    damage(path, 0)
    again = iter(TFRecordIterDataset(path))
    again.set_state(state)
    assert before + list(again) == TEXTS


def test_tfrecords_are_the_same_with_workers(tmp_path):
    paths = [write(tmp_path / f"{i}", named(i, 7 * (i % 4))) for i in range(9)]
    assert_same_with_workers(interleaved(paths, TFRecordIterDataset).map(bytes.upper))
    assert_same_with_workers(TFRecordIterDataset(paths[3]).map(bytes.upper))
    assert_resumable(interleaved(paths, TFRecordIterDataset))
    theirs = grain.MapDataset.source(paths).map(grain.experimental.TFRecordIterDataset)
    expected = list(grain.experimental.InterleaveIterDataset(theirs, cycle_length=3))
    assert list(interleaved(paths, TFRecordIterDataset)) == expected


@pytest.mark.parametrize(
    ("change", "before", "message"),
    [
        (lambda data: data[:-1], 2, "record 2, offset 42: it has 1000 bytes, but the file ends 1 bytes too early"),
        (lambda data: data[:100], 2, "record 2, offset 42: it has 1000 bytes, but the file ends 958 bytes too early"),
        (lambda data: data[:47], 2, "record 2, offset 42: the file ends 5 bytes into it, before its length"),
        (lambda data: data + b"\0\0\0", 3, "record 3, offset 1058: the file ends 3 bytes into it"),
        (lambda data: data[:43] + b"\xff" + data[44:], 2, "record 2, offset 42: the checksum of its length is wrong"),
        (lambda data: b"hello, this is a text", 0, "record 0, offset 0: the checksum of its length is wrong"),
    ],
)
def test_a_damaged_tfrecord_file_is_an_error_after_the_records_before(tmp_path, change, before, message):
    path = Path(write(tmp_path / "t", [b"12345", b"67890", b"z" * 1000]))
    path.write_bytes(change(path.read_bytes()))
    resumed = iter(TFRecordIterDataset(path))
    resumed.set_state({"reader_offset": 21 if before else 0})
    for iterator, count in (
        (iter(TFRecordIterDataset(path)), before),
        (iter(TFRecordIterDataset(path).map(len)), before),
        (resumed, max(0, before - 1)),
        (iter(TFRecordIterDataset(path).mp_prefetch(1)), before),
    ):
        for _ in range(count):
            next(iterator)
        for _ in range(2):
            with pytest.raises(PipelineError, match=f"t is damaged at {message}"):
                next(iterator)
        iterator.close()


def test_damaged_bytes_of_a_tfrecord_are_found_unless_nobody_looks(tmp_path):
    path = damage(write(tmp_path / "t", [b"12345", b"67890", b"z" * 1000]), 42 + 12 + 500)
    assert len(list(TFRecordIterDataset(path, verify=False))) == 3
    iterator = iter(TFRecordIterDataset(path))
    assert [next(iterator), next(iterator)] == [b"12345", b"67890"]
    with pytest.raises(PipelineError, match="record 2, offset 42: the checksum of its bytes is wrong"):
        next(iterator)


@pytest.mark.parametrize("offset", [20, 1059])
def test_a_tfrecord_state_of_another_file_is_an_error(tmp_path, offset):
    iterator = iter(TFRecordIterDataset(write(tmp_path / "t", [b"12345", b"67890", b"z" * 1000])))
    iterator.set_state({"reader_offset": offset})
    for _ in range(2):
        with pytest.raises(StateError, match="The state was saved with a different file"):
            next(iterator)


def test_a_tfrecord_dataset_is_of_one_file_that_is_there(tmp_path):
    with pytest.raises(PipelineError, match=r"must be one path; got list.*IterDataset\.interleave"):
        TFRecordIterDataset(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="nope"):
        next(iter(TFRecordIterDataset(tmp_path / "nope")))


def test_a_tfrecord_iterator_does_not_take_states_of_other_pipelines(tmp_path):
    for state in ({"next_index": 3}, 3):
        with pytest.raises(StateError, match="state of another pipeline"):
            iter(TFRecordIterDataset(tmp_path / "x")).set_state(state)


def test_tfrecord_iterators_give_their_files_back(tmp_path):
    assert_files_are_given_back(TFRecordIterDataset, write(tmp_path / "t.tfrecord", named("x", 10)))
