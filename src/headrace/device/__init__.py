"""Elements for accelerators: `jax` moves them to devices, `torch` hands them over as tensors.

Neither framework is imported before it is used. Import `headrace.device.torch` by its full name.
"""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import lazy_module

if TYPE_CHECKING:
    from headrace.device.jax import device_put as device_put
    from headrace.device.stopping import in_step as in_step
    from headrace.device.stopping import stop_together as stop_together

__getattr__, __dir__, _ = lazy_module(
    __name__, {"device.jax": ("device_put",), "device.stopping": ("in_step", "stop_together")}
)
