"""The errors that Headrace raises.

    HeadraceError
    ├── PipelineError (ValueError)     an operation has arguments that make no sense
    │   └── SeedError (TypeError)      a seed is not an int
    ├── StateError (ValueError)        a state does not fit the pipeline
    │   ├── NextIndexError (IndexError)     the state is past the end of the data
    │   └── NoNextIndexError (NotImplementedError)   the number of outputs does not determine the position
    ├── StructureError (ValueError)    elements cannot be stacked into one batch
    ├── DataError (ValueError)         stored data is damaged, or not what it should be
    │   └── DataMemoryError (MemoryError)   stored data that does not fit into memory
    ├── DiskFullError (OSError)        a file could not be written for lack of space
    ├── RemoteError (OSError)          a file behind an address could not be read
    ├── SpecError (ValueError)         an element spec cannot be known without reading data
    ├── FilterError (ValueError)       a filter dropped more than the pipeline allows
    ├── BadRecordsError (ValueError)   more records were bad than the pipeline allows
    ├── ElementTimeout (TimeoutError)  a worker took too long for one element
    ├── ClosedError (ValueError)       an iterator was used after `close()`
    ├── WorkerError (RuntimeError)     a worker process failed, or could not be given its work
    │   ├── UnpicklableError (ValueError)   something cannot be sent to worker processes
    │   └── SharedMemoryFull (MemoryError)   too little shared memory for the results of workers
    └── MissingDependency (ImportError)

Errors in users' functions are raised unchanged, with a note that names the operation and the element. No error of
Headrace shows the login or the query of an address, or a password: neither in its text nor in that of its causes.
"""

import contextlib
import errno
import importlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from types import FrameType, ModuleType, TracebackType
from typing import Any

from headrace.errors.addresses import redacted

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FROM_WORKER = "__headrace_from_worker__"  # a global of frames that stand for those of a worker process


class HeadraceError(Exception):
    """Any error that Headrace raises.

    >>> issubclass(PipelineError, HeadraceError), issubclass(PipelineError, ValueError)
    (True, True)
    """

    def __init__(self, *args: Any):
        super().__init__(*(redacted(one) if isinstance(one, str) else one for one in args))

    def add_note(self, note: str) -> None:
        super().add_note(redacted(note))


class PipelineError(HeadraceError, ValueError):
    """An operation has arguments that make no sense.

    >>> MapDataset.range(3).batch(0)
    Traceback (most recent call last):
        ...
    headrace.errors.PipelineError: batch_size must be a positive int; got 0.
    """


class SeedError(PipelineError, TypeError):
    """A seed that is not an int.

    >>> issubclass(SeedError, TypeError)
    True
    """


class StateError(HeadraceError, ValueError):
    """A state does not fit the pipeline.

    >>> state = iter(MapDataset.range(4).shuffle(seed=1)).get_state()
    >>> try:
    ...     iter(MapDataset.range(4).shuffle(seed=2)).set_state(state)
    ... except StateError as error:
    ...     print(str(error).partition(" (saved")[0])
    The state was saved with another pipeline, so resuming would lose or repeat elements: shuffle seed 1 → 2
    """


class NextIndexError(StateError, IndexError):
    """A state or a next index that is past the end of the data, or negative.

    >>> iter(MapDataset.range(4)).set_state({"next_index": 9})
    Traceback (most recent call last):
        ...
    headrace.errors.NextIndexError: The state says next_index=9, and the dataset has 4 elements: ...
    """


class NoNextIndexError(StateError, NotImplementedError):
    """The number of outputs of a pipeline does not determine its position in the data.

    >>> issubclass(NoNextIndexError, NotImplementedError)
    True
    """


class MissingLanesError(StateError):
    """A state lacks lanes that this process needs: they are in the states of other processes.

    `headrace.checkpoint.merge` makes one state of those of all processes.

    >>> issubclass(MissingLanesError, StateError)
    True
    """


class StructureError(HeadraceError, ValueError):
    """Elements cannot be stacked into one batch.

    >>> try:
    ...     list(MapDataset.source([np.ones(2), np.ones(3)]).batch(2))
    ... except StructureError as error:
    ...     print(str(error).partition(". ")[0])
    A batch needs elements of the same structure and shape: element 0 of the batch has shape (2,), element 1 has (3,)
    """


class DataError(HeadraceError, ValueError):
    """Stored data is damaged, or not what it should be; the message has the path, the record and the offset.

    >>> from headrace.sources import JsonLinesDataSource
    >>> _ = (folder / "a.jsonl").write_text("{")
    >>> try:
    ...     JsonLinesDataSource(folder / "a.jsonl")[0]
    ... except DataError as error:
    ...     print("a.jsonl" in str(error))
    True
    """


class DataMemoryError(DataError, MemoryError):
    """Stored data does not fit into memory; the message has the path.

    >>> issubclass(DataMemoryError, MemoryError)
    True
    """


class DiskFullError(HeadraceError, OSError):
    """A file could not be written: the disk is full, a quota used up, or the file too large; the message has the path.

    >>> issubclass(DiskFullError, OSError)
    True
    """


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def translate_full_disk(path: str, todo: str) -> Iterator[None]:
    """Turns the error of a full disk into one that names what was written and suggests what to do."""
    try:
        yield
    except (OSError, RuntimeError) as e:
        why = None if isinstance(e, HeadraceError) else _why_full(e)
        if why is None:
            raise
        raise DiskFullError(f"{path} could not be written: {why}. {todo}") from e


def _why_full(error: OSError | RuntimeError) -> str | None:
    """Why nothing more can be written; `None` if an error is another. ArrayRecord's has no number, only a text."""
    if isinstance(error, OSError):
        return error.strerror if error.errno in _FULL else None
    return next((text for text in map(os.strerror, _FULL) if text in str(error)), None)


class RemoteError(HeadraceError, OSError):
    """A file behind an address could not be read; the message has the address and what failed.

    >>> issubclass(RemoteError, OSError)
    True
    """


class SpecError(HeadraceError, ValueError):
    """The shapes and dtypes of elements cannot be known without reading data.

    >>> try:
    ...     MapDataset.range(3).map(str).element_spec
    ... except SpecError as error:
    ...     print(str(error).partition(". ")[0])
    The element spec after map(str) cannot be known without reading data
    """


class FilterError(HeadraceError, ValueError):
    """A filter dropped more than the pipeline's options allow.

    >>> from headrace import DatasetOptions
    >>> ds = MapDataset.range(10_000).with_options(DatasetOptions(filter_raise_threshold_ratio=0.9))
    >>> try:
    ...     list(ds.filter(lambda x: x == 0).to_iter_dataset())
    ... except FilterError as error:
    ...     print(type(error).__name__)
    FilterError
    """


class BadRecordsError(HeadraceError, ValueError):
    """More records were bad than `on_error` allows; `records` lists the last ones.

    >>> ds = MapDataset.source(["1", "x", "3"]).map(int).on_error("skip", max_errors=0)
    >>> try:
    ...     list(ds)
    ... except BadRecordsError as error:
    ...     print(error.records[0].index, error.records[0].error)
    1 ValueError: invalid literal for int() with base 10: 'x'
    """

    records: "list[BadRecord]"


class ElementTimeout(HeadraceError, TimeoutError):
    """A function or a read took longer than `timeout_s`, and its worker process was ended.

    >>> issubclass(ElementTimeout, TimeoutError)
    True
    """

    key: str  # of the call: see `Guard`; empty if it is not for one element


class ClosedError(HeadraceError, ValueError):
    """An iterator was used after `close()`.

    >>> iterator = iter(MapDataset.range(3))
    >>> iterator.close()
    >>> next(iterator)
    Traceback (most recent call last):
        ...
    headrace.errors.ClosedError: This iterator is closed; make a new one.
    """


class WorkerError(HeadraceError, RuntimeError):
    """A worker process failed, or could not be given its work.

    >>> issubclass(WorkerError, RuntimeError)
    True
    """


class UnpicklableError(WorkerError, ValueError):
    """Something in the pipeline cannot be sent to worker processes.

    >>> issubclass(UnpicklableError, ValueError)
    True
    """


class SharedMemoryFull(WorkerError, MemoryError):
    """There is too little shared memory for the results of workers.

    >>> issubclass(SharedMemoryFull, WorkerError), issubclass(SharedMemoryFull, MemoryError)
    (True, True)
    """


RingMemoryError = SharedMemoryFull  # its first name


class Quoted(Exception):
    """The text of a library's error without secrets, as a cause in its place."""


class MissingDependency(HeadraceError, ImportError):
    """An optional dependency is not installed; the message has the command that installs it.

    >>> issubclass(MissingDependency, ImportError)
    True
    """


class CacheWarning(UserWarning):
    """A cache on disk is not used, since other users may have written it.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", CacheWarning)  # raises it, instead
    """


class StateWarning(UserWarning):
    """A state was saved with a slightly different pipeline.

    >>> import warnings
    >>> state = iter(MapDataset.range(4).shuffle(seed=1)).get_state()
    >>> with warnings.catch_warnings(record=True) as seen:
    ...     warnings.simplefilter("always")
    ...     iter(MapDataset.range(4).shuffle(seed=2)).set_state(state, strict=False)
    >>> [warning.category.__name__ for warning in seen]
    ['StateWarning']
    """


@dataclass(frozen=True)
class BadRecord:
    """A record that the pipeline skipped or replaced because of an error.

    >>> def replace(bad):
    ...     return -bad.index
    >>> list(MapDataset.source(["1", "x", "3"]).map(int).on_error(replace))
    [1, -1, 3]

    Attributes:
        operation: The operation that failed.
        error: The type of the error and its text.
        source: The source that the record is from, if it is known.
        file: The file that the record is from, where the source knows.
        index: The record's index in the source; several, for an operation on batches.
        epoch: The epoch in which it failed, from 0 on.
        element: The index of the element in the operation's input, and after a `flat_map` of a stream the child;
            in a stream without indices, its position.
        site: The line of code that built the operation.
        replaced: Whether a handler replaced what the operation would have returned.
        exception: The error itself, for a handler.
    """

    operation: str
    error: str
    source: str | None = None
    file: str | None = None
    index: int | list[int] | None = None
    epoch: int | None = None
    element: int | str | None = None
    site: str = ""
    replaced: bool = False
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, without `exception`."""
        return {name: value for name, value in asdict(self.without_exception()).items() if name != "exception"}

    def without_exception(self) -> "BadRecord":
        """The record with the text of its error only."""
        return BadRecord(**{**self.__dict__, "exception": None})

    @property
    def key(self) -> str:
        """What distinguishes it from other bad records, in this run and in one that resumes from a state."""
        return repr((self.source, self.file, self.index, self.epoch, self.element, self.error))

    def __str__(self) -> str:
        found = [self.file or self.source, None if self.index is None else f"record {self.index}"]
        return f"{', '.join(filter(None, found)) or f'element {self.element}'}: {self.error} in {self.operation}"

    def __reduce__(self):
        return BadRecord, tuple(self.without_exception().__dict__.values())


_PACKAGES = {"cv2": "opencv-python-headless", "orbax": "orbax-checkpoint"}  # where the module has another name


def optional(module: str, *, extra: str) -> ModuleType:
    """Imports an optional dependency, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package = module.partition(".")[0]
        if not isinstance(e, ModuleNotFoundError) or (e.name or "").partition(".")[0] != package:
            raise MissingDependency(f"`{module}` is installed, but cannot be imported: {e}") from e
        name = f"`{module}` ({_PACKAGES[package]})" if package in _PACKAGES else f"`{module}`"
        raise MissingDependency(f"{name} is not installed. Install it with: {install_command(extra)}") from e


def install_command(extra: str) -> str:
    """The command that installs an extra for the copy of Headrace that runs: of a checkout, or of an index."""
    project = os.path.dirname(os.path.dirname(_PACKAGE))
    if os.path.basename(os.path.dirname(_PACKAGE)) == "src" and os.path.exists(os.path.join(project, "pyproject.toml")):
        return f"pip install -e {_quoted(f'{project}[{extra}]')}"
    return f"pip install {_quoted(_origin(extra) or f'headrace[{extra}]')}"


def _origin(extra: str) -> str | None:
    """Headrace with an extra, where it was installed from: a folder, a file or a repository; None for an index."""
    import json
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        found = json.loads(metadata.distribution("headrace").read_text("direct_url.json") or "null")
        url = found["url"]
        path = url2pathname(urlsplit(found["url"]).path)
        if url.startswith("file:") and not os.path.exists(path):
            return None  # it is gone
        if "dir_info" in found:
            return f"{path}[{extra}]"
        if "vcs_info" in found:
            vcs = found["vcs_info"]
            url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
        return f"headrace[{extra}] @ {url}"
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _quoted(requirement: str) -> str:
    return f'"{requirement}"' if os.name == "nt" else shlex.quote(requirement)


def available(module: str) -> Any:
    """An optional dependency that something else can stand in for; None if it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def without_secrets(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Returns the error; or, if its text or that of a cause shows a secret, a copy without it."""
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    clean = None if below is None else without_secrets(below, secrets)
    text = format_error(error)
    if clean is below and redacted(text, secrets) == text:
        return error
    quoted = Quoted(redacted(text, secrets)).with_traceback(error.__traceback__)
    quoted.__cause__ = clean
    return quoted


def format_error(error: BaseException) -> str:
    """The type of an error and its text."""
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")
    except Exception as e:  # from its `__str__`
        return f"{type(error).__name__} (whose text cannot be shown: {type(e).__name__})"


def without_memory_addresses(text: str) -> str:
    """A text of an error as it would be in another run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def rebuild_error(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An error from its parts, without calling its `__init__`."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this package before the first one of the user or of a worker.

    An error of this package says in its message what is wrong and where, so it needs none of them. All frames stay
    where the environment has `HEADRACE_TRACEBACK=full`, and in errors that this package did not expect.
    """
    traceback, last = _user_part(error)
    if isinstance(error, KeyboardInterrupt):
        return traceback or last
    return traceback if traceback is not None or isinstance(error, HeadraceError) else error.__traceback__


def interrupt_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an exception from outside, such as Ctrl-C: of this package, the frame that it came to at most.

    That frame lets a pipeline around this one recognize that the exception came from outside.
    """
    traceback, last = _user_part(error)
    return traceback if isinstance(error, KeyboardInterrupt) and traceback is not None else last or traceback


def hide_internal_frames(error: BaseException) -> None:
    """Removes this package's frames from the traceback of an error that the user sees, and from those of its causes."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = user_traceback(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _user_part(error: BaseException) -> tuple[TracebackType | None, TracebackType | None]:
    """The traceback from the first frame that is not of this package on, and the last one of the package before it."""
    traceback = error.__traceback__
    last = None
    if os.environ.get("HEADRACE_TRACEBACK") != "full":
        while traceback is not None and _is_ours(traceback.tb_frame):
            traceback, last = traceback.tb_next, traceback
    return traceback, last


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE + os.sep) and FROM_WORKER not in frame.f_globals
