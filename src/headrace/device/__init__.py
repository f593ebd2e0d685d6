"""Elements for accelerators: `jax` places them on devices, `torch` hands them over as tensors.

Neither framework is imported before it is used; `headrace.device.torch` is imported by its full name.
"""

from headrace.device.jax import device_put as device_put
