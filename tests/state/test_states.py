"""States: they know what they belong to, and what is not one of them is refused."""

import copy
import json
import os
import random
import sys
import time
import warnings

import grain
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from headrace.engine.plan import all_operations
from headrace.errors import HeadraceError, StateError, StateWarning
from headrace.ops.op import Op
from tests.state.fixtures.make_states import FOLDER, RELEASE, digest, makers, streams
from tests.support.proc import WAIT_S, workers_of


def saved(kind):
    """What was saved, by version."""
    found = {path.stem.removeprefix(f"{kind}-"): path for path in sorted(FOLDER.glob(f"{kind}-*.json"))}
    return {version: json.loads(path.read_text()) for version, path in found.items()}


STATES, OUTPUTS = saved("states"), saved("outputs")
OLD = STATES["0.1.0.dev1"]
MAKE = "run `python -m tests.state.fixtures.make_states`"


def state_after(ds, count):
    with iter(ds) as iterator:
        for _ in range(count):
            next(iterator)
        return json.loads(json.dumps(iterator.get_state()))


def rest_from(ds, state, **settings):
    with iter(ds) as iterator:
        iterator.set_state(state, **settings)
        return [x.tolist() if hasattr(x, "tolist") else repr(x) if isinstance(x, tuple) else x for x in iterator]


def numbers(n=1000):
    return MapDataset.range(n)


def halves(ds):
    return MapDataset.mix([ds[:500], ds[500:]], [1, 2])


def some(i):
    return numbers(10).map(lambda x: (i, x)).to_iter_dataset()


def windows(size):
    return numbers(120).to_iter_dataset().batch(size).window_shuffle(10, seed=1)


def many_parts(seed):
    return IterDataset.mix([numbers(40).shuffle(seed=seed + i).repeat(2).to_iter_dataset() for i in range(30)])


CHANGED = {  # saved with, restored with, what the error says
    "shard": (
        lambda: numbers().shard(4, 1).to_iter_dataset(),
        lambda: numbers().shard(8, 1).to_iter_dataset(),
        "slice step 4 → 8",
    ),
    "shard index": (
        lambda: numbers().shard(4, 1).to_iter_dataset(),
        lambda: numbers().shard(4, 2).to_iter_dataset(),
        "slice start 1 → 2",
    ),
    "a source that has grown": (
        lambda: numbers(1000).shuffle(seed=1).to_iter_dataset(),
        lambda: numbers(1200).shuffle(seed=1).to_iter_dataset(),
        "source length 1000 → 1200",
    ),
    "seed": (
        lambda: numbers().shuffle(seed=42).to_iter_dataset(),
        lambda: numbers().shuffle(seed=43).to_iter_dataset(),
        "shuffle seed 42 → 43",
    ),
    "batch size": (
        lambda: numbers().batch(4).to_iter_dataset(),
        lambda: numbers().batch(8).to_iter_dataset(),
        "batch batch_size 4 → 8",
    ),
    "no batch": (
        lambda: numbers().batch(4).to_iter_dataset(),
        lambda: numbers().to_iter_dataset(),
        "`batch` → `to_iter_dataset`",
    ),
    "weights of a mix": (
        lambda: halves(numbers()).to_iter_dataset(),
        lambda: MapDataset.mix([numbers()[:500], numbers()[500:]], [1, 3]).to_iter_dataset(),
        "mix proportion[1] 200 → 300",
    ),
    "a part of a mix": (
        lambda: halves(numbers()).to_iter_dataset(),
        lambda: MapDataset.mix([numbers()[:500], numbers()[400:]], [1, 2]).to_iter_dataset(),
        "mix, part '1': slice",
    ),
    "a part of a mix of streams": (
        lambda: IterDataset.mix([numbers().shuffle(seed=s).to_iter_dataset() for s in (1, 2)]),
        lambda: IterDataset.mix([numbers().shuffle(seed=s).to_iter_dataset() for s in (1, 3)]),
        "part '1': shuffle seed 2 → 3",
    ),
    "datasets of an interleave": (
        lambda: IterDataset.interleave([numbers(40).shuffle(seed=s).to_iter_dataset() for s in (1, 2)], cycle_length=2),
        lambda: IterDataset.interleave([numbers(40).shuffle(seed=s).to_iter_dataset() for s in (1, 3)], cycle_length=2),
        "part '1': shuffle seed 2 → 3",
    ),
    "the order of an interleave's datasets": (
        lambda: IterDataset.interleave(MapDataset.range(8).shuffle(seed=1).map(some), cycle_length=2),
        lambda: IterDataset.interleave(MapDataset.range(8).shuffle(seed=2).map(some), cycle_length=2),
        "shuffle seed 1 → 2",
    ),
    "a part whose window is open": (
        lambda: IterDataset.mix([windows(2), windows(2)]),
        lambda: IterDataset.mix([windows(3), windows(2)]),
        "part '0': batch batch_size 2 → 3",
    ),
    "a zipped part whose window is open": (
        lambda: IterDataset.zip([windows(2), windows(2)]),
        lambda: IterDataset.zip([windows(3), windows(3)]),
        "part '0': batch batch_size 2 → 3",
    ),
    "parts of a mix of many": (
        lambda: many_parts(1),
        lambda: many_parts(100),
        "part '6'",
    ),
    "parts of a concatenation of many": (
        lambda: MapDataset.concatenate([numbers(5).shuffle(seed=1)] * 40).to_iter_dataset(),
        lambda: MapDataset.concatenate([numbers(5).shuffle(seed=2)] * 40).to_iter_dataset(),
        "part '7'; and 32 more",
    ),
    "a large seed": (
        lambda: numbers().shuffle(seed=5).to_iter_dataset(),
        lambda: numbers().shuffle(seed=5 + 2**31).to_iter_dataset(),
        "shuffle seed 5 →",
    ),
    "a filter before an open window": (
        lambda: numbers().to_iter_dataset().window_shuffle(100, seed=1),
        lambda: numbers().to_iter_dataset().filter(lambda x: x % 7).window_shuffle(100, seed=1),
        "`window_shuffle` → `filter`",
    ),
    "no filter before an open window": (
        lambda: numbers().to_iter_dataset().filter(lambda x: x % 7).window_shuffle(100, seed=1),
        lambda: numbers().to_iter_dataset().window_shuffle(100, seed=1),
        "`filter` → `window_shuffle`",
    ),
    "a batch before an open window": (
        lambda: numbers().to_iter_dataset().batch(2).window_shuffle(100, seed=1),
        lambda: numbers().to_iter_dataset().batch(3).window_shuffle(100, seed=1),
        "batch batch_size 2 → 3",
    ),
    "random numbers": (
        lambda: numbers().random_map(lambda x, rng: x, seed=1).to_iter_dataset(),
        lambda: numbers().random_map(lambda x, rng: x, seed=2).to_iter_dataset(),
        "random_map seed 1 → 2",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_state_of_a_pipeline_with_another_order_is_refused(name):
    saved, here, said = CHANGED[name]
    state = state_after(saved(), 7)
    with pytest.raises(StateError, match="another pipeline") as info:
        rest_from(here(), state)
    assert said in str(info.value)
    with pytest.warns(StateWarning, match="another pipeline"):
        rest_from(here(), state, strict=False)
    assert rest_from(saved(), state) == rest_from(saved(), state, strict=False)


def double(x):
    return 2 * x


SAME = {  # what may differ without harm
    "threads": lambda ds: ds.to_iter_dataset(ReadOptions(num_threads=3)),
    "workers": lambda ds: ds.to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=1)),
    "a buffer": lambda ds: ds.to_iter_dataset().prefetch(3),
    "a map": lambda ds: ds.to_iter_dataset().map(lambda x: x),
    "batches of the stream": lambda ds: ds.to_iter_dataset().batch(1).map(lambda x: x[0]),
}


@pytest.mark.parametrize("name", SAME)
def test_what_changes_no_order_may_be_changed(name):
    ds = numbers(50).shuffle(seed=1)
    assert rest_from(SAME[name](ds), state_after(ds.to_iter_dataset(), 7)) == list(ds)[7:]


def test_more_epochs_go_on_where_fewer_ended():
    state = state_after(numbers(10).shuffle(seed=1).repeat(2).to_iter_dataset(), 20)
    assert (
        rest_from(numbers(10).shuffle(seed=1).repeat(3).to_iter_dataset(), state)
        == list(numbers(10).shuffle(seed=1).repeat(3))[20:]
    )


def test_other_ways_to_write_the_same_pipeline():
    parts = [numbers(10), numbers(20)]
    state = state_after(MapDataset.mix(parts, [1, 2]).to_iter_dataset(), 3)
    rest = rest_from(MapDataset.mix(parts, [1, 2]).to_iter_dataset(), state)
    for weights in ([1.0, 2.0], np.array([1, 2])):
        assert rest_from(MapDataset.mix(parts, weights).to_iter_dataset(), state) == rest
    state = state_after(numbers(10).shuffle(seed=5).to_iter_dataset(), 3)
    assert len(rest_from(numbers(10).shuffle(seed=5).repeat(2).to_iter_dataset(), state)) == 17


def as_numpy(value):
    if isinstance(value, dict):
        return {key: as_numpy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_numpy(item) for item in value]
    return np.int64(value) if type(value) is int else value


@pytest.mark.parametrize("name", sorted(dict(streams())))
def test_states_with_numpys_ints_and_sorted_keys_are_restored(name):
    ds = dict(streams())[name]
    elements = [repr(x) for x in ds]
    for count in (0, 1, min(5, len(elements))):
        state = json.loads(json.dumps(state_after(ds, count), sort_keys=True))
        with iter(ds) as iterator:
            iterator.set_state(as_numpy(state))
            assert json.loads(json.dumps(iterator.get_state())) == state
            assert [repr(x) for x in iterator] == elements[count:]


def test_functions_that_have_changed_are_warned_of():
    state = state_after(numbers(9).map(double).to_iter_dataset(), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rest_from(numbers(9).map(double).to_iter_dataset(), state) == [6, 8, 10, 12, 14, 16]
    changed = {}
    exec("def double(x): return 3 * x", changed)
    with pytest.warns(StateWarning, match="have changed since the state was saved: double"):
        assert rest_from(numbers(9).map(changed["double"]).to_iter_dataset(), state)[0] == 9


def test_states_cross_over_to_grain_and_back():
    def build(lib):
        options = (grain.ReadOptions if lib is grain else ReadOptions)(num_threads=1, prefetch_buffer_size=1)
        return iter(lib.MapDataset.range(20).shuffle(seed=1).batch(3).to_iter_dataset(options))

    import headrace

    ours, theirs = build(headrace), build(grain)
    next(ours), next(ours)
    theirs.set_state(json.loads(json.dumps(ours.get_state())))
    assert next(theirs).tolist() == next(ours).tolist()
    ours.set_state(theirs.get_state())
    assert next(ours).tolist() == next(theirs).tolist()


@pytest.mark.usefixtures("no_other_workers")
def test_the_state_of_a_fresh_iterator_starts_no_worker():
    with iter(numbers().to_iter_dataset().batch(2).mp_prefetch(MultiprocessingOptions(num_workers=2))) as iterator:
        state = iterator.get_state()
        assert state["next_index"] == 0
        assert not workers_of(os.getpid())
        assert next(iterator).tolist() == [0, 1]
        iterator.set_state(state)
        assert next(iterator).tolist() == [0, 1]


# ---- states of before


@pytest.mark.sampled(every=9)
@pytest.mark.filterwarnings("ignore:Functions have changed")  # those of the tests
@pytest.mark.parametrize(("version", "name"), [(version, name) for version in STATES for name in STATES[version]])
def test_states_that_were_saved_before_are_restored(version, name):
    make = makers()[name]
    outputs = [repr(x) for x in make()]
    for count, state in STATES[version][name].items():
        with iter(make()) as iterator:
            iterator.set_state(state)
            assert [repr(x) for x in iterator] == outputs[int(count) :]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("version", "name"), [(version, name) for version in OUTPUTS for name in OUTPUTS[version]])
def test_seeds_mean_what_they_meant_before(version, name):
    assert digest(makers()[name]()) == OUTPUTS[version][name]


def test_this_release_has_saved_states_and_outputs():
    assert RELEASE in STATES, MAKE
    assert makers().keys() == STATES[RELEASE].keys() == OUTPUTS[RELEASE].keys(), MAKE


def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_operation_with_a_state_has_one_that_was_saved():
    with_state = {
        kind
        for kind in subclasses(Op)
        if kind.state_fields is not None and kind.__module__.startswith("headrace.") and not kind.runs_in_consumer
    }
    missing = with_state - {type(op) for _, ds in streams() for op in all_operations(ds._op)}
    assert not missing, f"add streams with {missing} to STREAM_OPS in tests/support/chains.py"


# ---- what is no state


def mutated(state, chance):
    """A state with one thing changed somewhere."""
    state = copy.deepcopy(state)
    places = list(_places(state))
    holder, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[chance.choice(["foreign", "op", "next_index", "parent"])] = chance.choice(ODD)
    elif kind == 2 and isinstance(holder[key], int):
        holder[key] += chance.choice([-1, 1, 2, 17])
    else:
        holder[key] = copy.deepcopy(chance.choice(ODD))
    return state


def _places(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


ODD = [None, -1, 2**70, 10**15, 1.5, float("nan"), True, "x", "", [], [1], {}, {"next_index": 3}, sys.maxsize]
STREAMS = dict(streams())


@given(st.sampled_from(sorted(STREAMS)), st.integers(0, 9), st.integers(0, 2**32))
def test_a_state_that_was_changed_is_refused_or_means_the_same(name, count, seed):
    ds = STREAMS[name]
    elements = [repr(x) for x in ds]
    state = state_after(ds, min(count, len(elements)))
    changed = mutated(state, random.Random(seed))
    begin = time.monotonic()
    with iter(ds) as iterator, warnings.catch_warnings():
        warnings.simplefilter("ignore", StateWarning)
        try:
            iterator.set_state(changed)
            rest = [repr(x) for x in iterator]
        except HeadraceError:
            rest = None
        if rest is not None and "checksum" in state:
            assert rest == elements[count:]
        elif rest is not None:  # a random-access chain may be sent to any index
            assert rest == elements[changed.get("next_index", 0) :] or name.startswith(("batch", "filter"))
    assert time.monotonic() - begin < WAIT_S


DAMAGED = [
    {"op": "repeat", "epoch": [], "parent": {"next_index": 18}},
    {"op": "repeat", "epoch": 1, "parent": None},
    json.loads('{"parent":' * 900 + "1" + "}" * 900),
    {"next_index": 10**400},
]


@pytest.mark.parametrize("state", DAMAGED)
def test_a_damaged_state_without_a_checksum(state):
    with pytest.raises(StateError):
        rest_from(numbers(20).to_iter_dataset().repeat(2), state)


FAR = {  # of older states, which have no checksum
    "first fit 1": {"taken_of_group": 10**15},
    "best fit 4": {"taken_of_group": 6},
    "concat then split 1": {"taken_of_group": 9},
    "concat then split 4": {"tokens_taken": [7, 0]},
    "concat evenly 1": {"tokens_taken": [10**15]},
    "concat evenly 4": {"taken_of_group": 2},
}


@pytest.mark.parametrize("name", FAR)
def test_a_packers_numbers_that_are_too_large_without_a_checksum(name):
    ds = dict(streams())[name]
    for state in ({**state, **FAR[name]} for state in OLD[name].values()):
        with pytest.raises(StateError, match=r"taken_of_group|tokens_taken"):
            rest_from(ds, state)


@pytest.mark.parametrize("state", [None, 3, "x", b"{}", [], {}, {"next_index": -1}, {"next_index": 10**9}, {"x": 1}])
def test_what_is_no_state_at_all(state):
    for ds in (numbers().to_iter_dataset(), numbers().to_iter_dataset().window_shuffle(3, seed=1)):
        with pytest.raises(StateError):
            rest_from(ds, state)


def test_weights_of_a_mix_in_an_older_state():
    def mix(weights):
        return MapDataset.mix([MapDataset.range(9), MapDataset.range(20)], weights).to_iter_dataset()

    iterator = iter(mix([1, 2.5]))
    next(iterator)
    state = iterator.get_state()
    (entry,) = (entry for name, entry in state["pipeline"].items() if name.endswith(" mix"))
    assert [entry.pop("proportion[0]"), entry.pop("proportion[1]")] == [100, 250]
    entry |= {"weight[0]": 1.0, "weight[1]": 2.5}
    other = iter(mix([1, 2.5]))
    other.set_state(state)
    assert list(other) == list(iterator)
    with pytest.raises(StateError, match=r"proportion\[1\] 250 → 300"):
        iter(mix([1, 3])).set_state(state)


def test_a_state_has_at_most_one_number_for_each_part_of_many_parts():
    four = MapDataset.concatenate([numbers(5).shuffle(seed=1).batch(1)] * 4)
    sixteen = MapDataset.concatenate([four] * 4)
    many = MapDataset.concatenate([sixteen] * 4)  # 64 parts of three operations
    iterator = iter(many.to_iter_dataset())
    next(iterator)
    assert len(str(iterator.get_state())) < 4096
    other = MapDataset.concatenate([sixteen.shuffle(seed=2)] * 4)
    with pytest.raises(StateError, match="part '3'"):
        iter(other.to_iter_dataset()).set_state(iterator.get_state())
