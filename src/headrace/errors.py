"""The errors that Headrace raises of its own accord.

    HeadraceError
    ├── PipelineError (ValueError)     an operation was asked for something it cannot mean
    ├── StateError (ValueError)        a state does not fit the pipeline that it is given to
    ├── StructureError (ValueError)    elements that cannot be stacked into one batch
    ├── SpecError (ValueError)         an element spec that cannot be known without reading data
    ├── FilterError (ValueError)       a filter dropped more than the pipeline allows
    ├── ClosedError (ValueError)       an iterator was used after `close()`
    └── MissingDependency (ImportError)

An error in a user's own function is raised as it is, with a note that names the operation and the element.
"""

import importlib
from types import ModuleType


class HeadraceError(Exception):
    """Any error that Headrace raises of its own accord."""


class PipelineError(HeadraceError, ValueError):
    """An operation was asked for something it cannot mean."""


class StateError(HeadraceError, ValueError):
    """A state does not fit the pipeline that it is given to."""


class StructureError(HeadraceError, ValueError):
    """Elements cannot be stacked into one batch."""


class SpecError(HeadraceError, ValueError):
    """The shapes and dtypes of elements cannot be known without reading data."""


class FilterError(HeadraceError, ValueError):
    """A filter dropped more than the pipeline's options allow."""


class ClosedError(HeadraceError, ValueError):
    """An iterator was used after `close()`."""


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
