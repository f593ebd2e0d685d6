"""A part of a mix whose weight is 0 gives nothing and is never opened; the others come as if it were not there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset, MultiprocessingOptions, WeightSchedule
from headrace.errors import PipelineError
from headrace.testing import assert_block_law, assert_resumable

LENGTHS = (40, 70, 55, 90)
WEIGHTS = st.lists(st.sampled_from([0, 0, 0.0, 1, 2, 3, 0.5, 7.25]), min_size=4, max_size=4).filter(any)
SOME = [0, 1, 2, 0]


def size(x):
    return x % 7 + 1


def fails(_):
    raise RuntimeError("read a part without weight")


def parts(weights=(1,) * 4):
    """Datasets that tell their part; one without weight fails where it is read."""
    made = [MapDataset.range(100 * i, 100 * i + n) for i, n in enumerate(LENGTHS)]
    return [ds if weight else ds.map(fails) for ds, weight in zip(made, weights, strict=True)]


def streams(weights=(1,) * 4):
    return [ds.to_iter_dataset() for ds in parts(weights)]


def without(everything, weights):
    """What is left where parts without weight are left out."""
    return [each for each, weight in zip(everything, weights, strict=True) if weight]


@given(WEIGHTS)
def test_random_access(weights):
    ds, expected = (
        MapDataset.mix(parts(weights), weights),
        MapDataset.mix(without(parts(), weights), without(weights, weights)),
    )
    assert len(ds) == len(expected)
    assert list(ds) == list(expected)
    assert [ds[i] for i in (3, 17, 5)] == [expected[i] for i in (3, 17, 5)]


@pytest.mark.parametrize("weigh_by", [None, size])
@pytest.mark.parametrize("of", [list, lambda w: WeightSchedule({0: w}), lambda w: WeightSchedule({0: w, 30: w})])
@given(weights=WEIGHTS)
def test_streams(weights, of, weigh_by):
    ds = IterDataset.mix(streams(weights), of(weights), weigh_by=weigh_by)
    rest = without(weights, weights)
    assert list(ds) == list(IterDataset.mix(without(streams(), weights), of(rest), weigh_by=weigh_by))


@pytest.mark.parametrize("weigh_by", [None, size])
def test_by_name(weigh_by):
    names, left = dict(zip("abcd", streams(SOME), strict=True)), dict(zip("bc", streams()[1:3], strict=True))
    ds = IterDataset.mix(names, dict(zip("abcd", SOME, strict=True)), weigh_by=weigh_by)
    assert list(ds) == list(IterDataset.mix(left, {"b": 1, "c": 2}, weigh_by=weigh_by))


def test_a_mix_of_mixes():
    inner = IterDataset.mix(streams([0, 1, 0, 0]), [0, 1, 0, 0])
    assert list(IterDataset.mix([inner, streams()[2]], [1, 0])) == list(range(100, 170))
    assert list(IterDataset.mix([inner, streams()[2]], [0, 1])) == list(range(200, 255))
    ds = MapDataset.mix([MapDataset.mix(parts()[:2], [0, 1]), parts()[2]], [1, 1])
    assert list(ds.slice(slice(4))) == [100, 200, 101, 201]


@pytest.mark.parametrize("weigh_by", [None, size])
@pytest.mark.parametrize("of", [list, lambda w: WeightSchedule({0: w})])
def test_states_and_workers(of, weigh_by):
    ds = IterDataset.mix(streams(SOME), of(SOME), weigh_by=weigh_by)
    assert_resumable(ds)
    assert list(ds.mp_prefetch(MultiprocessingOptions(2))) == list(ds)


def test_blocks():
    assert_block_law(MapDataset.mix(parts(), SOME))


@pytest.mark.parametrize("weigh_by", [None, size])
def test_a_part_keeps_its_place_while_its_weight_is_zero(weigh_by):
    def build(a):
        return IterDataset.mix({"a": streams()[0], "b": streams()[1]}, {"a": a, "b": 1}, weigh_by=weigh_by)

    state, seen = None, []
    for weight in (1, 0, 1):
        iterator = iter(build(weight))
        if state is not None:
            iterator.set_state(state)
        seen += [next(iterator) for _ in range(6)]
        state = iterator.get_state()
        if not weight:
            assert all(x >= 100 for x in seen[6:])
    for first in (0, 100):
        numbers = [x - first for x in seen if first <= x < first + 100]
        assert numbers == list(range(len(numbers)))


def test_an_older_state_of_a_schedule_goes_on_in_its_order(monkeypatch):
    def build():
        far = [MapDataset.range(10**6 * i, 10**6 * (i + 1)).to_iter_dataset() for i in range(3)]
        return IterDataset.mix(far, WeightSchedule({0: [2, 0, 3]})).take(1500)

    with monkeypatch.context() as patch:  # releases up to 0.1.0 planned with all parts
        patch.setattr(WeightSchedule, "due_parts", lambda _, names: (0, 1, 2))
        iterator = iter(build())
        for _ in range(500):
            next(iterator)
        state = iterator.get_state()
        rest = list(iterator)
    iterator = iter(build())
    iterator.set_state(state)
    found = list(iterator)
    assert found[:524] == rest[:524]
    assert sorted(found) == sorted(rest)


def test_a_part_without_weight_may_be_empty_or_of_unknown_length_and_does_not_end_the_mix():
    empty, some = MapDataset.range(0), MapDataset.range(5)
    assert list(MapDataset.mix([empty, some], [0, 1])) == list(range(5))
    assert list(IterDataset.mix([empty.to_iter_dataset(), some.to_iter_dataset()], [0, 1])) == list(range(5))
    unknown = some.to_iter_dataset().filter(fails)
    assert len(IterDataset.mix([unknown, some.to_iter_dataset()], [0, 1])) == 5
    assert list(IterDataset.mix([some.to_iter_dataset(), some.repeat().to_iter_dataset()], [0, 1]).take(12))[-1] == 1


@pytest.mark.parametrize("weigh_by", [None, size])
def test_all_weights_zero(weigh_by):
    named = dict(zip("abcd", streams(), strict=True))
    with pytest.raises(PipelineError, match=r"All weights of a `mix` are 0.*'a': 0"):
        IterDataset.mix(named, dict.fromkeys("abcd", 0), weigh_by=weigh_by)
    with pytest.raises(PipelineError, match=r"All weights of a `mix` are 0.*\[0, 0, 0, 0\]"):
        IterDataset.mix(streams(), [0] * 4, weigh_by=weigh_by)
    with pytest.raises(PipelineError, match=r"one of them positive.*\[0, 0, 0, 0\]"):
        IterDataset.mix(streams(), WeightSchedule({0: [0] * 4}), weigh_by=weigh_by)
    with pytest.raises(PipelineError, match=r"All weights of a `mix` are 0"):
        MapDataset.mix(parts(), [0] * 4)
