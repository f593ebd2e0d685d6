"""Elements where they are computed with: on JAX's devices, and as PyTorch's tensors (`headrace.device.torch`)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.device.jax import device_put as device_put


def __getattr__(name: str) -> Any:
    """Neither JAX nor what moves elements to it is imported before it is asked for."""
    if name == "device_put":
        from headrace.device import jax

        return jax.device_put
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
