"""Workers on other machines: pools of Ray actors, for `RayOptions`."""

from typing import Any

from headrace.engine.workers import pool_openers
from headrace.options import AutotuneParameter, RayOptions
from headrace.protocols import TaskPool


def open_ray_pool(shared_plan: Any, num_workers: int | AutotuneParameter, options: RayOptions) -> TaskPool:
    """A pool of Ray actors."""
    from headrace.cluster.ray import RayPool  # few programs need it

    return RayPool(shared_plan, num_workers, options)


pool_openers[RayOptions] = open_ray_pool
