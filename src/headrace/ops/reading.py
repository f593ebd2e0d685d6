"""How sources are read: by columns, many items at once, or one by one, depending on what they support."""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.errors import PipelineError, format_error
from headrace.errors.signals import let_through
from headrace.ops.blocks import Block, Columns, Indices, Ints, Rows, as_array
from headrace.ops.calls import blame, blame_block, ints, may_be_found
from headrace.ops.disk_cache import DiskCache
from headrace.ops.op import Op
from headrace.ops.source import SeededSource, Source, UserDataset
from headrace.rng import CounterRng, seeded_globals
from headrace.storage.memory import RangeDataSource

Fetch = Callable[[Indices], Block]


def reader(op: Source | DiskCache, *, finds: bool = True) -> Fetch:
    """The function from indices of a source's first epoch to its items; of all epochs, if it is seeded.

    If a block cannot be read, it finds the first item that fails, unless `finds` is false.
    """
    source: Any = op.source
    if isinstance(op, SeededSource):
        return _SeededReader(op)
    if isinstance(source, RangeDataSource):
        return lambda idx: Ints(_nth(source.range, idx))
    if hasattr(source, "__getcolumns__"):
        return naming(op, lambda idx: Columns(source.__getcolumns__(as_array(idx)), len(idx)), finds=finds)
    if hasattr(source, "__getitems__"):
        return naming(op, _ManyReader(op, source), finds=finds)
    if type(source) in (list, tuple):
        return lambda idx: Rows(_items(source, idx), owned=False)
    return lambda idx: _read_each(op, source.__getitem__, ints(idx))


def _items(items: list[Any] | tuple[Any, ...], idx: Indices) -> list[Any]:
    """The items of a list at these indices."""
    if isinstance(idx, range) and idx.step > 0:
        return list(items[idx.start : idx.stop : idx.step])
    if len(idx) == 1:
        return [items[idx[0]]]
    return list(operator.itemgetter(*ints(idx))(items)) if len(idx) else []


def _nth(values: range, idx: Indices) -> Indices:
    """The numbers of a range at these indices."""
    if isinstance(idx, range):
        first = values[idx[0]]
        last = values[idx[-1]]
        step = idx.step * values.step
        return range(first, last + (1 if step > 0 else -1), step)
    if values.start == 0 and values.step == 1:
        return idx
    return idx * values.step + values.start


def _read_each(op: Op, getitem: Callable[[int], Any], indices: Sequence[int]) -> Rows:
    feed = iter(indices)
    try:
        return Rows([getitem(i) for i in feed], owned=False)
    except Exception as e:
        blame(e, op, feed, indices)
        raise


class _SeededReader:
    """Reads items one by one, with the generators of the process seeded for each."""

    def __init__(self, op: SeededSource):
        self._op = op
        self._length = op.length()
        self._rng = CounterRng(op.seed)
        source = op.source
        self._read = source.__getitem__ if hasattr(source, "__getitem__") else lambda i: source.__getitems__([i])[0]

    def __call__(self, idx: Indices) -> Rows:
        at = self._rng.at
        read = self._read
        length = self._length
        indices = ints(idx)
        feed = iter(indices)
        with seeded_globals() as seeded:  # which also keeps other threads from `self._rng`
            try:
                return Rows([seeded.call(at(i), read, i % length) for i in feed], owned=False)
            except Exception as e:
                blame(e, self._op, feed, [i % length for i in indices])
                raise


def naming(op: Op, read: Fetch, *, finds: bool) -> Fetch:
    """The same function, with errors that name the item, or all items that one call was to read."""

    def fetch(idx: Indices) -> Block:
        try:
            return read(idx)
        except Exception as e:
            blame_block(e, op, ints(idx))
            raise

    return partial(fetch_together, fetch) if finds else fetch


def fetch_together(fetch: Fetch, idx: Indices) -> Block:
    """Fetches all elements in one call; after an error, finds the first element that fails, and raises its error."""
    try:
        return fetch(idx)
    except Exception as e:
        errors = [e]
    raise first_error(errors, fetch, idx)


def first_error(errors: list[Exception], fetch: Fetch, idx: Indices) -> Exception:
    """The error of the first element that fails; if none fails alone, that of all, which the list has.

    The list is emptied, so that no frame in the error's traceback keeps the error.
    """
    error = errors.pop()
    return (_find_first(fetch, idx) if len(idx) > 1 and may_be_found(error) else None) or error


def _find_first(fetch: Fetch, idx: Indices) -> Exception | None:
    """Fetches elements again, each time half of those among which the first one that fails must be."""
    start = 0
    stop = len(idx)
    while start < stop:
        middle = max((start + stop) // 2, start + 1)
        try:
            fetch(idx[start:middle])
            start = middle
        except Exception as e:
            if middle - start == 1 or not may_be_found(e):
                return e
            stop = middle
    return None


class NoItemsError(PipelineError):
    """What `__getitems__` returned is not a list of items."""


class GetItems:
    """Whether a source's `__getitems__` works, which its first call shows."""

    works: bool | None = None


class _ManyReader:
    """Reads many items with one call, or one by one if the first such call has turned out not to work."""

    def __init__(self, op: Source | DiskCache | UserDataset, source: Any):
        self._op = op
        self._source = source
        self._getitems = op.kept.of(GetItems)

    def __call__(self, idx: Indices) -> Rows:
        op = self._op
        source = self._source
        indices = ints(idx)
        if self._getitems.works is False:
            return _read_each(op, source.__getitem__, indices)
        try:
            rows = Rows(_items_together(source, indices), owned=False)
            self._getitems.works = True
            return rows
        except (TypeError, NotImplementedError, NoItemsError) as e:
            let_through(e)
            if self._getitems.works or not hasattr(source, "__getitem__"):
                raise
            rows = _read_each(op, source.__getitem__, indices)
            self._getitems.works = False
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning(
                "%s: `__getitems__` does not work, so its items are read one by one: %s", op.label(), format_error(e)
            )
            return rows


def _items_together(source: Any, indices: Sequence[int]) -> list[Any]:
    made = source.__getitems__(list(indices))
    items = list(made)
    is_list = not isinstance(made, Mapping | str | bytes)
    if is_list and len(items) == len(indices):
        return items
    gave = f"`__getitems__` of {type(source).__name__} returned a {type(made).__name__} of {len(items)} items for "
    if not items or not is_list:
        raise NoItemsError(f"{gave}{len(indices)} indices.")
    raise PipelineError(
        f"{gave}{len(indices)} indices. It must return one item for each index, in order; indices may repeat."
    )


def user_reader(op: UserDataset, *, finds: bool = True) -> Fetch:
    """The function from indices to the elements of a user-defined dataset; see `reader`."""
    dataset = op.dataset
    if hasattr(dataset, "__getitems__"):
        return naming(op, _ManyReader(op, dataset), finds=finds)
    return lambda idx: _read_each(op, dataset.__getitem__, ints(idx))
