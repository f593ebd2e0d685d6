"""How random-access chains are computed: `fetcher(op)` is a function from indices to a block.

The law of every kernel: `fetcher(op)(indices).rows()[j]` is the element at `indices[j]`, whatever the other
indices are. User functions receive Python ints and elements that they may change.
"""

from collections.abc import Callable
from functools import cache, partial, singledispatch
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from headrace import trees
from headrace.errors import PipelineError, StructureError
from headrace.errors.signals import suppress
from headrace.ops.blocks import Block, Indices, Rows, as_array, by_part, interleave
from headrace.ops.buffer import Cache
from headrace.ops.calls import OF_GROUP, Kernel, add_note, blame, blame_block, element_kernel, ints
from headrace.ops.combine import RouteOp, Zip
from headrace.ops.disk_cache import DiskCache
from headrace.ops.element import FilterOp, FlatMapOp, MapOp, Transformed
from headrace.ops.global_batch import GlobalBatch
from headrace.ops.group import BatchOp
from headrace.ops.guard import BAD, Guard, call_each, guarded_kernel, guarded_read, index_of
from headrace.ops.op import Op
from headrace.ops.order import IndexOp
from headrace.ops.profile import measuring, timed
from headrace.ops.program import Program, Together, split_index_program
from headrace.ops.reading import Fetch, fetch_together, first_error, naming, reader, user_reader
from headrace.ops.source import Source, UserDataset
from headrace.storage.memory import ArrayDataSource
from headrace.trees import making_batch

FEW_EACH = 16  # where parts have fewer outputs than this in a run, their index programs run together
STACK_AT_ONCE = 32  # batches of this size or more are stacked one by one, while their rows are in the CPU's cache


@singledispatch
def fetcher(op: Op, guard: Guard | None = None) -> Fetch:
    """The function from indices to a block that computes an operation; with a guard, bad records are `BAD` in it."""
    raise TypeError(f"{op.label()} has no random access: iterate over it instead.")


# ------------------------------------------------------------------------------------- sources and order


class Gather:
    """A source, or a cache on disk, behind an index program.

    `read` takes indices of the first epoch; of a seeded source, indices of any epoch.
    """

    def __init__(self, program: Program, source: Source | DiskCache, guard: Guard | None):
        finds = guard is None or not guard.skips  # a guard that skips reads one by one itself
        self.program = program
        self.read = reader(source, finds=finds)
        self.op = source
        self.source = source.source

    def __call__(self, idx: Indices) -> Block:
        rows = self.program(idx)
        return timed(self.op, self.read, rows) if measuring.threads else self.read(rows)


class Planned(NamedTuple):
    """A function from indices to a block, and the index program that they go through first."""

    fetch: Fetch
    program: Program

    def __call__(self, idx: Indices) -> Block:
        return self.fetch(idx)


@fetcher.register
def _(op: Source, guard: Guard | None = None) -> Fetch:
    program, source = split_index_program(op)
    return guarded_read(Gather(program, source, guard), op, op, guard)  # type: ignore[arg-type]


@fetcher.register
def _(op: UserDataset, guard: Guard | None = None) -> Fetch:
    read = partial(timed, op, user_reader(op, finds=guard is None or not guard.skips))
    if not op.parents:  # it is a source: its own indices need not go past the first epoch
        program = Program([], modulo=op.length())
        read_source = read
        read = lambda idx: read_source(program(idx))  # noqa: E731
    return guarded_read(read, op, op, guard)


class CachedItems(dict[int, Any]):
    """The elements in a cache, by index."""


@fetcher.register
def _(op: Cache, guard: Guard | None = None) -> Fetch:
    parent = fetcher(op.parent, guard)
    length = op.length()
    items = op.kept.of(CachedItems)

    def fetch(idx: Indices) -> Block:
        wanted = [i % length for i in ints(idx)]
        missing = sorted({i for i in wanted if i not in items})
        if missing:
            made = zip(missing, parent(np.array(missing)).own_rows(), strict=True)
            items.update((i, row) for i, row in made if row is not BAD)
        return Rows([items.get(i, BAD) for i in wanted], owned=False)

    return fetch


@fetcher.register
def _(op: DiskCache, guard: Guard | None = None) -> Fetch:
    if op.gathers_columns:
        return guarded_read(Gather(Program([], modulo=op.length()), op, guard), op, op, guard)

    def fetch(idx: Indices) -> Block:
        elements = op.open_elements()
        wanted = as_array(idx) % max(op.length(), 1)
        return compute()(wanted) if elements is None else Rows(elements.__getitems__(wanted), owned=True)

    compute = cache(lambda: fetcher(op.parent, guard))  # an element asked for before the folder is complete
    read = naming(op, partial(timed, op, fetch), finds=guard is None or not guard.skips)
    return guarded_read(read, op, op, guard)


@fetcher.register
def _(op: RouteOp, guard: Guard | None = None) -> Fetch:
    parts: dict[int, Fetch] = {}  # made when first used: there may be very many
    together = Together(op.route)

    def make(i: int) -> Any:
        parts[i] = made = fetcher(op.parts[i], guard)
        return made

    def program(i: int) -> Program | None:
        part = parts.get(i) or make(i)
        return part.program if isinstance(part, Gather | Planned) else None

    def fetch(idx: Indices) -> Block:
        which, inner = op.route(as_array(idx))
        used = by_part(which)
        if not (op.keeps_part_order and isinstance(idx, range) and idx.step == 1):
            blocks = [(parts.get(i) or make(i))(inner[places]) for i, places in used]
        else:
            few_each = 2 < len(idx) < FEW_EACH * len(used)
            planned = together.blocks(idx, program) if few_each else {}
            firsts = inner[[places[0] for _, places in used]].tolist()
            blocks = []
            for (i, places), first in zip(used, firsts, strict=True):
                part = parts.get(i) or make(i)
                if i in planned:
                    part.program.block = planned[i]  # type: ignore[attr-defined]
                blocks.append(part(range(first, first + len(places))))
        return blocks[0] if len(blocks) == 1 else interleave(blocks, [places for _, places in used])

    return fetch


@fetcher.register
def _(op: Zip, guard: Guard | None = None) -> Fetch:
    parts = [fetcher(part) for part in op.parts]
    lengths = [p.length() for p in op.parts]
    length = op.length()

    def fetch(idx: Indices) -> Block:
        rows = [part(_same_epoch(idx, length, n)).own_rows() for part, n in zip(parts, lengths, strict=True)]
        return Rows(list(zip(*rows, strict=True)), owned=True)

    return guarded_read(fetch, op, op, guard)  # as a whole: if one part is bad, the others are of no use


def _same_epoch(idx: Indices, length: int, part_length: int) -> Indices:
    """The indices with the same epoch and the same place in it, for a part that is longer."""
    if length == part_length:
        return idx
    epochs, rest = np.divmod(as_array(idx), length)
    return rest + epochs * part_length


# ----------------------------------------------------------------------------------------------- elements


class Layer(NamedTuple):
    """Operations with their kernels, and the function from the indices of their outputs to those of their inputs."""

    kernels: list[tuple[Op, Kernel]]
    below: Callable[[Indices], Indices]


class KernelChain:
    """A chain of operations on elements and indices: maps indices down to the base, then elements back up."""

    def __init__(self, base: Fetch, layers: list[Layer]):
        self._base = base  # the last layer first
        self._layers = layers

    def __call__(self, idx: Indices) -> Block:
        wanted = [idx]
        for layer in self._layers:
            wanted.append(layer.below(wanted[-1]))
        block = self._base(wanted.pop())
        for layer in reversed(self._layers):
            idx = wanted.pop()
            block = _apply_all(layer.kernels, block, idx)
        return block


@fetcher.register(IndexOp)
@fetcher.register(Transformed)
def _(op: Any, guard: Guard | None = None) -> Fetch:
    layers = [Layer([], _same)]
    together = False  # whether some function takes many elements at once
    base: Fetch | None = None
    program: Program | None = None
    while not isinstance(op, Cache):
        if isinstance(op, IndexOp):
            top = op
            program, op = split_index_program(op)
            if isinstance(op, Source) or (isinstance(op, DiskCache) and op.gathers_columns):
                base = guarded_read(Gather(program, op, guard), top, op, guard)
                break
            if program.steps:
                layers += [Layer([], program), Layer([], _same)]
            continue
        if isinstance(op, FlatMapOp):
            layers += [Layer([(op, _flat_map_kernel(op, guard))], partial(_families, op)), Layer([], _same)]
        elif isinstance(op, FilterOp):
            layers[-1].kernels.append((op, _filter_kernel(op, guard)))
        elif isinstance(op, Transformed):
            layers[-1].kernels.append((op, _kernel(op, guard)))
            together = together or (isinstance(op, MapOp) and (op.rows_fn or op.batch_fn) is not None)
        else:
            break
        op = op.parent
    for layer in layers:
        layer.kernels.reverse()
    used = [layer for layer in layers if layer.kernels or layer.below is not _same]
    fetch = _chain(base or fetcher(op, guard), used, together and guard is None)
    first = next((layer.below for layer in used if layer.below is not _same), program if base else None)
    return Planned(fetch, first) if isinstance(first, Program) and not isinstance(fetch, Gather) else fetch


def _same(idx: Indices) -> Indices:
    return idx


def _chain(base: Fetch, layers: list[Layer], together: bool) -> Fetch:
    if not layers:
        return base
    fetch: Fetch = KernelChain(base, layers)
    if len(layers) == 1 and layers[0].below is _same:
        (op, kernel), *others = layers[0].kernels
        fetch = partial(_fetch_all, base, layers[0].kernels) if others else partial(_fetch_one, base, op, kernel)
    return partial(fetch_together, fetch) if together else fetch


def _fetch_one(base: Fetch, op: Op, kernel: Kernel, idx: Indices) -> Block:
    block = base(idx)
    return timed(op, kernel, block, idx) if measuring.threads else kernel(block, idx)


def _fetch_all(base: Fetch, kernels: list[tuple[Op, Kernel]], idx: Indices) -> Block:
    return _apply_all(kernels, base(idx), idx)


def _apply_all(kernels: list[tuple[Op, Kernel]], block: Block, idx: Indices) -> Block:
    for op, kernel in kernels:
        block = timed(op, kernel, block, idx) if measuring.threads else kernel(block, idx)
    return block


def _kernel(op: Transformed, guard: Guard | None) -> Kernel:
    if guard is None:
        return element_kernel(op)
    guarded = guarded_kernel(op, guard)
    return lambda block, idx: guarded(block, idx, index_of(op, idx))


def _filter_kernel(op: FilterOp, guard: Guard | None) -> Kernel:
    fn = op.fn
    if guard is not None:
        return partial(_filter_guarded, op, guard)

    def kernel(block: Block, idx: Any) -> Block:
        feed = iter(block.own_rows())
        try:
            return Rows([x if x is not None and fn(x) else None for x in feed], owned=True)
        except Exception as e:
            blame(e, op, feed, ints(idx))
            raise

    return kernel


def _filter_guarded(op: FilterOp, guard: Guard, block: Block, idx: Any) -> Block:
    rows = block.own_rows()
    fn = op.fn
    kept = call_each(op, rows, ints(idx), lambda row, _: fn(row), guard, index_of(op, idx), none=False)
    return Rows([BAD if k is BAD else row if k else None for row, k in zip(rows, kept, strict=True)], owned=True)


def _families(op: FlatMapOp, idx: Indices) -> np.ndarray:
    """The parent indices of some children, each once."""
    assert op.max_fan_out is not None
    return np.unique(as_array(idx) // op.max_fan_out)


def _flat_map_kernel(op: FlatMapOp, guard: Guard | None) -> Kernel:
    fan_out = op.max_fan_out
    assert fan_out is not None

    def kernel(block: Block, idx: Any) -> Block:
        wanted, child = np.divmod(as_array(idx), fan_out)
        unique = np.unique(wanted).tolist()
        families = dict(zip(unique, _children(op, block.own_rows(), unique, guard), strict=True))
        pairs = zip(wanted.tolist(), child.tolist(), strict=True)
        # Children may share memory with each other, and an index may occur twice.
        return Rows([families[w][c] if c < len(families[w]) else None for w, c in pairs], owned=False)

    return kernel


def _children(op: FlatMapOp, rows: list[Any], numbers: list[int], guard: Guard | None) -> list[list[Any]]:
    """The children of each element; a missing or bad element has none."""
    children = op.children
    if guard is not None:
        where = index_of(op.parent, numbers)
        made = call_each(op, rows, numbers, lambda row, _: children(row), guard, where, none=False)
        return [[] if each is None or each is BAD else list(each) for each in made]
    feed = iter(rows)
    try:
        return [[] if x is None else children(x) for x in feed]
    except Exception as e:
        blame(e, op, feed, numbers)
        raise


# ------------------------------------------------------------------------------------------------ batches


@fetcher.register
def _(op: BatchOp, guard: Guard | None = None) -> Fetch:
    """The function also takes `empty`, which makes the arrays to stack elements in."""
    parent = fetcher(op.parent, guard)
    layout = _BatchLayout(op)
    make = make_batch if guard is None else partial(_batch_of_good, guard)
    if isinstance(parent, Gather) and parent.op.gathers_columns and op.batch_fn is None:
        return partial(_gather_batches, layout, parent, _batch_columns(parent.source))

    def fetch(idx: Indices, empty: trees.Empty | None = None) -> Block:
        flat, cuts = layout(idx)
        if op.batch_size >= STACK_AT_ONCE:
            return Rows([alone(flat[a:b], i, empty) for i, (a, b) in zip(ints(idx), cuts, strict=True)], owned=True)
        block = parent(flat)
        parts = (block.cut(a, b) for a, b in cuts)
        return Rows([make(op, part, i, empty) for i, part in zip(ints(idx), parts, strict=True)], owned=True)

    def alone(inputs: Indices, index: int, empty: trees.Empty | None) -> Any:
        if op.batch_fn is not None:
            return make(op, parent(inputs), index, empty)
        with making_batch(len(inputs), empty):
            return make(op, parent(inputs), index, empty)

    return partial(timed, op, fetch)


def make_batch(
    op: BatchOp | GlobalBatch, block: Block, index: int | None = None, empty: trees.Empty | None = None
) -> Any:
    """One batch from its elements, stacked in arrays that `empty` makes; `index` is the batch's, if it has one."""
    if op.batch_fn is not None:
        try:
            batch = op.batch_fn(block.own_rows())
        except Exception as e:
            with suppress(AttributeError):
                setattr(e, OF_GROUP, True)
            blame(e, op, iter(()), None if index is None else (index,))
            raise
        if batch is None and op.is_stream:
            _check_all_there(op, block)
        return batch
    try:
        batch = block.stack(empty)
    except Exception as e:
        _check_all_there(op, block)
        add_note(e, f"in {op.label()} (pipeline at {op.site})")
        raise
    if batch is None:
        _check_all_there(op, block)
    return batch


def _check_all_there(op: BatchOp | GlobalBatch, block: Block) -> None:
    """Raises if elements are missing, which is all that a stream's batch of `None` can mean."""
    if isinstance(block, Rows) and op.is_stream and len(block) and all(row is None for row in block.items):
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) received {len(block)} elements that are all None: is a `return` "
            "missing in the function of an earlier `map`?"
        ) from None
    if isinstance(block, Rows) and not op.is_stream and any(row is None for row in block.items):
        raise PipelineError(
            f"{op.label()} (pipeline at {op.site}) found an index without an element: an earlier source or `map` "
            "returned None. Call `to_iter_dataset()`, which skips such indices, before `batch`."
        ) from None


def _batch_of_good(guard: Guard, op: BatchOp, block: Block, index: int, empty: trees.Empty | None) -> Any:
    """One batch from its elements, without the bad ones; if all are bad, so is the batch."""
    if isinstance(block, Rows):
        block = block.keep([row is not BAD for row in block.items])
    return guard.timed(op, index_of(op, [index]), make_batch, op, block, index, empty) if len(block) else BAD


class _BatchLayout:
    """The concatenated parent indices of batches, and where each batch begins and ends in them."""

    def __init__(self, op: BatchOp):
        self.op = op
        self._length = op.length()
        self._parent_length = op.parent.length()

    def __call__(self, idx: Indices) -> tuple[Indices, list[tuple[int, int]]]:
        if isinstance(idx, range) and idx.step == 1 and idx.start // self._length == idx[-1] // self._length:
            return self._consecutive(idx)
        starts, stops = self.op.bounds(as_array(idx))
        ends = np.cumsum(stops - starts).tolist()
        pieces = [range(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        return np.fromiter(chain.from_iterable(pieces), np.int64), list(zip([0, *ends[:-1]], ends, strict=True))

    def _consecutive(self, idx: range) -> tuple[Indices, list[tuple[int, int]]]:
        """Consecutive batches of one epoch: their elements are consecutive too."""
        size = self.op.batch_size
        n = self._parent_length
        epoch, first = divmod(idx.start, self._length)
        start = epoch * n + first * size
        flat = range(start, min(start + len(idx) * size, (epoch + 1) * n))
        return flat, [(a, min(a + size, len(flat))) for a in range(0, len(flat), size)]


def _batch_columns(source: Any) -> Callable[[np.ndarray, trees.Empty | None], Any]:
    """The function from rows of an array source to a batch of them, in arrays that `empty` makes."""
    if hasattr(source, "__getbatch__"):
        return lambda rows, _: source.__getbatch__(rows)
    columns = source.__getcolumns__
    if type(source) is ArrayDataSource and all(leaf.dtype.isbuiltin == 1 for leaf in trees.leaves(source.element_spec)):
        # Stacking would give the same arrays.
        return lambda rows, empty: columns(rows) if empty is None else source.columns_in(rows, empty)
    return lambda rows, _: trees.stack_columns(columns(rows))


def _gather_batches(
    layout: _BatchLayout,
    parent: Gather,
    batch: Callable[[np.ndarray, trees.Empty | None], Any],
    idx: Indices,
    empty: trees.Empty | None = None,
) -> Block:
    """Batches of a source with columns: one run of the index program for all of them, one gather for each."""
    flat, cuts = layout(idx)
    rows = as_array(parent.program(flat))
    made: list[Any] = []
    try:
        timed(parent.op, lambda: made.extend(batch(rows[a:b], empty) for a, b in cuts))
        return Rows(made, owned=True)
    except StructureError as e:
        add_note(e, f"in {layout.op.label()} (pipeline at {layout.op.site})")
        raise
    except Exception as e:
        errors, (a, b) = [e], cuts[len(made)]
        blame_block(e, parent.op, ints(rows[a:b]))
    raise first_error(errors, parent.read, rows[a:b])
