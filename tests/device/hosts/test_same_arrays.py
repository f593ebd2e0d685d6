"""Global arrays are the same on any number of processes, also if a run goes on with another number."""

import json

import pytest

from headrace import checkpoint
from headrace.testing import assert_equal
from tests.device.hosts import cluster, pipelines, programs

jax = pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")
pytestmark = pytest.mark.xdist_group("hosts")

STEPS = 3
CHAIN = (3, 1, 2)  # the numbers of processes of one run after the other


def joined(results):
    """For each pipeline and step, shape, dtype and all rows of each leaf, as the processes together have them."""
    steps = {}
    for result in results:
        for name, found in result["steps"].items():
            mine = steps.setdefault(name, [[] for _ in found])
            for leaves, step in zip(mine, found, strict=True):
                leaves[:] = leaves or [(shape, dtype, {}) for shape, dtype, _ in step]
                for (shape, dtype, rows), (*same, more) in zip(leaves, step, strict=True):
                    assert [shape, dtype] == same
                    assert all(rows.setdefault(row, digest) == digest for row, digest in more.items())
    return steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    pipelines.write_files(path)
    return path


@pytest.fixture(scope="module")
def whole(folder):
    """The steps of one process, as many as the longest of the runs below has."""
    return joined(cluster.run("steps", 1, pipelines.ALL, str(folder), STEPS * len(CHAIN)))


@pytest.fixture(scope="module")
def chain(folder, tmp_path_factory):
    """The results of a run that Orbax saves and restores, each time with another number of processes."""
    saved = tmp_path_factory.mktemp("saved")
    found, start = [], None
    for i, count in enumerate(CHAIN):
        found.append(cluster.run("steps", count, pipelines.ALL, str(folder), STEPS, start, str(saved / str(i))))
        start = str(saved / str(i))
    return found


@pytest.fixture(scope="module")
def on_processes(folder, chain):
    """The results of some steps on a number of processes."""
    known = {CHAIN[0]: joined(chain[0])}

    def of(count):
        if count not in known:
            known[count] = joined(cluster.run("steps", count, pipelines.ALL, str(folder), STEPS))
        return known[count]

    return of


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("count", [3, 2, 4, 6])
@pytest.mark.parametrize("name", pipelines.ALL)
def test_global_arrays_do_not_depend_on_the_number_of_processes(whole, on_processes, name, count):
    assert all(len(rows) == pipelines.BATCH for step in whole[name] for _, _, rows in step)
    assert on_processes(count)[name] == whole[name][:STEPS]


@pytest.mark.parametrize("name", pipelines.ALL)
def test_orbax_restores_with_another_number_of_processes(whole, chain, name):
    steps = [step for results in chain for step in joined(results)[name]]
    assert steps == whole[name]


@pytest.mark.parametrize("name", pipelines.ALL)
def test_states_of_any_number_of_processes_merge_to_those_of_one(whole, chain, folder, name):
    """States carried by hand, as JSON: whatever number saved them, they lead to what one process would have."""
    for i, results in enumerate(chain, start=1):
        merged = checkpoint.merge([json.loads(json.dumps(result["states"][name])) for result in results])
        with iter(pipelines.global_batches(name, str(folder), None)) as iterator:
            iterator.set_state(merged)
            assert iterator.get_state() == merged
            if i < len(CHAIN):
                leaves = jax.tree.leaves(jax.tree.map(jax.numpy.asarray, next(iterator)))
                assert [programs.rows_of(leaf) for leaf in leaves] == [
                    {int(row): digest for row, digest in rows.items()} for _, _, rows in whole[name][i * STEPS]
                ]


@pytest.mark.slow
def test_processes_go_on_from_states_carried_by_hand(whole, chain, folder):
    start = {name: checkpoint.merge([each["states"][name] for each in chain[0]]) for name in pipelines.ALL}
    results = cluster.run("steps", 2, pipelines.ALL, str(folder), STEPS, start)
    assert joined(results) == {name: steps[STEPS : 2 * STEPS] for name, steps in whole.items()}


@pytest.mark.parametrize("name", [name for name in pipelines.STREAMS if name != "workers"])
def test_one_lane_has_the_values_of_batch(name):
    batches, ours = pipelines.STREAMS[name](1).batch(24), pipelines.STREAMS[name](1).global_batch(24)
    for _, left, right in zip(range(3), batches, ours, strict=False):
        assert_equal(left, right)
