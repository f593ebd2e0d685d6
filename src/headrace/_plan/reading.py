"""How sources are read: by columns, many items at once, or one by one, depending on what they support."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace._ops.base import Op
from headrace._ops.source import SeededSource, Source, UserDataset
from headrace._plan.blocks import Block, Columns, Indices, Ints, Rows, as_array
from headrace._plan.elements import blame, ints
from headrace._utils.global_rngs import seeded_globals
from headrace._utils.rng import CounterRng
from headrace.errors import PipelineError, in_words
from headrace.sources import RangeDataSource

Fetch = Callable[[Indices], Block]


def reader(op: Source) -> Fetch:
    """The function from indices of a source's first epoch to its items; of all epochs, if it is seeded."""
    source = op.source
    if isinstance(op, SeededSource):
        return _SeededReader(op)
    if isinstance(source, RangeDataSource):
        return lambda idx: Ints(_nth(source.range, idx))
    if hasattr(source, "__getcolumns__"):
        return lambda idx: Columns(source.__getcolumns__(as_array(idx)), len(idx))
    if hasattr(source, "__getitems__"):
        return _ManyReader(op, source)
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
        first, last = values[idx[0]], values[idx[-1]]
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
        self._op, self._length, self._rng = op, op.length(), CounterRng(op.seed)
        source = op.source
        self._read = source.__getitem__ if hasattr(source, "__getitem__") else lambda i: source.__getitems__([i])[0]

    def __call__(self, idx: Indices) -> Rows:
        at, read, length, indices = self._rng.at, self._read, self._length, ints(idx)
        feed = iter(indices)
        with seeded_globals() as seeded:  # which also keeps other threads from `self._rng`
            try:
                return Rows([seeded.call(at(i), read, i % length) for i in feed], owned=False)
            except Exception as e:
                blame(e, self._op, feed, [i % length for i in indices])
                raise


class GetItems:
    """Whether a source's `__getitems__` works; true until it fails."""

    works = True


class _ManyReader:
    """Reads many items with one call, or one by one after that call has turned out not to work."""

    def __init__(self, op: Source | UserDataset, source: Any):
        self._op, self._source, self._getitems = op, source, op.kept.of(GetItems)

    def __call__(self, idx: Indices) -> Rows:
        op, source, indices = self._op, self._source, ints(idx)
        if not self._getitems.works:
            return _read_each(op, source.__getitem__, indices)
        try:
            return Rows(_items_together(source, indices), owned=False)
        except (TypeError, NotImplementedError, PipelineError) as e:
            if not hasattr(source, "__getitem__"):
                blame(e, op, iter(indices[1:]), indices)
                raise
            rows = _read_each(op, source.__getitem__, indices)
            self._getitems.works = False
            import logging  # slow to import, and hardly ever needed

            logging.getLogger("headrace").warning(
                "%s: `__getitems__` does not work, so its items are read one by one: %s", op.label(), in_words(e)
            )
            return rows
        except Exception as e:
            blame(e, op, iter(indices[1:]), indices)
            raise


def _items_together(source: Any, indices: Sequence[int]) -> list[Any]:
    made = source.__getitems__(list(indices))
    items = list(made)
    if len(items) != len(indices) or isinstance(made, Mapping | str | bytes):
        raise PipelineError(
            f"`__getitems__` of {type(source).__name__} gave a {type(made).__name__} of {len(items)} items for "
            f"{len(indices)} indices."
        )
    return items


def user_reader(op: UserDataset) -> Fetch:
    """The function from indices to the elements of a user-defined dataset."""
    dataset = op.dataset
    if hasattr(dataset, "__getitems__"):
        return _ManyReader(op, dataset)
    return lambda idx: _read_each(op, dataset.__getitem__, ints(idx))
