"""Processes compare their pipelines before the first step: hosts that see different data would train on rows twice."""

import pytest

from tests.device.hosts import cluster

pytest.importorskip("jax")
pytestmark = pytest.mark.xdist_group("hosts")

DIFFER = {
    "global_batch": "source length 1000 → 900",
    "stream": "source length 1000 → 900",
    "device_put": "source length 1000 → 900",
    "in_step": "source length 1000 → 900",
    "files": "process 1 does not see b",
}
SAME = ["same", "own data"]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What each of two processes says of each kind of pipeline."""
    folder = tmp_path_factory.mktemp("files")
    for name in "abc":
        (folder / name).write_text(f"{name}\n" * 20)
    calls = [("what_differs", kind, str(folder)) for kind in [*DIFFER, *SAME]]
    found = cluster.run("several", 2, calls)
    return dict(zip([*DIFFER, *SAME], zip(*found, strict=True), strict=True))


@pytest.mark.parametrize("kind", DIFFER)
def test_different_data_is_an_error_in_all_processes_that_names_the_host_and_the_difference(said, kind):
    for each in said[kind]:
        assert "The processes read different data" in each
        assert DIFFER[kind] in each
        assert "process 0 → process 1" in each


@pytest.mark.parametrize("kind", SAME)
def test_the_same_data_and_data_of_each_hosts_own_are_no_error(said, kind):
    assert said[kind] == ("goes on",) * 2
