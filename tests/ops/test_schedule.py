"""Mixes whose weights change by the step."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset, MultiprocessingOptions, WeightSchedule
from headrace.errors import PipelineError, StateError
from headrace.ops.schedule import BLOCK, ScheduledMix
from headrace.testing import assert_resumable

FAR = 10**9


def parts(count, length=FAR):
    """Datasets whose elements tell the part, and how many of it came before."""
    return [MapDataset.range(i * FAR, i * FAR + length).to_iter_dataset() for i in range(count)]


def drawn(schedule, num_parts, count):
    """Which part gives each element; each gives its own in order."""
    elements = np.array(list(IterDataset.mix(parts(num_parts), schedule).take(count)))
    which, inner = np.divmod(elements, FAR)
    for i in range(num_parts):
        assert inner[which == i].tolist() == list(range((which == i).sum()))
    return which


def assert_within_one(schedule, num_parts, count):
    """Every part's count is within one element of its exact share, after every element."""
    which = drawn(schedule, num_parts, count)
    counts = np.cumsum(np.eye(num_parts)[which], axis=0)
    weights = [schedule.weights(n // schedule.elements_per_step) for n in range(count)]
    shares = np.cumsum([np.array(row) / np.sum(row) for row in weights], axis=0)
    assert np.abs(counts - shares).max() < 1


@pytest.mark.parametrize(
    ("num_parts", "weights"),
    [
        (2, lambda step: [1, 1]),
        (3, lambda step: [0.7, 0.2, 0.1]),
        (4, lambda step: [1, abs(np.sin(step / 50)), max(0.0, 1 - step / 300), 0.001]),
        (5, lambda step: [step % 5 == i for i in range(5)]),
        (7, lambda step: (np.random.default_rng(step).random(7) ** 6 + 1e-12).tolist()),
        (40, lambda step: [1 / (i + 1) for i in range(40)]),
    ],
)
def test_counts_stay_within_one_element_of_their_exact_share(num_parts, weights):
    assert_within_one(WeightSchedule(weights), num_parts, 3 * BLOCK + 17)


@given(st.integers(2, 6), st.integers(0, 2**32), st.integers(1, 40))
def test_counts_stay_within_one_element_whatever_the_weights(num_parts, seed, per_step):
    def weights(step):
        rng = np.random.default_rng([seed, step // 7])
        return (rng.random(num_parts) * rng.integers(0, 2, num_parts) + 1e-6 * rng.random(num_parts)).tolist()

    assert_within_one(WeightSchedule(weights, elements_per_step=per_step), num_parts, BLOCK + 300)


def test_a_table_says_from_which_step_weights_hold():
    which = drawn(WeightSchedule({0: [1, 0], 3: [0, 1], 5: [1, 1]}, elements_per_step=4), 2, 40)
    assert which[:12].tolist() == [0] * 12
    assert which[12:20].tolist() == [1] * 8
    assert sorted(np.bincount(which[20:])) == [10, 10]


def test_a_table_and_a_function_of_the_same_weights_are_the_same():
    table = WeightSchedule({0: [1, 2, 3], 100: [3, 0, 1]})
    function = WeightSchedule(lambda step: [1, 2, 3] if step < 100 else [3, 0, 1])
    assert drawn(table, 3, 2000).tolist() == drawn(function, 3, 2000).tolist()


def test_parts_and_weights_by_name():
    a, b = parts(2)
    by_name = IterDataset.mix({"b": b, "a": a}, WeightSchedule({0: {"a": 1, "b": 0}, 2: {"a": 0, "b": 1}})).take(4)
    assert list(by_name) == [0, 1, FAR, FAR + 1]


def test_it_ends_where_a_part_that_is_due_has_ended():
    a, b = parts(2, length=3)
    assert list(IterDataset.mix([a, b], WeightSchedule({0: [1, 0], 2: [0, 1]}))) == [0, 1, FAR, FAR + 1, FAR + 2]


def mixed(weights, count=3000):
    return IterDataset.mix([part.map(lambda x: x + 1) for part in parts(3)], WeightSchedule(weights)).take(count)


def test_every_output_is_a_checkpoint():
    ds = mixed(lambda step: [1, step % 3, 2])
    assert_resumable(ds.skip(BLOCK - 5), max_outputs=12)  # over the end of a block
    assert_resumable(ds.batch(7), max_outputs=10)


def test_a_restored_stream_goes_on_far_into_the_schedule():
    ds = mixed(lambda step: [1, step % 3, 2])
    iterator = iter(ds)
    expected = [next(iterator) for _ in range(2 * BLOCK)]
    state = json.loads(json.dumps(iterator.get_state()))
    rest = list(iterator)
    again = iter(mixed(lambda step: [1, step % 3, 2]))
    again.set_state(state)
    assert list(again) == rest
    assert len(set(expected + rest)) == 3000


def test_workers_change_neither_elements_nor_states():
    def outputs(ds):
        with iter(ds) as iterator:
            return [(next(iterator), iterator.get_state()) for _ in range(BLOCK + 20)]

    ds = mixed(lambda step: [1, step % 3, 2])
    assert outputs(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == outputs(ds)


def state_after(count, weights):
    with iter(mixed(weights)) as iterator:
        for _ in range(count):
            next(iterator)
        return iterator.get_state()


@pytest.mark.parametrize("other", [{0: [1, 2, 2]}, {0: [9, 1, 1], 3: [1, 1, 2]}, {0: [1, 1, 2], 50: [0, 1, 0]}])
def test_a_state_of_another_schedule_is_refused(other):
    state = state_after(4, {0: [1, 1, 2]})
    with pytest.raises(StateError, match=r"from 0 on with another schedule than that of .* up to element 2048"):
        iter(mixed(other)).set_state(state)


def test_a_schedule_may_be_another_far_ahead_and_between_blocks():
    for count, other in ((4, {0: [1, 1, 2], 2 * BLOCK: [0, 1, 0]}), (BLOCK, {0: [1, 0, 0]})):
        iterator = iter(mixed(other))
        iterator.set_state(state_after(count, {0: [1, 1, 2]}))
        assert len(list(iterator)) == 3000 - count


def test_counts_stay_within_one_element_for_very_long():
    schedule = ScheduledMix(tuple(part._op for part in parts(2)), WeightSchedule({0: [9, 1]}))
    _, lags, _ = schedule.first_numbers()
    for block in range(2000):
        plan = schedule.plan_block(0, lags)
        lags = plan.next_lags
        assert len(plan.which) == BLOCK
        assert abs(sum(lags)) < 1e-9, block
        assert max(map(abs, lags)) < 1


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("needs a function of the step, or a dict", [1, 2]),
        (r"must begin at step 0; got \[3\]", {3: [1, 2]}),
        (r"gives the weights \[1\] at step 0, but there are 2 parts", {0: [1]}),
        (r"gives the weights \{'a': 1\} at step 5", {0: [1, 2], 5: {"a": 1}}),
        (r"0 or more.*at step 2 the schedule gives \[1, -1\]", {0: [1, 2], 2: [1, -1]}),
        (r"at step 0 the schedule gives \[0, 0\]", lambda step: [0, 0]),
        (r"gives the weights None at step 0", lambda step: None),
    ],
)
def test_wrong_weights_say_at_which_step(text, weights):
    with pytest.raises(PipelineError, match=text):
        IterDataset.mix(parts(2), WeightSchedule(weights))


def test_a_function_may_end_where_it_is_not_asked_any_more():
    table = [[1, i] for i in range(10)]
    ds = IterDataset.mix(parts(2), WeightSchedule(lambda step: table[step], elements_per_step=4))
    assert len(list(ds.take(40))) == 40
    iterator = iter(ds)
    assert len([next(iterator) for _ in range(40)]) == 40
    for _ in range(2):
        with pytest.raises(PipelineError, match="failed at step 10: IndexError: list index out of range"):
            next(iterator)


def test_a_function_that_goes_wrong_later_says_at_which_step():
    ds = IterDataset.mix(parts(2), WeightSchedule(lambda step: [1, 1] if step < 5000 else [1, float("nan")]))
    with pytest.raises(PipelineError, match="at step 5000"):
        list(ds.take(6000))
