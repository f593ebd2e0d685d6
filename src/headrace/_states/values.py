"""What functions and sources depend on besides their code, as small numbers: arguments, attributes, files, elements.

A number is the same in every process and on every machine, and takes a bounded time: of long sequences and large arrays
some elements count. Paths count by their last name, so that data may be moved. What has no fixed form (open files,
models, objects of other packages) counts as `None`: a number never changes without a change of the user's.
"""

import argparse
import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import os
import re
import stat
import sys
import sysconfig
import types
import uuid
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace._ops.base import Op
from headrace._ops.source import Source, UserDataset
from headrace._ops.state_fields import number_of
from headrace.sources import files
from headrace.sources.arrays import ArrayDataSource
from headrace.sources.ranges import RangeDataSource

MOST_SAMPLED = 64  # elements of a sequence, and files whose bytes are read
MOST_SIZES = 4096  # files whose size is asked for
MOST_VISITED = 4096  # values inside one value
MOST_DEPTH = 6
GLOBAL = "global "  # before the name of a variable of a module
LONGEST = 1 << 16  # characters or bytes that all count
SAMPLE_BYTES = 4096  # at both ends of a file

_FIXED = (bool, int, float, complex, str, bytes, tuple, frozenset)
_CONTAINERS = (list, dict, set, bytearray)
_WITH_REPR = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID)
_METHODS = ("map", "filter", "random_map", "map_with_index", "flat_map", "__call__", "__getitem__")
_PATHS = tuple(f"{sign}{name}" for name in ("paths", "path", "files", "file", "filenames") for sign in ("", "_"))


# ---------------------------------------------------------------------------------------------- functions


def name_of(function: Any) -> str:
    """The name of a function, or of the class of an object that acts as one."""
    function = _innermost(function)
    return getattr(function, "__name__", None) or type(function).__name__


def _innermost(function: Any) -> Any:
    """The function that partials and wrappers written in C, such as caches and compiled functions, call."""
    for _ in range(MOST_DEPTH):
        if isinstance(function, functools.partial):
            function = function.func
        elif (wrapped := _wrapped(function)) is not None:
            function = wrapped
    return function


def _wrapped(function: Any) -> Any:
    """The function that an object wraps which is no function of Python itself."""
    if isinstance(function, np.vectorize):
        return function.pyfunc
    if isinstance(function, types.FunctionType | types.MethodType | type) or not is_installed(
        type(function).__module__
    ):
        return None
    wrapped = getattr(function, "__wrapped__", None)
    return wrapped if callable(wrapped) else None


def code_of(function: Any) -> types.CodeType | None:
    """The code that a call of a function runs, where it is known."""
    function = _innermost(function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is not None or isinstance(function, type):
        return code
    codes = (getattr(getattr(function, name, None), "__code__", None) for name in _METHODS)
    return next(filter(None, codes), None)


def instructions_of(code: types.CodeType | None) -> int:
    """A number for what a function does, whatever constants it has, and whatever file and line it is in."""
    if code is None:
        return 0
    parts = [code.co_code, repr((sys.hexversion >> 16, code.co_names)).encode()]
    parts += [instructions_of(each).to_bytes(4, "big") for each in _codes_in(code)]
    return zlib.crc32(b"\0".join(parts)) % (1 << 31)


def constants_of(function: Any) -> Any:
    """The constants in a function's code, without its docstring and those of functions inside it."""
    code = code_of(function)
    return None if code is None else _constants(code)


def _constants(code: types.CodeType) -> list[Any]:
    """The constants that the code loads: the first may be a docstring, which is not loaded."""
    own = [each for each in code.co_consts if each is not None and not isinstance(each, types.CodeType)]
    if own and isinstance(code.co_consts[0], str) and not code.co_name.startswith("<"):
        own = own[1:]
    return [*own, *(_constants(each) for each in _codes_in(code))]


def _codes_in(code: types.CodeType) -> list[types.CodeType]:
    return [each for each in code.co_consts if isinstance(each, types.CodeType)]


def values_of(function: Any) -> dict[str, Any]:
    """What a function's results depend on besides its code, by name: variables around it, defaults and attributes."""
    if isinstance(function, functools.partial):
        given = {f"argument {i}": value for i, value in enumerate(function.args)}
        return values_of(function.func) | given | function.keywords
    if (wrapped := _wrapped(function)) is not None:
        return values_of(wrapped)
    if isinstance(function, types.MethodType):
        return values_of(function.__func__) | attributes_of(function.__self__)
    if isinstance(function, types.FunctionType):
        return _values_of_function(function)
    return {} if isinstance(function, type) or not _has_known_form(type(function)) else attributes_of(function)


def _values_of_function(function: types.FunctionType) -> dict[str, Any]:
    code, found = function.__code__, _globals_of(function)
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    found |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _globals_of(function: types.FunctionType) -> dict[str, Any]:
    """The constants of a function's module and the user's functions that it uses.

    Names in lower case may be variables, which change while the program runs: these count as what only warns.
    """
    found: dict[str, Any] = {}
    for name in _names_of_globals(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, _FIXED):
            found[name if name.isupper() else f"{GLOBAL}{name}"] = value
        elif (isinstance(value, np.ndarray) and name.isupper()) or (
            _is_users_function(value) and value is not function
        ):
            found[name] = value
    return found


def _is_users_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not is_installed(value.__module__)


@functools.cache
def _names_of_globals(code: types.CodeType) -> tuple[str, ...]:
    """The global names that some code and the functions inside it read."""
    import dis  # hardly ever needed

    own = [each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return tuple(dict.fromkeys([*own, *(name for inner in _codes_in(code) for name in _names_of_globals(inner))]))


def attributes_of(thing: Any) -> dict[str, Any]:
    """The attributes of an object and the constants of its class, without what may be computed while it is used."""
    kind = type(thing)
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if not is_installed(base.__module__):
            constants = ((n, v) for n, v in vars(base).items() if not n.startswith("__") and isinstance(v, _FIXED))
            found |= {name: value for name, value in constants if name != "_abc_impl"}
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                found[name] = getattr(thing, name)
    for name, value in getattr(thing, "__dict__", {}).items():
        is_cache = isinstance(getattr(kind, name, None), functools.cached_property)
        if not is_cache and not (name.startswith("_") and isinstance(value, _CONTAINERS)):
            found[name] = value
    return found


@functools.cache
def is_installed(module: str | None) -> bool:
    """Whether a module is part of Python or of an installed package, rather than the user's code."""
    if module is None or module == "__main__":
        return False
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if top == "headrace" or top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return True
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    return file is not None and any(file.startswith(os.path.join(folder, "")) for folder in folders if folder)


def _has_known_form(kind: type) -> bool:
    """Whether the attributes of a class's objects are arguments: the package's own, and the user's."""
    return kind.__module__.partition(".")[0] == "headrace" or not is_installed(kind.__module__)


# ----------------------------------------------------------------------------------------------- numbers


def kept(value: Any) -> Any:
    """A value, or the number of one that may change while it is used."""
    return (
        value
        if value is None or isinstance(value, _FIXED)
        else Numbers(number(value), number(value, counts_code=False))
    )


class Numbers(NamedTuple):
    """The numbers of a value, with the code of functions in it and without."""

    with_code: int
    without_code: int


def number(value: Any, *, counts_code: bool = True) -> int:
    """A value as a number; without `counts_code`, functions in it count by what they depend on only."""
    if isinstance(value, Numbers):
        return value.with_code if counts_code else value.without_code
    if value is None or isinstance(value, bool | int | float):
        return number_of(value)
    return zlib.crc32(_Form(counts_code).of(value).encode(errors="surrogatepass")) % (1 << 31)


class _Form:
    """Values as text, up to a number of values inside them."""

    def __init__(self, counts_code: bool):
        self._counts_code, self._left = counts_code, MOST_VISITED

    def of(self, value: Any, depth: int = 0) -> str:
        self._left -= 1
        if depth > MOST_DEPTH or self._left < 0:
            return "…"
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, bool | int | float | complex):
            return repr(value)
        if isinstance(value, str | os.PathLike):
            return _text(value)
        if isinstance(value, bytes | bytearray):
            return _bytes(bytes(value))
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{value.shape}{self._sample(value, depth)}"
        if isinstance(value, range | np.dtype):
            return repr(value)
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}{len(value)}{self.each(sampled(value), depth)}"
        if isinstance(value, types.SimpleNamespace | argparse.Namespace):
            value = vars(value)
        if isinstance(value, Mapping | set | frozenset):
            return self._unordered(value, depth)
        if isinstance(value, deque | array):
            return f"{type(value).__name__}{self.each(sampled(value), depth)}"
        if isinstance(value, _WITH_REPR):
            return repr(value)
        if isinstance(value, re.Pattern):
            return f"{value.pattern!r} {value.flags}"
        return self._thing(value, depth)

    def each(self, values: Iterable[Any], depth: int) -> str:
        return f"[{','.join(self.of(value, depth + 1) for value in values)}]"

    def _sample(self, array: np.ndarray, depth: int) -> str:
        if array.dtype.hasobject:
            return self.each(sampled(array.reshape(-1).tolist()), depth)
        if array.nbytes <= LONGEST or not array.ndim:
            return str(zlib.crc32(np.ascontiguousarray(array).tobytes()))
        rows = array[_places(len(array))]
        return str(zlib.crc32(rows.reshape(-1)[_places(rows.size, LONGEST // 8)].tobytes()))

    def _unordered(self, value: Any, depth: int) -> str:
        if len(value) > MOST_VISITED:
            return f"{type(value).__name__}{len(value)}"
        items = value.items() if isinstance(value, Mapping) else value
        return f"{type(value).__name__}[{','.join(sorted(self.of(item, depth + 1) for item in items))}]"

    def _thing(self, value: Any, depth: int) -> str:
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return value.__name__
        is_function = (
            isinstance(value, types.FunctionType | types.MethodType | functools.partial) or _wrapped(value) is not None
        )
        if isinstance(value, Op) or isinstance(getattr(value, "_op", None), Op):
            return "None"
        if not is_function and not _has_known_form(type(value)):
            return "None"  # it may be made when it is first needed
        values = values_of(value)
        code = code_of(value) if self._counts_code else None
        constants = constants_of(value) if is_function or self._counts_code else None
        inner = self.each([constants, *(part for name in sorted(values) for part in (name, values[name]))], depth)
        return f"{'function' if is_function else type(value).__name__} {instructions_of(code)} {inner}"


def _text(value: Any) -> str:
    text = os.fspath(value)
    if isinstance(text, bytes):
        return _bytes(text)
    if isinstance(value, os.PathLike) or (text.startswith("/") and "\n" not in text) or files.is_remote(text):
        text = text.rstrip("/").rpartition("/")[2]
    return repr(text) if len(text) <= LONGEST else f"{len(text)} {text[:SAMPLE_BYTES]} {text[-SAMPLE_BYTES:]}"


def _bytes(value: bytes) -> str:
    ends = value if len(value) <= LONGEST else value[:SAMPLE_BYTES] + value[-SAMPLE_BYTES:]
    return f"bytes{len(value)} {zlib.crc32(ends)}"


def _places(length: int, most: int = MOST_SAMPLED) -> np.ndarray:
    """Evenly spaced places, with the first and the last."""
    return (
        np.unique(np.linspace(0, length - 1, min(length, most)).astype(np.int64)) if length else np.zeros(0, np.int64)
    )


def sampled(values: Sequence[Any], most: int = MOST_SAMPLED) -> list[Any]:
    """Some of the elements, evenly spaced."""
    return list(values) if len(values) <= most else [values[i] for i in _places(len(values), most).tolist()]


# ----------------------------------------------------------------------------------------------- sources


def identity_of_source(op: Source | UserDataset) -> dict[str, int]:
    """Which elements a source has: the bounds of a range, and its files by names, sizes and bytes at their ends."""
    key = "_known_identity_of_source"
    if key not in op.__dict__:
        thing = op.source if isinstance(op, Source) else op.dataset
        bounds = getattr(thing, "range", None)
        if isinstance(bounds, range):
            found = {"start": number_of(bounds.start)} | ({} if bounds.step == 1 else {"step": number_of(bounds.step)})
        else:
            found = _identity_of_files(paths_of(thing))
        op.__dict__[key] = found
    return op.__dict__[key]


def paths_of(source: Any) -> list[str]:
    """The files that a source reads, in order, if its attributes say which; also those of a source inside it."""
    for _ in range(MOST_DEPTH):
        for name in _PATHS:
            found = getattr(source, name, None)
            found = list(found.values()) if isinstance(found, dict) else found
            found = found if isinstance(found, list | tuple) else [found]
            if found and all(isinstance(path, str | os.PathLike) for path in found):
                return [os.fsdecode(path) for path in found if path is not None]
        source = getattr(source, "_source", None)
        if source is None:
            break
    return []


def _identity_of_files(paths: list[str]) -> dict[str, int]:
    if not paths or (len(paths) == 1 and not files.is_remote(paths[0]) and not os.path.isfile(paths[0])):
        return {}  # a folder, or what is no path
    found = {"files": number_of("\n".join(_text_of_path(path) for path in paths))}
    local = [path for path in paths if not files.is_remote(path)]  # asking servers would take too long
    with contextlib.suppress(OSError, ValueError):
        found["sizes"] = number_of([os.stat(path).st_size for path in sampled(local, MOST_SIZES)])
        found["contents"] = number_of([_ends_of(path) for path in sampled(local)])
    return found


def _text_of_path(path: str) -> str:
    return files.name_of(path.rstrip("/"))


def _ends_of(path: str) -> int:
    """A number for the first and last bytes of a file."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        return 0
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return zlib.crc32(os.pread(fd, SAMPLE_BYTES, 0) + os.pread(fd, SAMPLE_BYTES, max(0, size - SAMPLE_BYTES)))
    finally:
        os.close(fd)


def values_of_source(op: Source | UserDataset) -> dict[str, Any]:
    """What else the elements of a source depend on: those in memory themselves, and attributes of a user's class."""
    thing = op.source if isinstance(op, Source) else op.dataset
    if isinstance(thing, RangeDataSource):
        return {}
    if isinstance(thing, list | tuple):
        return {"elements": thing}
    if paths_of(thing):
        return {}
    if isinstance(thing, ArrayDataSource):
        return {"elements": thing._arrays}
    if is_installed(type(thing).__module__):
        return {name: value for name, value in vars(thing).items() if name == "_factory"} if _is_ours(thing) else {}
    return {name: value for name, value in attributes_of(thing).items() if name not in ("_parents", "_op")}


def _is_ours(thing: Any) -> bool:
    return type(thing).__module__.startswith("headrace.") and hasattr(thing, "__dict__")
