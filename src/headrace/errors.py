"""The errors that Headrace raises of its own accord.

    HeadraceError
    ├── PipelineError (ValueError)     an operation was asked for something it cannot mean
    ├── StateError (ValueError)        a state does not fit the pipeline that it is given to
    ├── StructureError (ValueError)    elements that cannot be stacked into one batch
    ├── DataError (ValueError)         bytes at rest that are damaged, or not what they should be
    ├── RemoteError (OSError)          a file behind an address that could not be read
    ├── SpecError (ValueError)         an element spec that cannot be known without reading data
    ├── FilterError (ValueError)       a filter dropped more than the pipeline allows
    ├── ClosedError (ValueError)       an iterator was used after `close()`
    ├── WorkerError (RuntimeError)     a worker process failed, or could not be given its work
    │   └── RingMemoryError (MemoryError)   too little memory for what workers hand over
    └── MissingDependency (ImportError)

An error in a user's own function is raised as it is, with a note that names the operation and the element.
"""

import importlib
import os
from types import ModuleType, TracebackType
from typing import Any

_PACKAGE = os.path.dirname(os.path.abspath(__file__))


class HeadraceError(Exception):
    """Any error that Headrace raises of its own accord."""


class PipelineError(HeadraceError, ValueError):
    """An operation was asked for something it cannot mean."""


class StateError(HeadraceError, ValueError):
    """A state does not fit the pipeline that it is given to."""


class StructureError(HeadraceError, ValueError):
    """Elements cannot be stacked into one batch."""


class DataError(HeadraceError, ValueError):
    """Bytes at rest are damaged, or not what they should be; the message has the path, the record and the offset."""


class RemoteError(HeadraceError, OSError):
    """A file behind an address could not be read; the message has the address and what failed."""


class SpecError(HeadraceError, ValueError):
    """The shapes and dtypes of elements cannot be known without reading data."""


class FilterError(HeadraceError, ValueError):
    """A filter dropped more than the pipeline's options allow."""


class ClosedError(HeadraceError, ValueError):
    """An iterator was used after `close()`."""


class WorkerError(HeadraceError, RuntimeError):
    """A worker process failed, or could not be given its work."""


class RingMemoryError(WorkerError, MemoryError):
    """There is too little memory for what workers hand over."""


class RemoteTraceback(Exception):
    """Where an error came from in a worker process; it is the cause of the error."""

    def __str__(self) -> str:
        return f'in a worker process:\n"""\n{self.args[0]}"""'


class MissingDependency(HeadraceError, ImportError):
    """An optional dependency is not installed."""


class FilterWarning(UserWarning):
    """A filter drops nearly everything it sees."""


def optional(module: str, *, extra: str) -> ModuleType:
    """Imports an optional dependency, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise MissingDependency(f"`{module}` is not installed. Install it with: pip install 'headrace[{extra}]'") from e


def put_together(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An error from its parts, without asking its class how it is made."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def users_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package that lead to the user's first; none of a worker's error."""
    if isinstance(error.__cause__, RemoteTraceback) or isinstance(error, WorkerError):
        return None
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        traceback = traceback.tb_next
    return traceback if traceback is not None else error.__traceback__
