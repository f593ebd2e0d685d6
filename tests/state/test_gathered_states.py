"""States that hosts gather: trees of ints, or arrays of one size."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import headrace.python as hp
from headrace import DatasetIterator, IterDataset, MapDataset
from headrace.errors import StateError
from headrace.experimental import BestFitPackIterDataset, ElasticIterator
from headrace.sharding import ShardOptions
from headrace.testing import FakeSource
from tests.state.fixtures.make_states import streams
from tests.support.proc import LIMIT_S, free_port

STREAMS = dict(streams())


def states_of(ds, count=40):
    with iter(ds) as iterator:
        found = [iterator.get_state()]
        for _, _ in zip(range(count), iterator, strict=False):
            found.append(iterator.get_state())
    return found


def leaves(value):
    if isinstance(value, dict | list):
        return [leaf for each in (value.values() if isinstance(value, dict) else value) for leaf in leaves(each)]
    return [value]


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_all_leaves_of_states_are_ints_that_32_bits_hold(name):
    for state in states_of(STREAMS[name]):
        assert {type(leaf) for leaf in leaves(state)} == {int}
        assert all(-(2**31) <= leaf < 2**31 for leaf in leaves(state))


@pytest.mark.parametrize("name", [name for name in STREAMS if not name.startswith(("interleave", "user"))])
def test_the_structure_of_a_state_stays_the_same_along_a_stream(name):
    assert len({str(jax.tree.structure(state)) for state in states_of(STREAMS[name])}) == 1


def test_large_seeds_and_odd_weights_are_ints_too():
    part = MapDataset.source(FakeSource(30)).map(lambda x: {"x": np.arange(3)})
    parts = [part.to_iter_dataset(), part.shuffle(seed=2**32 - 1).to_iter_dataset()]
    mixed = IterDataset.mix(parts, [1e-9, 0.7])
    ds = BestFitPackIterDataset(mixed, length_struct={"x": 7}, num_packing_bins=2, seed=2**70)
    for state in states_of(ds):
        assert {type(leaf) for leaf in leaves(state)} == {int}
        assert all(-(2**31) <= leaf < 2**31 for leaf in leaves(state))


def test_parts_that_a_state_does_not_know_are_at_their_start_in_the_next_state():
    def mixed(*names):
        return iter(IterDataset.mix({name: MapDataset.range(9).to_iter_dataset() for name in names}))

    iterator = mixed("a", "b")
    next(iterator)
    wider = mixed("a", "b", "c")
    wider.set_state(iterator.get_state())
    assert wider.get_state()["0 mix"]["parents"] == {
        "a": {"next_index": 1},
        "b": {"next_index": 0},
        "c": {"next_index": 0},
    }


class CountIterator(DatasetIterator):
    """An iterator that is strict about its state."""

    def __init__(self):
        super().__init__()
        self._at = 0

    def __next__(self):
        self._at += 1
        return self._at

    def get_state(self):
        return {"at": [self._at]}

    def set_state(self, state):
        assert type(state["at"][0]) is int
        (self._at,) = state["at"]


class Count(IterDataset):
    def __iter__(self):
        return CountIterator()


def test_iterators_of_users_get_their_ints_back():
    ds = Count().take(40)
    with iter(ds) as iterator, iter(ds) as other:
        for _ in range(20):
            next(iterator)
        assert iterator.get_state()["0 user_dataset"] == {"state": {"at": [16]}, "replay": 4}
        other.set_state(jax.tree.map(np.asarray, iterator.get_state()))
        assert next(other) == 21


# ---- arrays


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_states_as_arrays_are_of_one_size_and_restore(name):
    ds = STREAMS[name]
    elements = [repr(x) for x in ds]
    for count in (0, 1, min(7, len(elements))):
        with iter(ds) as iterator:
            for _ in range(count):
                next(iterator)
            array = iterator.state_as_array(4096)
        assert (array.shape, array.dtype) == ((4096,), np.uint8)
        for given in (array, jax.numpy.asarray(array)):
            with iter(ds) as iterator:
                iterator.set_state(given)
                assert [repr(x) for x in iterator] == elements[count:]


def test_loaders_and_elastic_iterators_have_states_as_arrays():
    def loader():
        return iter(hp.load(range(10), batch_size=2, num_epochs=1))

    def elastic():
        return ElasticIterator(MapDataset.range(10), 2, ShardOptions(0, 1))

    for make in (loader, elastic):
        iterator, other = make(), make()
        next(iterator), next(iterator)
        other.set_state(iterator.state_as_array())
        assert next(other).tolist() == [4, 5]


def test_a_state_that_does_not_fit_says_what_would():
    iterator = iter(MapDataset.range(3))
    with pytest.raises(StateError, match=r"takes \d+ bytes, and size=20. Give a larger size, the same on all hosts"):
        iterator.state_as_array(20)


def damaged(array, place):
    array = array.copy()
    array[place] ^= 0xFF
    return array


ARRAY = iter(MapDataset.range(9)).state_as_array(512)
NO_STATES = {
    "gathered": (np.stack([ARRAY, ARRAY]), "give each host its row"),
    "another dtype": (ARRAY.astype(np.int32), "a row of uint8"),
    "cut": (ARRAY[:40], "does not hold a state"),
    "empty": (ARRAY[:0], "a row of uint8"),
    "zeros": (np.zeros(64, np.uint8), "does not hold a state"),
    "a length that is wrong": (damaged(ARRAY, 7), "does not hold a state"),
    "a damaged byte": (damaged(ARRAY, 30), "does not hold a state"),
    "one number": (np.uint8(3), "a row of uint8"),
}


@pytest.mark.parametrize("name", NO_STATES)
def test_arrays_that_hold_no_state(name):
    array, said = NO_STATES[name]
    with pytest.raises(StateError, match=said):
        iter(MapDataset.range(9)).set_state(array)


# ---- two processes

PROCESS = """
import json, sys
import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather
import headrace
from headrace.experimental import BestFitPackIterDataset

port, process = int(sys.argv[1]), int(sys.argv[2])
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process, initialization_timeout=300)


def packed():
    def tokens(i):
        return {"x": np.arange(1, 2 + i * 7 % 5), "y": np.full(1 + i % 2, i)}

    shard = headrace.MapDataset.range(200).shuffle(seed=3)[process::2].map(tokens).to_iter_dataset()
    parts = {"a": shard, "b": shard.random_map(lambda x, rng: x, seed=1)}
    mixed = headrace.IterDataset.mix(parts, {"a": 0.3, "b": 0.7})
    return iter(BestFitPackIterDataset(mixed, length_struct={"x": 9, "y": 9}, num_packing_bins=4, seed=2))


def shown(iterator):
    return [{name: value.tolist() for name, value in row.items()} for row in iterator]


iterator = packed()
for _ in range(3 + 4 * process):  # one host is in another place of another set of bins
    next(iterator)
trees = process_allgather(iterator.get_state())
arrays = process_allgather(iterator.state_as_array())
expected = shown(iterator)
for state in (jax.tree.map(lambda leaf: leaf[process], trees), arrays[process]):
    again = packed()
    again.set_state(state)
    assert shown(again) == expected
packs = trees["1 best_fit_pack"]
print(json.dumps([packs["rows"].tolist(), packs["taken_of_group"].tolist(), len(expected), arrays.shape]))
"""


def test_two_jax_processes_gather_their_states_and_go_on():
    port = str(free_port())
    source = str(Path(sys.modules["headrace"].__file__).parents[1])
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": source, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROCESS, port]
    processes = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], [error[-2000:] for _, error in outputs]
    (rows, taken, *_, shape), other = (json.loads(output.splitlines()[-1]) for output, _ in outputs)
    assert (rows, taken, shape) == (other[0], other[1], other[3])
    assert rows[0] != rows[1]
    assert sum(rows) + sum(taken) == 10
    assert shape == [2, 1 << 14]
