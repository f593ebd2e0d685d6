"""Hosts end together: each step has a collective, so a program whose hosts do not would hang."""

from importlib.util import find_spec

import pytest

from tests.device.hosts import cluster

pytest.importorskip("jax")
pytestmark = pytest.mark.xdist_group("hosts")


def kept(i):
    """How many elements of a shard of 603 the filter keeps."""
    return sum(1 for x in range(i, 603, 4) if x % 4 or x % 3)


STEPS = {
    "loader": 50,  # 603 // 4 records each
    "map": 603 // 12,
    "one lane": 402 // 12,
    "in_step": min(map(kept, range(4))) // 3,
    "lanes in_step": min(map(kept, range(4))) // 3,
    "num_batches": 30,
    "elastic": 603 // 12,
    "skip and window": 402 // 12 - 2,
    "mix": 2 * (402 // 12),
}


@pytest.fixture(scope="module")
def results():
    """What each of four processes found for each kind, and for Grain's loader, if it is here."""
    calls = [*(("num_steps", kind) for kind in STEPS), *([("grains_batches",)] if find_spec("grain") else [])]
    return dict(zip(calls, zip(*cluster.run("several", 4, calls), strict=True), strict=True))


@pytest.mark.parametrize("kind", STEPS)
def test_all_processes_make_the_same_steps(results, kind):
    first, *others = results["num_steps", kind]
    assert others == [first] * 3
    assert len(first) == STEPS[kind]


def test_a_loader_has_as_many_batches_as_grains(results):
    if ("grains_batches",) not in results:
        pytest.skip("Grain is not installed")
    assert results["grains_batches",] == (STEPS["loader"],) * 4


def test_a_shard_cannot_be_restored_by_another_number_of_processes(tmp_path):
    assert cluster.run("restored_by_fewer", 2, str(tmp_path / "saved"), True) == ["done"] * 2
    (said,) = cluster.run("restored_by_fewer", 1, str(tmp_path / "saved"), False)
    assert "no state of this process" in said
    assert "global_batch" in said
