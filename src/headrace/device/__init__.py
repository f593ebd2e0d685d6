"""Elements for accelerators: `jax` moves them to devices, `torch` hands them over as tensors.

Neither framework is imported before it is used. Import `headrace.device.torch` by its full name.
"""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import lazy_module

if TYPE_CHECKING:
    from headrace.device.ending import in_step as in_step
    from headrace.device.ending import stop_together as stop_together
    from headrace.device.jax import device_put as device_put

__getattr__, __dir__, _ = lazy_module(
    __name__, {"device.jax": ("device_put",), "device.ending": ("in_step", "stop_together")}
)
