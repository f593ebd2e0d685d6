"""Checkpoints through the real Orbax, and states that another number of shards goes on from."""

import asyncio
import copy
import itertools
import json
import re

import grain
import grain.python
import numpy as np
import pytest

import headrace
import headrace.python as hp
from headrace.checkpoint.elastic import ElasticIterator
from headrace.errors import MissingDependency, PipelineError, StateError, install_command
from tests.support.loaders import make

ocp = pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Orbax's own: its deprecations are no concern of ours


def dataset():
    return headrace.MapDataset.range(40).seed(45).shuffle().to_iter_dataset().window_shuffle(7, seed=1).batch(3)


SOURCES = {
    "dataset": lambda: iter(dataset()),
    "loader": lambda: iter(make(hp, "draw batch3")),
    "workers": lambda: iter(make(hp, "draw batch3", worker_count=2)),
    "elastic": lambda: ElasticIterator(headrace.MapDataset.range(40), 8, hp.ShardOptions(0, 2)),
}


def texts(iterator, n):
    return [repr(x) for x in itertools.islice(iterator, n)]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_a_checkpoint_manager_saves_and_restores_iterators(tmp_path, source, is_async):
    iterator = SOURCES[source]()
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=is_async, max_to_keep=2)
    expected = {}
    with ocp.CheckpointManager(tmp_path / "checkpoints", options=options) as manager:
        for step in (1, 2, 3):
            texts(iterator, 1)
            assert manager.save(step, args=headrace.checkpoint.CheckpointSave(iterator))
            if step > 1:  # the first one is not kept
                state = iterator.get_state()
                with _at(source, state) as other:
                    expected[step] = state, texts(other, 2)
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
        (file,) = (tmp_path / "checkpoints" / "3").glob("*/*.json")
        assert file.name == "process_0-of-1.json"
        for step in (3, 2):
            fresh = SOURCES[source]()
            restored = manager.restore(step, args=headrace.checkpoint.CheckpointRestore(fresh))
            assert restored is fresh
            assert fresh.get_state() == expected[step][0]
            assert texts(fresh, 2) == expected[step][1]
            fresh.close()
    iterator.close()


def _at(source, state):
    iterator = SOURCES[source]()
    iterator.set_state(state)
    return iterator


@pytest.mark.parametrize("is_async", [False, True])
def test_an_iterator_beside_a_model(tmp_path, is_async):
    jax = pytest.importorskip("jax")
    model = {"weights": jax.numpy.arange(6.0).reshape(2, 3), "step": 4}
    iterator = iter(make(hp, "draw batch3"))
    texts(iterator, 4)
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=is_async)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        args = ocp.args.Composite(model=ocp.args.StandardSave(model), data=hp.PyGrainCheckpointSave(iterator))
        manager.save(4, args=args)
        rest = texts(iterator, 3)  # goes on at once: the state was taken
        manager.wait_until_finished()
    fresh = iter(make(hp, "draw batch3", worker_count=2))
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        args = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=hp.PyGrainCheckpointRestore(fresh))
        restored = manager.restore(4, args=args)
    np.testing.assert_array_equal(restored.model["weights"], model["weights"])
    assert restored.data is fresh
    assert texts(fresh, 3) == rest
    fresh.close()


@pytest.mark.parametrize("source", SOURCES)
def test_orbaxs_own_protocol_for_checkpointable_objects(tmp_path, source):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    iterator = SOURCES[source]()
    texts(iterator, 2)
    v1.save_checkpointables(tmp_path / "c", {"data": iterator, "model": {"a": np.arange(3)}})
    rest = texts(iterator, 2)
    fresh = SOURCES[source]()
    v1.load_checkpointables(tmp_path / "c", {"data": fresh, "model": None})
    assert texts(fresh, 2) == rest
    for each in (iterator, fresh):
        each.close()


def test_what_the_protocol_awaits(tmp_path):
    class Awaiting:
        async def await_creation(self):
            return tmp_path

    async def save_then_load():
        iterator = iter(dataset())
        next(iterator)
        written = await iterator.save(Awaiting())
        rest = texts(iterator, 2)  # the state is that of the call, not of the writing
        await written
        fresh = iter(dataset())
        await (await fresh.load(tmp_path))
        assert texts(fresh, 2) == rest

    asyncio.run(save_then_load())


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_checkpoint_that_grain_wrote_with_orbax_restores(tmp_path, kind):
    def theirs():
        if kind == "loader":
            return iter(make(grain.python, "drop draw batch3"))
        return iter(grain.MapDataset.range(40).seed(45).shuffle().repeat().batch(3).to_iter_dataset())

    def ours():
        if kind == "loader":
            return iter(make(hp, "drop draw batch3"))
        return iter(headrace.MapDataset.range(40).seed(45).shuffle().repeat().batch(3).to_iter_dataset())

    iterator = theirs()
    texts(iterator, 3)
    with ocp.CheckpointManager(tmp_path / "c") as manager:
        manager.save(3, args=grain.checkpoint.CheckpointSave(iterator))
        manager.wait_until_finished()
    fresh = ours()
    with ocp.CheckpointManager(tmp_path / "c") as manager:
        manager.restore(3, args=headrace.checkpoint.CheckpointRestore(fresh))
    assert texts(fresh, 3) == texts(iterator, 3)


def test_bad_checkpoints_are_told(tmp_path):
    handler = headrace.checkpoint.CheckpointHandler()
    with pytest.raises(PipelineError, match="got IterDataset. Pass `iter"):
        handler.save(tmp_path, args=headrace.checkpoint.CheckpointSave(dataset()))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(StateError, match="no state of this process.*has no states"):
        handler.restore(folder, item=iter(dataset()))
    (folder / "process_1-of-2.json").write_text("{}")
    with pytest.raises(StateError, match=r"the folder has \['process_1-of-2.json'\]"):
        handler.restore(folder, item=iter(dataset()))


def test_without_orbax_an_import_error_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    monkeypatch.delitem(sys.modules, "headrace.checkpoint.orbax", raising=False)
    monkeypatch.delattr(headrace.checkpoint, "orbax", raising=False)
    with pytest.raises(MissingDependency, match=re.escape(install_command("orbax"))):
        headrace.checkpoint.CheckpointSave(iter(dataset()))


# ----------------------------------------------------------------------------------------------- elastic states


@pytest.mark.parametrize("count", [1, 2, 4])
def test_elastic_iterators_give_grains_global_batches_in_order(count):
    def shards(lib, kind, options):
        chain = lib.MapDataset.range(21).shuffle(seed=3).repeat(2)
        return [kind(chain, 8, options(i, count)) for i in range(count)]

    theirs = shards(grain, grain.experimental.ElasticIterator, grain.sharding.ShardOptions)
    ours = shards(headrace, ElasticIterator, hp.ShardOptions)
    for batches in zip(*ours, strict=True):
        strided = np.stack([next(each) for each in theirs], axis=1).ravel()  # row r is in Grain's shard r % count
        assert repr(np.concatenate(batches)) == repr(strided)
        assert ours[0].get_state() == ours[-1].get_state() == theirs[0].get_state()
    for each in theirs:
        with pytest.raises(StopIteration):
            next(each)


def test_another_number_of_shards_goes_on(tmp_path):
    def shards(count):
        chain = headrace.MapDataset.range(100).shuffle(seed=3).repeat().map(lambda x: x + 0.5)
        return [ElasticIterator(chain, 12, hp.ShardOptions(i, count)) for i in range(count)]

    def batch(iterators):
        return np.concatenate([next(iterator) for iterator in iterators])

    (alone,) = shards(1)
    whole = [next(alone) for _ in range(9)]
    position, counts = None, itertools.cycle([2, 3, 1, 4])
    for step in range(0, 9, 3):
        iterators = shards(next(counts))
        if position is not None:
            for iterator in iterators:
                iterator.set_state(json.loads(json.dumps(position)))
        for k in range(3):
            np.testing.assert_array_equal(batch(iterators), whole[step + k])
        states = [iterator.get_state() for iterator in iterators]
        assert all(state == states[0] for state in states)
        position = states[0]


def test_a_global_state_is_read_from_the_file_of_any_process(tmp_path):
    (tmp_path / "process_1-of-2.json").write_text('{"global_next_index": 8}')
    iterator = ElasticIterator(headrace.MapDataset.range(40), 8, hp.ShardOptions(0, 1))
    headrace.checkpoint.CheckpointHandler().restore(tmp_path, item=iterator)
    assert next(iterator).tolist() == list(range(8, 16))


def test_an_elastic_iterator_with_workers_and_past_its_end():
    chain = headrace.MapDataset.range(20).map(lambda x: x * 2)
    options = headrace.MultiprocessingOptions(num_workers=2)
    iterator = ElasticIterator(chain, 4, hp.ShardOptions(1, 2), multiprocessing_options=options)
    all_of_it = texts(iterator, 10)
    assert all_of_it == texts(ElasticIterator(chain, 4, hp.ShardOptions(1, 2)), 10)
    iterator.set_state({"global_next_index": 8})
    assert texts(iterator, 10) == all_of_it[2:]
    iterator.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda ds: ElasticIterator(ds.to_iter_dataset(), 4, hp.NoSharding()), "takes a MapDataset; got IterDataset"),
        (lambda ds: ElasticIterator(ds, 4, hp.ShardOptions(0, 3)), "does not divide evenly among 3 shards"),
        (lambda ds: ElasticIterator(ds, 4, (0, 1)), "must be ShardOptions; got tuple"),
        (lambda ds: ElasticIterator(ds, 0, hp.NoSharding()), "global_batch_size must be a positive int"),
        (lambda ds: ElasticIterator(ds.filter(bool).map(str), 4, hp.NoSharding()), "filter.*drops some"),
    ],
)
def test_wrong_arguments_of_an_elastic_iterator(make, says):
    with pytest.raises(PipelineError, match=says):
        make(headrace.MapDataset.range(10))


@pytest.mark.parametrize("state", [{"next_index": 4}, {"global_next_index": True}, {"global_next_index": "4"}, b"x"])
def test_a_state_that_does_not_fit_an_elastic_iterator(state):
    with pytest.raises(StateError, match="global_next_index"):
        ElasticIterator(headrace.MapDataset.range(10), 4, hp.NoSharding()).set_state(state)


def test_iterators_are_not_copied_but_made_anew():
    import pickle

    for make_one in (SOURCES["dataset"], SOURCES["loader"]):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="save its `get_state\\(\\)`"):
                copied(make_one())


def test_an_elastic_iterator_is_a_dataset():
    from headrace.testing import assert_resumable

    elastic = SOURCES["elastic"]()
    assert isinstance(elastic, headrace.IterDataset)
    assert not isinstance(elastic, headrace.DatasetIterator)
    assert next(elastic).tolist() == [0, 1, 2, 3]
    again = copy.deepcopy(elastic)
    assert next(iter(elastic)).tolist() == next(again).tolist() == [8, 9, 10, 11]
    assert elastic.get_state() == again.get_state() == {"global_next_index": 16}
    mapped = elastic.map(lambda batch: batch.sum())
    assert list(mapped) == list(mapped) == list(mapped.prefetch(2)) == [6, 38, 70, 102, 134]
    assert_resumable(mapped)
    assert next(elastic).tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize(("before", "after"), [((4, 2), (6, 3)), ((6, 3), (4, 1)), ((4, 1), (4, 2))])
@pytest.mark.parametrize("steps", [1, 5, 8, 20])
def test_a_pipeline_after_an_elastic_iterator_goes_on_with_another_global_batch_size(before, after, steps):
    ds = headrace.MapDataset.range(240).shuffle(seed=3)

    def shards(global_batch_size, count):
        parts = [ElasticIterator(ds, global_batch_size, hp.ShardOptions(i, count)) for i in range(count)]
        return [iter(part.map(lambda batch: batch.tolist())) for part in parts]

    first = shards(*before)
    seen = [x for _ in range(steps) for iterator in first for x in next(iterator)]
    states = [iterator.get_state() for iterator in first]
    assert all(state == states[0] for state in states)
    second = shards(*after)
    for iterator in second:
        iterator.set_state(states[0])
    seen += [x for iterator in second for batch in iterator for x in batch]
    left_over = (240 - steps * before[0]) % after[0]
    assert len(seen) == len(set(seen)) == 240 - left_over
