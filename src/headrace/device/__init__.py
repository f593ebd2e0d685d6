"""Elements for accelerators: `jax` moves them to devices, `torch` hands them over as tensors.

Neither framework is imported before it is used. Import `headrace.device.torch` by its full name.
"""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import later

if TYPE_CHECKING:
    from headrace.device.ending import in_step as in_step
    from headrace.device.jax import device_put as device_put

__getattr__, __dir__, _ = later(__name__, {"device.jax": ("device_put",), "device.ending": ("in_step",)})
