"""Pipelines by name: `FILE.py:NAME` or `package.module:NAME`."""

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import cloudpickle

from headrace.dataset import IterDataset, MapDataset
from headrace.errors import PipelineError, format_error
from headrace.loader import DataLoader

DEFAULT_NAME = "ds"
PIPELINES = (MapDataset, IterDataset, DataLoader)


def is_pipeline(text: str) -> bool:
    """Whether an argument names a pipeline, rather than data.

    >>> is_pipeline("train.py:ds"), is_pipeline("train.py"), is_pipeline("s3://bucket/a.parquet")
    (True, True, False)
    """
    file, _, name = text.rpartition(":")
    if not text.endswith(".py") and os.path.exists(text):  # data whose name looks like that of a pipeline
        return False
    return text.endswith(".py") or (file.endswith(".py") and name.isidentifier())


def load(text: str) -> Any:
    """The dataset or loader that `FILE:NAME` means; without a name, it is `ds`."""
    file, name = _split(text)
    module = _module(file)
    found = vars(module).get(name)
    if found is None:
        others = [each for each, value in vars(module).items() if isinstance(value, PIPELINES)]
        has = f"It has {', '.join(others)}." if others else "It has no datasets and no loaders either."
        raise PipelineError(f"{file} has no `{name}`. {has}")
    if isinstance(found, PIPELINES):
        return found
    made = _call(found, f"`{name}` of {file}")
    if not isinstance(made, PIPELINES):
        raise PipelineError(
            f"`{name}` of {file} {'returns' if callable(found) else 'is'} {type(made).__name__}: it must be a dataset, "
            "a loader, or a function without arguments that returns one."
        )
    return made


def dataset(text: str) -> Any:
    """As `load`, but of a loader its dataset."""
    found = load(text)
    return found.dataset if isinstance(found, DataLoader) else found


def _split(text: str) -> tuple[str, str]:
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        return text, DEFAULT_NAME
    return file, name


def _call(function: Any, what: str) -> Any:
    """What a function without arguments returns; anything else as it is."""
    if not callable(function):
        return function
    try:
        inspect.signature(function).bind()
    except TypeError:
        raise PipelineError(f"{what} needs arguments: give the name of a function that needs none.") from None
    except ValueError:
        pass  # a built-in without a signature
    return function()


def _module(file: str) -> ModuleType:
    if not file.endswith(".py") and os.sep not in file:
        sys.path.insert(0, os.getcwd())
        return _import(file, lambda: importlib.import_module(file))
    if not os.path.isfile(file):
        raise PipelineError(f"There is no file {file}. Name a pipeline as FILE.py:NAME or package.module:NAME.")
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    return _import(file, lambda: _run_file(file))


def _run_file(file: str) -> ModuleType:
    """A file as a module, under a name that no other module has."""
    stem = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(f"pipeline_file_{stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    cloudpickle.register_pickle_by_value(module)  # as with a script: workers do not run the file again
    spec.loader.exec_module(module)
    return module


def _import(file: str, load: Any) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as e:
        raise PipelineError(f"{_place(e, file)}: {format_error(e)}") from e


def _place(error: BaseException, file: str) -> str:
    """The last line of a traceback: its file, its number and its function."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_of_import(frame.filename)]
    if not frames:
        return file
    inner = frames[-1]
    return f"{inner.filename}, line {inner.lineno}" + ("" if inner.name == "<module>" else f", in {inner.name}")


def _is_of_import(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in (__file__, importlib.__file__)
