"""Tables in a random order of groups, as batches, and with workers."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.dataset import MapDataset
from headrace.errors import ClosedError, PipelineError, StateError
from headrace.ops.order import GroupShuffle
from headrace.ops.source import Source
from headrace.options import ReadOptions
from headrace.sources import CsvDataSource
from headrace.sources.parquet import TableBatches, shuffled_groups
from headrace.testing import assert_block_law, assert_equal, assert_resumable
from tests.sources.tables.formats import (
    WRITERS,
    counted,
    csv_file,
    every_format,
    numbers,
    objects,
    pa,
    row_of_objects,
    written,
)
from tests.sources.test_array_record import assert_same_with_workers


def test_shuffled_groups_hold_every_row_and_read_each_group_once(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1030)}), 100, cache_bytes=300 * 8)
    decoded = counted(source)
    ds = shuffled_groups(source, window_size=150, seed=3)
    stream = ds.repeat(2).batch(32).to_iter_dataset(ReadOptions(num_threads=0))
    epochs = np.split(np.concatenate([batch["i"] for batch in stream]), 2)
    assert set(decoded) == set(range(11))
    assert max(map(decoded.count, decoded)) == 2  # a group of the end may still be there for the next epoch
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(1030))
        assert len(set((epoch[:150] // 100).tolist())) <= 3
    assert not np.array_equal(*epochs)
    assert np.array_equal(epochs[0], [row["i"] for row in shuffled_groups(source, window_size=150, seed=3)])
    assert not np.array_equal(epochs[0], [row["i"] for row in shuffled_groups(source, window_size=150, seed=4)])
    assert_block_law(ds)
    assert_resumable(ds.batch(100))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 25), st.integers(0, 2**32 - 1))
def test_every_window_keeps_to_groups(lengths, window_size, seed):
    ends = np.cumsum(lengths)
    op = GroupShuffle(Source(range(sum(lengths))), ends, window_size, seed)
    for epoch in range(2):
        order = op.indices(np.arange(op.length()) + epoch * op.length()) - epoch * op.length()
        assert np.array_equal(np.sort(order), np.arange(op.length()))
        groups = np.searchsorted(ends, order, side="right")
        left = dict(enumerate(lengths))
        under_way = set()
        for group in groups.tolist():
            under_way.add(group)
            left[group] -= 1
            under_way -= {group} if not left[group] else set()
            assert sum(lengths[g] for g in under_way) <= max(window_size, max(lengths))


def test_a_window_that_the_cache_cannot_hold_is_an_error(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100, cache_bytes=1000)
    with pytest.raises(PipelineError, match=r"up to 300 rows, of 2400 bytes.*`cache_bytes=2400`"):
        shuffled_groups(source, window_size=150, seed=3)


@every_format
def test_batches_are_those_of_the_source(tmp_path, format):
    source = written(format, tmp_path / "t", numbers(30), 7)
    for size in (1, 4, 7, 30, 100):
        batches = list(TableBatches(source, size))
        expected = list(MapDataset.source(source).batch(size))
        assert len(batches) == len(expected)
        for batch, other in zip(batches, expected, strict=True):
            assert_equal(batch, other)
    assert len(list(TableBatches(source, 8, drop_remainder=True))) == 3
    assert_resumable(TableBatches(source, 4))
    assert_resumable(TableBatches(source, 4).map(lambda batch: batch["id"]))
    batch = next(iter(TableBatches(source, 4)))
    batch["id"][:] = 7
    assert next(iter(TableBatches(source, 4)))["id"].tolist() == [0, 1, 2, 3]


def test_batches_of_objects(tmp_path):
    source = written("parquet", tmp_path / "t", objects(), columns=["text", "list", "int"])
    first, second = TableBatches(source, 6)
    assert second["text"].tolist() == [row_of_objects(i)["text"] for i in range(6, 11)]
    assert first["int"].dtype == np.float64
    assert_equal(first["list"][3], np.arange(3, dtype=np.int16))


def test_resuming_batches_reads_one_group(tmp_path):
    source = written("parquet", tmp_path / "t", pa.table({"i": np.arange(1000)}), 100)
    iterator = iter(TableBatches(source, 10))
    iterator.set_state({"group": 8, "row_in_group": 50})
    read, read_group = [], source.read_group
    source.read_group = lambda number: read.append(number) or read_group(number)
    assert next(iterator)["i"].tolist() == list(range(850, 860))
    assert read == [8]
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)


@pytest.mark.parametrize(
    "state",
    [{"group": 3, "row_in_group": 1}, {"group": 0, "row_in_group": 4}, {"group": "0", "row_in_group": 0}, {}, None],
)
def test_a_state_of_other_batches_is_an_error(tmp_path, state):
    iterator = iter(TableBatches(written("parquet", tmp_path / "t", numbers())))
    with pytest.raises(StateError, match="state"):
        iterator.set_state(state)


def test_keys_of_batches_of_rows_are_sorted(tmp_path):
    rows = MapDataset.source(written("parquet", tmp_path / "t", numbers()))
    for ds in (rows.batch(4), rows.to_iter_dataset().batch(4), rows.map(lambda row: row).batch(4)):
        assert list(next(iter(ds))) == sorted(numbers().column_names)


def test_only_tables_are_cut_into_batches(tmp_path):
    with pytest.raises(PipelineError, match="must be a source of tables"):
        TableBatches([1, 2, 3])
    with pytest.raises(PipelineError, match="batch_size must be a positive int"):
        TableBatches(written("parquet", tmp_path / "t", numbers()), 0)


def test_streams_are_the_same_with_workers(tmp_path):
    table = pa.table({"i": np.arange(500), "s": [str(i) for i in range(500)]})
    text = "i\n" + "\n".join(map(str, range(500)))
    (tmp_path / "c.gz").write_bytes(gzip.compress(text.encode()))
    rows = MapDataset.source(written("parquet", tmp_path / "p", table, 60)).shuffle(seed=1).to_iter_dataset()
    mapped = written("feather", tmp_path / "f", table.select(["i"]), 60, filters=[("i", ">", 7)])
    for ds in (
        rows.filter(lambda row: row["i"] % 3).batch(8),
        shuffled_groups(mapped, window_size=100, seed=1).batch(16).to_iter_dataset(),
        TableBatches(CsvDataSource(csv_file(tmp_path / "c", text), block_bytes=200), 64).map(lambda batch: batch),
        shuffled_groups(CsvDataSource(tmp_path / "c.gz", block_bytes=200), window_size=90, seed=2).to_iter_dataset(),
    ):
        assert_same_with_workers(ds)


@every_format
def test_addresses_are_read_like_files(tmp_path, format):
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("headrace.storage.remote")
    write, kind = WRITERS[format]
    write(tmp_path / "t", numbers())
    memory = fsspec.filesystem("memory")
    memory.pipe("/tables/t", (tmp_path / "t").read_bytes())
    try:
        source = kind("memory://tables/t", filters=[("id", ">", 3)])
        assert [row["id"] for row in source] == list(range(4, 11))
    finally:
        memory.rm("/tables", recursive=True)


@pytest.mark.parametrize("source", [np.arange(4), [1, 2]], ids=["array", "list"])
def test_shuffled_groups_are_of_tables(source):
    with pytest.raises(PipelineError, match=r"must be a source of tables.*; got (ndarray|list): "):
        shuffled_groups(source, window_size=2, seed=1)
