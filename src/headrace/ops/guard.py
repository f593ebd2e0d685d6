"""Bad records: the errors of single elements, and what a pipeline's `ErrorPolicy` makes of them.

Under a policy that skips or replaces, each call of a user's function and each read of a source is guarded: an element
that fails becomes `BAD` in its block, and the others are computed as before. Random-access chains keep `BAD` in its
place, so that indices keep their meaning; a batch and a stream drop it.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from headrace import trees
from headrace.errors import BadRecord, PipelineError, format_error, without_memory_addresses
from headrace.errors.addresses import redacted
from headrace.ops.blocks import Block, Columns, Indices, Rows
from headrace.ops.calls import Kernel, add_note, blame, concerns_one, element_kernel, ints
from headrace.ops.combine import Zip
from headrace.ops.element import MapOp, MapWithIndexOp, PlacedMap, RandomMapOp
from headrace.ops.op import Op, parents_first
from headrace.ops.origins import origin
from headrace.ops.source import Source
from headrace.options import ErrorPolicy
from headrace.rng import CounterRng
from headrace.storage.memory import ArrayDataSource, RangeDataSource


class _Bad:
    """Stands for an element that was skipped because of an error."""

    def __repr__(self) -> str:
        return "BAD"

    def __reduce__(self) -> str:
        return "BAD"


BAD = _Bad()
LONGEST_ERROR = 2000  # characters of an error that are listed
Where = Callable[[int], dict[str, Any]]
"""From the number of an element in a block, fields of its `BadRecord`."""


class GuardedCall(NamedTuple):
    """A call of a function or of a source, for one element of a block or for all."""

    since: float
    op: Op
    where: "Where"
    j: int | None
    ends_run: bool = False  # whether its errors are never those of one record

    @property
    def key(self) -> str:
        """What distinguishes the call from others of the same task."""
        kind = "all from" if self.j is None else "element"
        return f"{self.op.label()} at {self.op.site}, {kind} {self.where(self.j or 0)['element']}"


class Guard:
    """Decides about the errors of single elements.

    Threads that compute a random-access chain run ahead of the stream. They collect what they find (`collecting`), and
    the stream reports it when it hands over the block, so that reports come in the order of the stream.
    """

    def __init__(
        self,
        policy: ErrorPolicy,
        report: Callable[[list[BadRecord]], None],
        count_read: Callable[[int], None] = lambda count: None,
        is_lost: Callable[[Exception], bool] = lambda error: False,
        timeout_s: float | None = None,
    ):
        self.report = report
        self.count_read = count_read
        self.timeout_s = timeout_s
        self.skips = not policy.raises
        self.now: dict[int, GuardedCall] = {}  # by thread, the call that it is in, if calls are timed
        self.known: Collection[str] = ()  # keys of elements that took too long before
        self._policy = policy
        self._is_lost = is_lost
        self._local = threading.local()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[list[BadRecord]]:
        """Collects what this thread finds, instead of reporting it."""
        self._local.found = found = []
        try:
            yield found
        finally:
            self._local.found = None

    def check(self, error: Exception) -> None:
        """Raises an error that is not that of a single record."""
        if self._policy.raises or not concerns_one(error) or self._is_lost(error):
            raise error

    def resolve_error(self, error: Exception, op: Op, where: dict[str, Any]) -> Any:
        """What takes the place of an operation's output after an error: `BAD`, or what the handler returns."""
        self.check(error)
        text = without_memory_addresses(redacted(format_error(error)[:LONGEST_ERROR]))
        record = BadRecord(op.label(), text, site=op.site, **where)
        made = None
        if callable(self._policy.action):
            try:
                made = self._policy.action(replace(record, exception=error))
            except Exception as e:
                add_note(e, f"in the function of `on_error`, for {record}")
                raise
        self._add(replace(record, replaced=made is not None))
        return BAD if made is None else trees.copy_tree(made)  # functions may change it

    def begin(self, op: Op, where: Where, j: int | None, *, ends_run: bool = False) -> None:
        """Notes that a call begins, for element number `j` of a block or for all; raises if it took too long before."""
        if self.timeout_s is None:
            return
        step = GuardedCall(time.monotonic(), op, where, j, ends_run)
        if self.known and step.key in self.known:
            raise TimeoutError(f"took more than {self.timeout_s:g} s")
        self.now[threading.get_ident()] = step

    def end(self) -> None:
        """Notes that a call has ended."""
        if self.timeout_s is not None:
            self.now.pop(threading.get_ident(), None)

    def timed(self, op: Op, where: Where, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a call whose errors always end the run."""
        try:
            self.begin(op, where, None, ends_run=True)
            return call(*args)
        finally:
            self.end()

    def _add(self, record: BadRecord) -> None:
        found = getattr(self._local, "found", None)
        if found is None:
            self.report([record])
        else:
            found.append(record)


def check_nothing_is_paired(op: Op) -> None:
    """Raises if skipping an element of one stream would shift pairs with another."""
    zipped = next(
        (each for each in parents_first(op, lambda _: True) if isinstance(each, Zip) and each.is_stream), None
    )
    if zipped is not None:
        raise PipelineError(
            f"{zipped.label()} (pipeline at {zipped.site}) pairs the elements of streams in order, so a record that "
            "`on_error` skips in one of them would shift all later pairs. Zip MapDatasets, before "
            '`to_iter_dataset()`, or use on_error("raise").'
        )


def records_per_element(op: Op) -> int:
    """How many records make one element of a random-access chain."""
    count = 1
    while len(op.parents) == 1:
        count *= op.group_size or 1
        op = op.parents[0]
    return count


def index_of(op: Op, numbers: Any) -> Where:
    """Where elements are that have these indices in a random-access chain."""

    def where(j: int) -> dict[str, Any]:
        return {"element": int(numbers[j]), **origin(op, int(numbers[j]))}

    return where


# --------------------------------------------------------------------------------------------- reading

_NEVER_FAIL = (list, tuple, ArrayDataSource, RangeDataSource)


def guarded_read(read: Callable[..., Block], op: Op, blamed: Op, guard: Guard | None) -> Callable[[Indices], Block]:
    """A function from indices of `op` to a block, in which items that cannot be read are `BAD`."""
    if guard is None or (isinstance(blamed, Source) and type(blamed.source) in _NEVER_FAIL):
        return read

    def fetch(idx: Indices) -> Block:
        where = index_of(op, idx)
        try:
            guard.begin(blamed, where, None if len(idx) > 1 else 0)
            return read(idx)
        except Exception as e:
            if len(idx) == 1:
                return Rows([guard.resolve_error(e, blamed, where(0))], owned=True)
            guard.check(e)
        finally:
            guard.end()
        rows = []
        for j in range(len(idx)):
            try:
                guard.begin(blamed, where, j)
                rows += read(idx[j : j + 1]).rows()
            except Exception as e:
                rows.append(guard.resolve_error(e, blamed, where(j)))
            finally:
                guard.end()
        return Rows(rows, owned=False)

    return fetch


# ------------------------------------------------------------------------------------------- functions


def guarded_kernel(op: Op, guard: Guard) -> "GuardedKernel":
    """The kernel of an element operation that also receives where elements are, to report those that fail."""
    kernel = element_kernel(op)
    if not op.is_guarded:
        return lambda block, idx, where: guard.timed(op, where, kernel, block, idx)
    if isinstance(op, MapOp) and (op.batch_fn is not None or op.rows_fn is not None):
        return partial(_many, op, kernel, guard)
    start = _calls(op)
    none = isinstance(op, MapOp) and not op.skips_none

    def guarded(block: Block, idx: Any, where: Where) -> Block:
        numbers = None if idx is None else ints(idx)
        return Rows(call_each(op, block.own_rows(), numbers, start(), guard, where, none=none), owned=True)

    return guarded


GuardedKernel = Callable[[Block, Any, Where], Block]
Call = Callable[[Any, Any], Any]
"""From an element and its index to the output."""


def _calls(op: Any) -> Callable[[], Call]:
    """Makes the call of an operation's function for the elements of one block."""
    fn = op.fn
    if isinstance(op, RandomMapOp):

        def start() -> Call:
            at = CounterRng(op.seed).at  # type: ignore[arg-type]
            return lambda element, index: fn(element, at(index))

        return start
    if isinstance(op, MapWithIndexOp | PlacedMap):
        return lambda: lambda element, index: fn(index, element)
    return lambda: lambda element, index: fn(element)


def call_each(
    op: Op, rows: list[Any], numbers: Any, call: Call, guard: Guard, where: Where, *, none: bool
) -> list[Any]:
    """The output for each element, `BAD` where the call fails; with `none`, `None` is an element like others."""
    out = []
    for j, row in enumerate(rows):
        if row is BAD or (row is None and not none):
            out.append(row)
            continue
        try:
            guard.begin(op, where, j)
            out.append(call(row, None if numbers is None else numbers[j]))
        except Exception as e:
            out.append(_resolve(e, op, numbers, j, guard, where))
        finally:
            guard.end()
    return out


def _resolve(error: Exception, op: Op, numbers: Any, j: int, guard: Guard, where: Where) -> Any:
    try:
        blame(error, op, iter(()), None if numbers is None else [numbers[j]])
    except RuntimeError as e:  # in place of a StopIteration
        error = e
    return guard.resolve_error(error, op, where(j))


def _many(op: Op, kernel: Kernel, guard: Guard, block: Block, idx: Any, where: Where) -> Block:
    """The output of a kernel that takes many elements at once; if it fails, it is called with them one by one.

    Each call receives copies, since a function that fails may have changed its elements.
    """
    numbers = None if idx is None else ints(idx)
    kept = list(range(len(block)))
    if isinstance(block, Rows):
        kept = [j for j in kept if block.items[j] is not BAD]
    given = block if len(kept) == len(block) else block.take(np.array(kept, np.intp))
    try:
        guard.begin(op, where, None)
        made = kernel(_copy(given), numbers if len(kept) == len(block) else _at(numbers, kept))
        if len(kept) == len(block):
            return made
        rows = iter(made.rows())
        return Rows([BAD if row is BAD else next(rows) for row in block.rows()], owned=False)
    except Exception as e:
        guard.check(e)
    finally:
        guard.end()
    out: list[Any] = [BAD] * len(block)
    for j in kept:
        try:
            guard.begin(op, where, j)
            (out[j],) = kernel(_copy(block.cut(j, j + 1)), _at(numbers, [j])).rows()
        except Exception as e:
            out[j] = guard.resolve_error(e, op, where(j))
        finally:
            guard.end()
    return Rows(out, owned=False)


def _copy(block: Block) -> Block:
    if isinstance(block, Columns):
        return Columns(trees.tree_map(np.copy, block.tree), len(block))
    return Rows(list(block.rows()), owned=False)  # whoever changes them copies them first


def _at(numbers: Any, places: list[int]) -> list[int] | None:
    return None if numbers is None else [numbers[j] for j in places]
