"""Batches by a budget: as full as it allows, never over it, and the same whatever computes them."""

import json
import logging
import os
import re
from itertools import chain

import numpy as np
import pytest

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.errors import PipelineError, SpecError, StateError, StateWarning, StructureError
from headrace.sharding import ShardOptions
from headrace.testing import assert_equal, assert_resumable

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(5, 0.8, 4000).astype(int) + 1, 1024).tolist()
TWO = MultiprocessingOptions(num_workers=2)


def documents(lengths=LENGTHS) -> MapDataset:
    """Documents whose tokens are their numbers."""
    return MapDataset.range(len(lengths)).map(lambda i: {"tokens": np.full(lengths[i], i + 1)})


def stream(*lengths) -> IterDataset:
    return MapDataset.source([np.full(n, i + 1) for i, n in enumerate(lengths)]).to_iter_dataset()


def outputs(ds):
    """Batches, and the state after each."""
    with iter(ds) as iterator:
        return [(batch, json.dumps(iterator.get_state())) for batch in iterator]


# ---- what a batch has


def test_batches_use_the_budget_and_have_little_padding():
    batches = list(documents().shuffle(seed=1).to_iter_dataset().batch_by_size(8192, "tokens", seed=2))
    sizes = [batch["tokens"].size for batch in batches]
    assert max(sizes) <= 8192
    used = sum(np.count_nonzero(batch["tokens"]) for batch in batches)
    assert used == sum(LENGTHS)
    assert sum(sizes) < 1.07 * used
    assert np.mean(sizes) > 0.93 * 8192
    plain = sum(batch["tokens"].size for batch in documents().to_iter_dataset().padded_batch(len(LENGTHS) // 80))
    assert plain > 2 * used


def test_no_element_is_lost_or_repeated():
    batches = documents().to_iter_dataset().batch_by_size(2048, "tokens", window_size=300, seed=2)
    numbers = [row[0] for batch in batches for row in batch["tokens"]]
    assert sorted(numbers) == list(range(1, len(LENGTHS) + 1))


def test_lengths_are_not_ordered_in_time():
    def longest(**options):
        ds = documents().to_iter_dataset().batch_by_size(4096, "tokens", window_size=4000, **options)
        return [batch["tokens"].shape[1] for batch in ds]

    shuffled, ordered = longest(seed=3), longest(shuffle_batches=False)
    assert ordered == sorted(shuffled)
    assert abs(np.corrcoef(shuffled, range(len(shuffled)))[0, 1]) < 0.2
    assert longest(seed=4) != shuffled


def test_windows_have_orders_of_their_own():
    ds = stream(*range(5, 9), *range(5, 9)).batch_by_size(8, window_size=4, seed=1)
    longest = [batch.shape[1] for batch in ds]
    assert sorted(longest[:4]) == sorted(longest[4:]) == [5, 6, 7, 8]
    assert longest[:4] != longest[4:]


def test_the_budget_counts_padding_or_not():
    def batches(**options):
        found = stream(1, 1, 1, 4, 4).batch_by_size(8, shuffle_batches=False, **options)
        return [[len(x) for x in batch] for batch in found]

    assert batches(batch_fn=list) == [[1, 1, 1], [4, 4]]
    assert batches(padded=False) == [[1, 1, 1, 4], [4]]
    assert batches(padded=False, max_rows=2) == [[1, 1], [1, 4], [4]]


def test_padding_has_a_value_for_each_feature():
    elements = [{"x": np.arange(n), "y": np.ones((n, 2)), "z": n} for n in (1, 2)]
    ds = MapDataset.source(elements).to_iter_dataset().batch_by_size(9, "x", pad_value={"x": -1}, seed=1)
    (batch,) = ds
    assert {key: array.tolist() for key, array in batch.items()} == {
        "x": [[0, -1], [0, 1]],
        "y": [[[1, 1], [0, 0]], [[1, 1], [1, 1]]],
        "z": [1, 2],
    }


def test_a_function_gives_sizes_and_another_makes_batches():
    pairs = MapDataset.range(1, 40).map(lambda n: (np.ones(n % 7), np.ones(n % 5))).to_iter_dataset()
    ds = pairs.batch_by_size(20, lambda pair: len(pair[0]) + len(pair[1]), batch_fn=tuple, seed=1)
    assert max(len(batch) * max(len(a) + len(b) for a, b in batch) for batch in ds) <= 20
    assert sum(map(len, ds)) == 39


def test_specs():
    arrays = MapDataset.source({"x": np.ones((3, 4), np.float32)}).to_iter_dataset()
    spec = arrays.batch_by_size(8, "x", seed=1).element_spec
    assert (spec["x"].shape, spec["x"].dtype) == ((None, None), np.float32)
    with pytest.raises(SpecError, match="batches are lists"):
        _ = arrays.batch_by_size(8, "x", padded=False, seed=1).element_spec


# ---- elements that are too large


def test_an_oversized_element_is_an_error_that_names_it():
    ds = documents([3, 9, 4, 12]).shuffle(seed=1).to_iter_dataset().batch_by_size(8, "tokens", window_size=2, seed=1)
    order = [len(x["tokens"]) for x in documents([3, 9, 4, 12]).shuffle(seed=1)]
    first = next(i for i, n in enumerate(order) if n > 8)
    record, size = [3, 9, 4, 12].index(order[first]), order[first]
    text = rf"element {first}, record {record} of source\(.*\), has size {size}, over 8\. .*oversized='drop'"
    with iter(ds) as iterator:
        for _ in range(2):
            with pytest.raises(PipelineError, match=text):
                list(iterator)


def test_oversized_elements_are_dropped_counted_and_logged_once(caplog):
    ds = stream(3, 9, 4, 12, 9, 2).batch_by_size(8, window_size=2, oversized="drop", seed=1)
    with caplog.at_level(logging.WARNING, "headrace"), iter(ds) as iterator:
        batches = list(iterator)
        (stage,) = (stage for stage in iterator.stats().stages if stage.left_out)
    assert sorted(batch.shape for batch in batches) == [(1, 2), (1, 3), (1, 4)]
    assert (stage.left_out, stage.elements) == (3, 3)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "element 1, record 1 of" in message
    assert "has size 9, over 8. Such elements are dropped" in message


def test_a_run_that_ended_at_an_oversized_element_goes_on_without_it():
    def build(oversized):
        return stream(3, 4, 2, 9).batch_by_size(4, window_size=2, oversized=oversized, seed=1)

    with iter(build("error")) as iterator:
        assert {next(iterator).shape for _ in range(2)} == {(1, 3), (1, 4)}
        state = iterator.get_state()
        with pytest.raises(PipelineError, match="element 3"):
            next(iterator)
    with iter(build("drop")) as iterator:
        iterator.set_state(state)
        assert [batch.shape for batch in iterator] == [(1, 2)]


@pytest.mark.parametrize(
    ("elements", "size", "error", "text"),
    [
        ([{"x": 1}], len, PipelineError, '`len` of an element that is a dict counts its features.*size="tokens"'),
        ([([1], [2])], len, PipelineError, "is a tuple counts its features"),
        ([{"x": [1]}], "y", PipelineError, r"size='y', but the element has no such feature: \['x'\]"),
        ([[1]], "y", PipelineError, "no such feature: a list"),
        ([[1]], lambda x: 2.5, PipelineError, "size must return an int of 0 or more; it returned 2.5"),
        ([[1]], lambda x: -1, PipelineError, "it returned -1"),
        ([[1], [2], [0]], lambda x: 1 // x[0], ZeroDivisionError, "division"),
        ([np.ones(2), np.ones((2, 2))], len, StructureError, "different rank"),
    ],
)
def test_errors_name_the_operation(elements, size, error, text):
    ds = MapDataset.source(elements).to_iter_dataset().batch_by_size(9, size, seed=1)
    with pytest.raises(error, match=text) as info:
        list(ds)
    where = "" if error is StructureError else f", element {len(elements) - 1}"
    assert re.search(rf"in batch_by_size\(9, .*seed=1\){where} \(pipeline at test_batch", info.value.__notes__[0])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_size": 0}, "max_size must be a positive int; got 0"),
        ({"max_rows": 0}, "max_rows must be a positive int"),
        ({"window_size": 0}, "window_size must be a positive int"),
        ({"oversized": "keep"}, "oversized must be one of 'error', 'drop'; got 'keep'"),
        ({"size": 3}, "size must be a function of an element, or the name of a feature; got 3"),
        ({"batch_fn": 3}, "batch_fn must be a function"),
        ({"seed": None}, r"`batch_by_size` needs a seed.*`ds.seed\(42\).batch_by_size"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(PipelineError, match=text):
        stream(1).batch_by_size(**({"max_size": 4, "seed": 1} | options))


def test_it_is_for_streams():
    with pytest.raises(AttributeError, match=r"method of IterDataset, to call after `to_iter_dataset\(\)`"):
        documents().batch_by_size(100, "tokens")


# ---- one stream


def in_process(batch):
    return {"shape": np.array([len(batch), max(map(len, batch))]), "process": os.getpid()}


def test_batches_and_states_do_not_depend_on_threads_or_workers():
    def build(options=None):
        ds = documents(LENGTHS[:400]).to_iter_dataset(options).filter(lambda x: x["tokens"][0] % 5 > 0)
        return ds.batch_by_size(1500, "tokens", window_size=64, seed=7)

    expected = outputs(build(ReadOptions(num_threads=0)))
    assert len(expected) > 30
    for ds in (build(ReadOptions(num_threads=3)), build().prefetch(4), build().mp_prefetch(TWO)):
        found = outputs(ds)
        assert [state for _, state in found] == [state for _, state in expected]
        for (batch, _), (wanted, _) in zip(found, expected, strict=True):
            assert_equal(batch, wanted)


def test_workers_call_the_function_that_makes_batches():
    ds = stream(*LENGTHS[:60]).batch_by_size(2048, batch_fn=in_process, window_size=20, seed=1)
    inline, elsewhere = list(ds), list(ds.mp_prefetch(MultiprocessingOptions(num_workers=1)))
    assert_equal([batch["shape"] for batch in inline], [batch["shape"] for batch in elsewhere])
    assert {batch["process"] for batch in inline} == {os.getpid()}
    assert os.getpid() not in {batch["process"] for batch in elsewhere}


def test_every_batch_is_a_checkpoint_with_a_small_state():
    ds = documents(LENGTHS[:300]).to_iter_dataset().batch_by_size(1200, "tokens", window_size=100, seed=7)
    assert_resumable(ds)
    assert max(len(state) for _, state in outputs(ds)) < 800


def test_hosts_have_the_batches_of_their_lanes():
    same_in_lanes = np.repeat(LENGTHS[:150], 4).tolist()
    ds = documents(same_in_lanes).repeat().to_iter_dataset(num_lanes=4).batch_by_size(2000, "tokens", seed=7)
    steps = {}
    for num_hosts in (1, 2, 4):
        hosts = [
            ds.global_batch(4, ShardOptions(h, num_hosts), batch_fn=list, num_batches=12) for h in range(num_hosts)
        ]
        steps[num_hosts] = [[*chain.from_iterable(parts)] for parts in zip(*hosts, strict=True)]
    assert len(steps[1]) == 12
    assert_equal(steps[2], steps[1])
    assert_equal(steps[4], steps[1])
    shapes = [[step[lane]["tokens"].shape for step in steps[1]] for lane in range(4)]
    assert all(shapes.count(each) == 1 for each in shapes), "lanes must have orders of their own"


def test_states_of_other_batches_are_refused():
    def build(max_size=6, size=len, **options):
        return stream(1, 2, 3, 4, 5, 6).batch_by_size(max_size, size, **({"window_size": 3, "seed": 1} | options))

    with iter(build()) as iterator:
        next(iterator)
        state = iterator.get_state()
    for options in (
        {"max_size": 7},
        {"window_size": 4},
        {"seed": 2},
        {"padded": False},
        {"max_rows": 1},
        {"size": "x"},
    ):
        with pytest.raises(StateError, match=f"saved with {'feature' if 'size' in options else next(iter(options))}="):
            iter(build(**options)).set_state(state)
    state = iter(build(size=lambda x: len(x))).get_state()
    with pytest.warns(StateWarning, match="Functions have changed.*<lambda>"):
        iter(build(size=lambda x: x.shape[0])).set_state(state)
