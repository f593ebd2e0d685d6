"""Rows follow the sharding, whatever the mesh; what cannot become an array is refused before any step."""

import re

import numpy as np
import pytest

from tests.hosts import cluster, programs

pytest.importorskip("jax")
pytestmark = pytest.mark.xdist_group("hosts")


def expected(step):
    elements = [programs.leaves_of(x) for x in range(8 * step, 8 * (step + 1))]
    return {name: np.array([each[name] for each in elements]) for name in elements[0]} | {"scalar": np.array(7)}


@pytest.mark.parametrize("shape", [[4, 1], [2, 2], [1, 4]])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_device_has_its_rows_and_columns(count, shape):
    for batches in cluster.run("meshes", count, shape, num_devices=4 // count):
        assert len(batches) == 5
        for step, batch in enumerate(batches):
            for name, whole in expected(step).items():
                for full, slices, values in batch[name]:
                    assert full == list(whole.shape)
                    np.testing.assert_array_equal(values, whole[tuple(slice(*each) for each in slices)])


SAYS = {
    "different sizes": r"different shapes of the elements: \(2,\) in process 0, \(3,\) in process 1",
    "copies that differ": "hold copies of the same rows of the elements, and the two processes have read different ones",
    "rows of others": r"This process has rows .* of 4, and its devices hold others .*ShardBySharding",
    "different numbers": r"different numbers of batches \(151, 150\).*drop_remainder=True.*in_step",
    "a filter in a shard": "known only after reading them.*in_step",
    "finite lanes": "lanes that end after different numbers of batches.*num_batches=.*in_step",
    "a scalar along an axis": r"cannot place leaf \['n'\], a scalar, along the axes",
}


@pytest.mark.parametrize("kind", SAYS)
def test_what_cannot_work_is_refused_with_the_reason(kind):
    for said in cluster.run("refused", 2, kind):
        assert re.match(f"PipelineError: .*{SAYS[kind]}", said, re.DOTALL), said


def test_sizes_that_begin_to_differ_are_noticed_by_the_process_whose_size_changes():
    first, second = cluster.run("sizes_that_change", 2)
    assert first == "[(4,), (4,), (4,), (4,)]"
    assert re.match(r"\[\(4,\), \(4,\), '.*\(2,\) in process 0, \(3,\) in process 1", second), second
