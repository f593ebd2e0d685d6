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

An error in a user's own function is raised as it is, with a note that names the operation and the element. No error of
Headrace's shows the login or the query of an address, or a password: neither in its text nor in that of its causes.
"""

import importlib
import os
from collections.abc import Iterable
from types import FrameType, ModuleType, TracebackType
from typing import Any

from headrace._utils.addresses import redacted

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
FROM_WORKER = "__headrace_from_worker__"  # a global of frames that stand for those of a worker process


class HeadraceError(Exception):
    """Any error that Headrace raises of its own accord."""

    def __init__(self, *args: Any):
        super().__init__(*(redacted(one) if isinstance(one, str) else one for one in args))

    def add_note(self, note: str) -> None:
        super().add_note(redacted(note))


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


class Quoted(Exception):
    """What an error of a library said, without secrets; it stands for that error as a cause."""


class MissingDependency(HeadraceError, ImportError):
    """An optional dependency is not installed."""


class CacheWarning(UserWarning):
    """What was kept on disk is not used, since other users may have written it."""


class StateWarning(UserWarning):
    """A state was saved with a pipeline that is not quite this one."""


class FilterWarning(UserWarning):
    """A filter drops nearly everything it sees."""


def optional(module: str, *, extra: str) -> ModuleType:
    """Imports an optional dependency, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise MissingDependency(f"`{module}` is not installed. Install it with: pip install 'headrace[{extra}]'") from e


def without_secrets(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """The error; or, where its text or that of a cause shows a secret, one that says the same without it."""
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    clean = None if below is None else without_secrets(below, secrets)
    text = in_words(error)
    if clean is below and redacted(text, secrets) == text:
        return error
    quoted = Quoted(redacted(text, secrets)).with_traceback(error.__traceback__)
    quoted.__cause__ = clean
    return quoted


def in_words(error: BaseException) -> str:
    """The kind of an error and what it says."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception as e:  # of its own `__str__`
        return f"{type(error).__name__} (which cannot say more: {type(e).__name__})"


def put_together(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An error from its parts, without asking its class how it is made."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def users_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package that lead to the user's first, or to a worker's."""
    traceback = error.__traceback__
    while traceback is not None and _is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    # What the package says of workers is said in full by the message.
    return traceback if traceback is not None or isinstance(error, WorkerError) else error.__traceback__


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE) and FROM_WORKER not in frame.f_globals
