"""What identifies a pipeline: what its functions and sources depend on, as small numbers, and comparisons of them.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import StateError
from headrace.ops.global_batch import GlobalBatch, has_rows
from headrace.ops.op import Op, describe, parents_first
from headrace.ops.source import Source, UserDataset
from headrace.ops.state_fields import number_of
from headrace.storage import files
from headrace.storage.memory import ArrayDataSource, RangeDataSource

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
        elif (wrapped := _unwrap(function)) is not None:
            function = wrapped
    return function


def _unwrap(function: Any) -> Any:
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
    if (wrapped := _unwrap(function)) is not None:
        return values_of(wrapped)
    if isinstance(function, types.MethodType):
        owner = function.__self__
        helpers = _helpers_of(owner if isinstance(owner, type) else type(owner), function)
        return values_of(function.__func__) | helpers | attributes_of(owner)
    if isinstance(function, types.FunctionType):
        return _values_of_function(function)
    if (owner := _owner(function)) is not None:
        return {"self": owner}
    if isinstance(function, type) or not _has_known_form(type(function)):
        return {}
    return _helpers_of(type(function), function) | attributes_of(function)


def _owner(function: Any) -> Any:
    """The object that has a function written in C as its method, such as a pattern or a set."""
    if not isinstance(function, types.BuiltinMethodType | types.MethodWrapperType):
        return None
    owner = function.__self__
    return None if isinstance(owner, types.ModuleType) else owner


def _helpers_of(kind: type, function: Any) -> dict[str, Any]:
    """The user's methods and properties of a class that a method of it uses, by itself or through others."""
    found: dict[str, Any] = {}
    own = code_of(function)
    ahead = [own] if own is not None else []
    while ahead:
        for name in _names_in(ahead.pop()):
            method = plain_function(next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None))
            if name not in found and _is_users_function(method) and method.__code__ is not own:
                found[name] = method
                ahead.append(method.__code__)
    return found


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    """The names that a function and those in it look up, in a fixed order."""
    return tuple(dict.fromkeys([*code.co_names, *(name for each in _codes_in(code) for name in _names_in(each))]))


def plain_function(value: Any) -> Any:
    """The function behind a method of a class, or a property."""
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _values_of_function(function: types.FunctionType) -> dict[str, Any]:
    code = function.__code__
    found = _globals_of(function)
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
        else ValueDigests(number(value), number(value, counts_code=False))
    )


class ValueDigests(NamedTuple):
    """The numbers of a value, with the code of functions in it and without."""

    with_code: int
    without_code: int


def number(value: Any, *, counts_code: bool = True) -> int:
    """A value as a number; without `counts_code`, functions in it count by what they depend on only."""
    if isinstance(value, ValueDigests):
        return value.with_code if counts_code else value.without_code
    if value is None or isinstance(value, bool | int | float):
        return number_of(value)
    return zlib.crc32(_Form(counts_code).of(value).encode(errors="surrogatepass")) % (1 << 31)


class _Form:
    """Values as text, up to a number of values inside them."""

    def __init__(self, counts_code: bool):
        self._counts_code = counts_code
        self._left = MOST_VISITED

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
        if (owner := _owner(value)) is not None:
            return f"{value.__name__} {self.of(owner, depth + 1)}"
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return value.__name__
        is_function = (
            isinstance(value, types.FunctionType | types.MethodType | functools.partial) or _unwrap(value) is not None
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
    """The files that a source reads, in order, if its attributes name them, including those of a source inside it."""
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
    return files.base_name(path.rstrip("/"))


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


# ----------------------------------------------------------------------------------------------------- fingerprint
# What a stream's order depends on: states have it, so that errors can say how another pipeline differs.
#
# A fingerprint has an entry for each operation that decides which elements come when, from the source on, such as `{"0
# source": {"length": 1000, "start": 0}, "1 shuffle": {"seed": 42}, ...}`. Its leaves are numbers, which hosts can
# gather. Files count by names, sizes and the bytes at their ends, and a function that decides which elements come, such
# as a filter's, by what it depends on besides its code. `form` is the form of all this: older states have none, and
# lack files, functions, the bounds of ranges, and the order of parts that only differ in functions.
#
# Functions are separate: if their code changes, or what only changes values, there is a warning that names them.


Entries = dict[str, dict[str, Any]]
Ordered = list[tuple[str, dict[str, Any]]]  # entries without their numbers
MOST_ENTRIES = 64  # of all parts together; if there are more, each part has one number
MOST_PARTS = 1000  # if there are more, they have one number together
MOST_SHOWN = 8  # numbers of an argument
MOST_FUNCTIONS = 16
MOST_VALUES = 32  # of all functions; if there are more, each function has one number
MOST_NAMES = 256  # of files that processes compare
FORM = 2
IN_ORDER = "order"
IN_ANY_ORDER = "any order"
STREAM_BEGINS = ("to_iter_dataset", "interleave")  # these and what comes before decide what an index means


def fingerprint(op: Op) -> dict[str, Any]:
    """The entries of a pipeline, with their form."""
    return {"form": FORM, **_fingerprint(op, FORM)}


def _fingerprint(op: Op, form: int) -> Entries:
    entries: Ordered = []
    for each in _chain(op):
        identity = each.identity()
        if identity is None:
            continue
        if each.name == STREAM_BEGINS[0]:
            _drop_last_repeat(entries)
        entry: dict[str, Any] = dict(_numbers(identity))
        if form == FORM:
            entry |= _further_numbers(each)
        parts = each.named_parts()
        if parts is not None:
            entry |= _describe(parts, form)
        entries.append((each.name, entry))
    if not op.is_stream:
        _drop_last_repeat(entries)
    return {f"{i} {name}": entry for i, (name, entry) in enumerate(entries)}


def _drop_last_repeat(entries: Ordered) -> None:
    """A `repeat` at the end changes no index; one in the middle does."""
    if entries and entries[-1] == ("repeat", {"reseed_each_epoch": 1}):
        entries.pop()


def _chain(op: Op) -> list[Op]:
    """The operations up to this one, from a source or from one with several parents."""
    chain = [op]
    while len(chain[-1].parents) == 1 and chain[-1].named_parts() is None:
        chain.append(chain[-1].parents[0])
    return chain[::-1]


def _further_numbers(op: Op) -> dict[str, int]:
    """What else decides which elements come: the files of a source, and the functions of a filter."""
    if isinstance(op, Source | UserDataset):
        return identity_of_source(op)
    found = {}
    for argument in op.order_functions:
        function, given = _given(op)[argument]
        if function is None:
            continue
        argument = "fn" if argument == "transform" else argument  # shorter
        name = name_of(function)
        code = code_of(function)
        if name != "<lambda>":
            found[f"{argument} name"] = number_of(name)
        found[f"{argument} code"] = 0 if code is None else instructions_of(code)
        given = {name: value for name, value in given.items() if not name.startswith(GLOBAL)}
        each = {"const": constants_of(function) or None, **given}
        numbers = {key: number(value, counts_code=False) for key, value in each.items() if value is not None}
        numbers = numbers if len(numbers) <= MOST_SHOWN else {"values": number_of(sorted(numbers.items()))}
        found |= {f"{argument}.{key}": number for key, number in numbers.items()}
    return found


def _given(op: Op) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The functions of an operation by argument, each with what it depends on when this is first asked."""
    key = "_known_given"
    if key not in op.__dict__:
        named = {name: op.__dict__[name] for name in _FUNCTIONS if name in op.__dict__}
        found = {name: (each, values_of(each)) for name, each in named.items()}
        if isinstance(op, Source | UserDataset):
            source = op.source if isinstance(op, Source) else op.dataset
            found["source"] = source, values_of_source(op)
        op.__dict__[key] = {
            name: (function, {key: kept(value) for key, value in given.items()})
            for name, (function, given) in found.items()
        }
    return op.__dict__[key]


def remember(op: Op) -> None:
    """Keeps what the functions of a pipeline depend on: attributes may change while they are called."""
    for each in parents_first(op, lambda each: "_known_given" not in each.__dict__):
        _given(each)


def _describe(parts: dict[str, Op], form: int) -> dict[str, Any]:
    found = {name: _fingerprint(part, form) for name, part in parts.items()}
    entry: dict[str, Any] = {}
    has_names = any(not name.isdecimal() for name in parts)
    in_order = sorted(parts) if has_names else list(parts)  # those with names may come in any order
    if form == FORM:
        wholly = [
            number_of(repr((name if has_names else "", found[name], functions(parts[name])))) for name in in_order
        ]
        entry = {IN_ORDER: number_of(wholly), IN_ANY_ORDER: number_of(sorted(wholly))}
    if sum(map(_num_entries, found.values())) <= MOST_ENTRIES:
        return entry | {"parts": found}
    digests = {name: _digest(entries) for name, entries in found.items()}
    return entry | {"parts": digests if len(digests) <= MOST_PARTS else {"all": number_of(repr(digests))}}


def _num_entries(part: Any) -> int:
    """The number of entries of a part, with those of its own parts."""
    if not isinstance(part, dict):  # its digest
        return 1
    return sum(1 + sum(map(_num_entries, entry.get("parts", {}).values())) for entry in part.values())


def _digest(part: Any) -> int:
    """One number for a part: it changes when the meaning of the part's indices does."""
    if not isinstance(part, dict):
        return part
    entries = _entries(part)
    return number_of(repr(_of_indices(entries) or entries))  # with random access, every entry counts


def _numbers(identity: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in identity.items():
        if isinstance(value, tuple) and len(value) <= MOST_SHOWN:
            yield from ((f"{name}[{i}]", number_of(each)) for i, each in enumerate(value))
        else:
            yield name, number_of(value)


# ------------------------------------------------------------------------------------------- comparing


def differences(op: Op, saved: Any, position: Any) -> list[str]:
    """The differences between this pipeline and that of a state at this position, if they change what comes.

    Whatever decides the meaning of an index counts, and whatever an open group is computed from. Later operations may
    differ.
    """
    form = saved.get("form") if isinstance(saved, dict) else None
    if form not in (None, FORM):
        raise StateError(
            f"The state describes its pipeline in form {form!r}, which this version does not know. It may "
            "be from a newer version of Headrace: upgrade to restore it."
        )
    entries = {key: entry for key, entry in saved.items() if key != "form"} if form else saved
    return _differences(op, entries, position, form or 1)


def _differences(op: Op, saved: Any, position: Any, form: int) -> list[str]:
    num_open, base, position = _open(op, position)
    own = _entries(_fingerprint(op, form))
    theirs = _entries(saved)
    if isinstance(base, GlobalBatch):  # with one number for all lanes, everything before it must be as it was
        own, theirs = (entries[: _place_of(base.name, entries) + 1] for entries in (own, theirs))
        return _all_differences(own, theirs)
    parts = base.named_parts()
    if parts is not None and base.is_stream and not num_open:
        return _differences_of_parts(base, parts, own, theirs, position, form)
    if not op.is_stream:
        counted = len(own)
        counted_there = len(theirs)
    else:
        counted, counted_there = (max(len(_of_source(entries)), num_open) for entries in (own, theirs))
    return _all_differences(own[:counted], theirs[:counted_there])


def _all_differences(own: Ordered, theirs: Ordered) -> list[str]:
    found = []
    for mine, other in zip_longest(own, theirs):
        found += _difference(other, mine)
        if mine is None or other is None or mine[0] != other[0]:
            break  # later entries are shifted
    return found


def _place_of(name: str, entries: Ordered) -> int:
    return next((i for i, entry in enumerate(entries) if entry[0] == name), len(entries))


def _open(op: Op, position: Any) -> tuple[int, Op, Any]:
    """The number of entries up to the last operation with an open group, and the first operation with its position."""
    num_open = 0
    while op.upstream is not None:
        if op.state_fields is not None:
            if not num_open and op.has_open_group(position[:-1]):
                num_open = len(_fingerprint(op, 1))
            position = position[-1]
        op = op.upstream
    return num_open, op, position


def _entries(fields: Any) -> Ordered:
    """The entries of a fingerprint in order, each with its operation's name."""
    try:
        numbered = [(int(key.split()[0]), key.split()[1], _as_now(dict(entry))) for key, entry in fields.items()]
    except (AttributeError, IndexError, TypeError, ValueError) as e:
        raise StateError(f"The state's description of its pipeline is damaged: {fields!r:.200}.") from e
    return [(name, entry) for _, name, entry in sorted(numbered, key=lambda each: each[0])]


def _as_now(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry in today's form: older ones have the weights of a mix instead of proportions."""
    weights = {name: value for name, value in entry.items() if name.startswith("weight[")}
    least = min(weights.values(), default=1)
    proportions = {name.replace("weight", "proportion"): int(value * 100 / least) for name, value in weights.items()}
    return {name: value for name, value in entry.items() if name not in weights} | proportions


def _of_indices(entries: Ordered) -> Ordered:
    """The entries that decide what an index means."""
    last = max((i for i, (name, _) in enumerate(entries) if name in STREAM_BEGINS), default=-1)
    return entries[: last + 1]


def _of_source(entries: Ordered) -> Ordered:
    """The entries that decide what an index means, or the place of a user-defined stream."""
    return _of_indices(entries) or [entry for entry in entries[:1] if entry[0] == "user_dataset"]


def _difference(saved: Any, own: Any) -> Iterator[str]:
    if saved is None or own is None or saved[0] != own[0]:
        left, right = ("nothing" if each is None else f"`{each[0]}`" for each in (saved, own))
        yield f"{left} → {right}"
        return
    (name, theirs), (_, mine) = saved, own
    if _is_reordered(theirs, mine):
        yield f"{name}: the same parts in another order"
        return
    for key in dict.fromkeys((*theirs, *mine)):
        left = theirs.get(key)
        right = mine.get(key)
        if left == right or not _decides(key, theirs, mine):
            continue
        if key in _OF_FILES:
            yield f"{name}: {_OF_FILES[key]}"
        elif key.endswith((" name", " code")):
            yield f"{name}: another {key.partition(' ')[0]}"
        elif isinstance(left, dict) and isinstance(right, dict):
            yield from _difference_of_dicts(f"{name}, part", left, right)
        else:
            yield f"{name} {key} {_shown(left)} → {_shown(right)}"


_OF_FILES = {
    "files": "other files, or in another order",
    "sizes": "files of the same names, with other sizes",
    "contents": "files of the same names and sizes, with other bytes",
}


def _is_reordered(saved: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether an operation has the same parts in another order."""
    return (
        IN_ORDER in saved
        and saved[IN_ORDER] != own.get(IN_ORDER)
        and saved.get(IN_ANY_ORDER) == own.get(IN_ANY_ORDER)
        and isinstance(own["parts"], dict)
    )


def _decides(key: str, saved: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether a number that differs means another order.

    A function of another name may be the same, and one of other code may do the same; with the same code, whatever it
    depends on counts. Files that cannot be read have no sizes.
    """
    if key in (IN_ORDER, IN_ANY_ORDER):
        return False
    if key in ("sizes", "contents"):
        return key in saved and key in own and saved.get("files") == own.get("files")
    argument, sign, _ = key.partition("." if "." in key else " ")
    code = f"{argument} code"
    if key == code:
        return code not in saved or code not in own
    if key == f"{argument} name":
        return code in saved and code in own and saved[code] != own[code]
    return not sign or saved.get(code) == own.get(code)


def _difference_of_dicts(where: str, theirs: dict[str, Any], mine: dict[str, Any]) -> Iterator[str]:
    for part in dict.fromkeys((*theirs, *mine)):
        if part not in theirs or part not in mine:
            yield f"{where} {part!r} {'is gone' if part in theirs else 'is new'}"
        elif not isinstance(theirs[part], dict) or not isinstance(mine[part], dict):
            if _digest(theirs[part]) != _digest(mine[part]):
                yield f"{where} {part!r}"
        else:
            for left, right in zip_longest(_entries(theirs[part]), _entries(mine[part])):
                yield from (f"{where} {part!r}: {text}" for text in _difference(left, right))


def _differences_of_parts(
    op: Op, parts: dict[str, Op], own: Ordered, theirs: Ordered, position: Any, form: int
) -> list[str]:
    """Differences between the parts of several streams: parts may come and go, but those that stay must be the same."""
    if not theirs or theirs[0][0] != own[0][0]:
        return []
    if _is_reordered(theirs[0][1], own[0][1]):
        return [f"{own[0][0]}: the same parts in another order"]
    saved = theirs[0][1].get("parts")
    mine = own[0][1]["parts"]
    positions = op.part_positions(position[-1])
    found = []
    if not isinstance(saved, dict):
        return found
    for name in mine:
        if name not in saved:
            continue
        if isinstance(saved[name], dict) and isinstance(mine[name], dict):
            inner = positions.get(name)
            opened = inner is not None
            texts = _differences(parts[name], saved[name], inner, form) if opened else _unopened(mine, saved, name)
            found += [f"part {name!r}: {text}" for text in texts]
        elif _digest(saved[name]) != _digest(mine[name]):
            found.append("the parts" if name == "all" else f"part {name!r}")
    return found


def _unopened(mine: dict[str, Any], saved: dict[str, Any], name: str) -> list[str]:
    pairs = zip_longest(_of_source(_entries(saved[name])), _of_source(_entries(mine[name])))
    return [text for left, right in pairs for text in _difference(left, right)]


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


# ----------------------------------------------------------------------------------------------- hosts


def of_all_hosts(op: Op) -> Any:
    """What must be the same in all processes of a program: all that decides the rows of global batches, or what comes
    before a shard; `None` if each process may have its own data.
    """
    entries = [(name, _same_entry(entry)) for name, entry in _entries(_fingerprint(op, FORM))]
    paths = [paths_of(getattr(each, "source", None)) for each in parents_first(op, lambda _: True)]
    names = [os.path.basename(path) for some in paths for path in some]
    description: dict[str, Any] = {"files": names if len(names) <= MOST_NAMES else []}
    if has_rows(op):
        return description | {"entries": entries}
    shard = next((i for i, (name, entry) in enumerate(entries) if name == "slice" and entry["step"] > 1), None)
    if shard is None:
        return None
    slice_ = entries[shard][1]
    return description | {"entries": entries[:shard], "shard": slice_["start"], "num_shards": slice_["step"]}


def _same_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry without functions, which may depend on the process."""
    of_function = lambda key: "." in key or key.endswith((" name", " code")) or key in (IN_ORDER, IN_ANY_ORDER)  # noqa: E731
    kept = {key: value for key, value in entry.items() if not of_function(key)}
    parts = kept.get("parts", {})
    each = {
        part: {k: _same_entry(v) for k, v in inner.items()} if isinstance(inner, dict) else inner
        for part, inner in parts.items()
    }
    return kept | ({"parts": each} if parts else {})


def difference_between(said: dict[int, Any]) -> str | None:
    """How the data of a process differs from that of most; `None` if it does not."""
    if len(said) < 2 or any(each is None for each in said.values()):
        return None
    shards = [each.get("shard") for each in said.values()]
    if shards[0] is not None:
        counts = {each.get("num_shards") for each in said.values()}
        if None in shards or counts != {len(said)} or len(set(shards)) < len(said):
            return None  # not the shards of these processes
    texts = {i: repr(each["entries"]) for i, each in said.items()}
    usual = max(texts.values(), key=list(texts.values()).count)
    first = next(i for i in said if texts[i] == usual)
    odd = next((i for i in said if texts[i] != usual), None)
    if odd is None:
        return None
    most, other = (said[i] for i in (first, odd))
    found = _all_differences([tuple(each) for each in other["entries"]], [tuple(each) for each in most["entries"]])
    lost, new = ([name for name in one if name not in two] for one, two in _pairs(most["files"], other["files"]))
    found += [f"process {odd} does not see {', '.join(lost[:MOST_SHOWN])}"] if lost else []
    found += [f"only process {odd} sees {', '.join(new[:MOST_SHOWN])}"] if new else []
    return f"{'; '.join(found)} (process {first} → process {odd})"


def _pairs(one: list[str], other: list[str]) -> list[tuple[list[str], list[str]]]:
    return [(one, other), (other, one)] if one and other else [([], [])] * 2


# ------------------------------------------------------------------------------------------- functions


def functions(op: Op) -> dict[str, int]:
    """A checksum of the code of each function in a pipeline, and of each value that it depends on.

    Elements in memory count as what a source depends on, and the functions of parts are among these.
    """
    found = _functions(op)
    codes = {name: number for name, number in found.items() if VALUE not in name}
    if len(codes) > MOST_FUNCTIONS:
        found = {"0 all functions": number_of(repr(codes)), f"0 all functions{VALUE}values": number_of(repr(found))}
    elif len(found) - len(codes) > MOST_VALUES:
        inner = {name: [found[key] for key in found if key.startswith(name + VALUE)] for name in codes}
        found = codes | {f"{name}{VALUE}values": number_of(each) for name, each in inner.items() if each}
    return {"python": sys.hexversion >> 16, **found}  # each version compiles to other byte code


VALUE = ": "  # between a function and what it depends on


def _functions(op: Op) -> dict[str, int]:
    found: dict[str, int] = {}
    for i, each in enumerate(_chain(op)):
        for function, given in _given(each).values():
            if function is not None and (callable(function) or given):
                name = f"{i} {name_of(function)}"
                code = code_of(function)
                found[name] = 0 if code is None else zlib.crc32(bytes_of_code(code)) % (1 << 31)
                found |= {f"{name}{VALUE}{key}": number(value) for key, value in given.items()}
        for part, inner in (each.named_parts() or {}).items():
            found |= {f"{i}/{part}/{name}": number for name, number in _functions(inner).items()}
    return found


def changed_functions(op: Op, saved: Any, *, form: Any = None) -> list[str]:
    """The functions of a pipeline that have changed since a state was saved, each with what has changed."""
    if not isinstance(saved, dict):
        return []
    own = functions(op)
    if form != FORM and not any(VALUE in name for name in saved) and _codes(own) != _codes(saved):
        own = _functions_before(op)
    if saved.get("python") != own["python"]:
        return []
    if _codes(own) != _codes(saved):
        return _replaced(_codes(own) - _codes(saved), _codes(saved) - _codes(own)) if form == FORM else []
    changed: dict[str, list[str]] = {}
    for key in own:
        if key in saved and own[key] != saved[key]:
            name, _, value = key.partition(VALUE)
            changed.setdefault(name, []).append(value or "its code")
    return [f"{_without_number(name)} ({', '.join(what)})" for name, what in changed.items()]


def _replaced(own: set[str], saved: set[str]) -> list[str]:
    """The functions that stand in place of others; none if operations were added or removed, which the user knows."""
    here, there = ({_place_in_pipeline(name): name for name in names} for names in (own, saved))
    if here.keys() != there.keys() or len(here) < max(len(own), len(saved)):
        return []
    return [f"{_without_number(name)} (it was {_without_number(there[place])})" for place, name in here.items()]


def _place_in_pipeline(name: str) -> str:
    parts, _, last = name.rpartition("/")
    return f"{parts}/{last.partition(' ')[0]}"


def _codes(numbers: dict[str, int]) -> set[str]:
    return {name for name in numbers if VALUE not in name}


def _without_number(name: str) -> str:
    *parts, last = name.split("/")
    where = "".join(f" of part {part!r}" for part in parts[1::2])
    return last.partition(" ")[2] + where


def _functions_before(op: Op) -> dict[str, int]:
    """The checksums as older states have them: only code, and not that of parts."""
    named: dict[str, int] = {"python": sys.hexversion >> 16}
    for i, each in enumerate(_chain(op)):
        function = next(filter(None, (getattr(each, name, None) for name in ("transform", "size", "weigh_by"))), None)
        if callable(function):
            code = code_of(function)
            number = 0 if code is None else zlib.crc32(bytes_of_code(code)) % (1 << 31)
            named[f"{i} {describe(function).split(' at ')[0]}"] = number
    if len(named) <= MOST_FUNCTIONS:
        return named
    return {"python": named["python"], "all functions": number_of(repr(named))}


_FUNCTIONS = ("transform", "size", "weigh_by", "batch_fn", "length_fn", "selection_map")  # arguments of operations


def bytes_of_code(code: types.CodeType) -> bytes:
    """What a function does, whatever file and line it is in."""
    return b"\0".join([code.co_code, *map(_bytes_of_constant, code.co_consts), repr(code.co_names).encode()])


def _bytes_of_constant(constant: Any) -> bytes:
    if isinstance(constant, types.CodeType):
        return bytes_of_code(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, constant))).encode()
    return repr(constant).encode()
