"""`DataLoader`: Grain's stream with no workers, whatever the number of workers here; states, shards, errors."""

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grain.experimental
import grain.python
import grain.sources
import numpy as np
import pytest

import headrace
import headrace.python as hp
from headrace.errors import PipelineError, StateError
from tests.support import loaders
from tests.support.loaders import CHAINS, FEW_CHAINS, SHARDS, make, walk
from tests.support.proc import LIMIT_S

# ------------------------------------------------------------------------------------------------ the stream


@pytest.mark.parametrize(
    ("chain", "shards"),
    [(chain, shards) for chain in CHAINS for shards in SHARDS[:2]]
    + [(chain, shards) for chain in FEW_CHAINS for shards in SHARDS[2:]],
)
def test_the_stream_and_its_restores_are_grains(chain, shards):
    for shuffle, num_epochs in ((False, 1), (True, 2)):
        options = {**shards, "shuffle": shuffle, "num_epochs": num_epochs}
        theirs, their_states = walk(iter(make(grain.python, chain, **options)))
        loader = make(hp, chain, **options)
        ours, our_states = walk(iter(loader))
        assert ours == theirs
        for k in range(0, len(ours), 3):
            iterator = iter(loader)
            iterator.set_state(our_states[k])
            assert iterator.get_state() == our_states[k]
            assert walk(iterator) == (ours[k + 1 :], our_states[k + 1 :])
            iterator = iter(loader)
            iterator.set_state(their_states[k])  # what Grain wrote
            assert walk(iterator)[0] == ours[k + 1 :]


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("chain", CHAINS)
def test_batches_and_states_are_the_same_with_workers(chain):
    inline = make(hp, chain, sampler=(1, 2, False))
    workers = make(hp, chain, sampler=(1, 2, False), worker_count=2)
    iterator = iter(workers)
    assert walk(iterator) == walk(iter(inline))
    iterator.close()


def test_an_endless_stream_goes_on():
    def first(package, n):
        return [repr(x) for x in itertools.islice(iter(make(package, "draw batch3", num_epochs=None)), n)]

    assert first(hp, 50) == first(grain.python, 50)


@pytest.mark.parametrize("num_epochs", [1, 2])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_shards_of_uneven_size_lose_nothing(where, count, num_epochs):
    seen = []
    for i in range(count):
        seen += list(make(hp, "", **{where: (i, count, False)}, num_records=10, num_epochs=num_epochs))
    assert sorted(seen) == sorted([*range(10)] * num_epochs)


def test_none_is_an_element_like_any_other():
    loader = hp.DataLoader(
        data_source=[0, None, 2],
        sampler=hp.SequentialSampler(3),
        operations=[lambda x: x, hp.FilterTransform(lambda x: True)],
    )
    assert list(loader) == [0, None, 2]


def test_an_index_in_the_loader_is_the_samplers():
    shard = hp.ShardOptions(1, 3)
    loader = hp.DataLoader(
        data_source=range(10),
        sampler=hp.IndexSampler(10, num_epochs=1),
        shard_options=shard,
        operations=[
            hp.FilterTransform(lambda x: x != 4),
            hp.MapWithIndexTransform(lambda i, x: (i, x)),
        ],
    )
    assert list(loader) == [(1, 1), (7, 7)]
    late = hp.DataLoader(
        data_source=range(5),
        sampler=hp.IndexSampler(5, num_epochs=1),
        operations=[hp.Batch(2), hp.MapWithIndexTransform(lambda i, x: (i, x.tolist()))],
    )
    assert list(late) == [(1, [0, 1]), (3, [2, 3]), (4, [4])]


def test_children_of_a_record_draw_numbers_of_their_own_whoever_computes_them():
    def make(worker_count):
        return hp.DataLoader(
            data_source=range(40),
            sampler=hp.IndexSampler(40, num_epochs=1, seed=3),
            operations=[
                hp.RandomMapTransform(lambda x, rng: int(rng.integers(100))),
                hp.FlatMapTransform(lambda x: [x, x, x]),
                hp.RandomMapTransform(lambda x, rng: (x, int(rng.integers(10**9)))),
            ],
            worker_count=worker_count,
        )

    inline = list(make(0))
    assert len({drawn for _, drawn in inline}) == 120
    assert list(make(2)) == inline
    iterator = iter(make(0))
    list(itertools.islice(iterator, 7))
    again = iter(make(0))
    again.set_state(iterator.get_state())
    assert list(again) == inline[7:]


def test_a_source_of_arrays_and_a_map_dataset_are_sources():
    arrays = {"x": np.arange(6), "y": np.arange(6) * 2.0}
    sampler = hp.IndexSampler(6, shuffle=True, seed=1, num_epochs=1)
    by_rows = list(hp.DataLoader(data_source=arrays, sampler=sampler, operations=[hp.Batch(4)]))
    dataset = headrace.MapDataset.source(arrays)
    by_dataset = list(hp.DataLoader(data_source=dataset, sampler=sampler, operations=[hp.Batch(4)]))
    np.testing.assert_equal(by_rows, by_dataset)
    assert sorted(np.concatenate([batch["x"] for batch in by_rows]).tolist()) == list(range(6))


def test_load_is_a_loader_in_one_call():
    options = {"num_epochs": 2, "shuffle": True, "seed": 3, "batch_size": 4, "drop_remainder": True}
    theirs = grain.python.load(range(10), transformations=[loaders.GRAINS["draw"]()], **options)
    ours = hp.load(range(10), transformations=[loaders.OURS["draw"]()], **options)
    assert list(map(repr, ours)) == list(map(repr, theirs))
    assert repr(next(iter(hp.load({"x": np.arange(3)})))) == repr({"x": np.int64(0)})


def test_an_iterator_that_has_ended_can_be_moved_back():
    loader = make(hp, "batch3", num_epochs=1)
    iterator = iter(loader)
    first = next(iterator)
    state = iterator.get_state()
    rest = list(map(repr, iterator))
    iterator.set_state(state)
    assert isinstance(iterator, hp.DataLoaderIterator)
    assert list(map(repr, iterator)) == rest
    assert iterator.get_state() == walk(iter(loader))[1][-1]
    assert len(first) == 3


def test_a_loader_is_iterated_again_and_again_with_the_same_workers():
    loader = make(hp, "draw batch3", worker_count=2)
    pids = hp.DataLoader(
        data_source=range(8),
        sampler=hp.SequentialSampler(8),
        operations=[lambda _: __import__("os").getpid()],
        worker_count=2,
    )
    assert walk(iter(loader)) == walk(iter(loader))
    assert set(pids) & set(pids)
    assert loader.multiprocessing_options == headrace.MultiprocessingOptions(num_workers=2)


def test_any_number_of_workers_and_none_for_one_a_core():
    import os

    loader = hp.DataLoader(data_source=range(4), sampler=hp.SequentialSampler(4), worker_count=None)
    assert loader.multiprocessing_options.num_workers == os.cpu_count()
    assert "worker_count" in repr(loader)
    assert "source" in str(loader.explain())


@pytest.mark.parametrize("worker_count", [0, 2])
def test_a_generator_that_is_kept_stays_that_of_its_record(worker_count):
    def outputs(package, **options):
        class Keep(package.RandomMapTransform):
            def random_map(self, element, rng):
                return {"rng": rng}

        class Draw(package.MapTransform):
            def map(self, element):
                return int(element["rng"].integers(1000))

        sampler = package.IndexSampler(20, num_epochs=1, seed=3)
        return list(package.DataLoader(data_source=range(20), sampler=sampler, operations=[Keep(), Draw()], **options))

    assert outputs(hp, worker_count=worker_count) == outputs(grain.python)


def test_a_map_dataset_as_a_source_has_one_epoch_only():
    def outputs(package, num_records):
        source = package.MapDataset.range(6).shuffle(seed=1).map_with_index(lambda i, x: (i, x))
        sampler = package.IndexSampler(num_records, shuffle=True, num_epochs=3, seed=2)
        return list(package.DataLoader(data_source=source, sampler=sampler))

    for num_records in (6, 4):
        assert outputs(hp, num_records) == outputs(grain.python, num_records)


def test_a_transform_of_two_kinds_is_the_first():
    class Both(hp.MapTransform, hp.RandomMapTransform):
        def map(self, element):
            return "mapped", element

        def random_map(self, element, rng):
            return "drawn", element

    loader = hp.DataLoader(data_source=range(2), sampler=hp.IndexSampler(2, num_epochs=1, seed=1), operations=[Both()])
    assert list(loader) == [("mapped", 0), ("mapped", 1)]


def test_sizes_may_be_numpy_ints():
    n = np.int64
    loader = hp.DataLoader(
        data_source=range(10),
        sampler=hp.IndexSampler(n(10), hp.ShardOptions(n(0), n(2)), num_epochs=n(1)),
        operations=[hp.Batch(n(2))],
        worker_count=n(0),
        worker_buffer_size=n(1),
        read_options=hp.ReadOptions(n(0), n(1)),
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert b"np." not in iter(loader).get_state()
    assert list(headrace.MapDataset.range(5).repeat(n(2)).take(n(7)).batch(n(5)))[1].tolist() == [0, 1]


def test_a_loaders_pipeline_goes_on_as_a_dataset():
    assert [x.tolist() for x in make(hp, "batch3", shuffle=False, num_epochs=1).dataset.rebatch(10).take(1)] == [
        list(range(10))
    ]


# ------------------------------------------------------------------------------------ samplers of the user's own


class Mirrored(hp.IndexSampler):
    """A subclass that changes the order."""

    def __getitem__(self, index):
        found = super().__getitem__(index)
        return hp.RecordMetadata(found.index, 4 - found.record_key, found.rng)


class Renamed(hp.IndexSampler):
    """A subclass that changes nothing."""


def test_a_subclass_of_a_sampler_is_asked_where_it_differs():
    def records(sampler):
        return list(hp.DataLoader(data_source=range(5), sampler=sampler))

    assert records(Mirrored(5, num_epochs=1)) == [4, 3, 2, 1, 0]
    assert records(Renamed(5, num_epochs=1)) == [0, 1, 2, 3, 4]
    assert not Mirrored(5).is_as_written
    assert Renamed(5).is_as_written


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.SFC64])
def test_a_sampler_that_keeps_its_metadata_gives_the_same_again(bits):
    kept = [hp.RecordMetadata(i, np.int64(9 - i), np.random.Generator(bits(i))) for i in range(10)]
    for operations in (
        [loaders.OURS["draw"]()],
        [loaders.OURS["draw"](), hp.Batch(2), loaders.OURS["draw"]()],
        [hp.FlatMapTransform(lambda x: [x, x]), loaders.OURS["draw"]()],
    ):
        loader = hp.DataLoader(data_source=range(10), sampler=kept, operations=operations)
        first = list(map(repr, loader))
        assert list(map(repr, loader)) == first
        assert len(set(first)) == len(first)


class Backwards:
    """Four places, from the end of the source."""

    def __getitem__(self, index):
        if index >= 4:
            raise IndexError(index)
        return hp.RecordMetadata(index=index, record_key=9 - index, rng=np.random.default_rng(index))


class BackwardsOfThree(Backwards):
    def __len__(self):
        return 3


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("worker_count", [0, 2])
@pytest.mark.parametrize("kind", [Backwards, BackwardsOfThree])
def test_a_sampler_of_the_users_own(kind, worker_count):
    def outputs(package, draw, **options):
        loader = package.DataLoader(
            data_source=range(10), sampler=kind(), operations=[draw()], shard_options=package.NoSharding(), **options
        )
        return list(loader)

    ours = outputs(hp, loaders.OURS["draw"], worker_count=worker_count)
    assert ours == outputs(grain.python, loaders.GRAINS["draw"])
    assert [x for x, _ in ours] == [9, 8, 7, 6][: len(ours)]


def test_a_sampler_of_the_users_own_in_shards():
    shards = [
        list(hp.DataLoader(data_source=range(10), sampler=Backwards(), shard_options=hp.ShardOptions(i, 3)))
        for i in range(3)
    ]
    assert shards == [[9, 6], [8], [7]]


def moved_to(index, state):
    """A state at another position; like those of older versions, it has no checksum."""
    fields = {**json.loads(state), "position": {"next_index": index}}
    del fields["checksum"]
    return json.dumps(fields).encode()


def test_a_state_with_one_bit_changed_is_refused_or_means_the_same():
    def make_loader():
        sampler = hp.IndexSampler(100, shuffle=True, seed=1, num_epochs=2)
        return hp.DataLoader(data_source=range(100), sampler=sampler, operations=[])

    iterator = iter(make_loader())
    for _ in range(9):
        next(iterator)
    state = iterator.get_state()
    expected = next(iterator)
    for place, bit in itertools.product(range(len(state)), range(8)):
        changed = bytearray(state)
        changed[place] ^= 1 << bit
        other = iter(make_loader())
        try:
            other.set_state(bytes(changed))
        except StateError:
            continue
        assert next(other) == expected


def test_an_endless_sampler_of_the_users_own():
    class Endless:
        def __getitem__(self, index):
            return hp.RecordMetadata(index=index, record_key=index % 7)

    loader = hp.DataLoader(data_source=range(7), sampler=Endless(), operations=[hp.Batch(3)])
    iterator = iter(loader)
    iterator.set_state(moved_to(10**12, iterator.get_state()))
    assert next(iterator).tolist() == [(10**12 + i) % 7 for i in range(3)]


# ---------------------------------------------------------------------------------------- the older operations


def test_the_older_operations_do_what_grains_do():
    def operations(package):
        return [
            package.MapOperation(map_function=lambda x: x + 1),
            package.FilterOperation(condition_function=lambda x: x % 2 == 0),
            package.RandomMapOperation(random_map_function=lambda x, rng: (x, int(rng.integers(1000)))),
            package.BatchOperation(batch_size=2, drop_remainder=True),
        ]

    def outputs(package):
        sampler = package.IndexSampler(10, num_epochs=1, seed=7)
        return list(
            map(repr, package.DataLoader(data_source=range(10), sampler=sampler, operations=operations(package)))
        )

    assert outputs(hp) == outputs(grain.python)
    records = [hp.Record(hp.RecordMetadata(i, rng=np.random.default_rng(i)), i) for i in range(6)]
    for operation in operations(hp):
        records = list(operation(iter(records)))
    assert [record.metadata.index for record in records] == [3]


@dataclass
class Pairs(hp.Operation):
    """Sums of two records."""

    def __call__(self, input_iterator):
        for first, second in zip(input_iterator, input_iterator, strict=False):
            yield hp.Record(second.metadata, (first.data + second.data, float(second.metadata.rng.normal())))


def test_an_operation_of_the_users_own():
    def make(package, pairs, worker_count=0):
        kinds = loaders.OURS if package is hp else loaders.GRAINS
        return package.DataLoader(
            data_source=range(80),
            sampler=package.IndexSampler(80, num_epochs=1, seed=7),
            operations=[kinds["drop"](), *pairs],
            worker_count=worker_count,
        )

    class TheirPairs(grain.python.Operation):
        __call__ = Pairs.__call__

    ours, states = walk(iter(make(hp, [Pairs()])))
    theirs, _ = walk(iter(make(grain.python, [TheirPairs()])))
    assert ours == theirs
    for k in range(0, len(ours), 5):
        iterator = iter(make(hp, [Pairs()]))
        iterator.set_state(states[k])
        assert walk(iterator)[0] == ours[k + 1 :]
    iterator = iter(make(hp, [Pairs()], worker_count=2))
    assert walk(iterator) == (ours, states)
    iterator.close()


@dataclass
class Groups:
    """Groups of records; no subclass of `Operation`."""

    size: int
    Record: type

    def __call__(self, records):
        group = []
        for record in records:
            group.append(record.data)
            if len(group) == self.size:
                yield self.Record(record.metadata.remove_record_key(), np.array(group))
                group = []


def duck_typed(package, kind):
    """Operations of nobody's classes, which turn an iterator of records into another."""

    def changed(record, by=1):
        return package.Record(record.metadata, record.data + by)

    def generator(records):
        for record in records:
            yield changed(record)

    def by_name(input_iterator):
        return (changed(record) for record in input_iterator)

    def by_annotation(records: Iterator[object]):
        return map(changed, records)

    def by_result(records) -> "Iterator[object]":
        return map(changed, records)

    def with_argument(by, records):
        for record in records:
            yield changed(record, by)

    @functools.wraps(generator)
    def wrapped(*args):
        return generator(*args)

    kinds = {
        "object": Groups(3, package.Record),
        "method": Groups(3, package.Record).__call__,
        "partial": functools.partial(with_argument, 7),
        "wrapped": wrapped,
    }
    functions = (generator, by_name, by_annotation, by_result)
    return {**kinds, **{function.__name__: function for function in functions}}[kind]


@pytest.mark.parametrize(
    "kind", ["object", "method", "partial", "generator", "by_name", "by_annotation", "by_result", "wrapped"]
)
def test_callables_over_an_iterator_of_records_are_operations_as_in_grain(kind):
    def make(package, worker_count=0):
        return package.DataLoader(
            data_source=range(30),
            sampler=package.IndexSampler(30, shuffle=True, num_epochs=1, seed=7),
            operations=[duck_typed(package, kind), package.Batch(2)],
            worker_count=worker_count,
        )

    ours, states = walk(iter(make(hp)))
    assert ours == walk(iter(make(grain.python)))[0]
    for k in range(len(ours)):
        iterator = iter(make(hp))
        iterator.set_state(states[k])
        assert walk(iterator)[0] == ours[k + 1 :]
    iterator = iter(make(hp, worker_count=2))
    assert walk(iterator) == (ours, states)
    iterator.close()


@pytest.mark.parametrize("others", [[], [Pairs()]], ids=["alone", "with records"])
def test_a_function_that_returns_an_iterator_for_one_element_is_refused(others):
    def children(element):
        return iter([element])

    operations = [children, *others]
    loader = hp.DataLoader(data_source=range(3), sampler=hp.SequentialSampler(3, seed=1), operations=operations)
    with pytest.raises(PipelineError, match=r"children at .* returned a list_iterator for one element.*generator func"):
        list(loader)


def test_an_operation_that_yields_no_records_is_told_so():
    class Bare(hp.Operation):
        def __call__(self, input_iterator):
            return (record.data for record in input_iterator)

    with pytest.raises(PipelineError, match="Bare yielded a int: an Operation yields Records"):
        list(hp.DataLoader(data_source=range(3), sampler=hp.SequentialSampler(3), operations=[Bare()]))


def test_records_packed_into_batches_are_grains():
    def make(package, experimental, worker_count=0):
        return package.DataLoader(
            data_source=[{"x": np.arange(1 + i * 7 % 11)} for i in range(40)],
            sampler=package.IndexSampler(40, shuffle=True, num_epochs=1, seed=1),
            operations=[experimental.PackAndBatchOperation(length_struct={"x": 16}, batch_size=3)],
            worker_count=worker_count,
        )

    ours, states = walk(iter(make(hp, headrace.experimental)))
    assert ours == walk(iter(make(grain.python, grain.experimental)))[0]
    assert len(ours) > 3
    for k, state in enumerate(states):
        iterator = iter(make(hp, headrace.experimental))
        iterator.set_state(state)
        assert walk(iterator) == (ours[k + 1 :], states[k + 1 :])
    iterator = iter(make(hp, headrace.experimental, worker_count=2))
    assert walk(iterator) == (ours, states)
    iterator.close()


class Doubled:
    """A transform of nobody's classes."""

    def map(self, element):
        return 2 * element


@pytest.mark.parametrize("operation", [Doubled(), lambda x: 2 * x, hp.MapTransform(lambda x: 2 * x), (2).__mul__])
def test_functions_and_anything_with_the_method_are_transforms(operation):
    loader = hp.DataLoader(data_source=range(3), sampler=hp.SequentialSampler(3), operations=[operation])
    assert list(loader) == [0, 2, 4]


@pytest.mark.parametrize("num_records", [5, 8])
def test_a_sampler_with_more_records_than_the_source_reads_the_first_ones_again_as_in_grain(num_records):
    def make(package):
        sampler = package.IndexSampler(num_records, shuffle=True, num_epochs=2, seed=1)
        return package.DataLoader(data_source=range(3), sampler=sampler)

    with pytest.warns(UserWarning, match=rf"num_records={num_records}, but the data source has only 3 records"):
        loader = make(hp)
    assert list(loader) == list(make(grain.python))


def forgot(element):
    element + 1


@pytest.mark.parametrize("others", [[], [Pairs()]], ids=["alone", "with records"])
def test_a_batch_of_a_loader_that_is_all_none_is_an_error(others):
    operations = [*others, hp.MapTransform(lambda element: forgot(0)), hp.Batch(2)]
    loader = hp.DataLoader(data_source=range(8), sampler=hp.SequentialSampler(8, seed=1), operations=operations)
    with pytest.raises(PipelineError, match=r"2 elements that are all None.*`return`"):
        list(loader)


def test_a_loaders_map_that_returns_none_a_hundred_times_warns():
    loader = hp.DataLoader(data_source=range(200), sampler=hp.SequentialSampler(200), operations=[forgot])
    with pytest.warns(UserWarning, match=r"forgot.* returned None for each of the first 100"):
        assert list(loader) == [None] * 200


# --------------------------------------------------------------------------------------------------- states


def _data_source(loader):
    return json.loads(iter(loader).get_state())["data_source"]


@dataclass
class Cached:
    folder: str
    cache: dict
    fn: object = len

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.cache[index] = index
        return index


def test_what_a_source_is_known_by():
    def known(source, n=3):
        return _data_source(hp.DataLoader(data_source=source, sampler=hp.SequentialSampler(n)))

    assert known([1, 2, 3]) == "list of 3 records"
    assert known({"a": np.arange(3), "b": np.arange(3)}) == "dict of 3 records"
    assert known(np.arange(3)) == "ndarray of 3 records"
    assert known(range(3)) == "range(0, 3)"
    assert known(headrace.MapDataset.range(3).map(lambda x: x)) == "MapDataset of 3 records"
    assert known(Cached("/data", {})) == known(Cached("/data", {1: 2})) == "Cached(folder='/data')"
    assert known(headrace.sources.SharedMemoryDataSource([1, 2, 3])) == "SharedMemoryDataSource of 3 records"


def test_a_shard_is_known_by_its_numbers():
    states = {
        iter(hp.DataLoader(data_source=range(4), sampler=hp.SequentialSampler(4, shard))).get_state()
        for shard in (hp.NoSharding(), hp.ShardOptions(0, 1), hp.ShardOptions(0, 1, drop_remainder=True))
    }
    assert len(states) == 1
    seeds = [hp.DataLoader(data_source=range(4), sampler=hp.SequentialSampler(4, seed=seed)) for seed in (1, 2)]
    with pytest.raises(StateError, match="sampler differs"):
        iter(seeds[0]).set_state(iter(seeds[1]).get_state())


def test_a_state_is_short_json_that_says_what_it_is_of():
    class Source:
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            return index

    def make():
        return hp.DataLoader(
            data_source=Source(),
            sampler=hp.IndexSampler(1000, shuffle=True, seed=1),
            operations=[lambda x: x, hp.Batch(4, drop_remainder=True)],
        )

    iterator = iter(make())
    next(iterator)
    state = iterator.get_state()
    assert isinstance(state, bytes)
    fields = json.loads(state)
    assert fields["position"] == {"next_index": 4}
    assert fields["operations"] == "map, batch(4, drop_remainder)"
    assert fields["data_source"].endswith("Source of 1000 records")
    assert b"0x" not in state
    assert b"lambda" not in state
    assert b"test_loader.py" not in state
    assert len(state) < 1000
    other = iter(make())
    next(other)
    assert other.get_state() == state


def _state_of(**changes):
    options = {"data_source": range(10), "num_records": 10, "seed": 1, "operations": [hp.Batch(2)], "shard": None}
    options.update(changes)
    loader = hp.DataLoader(
        data_source=options["data_source"],
        sampler=hp.IndexSampler(options["num_records"], shuffle=True, seed=options["seed"]),
        operations=options["operations"],
        shard_options=options["shard"],
    )
    return loader, iter(loader).get_state()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": 2}, "sampler differs"),
        ({"data_source": range(11)}, "data_source differs"),
        ({"data_source": list(range(10))}, "data_source differs"),
        ({"operations": [hp.Batch(3)]}, "operations differs"),
        ({"operations": [lambda x: x, hp.Batch(2)]}, "operations differs"),
        ({"shard": hp.ShardOptions(1, 2)}, "shard_options differs"),
        ({"seed": 2, "operations": []}, "sampler and operations differ"),
    ],
)
def test_a_state_of_another_loader_is_refused_by_field(changes, field):
    loader, _ = _state_of()
    _, other = _state_of(**changes)
    with pytest.raises(StateError, match=field):
        iter(loader).set_state(other)
    moved = hp.DataLoaderIterator(loader, other, validate_state=False)
    assert len(next(moved)) == 2


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a JSON list"),
        (b'{"a": 1}', r"fields \['a'\]"),
        ({"next_index": 3}, "looks like the state of a dataset's iterator"),
        (None, "got NoneType"),
        (b'{"version": 2}', "is damaged"),
        (b'{"parent": 3, "next_index_in_buffer": 0}', "Grain saved this state with a FlatMap"),
    ],
)
def test_what_is_no_state_is_told(state, says):
    iterator = iter(make(hp, "batch3"))
    with pytest.raises(StateError, match=says):
        iterator.set_state(state)
    assert len(next(iterator)) == 3


SHARD = {"sampler": (1, 2, True)}
GRAIN_WITH_WORKERS = """
import base64, json, sys
from absl import flags
import grain.python
from tests.support.loaders import make, walk

if __name__ == "__main__":
    flags.FLAGS(["x"])
    found = {}
    for chain, workers, shards in json.loads(sys.argv[1]):
        outputs, states = walk(iter(make(grain.python, chain, worker_count=workers, **shards)))
        key = json.dumps([chain, workers, shards])
        found[key] = outputs, [base64.b64encode(state).decode() for state in states]
    print("FOUND" + json.dumps(found))
"""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "cases",
    [[["draw pass", 2, SHARD], ["batch3", 2, {}]], [["drop draw batch3", 1, SHARD], ["drop", 2, {}]]],
    ids=["in batches", "filtered"],
)
def test_what_grain_wrote_with_workers_is_restored_or_refused_with_the_reason(tmp_path, cases):
    import base64

    script = tmp_path / "write.py"
    script.write_text(GRAIN_WITH_WORKERS)
    run = subprocess.run(
        [sys.executable, str(script), json.dumps(cases)],
        env={**__import__("os").environ, "PYTHONPATH": str(loaders.__file__).rsplit("/tests/", 1)[0]},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert "FOUND" in run.stdout, run.stderr[-2000:]
    found = json.loads(run.stdout.split("FOUND", 1)[1])
    assert len(found) == len(cases)
    for key, (theirs, states) in found.items():
        chain, workers, shards = json.loads(key)
        loader = make(hp, chain, **shards)
        for k, state in enumerate(map(base64.b64decode, states)):
            if workers > 1 and chain in ("batch3", "drop"):
                with pytest.raises(
                    StateError, match=f"with {workers} workers and {'batch' if 'b' in chain else 'filter'}"
                ):
                    iter(loader).set_state(state)
                continue
            iterator = iter(loader)
            iterator.set_state(state)
            assert [x.replace("SharedMemoryArray", "array") for x in theirs[k + 1 :]] == walk(iterator)[0]


@pytest.mark.parametrize("source", [[3, 1, 2], np.arange(3), grain.sources.RangeDataSource(0, 3, 1)], ids=repr)
def test_sources_that_grain_knows_by_their_class_are_known_here(source):
    def loader(package, data_source):
        return package.DataLoader(data_source=data_source, sampler=package.SequentialSampler(3))

    theirs = iter(loader(grain.python, source))
    next(theirs)
    mine = source if not hasattr(source, "_start") else headrace.sources.RangeDataSource(0, 3, 1)
    ours = iter(loader(hp, mine))
    ours.set_state(theirs.get_state())
    assert list(ours) == list(theirs)


def test_a_state_of_grains_for_another_loader_is_refused():
    theirs = iter(make(grain.python, "batch3", num_records=20)).get_state()
    with pytest.raises(StateError, match="which Grain wrote, is of another loader; sampler differs"):
        iter(make(hp, "batch3")).set_state(theirs)


def test_restoring_far_into_an_endless_stream_is_quick():
    loader = hp.DataLoader(
        data_source=range(10**6), sampler=hp.IndexSampler(10**6, shuffle=True, seed=1), operations=[hp.Batch(8)]
    )
    iterator = iter(loader)
    iterator.set_state(moved_to(10**9, iterator.get_state()))  # one by one, it would take hours
    assert next(iterator).tolist() == [loader.order.sampler.record_key(10**9 + i) for i in range(8)]


# --------------------------------------------------------------------------------------------------- errors


def _loader(**options):
    return hp.DataLoader(**{"data_source": range(10), "sampler": hp.IndexSampler(10, seed=1), **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sampler": 3}, r"`sampler\[i\]` must return the RecordMetadata"),
        ({"sampler": hp.IndexSampler}, r"`sampler\[i\]` must return the RecordMetadata"),
        ({"worker_count": -1}, "worker_count must be an int of at least 0; got -1"),
        ({"worker_count": 1.5}, "worker_count"),
        ({"worker_buffer_size": 0}, "worker_buffer_size must be a positive int"),
        ({"operations": ["resize"]}, "contains a str, 'resize', which is not a transform. A loader takes MapTransform"),
        ({"operations": [Doubled]}, "the class Doubled. Pass an instance of it"),
        ({"operations": hp.Batch(2)}, "must be a sequence of transforms; got Batch"),
        ({"operations": [hp.Batch(0)]}, "batch_size must be a positive int"),
        ({"shard_options": 3}, "must be ShardOptions; got int"),
        ({"shard_options": hp.ShardOptions(0, 2), "sampler": hp.IndexSampler(10, hp.ShardOptions(1, 2))}, "disagree"),
        ({"shard_options": hp.ShardOptions(0, 1), "sampler": hp.IndexSampler(10, hp.ShardOptions(1, 2))}, "disagree"),
        (
            {"sampler": hp.IndexSampler(10), "operations": [hp.RandomMapTransform(lambda x, rng: x)]},
            "needs a seed, and the sampler has none",
        ),
        ({"sampler": range(3)}, r"range is not a sampler: `sampler\[0\]` must be a RecordMetadata"),
        ({"sampler": "abc"}, "str is not a sampler"),
        ({"read_options": 4}, "read_options must be ReadOptions; got int"),
        ({"operations": [hp.Batch(2, batch_fn=5)]}, "batch_fn must be a function"),
        ({"data_source": 3}, "A source needs `__len__`"),
        ({"data_source": {"a": [1, 2]}}, "only if its values are NumPy arrays"),
    ],
)
def test_wrong_arguments_are_told(options, says):
    with pytest.raises(PipelineError, match=says):
        _loader(**options)


@pytest.mark.parametrize("operations", [[], [loaders.OURS["draw"]()]])
def test_a_shard_without_records_gives_none(operations):
    for shards in ({"shard_options": hp.ShardOptions(2, 3)}, {}):
        sampler = hp.SequentialSampler(2, seed=1) if shards else hp.SequentialSampler(2, hp.ShardOptions(2, 3), seed=1)
        assert list(_loader(sampler=sampler, operations=operations, **shards)) == []
    assert list(_loader(sampler=[], operations=operations)) == []


def test_a_source_that_shrank_is_told():
    source = list(range(10))
    loader = _loader(data_source=source)
    del source[5:]
    with pytest.raises(PipelineError, match="had 10 records when the loader was created, and has 5"):
        iter(loader)


def test_a_key_that_the_source_does_not_have_is_told():
    class Wild:
        def __getitem__(self, index):
            return hp.RecordMetadata(index=index, record_key=12)

        def __len__(self):
            return 3

    with pytest.raises(PipelineError, match="Wild gives record_key=12 at place 0; keys are ints from 0 to 9"):
        next(iter(_loader(sampler=Wild())))


def test_an_error_of_the_users_says_which_operation_and_element():
    class Scale(hp.RandomMapTransform):
        def random_map(self, element, rng):
            return 1 / (element - 3)

    iterator = iter(_loader(operations=[Scale()]))
    for _ in range(3):
        next(iterator)
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    assert "Scale" in caught.value.__notes__[0]
    assert "element 3" in caught.value.__notes__[0]
    assert "test_loader.py" in caught.value.__notes__[0]


def test_where_elements_travel_as_records_errors_name_the_users_operations():
    class Fail(hp.RandomMapTransform):
        def random_map(self, element, rng):
            raise KeyError("no")

    def note(*operations):
        with pytest.raises(KeyError) as caught:
            list(_loader(operations=list(operations)))
        return caught.value.__notes__[0]

    late = [hp.Batch(2), loaders.OURS["draw"]()]
    assert "Fail" in note(hp.Batch(2), Fail())
    assert "fails at test_loader.py" in note(fails, *late)
    assert "fails at test_loader.py" in note(hp.FilterTransform(fails), *late)
    assert "batch(2, batch_fn=fails at test_loader.py" in note(hp.Batch(2, batch_fn=fails), late[1])
    assert "batch(2, batch_fn=stack)" in str(_loader(operations=late).explain())
    assert "Failing" in note(Failing())


def fails(*_):
    raise KeyError("no")


class Failing(hp.Operation):
    def __call__(self, input_iterator):
        for record in input_iterator:
            fails()
            yield record


def test_an_operation_that_returns_nothing_is_told_so():
    class Nothing(hp.Operation):
        def __call__(self, input_iterator):
            return None

    with pytest.raises(PipelineError, match="Nothing returned a NoneType"):
        list(_loader(operations=[Nothing()]))


@pytest.mark.parametrize("worker_count", [0, 1])
def test_a_loader_is_checked_for_resuming_as_in_grain(worker_count):
    sampler = headrace.IndexSampler(10, headrace.NoSharding(), shuffle=True, seed=1, num_epochs=1)
    loader = headrace.DataLoader(
        data_source=range(10), sampler=sampler, operations=[hp.Batch(2)], worker_count=worker_count
    )
    headrace.experimental.assert_equal_output_after_checkpoint(loader)
    headrace.experimental.assert_equal_output_after_checkpoint(iter(loader))
    theirs = grain.python.IndexSampler(10, grain.python.NoSharding(), shuffle=True, seed=1, num_epochs=1)
    grain.experimental.assert_equal_output_after_checkpoint(
        grain.python.DataLoader(data_source=range(10), sampler=theirs, operations=[grain.python.Batch(2)])
    )


def test_a_loader_that_does_not_resume_is_found_out():
    class Once:
        """A source that gives other records the second time."""

        def __init__(self):
            self.reads = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            self.reads += 1
            return self.reads

        def __repr__(self):
            return "Once()"

    sampler = headrace.SequentialSampler(4, headrace.NoSharding())
    with pytest.raises(AssertionError, match="is not"):
        headrace.testing.assert_resumable(headrace.DataLoader(data_source=Once(), sampler=sampler))
