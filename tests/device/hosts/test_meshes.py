"""Rows follow the sharding, whatever the mesh; what cannot become an array is refused before any step."""

import re

import numpy as np
import pytest

from tests.device.hosts import cluster, programs

pytest.importorskip("jax")
pytestmark = pytest.mark.xdist_group("hosts")


def expected(step):
    elements = [programs.leaves_of(x) for x in range(8 * step, 8 * (step + 1))]
    return {name: np.array([each[name] for each in elements]) for name in elements[0]} | {"scalar": np.array(7)}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_device_has_its_rows_and_columns(count):
    shapes = [[4, 1], [2, 2], [1, 4]]
    for found in cluster.run("several", count, [["meshes", shape] for shape in shapes], num_devices=4 // count):
        assert len(found) == len(shapes)
        for batches in found:
            assert len(batches) == 5
            for step, batch in enumerate(batches):
                for name, whole in expected(step).items():
                    for full, slices, values in batch[name]:
                        assert full == list(whole.shape)
                        np.testing.assert_array_equal(values, whole[tuple(slice(*each) for each in slices)])


SAYS = {
    "different dtypes": r"different dtypes of the elements: int64 in process 0, float64 in process 1",
    "a filter after rows": "after `global_batch` sees only the rows of this process.*before `global_batch`",
    "a filter of random access after rows": "after `global_batch` sees only the rows of this process",
    "batches of rows": r"batch\(2\).* after `global_batch` sees only the rows of this process",
    "errors after rows": "`on_error` may drop rows",
    "errors in a shard": "known only after reading them",
    "different sizes": r"different shapes of the elements: \(2,\) in process 0, \(3,\) in process 1",
    "copies that differ": "hold copies of the same rows of the elements, but the two processes have read different rows",
    "rows of others": r"This process has rows .* of 4, but with .* its devices hold other rows.*ShardBySharding",
    "different numbers": r"different numbers of batches \(151, 150\).*drop_remainder=True.*stop_together",
    "a filter in a shard": "known only after reading them.*stop_together",
    "finite lanes": "lanes that end after different numbers of batches.*num_batches=.*stop_together",
    "a scalar along an axis": r"cannot place leaf \['n'\], a scalar, along the axes",
}


@pytest.fixture(scope="module")
def on_two():
    """What the programs for two processes returned in each, by their names and arguments."""
    calls = [*(("refused", kind) for kind in SAYS), ("scalars",)]
    return dict(zip(calls, zip(*cluster.run("several", 2, calls), strict=True), strict=True))


@pytest.mark.parametrize("kind", SAYS)
def test_what_cannot_work_is_refused_with_the_reason(on_two, kind):
    for said in on_two["refused", kind]:
        assert re.match(f"PipelineError: .*{SAYS[kind]}", said, re.DOTALL), said


def test_a_scalar_leaves_the_rows_of_others_as_they_are(on_two):
    sums = [float(sum(range(4 * i, 4 * i + 4))) for i in range(4)]
    for i, (found, read) in enumerate(on_two["scalars",]):
        assert found == sums
        assert read == [x for x in range(16) if x % 4 // 2 == i]


@pytest.fixture(scope="module")
def on_three():
    """The same for three processes of two devices each."""
    calls = ["rows_per_process", "some_processes"]
    results = cluster.run("several", 3, [[call] for call in calls], num_devices=2)
    return dict(zip(calls, zip(*results, strict=True), strict=True))


def test_processes_may_hold_different_numbers_of_rows(on_three):
    expected = [float(sum(range(8 * i, 8 * i + 8))) for i in range(10)]
    assert on_three["rows_per_process"] == (expected,) * 3


def test_a_mesh_over_some_processes_needs_no_others(on_three):
    assert on_three["some_processes"] == (10, 10, 0)


def test_an_error_of_one_process_behind_in_step_is_its_own():
    first, second = cluster.run("error_after_in_step", 2)
    assert first == "30"
    assert re.match(r"30: .* different dtypes of the elements: int64 in process 0, <U21 in process 1", second), second


def test_sizes_that_begin_to_differ_are_noticed_by_the_process_whose_size_changes():
    first, second = cluster.run("sizes_that_change", 2)
    assert first == "[(4,), (4,), (4,), (4,)]"
    assert re.match(r"\[\(4,\), \(4,\), '.*\(2,\) in process 0, \(3,\) in process 1", second), second
