"""Compressed TFRecord files as streams, against files that TensorFlow wrote."""

import contextlib
import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace import MultiprocessingOptions
from headrace.errors import DataError, PipelineError, StateError
from headrace.sources import tfrecord
from headrace.sources.tfrecord import TFRecordDataSource, TFRecordIterDataset
from headrace.testing import assert_resumable
from tests.sources.fixtures.tfrecords import FIXTURES, some_records, write

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
PACKERS = {"gzip": gzip.compress, "zlib": zlib.compress}


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_compressed_files_that_tensorflow_wrote_are_streams(kind):
    path = FIXTURES / f"examples-{kind}.tfrecord"
    ds = TFRecordIterDataset(path)
    assert list(ds) == list(TFRecordIterDataset(FIXTURES / "examples.tfrecord"))
    assert_resumable(ds)
    with pytest.raises(
        PipelineError, match="is compressed, so it has no random access to its records.*TFRecordIterDataset"
    ):
        TFRecordDataSource(path)


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("read_bytes", [50, 1 << 18])
def test_compressed_streams_are_what_was_compressed(tmp_path, monkeypatch, pack, read_bytes):
    for module in (tfrecord, tfrecord):
        monkeypatch.setattr(module, "READ_BYTES", read_bytes)
    records = [b"", *some_records(60), bytes(100_000), np.random.default_rng(0).bytes(30_000)]
    path = Path(write(tmp_path / "t", records))
    whole = path.read_bytes()
    path.write_bytes(PACKERS[pack](whole))
    ds = TFRecordIterDataset(path)
    assert list(ds) == records
    assert list(ds.mp_prefetch(TWO)) == records
    path.write_bytes(PACKERS[pack](whole[:1000]) + PACKERS[pack](whole[1000:]) + b"\0" * 9)  # in two pieces, and padded
    assert list(ds) == records
    iterator = iter(ds)
    iterator.set_state({"reader_offset": len(whole) + 1})
    with pytest.raises(StateError, match="The state was saved with a different file"):
        next(iterator)


@pytest.mark.parametrize("pack", PACKERS)
def test_damaged_compressed_files_are_errors_after_the_records_before(tmp_path, pack):
    records = [np.random.default_rng(i).bytes(1000) for i in range(100)]
    path = Path(write(tmp_path / "t", records))
    packed = PACKERS[pack](path.read_bytes())
    for damaged, least in ((packed[:60_000], 58), (packed[:60_000] + b"\xff" * 50_000, 58), (packed[:-3], 100)):
        path.write_bytes(damaged)
        iterator = iter(TFRecordIterDataset(path))
        got = list(_until_an_error(iterator))
        assert got == records[: len(got)]
        assert len(got) >= least
        what = "(its compressed bytes cannot be read|the checksum of its bytes is wrong)"
        with pytest.raises(DataError, match=f"t is damaged at record {len(got)}, offset {1016 * len(got)}: {what}"):
            next(iterator)


def _until_an_error(iterator):
    with contextlib.suppress(DataError):
        yield from iterator
