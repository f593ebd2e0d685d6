"""What each operation means, said once more and as plainly as possible: one element at a time, no blocks.

The tests compare the library with this, so that meaning and cost cannot drift apart unseen. Nothing here is
shared with `headrace.engine`; only the ciphers and the schedules of `_utils.rng` and `_ops` are.
"""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, islice
from typing import Any

import numpy as np

from headrace import rng, trees
from headrace.ops import (
    buffer,
    by_size,
    combine,
    disk_cache,
    element,
    global_batch,
    group,
    order,
    schedule,
    source,
    split,
    weighed_mix,
)
from headrace.ops.lanes import WHOLE, Lane
from headrace.ops.op import Op
from headrace.ops.packing import packers as pack

index_shuffle = lru_cache(1 << 16)(rng.index_shuffle)  # a small range takes thousands of steps


def rng_at(seed: int, index: int) -> np.random.Generator:
    bits = np.random.Philox(seed)
    state = bits.state
    state["state"]["counter"] = np.array([0, 0, 0, index], np.uint64)
    bits.state = state
    return np.random.Generator(bits)


def with_globals(rng: np.random.Generator, call: Callable[[], Any]) -> Any:
    """The result of a call that finds the generators of the process seeded; torch's are not."""
    words = [int(word) for word in rng.bit_generator.random_raw(3)]
    random.seed(words[0])
    np.random.seed(words[1] // 2**32)
    return call()


def item(op: Op, i: int) -> Any:
    """Element `i` of a random-access chain."""
    match op:
        case source.SeededSource():
            return with_globals(rng_at(op.seed, i), lambda: op.source[i % len(op.source)])
        case source.Source():
            return trees.copy_tree(op.source[i % len(op.source)])
        case source.UserDataset():
            return op.dataset[i]
        case element.MapOp(batched=True):
            x = item(op.parent, i)
            return None if x is None else _unstack(op.transform(trees.stack([x])))
        case element.MapOp():
            return _unless_hole(op.fn, item(op.parent, i))
        case element.MapWithIndexOp():
            return _unless_hole(lambda x: op.fn(i, x), item(op.parent, i))
        case element.RandomMapOp():
            return _unless_hole(lambda x: op.fn(x, rng_at(op.seed, i)), item(op.parent, i))
        case element.FilterOp():
            return _unless_hole(lambda x: x if op.fn(x) else None, item(op.parent, i))
        case element.FlatMapOp():
            parent, child = divmod(i, op.max_fan_out)
            children = _unless_hole(lambda x: list(op.fn(x)), item(op.parent, parent)) or []
            return children[child] if child < len(children) else None
        case global_batch.BatchOfRows():
            whole = op.parent.parent if isinstance(op.parent, global_batch.OwnRows) else op.parent
            epoch, batch = divmod(i, whole.length() // op.rows.batch_size)
            first = epoch * _epoch_length(whole) + batch * op.rows.batch_size
            return (op.batch_fn or trees.stack)([item(whole, first + row) for row in op.rows.numbers.tolist()])
        case group.BatchOp():
            n, size = op.parent.length(), op.batch_size
            epoch, batch = divmod(i, op.length())
            rows = [item(op.parent, epoch * n + j) for j in range(batch * size, min((batch + 1) * size, n))]
            return (op.batch_fn or trees.stack)(rows)
        case combine.Zip():
            epoch, place = divmod(i, op.length())
            return tuple(item(part, epoch * part.length() + place) for part in op.parts)
        case combine.RouteOp():
            which, inner = op.route(np.array([i]))
            return item(op.parts[int(which[0])], int(inner[0]))
        case order.IndexOp():
            return item(op.parent, index(op, i))
    raise AssertionError(op)


def index(op: order.IndexOp, i: int) -> int:
    """The parent index of output index `i`."""
    match op:
        case order.Shuffle():
            n = op.length()
            return index_shuffle(i % n, n - 1, (op.seed + i // n) % 2**32) + i // n * n
        case order.WindowShuffle():
            n, size = op.length(), op.window_size
            epoch, place = divmod(i, n)
            window, offset = divmod(place, size)
            last = min(size, n - window * size) - 1
            seed = (op.seed + epoch * -(-n // size) + window) % 2**32
            return epoch * n + window * size + index_shuffle(offset, last, seed)
        case order.Slice():
            epoch, place = divmod(i, op.count)
            return epoch * _epoch_length(op.parent) + op.start + op.step * place
        case order.Pick():
            epoch, place = divmod(i, len(op.chosen))
            return epoch * _epoch_length(op.parent) + int(op.chosen[place])
        case split.SplitOp():
            chosen = [place for ends in zip(op.starts, op.stops, strict=True) for place in range(*ends)]
            epoch, place = divmod(i, len(chosen))
            return epoch * _epoch_length(op.parent) + chosen[place]
        case order.Repeat(reseed_each_epoch=False) | buffer.Cache():
            return i % op.parent.length()
    return i


def stream(op: Op, lane: Lane = WHOLE) -> Iterator[Any]:
    """The elements of a stream, or of one of its lanes: element `i` of lane `l` of `L` is number `i * L + l`."""
    match op:
        case disk_cache.FromDisk():
            yield from stream(op.cache.parent)
        case buffer.ToStream():
            for i in range(lane.index, op.parent.length(), lane.count):
                x = item(op.parent, i)
                if x is not None or op.allow_nones:
                    yield x
        case source.UserDataset():
            yield from op.dataset if lane == WHOLE else op.dataset.shard(lane.index, lane.count)
        case global_batch.GlobalBatch():
            yield from _global_batches(op)
        case element.MapOp(batched=True):
            for x in stream(op.parent, lane):
                yield None if x is None else _unstack(op.transform(trees.stack([x])))
        case element.MapOp():
            yield from (_unless_hole(op.fn, x) for x in stream(op.parent, lane))
        case element.MapWithIndexOp():
            yield from (_unless_hole(partial(op.fn, i), x) for i, x in _numbered(stream(op.parent, lane), lane))
        case element.RandomMapOp():
            for i, x in _numbered(stream(op.parent, lane), lane):
                yield None if x is None else op.fn(x, rng_at(op.seed, i))
        case element.FilterOp():
            yield from filter(op.fn, stream(op.parent, lane))
        case element.FlatMapOp():
            for x in stream(op.parent, lane):
                yield from op.fn(x)
        case group.BatchOp():
            for rows in _chunks(stream(op.parent, lane), op.batch_size):
                if len(rows) == op.batch_size or not op.drop_remainder:
                    yield (op.batch_fn or trees.stack)(rows)
        case group.Rebatch():
            rows = (trees.tree_map(lambda a, j=j: a[j], x) for x in stream(op.parent, lane) for j in range(_length(x)))
            for chunk in _chunks(rows, op.batch_size):
                if len(chunk) == op.batch_size or not op.drop_remainder:
                    yield trees.stack(chunk)
        case order.WindowShuffle():
            for w, rows in enumerate(_chunks(stream(op.parent, lane), op.window_size)):
                seed = (_seed(op.seed, lane) + w) % 2**32
                yield from [rows[index_shuffle(i, len(rows) - 1, seed)] for i in range(len(rows))][::-1]
        case group.BufferShuffle():
            yield from _buffer_shuffle(replace(op, seed=_seed(op.seed, lane)), lane)
        case group.PaddedBatch():
            for rows in _chunks(stream(op.parent, lane), op.window_size):
                for chosen, length in op.groups(rows):
                    yield op.pad([rows[i] for i in chosen], length)
        case by_size.BatchBySize():
            for w, rows in enumerate(_chunks(stream(op.parent, lane), op.window_size)):
                yield from _batches_by_size(replace(op, seed=_seed(op.seed, lane)), rows, w)
        case pack.FirstFitPack():
            yield from _pack_into_bins(replace(op, seed=_seed(op.seed, lane)), lane)
        case pack.ConcatThenSplit():
            yield from _concat_then_split(op, lane)
        case combine.Mix():
            parts = [stream(part, lane) for part in op.parts]
            for k in range(10**6):
                which, _ = op.route(np.array([k]))
                try:
                    yield next(parts[int(which[0])])
                except StopIteration:
                    return
        case schedule.ScheduledMix():
            parts = [stream(part, lane) for part in op.parts]
            for which in _by_tijdeman(op.schedule, len(parts), lane):
                try:
                    yield next(parts[which])
                except StopIteration:
                    return
        case weighed_mix.WeighedMix():
            yield from _mix_by_size(replace(op, lane=lane), [stream(part, lane) for part in op.parts])
        case combine.Zip():
            yield from zip(*(stream(part, lane) for part in op.parts), strict=False)
        case combine.Interleave():
            yield from _interleave(op, lane)
        case order.Repeat():
            for _ in range(op.num_epochs or 10**6):
                yield from stream(op.parent, lane)
        case buffer.Limit():
            yield from islice(stream(op.parent, lane), _below(op.count, lane))
        case buffer.Skip():
            yield from islice(stream(op.parent, lane), _below(op.count, lane), None)
        case _:
            yield from stream(op.parents[0], lane)


def _buffer_shuffle(op: group.BufferShuffle, lane: Lane) -> Iterator[Any]:
    size = op.buffer_size
    keyed = []
    for i, x in enumerate(stream(op.parent, lane)):
        stretch, offset = divmod(i, size)
        keyed.append((stretch * size + op.landing(stretch, offset + 1)[offset], i, x))
    return iter([x for _, _, x in sorted(keyed, key=lambda entry: entry[:2])])


def _batches_by_size(op: by_size.BatchBySize, elements: list[Any], window: int) -> Iterator[Any]:
    """The batches of a window: each has as many of the smallest elements left as fit."""

    def size(x: Any) -> int:
        return len(x[op.size]) if isinstance(op.size, str) else op.size(x)

    def fit(rows: list[Any]) -> bool:
        used = len(rows) * max(map(size, rows)) if op.padded else sum(map(size, rows))
        return used <= op.max_size and len(rows) <= (op.max_rows or len(rows))

    left = sorted((x for x in elements if size(x) <= op.max_size), key=size)
    batches = []
    while left:
        count = max(n for n in range(1, len(left) + 1) if fit(left[:n]))
        batches.append(left[:count])
        left = left[count:]
    order = range(len(batches))
    if op.shuffle_batches:
        keys = np.random.Philox(key=[op.seed, window]).random_raw(len(batches))
        order = sorted(order, key=keys.tolist().__getitem__)
    for i in order:
        yield op.batch_fn(batches[i]) if op.batch_fn else _padded(batches[i], op.pad_value)


def _padded(elements: list[Any], pad_value: Any) -> Any:
    """Elements that are vectors, or dicts of vectors."""
    if isinstance(elements[0], dict):
        values = {key: pad_value.get(key, 0) if isinstance(pad_value, dict) else pad_value for key in elements[0]}
        return {key: _padded([x[key] for x in elements], values[key]) for key in elements[0]}
    longest = max(map(len, elements))
    return np.stack([np.concatenate([x, np.full(longest - len(x), pad_value, x.dtype)]) for x in elements])


def _by_tijdeman(table: schedule.WeightSchedule, num_parts: int, lane: Lane, far: int = 2000) -> Iterator[int]:
    """Parts one after the other, in exact numbers, from a table of ints."""

    def weights(i: int) -> list[Fraction]:
        n = i * lane.count + lane.index
        row = table.weights[max(step for step in table.weights if step <= n // table.elements_per_step)]
        return [Fraction(weight, sum(row)) for weight in row]

    e = Fraction(1, 2 * num_parts - 2)
    shares = [list(accumulate(column)) for column in zip(*map(weights, range(far)), strict=True)]
    counts = [0] * num_parts
    for n in range(far // 2):
        may = [i for i in range(num_parts) if shares[i][n] - counts[i] >= e]
        must = [next((m for m in range(n, far) if shares[i][m] - counts[i] >= 1 - e), far) for i in may]
        _, which = min(zip(must, may, strict=True))
        counts[which] += 1
        yield which


def _mix_by_size(op: weighed_mix.WeighedMix, parts: list[Iterator[Any]]) -> Iterator[Any]:
    """The next element comes from the part whose share of the sizes so far is furthest ahead of its own sizes."""
    total, count, sizes, shares = 0, 0, [0] * len(parts), [0] * len(parts)
    while True:
        units = op.units(op.step(count, total)).tolist()
        due = [i for i in range(len(parts)) if units[i]]
        which = max(due, key=lambda i: (shares[i] + units[i] - sizes[i] * sum(units), -i))
        try:
            x = next(parts[which])
        except StopIteration:
            return
        size = len(x[op.weigh_by]) if isinstance(op.weigh_by, str) else op.weigh_by(x)
        shares = [share + unit * size for share, unit in zip(shares, units, strict=True)]
        sizes[which] += size
        count, total = count + 1, total + size
        yield x


def _pack_into_bins(op: pack.FirstFitPack, lane: Lane) -> Iterator[Any]:
    """Features that are plain arrays, neither aligned nor grouped."""

    def fits(sequences: list[Any]) -> bool:
        enough = op.max_sequences_per_bin is None or len(sequences) <= op.max_sequences_per_bin
        return enough and all(sum(len(x[key]) for x in sequences) <= n for key, n in op.length_struct.items())

    def fill(sequences: list[Any]) -> int:
        return sum(len(x[key]) for x in sequences for key in op.length_struct)

    def rows() -> list[Any]:
        used = [_row(sequences, op) for sequences in bins if sequences]
        order = np.random.default_rng(op.seed + before).permuted(range(len(used)))
        return [used[i] for i in order] if op.shuffle_bins else used

    before, bins = 0, [[] for _ in range(op.num_packing_bins)]
    for x in _sequences(op, lane):
        open_bins = [sequences for sequences in bins if fits([*sequences, x])]
        if not open_bins:
            done = rows()
            yield from done
            before += len(done)
            bins = open_bins = [[] for _ in range(op.num_packing_bins)]
        (max(open_bins, key=fill) if isinstance(op, pack.BestFitPack) else open_bins[0]).append(x)
    yield from rows()


def _concat_then_split(op: pack.ConcatThenSplit, lane: Lane) -> Iterator[Any]:
    """Features that are plain arrays, none of them meta."""
    lengths = op.length_struct
    row: list[Any] = []
    aside: list[Any] = []
    for x in _sequences(op, lane):
        is_full = max(len(x[key]) - lengths[key] for key in lengths) == 0
        if is_full and not op.split_full_length_features:
            aside.append(_row([x], op))
            continue
        rest = {key: x[key] for key in lengths}
        while True:
            room = {key: lengths[key] - sum(len(piece[key]) for piece in row) for key in lengths}
            piece, rest = (
                {key: rest[key][: room[key]] for key in lengths},
                {key: rest[key][room[key] :] for key in lengths},
            )
            is_whole = not any(map(len, rest.values()))
            if is_whole or any(map(len, piece.values())):
                row.append(piece)
            if is_whole:
                break
            yield _row(row, op)
            yield from aside
            row, aside = [], []
    yield from ([_row(row, op)] if row else []) + aside


def _sequences(op: pack.Packer, lane: Lane) -> Iterator[Any]:
    for x in stream(op.parent, lane):
        if op.empty_sequences != "drop" or any(len(x[key]) for key in op.length_struct):
            yield x


def _row(sequences: list[Any], op: pack.Packer) -> dict[str, Any]:
    row = {}
    for key, length in op.length_struct.items():
        row[key] = np.zeros(length, sequences[0][key].dtype)
        ids, positions = np.zeros((2, length), np.int32)
        start = 0
        for number, x in enumerate(sequences):
            stop = start + len(x[key])
            row[key][start:stop], ids[start:stop], positions[start:stop] = x[key], number + 1, range(stop - start)
            start = stop
        if key in getattr(op, "bos_features", ()):
            row[key][(ids != 0) & (positions == 0)] = op.bos_token_id  # type: ignore[attr-defined]
        row |= {f"{key}_segment_ids": ids, f"{key}_positions": positions}
    return row


def _interleave(op: combine.Interleave, lane: Lane) -> Iterator[Any]:
    if isinstance(op.datasets, Op):
        made = (item(op.datasets, i) for i in range(op.datasets.length()))
        parts = [dataset._stream_op for dataset in made if dataset is not None]
    else:
        parts = list(op.datasets)
    if op.num_lanes > 1:
        parts, lane = parts[lane.index :: lane.count], WHOLE
    waiting = (stream(part, lane) for part in parts)
    slots: list[Any] = [None] * op.cycle_length
    idle = 0
    turn = 0
    while idle < op.cycle_length:
        here, turn = turn, (turn + 1) % op.cycle_length
        slots[here] = slots[here] or next(waiting, None)
        if slots[here] is None:
            idle += 1
            continue
        idle = 0
        try:
            yield next(slots[here])
        except StopIteration:
            slots[here] = None


def _global_batches(op: global_batch.GlobalBatch) -> Iterator[Any]:
    """The next `G / L` rows of each lane, of which a process has some; it ends with the first of its lanes."""
    each = op.batch_size // op.num_lanes
    own = sorted({row // each for row in op.rows.numbers.tolist()})
    lanes = {i: stream(op.parent, Lane(i, op.num_lanes)) for i in own}
    while True:
        rows = {}
        for i in own:
            rows |= dict(zip(range(i * each, (i + 1) * each), islice(lanes[i], each), strict=False))
        if len(rows) < len(own) * each:
            return
        yield (op.batch_fn or trees.stack)([rows[row] for row in op.rows.numbers.tolist()])


def _numbered(elements: Iterator[Any], lane: Lane) -> Iterator[tuple[int, Any]]:
    return ((i * lane.count + lane.index, x) for i, x in enumerate(elements))


def _below(count: int, lane: Lane) -> int:
    """How many numbers of a lane are below a count."""
    return sum(1 for n in range(count) if n % lane.count == lane.index)


def _seed(seed: int, lane: Lane) -> int:
    return seed if lane == WHOLE else int(np.random.SeedSequence([seed, lane.index]).generate_state(1)[0])


def _epoch_length(op: Op) -> int:
    return 0 if op.length() == sys.maxsize else op.length()  # an endless dataset has one epoch


def _chunks(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, size)):
        yield chunk


def _length(tree: Any) -> int:
    return len(trees.leaves(tree)[0])


def _unless_hole(fn: Any, x: Any) -> Any:
    return None if x is None else fn(x)


def _unstack(columns: Any) -> Any:
    return trees.tree_map(lambda a: np.asarray(a)[0], columns)
