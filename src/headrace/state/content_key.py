"""A digest of all that the elements of a pipeline depend on, as far as it can be known: it names a cache on disk.

It changes with operations and their arguments, with the code of functions and what that uses (arguments, attributes,
variables of the functions around it, global values and functions), and with the names, sizes and modification times of
files. It does not change with workers, threads, or the process. Of code in installed packages, the version counts.

A value's digest is made of the digests of what is in it. What has no fixed form is an error, and of what a function
finds in globals only its type counts then.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.errors import PipelineError
from headrace.errors.addresses import identity
from headrace.ops.buffer import MpPrefetch, Prefetch, ToStream
from headrace.ops.disk_cache import DiskCache
from headrace.ops.op import Op, parents_first
from headrace.ops.order import Options
from headrace.ops.source import UserDataset
from headrace.state.identity import bytes_of_code, is_installed, plain_function
from headrace.storage import files
from headrace.storage.sidecar import Index

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_PATHS = ("paths", "_paths", "path", "_path", "_connect")
_NOT_CONTENT = ("parent", "parts", "datasets", "kept", "site")
_MARKS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def content_key(op: Op) -> str:
    """The digest of a pipeline's elements."""
    return _Digests().of_pipeline(op).hex()


def named_key(version: str) -> str:
    """The digest of a text that stands for a pipeline."""
    return _hash("version", version.encode()).hex()


class _Unknown(Exception):
    """A value whose changes nobody can detect."""


class _Digests:
    """The digests of values, each made once."""

    def __init__(self):
        self._known: dict[int, bytes] = {}
        self._alive: list[Any] = []  # so that no other value can have the id of one of these
        self._open: dict[int, int] = {}  # what is being digested, by depth

    # ---- pipelines

    def of_pipeline(self, op: Op) -> bytes:
        made: dict[Op, bytes] = {}
        for each in parents_first(op, lambda _: True, _before):
            before = [made[parent] for parent in _before(each)]
            try:
                made[each] = _hash("op", *self._operation(each), *before) if before else self._source(each)
            except _Unknown as e:
                raise PipelineError(
                    f"`cache(path)` cannot detect whether {e} of {each.label()} (pipeline at {each.site}) changes. "
                    "Give it a `version`: a text that you change whenever the pipeline before it changes."
                ) from e
        return made[op]

    def _source(self, op: Op) -> bytes:
        return _hash("source", *self._operation(op))

    def _operation(self, op: Op) -> Iterable[bytes]:
        if isinstance(op, Prefetch | MpPrefetch):
            return []
        if isinstance(op, Options):
            policy = op.options.on_error
            return [] if policy.raises else [b"on_error", self.of(policy.action)]
        if isinstance(op, DiskCache):
            return [op.key.encode()]
        if isinstance(op, UserDataset):
            return [self._dataset(op.dataset)]
        left_out = (*_NOT_CONTENT, "read_options") if isinstance(op, ToStream) else _NOT_CONTENT
        names = [f.name for f in dataclasses.fields(op) if f.name not in left_out]
        return [_name_of(type(op)), *(self._digest_named(name, getattr(op, name)) for name in names)]

    def _dataset(self, dataset: Any) -> bytes:
        """A dataset of a user's class, or one of the package that reads files; its parents are digested apart."""
        own = {name: value for name, value in _lasting(dataset, vars(dataset)).items() if name != "_parents"}
        return _hash("dataset", self.of(type(dataset)), self.of(own), _files_of(dataset))

    def _digest_named(self, name: str, value: Any) -> bytes:
        try:
            return _hash(name, self.of(value))
        except _Unknown as e:
            raise _Unknown(f"{e} in `{name}`" if str(e) else f"`{name}`") from e

    # ---- values

    def of(self, value: Any) -> bytes:
        kind = type(value)
        if kind in _PLAIN:
            return _hash(kind.__name__, repr(value).encode(errors="surrogatepass"))
        number = id(value)
        if number in self._known:
            return self._known[number]
        if number in self._open:
            return _hash("again", str(len(self._open) - self._open[number]).encode())
        self._open[number] = len(self._open)
        try:
            made = self._new(value, kind)
        except RecursionError as e:
            raise _Unknown("a deep structure") from e
        finally:
            del self._open[number]
        self._known[number] = made
        self._alive.append(value)
        return made

    def _new(self, value: Any, kind: type) -> bytes:
        if kind is np.ndarray and not value.dtype.hasobject:
            return _hash("array", repr((value.dtype, value.shape)).encode(), _bytes_in(value))
        if kind in (list, tuple):
            return self._sequence(value, kind)
        if kind is dict:
            return _hash("dict", *(self.of(each) for pair in value.items() for each in pair))
        if kind in (set, frozenset):
            return _hash(kind.__name__, *sorted(map(self.of, value)))
        if isinstance(value, types.ModuleType):
            return _hash("module", value.__name__.encode(), _version_of(value.__name__))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CodeType):
            return _hash("code", bytes_of_code(value))
        if isinstance(value, types.MethodType):
            return _hash("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, Op):
            return self.of_pipeline(value)
        if isinstance(getattr(value, "_op", None), Op):  # a dataset
            return self.of_pipeline(value._op)
        if getattr(type(value), "is_volatile", False):  # what is open now, or how fast it was
            return b""
        if isinstance(value, Index):
            return _hash("index", self.of(value.path), repr(tuple(value.version)).encode())
        return self._object(value)

    def _sequence(self, value: Any, kind: type) -> bytes:
        if set(map(type, value)) <= _PLAIN:
            return _hash(kind.__name__, repr(value).encode(errors="surrogatepass"))
        return _hash(kind.__name__, *map(self.of, value))

    def _function(self, function: types.FunctionType) -> bytes:
        if is_installed(function.__module__):
            return _name_of(function)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        parts = [
            self._digest_named(name, cell) for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
        ]
        parts += [self.of(function.__defaults__), self.of(function.__kwdefaults__)]
        names = sorted(_names_in(function.__code__) & function.__globals__.keys())
        parts += [_hash(name, self._global(function.__globals__[name])) for name in names]
        return _hash("function", bytes_of_code(function.__code__), *parts)

    def _global(self, value: Any) -> bytes:
        """A global value that a function uses; of one that has no fixed form, only the type counts."""
        try:
            return self.of(value)
        except _Unknown:
            return _name_of(type(value))

    def _class(self, kind: type) -> bytes:
        if is_installed(kind.__module__):
            return _name_of(kind)
        own = {name: value for name, value in vars(kind).items() if not isinstance(value, _MARKS)}
        inner = [_hash(name, self._global(plain_function(value))) for name, value in sorted(own.items())]
        return _hash("class", _name_of(kind), *map(self.of, kind.__bases__), *inner)

    def _object(self, value: Any) -> bytes:
        """An object by what it would be pickled as, and the versions of its files."""
        fingerprint = getattr(value, "_fingerprint", None)  # of a dataset of Hugging Face
        if isinstance(fingerprint, str):
            return _hash("fingerprint", fingerprint.encode())
        if hasattr(value, "__array__"):
            return self._array_like(value)
        if isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is value:
            return _hash("ufunc", value.__name__.encode())
        inner = getattr(value, "__wrapped__", None)
        if callable(inner):  # compiled, or with a cache
            return _hash("wrapped", _name_of(type(value)), self.of(inner))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as e:
            raise _Unknown(f"a {type(value).__qualname__}") from e
        if isinstance(reduced, str):
            return _hash("name", _name_of(type(value)), reduced.encode())
        make, arguments, *rest = reduced
        state, items, pairs = (*rest[:3], None, None, None)[:3]
        content = [arguments, _lasting(value, state), list(items or ()), list(pairs or ())]
        return _hash("object", self.of(type(value)), self.of(make), *map(self.of, content), _files_of(value))

    def _array_like(self, value: Any) -> bytes:
        try:
            array = np.asarray(value)
        except Exception as e:
            raise _Unknown(f"a {type(value).__qualname__}") from e
        if array.dtype.hasobject:
            raise _Unknown(f"a {type(value).__qualname__} of objects")
        return _hash("array", _name_of(type(value)), repr((array.dtype, array.shape)).encode(), _bytes_in(array))


def _lasting(value: Any, state: Any) -> Any:
    """The attributes of an object without those that are computed when they are first needed."""
    if not isinstance(state, dict):
        return state
    is_lasting = lambda name: not isinstance(getattr(type(value), name, None), functools.cached_property)  # noqa: E731
    return {name: each for name, each in state.items() if not isinstance(name, str) or is_lasting(name)}


def _files_of(value: Any) -> bytes:
    """The versions of the files that an object reads, if its attributes name them."""
    found = []
    for name in _PATHS:
        paths = getattr(value, name, None)
        for path in paths if isinstance(paths, list | tuple) else [paths]:
            if isinstance(path, str | os.PathLike):
                path = path if isinstance(path, str) else os.fspath(path)
                with contextlib.suppress(OSError, ValueError, TypeError):
                    found.append(repr((identity(path), *files.fingerprint(path))).encode(errors="surrogatepass"))
    return _hash("files", *found)


def _hash(tag: str, *parts: Any) -> bytes:
    digest = hashlib.blake2b(tag.encode(errors="surrogatepass"), digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _bytes_in(array: np.ndarray) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""


def _before(op: Op) -> tuple[Op, ...]:
    """All operations that one has as arguments."""
    datasets = getattr(op, "datasets", None)
    return (*op.parents, datasets) if isinstance(datasets, Op) and datasets not in op.parents else tuple(op.parents)


def _name_of(value: Any) -> bytes:
    """The name of a class or function, and the version of the package that it is in."""
    module = getattr(value, "__module__", None) or ""
    name = f"{module}.{getattr(value, '__qualname__', repr(value))}"
    return _hash("name", name.encode(), _version_of(module))


@functools.cache
def _version_of(module: str) -> bytes:
    package = sys.modules.get(module.partition(".")[0])
    return str(getattr(package, "__version__", "")).encode()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _names_in(code: types.CodeType) -> set[str]:
    """The names that a function and those in it look up."""
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)
