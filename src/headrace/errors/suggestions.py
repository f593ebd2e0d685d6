"""Suggests names for wrong ones: misspelled ones, and those of PyTorch, tf.data or Hugging Face."""

import functools
from collections.abc import Callable, Iterable
from itertools import islice
from types import FunctionType
from typing import Any, TypeVar

from headrace.errors.signals import trim_traceback

MOST_KEYS = 20  # in an error

C = TypeVar("C", bound=Callable[..., Any])
K = TypeVar("K")

_WORKERS = "`ds.mp_prefetch(n)`, after everything that the workers should compute", "`worker_count=n`"
_CHOSEN = (
    "`ds.map(lambda x: {name: x[name] for name in names})`",
    "`operations=[lambda x: {name: x[name] for name in names}]`",
)
_SHUFFLED = "`sampler=IndexSampler(len(source), shuffle=True, seed=0)`, or `load(source, shuffle=True, seed=0)`"
_BATCHES = "`ds.batch(n)`", "`operations=[Batch(n)]`, or `load(source, batch_size=n)`"
_TO_DEVICE = (
    "`prefetch_to_device(ds, device)` of `headrace.device.torch`, or `headrace.device_put(ds, device)` for JAX",
    "`prefetch_to_device(loader.dataset, device)` of `headrace.device.torch`, or `headrace.device_put` for JAX",
)
_KEPT = "nothing: workers stay until the iterator is closed, and later ones start fast"
_FUNCTION = "the function as first argument", "`operations=[function]`"
_TENSORS = (
    "nothing: elements are NumPy arrays, and `TorchDataset(ds)` of `headrace.device.torch` yields tensors",
    "nothing: elements are NumPy arrays, and `TorchDataset(loader)` of `headrace.device.torch` yields tensors",
)
# What other libraries call it: what to write in the call of a dataset's method, and in that of a loader.
_KEYWORDS = {
    "batch_size": _BATCHES,
    "buffer_size": (
        "`ds.shuffle(seed=0)` for a whole MapDataset, `ds.shuffle(n, seed=0)` for a buffered shuffle of a "
        "stream, or `ds.prefetch(n)` to read ahead",
        "`worker_buffer_size=n`",
    ),
    "collate_fn": ("`ds.batch(n, batch_fn=function)`", "`operations=[Batch(n, batch_fn=function)]`"),
    "count": ("the number as first argument, `ds.repeat(n)`", "`sampler=IndexSampler(..., num_epochs=n)`"),
    "dataset": ("the dataset itself, which can be iterated: `for batch in ds.batch(n)`", "`data_source=`"),
    "drop_last": (
        "`drop_remainder=` of `batch`",
        "`operations=[Batch(n, drop_remainder=True)]`, or `load(source, batch_size=n, drop_remainder=True)`",
    ),
    "filename": ("the path as first argument, `ds.cache(path)`", "`data_source=MapDataset.source(source).cache(path)`"),
    "function": _FUNCTION,
    "generator": ("`seed=`, an int", _SHUFFLED),
    "input_columns": _CHOSEN,
    "map_func": _FUNCTION,
    "num_parallel_calls": _WORKERS,
    "num_proc": _WORKERS,
    "num_workers": _WORKERS,
    "persistent_workers": (_KEPT, _KEPT),
    "pin_memory": _TO_DEVICE,
    "predicate": _FUNCTION,
    "probabilities": ("`weights=`", "a source: `IterDataset.mix(datasets, weights=...)`"),
    "prefetch_factor": (
        "`ds.mp_prefetch(MultiprocessingOptions(num_workers=n, per_worker_buffer_size=k))`",
        "`worker_buffer_size=n`",
    ),
    "remove_columns": _CHOSEN,
    "reshuffle_each_iteration": (
        "`ds.shuffle(seed=0).repeat()`, which reshuffles every epoch",
        "`sampler=IndexSampler(..., num_epochs=n)`",
    ),
    "shuffle": ("`ds.shuffle(seed=0)`", _SHUFFLED),
    "with_indices": ("`ds.map_with_index(lambda i, x: ...)`", "`operations=[...]` with a `MapWithIndex`"),
}
_ATTRIBUTES = {
    "as_numpy_iterator": ("`iter(ds)`: elements are NumPy arrays", "`iter(loader)`"),
    "cuda": _TO_DEVICE,
    "enumerate": ("`ds.map_with_index(lambda i, x: (i, x))`", "`enumerate(loader)`"),
    "remove_columns": _CHOSEN,
    "select": ("`ds[[3, 1]]`, before `to_iter_dataset()`", "`data_source=MapDataset.source(source)[[3, 1]]`"),
    "select_columns": _CHOSEN,
    "to": _TO_DEVICE,
    "train_test_split": ('`ds.split("[:80%]")`', "a loader for each part"),
    "unbatch": ("`ds.flat_map(list)`, or `ds.rebatch(n)` for batches of another size", "`loader.dataset.rebatch(n)`"),
    "set_format": _TENSORS,
    "with_format": _TENSORS,
}


def written_here(name: str, *, on_loader: bool = False) -> str:
    """What to write for an attribute that datasets and loaders of other libraries have; empty if it is not known."""
    found = _ATTRIBUTES.get(name)
    return f" Here, write {found[on_loader]}." if found else ""


def explains_keywords(function: C) -> C:
    """Lets a function say what to write instead of a keyword that it does not have, where other libraries have it.

    Errors show only the user's frames.

    >>> MapDataset.range(4).batch(2, drop_last=True)
    Traceback (most recent call last):
        ...
    TypeError: batch() has no argument `drop_last`. Here, write `drop_remainder=` of `batch`.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as e:
            if e.__traceback__ is None or e.__traceback__.tb_next is not None:  # not of this call, but inside of it
                trim_traceback(e)
                raise
            error = _wrong_call(function, args, kwargs)
            if error is None:
                raise
        except Exception as e:
            trim_traceback(e)
            raise
        raise error

    return call  # type: ignore[return-value]


def explains_constructor(**hints: str) -> Callable[[type[K]], type[K]]:
    """Lets the constructor of a class say what to write instead of keywords that other libraries have.

    >>> from headrace import ReadOptions
    >>> ReadOptions(num_workers=4)
    Traceback (most recent call last):
        ...
    TypeError: ReadOptions() has no argument `num_workers`. Here, write `num_threads=n`.
    """

    def decorate(kind: type[K]) -> type[K]:
        init = kind.__init__

        @functools.wraps(init)
        def construct(*args: Any, **kwargs: Any) -> None:
            wrong = next((name for name in kwargs if name in hints), None)
            if wrong is not None:
                raise TypeError(f"{kind.__name__}() has no argument `{wrong}`. Here, write {hints[wrong]}.")
            init(*args, **kwargs)

        kind.__init__ = construct  # type: ignore[method-assign]
        return kind

    return decorate


def explain_keywords_of(kind: type) -> None:
    """Lets all public methods of a class explain their keywords, and show only the user's frames in errors."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(kind, name, explains_keywords(method))
        elif isinstance(method, staticmethod) and not name.startswith("_"):
            setattr(kind, name, staticmethod(explains_keywords(method.__func__)))


def _wrong_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> TypeError | None:
    """A better error for a call with wrong arguments, if there is one."""
    import inspect  # hardly ever needed

    parameters = inspect.signature(function).parameters
    of_class = function.__name__ == "__init__"
    on_loader = of_class or function.__name__ == "load"
    name = function.__qualname__.split(".")[0] if of_class else function.__name__
    renamed = {"`operations=": "`transformations=", "`data_source=": "`source="} if name == "load" else {}
    said = []
    for wrong in (key for key in kwargs if key not in parameters):
        found = _KEYWORDS.get(wrong)
        meant = closest(wrong, parameters)
        hint = f" Here, write {found[on_loader]}." if found else f" Did you mean `{meant}`?" if meant else ""
        for argument, here in renamed.items():
            hint = hint.replace(argument, here)
        said.append(f"{name}() has no argument `{wrong}`.{hint}")
    if of_class and len(args) > 1:
        said.append(
            f"{name}() takes keyword arguments only, `{name}(data_source=source, "
            "sampler=IndexSampler(len(source)))`; `load(source, batch_size=n)` is shorter. A dataset needs no "
            "loader: `for batch in ds.batch(n)`."
        )
    return TypeError(" ".join(said)) if said else None


def closest(name: str, names: Iterable[str]) -> str | None:
    """The public name that is most like a misspelled one, if any is.

    >>> closest("suffle", ["map", "shuffle"])
    'shuffle'
    """
    import difflib  # hardly ever needed

    public = [] if name.startswith("_") else [each for each in names if not each.startswith("_")]
    return next(iter(difflib.get_close_matches(name, public, 1)), None)


def no_attribute(what: str, name: str, meant: str | None, hint: str = "") -> AttributeError:
    """The error for an attribute that something does not have, with the name that may be meant."""
    hint = f" Did you mean `{meant}`?{hint}" if meant else hint
    # Python guesses as well, among the attributes of `obj`, but only some tracebacks show that.
    return AttributeError(f"{what} has no attribute {name!r}{'.' if hint else ''}{hint}", name=name, obj=None)


def keys_instead(error: KeyError) -> str | None:
    """The keys of the dict that lacks a key, if a variable of the function that raised the error has it.

    >>> element = {"image": 1, "label": 2}
    >>> try:
    ...     (lambda element: element["img"])(element)
    ... except KeyError as e:
    ...     keys_instead(e)
    "'image', 'label'"
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or len(error.args) != 1:
        return None
    for value in trace.tb_frame.f_locals.values():
        if isinstance(value, dict) and value and error.args[0] not in value:
            return ", ".join([*map(repr, islice(value, MOST_KEYS)), *["..."] * (len(value) > MOST_KEYS)])
    return None
