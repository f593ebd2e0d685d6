"""How element operations are computed: `element_kernel(op)` is a function from a block and its indices to a block.

User functions receive Python ints and elements that they may change. An error names the element that caused it.
"""

import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from headrace import trees
from headrace.errors import DataError, HeadraceError, PipelineError
from headrace.errors.signals import from_outside, let_through, suppress
from headrace.errors.suggestions import keys_instead
from headrace.ops.blocks import Block, Columns, Rows
from headrace.ops.element import MapOp, MapWithIndexOp, PlacedMap, RandomMapOp
from headrace.ops.op import Op, describe
from headrace.rng import CounterRng

Kernel = Callable[[Block, Any], Block]
MANY_NONES = 100  # elements that a map returns None for, in a row, before it warns
_NOTED = "__headrace_noted__"  # an attribute of errors that say where they come from
_OF_MANY = "__headrace_of_many__"  # and of those that name many elements, one of which failed


def element_kernel(op: Op) -> Kernel:
    """The function that applies an element operation to a block whose elements have the given indices or counts.

    `None` stays as it is: only the functions of a `DataLoader` see it.
    """
    if isinstance(op, MapOp) and not isinstance(op, PlacedMap):
        kernel = _map_kernel(op)
    elif isinstance(op, MapWithIndexOp | PlacedMap):
        kernel = _map_with_index_kernel(op)
    else:
        assert isinstance(op, RandomMapOp)
        kernel = _random_map_kernel(op)
    nones = _nones.setdefault(op, Nones())
    return partial(nones.watch, op, kernel) if nones.left else kernel


class Nones:
    """Warns if a function returns None for all of the first elements: its `return` may be forgotten.

    All kernels of an operation share one. Once anything else has come, a block costs one comparison more.
    """

    def __init__(self):
        self.left = MANY_NONES  # to see before it warns; 0 once it is known

    def watch(self, op: Op, kernel: Kernel, block: Block, idx: Any) -> Block:
        """Calls a kernel, and looks at what it returns as long as that was always None."""
        made = kernel(block, idx)
        if self.left and len(made):
            self._look(op, block.items if isinstance(block, Rows) else None, made)
        return made

    def _look(self, op: Op, given: list[Any] | None, made: Block) -> None:
        if not isinstance(made, Rows):
            self.left = 0
            return
        for i, element in enumerate(made.items):
            if element is not None:
                self.left = 0
                return
            if given is None or given[i] is not None:  # what was missing before is not this function's doing
                self.left -= 1
            if not self.left:
                break
        else:
            return
        file, _, line = op.site.rpartition(":")
        text = f"{op.label()} returned None for each of the first {MANY_NONES} elements: is a `return` missing?"
        warnings.warn_explicit(text, UserWarning, file or "?", int(line or 0), registry=_warned)


_nones: "weakref.WeakKeyDictionary[Op, Nones]" = weakref.WeakKeyDictionary()
_warned: dict[Any, Any] = {}  # of the module `warnings`: each line of the user's code is warned about once


def _map_kernel(op: MapOp) -> Kernel:
    batch_fn = op.batch_fn
    rows_fn = op.rows_fn
    skips_none = op.skips_none
    fn: Any = None if op.batched else op.fn

    def kernel(block: Block, idx: Any) -> Block:
        if batch_fn is not None and (op.batched or isinstance(block, Columns)) and len(block):
            return _map_columns(op, batch_fn, block, None if idx is None else ints(idx), skips_none=skips_none)
        if rows_fn is not None:
            return _map_rows(op, rows_fn, block, idx, skips_none=skips_none)
        rows = block.own_rows()
        feed = iter(rows)
        try:
            if skips_none:
                return Rows([None if x is None else fn(x) for x in feed], owned=True)
            made = [fn(x) for x in feed]
        except Exception as e:
            blame(e, op, feed, ints(idx))
            raise
        check_is_element(op.transform, made[0] if made else None)
        return Rows(made, owned=True)

    return kernel


def check_is_element(transform: Any, made: Any) -> None:
    """Raises if a `DataLoader`'s function returned an iterator: it is one of records, then, and not of one element."""
    if hasattr(type(made), "__next__"):
        raise PipelineError(
            f"{describe(transform)} in the operations of a DataLoader returned a {type(made).__name__} for one "
            "element. If it is a function of an iterator of records, make it a generator function (with `yield`), or "
            "a subclass of Operation."
        )


def _map_columns(op: MapOp, fn: Callable[[Any], Any], block: Block, idx: Any, *, skips_none: bool) -> Block:
    """Applies a function of columns to a block, or row by row where the rows do not fit into common columns."""
    if isinstance(block, Rows) and not trees.uniform(block.items):
        out: list[Any] = []
        for i, row in enumerate(block.items):
            alone = Rows([row], owned=True)
            place = None if idx is None else [idx[i]]
            out += [None] if skips_none and row is None else _call_columns(op, fn, alone, place).rows()
        return Rows(out, owned=True)
    if skips_none and isinstance(block, Rows) and block.items[0] is None:
        return block
    return _call_columns(op, fn, block, idx)


def _call_columns(op: MapOp, fn: Callable[[Any], Any], block: Block, idx: Any) -> Block:
    try:
        columns = block.as_batch() if isinstance(block, Columns) else block.stack()
        tree = trees.tree_map(np.asarray, fn(columns))
    except Exception as e:
        blame_block(e, op, idx)
        raise
    lengths = {name: leaf.shape[:1] for name, leaf in trees.named_leaves(tree)}
    if not lengths and not trees.leaves(columns):  # elements such as (None, None) have no columns
        return Rows([trees.copy_tree(tree) for _ in range(len(block))], owned=True)
    if not lengths or any(length != (len(block),) for length in lengths.values()):
        raise _error_of_many(
            f"{op.label()} (pipeline at {op.site}) received columns of {len(block)} rows and returned leaves of "
            f"lengths {lengths}: it must return one row for each input row."
        )
    return Columns(tree, len(block))


def _map_rows(op: MapOp, fn: Callable[[list[Any]], list[Any]], block: Block, idx: Any, *, skips_none: bool) -> Block:
    """Applies a function of a list of elements to a block."""
    rows = block.own_rows()
    given = [x for x in rows if x is not None] if skips_none else rows
    count = len(given)
    if not count:
        return Rows(rows, owned=True)
    try:
        made = fn(given)
    except Exception as e:
        blame_block(e, op, ints(idx))
        raise
    if not isinstance(made, list) or len(made) != count:
        found = f"{len(made)} elements" if isinstance(made, list) else f"a {type(made).__name__}"
        raise _error_of_many(
            f"{op.label()} (pipeline at {op.site}) received a list of {count} elements, and its `map_rows` returned "
            f"{found}: it must return a list with one element for each input element."
        )
    if count == len(rows):
        return Rows(made, owned=True)
    feed = iter(made)
    return Rows([None if x is None else next(feed) for x in rows], owned=True)


def _map_with_index_kernel(op: MapWithIndexOp | PlacedMap) -> Kernel:
    fn = op.fn
    skips_none = isinstance(op, MapWithIndexOp)

    def kernel(block: Block, idx: Any) -> Block:
        numbers = ints(idx)
        feed = iter(block.own_rows())
        try:
            pairs = zip(feed, numbers, strict=True)
            return Rows([None if skips_none and x is None else fn(i, x) for x, i in pairs], owned=True)
        except Exception as e:
            blame(e, op, feed, numbers)
            raise

    return kernel


def _random_map_kernel(op: RandomMapOp) -> Kernel:
    fn = op.fn
    free: list[CounterRng] = []  # generators that no thread is using

    def kernel(block: Block, idx: Any) -> Block:
        numbers = ints(idx)
        feed = iter(block.own_rows())
        try:
            rng = free.pop()
        except IndexError as e:  # other threads use all of them
            let_through(e)
            rng = CounterRng(op.seed)  # type: ignore[arg-type]
        at = rng.at
        try:
            pairs = zip(feed, numbers, strict=True)
            out = [None if x is None else fn(x, at(i)) for x, i in pairs]
        except Exception as e:
            blame(e, op, feed, numbers)
            raise
        free.append(rng)
        return Rows(out, owned=True)

    return kernel


def blame(error: Exception, op: Op, feed: Iterator[Any], indices: Any) -> None:
    """Adds a note to a user's error that names the operation and the element that it came from.

    `feed` is the iterator over the elements: the number left in it shows which one failed.
    `indices` has the index of each element; only that of the failed one is looked up. Without `indices`, the note
    names no element.
    """
    _blame(error, op, "" if indices is None else f", element {indices[len(indices) - operator.length_hint(feed) - 1]}")


def blame_block(error: Exception, op: Op, indices: Any) -> None:
    """Adds a note to the error of a call with many elements: only calls with one element show which one failed."""
    if indices is None or len(indices) == 1:
        _blame(error, op, "" if indices is None else f", element {indices[0]}")
        return
    is_run = isinstance(indices, range | list) and list(indices) == list(range(indices[0], indices[-1] + 1))
    rest = f"to {indices[-1]}" if is_run else "and others"
    _blame(error, op, f", one of {len(indices)} elements: {indices[0]} {rest}", _OF_MANY)


def _blame(error: Exception, op: Op, element: str, kind: str = _NOTED) -> None:
    note = f"in {op.label()}{element} (pipeline at {op.site})"
    if isinstance(error, KeyError) and (keys := keys_instead(error)) is not None:
        note += f"; the keys there are {keys}"
    if isinstance(error, StopIteration):  # it would silently end the caller's loop
        wrapped = RuntimeError(
            "A function of the pipeline raised StopIteration. If it calls `next(iterator)`, write "
            "`next(iterator, default)`."
        )
        add_note(wrapped, note, kind)
        raise wrapped from error
    add_note(error, note, kind)


OF_GROUP = "__headrace_of_group__"  # an attribute of errors that concern a group of elements


def concerns_one(error: Exception) -> bool:
    """Whether an error may be that of one element, so that others can be computed."""
    is_ours = isinstance(error, HeadraceError) and not isinstance(error, DataError)
    return not (is_ours or hasattr(error, OF_GROUP) or isinstance(error, MemoryError) or from_outside(error))


def may_be_found(error: Exception) -> bool:
    """Whether the element that an error comes from is not named yet, and computing fewer elements may name it."""
    return concerns_one(error) and (hasattr(error, _OF_MANY) or not hasattr(error, _NOTED))


def add_note(error: BaseException, note: str, kind: str = _NOTED) -> None:
    """Adds a note once: the innermost operation is the one to blame."""
    if not hasattr(error, _NOTED):
        error.add_note(note)
        with suppress(AttributeError):
            setattr(error, _NOTED, True)
            setattr(error, kind, True)


def ints(indices: Any) -> Sequence[int]:
    """Indices as Python ints."""
    return indices.tolist() if isinstance(indices, np.ndarray) else indices


def _error_of_many(text: str) -> PipelineError:
    """An error about several elements, which may not recur if they are computed one by one."""
    error = PipelineError(text)
    error.of_many = True  # type: ignore[attr-defined]
    return error
