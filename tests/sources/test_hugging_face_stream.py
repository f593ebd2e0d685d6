"""Hugging Face's streaming datasets: rows and states against what `datasets` itself gives."""

import itertools
import json

import numpy as np
import pytest

from headrace import MultiprocessingOptions
from headrace.errors import PipelineError, StateError
from headrace.sources.hugging_face import HuggingFaceIterDataset
from headrace.testing import assert_equal, assert_resumable

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()

TWO = MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)


def generated(shards):
    for shard in shards:
        for i in range(7 + shard):
            yield {"shard": shard, "i": i, "x": [float(i), 0.5]}


def streaming(num_shards=3):
    return datasets.IterableDataset.from_generator(generated, gen_kwargs={"shards": list(range(num_shards))})


def arrow(count):
    return datasets.Dataset.from_dict({"i": range(count)}).to_iterable_dataset(num_shards=4)


def plain(rows):
    return [{name: np.asarray(value).tolist() for name, value in row.items()} for row in rows]


CHAINS = {
    "generator": lambda: streaming(),
    "arrow": lambda: arrow(50),
    "mapped": lambda: streaming().map(lambda row: {"i": row["i"] + 1}),
    "batched": lambda: streaming().map(lambda rows: {"j": [i * 2 for i in rows["i"]]}, batched=True, batch_size=4),
    "filtered": lambda: streaming().filter(lambda row: row["i"] % 2 == 0),
    "skip and take": lambda: streaming().skip(3).take(15),
    "formatted": lambda: arrow(40).with_format("numpy"),
    "interleaved": lambda: datasets.interleave_datasets([streaming(), streaming(2)], probabilities=[0.5, 0.5], seed=1),
    "interleaved arrow": lambda: datasets.interleave_datasets(
        [arrow(20), arrow(30)], stopping_strategy="all_exhausted"
    ),
    "batched arrow": lambda: arrow(50).map(lambda rows: {"j": [-i for i in rows["i"]]}, batched=True, batch_size=8),
    "repeated": lambda: arrow(9).repeat(3),
    "side by side": lambda: datasets.concatenate_datasets([arrow(12), arrow(12).rename_column("i", "k")], axis=1),
    "concatenated": lambda: datasets.concatenate_datasets([streaming(1), streaming(2)]),
    "shuffle buffer": lambda: streaming().shuffle(seed=3, buffer_size=5),
    "epoch": lambda: _at_epoch(streaming().shuffle(seed=3, buffer_size=5), 2),
}


def _at_epoch(dataset, epoch):
    dataset.set_epoch(epoch)
    return dataset


def assert_rows_come_again(ds, rows):
    """The rest comes after a restore at every row, and after one more restore a few rows later."""
    iterator = iter(ds)
    for i in range(len(rows) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        fresh = iter(ds)
        fresh.set_state(state)
        assert plain(itertools.islice(fresh, 3)) == rows[i : i + 3]
        again = iter(ds)
        again.set_state(json.loads(json.dumps(fresh.get_state())))
        rest = None if i % 5 == 0 else i + 8
        assert plain(itertools.islice(again, rest and 5)) == rows[i + 3 : rest]
        next(iterator, None)


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("chain", CHAINS)
def test_streams_have_the_order_of_the_dataset_and_resume_at_every_row(chain):
    dataset = CHAINS[chain]()
    rows, ds = plain(dataset), HuggingFaceIterDataset(dataset)
    assert len(rows) > 10
    assert plain(ds) == rows
    assert plain(ds) == rows  # each iteration begins anew
    assert_rows_come_again(ds, rows)
    assert_rows_come_again(ds.map(lambda row: row), rows)


EXACT = ["generator", "mapped", "filtered", "skip and take", "interleaved", "concatenated", "shuffle buffer", "epoch"]


@pytest.mark.parametrize("chain", EXACT)
def test_states_of_one_place_are_equal_where_the_datasets_are(chain):
    assert_resumable(HuggingFaceIterDataset(CHAINS[chain]()))
    assert_resumable(HuggingFaceIterDataset(CHAINS[chain]()).batch(3, batch_fn=list))


def test_two_iterations_of_one_stream_do_not_move_each_other():
    first, second = iter(HuggingFaceIterDataset(streaming())), iter(HuggingFaceIterDataset(streaming()))
    rows = plain(streaming())
    assert plain([next(first), next(first), next(second), next(first)]) == [rows[0], rows[1], rows[0], rows[2]]


def test_shards_are_shared_out_among_workers():
    dataset = streaming(4)
    ds = HuggingFaceIterDataset(dataset, num_shards=2)
    rows = plain(ds)
    assert rows != plain(dataset)
    assert sorted(map(str, rows)) == sorted(map(str, plain(dataset)))
    assert [row["shard"] for row in rows[:4]] == [0, 1, 0, 1]
    assert_resumable(ds, max_outputs=20)
    ds = ds.filter(lambda row: row["i"] != 2).batch(4)
    with iter(ds.mp_prefetch(TWO)) as workers:
        for ours, other in zip(ds, workers, strict=True):
            assert_equal(ours, other)


@pytest.mark.parametrize("num_shards", [0, 4])
def test_more_parts_than_shards_are_an_error(num_shards):
    with pytest.raises(PipelineError, match=f"must be from 1 to 3, the number of its shards; got {num_shards}"):
        HuggingFaceIterDataset(streaming(), num_shards=num_shards)


def test_a_state_of_another_epoch_or_pipeline_is_an_error():
    dataset = streaming()
    iterator = iter(HuggingFaceIterDataset(dataset))
    next(iterator)
    state = iterator.get_state()
    later = iter(HuggingFaceIterDataset(_at_epoch(streaming(), 1)))
    with pytest.raises(StateError, match="state is of epoch 0, but the dataset is at epoch 1"):
        later.set_state(state)
    with pytest.raises(StateError, match="has the field `state_dict`; got {'next_index': 3}"):
        iterator.set_state({"next_index": 3})


def test_an_error_of_the_dataset_comes_after_the_rows_before_it():
    def failing():
        yield {"i": 0}
        yield {"i": 1}
        raise ValueError("the disk is gone")

    iterator = iter(HuggingFaceIterDataset(datasets.IterableDataset.from_generator(failing)).map(lambda row: row["i"]))
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(ValueError, match="the disk is gone"):
        next(iterator)
