"""The plan in shared memory: all workers of all pools read the same copy, arrays included.

Workers map it privately, so none sees what another writes. An array that is a memory map of a file travels as
the path to the file.
"""

import functools
import io
import os
import types
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import cloudpickle
import numpy as np

from headrace.engine.workers.pickling import received_classes
from headrace.engine.workers.slots import Extent, Pickler, Slot, Writer, anonymous_file, read
from headrace.errors import UnpicklableError, WorkerError, notebooks
from headrace.errors.signals import let_through, suppress
from headrace.ops.op import Op, describe, parents_first
from headrace.options import DatasetOptions
from headrace.trees import adopt_nodes, jax_nodes


class SharedPlan:
    """A plan in shared memory, while any pool uses it: pipelines, the function that workers begin with, and options."""

    _fd = -1

    def __init__(
        self, pipelines: list[Op], init: Callable[[int, int], None] | None, options: DatasetOptions | None = None
    ):
        self.pipelines = pipelines
        self.init = init
        self.options = options or DatasetOptions()
        self.closed = False
        self._classes: set[type] = set()  # keep them alive: workers refer to them by cloudpickle's names for them
        self.users: set[int] = set()

    @functools.cached_property
    def fd(self) -> int:
        """The file descriptor of the plan."""
        self._fd = anonymous_file(1)
        return self._fd

    def give_up(self, user: int) -> None:
        """Removes a pool from the users; closes the plan after the last one."""
        self.users.discard(user)
        if not self.users:
            self.closed = True
            self._close()

    def _close(self, close: Callable[[int], None] = os.close) -> None:
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            close(fd)

    __del__ = _close

    @functools.cached_property
    def extent(self) -> Extent:
        """Where the plan is in the file; first use writes it."""
        value = (self.pipelines, self.init, self.options)
        try:
            return Writer(Slot(self.fd)).dump(
                (*value, _Nodes(), _NotebookCells()), partial(_PlanPickler, self._classes)
            )
        except WorkerError:
            raise
        except Exception as e:
            let_through(e)
            raise _unpicklable_error(self.pipelines, self.init, e) from e


def open_shared_plan(fd: int, extent: Extent) -> tuple[list[Op], Callable[[int, int], None] | None, DatasetOptions]:
    """Reads a shared plan in a worker."""
    return open_plan(Slot(fd, private=True).bytes(extent.total), extent)


def open_plan(memory: np.ndarray, extent: Extent) -> tuple[list[Op], Callable[[int, int], None] | None, DatasetOptions]:
    """Reads a plan from memory; its arrays are views of that."""
    pipelines, init, options, nodes, cells = read(memory, extent)
    adopt_nodes(nodes)
    notebooks.register_cells(cells)
    received_classes.update(cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)
    return pipelines, init, options


class _Nodes:
    """A placeholder for JAX's node types among the classes pickled before it."""


class _NotebookCells:
    """A placeholder for the cells of a notebook that have the functions pickled before it."""


class _PlanPickler(Pickler):
    """Pickles memory maps as their paths, and what workers must know of the classes and functions in a plan."""

    def __init__(self, classes: set[type], writer: Writer, stream: io.BytesIO):
        super().__init__(writer, stream)
        self._classes = classes
        self._files: set[str] = set()  # of functions

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            self._classes.add(obj)
        if isinstance(obj, types.FunctionType):
            self._files.add(obj.__code__.co_filename)
        if isinstance(obj, _NotebookCells):
            return dict, (notebooks.cells(self._files),)
        if isinstance(obj, _Nodes):
            return list, (jax_nodes(self._classes),)
        if hasattr(type(obj), "reduce_by_value"):  # the name of its memory is enough: this process keeps it alive
            return obj.__reduce__()
        if isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
            place = _place_in_file(obj)
            if place is not None:
                return _open_file, place
        return super().reducer_override(obj)


def _place_in_file(array: np.ndarray) -> tuple[Any, ...] | None:
    """The arguments of `_open_file` for an array that is part of a memory map; `None` if it cannot be found in one."""
    mapped: Any = array
    while isinstance(mapped, np.ndarray) and not (
        isinstance(mapped, np.memmap) and not isinstance(mapped.base, np.ndarray)
    ):
        mapped = mapped.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None or mapped.mode == "c":
        return None
    if not (array.flags.c_contiguous or array.flags.f_contiguous) or not array.size:
        return None
    offset = mapped.offset + array.ctypes.data - mapped.ctypes.data
    path = os.path.abspath(mapped.filename)
    if not _is_mapped_from(path, mapped.ctypes.data):
        return None
    order = "C" if array.flags.c_contiguous else "F"
    return type(array) is np.ndarray, path, array.dtype, mapped.mode, offset, array.shape, order


def _is_mapped_from(path: str, address: int) -> bool:
    """Whether the file at this path is still the one mapped at this address."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/self/maps") as f:
            for line in f:
                span, _, _, _, mapped_inode = line.split()[:5]
                start, end = (int(part, 16) for part in span.split("-"))
                if start <= address < end:
                    return int(mapped_inode) == inode
    except OSError as e:  # no such file, or not Linux
        let_through(e)
        return os.path.exists(path)
    return False


def _open_file(plain: bool, path: str, dtype: np.dtype, mode: str, *place: Any) -> np.ndarray:
    # Copy on write: a worker must not change the file.
    array = np.memmap(path, dtype, "r" if mode == "r" else "c", *place)
    return np.asarray(array) if plain else array


# ---------------------------------------------------------------------------------- what cannot be pickled


def _unpicklable_error(pipelines: list[Op], init: Any, error: Exception) -> UnpicklableError:
    where, what = find_culprit([("", pipeline) for pipeline in pipelines] + [("worker_init_fn", init)])
    return UnpicklableError(
        f"{where or 'The pipeline'} cannot be sent to worker processes: {describe(what)} of type "
        f"{type(what).__name__} cannot be pickled ({type(error).__name__}: {error}). Create it on first use or in "
        "`worker_init_fn`, drop it in `__getstate__`, or move the operation after `mp_prefetch`."
    )


def find_culprit(named: Iterable[tuple[str, Any]]) -> tuple[str, Any]:
    """The innermost object that cannot be pickled, and the path to it from one of the named objects."""
    return next((found for name, value in named if (found := _culprit(value, name, set(), 0))), ("", None))


def _culprit(value: Any, path: str, seen: set[int], depth: int) -> tuple[str, Any] | None:
    """The innermost object that cannot be pickled, and the path to it."""
    if depth > 12 or id(value) in seen or _can_be_pickled(value):
        return None
    seen.add(id(value))
    for name, child in _children(value):
        found = _culprit(child, f"{path}{name}", seen, depth + 1)
        if found is not None:
            return found
    return path or type(value).__name__, value


def _can_be_pickled(value: Any) -> bool:
    try:
        cloudpickle.Pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception as e:
        let_through(e)
        return False
    return True


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """The objects that an object contains, each with its part of the path."""
    if isinstance(value, Op):
        for op in parents_first(value, lambda _: True):
            where = f"{op.label()} (pipeline at {op.site})"
            yield from (
                (where, child) for name, child in op.__dict__.items() if name not in ("parent", "parts", "site")
            )
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", child) for i, child in enumerate(value[:1000]))
    else:
        state = getattr(value, "__dict__", {})
        with suppress(Exception):
            state = value.__getstate__() if isinstance(value.__getstate__(), dict) else state
        yield from ((f".{name}", child) for name, child in state.items())


def _held_by_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # a variable without a value yet
            yield f", its variable `{name}`", cell.cell_contents
    for name in code.co_names:
        if name in function.__globals__:
            yield f", the global `{name}`", function.__globals__[name]
    yield from ((", a default", child) for child in function.__defaults__ or ())
