"""Saves and restores iterators with Orbax, alone or together with a model.

States are small, so `save` takes and writes them at once: in an asynchronous save, the iterator may continue as soon as
`save` returns. Each process writes its own file.
"""

from dataclasses import dataclass
from typing import Any

from headrace.errors import PipelineError, optional
from headrace.state import merging

ocp: Any = optional("orbax.checkpoint", extra="orbax")


class CheckpointHandler(ocp.CheckpointHandler):
    """Writes and reads the state of an iterator.

    >>> iterator = iter(MapDataset.range(4))
    >>> _ = next(iterator)
    >>> CheckpointHandler().save(folder, iterator)
    >>> next(CheckpointHandler().restore(folder, iter(MapDataset.range(4))))
    1

    Differs from Grain: the state does not depend on workers, and a state of another pipeline is an error.
    """

    def save(self, directory: Any, item: Any = None, args: "CheckpointSave | None" = None) -> None:
        """Writes the state of an iterator to a folder."""
        merging.write(directory, merging.dump(_iterator(item, args).get_state()))

    def restore(self, directory: Any, item: Any = None, args: "CheckpointRestore | None" = None) -> Any:
        """Restores an iterator from the state in a folder, and returns it."""
        iterator = _iterator(item, args)
        merging.restore(iterator, directory)
        return iterator

    def structure(self, directory: Any) -> None:
        """The structure of a saved item, without reading it: that of a state is not known."""


def _iterator(item: Any, args: Any) -> Any:
    iterator = item if args is None else args.item
    if not hasattr(iterator, "get_state") or not hasattr(iterator, "set_state"):
        hint = " Pass `iter(...)` of it." if hasattr(iterator, "__iter__") else ""
        raise PipelineError(
            f"CheckpointSave and CheckpointRestore take an iterator of a dataset or loader; got "
            f"{type(iterator).__name__}.{hint}"
        )
    return iterator


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """An iterator to save, as an argument of Orbax.

    >>> with ocp.CheckpointManager(folder) as manager:
    ...     manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iter(MapDataset.range(4)))))
    True
    """

    item: Any


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """An iterator to restore, as an argument of Orbax.

    >>> iterator = iter(MapDataset.range(4))
    >>> with ocp.CheckpointManager(folder) as manager:
    ...     _ = next(iterator), manager.save(0, args=ocp.args.Composite(data=CheckpointSave(iterator)))
    ...     again = iter(MapDataset.range(4))
    ...     _ = manager.restore(0, args=ocp.args.Composite(data=CheckpointRestore(again)))
    >>> next(again)
    1
    """

    item: Any
