"""A Ray cluster of three nodes, with this process as its driver."""

import os
from importlib.util import find_spec

import pytest

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
os.environ.setdefault("RAY_worker_niceness", "0")  # else actors give way to every other test on this machine
collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


def new_cluster(num_nodes=3, num_cpus=2, **options):
    from ray.cluster_utils import Cluster

    # A node that does not answer counts as lost after some seconds instead of half a minute.
    system = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    node = {"num_cpus": num_cpus, "object_store_memory": 200 << 20, "include_log_monitor": False}
    head = {"include_dashboard": False, "_system_config": system}
    cluster = Cluster(initialize_head=True, head_node_args=node | head | options)
    for _ in range(num_nodes - 1):
        cluster.add_node(**node)
    cluster.wait_for_nodes()
    return cluster


@pytest.fixture(scope="session")
def cluster():
    """A cluster that this process has joined, as a user's program may."""
    import ray

    made = new_cluster()
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
