"""The tests' own limit: a program that hangs is a failure with the stacks of all its processes."""

import pytest

from tests.device.hosts import cluster

pytest.importorskip("jax")
pytestmark = pytest.mark.xdist_group("hosts")


def test_a_program_that_hangs_fails_with_the_stacks_of_all_processes(monkeypatch):
    monkeypatch.setattr(cluster, "LIMIT_S", 15.0)
    with pytest.raises(AssertionError, match=r"(?s)hung.*---- process 0.*---- process 1.*in stand_still"):
        cluster.run("stand_still", 2)
