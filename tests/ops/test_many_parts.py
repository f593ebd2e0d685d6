"""Very many parts: what they cost does not grow with their number, and who gets which output stays what it was."""

import time

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import IterDataset, MapDataset
from headrace.ops.proportions import BLOCK, Shares
from tests.support.proc import WAIT_S

NUM_PARTS = 20_000


def one_by_one(proportions, outputs):
    """The rule, said as plainly as possible, in exact numbers."""
    found = []
    for output in outputs:
        cycle, k = divmod(output, sum(proportions))
        rest = sum(proportions)
        for part, p in enumerate(proportions):
            after = k * (rest - p) // rest
            if (k + 1) * (rest - p) // rest == after:
                found.append((part, cycle * p + k - after))
                break
            k, rest = after, rest - p
    return found


def pairs(shares, outputs):
    which, inner = shares(np.array(outputs, np.int64))
    return list(zip(which.tolist(), inner.tolist(), strict=True))


PROPORTIONS = st.one_of(
    st.lists(st.integers(1, 6), min_size=1, max_size=90),
    st.lists(st.integers(100, 10_000), min_size=1, max_size=30),
    st.lists(st.integers(1, 10**12), min_size=2, max_size=5),
    st.integers(1, 80).map(lambda n: [7] * n),
)


@given(PROPORTIONS, st.integers(0, 10**12), st.integers(1, 60))
def test_outputs_are_shared_out_by_one_rule_however_they_are_asked_for(proportions, first, count):
    shares = Shares(proportions)
    run = list(range(first, first + count))
    expected = one_by_one(proportions, run)
    assert pairs(shares, run) == expected
    assert [pairs(shares, [k])[0] for k in run] == expected
    spread = [k * 7919 for k in run]
    assert pairs(shares, spread[::-1]) == one_by_one(proportions, spread[::-1])


def test_blocks_meet_where_they_should():
    shares = Shares([3, 5, 40_000, 70_001, 1, 8])
    run = list(range(BLOCK - 20, 3 * BLOCK + 20))
    assert pairs(shares, run) == one_by_one([3, 5, 40_000, 70_001, 1, 8], run)
    end = sum([3, 5, 40_000, 70_001, 1, 8])
    assert pairs(shares, range(end - 30, end + 30)) == one_by_one(
        [3, 5, 40_000, 70_001, 1, 8], range(end - 30, end + 30)
    )


@pytest.mark.parametrize(
    "weights", [None, [1 + i % 3 for i in range(300)], [0.01 + (i * 37 % 101) for i in range(300)]]
)
def test_a_mix_of_many_parts_is_grains(weights):
    ours, theirs = (
        lib.MapDataset.mix([lib.MapDataset.range(i * 100, i * 100 + 100) for i in range(300)], weights)
        for lib in (hr, grain)
    )
    assert len(ours) == len(theirs)
    few = min(len(ours), 400)
    assert ours._fetch(range(few)).rows() == [theirs[i] for i in range(few)]
    chosen = np.random.default_rng(0).integers(0, len(ours), 50)
    assert ours._fetch(chosen).rows() == [theirs[int(i)] for i in chosen]


# ---- shuffled parts: their orders are computed together

LENGTHS = st.lists(
    st.one_of(st.integers(1, 40), st.integers(900, 70_000), st.integers(1, 2**40)), min_size=3, max_size=40
)
SHAPES = {
    "shuffled": lambda ds: ds.shuffle(),
    "shuffled slices": lambda ds: ds.shuffle()[::2],
    "slices, shuffled": lambda ds: ds[1:].shuffle() if len(ds) > 1 else ds,
    "shuffled twice": lambda ds: ds.shuffle().seed(9).shuffle(),
    "windows": lambda ds: ds.window_shuffle(7),
    "in order": lambda ds: ds,
    "mapped": lambda ds: ds.shuffle().map(lambda x: x + 1),
}


@given(LENGTHS, st.lists(st.sampled_from(sorted(SHAPES)), min_size=40, max_size=40), st.integers(0, 10**6), st.data())
def test_a_run_of_a_mix_is_its_elements_one_by_one(lengths, shapes, first, data):
    parts = [
        SHAPES[s](MapDataset.range(n).seed(i)).repeat() for i, (n, s) in enumerate(zip(lengths, shapes, strict=False))
    ]
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(parts), max_size=len(parts)))
    mix = MapDataset.mix(parts, weights)
    runs = [range(first + 30 * k, first + 30 * k + 30) for k in (0, 1, 2, 9, 1)]
    assert [mix._fetch(run).rows() for run in runs] == [[mix[i] for i in run] for run in runs]


def test_threads_give_the_order_of_one_thread():
    mix = MapDataset.mix([MapDataset.range(1000 + i).seed(i).shuffle().repeat() for i in range(200)])
    one, many = (mix[:20_000].to_iter_dataset(hr.ReadOptions(num_threads=n)) for n in (0, 8))
    assert list(one) == list(many)


def test_shuffled_parts_cost_little_more_than_parts_in_order():
    def element_s(shuffled):
        parts = [MapDataset.range(65_000 + i).seed(i) for i in range(100)]
        mix = MapDataset.mix([(part.shuffle() if shuffled else part).repeat() for part in parts])
        with iter(mix.to_iter_dataset(hr.ReadOptions(num_threads=0))) as iterator:
            for _ in range(1000):
                next(iterator)
            begin = time.process_time()
            for _ in range(8000):
                next(iterator)
            return time.process_time() - begin

    in_order, shuffled = (min(element_s(each) for _ in range(3)) for each in (False, True))
    assert shuffled < 8 * in_order  # one by one, it was 30 times as much


def test_a_large_mix_of_streams_goes_on_from_its_state_without_opening_all_parts():
    parts = [MapDataset.range(i, i + 100).seed(i).shuffle().to_iter_dataset().map(lambda x: x) for i in range(5000)]
    mix = IterDataset.mix(parts)
    with iter(mix) as iterator:
        first_s = seconds(lambda: [next(iterator) for _ in range(7)])
        state, rest = iterator.get_state(), [next(iterator) for _ in range(5003)]
    with iter(mix) as iterator:
        iterator.set_state(state)
        assert min(first_s, seconds(lambda: iterator.__next__())) < WAIT_S / 10
        assert [next(iterator) for _ in range(5002)] == rest[1:]
        assert iterator.get_state()["0 mix"]["count"] == 7 + 5003


# ---- what it costs


class InTurn:
    def __len__(self):
        return 10 * NUM_PARTS

    def __getitem__(self, i):
        return i % NUM_PARTS, i // NUM_PARTS


WEIGHTS = np.random.default_rng(0).random(NUM_PARTS) + 0.01
PARTS = [MapDataset.range(i, i + 10) for i in range(NUM_PARTS)]
COMBINED = {
    "mix": lambda: MapDataset.mix(PARTS),
    "mix of two weights": lambda: MapDataset.mix(PARTS, [1 + i % 2 for i in range(NUM_PARTS)]),
    "mix of all kinds of weights": lambda: MapDataset.mix(PARTS, WEIGHTS.tolist()),
    "concatenate": lambda: MapDataset.concatenate(PARTS),
    "select": lambda: MapDataset.select_from_datasets(PARTS, InTurn()),
}


def seconds(function):
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


@pytest.mark.parametrize("name", COMBINED)
def test_an_element_costs_little_however_many_parts_there_are(name):
    ds = COMBINED[name]()
    expected = [ds[i] for i in range(30)]
    assert list(ds._fetch(range(30)).rows()) == expected
    list(ds._fetch(range(5000)).rows())
    assert min(seconds(lambda k=k: [ds[i] for i in range(k, k + 20)]) for k in range(0, 100, 20)) / 20 < 0.002
    assert min(seconds(lambda k=k: ds._fetch(range(k, k + 1000)).rows()) for k in range(0, 3000, 1000)) / 1000 < 0.0005


@pytest.mark.parametrize("weights", [None, WEIGHTS.tolist()])
def test_a_stream_of_many_streams_costs_little_for_each_element(weights):
    with iter(IterDataset.mix([part.to_iter_dataset() for part in PARTS], weights)) as iterator:
        expected = MapDataset.mix(PARTS, weights)
        assert [next(iterator) for _ in range(2000)] == expected._fetch(range(2000)).rows()
        assert min(seconds(lambda: [next(iterator) for _ in range(500)]) for _ in range(4)) / 500 < 0.001


@pytest.mark.parametrize("name", COMBINED)
def test_very_many_parts_are_built_and_shown_in_no_time(name):
    begin = time.perf_counter()
    ds = COMBINED[name]().seed(1).shuffle().batch(3)
    assert str(ds).count("\n") > NUM_PARTS
    assert str(ds.explain()).count("\n") > NUM_PARTS
    assert len(ds) > 0
    assert time.perf_counter() - begin < WAIT_S
