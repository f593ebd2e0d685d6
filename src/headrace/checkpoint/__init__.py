"""Checkpoints of iterators: with Orbax, and for another number of shards."""

from typing import TYPE_CHECKING

from headrace.errors.lazy_imports import lazy_module

if TYPE_CHECKING:
    from headrace.checkpoint.orbax import CheckpointHandler as CheckpointHandler
    from headrace.checkpoint.orbax import CheckpointRestore as CheckpointRestore
    from headrace.checkpoint.orbax import CheckpointSave as CheckpointSave
    from headrace.state.merging import merge as merge

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave", "merge"]
__getattr__, __dir__, _ = lazy_module(__name__, {"checkpoint.orbax": __all__[:3], "state.merging": ("merge",)})
