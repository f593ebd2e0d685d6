"""Warnings where hosts have different numbers of steps, or leave out elements."""

import logging

import pytest

from headrace import MapDataset
from headrace.sharding import ShardOptions


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING, logger="headrace")
    return lambda: [record.getMessage() for record in caplog.records]


def test_shards_with_different_numbers_of_batches_are_warned_of_once(told):
    for _ in range(2):
        for i in range(4):
            MapDataset.range(241).shard(4, i).map(str).batch_and_pad(4)
    (text,) = told()
    assert "has 16 batches in some of the 4 shards and 15 in others" in text
    assert "test_uneven_hosts.py" in text
    MapDataset.range(241).shard(4, 1).to_iter_dataset().map(str).batch_and_pad(4)
    assert len(told()) == 2


def test_shards_with_the_same_number_of_batches_are_fine(told):
    MapDataset.range(240).shard(4, 1).batch_and_pad(4)
    MapDataset.range(241).shard(4, 1, drop_remainder=True).batch_and_pad(4)
    MapDataset.range(238).shard(4, 3).batch_and_pad(4)
    MapDataset.range(241).shard(4, 1).repeat().batch(4)
    MapDataset.range(241)[::4].batch_and_pad(4)
    MapDataset.range(241).shard(4, 1).to_iter_dataset().filter(bool).batch(4)
    assert not told()


def test_rows_that_global_batches_leave_out_are_warned_of(told):
    MapDataset.range(70).global_batch(16, ShardOptions(1, 2))
    MapDataset.range(71).to_iter_dataset().global_batch(16, ShardOptions(1, 2))
    random_access, stream = told()
    assert "drops the last 6 of 70 elements" in random_access
    assert "drops the last 7 of 71 elements" in stream


@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.to_iter_dataset()])
def test_global_batches_of_all_elements_are_fine(told, make):
    make(MapDataset.range(64)).global_batch(16, ShardOptions(1, 2))
    make(MapDataset.range(70).repeat()).global_batch(16, ShardOptions(1, 2))
    assert not told()
