"""Checkpoints of iterators: with Orbax, and with another number of shards than wrote them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.checkpoint.orbax import CheckpointHandler as CheckpointHandler
    from headrace.checkpoint.orbax import CheckpointRestore as CheckpointRestore
    from headrace.checkpoint.orbax import CheckpointSave as CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]


def __getattr__(name: str) -> Any:
    """Orbax is imported when one of its classes is asked for."""
    if name in __all__:
        from headrace.checkpoint import orbax

        return getattr(orbax, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
