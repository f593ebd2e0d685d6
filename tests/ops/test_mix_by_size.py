"""Mixes whose weights hold for sizes, such as numbers of tokens."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, WeightSchedule
from headrace.errors import PipelineError, StateError, StateWarning
from headrace.ops.ending import must_come_before_rows
from headrace.ops.weighed_mix import UNIT
from headrace.sharding import ShardOptions
from headrace.testing import assert_equal, assert_resumable
from tests.support import reference

TWO = MultiprocessingOptions(num_workers=2)
LONGEST = 1000
WEIGHTS = {"web": 0.6127, "books": 0.25, "code": 0.1373}
MEANS = {"web": 120, "books": 600, "code": 30}  # so that shares of elements are far from those of tokens


def corpus(name, length=50_000) -> MapDataset:
    """Documents of random lengths, with about this many tokens."""
    rng = np.random.default_rng(sorted(MEANS).index(name))
    lengths = np.clip(rng.exponential(MEANS[name], length), 1, LONGEST).astype(int).tolist()
    return MapDataset.range(length).map(lambda i: {"name": name, "number": i, "tokens": np.zeros(lengths[i], np.int8)})


def mixed(weights=WEIGHTS, weigh_by="tokens", **options) -> IterDataset:
    return IterDataset.mix(
        {name: corpus(name).to_iter_dataset(**options) for name in MEANS}, weights, weigh_by=weigh_by
    )


def lists(*lengths) -> IterDataset:
    """Lists of these lengths, in turn and for ever."""
    return MapDataset.source([[0] * n for n in lengths]).repeat().to_iter_dataset()


def sizes_of(ds, most) -> dict[str, int]:
    """The number of tokens of each part, until there are `most` in all."""
    found = dict.fromkeys(MEANS, 0)
    for document in ds:
        found[document["name"]] += len(document["tokens"])
        if sum(found.values()) >= most:
            return found
    raise AssertionError("it ended")


def outputs(ds, count):
    """Which documents come, and the state after each."""
    with iter(ds) as iterator:
        found = []
        for _ in range(count):
            document = next(iterator)
            found.append((document["name"], document["number"], json.dumps(iterator.get_state())))
        return found


# ---- shares


@pytest.mark.parametrize("weigh_by", ["tokens", lambda document: len(document["tokens"])])
def test_shares_of_a_million_tokens_are_within_a_tenth_of_a_percent(weigh_by):
    found = sizes_of(mixed(weigh_by=weigh_by), 10**6)
    for name, weight in WEIGHTS.items():
        assert abs(found[name] / sum(found.values()) - weight) < 0.001
    by_elements = sizes_of(mixed(weigh_by=None), 10**6)
    assert abs(by_elements["books"] / sum(by_elements.values()) - WEIGHTS["books"]) > 0.2


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.lists(st.integers(1, 50), min_size=1, max_size=5)), min_size=2, max_size=6
    )
)
def test_no_part_is_ahead_by_more_than_one_element_after_any_element(parts):
    weights = np.array([weight for weight, _ in parts]) / sum(weight for weight, _ in parts)
    streams = [lists(*lengths).map(lambda x, i=i: (i, x)) for i, (_, lengths) in enumerate(parts)]
    found, longest = np.zeros(len(parts)), max(max(lengths) for _, lengths in parts)
    for part, x in IterDataset.mix(streams, [weight for weight, _ in parts], weigh_by=lambda e: len(e[1])).take(300):
        found[part] += len(x)
        ahead = found - weights * found.sum()
        assert ahead.max() <= longest + 1e-3
        assert ahead.min() >= -longest * (len(parts) - 1) - 1e-3


def test_nothing_drifts():
    ds = IterDataset.mix([lists(7, 3), lists(11), lists(1)], [1, 2 / 3, 0.1], weigh_by=len)
    iterator = iter(ds)
    for _ in range(20_000):
        next(iterator)
    state = iterator.get_state()["0 mix"]
    lags = [(high << 31) + low for high, low in state["lags"]]
    assert sum(lags) == 0
    assert max(map(abs, lags)) <= 2 * 11 * UNIT


def test_weights_change_by_the_tokens_of_a_step():
    schedule = WeightSchedule(
        {0: {"web": 1, "books": 0, "code": 0}, 10: {"web": 1, "books": 2, "code": 1}}, size_per_step=5000
    )
    ds = mixed(schedule)
    before = sizes_of(ds, 10 * 5000)
    assert before["books"] == before["code"] == 0
    after = sizes_of(ds, 10**6)
    for name, share in {"web": 0.25, "books": 0.5, "code": 0.25}.items():
        assert abs((after[name] - before[name]) / (sum(after.values()) - sum(before.values())) - share) < 0.001


def test_weights_may_be_a_function_of_the_elements():
    schedule = WeightSchedule(lambda step: [1, step % 3, 2], elements_per_step=4)
    streams = [lists(5, 1), lists(3), lists(2, 9)]
    ds = IterDataset.mix(streams, schedule, weigh_by=len).take(400)
    assert list(ds) == list(reference.stream(ds._op))
    assert_resumable(ds, max_outputs=30)


def test_a_part_without_weight_gives_nothing():
    schedule = WeightSchedule({0: [1, 1], 6: [0, 1], 9: [1, 0]})
    parts = [lists(2, 9).map(lambda x: ("a", len(x))), lists(4).map(lambda x: ("b", len(x)))]
    names = [name for name, _ in IterDataset.mix(parts, schedule, weigh_by=lambda e: e[1]).take(20)]
    assert names[6:9] == ["b"] * 3
    assert names[9:] == ["a"] * 11


def test_it_ends_where_a_part_that_is_due_has_ended():
    a, b = MapDataset.source([[0] * 4] * 3).to_iter_dataset(), lists(2)
    assert [len(x) for x in IterDataset.mix([a, b], weigh_by=len)] == [4, 2, 2, 4, 2, 2, 4, 2, 2]


def test_many_parts_cost_little():
    parts = [lists(i % 3 + 1) for i in range(3000)]
    found = list(IterDataset.mix(parts, weigh_by=len).take(6000))
    assert len(found) == 6000


# ---- one stream


def test_elements_and_states_do_not_depend_on_threads_or_workers():
    expected = outputs(mixed(read_options=ReadOptions(num_threads=0)), 300)
    assert outputs(mixed(read_options=ReadOptions(num_threads=3)), 300) == expected
    assert outputs(mixed().prefetch(5), 300) == expected
    assert outputs(mixed().mp_prefetch(TWO), 300) == expected


def test_maps_after_the_mix_do_not_change_which_part_comes_next():
    def halved(document):
        return {**document, "tokens": document["tokens"][: len(document["tokens"]) // 2]}

    ds = mixed().map(halved)
    expected = [(x["name"], x["number"], len(x["tokens"])) for x in ds.take(200)]
    assert [(x["name"], x["number"], len(x["tokens"])) for x in ds.take(200).mp_prefetch(TWO)] == expected
    assert [name for name, *_ in expected] == [x["name"] for x in mixed().take(200)]


def test_every_element_is_a_checkpoint_with_a_small_state():
    assert_resumable(mixed(), max_outputs=25)
    iterator = iter(mixed())
    for _ in range(4000):
        next(iterator)
    state = json.dumps(iterator.get_state())
    assert len(state) < 1200
    expected = [x["number"] for _, x in zip(range(200), iterator, strict=False)]
    again = iter(mixed())
    again.set_state(json.loads(state))
    assert [x["number"] for _, x in zip(range(200), again, strict=False)] == expected


def test_the_ints_of_states_fit_into_32_bits_after_very_many_tokens():
    def build():
        return IterDataset.mix([lists(1, 2), lists(3)], [1, 2], weigh_by=lambda x: len(x) * 10**10)

    iterator = iter(build())
    expected = [next(iterator) for _ in range(40)][20:]
    again = iter(build())
    for _ in range(20):
        next(again)
    state = again.get_state()["0 mix"]
    numbers = [*state["size"], *np.ravel(state["lags"]).tolist(), state["count"], state["weights"]]
    assert all(-(2**31) <= number < 2**31 for number in numbers)
    assert state["size"][0] > 0
    third = iter(build())
    third.set_state(again.get_state())
    assert [next(third) for _ in range(20)] == expected


def test_hosts_have_the_elements_of_their_lanes():
    parts = [corpus(name, 2000).repeat().to_iter_dataset(num_lanes=4) for name in MEANS]
    ds = IterDataset.mix(parts, [3, 2, 1], weigh_by="tokens").map(lambda x: len(x["tokens"]))
    steps = {}
    for num_hosts in (1, 2, 4):
        hosts = [ds.global_batch(8, ShardOptions(h, num_hosts), num_batches=20) for h in range(num_hosts)]
        steps[num_hosts] = [np.concatenate(rows) for rows in zip(*hosts, strict=True)]
    assert_equal(steps[2], steps[1])
    assert_equal(steps[4], steps[1])


def test_steps_of_a_schedule_count_the_tokens_of_all_lanes():
    schedule = WeightSchedule({0: [1, 0], 1: [0, 1]}, size_per_step=4 * 60)
    parts = [
        MapDataset.source([[part] * 6]).repeat().to_iter_dataset(num_lanes=4).map(lambda x: np.array(x))
        for part in (0, 1)
    ]
    rows = np.concatenate(list(IterDataset.mix(parts, schedule, weigh_by=len).global_batch(4, num_batches=20)))[:, 0]
    assert rows.tolist() == [0] * 40 + [1] * 40


def test_after_global_batch_processes_would_choose_different_parts():
    parts = [MapDataset.range(40).repeat().to_iter_dataset().global_batch(4, ShardOptions(0, 2)) for _ in range(2)]
    ds = IterDataset.mix(parts, weigh_by=lambda batch: int(batch.sum()))
    assert must_come_before_rows(ds._op) is ds._op
    assert must_come_before_rows(IterDataset.mix(parts)._op) is None


# ---- states of another mix


def test_parts_and_weights_may_change_between_groups():
    state = json.loads(outputs(mixed(), 1000)[-1][2])
    ds = IterDataset.mix(
        {name: corpus(name).to_iter_dataset() for name in ("books", "code")}, {"books": 1, "code": 3}, weigh_by="tokens"
    )
    iterator = iter(ds)
    iterator.set_state(state)
    found = sizes_of(iterator, 200_000)
    assert found["web"] == 0
    assert abs(found["code"] / sum(found.values()) - 0.75) < 2 * LONGEST / 200_000


def test_parts_and_weights_must_stay_within_a_group():
    def build(weights):
        return mixed(weights).window_shuffle(7, seed=1)

    with iter(build(WEIGHTS)) as iterator:
        next(iterator)
        state = iterator.get_state()
    for other in ({**WEIGHTS, "web": 2}, WeightSchedule({0: {**WEIGHTS, "code": 0}})):
        with pytest.raises(StateError, match="parts or weights of mix.* differ from those in the state"):
            iter(build(other)).set_state(state)
    iter(build(WeightSchedule({0: WEIGHTS, 1000: {**WEIGHTS, "code": 0}}))).set_state(state)


def test_a_state_of_a_mix_by_elements_is_refused():
    state = json.loads(outputs(mixed(weigh_by=None), 3)[-1][2])
    with pytest.raises(StateError, match="lacks its field 'size'"):
        iter(mixed()).set_state(state)


def test_a_changed_function_is_a_warning():
    state = iter(mixed(weigh_by=lambda x: len(x["tokens"]))).get_state()
    with pytest.warns(StateWarning, match="Functions have changed.*<lambda>"):
        iter(mixed(weigh_by=lambda x: x["tokens"].size)).set_state(state)


@pytest.mark.parametrize("damage", [{"lags": [[1]]}, {"lags": [[1, 2**40], [0, 0]]}, {"size": 3}, {"lags": [["a", 1]]}])
def test_damaged_states_are_refused(damage):
    ds = IterDataset.mix([lists(1), lists(2)], weigh_by=len)
    state = iter(ds).get_state()
    del state["checksum"]
    state["0 mix"] |= damage
    with pytest.raises(StateError, match="must be two ints"):
        iter(ds).set_state(state)


# ---- errors


@pytest.mark.parametrize(
    ("weigh_by", "error", "text"),
    [
        ("words", PipelineError, "weigh_by='words', but the element has no such feature"),
        (len, PipelineError, "`len` of an element that is a dict counts its features"),
        (lambda x: 0.5, PipelineError, "weigh_by must return an int of 0 or more; it returned 0.5"),
        (lambda x: 1 // (7 - x["number"]), ZeroDivisionError, "division"),
        (lambda x: 10**12, PipelineError, "element of size 1000000000000; with 3 parts, the most is"),
    ],
)
def test_sizes_that_make_no_sense(weigh_by, error, text):
    with iter(mixed(weigh_by=weigh_by)) as iterator, pytest.raises(error, match=text) as info:
        list(iterator)
    if error is ZeroDivisionError:
        assert "element 7 of part 'web' (pipeline at" in info.value.__notes__[0]


def test_elements_before_a_failing_one_come_first():
    ds = mixed(weigh_by=lambda x: len(x["tokens"]) // (40 - x["number"] > 0 or x["name"] != "web"))
    whole = mixed().take(2000)
    expected = []
    for x in whole:
        if x["name"] == "web" and x["number"] == 40:
            break
        expected.append((x["name"], x["number"]))
    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend((x["name"], x["number"]) for x in ds)
    assert found == expected


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: MapDataset.mix([corpus("web")], weigh_by="tokens"), r"cannot weigh by size.*\.to_iter_dataset\(\)"),
        (lambda: IterDataset.mix([lists(1)], weigh_by=3), "weigh_by must be a function of an element, or the name"),
        (lambda: IterDataset.mix([lists(1), lists(1)], [1, -1], weigh_by=len), "must be 0 or more.*weight 1 is -1"),
        (lambda: IterDataset.mix([lists(1), lists(1)], [1, 1e-12], weigh_by=len), "weight of part 1 at step 0 is less"),
        (lambda: IterDataset.mix([lists(1)], WeightSchedule({0: [1]}, size_per_step=9)), "needs `weigh_by`"),
        (lambda: WeightSchedule({0: [1]}, size_per_step=0), "size_per_step must be a positive int"),
        (lambda: WeightSchedule({0: [1]}, size_per_step=9, elements_per_step=2), "not both"),
    ],
)
def test_mixes_that_cannot_be(build, text):
    with pytest.raises(PipelineError, match=text):
        build()
